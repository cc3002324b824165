from __future__ import annotations

from deepvm.core.spelling import did_you_mean, joined, nearest, printable

REGIONS = [
    "ap-east-1",
    "eu-west-1",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
]


def test_what_was_meant() -> None:
    for typed, known, meant in [
        ("us-esat-1", REGIONS, "us-east-1"),
        ("us-east1", REGIONS, "us-east-1"),
        ("us-wets-2", REGIONS, "us-west-2"),
        ("US-EAST-2", REGIONS, "us-east-2"),
        ("recomend", ["recommend", "explain"], "recommend"),
        ("rec", ["recommend", "explain"], "recommend"),
        ("g5.xlrage", ["g5g.xlarge", "g5.xlarge", "g5.2xlarge"], "g5.xlarge"),
        ("A10", ["A100", "A10G", "T4"], "A10G"),
        ("depvm", ["deepvm", "noscale"], "deepvm"),
        ("mars", REGIONS, ""),
        ("x", ["p", "x2"], ""),
        ("", ["a"], ""),
    ]:
        assert nearest(typed, known) == ([meant] if meant else [])
        assert did_you_mean(typed, known) == (f"did you mean {meant}?" if meant else "")


def test_no_more_than_wanted() -> None:
    near = nearest("us-east-3", REGIONS, 3)
    assert len(near) == 3 and {"us-east-1", "us-east-2"} < set(near)


def test_lists_in_words() -> None:
    assert [joined("a"), joined("ab"), joined("abc", "or")] == ["a", "a and b", "a, b or c"]


def test_control_characters_are_escaped() -> None:
    assert printable("T4\x1b[2J\n目") == "T4\\x1b[2J\\n目"
