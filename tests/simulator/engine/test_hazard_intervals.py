"""Intervals that grow from save to save, against each of them, and against the oracle, which weighs
each anew.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import THOROUGH, examples, sampled
from support.simulator.engine_runs import compare

from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import Hazard, SaveFacts
from deepvm.simulator.engine.policy_adapter import ALIKE, GrowingIntervals, pass_over
from deepvm.simulator.engine.state import Runs

JOB = Job(
    20_000,
    Span(1, 1.2),
    save_s=Span(4, 6),
    backup_s=Span(5, 20),
    allocation_s=Span(20, 60),
    preparation_s=Span(20, 60),
    mttp_s=(6000.0,),
    spot_usd_per_hour=1.0,
)


def growing(first: float, growth: float) -> GrowingIntervals:
    return GrowingIntervals(np.array([first]), np.array([growth]))


@settings(deadline=None, max_examples=examples(200))
@given(st.floats(0, 3000), st.floats(1e-4, 5), st.integers(1, 200))
def test_steps_are_those_of_each_interval_rounded_down(
    shortest: float, growth: float, count: int
) -> None:
    first = 1 + growth + shortest + np.arange(0, 1, 1 / 500)
    each = np.floor(first[:, None] + growth * np.arange(count)).sum(1)
    found = GrowingIntervals(first, np.full(500, growth)).steps(np.full(500, float(count)))
    assert (found >= count).all()
    # All of them just above whole numbers, or just below
    assert (np.abs(found - each) <= 1 + count / 2).all()
    assert np.mean(found - each) == pytest.approx(0, abs=0.05 + 0.005 * count)


def test_intervals_that_hardly_grow_are_rounded_down_as_one() -> None:
    """No mean of neighbors: they are all between 1 and 2 steps, and 17 and 18."""
    count = np.array([50.0])
    assert growing(1.6, 1e-3).steps(count) == [50] and growing(17.9, 1e-4).steps(count) == [17 * 50]
    assert growing(1e5 + 0.9, 0.1).steps(count)[0] == pytest.approx(
        50 * (1e5 + 0.9 - 0.5 + 4.9 / 2), abs=30
    )


@settings(deadline=None, max_examples=examples(200))
@given(
    st.floats(1, 3000),
    st.floats(1e-4, 5),
    st.integers(0, 200),
    st.floats(0.01, 100),
    st.floats(0, 1000),
)
def test_as_many_fit_as_take_the_room(
    first: float, growth: float, count: int, step: float, save: float
) -> None:
    room = (first + growth * np.arange(count)).sum() * step + count * save
    assert growing(first, growth).within(np.array([room]), step, save)[0] == pytest.approx(
        count, abs=1e-6
    )
    assert growing(first, growth).within(np.array([-room]), step, save)[0] == 0


def test_one_of_the_intervals_that_are_alike_is_as_likely_as_another() -> None:
    many = np.ones(30_000)
    gaps, random = GrowingIntervals(100 * many, 2 * many), np.random.default_rng(1)
    found, count = gaps.alike(1e9 * many, random)
    assert (count == 1 + ALIKE * 100 / 2).all()
    values, often = np.unique(found, return_counts=True)
    assert values.tolist() == [100, 102, 104, 106, 108, 110] and often == pytest.approx(
        5000, abs=400
    )
    found, count = gaps.alike(1.5 * many, random)  # a life that ends in the second of them
    assert (count == 2).all() and set(found) == {100.0, 102.0}


def test_the_growth_is_that_of_the_policy() -> None:
    facts = SaveFacts(
        save_s=5.0, step_s=1.0, missed_rate=0.1, shape=np.array([2.0]), scale_s=5000.0, age_s=100.0
    )
    gaps, age, policy = GrowingIntervals.of(Hazard(), facts), 100.0, Hazard()
    for save in range(12):
        interval = float(np.asarray(policy.interval_s(replace(facts, age_s=age)))[0])
        assert gaps.first[0] + save * gaps.growth[0] == pytest.approx(interval, rel=2e-3)
        age += interval + 5.0


def test_rows_are_taken_over_saves_that_are_surely_made() -> None:
    """Those that do not train stay; the user's next save and the end of the job are not passed."""
    job, rows, random = (
        replace(JOB, save_every_steps=5000, steps=12_000),
        4000,
        np.random.default_rng(1),
    )
    zeros = np.zeros(rows)
    r = Runs(**{f.name: zeros.copy() for f in fields(Runs)})
    begun, until = (
        random.choice([0.0, 700.0, 4990.0, 6000.0, 11_900.0], rows),
        random.choice([0.0, 50.0, 3e3, 1e30], rows),
    )
    r.step, r.durable, r.furthest = begun.copy(), begun.copy(), random.choice([0.0, 8000.0], rows)
    r.furthest = np.maximum(r.furthest, r.step)
    was = r.furthest.copy()
    gaps = GrowingIntervals(np.full(rows, 100.0), random.choice([1e-4, 3.0], rows))
    pass_over(r, gaps, until, job, 1.0, random)
    moved = r.step > begun
    assert moved.any() and not moved[until < 1000].any() and not moved[begun == 4990].any()
    assert (
        (r.now[moved] < until[moved]).all()
        and (r.now[~moved] == 0).all()
        and (r.durable == r.step).all()
    )
    assert (
        (r.step < 12_000).all()
        and (r.step[begun < 5000] < 5000).all()
        and (r.step[begun == 6000] < 10_000).all()
    )
    assert (r.step[moved] - begun[moved] > 2 * 100).all() and (
        r.furthest == np.maximum(was, r.step)
    ).all()
    assert r.now == pytest.approx(r.compute + r.recompute + r.save)
    assert (r.recompute[was == 8000] > 0)[moved[was == 8000] & (begun[was == 8000] < 8000)].all()
    assert not r.recompute[was <= begun].any()


@pytest.mark.parametrize(
    "changes",
    sampled(
        [
            {},
            {"mttp_s": (40_000.0,), "lifetime": "lomax:1.5"},
            # A few steps between two saves
            {"save_s": Span(0.1, 0.2), "step_s": Span(5, 6), "steps": 4000},
            {"save_every_steps": 450, "grace_s": Span(20, 90), "missed_notice_rate": 0.2},
            {"backup_s": Span(0, 400), "lifetime": "weibull:0.7"},
            {"stall_s": Span(0.1, 0.3), "save_s": Span(5, 60), "vms": 3, "mttp_s": (20_000.0,)},
            {
                "proactive_replacement": True,
                "grace_s": Span(120, 120),
                "mttp_s": (2000.0,),
                "missed_notice_rate": 0.5,
            },
            {"step_s": Span(0.2, 3), "save_s": Span(0, 12)},
            pytest.param(
                {"vms": 4, "elastic": True, "mttp_s": (30_000.0,)}, marks=pytest.mark.slow
            ),
        ]
    ),
)
def test_many_saves_at_once_agree_with_the_oracle(changes: dict[str, object]) -> None:
    """0.2 % and what chance can do."""
    job = replace(JOB, **changes)  # type: ignore[arg-type]
    for what, oracle, difference, error in compare(
        job, "hazard", 1000 if THOROUGH else 40, 20_000 if THOROUGH else 4000
    ):
        assert abs(difference) <= 0.002 + 3.5 * error, (what, oracle, difference, error)
