"""Rows by what they have in common."""

from deepvm.core.grouping import grouped


def test_keys_and_values_keep_the_order_of_the_pairs() -> None:
    pairs = [("b", 3), ("a", 1), ("b", 2)]
    assert list(grouped(pairs).items()) == [("b", [3, 2]), ("a", [1])]
    assert grouped([]) == {}
