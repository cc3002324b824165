"""Speed-up curves against the paper's equations, its published figures, and each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.speedup import (
    HybridSpeedup,
    LogisticSpeedup,
    MeasuredSpeedup,
    RingSpeedup,
    SpeedupCurve,
    scaling_factor,
)
from deepvm.errors import RequestError

N = np.array([1, 2, 4, 8, 12, 16, 20, 24, 28, 32], dtype=np.float64)
FIGURE_5 = {
    # type: measured S(n) of ResNet-50; hybrid a, b, c; ring c, l  (recommender.md, "Embedded data")
    "g3s.xlarge": (
        [1, 1.775, 2.482, 4.539, 6.445, 7.968, 9.397, 10.753, 12.718, 12.532],
        (0.1408559584, 14.49263334, 13.53250952),
        (0.56931, 0.030029),
    ),
    "g4dn.xlarge": (
        [1, 1.036, 1.390, 2.274, 3.065, 3.743, 4.323, 4.786, 5.490, 5.251],
        (0.1338806402, 12.87424514, 6.176666667),
        (1.99365, 0.093553),
    ),
    "g5.xlarge": (
        [1, 0.473, 0.618, 1.027, 1.376, 1.697, 2.053, 2.235, 2.747, 2.879],
        (0.08533428072, 20.06669931, 4.962225551),
        (6.71087, 0.123950),
    ),
}


def errors(curve: SpeedupCurve, measured: list[float]) -> np.ndarray:
    return np.abs(curve.speedup(N) / np.array(measured) - 1)


def test_logistic_is_equation_10() -> None:
    curve = LogisticSpeedup(0.5, 4.0, 6.0)
    assert curve.speedup(np.array([4.0]))[0] == 3.0  # half of c at the inflection point
    assert curve.speedup(np.array([7.0]))[0] == pytest.approx(6 / (1 + np.exp(-1.5)))
    assert curve.speedup(np.array([1e9]))[0] == 6.0
    assert LogisticSpeedup(3.0, 1e6, 6.0).speedup(np.array([1.0]))[0] >= 0  # no overflow


def test_hybrid_is_the_tangent_up_to_b_and_the_logistic_beyond() -> None:
    a, b, c = 0.2, 10.0, 5.0
    hybrid, logistic = HybridSpeedup(a, b, c), LogisticSpeedup(a, b, c)
    n = np.array([1.0, 5.0, 10.0])
    np.testing.assert_allclose(hybrid.speedup(n), c / 2 + c * a / 4 * (n - b))
    np.testing.assert_array_equal(hybrid.speedup(n + 10), logistic.speedup(n + 10))


def test_figures_of_the_first_plan() -> None:
    curve = HybridSpeedup(*FIGURE_5["g4dn.xlarge"][1])
    assert curve.speedup(np.array([17.0]))[0] == pytest.approx(3.9202, abs=1e-4)
    assert scaling_factor(curve, np.array([17.0])).k[0] == pytest.approx(0.23060, abs=1e-5)


def test_mean_errors_against_figure_5() -> None:
    """recommender.md: hybrid 20, 10 and 25 %, up to 66 %; ring 3 %."""
    hybrid = {t: errors(HybridSpeedup(*h), s) for t, (s, h, _) in FIGURE_5.items()}
    ring = {t: errors(RingSpeedup(*r), s) for t, (s, _, r) in FIGURE_5.items()}
    assert [round(100 * e.mean()) for e in hybrid.values()] == [20, 10, 25]
    assert max(e.max() for e in hybrid.values()) == pytest.approx(0.663, abs=0.001)
    assert np.mean([e.mean() for e in ring.values()]) == pytest.approx(0.03, abs=0.002)


@pytest.mark.parametrize("name", FIGURE_5)
def test_fitting_a_ring_gives_the_published_parameters(name: str) -> None:
    measured, _, (c, latency) = FIGURE_5[name]
    fitted = RingSpeedup.fit(list(zip(N[1:].tolist(), measured[1:], strict=True)))
    assert fitted.c == pytest.approx(c, rel=1e-3)
    assert fitted.l == pytest.approx(latency, rel=1e-3)


@given(st.floats(0, 20), st.floats(0, 1), st.integers(2, 5))
def test_fitting_a_ring_recovers_it(c: float, latency: float, points: int) -> None:
    ring = RingSpeedup(c, latency)
    n = np.array([2.0, 4.0, 8.0, 16.0, 32.0])[:points]
    fitted = RingSpeedup.fit(list(zip(n.tolist(), ring.speedup(n).tolist(), strict=True)))
    np.testing.assert_allclose(fitted.speedup(n), ring.speedup(n), rtol=1e-6)


def test_a_fit_that_would_be_negative_is_held_at_zero() -> None:
    fitted = RingSpeedup.fit([(2, 1.9), (4, 3.9), (8, 7.9)])
    assert fitted.c >= 0 and fitted.l >= 0
    assert RingSpeedup.fit([(2, 3.0), (4, 9.0)]) == RingSpeedup(0.0, 0.0)


@given(st.floats(0, 100), st.floats(0, 10))
def test_ring_is_one_at_one_and_never_above_n(c: float, latency: float) -> None:
    n = np.arange(1, 100, dtype=np.float64)
    s = RingSpeedup(c, latency).speedup(n)
    assert s[0] == 1.0
    assert (s <= n).all() and (s > 0).all()


MEASURED = MeasuredSpeedup(tuple(zip(N.tolist(), FIGURE_5["g5.xlarge"][0], strict=True)))


def test_measured_passes_through_its_points_and_is_monotone_between_them() -> None:
    np.testing.assert_allclose(MEASURED.speedup(N), FIGURE_5["g5.xlarge"][0])
    fine = MEASURED.speedup(np.linspace(2, 32, 1000))
    assert (np.diff(fine) >= -1e-12).all()
    falling = MEASURED.speedup(np.linspace(1, 2, 50))
    assert (np.diff(falling) <= 1e-12).all()  # two VMs are slower than one, and the curve says so


def test_measured_has_no_step_at_its_last_point_and_says_where_it_guesses() -> None:
    around = MEASURED.speedup(np.array([32.0, 32.0 + 1e-9]))
    assert around[1] == pytest.approx(around[0], rel=1e-6)
    assert MEASURED.extrapolated(np.array([1.0, 32.0, 33.0])).tolist() == [False, False, True]
    ring = RingSpeedup(6.71087, 0.12395)
    given_ring = MeasuredSpeedup(MEASURED.points, ring)
    expected = 2.879 * ring.speedup(np.array([64.0])) / ring.speedup(np.array([32.0]))
    np.testing.assert_allclose(given_ring.speedup(np.array([64.0])), expected)


def test_measured_without_the_first_point_starts_at_one() -> None:
    curve = MeasuredSpeedup(((2.0, 1.5), (4.0, 2.0)))
    assert curve.speedup(np.array([1.0]))[0] == 1.0


@pytest.mark.parametrize(
    ("curve", "beyond"),
    [(HybridSpeedup(0.1, 1, 2, fitted_to=8), True), (RingSpeedup(1, 1, fitted_to=8), True), (RingSpeedup(1, 1), False)],
)
def test_use_beyond_the_fit_is_flagged(curve: SpeedupCurve, beyond: bool) -> None:
    assert scaling_factor(curve, np.array([8.0, 9.0])).extrapolated.tolist() == [False, beyond]


BAD = {
    "a": lambda: HybridSpeedup(0, 1, 1),
    "a is nan": lambda: HybridSpeedup(float("nan"), 1, 1),
    "b": lambda: HybridSpeedup(1, -1, 1),
    "c": lambda: HybridSpeedup(1, 1, 0),
    "ring c": lambda: RingSpeedup(-1, 0),
    "ring l": lambda: RingSpeedup(0, float("inf")),
    "no points": lambda: MeasuredSpeedup(()),
    "only n = 1": lambda: MeasuredSpeedup(((1.0, 1.0),)),
    "n below 1": lambda: MeasuredSpeedup(((0.5, 1.0), (2.0, 1.0))),
    "n repeated": lambda: MeasuredSpeedup(((2.0, 1.0), (2.0, 1.1))),
    "speed-up of 0": lambda: MeasuredSpeedup(((2.0, 0.0),)),
    "S(1) is not 1": lambda: MeasuredSpeedup(((1.0, 1.1), (2.0, 1.5))),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_curve_is_refused(name: str) -> None:
    with pytest.raises(RequestError):
        BAD[name]()


@given(
    st.one_of(
        st.builds(HybridSpeedup, st.floats(1e-3, 3), st.floats(0, 128), st.floats(1e-2, 512)),
        st.builds(RingSpeedup, st.floats(0, 50), st.floats(0, 5)),
    )
)
def test_the_scaling_factor_lies_in_its_range_and_says_where_it_was_held(curve: SpeedupCurve) -> None:
    n = np.arange(1, 200, dtype=np.float64)
    found, raw = scaling_factor(curve, n), curve.speedup(n)
    assert ((found.k >= 0) & (found.k <= 1)).all()
    np.testing.assert_array_equal(found.clamped, (raw / n < 0) | (raw / n > 1))
    free = ~found.clamped
    np.testing.assert_array_equal(found.k[free], (raw / n)[free])
    if isinstance(curve, RingSpeedup):
        assert not found.clamped.any() and (found.k > 0).all()


def test_curves_that_leave_the_range() -> None:
    """Simulated F has S(1) = 1.5; a hybrid with a b > 2 starts below 0."""
    assert scaling_factor(HybridSpeedup(0.1, 15, 10), np.array([1.0])).k[0] == 1.0
    negative = scaling_factor(HybridSpeedup(0.5, 20, 10), np.array([1.0]))
    assert (negative.k[0], bool(negative.clamped[0])) == (0.0, True)
