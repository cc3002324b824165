"""The bootstrap band: it holds the curve, the same seed gives the same, it widens with noise, and
it covers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.published import SIZES, measured

from deepvm.profiling.fit.speedup_fit import Band, bootstrap, fit_curve
from deepvm.profiling.fit.speedup_models import (
    ALPHA_BETA,
    AMDAHL,
    LAWS,
    LOGISTIC,
    USL,
    Law,
    fit_law,
    search,
    search_fast,
)

N = np.array(SIZES, dtype=np.float64)
TRUE = {LOGISTIC: (0.2, 10.0, 8.0), AMDAHL: (0.1,), USL: (0.08, 0.002), ALPHA_BETA: (2.0, 0.09)}
BEYOND = np.array([1.0, 3.0, 10.0, 32.0, 48.0])


def noise_of(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


def band_of(law: Law, noise: float, seed: int = 0, n: np.ndarray = N, resamples: int = 60) -> Band:
    s = law.speedup(n, *TRUE[law]) * np.where(n > 1, 1 + noise * noise_of(seed, len(n)), 1)
    return bootstrap(fit_law(law, n, s), n, s, resamples=resamples)


def width(band: Band, n: np.ndarray = N) -> float:
    low, high = band.at(n)
    return float(np.mean((high - low) / band.fitted.speedup(n)))


@settings(max_examples=examples(60))
@given(law=st.sampled_from(LAWS), noise=st.floats(0, 0.3), seed=st.integers(0, 1000))
def test_it_holds_the_curve_and_stays_above_0(law: Law, noise: float, seed: int) -> None:
    band = band_of(law, noise, seed, resamples=10)
    low, high = band.at(BEYOND)
    curve = band.fitted.speedup(BEYOND)
    assert (low <= curve).all()
    assert (curve <= high).all()
    assert (low > 0).all()
    assert low.shape == BEYOND.shape


@settings(max_examples=examples(45))
@given(law=st.sampled_from(LAWS), noise=st.floats(0.002, 0.03), seed=st.integers(0, 1000))
def test_it_widens_with_the_noise(law: Law, noise: float, seed: int) -> None:
    """The same errors, four times as large."""
    assert width(band_of(law, 4 * noise, seed)) > 2 * width(band_of(law, noise, seed)) > 0


def test_without_noise_it_has_no_width() -> None:
    for law in LAWS:
        assert width(band_of(law, 0.0)) < 1e-4


def test_it_is_wider_beyond_the_points() -> None:
    band = band_of(LOGISTIC, 0.05, 1, np.array([1.0, 2, 4, 6, 8, 10, 12]))
    assert width(band, np.array([32.0])) > 3 * width(band, np.array([8.0]))


def test_the_same_seed_gives_the_same_band_and_another_another() -> None:
    points = measured("g5.xlarge")
    first, second, other = (
        fit_curve(points, resamples=50, seed=seed).band_points() for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other
    for one, two in zip(first, other, strict=True):
        assert (one.low, one.high) == pytest.approx((two.low, two.high), rel=0.05)


@pytest.mark.parametrize("law", [ALPHA_BETA, LOGISTIC], ids=lambda law: law.name)
def test_it_covers_the_truth(law: Law) -> None:
    """Of 95 % bands around fits to data with 5 % noise, nine in ten hold the true S(20), and not
    all by being huge.
    """
    at = np.array([20.0])
    truth = law.speedup(at, *TRUE[law])
    bands = [band_of(law, 0.05, seed) for seed in range(examples(75))]
    held = [bool(low <= truth <= high) for low, high in (b.at(at) for b in bands)]
    assert sum(held) >= 0.8 * len(held)
    assert np.median([width(b, at) for b in bands]) < 0.25


@pytest.mark.parametrize("repeats", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_band_knows_that_the_unit_was_measured_too(repeats: int) -> None:
    """Times with 3 % noise, those of one VM included: S(16) is in nearly all 95 % bands, which are
    not huge.
    """
    at, n = np.array([16.0]), np.repeat([1.0, 2, 4, 8, 16, 32], repeats)
    truth, held, widths = ALPHA_BETA.speedup(at, *TRUE[ALPHA_BETA]), 0, []
    trials = 40
    for seed in range(trials):
        seconds = np.exp(0.03 * noise_of(seed, len(n))) / ALPHA_BETA.speedup(n, *TRUE[ALPHA_BETA])
        s = np.median(seconds[n == 1]) / seconds
        band = bootstrap(fit_law(ALPHA_BETA, n, s), n, s, resamples=60, seed=seed)
        low, high = band.at(at)
        held += bool(low <= truth <= high)
        widths.append(width(band, at))
    assert held >= 0.82 * trials
    assert np.median(widths) < 0.25


def test_repeats_do_not_hide_what_a_law_cannot_describe() -> None:
    """Ten times the same points that lie off the law: no better known than once.

    Only the unit is.
    """
    unit, *others = measured("g5.xlarge")
    once, ten = (fit_curve([unit, *others * times], resamples=100).band for times in (1, 10))
    assert width(ten) == pytest.approx(width(once), rel=0.3)


def test_the_scatter_of_the_unit_moves_the_whole_curve() -> None:
    """Speed-ups count from n = 1; when its repeats differ, none of them is better known than it."""
    exact = list(zip(N.tolist(), ALPHA_BETA.speedup(N, 2.0, 0.09).tolist(), strict=True))
    scattered = [p for p in exact if p[0] > 1] + [(1.0, 0.8), (1.0, 1.0), (1.0, 1.2)]
    n, s = np.array(sorted(exact)).T
    many, values = np.array(sorted(scattered)).T
    fitted = fit_law(ALPHA_BETA, n, s)
    assert width(bootstrap(fitted, n, s, resamples=40)) < 1e-4
    assert width(bootstrap(fitted, many, values, resamples=40), np.array([16.0])) > 0.1


@settings(max_examples=examples(90))
@given(law=st.sampled_from(LAWS), noise=st.floats(0, 0.2), seed=st.integers(0, 10_000))
def test_the_fast_search_finds_what_the_bounded_one_finds(
    law: Law, noise: float, seed: int
) -> None:
    s = law.speedup(N, *TRUE[law]) * (1 + noise * np.clip(noise_of(seed, len(N)), -3, 3))
    fast, exact = search_fast(law, N, s, TRUE[law]), search(law, N, s, TRUE[law])
    assert fast is not None
    assert exact is not None
    for values in (fast, exact):
        assert all(low <= v <= high for low, v, high in zip(law.low, values, law.high, strict=True))
    squares = [float(np.sum((law.speedup(N, *v) / s - 1) ** 2)) for v in (fast, exact)]
    assert squares[0] <= squares[1] * 1.001 + 1e-9


def test_the_fast_search_stops_at_bounds() -> None:
    """Exponential growth: the logistic that is closest would have a c beyond any."""
    n = np.arange(1.0, 13.0)
    found = search_fast(LOGISTIC, n, np.exp(0.1 * n), (0.2, 20.0, 10.0))
    assert found is not None
    assert found[2] == pytest.approx(512)
    assert LOGISTIC.speedup(n, *found) == pytest.approx(np.exp(0.1 * n), rel=0.01)
    falling = search_fast(ALPHA_BETA, n, 2 * n, (1.0, 1.0))
    assert falling == (0.0, 0.0)


@pytest.mark.parametrize("other", [(4.0, 0.2), (1.0, 0.01)])
def test_a_curve_outside_its_draws_is_still_inside_its_band(other: tuple[float, float]) -> None:
    fitted = fit_law(ALPHA_BETA, N, ALPHA_BETA.speedup(N, *TRUE[ALPHA_BETA]))
    low, high = Band(fitted, np.array([other] * 10)).at(BEYOND)
    ends = np.sort([fitted.speedup(BEYOND), ALPHA_BETA.speedup(BEYOND, *other)], axis=0)
    assert low == pytest.approx(ends[0])
    assert high == pytest.approx(ends[1])
