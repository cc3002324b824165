"""The first row is none that its own warning refutes: long jobs on large gangs of spot VMs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]


def answer(run: Run, *words: str) -> tuple[Any, str]:
    words = ("recommend", "--model", "llama-70b", "--method", "fsdp", *words, "--offline")
    code, out, err = run(*words, "-o", "json")
    assert code == 0, err
    return json.loads(out), run(*words, "--why")[1]


def test_at_a_bad_time_no_spot_would_be_faster_and_cheaper(run: Run) -> None:
    found, text = answer(run, "--pw", "300", "--tokens", "100B", "--gpu", "A100")
    assert found["configurations"][0]["architecture"] == "on-demand"
    assert "is faster and cheaper" not in text


@pytest.mark.parametrize("pw", ["300", "1000"])
def test_a_bill_of_more_than_three_times(pw: str, run: Run) -> None:
    found, text = answer(run, "--pw", pw, "--tokens", "2B")
    bill = found["configurations"][0]["expected"]["total_cost_range_usd"]
    assert bill["high"] <= 3 * bill["low"]
    assert "is not first, though better as a rule" in text


def test_a_gang_of_32_vms_is_ranked_as_at_a_bad_time(run: Run) -> None:
    found, _ = answer(run, "--pw", "1000", "--tokens", "2B", "--gpu", "H100")
    assert found["configurations"][0]["gpu"]["spot_count"] < 16
