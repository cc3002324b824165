"""Fitted laws: known parameters come back, scipy's own fits of censored data agree, few lives are
refused.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.stats as stats
from hypothesis import given
from hypothesis import strategies as st
from support.simulator.trace_files import REAL, needs_traces, pool

from deepvm.errors import DataError
from deepvm.simulator.traces.lifetime_fit import (
    FEWEST,
    LAWS,
    fit_lives,
    log_likelihood,
    survival_curve,
)
from deepvm.simulator.traces.trace import TraceLives, lives_of

TRUE = {
    # law: parameters in the order of the law's, and the like for scipy
    "exponential": ((9000.0,), stats.expon(scale=9000)),
    "weibull": ((5000.0, 0.65), stats.weibull_min(0.65, scale=5000)),
    "lomax": ((6000.0, 2.0), stats.lomax(2, scale=6000)),
    "lognormal": ((2500.0, 1.4), stats.lognorm(1.4, scale=2500)),
}
FAMILIES: dict[str, Any] = {
    "exponential": stats.expon,
    "weibull": stats.weibull_min,
    "lomax": stats.lomax,
    "lognormal": stats.lognorm,
}


def watched(name: str, count: int, gap_s: float, seed: int = 1) -> TraceLives:
    """Lives of a law, seen at ticks, each watched for some time only.

    On average a quarter outlasts that.
    """
    random = np.random.default_rng(seed)
    life = np.asarray(TRUE[name][1].rvs(count, random_state=random))
    limit = random.uniform(0, 4 * np.median(life), count)
    ended = life < limit
    # Ticks in the middle of which lives end, so that each is between life - gap/2 and life + gap/2.
    ticks = np.floor(np.minimum(life, limit) / gap_s) * gap_s + gap_s / 2
    return TraceLives(name, gap_s, ticks, ended)


@pytest.mark.parametrize("name", TRUE)
def test_known_parameters_come_back(name: str) -> None:
    """Within four standard errors of 6000 lives, and the true law has the least AIC."""
    lives = watched(name, 6000, 300)
    assert 0.1 < np.mean(~lives.ended) < 0.6
    fits = {f.law.name: f for f in fit_lives([lives])}
    found = fits[name]
    assert found.values == pytest.approx(TRUE[name][0], rel=0.15 if name == "lomax" else 0.06)
    # A law with one parameter more may come as close
    assert found.aic <= min(f.aic for f in fits.values()) + 2
    assert not found.at_bound


@pytest.mark.parametrize("name", TRUE)
def test_scipy_fits_the_same(name: str) -> None:
    lives = watched(name, 300, 200, seed=2)
    ended = lives.ended
    data = stats.CensoredData(
        interval=np.column_stack([lives.low_s[ended], lives.high_s[ended]]),
        right=lives.low_s[~ended],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's search steps over its own bounds
        *shape, _, scale = FAMILIES[name].fit(data, floc=0)
    ours = next(f for f in fit_lives([lives]) if f.law.name == name)
    law = FAMILIES[name](*shape, loc=0, scale=scale)
    at_most = float(
        np.log(law.cdf(lives.high_s[ended]) - law.cdf(lives.low_s[ended])).sum()
        + law.logsf(lives.low_s[~ended]).sum()
    )
    assert ours.log_likelihood >= at_most - 1e-6
    assert ours.log_likelihood == pytest.approx(at_most, abs=0.01)
    assert ours.values == pytest.approx((scale, *shape), rel=0.02)


@given(
    st.sampled_from(LAWS),
    st.floats(100, 1e5),
    st.floats(0.3, 5),
    st.floats(0, 1e5),
    st.floats(1, 1e4),
)
def test_survival_and_mean_are_scipys(
    law: Any, time: float, shape: float, low: float, width: float
) -> None:
    values = (time,) if len(law.parameters) == 1 else (time, shape)
    its = FAMILIES[law.name](*values[1:], scale=time)
    assert np.exp(law.log_survival(np.array([low]), *values))[0] == pytest.approx(
        its.sf(low), abs=1e-12
    )
    if law.name != "lomax" or shape > 1:
        assert law.mean_s(*values) == pytest.approx(its.mean(), rel=1e-6)
    one = log_likelihood(law, values, np.array([low]), np.array([low + width]), np.ones(1))
    share = its.sf(low) - its.sf(low + width)
    if share > 1e-6:
        assert one == pytest.approx(math.log(share), rel=1e-6, abs=1e-9)


def test_far_out_the_likelihood_keeps_its_digits() -> None:
    """S(low) - S(high) of two numbers below the smallest float, and of two next to 1."""
    exponential = LAWS[0]
    far = log_likelihood(exponential, (1.0,), np.array([2000.0]), np.array([2001.0]), np.ones(1))
    assert far == pytest.approx(-2000 + math.log(1 - math.exp(-1)))
    near = log_likelihood(exponential, (1e12,), np.array([1.0]), np.array([2.0]), np.ones(1))
    assert near == pytest.approx(math.log(1e-12))


def test_kaplan_and_meier_by_hand() -> None:
    """Two die at 1, one is last seen at 2, one dies at 2, one at 4 of two, and the last is seen at
    9.
    """
    lives = pool([(1, True), (1, True), (2, False), (2, True), (4, True), (9, False)])
    times, share = survival_curve([lives])
    assert times.tolist() == [1, 2, 4]
    assert share == pytest.approx([4 / 6, 4 / 6 * 3 / 4, 4 / 6 * 3 / 4 * 1 / 2])


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=30))
def test_kaplan_and_meier_against_scipy(lives: list[tuple[int, bool]]) -> None:
    made = pool([(float(t), e) for t, e in lives])
    times, share = survival_curve([made])
    life, ended = made.life_s, made.ended
    if not ended.any():
        assert times.size == 0
        return
    theirs = stats.ecdf(stats.CensoredData(uncensored=life[ended], right=life[~ended])).sf
    assert share == pytest.approx(theirs.evaluate(times), abs=1e-12)


def test_too_few_lives_are_refused_and_five_are_not() -> None:
    few = pool([(100.0, True)] * (FEWEST - 1) + [(900.0, False)] * 10, gap_s=60)
    with pytest.raises(DataError, match="made up: 4 lifetimes ended, a fit needs 5; add traces"):
        fit_lives([few])
    assert len(fit_lives([few, few])) == 4


@pytest.mark.parametrize(
    "lives",
    [
        [(60.0, True)] * 5,  # all in one interval
        [(60.0, True)] * 5 + [(1e6, False)],
        [(60.0, True)] * 4 + [(1e7, True)],
        [(60.0 * 2**i, True) for i in range(5)],
    ],
)
def test_odd_lives_do_not_break_a_fit(lives: list[tuple[float, bool]]) -> None:
    for fit in fit_lives([pool(lives, gap_s=60)]):
        assert math.isfinite(fit.log_likelihood) and fit.log_likelihood <= 0
        assert all(v > 0 and math.isfinite(v) for v in fit.values)
        assert fit.mean_s > 0


def test_a_shape_that_the_lives_do_not_bound_is_marked() -> None:
    """All lives in one interval: the narrower the law, the better."""
    found = {f.law.name: f.at_bound for f in fit_lives([pool([(60.0, True)] * 20, gap_s=60)])}
    assert found["lognormal"] or found["weibull"]
    lomax = next(
        f
        for f in fit_lives([pool([(600.0 + i, True) for i in range(20)], gap_s=60)])
        if f.law.name == "lomax"
    )
    # Such lives are less spread than exponential ones, which a Lomax cannot be
    assert lomax.at_bound


@needs_traces
def test_the_real_lives_are_lognormal_or_lomax_and_not_exponential() -> None:
    """the design: Weibull shape about 0.65, lognormal and Lomax far better than exponential."""
    pools = lives_of([REAL])
    fits = {f.law.name: f for f in fit_lives(pools)}
    assert list(fits) == ["lognormal", "lomax", "weibull", "exponential"]
    assert fits["exponential"].aic - fits["lomax"].aic > 1000
    shapes = [
        next(f for f in fit_lives([p]) if f.law.name == "weibull").values[1] for p in pools[:4]
    ]
    assert 0.6 < float(np.median(shapes)) < 0.8


def test_the_mean_of_a_tail_beyond_all_floats_is_infinite() -> None:
    lognormal = next(law for law in LAWS if law.name == "lognormal")
    assert lognormal.mean_s(2.0, 1.0) == pytest.approx(2 * math.exp(0.5))
    assert lognormal.mean_s(2.0, lognormal.bounds[1]) == math.inf
