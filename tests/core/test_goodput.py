"""The share of a training that preemptions leave, against two simulations and its own limits."""

from __future__ import annotations

import math
import warnings
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import THOROUGH, examples

from deepvm.core.lifetimes import kept_share
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.simulator.monte_carlo import simulate

HOUR = 3600.0


def share(rate: float, stall: float, durable: float, restart: float) -> float:
    return float(kept_share(np.array(rate), np.array(stall), np.array(durable), np.array(restart)))


def work_between_saves(rate: float, stall: float, durable: float) -> float:
    return max(math.sqrt(2 * stall / rate), durable)


def by_lives(
    rate: float, stall: float, durable: float, restart: float, work: float, lives: int = 400_000
) -> float:
    """One life after the other: durable work at each end, over the total lifetime."""
    lasted = np.random.default_rng(20261125).exponential(1 / rate, lives)
    versions = np.maximum(0, np.floor((lasted - restart - durable) / (work + stall)))
    return float(versions.sum() * work / lasted.sum())


CASES = list(
    product(
        (0.2 * HOUR, HOUR, 4 * HOUR, 100 * HOUR),
        (0.02, 2.0, 30.0),
        (0.5, 20.0, 300.0),
        (30.0, 300.0, 1500.0),
    )
)


def test_as_one_life_after_the_other() -> None:
    for life, stall, durable, restart in CASES:
        work = work_between_saves(1 / life, stall, durable)
        expected = by_lives(1 / life, stall, durable, restart, work)
        assert share(1 / life, stall, durable, restart) == pytest.approx(
            expected, rel=0.02, abs=0.002
        )


@pytest.mark.parametrize(
    ("life", "stall", "durable", "restart"),
    [case for number, case in enumerate(CASES) if THOROUGH or number % 7 == 0],
)
def test_as_the_simulator_of_events(
    life: float, stall: float, durable: float, restart: float
) -> None:
    """A long job in steps that are short beside a segment."""
    found = share(1 / life, stall, durable, restart)
    if found < 0.1:
        pytest.skip("the job would hardly end")
    work = work_between_saves(1 / life, stall, durable)
    step = work / 25
    steps = int(min(max(300 * life / step, 2000), 200_000))
    job = Job(
        steps=steps,
        step_s=Span.of(step),
        save_s=Span.of(stall),
        backup_s=Span.of(durable),
        allocation_s=Span.of(restart),
        mttp_s=(life,),
    )
    runs = simulate(job, parse_policy(f"every:{work:.9f}"), runs=60, seed=1)
    kept = steps * step / float(np.mean(runs.total_s))
    assert found == pytest.approx(kept, rel=0.04)


@pytest.mark.parametrize(
    ("life", "stall", "durable"), [(0.2 * HOUR, 2, 20), (HOUR, 30, 60), (100 * HOUR, 60, 600)]
)
def test_saving_more_or_less_often_is_hardly_better(
    life: float, stall: float, durable: float
) -> None:
    """Where a save is short beside a life, no other interval keeps a hundredth more."""
    rate, restart = 1 / life, 300.0

    def kept(work: float) -> float:
        return (
            rate * work * math.exp(-rate * (restart + durable)) / math.expm1(rate * (work + stall))
        )

    best = max(kept(durable * factor) for factor in np.geomspace(1, 100 * life / durable, 4000))
    assert 0.99 * best <= share(rate, stall, durable, restart) <= best * (1 + 1e-9)


rates = st.floats(1e-9, 1e-1)
seconds = st.floats(0, 5000)


@settings(max_examples=examples(2000))
@given(rates, seconds, seconds, seconds, st.floats(1.001, 10))
def test_more_of_anything_keeps_less(
    rate: float, stall: float, durable: float, restart: float, times: float
) -> None:
    now = share(rate, stall, durable, restart)
    assert 0 <= now <= 1
    for worse in (
        (rate * times, stall, durable, restart),
        (rate, stall * times, durable, restart),
        (rate, stall, durable * times, restart),
        (rate, stall, durable, restart * times),
    ):
        assert share(*worse) <= now * (1 + 1e-9)


@given(seconds, seconds, seconds)
def test_without_preemptions_nothing_is_lost(stall: float, durable: float, restart: float) -> None:
    assert share(0.0, stall, durable, restart) == pytest.approx(1, abs=1e-4)


@settings(max_examples=examples(800))
@given(st.floats(0, 1e308), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e9))
def test_never_a_warning_and_always_a_share(
    rate: float, stall: float, durable: float, restart: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 0 <= share(rate, stall, durable, restart) <= 1


def test_hit_all_the_time_nothing_is_kept() -> None:
    for rate in [1.0, 1e3, 1e30, 1e300, 1.7e308, math.inf]:
        for durable in [0.0, 100.0]:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert share(rate, 1.0, durable, 60.0) == pytest.approx(0, abs=1e-9)


def test_arrays_are_answered_row_by_row() -> None:
    lives: npt.NDArray[np.float64] = np.array([HOUR, 10 * HOUR, 1000 * HOUR])
    found = kept_share(1 / lives, np.array(2.0), np.array(30.0), np.array(300.0))
    assert found.shape == (3,)
    assert found == pytest.approx([share(1 / life, 2.0, 30.0, 300.0) for life in lives])
    assert (np.diff(found) > 0).all()
