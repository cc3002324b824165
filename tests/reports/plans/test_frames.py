"""Answers as data frames."""

from __future__ import annotations

import sys

import pytest

from deepvm import load_catalog, recommend, sweep, to_frame
from deepvm.errors import MissingExtraError

PAPER = load_catalog("paper")


def test_a_recommendation_has_a_row_for_each_cluster() -> None:
    found = recommend(PAPER, 3)
    frame = to_frame(found)
    assert list(frame["rank"]) == [r.rank for r in found]
    assert frame["throughput"].tolist() == [r.throughput for r in found]
    assert frame["usd_per_hour"].dtype == "float64" and frame["estimated"].dtype == bool


def test_a_sweep_has_a_row_for_each_budget_and_policy() -> None:
    rows = sweep(PAPER, ["0.01", 1, 3])
    frame = to_frame(rows)
    assert frame["pw"].tolist() == [float(r.budget) for r in rows]
    assert frame["throughput"].isna().sum() == sum(r.recommendation is None for r in rows)


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"deepvm\[pandas\]"):
        to_frame(recommend(PAPER, 3))
