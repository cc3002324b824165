"""Lives drawn again as they were watched: Kaplan and Meier's curve, and what lies beyond it."""

from __future__ import annotations

import numpy as np
import pytest

from deepvm.errors import DataError
from deepvm.simulator.engine.lifetimes import ListedLifetimes
from deepvm.simulator.traces.lifetime_fit import ResampledLifetimes

RANDOM = np.random.default_rng(1)
MANY = np.zeros(20_000, dtype=np.int64)


def test_lives_without_censoring_are_drawn_alike() -> None:
    found = ResampledLifetimes([(10.0, True), (20.0, True), (30.0, True), (40.0, True)]).draw(
        RANDOM, MANY, MANY
    )
    values, counts = np.unique(found, return_counts=True)
    assert (
        values.tolist() == [10.0, 20.0, 30.0, 40.0]
        and np.abs(counts / len(MANY) - 0.25).max() < 0.02
    )


def test_censored_lives_make_the_others_longer() -> None:
    """Of exponential lives, each watched for at most its mean, the mean comes out as it was."""
    lives = RANDOM.exponential(100.0, 2000)
    seen = [(float(min(life, 100.0)), bool(life < 100.0)) for life in lives]
    found = ResampledLifetimes(seen).draw(RANDOM, MANY, MANY)
    assert found.mean() == pytest.approx(100.0, rel=0.08)
    assert np.mean(found < 50) == pytest.approx(1 - np.exp(-0.5), abs=0.03)
    assert np.mean([s for s, _ in seen]) < 70  # what taking censored lives for whole ones would say


def test_a_history_without_preemptions_says_nothing() -> None:
    with pytest.raises(DataError, match="none of 2 lifetimes"):
        ResampledLifetimes([(10.0, False), (20.0, False)])


def test_lives_in_their_order() -> None:
    lives = ListedLifetimes([5.0, 7.0])
    assert lives.draw(RANDOM, MANY[:4], np.array([1, 0, 2, 9])).tolist() == [
        7.0,
        5.0,
        np.inf,
        np.inf,
    ]
