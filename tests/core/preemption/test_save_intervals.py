"""The closed forms against what they are said to minimize, and what the policies make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.preemption.save_intervals import daly_s, exact_s, young_s
from deepvm.core.preemption.savepolicy import Adaptive, Hazard, SaveFacts, Thesis

saves, means, off = st.floats(0.01, 1000), st.floats(60, 1e6), st.floats(1.01, 5)


def is_least(lost: Callable[[float], float], best: float, other: float) -> bool:
    return lost(best) <= min(lost(best * other), lost(best / other)) * (1 + 1e-12)


@given(saves, means, off)
def test_the_exact_interval_is_where_dalys_expected_time_is_least(
    save: float, mean: float, other: float
) -> None:
    best = float(exact_s(save, mean))

    # Of (exp((tau + delta)/M) - 1)/tau, which may be beyond all floats
    def log_time(tau: float) -> float:
        x = (tau + save) / mean
        return x + math.log(-math.expm1(-x)) - math.log(tau)

    assert 0 < best <= mean
    assert log_time(best) <= min(log_time(best * other), log_time(best / other)) + 1e-12


@given(saves, means, st.floats(0.01, 1), st.floats(0, 1e5), st.floats(0.2, 5), off)
def test_first_order_forms_lose_least(
    save: float, mean: float, missed: float, age: float, shape: float, other: float
) -> None:
    """Of save / interval + hazard interval / 2, for the hazard that each form stands for."""
    facts = SaveFacts(
        save_s=save,
        mttp_s=mean,
        restart_s=age,
        age_s=age,
        shape=shape,
        scale_s=mean,
        missed_rate=missed,
    )
    noticed = replace(facts, grace_s=1.0)
    for hazard, best in (
        (1 / mean, young_s(save, mean)),
        (1 / (mean + age), Thesis().interval_s(facts)),
        (1 / mean, Adaptive().interval_s(facts)),
        (missed / mean, Adaptive().interval_s(noticed)),
        (shape / (mean + age), Hazard().interval_s(facts)),
        (shape * missed / (mean + age), Hazard().interval_s(noticed)),
    ):
        assert is_least(lambda tau, h=hazard: save / tau + h * tau / 2, float(best), other)  # type: ignore[misc]


@given(means, st.floats(1e-6, 0.02))
def test_dalys_form_is_next_to_the_exact_one_while_saves_are_short(
    mean: float, share: float
) -> None:
    assert daly_s(share * mean, mean) == pytest.approx(exact_s(share * mean, mean), rel=2e-3)
    assert daly_s(3 * mean, mean) == mean


@given(st.lists(st.tuples(saves, means), min_size=1, max_size=5))
def test_arrays_are_what_numbers_are(pairs: list[tuple[float, float]]) -> None:
    save, mean = (np.array(v) for v in zip(*pairs, strict=True))
    for form in (young_s, daly_s, exact_s):
        assert form(save, mean) == pytest.approx([float(form(s, m)) for s, m in pairs], rel=1e-6)


@given(saves, means, st.floats(0.01, 1), st.floats(0, 300))
def test_who_insures_when_an_emergency_save_fits(
    save: float, mean: float, missed: float, grace: float
) -> None:
    facts = SaveFacts(
        save_s=save,
        emergency_s=save,
        grace_s=grace,
        mttp_s=mean,
        missed_rate=missed,
        shape=1.0,
        scale_s=mean,
    )
    fits = save < grace
    assert facts.emergency_fits == fits == Thesis().emergency(facts) == Adaptive().emergency(facts)
    assert math.isinf(float(Thesis().interval_s(facts))) == fits
    expected = math.sqrt(2 * save * mean / (missed if fits else 1.0))
    assert float(Adaptive().interval_s(facts)) == pytest.approx(expected)
    assert float(Hazard().interval_s(facts)) == pytest.approx(expected)
