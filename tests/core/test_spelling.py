from __future__ import annotations

from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.spelling import did_you_mean, edits, joined, nearest, printable

WORDS = st.text("ab-1", max_size=7)
REGIONS = [
    "ap-east-1",
    "eu-west-1",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
]


def spelt_out(left: str, right: str) -> int:
    """The definition, as a recursion."""

    @lru_cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        found = [
            between(i - 1, j) + 1,
            between(i, j - 1) + 1,
            between(i - 1, j - 1) + (left[i - 1] != right[j - 1]),
        ]
        if i > 1 and j > 1 and left[i - 1] == right[j - 2] and left[i - 2] == right[j - 1]:
            found.append(between(i - 2, j - 2) + 1)
        return min(found)

    return between(len(left), len(right))


@given(WORDS, WORDS, st.integers(0, 8))
def test_edits_are_those_of_the_definition(left: str, right: str, most: int) -> None:
    assert (
        edits(left, right, most)
        == min(spelt_out(left, right), most + 1)
        == edits(right, left, most)
    )


def test_what_was_meant() -> None:
    for typed, known, meant in [
        ("us-esat-1", REGIONS, "us-east-1"),
        ("us-east1", REGIONS, "us-east-1"),
        ("us-wets-2", REGIONS, "us-west-2"),
        ("US-EAST-2", REGIONS, "us-east-2"),
        ("recomend", ["recommend", "explain"], "recommend"),
        ("rec", ["recommend", "explain"], "recommend"),
        ("g5.xlrage", ["g5g.xlarge", "g5.xlarge", "g5.2xlarge"], "g5.xlarge"),
        ("A10", ["A100", "A10G", "T4"], "A100"),
        ("depvm", ["deepvm", "noscale"], "deepvm"),
        ("mars", REGIONS, ""),
        ("x", ["p", "x2"], ""),
        ("", ["a"], ""),
    ]:
        assert nearest(typed, known) == ([meant] if meant else [])
        assert did_you_mean(typed, known) == (f"did you mean {meant}?" if meant else "")


@given(st.sampled_from(REGIONS), st.integers(0, 8), st.sampled_from(["swap", "drop", "twice"]))
def test_one_slip_is_undone(region: str, at: int, slip: str) -> None:
    at = min(at, len(region) - 2)
    typed = {
        "swap": region[:at] + region[at + 1] + region[at] + region[at + 2 :],
        "drop": region[:at] + region[at + 1 :],
        "twice": region[: at + 1] + region[at:],
    }[slip]
    assert spelt_out(nearest(typed, REGIONS)[0], typed) <= 1


def test_the_nearest_come_first_and_no_more_than_wanted() -> None:
    assert nearest("us-east-3", REGIONS, 3) == ["us-east-1", "us-east-2", "ap-east-1"]
    assert nearest("DEEPVM_SEED", ["DEEPVM_NODE"], share=0.15) == []


def test_lists_in_words() -> None:
    assert [joined("a"), joined("ab"), joined("abc", "or")] == ["a", "a and b", "a, b or c"]


def test_control_characters_are_escaped() -> None:
    assert printable("T4\x1b[2J\n目") == "T4\\x1b[2J\\n目"
