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


@pytest.mark.parametrize("pw", ["100", "300", "1000"])
def test_a_bill_of_more_than_three_times(pw: str, run: Run) -> None:
    """It comes first only where no cheaper row with a narrower bill is as fast at a bad time."""
    found, _ = answer(run, "--pw", pw, "--tokens", "10B")
    first, *others = [*found["configurations"], *found["alternatives"]]
    bill = first["expected"]["total_cost_range_usd"]
    if bill["high"] <= 3 * bill["low"]:
        return
    for other in others:
        its = other["expected"]["total_cost_range_usd"]
        narrow = its["high"] <= 3 * its["low"]
        slower = its["high"] / other["usd_per_hour"] > bill["high"] / first["usd_per_hour"]
        assert not narrow or slower or other["usd_per_hour"] > first["usd_per_hour"]


def test_no_row_is_faster_and_cheaper_than_the_first_whatever_happens(run: Run) -> None:
    """A narrower bill alone is no reason to come first."""
    found, _ = answer(run, "--pw", "600", "--tokens", "10B")
    first, *others = [*found["configurations"], *found["alternatives"]]
    bill = first["expected"]["total_cost_range_usd"]
    for other in others:
        its = other["expected"]["total_cost_range_usd"]
        assert not (
            its["low"] < bill["low"]
            and its["high"] < bill["high"]
            and other["expected"]["makespan_s"] < first["expected"]["makespan_s"]
        )


def test_a_gang_of_32_vms_is_ranked_as_at_a_bad_time(run: Run) -> None:
    found, _ = answer(run, "--pw", "1000", "--tokens", "100B", "--gpu", "H100")
    assert found["configurations"][0]["gpu"]["spot_count"] < 16
