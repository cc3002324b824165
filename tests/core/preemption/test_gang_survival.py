"""Gangs of spot VMs: laws, beliefs, intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from deepvm.core.preemption.gang_survival import (
    Availability,
    Lifetime,
    LifetimePosterior,
    LossRate,
    OwnPool,
    design_effect,
    life_for_work,
    none_lost,
    windows_kept,
)
from deepvm.core.units import Interval
from deepvm.errors import RequestError

HOUR = 3600.0
BELIEF = LifetimePosterior(
    LossRate(2.0, 2.5), Availability(1.7, 0.9), (0.4, 0.8, 0.99), (0.9, 0.98)
)


def test_the_rest_of_a_life_that_is_met_in_its_middle() -> None:
    for hours in [0.5, 4.0, 24.0]:

        def lives(t: float) -> float:
            return math.exp(-0.7 * math.sqrt(t))

        mean, beyond = quad(lives, 0, math.inf)[0], quad(lives, hours, math.inf)[0]
        step = 0.7 * math.sqrt(hours)
        assert (1 + step) * math.exp(-step) == pytest.approx(beyond / mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.3, 2.0, 50.0])
def test_the_mean_over_the_rate_is_that_of_its_quantiles(shape: float) -> None:
    found = replace(BELIEF, rate=LossRate(shape, shape / 0.8)).forecast(1, 4 * HOUR).lasts.value
    wanted = quad(
        lambda r: (1 + 2 * r) * math.exp(-2 * r) * stats.gamma.pdf(r, shape, scale=0.8 / shape),
        0,
        60,
    )[0]
    assert found == pytest.approx(wanted, abs=0.01)


def test_quantiles_are_those_of_scipy() -> None:
    for shape in [0.1, 0.5, 1.9, 30.0, 1000.0]:
        at = (np.arange(40) + 0.5) / 40
        assert LossRate(shape, 3.0).quantiles() == pytest.approx(
            stats.gamma.ppf(at, shape, scale=1 / 3), rel=1e-3
        )
        found = Availability(shape, 0.7).quantiles()
        assert found == pytest.approx(stats.beta.ppf(at, shape, 0.7), abs=1e-4)


def test_lives_from_their_beginning_teach_as_they_do_by_bayes() -> None:
    prior = LossRate(2.0, 2.5)
    lives = [
        Lifetime(HOUR, True, True),
        Lifetime(4 * HOUR, False, True),
        Lifetime(9 * HOUR, True, True),
    ]
    assert prior.after(lives) == LossRate(4.0, 2.5 + 1 + 2 + 3)
    assert prior.after(lives, 2.0) == LossRate(3.0, 2.5 + 3)
    # The density of all three lives, times the prior, is a Gamma's up to a constant.
    r = np.array([0.2, 0.5, 1.1])
    density = [0.5 * r * np.exp(-r), np.exp(-2 * r), 0.5 / 3 * r * np.exp(-3 * r)]
    ratio = (
        stats.gamma.pdf(r, 2.0, scale=1 / 2.5)
        * np.prod(density, axis=0)
        / stats.gamma.pdf(r, 4.0, scale=1 / 8.5)
    )
    assert ratio == pytest.approx(ratio[0])


def test_rests_teach_as_they_do_by_bayes() -> None:
    found = LossRate(2.0, 2.5).after(
        [
            Lifetime(HOUR, True),
            Lifetime(4 * HOUR, False),
            Lifetime(4 * HOUR, False),
            Lifetime(0.0, False),
        ]
    )
    assert found == LossRate(4.0, 2.5 + 1 + 2 + 2, ((2.0, 2.0),))

    # The rest of a life exp(-r sqrt(t)) has the density r^2 / 2 exp(-r sqrt(t)): integrals by
    # another way.
    def density(r: float) -> float:
        ended = r**2 / 2 * math.exp(-r)
        return float(
            stats.gamma.pdf(r, 2.0, scale=1 / 2.5) * ended * ((1 + 2 * r) * math.exp(-2 * r)) ** 2
        )

    whole = quad(density, 0, math.inf)[0]
    quantiles = found.quantiles()
    for place in (0, 10, 20, 39):
        assert quad(density, 0, quantiles[place])[0] / whole == pytest.approx(
            (place + 0.5) / 40, abs=1e-3
        )


def test_rates_are_found_again_from_vms_that_came_at_any_moment() -> None:
    # Spells of one rate; a user asks at moments of their own, keeps VMs for 12 h, and gets the rate
    # back.
    random, rate = np.random.default_rng(3), 0.7
    spells = (random.exponential(size=4000) / rate) ** 2
    ends = np.cumsum(spells)
    at = np.sort(random.uniform(0, ends[-1] * 0.9, 600))
    rest = ends[np.searchsorted(ends, at)] - at
    lives = [Lifetime(min(r, 12.0) * HOUR, bool(r < 12)) for r in rest.tolist()]
    found = LossRate(2.0, 2.5).after(lives).quantiles()
    assert found[2] < rate < found[-3]
    fresh = LossRate(2.0, 2.5).after([replace(life, waited=True) for life in lives]).quantiles()
    assert fresh[-1] < rate  # which counts them as longer than they are


@given(
    st.integers(1, 40),
    st.floats(0.1, 100),
    st.lists(st.builds(Lifetime, st.floats(0, 1e6), st.booleans(), st.booleans()), max_size=6),
    st.integers(0, 9),
    st.sampled_from([None, 0, 1, 2, 3, 4]),
    st.sampled_from([None, *range(1, 11)]),
)
def test_more_vms_and_longer_are_never_more_probable(
    vms: int, hours: float, lives: list[Lifetime], refused: int, band: int | None, score: int | None
) -> None:
    belief = replace(BELIEF, rate=BELIEF.rate.of_band(band), placement_score=score)
    belief = belief.after(OwnPool(tuple(lives), 2.0, refused))
    less, more, longer = (
        belief.forecast(n, h * HOUR) for n, h in ((vms, hours), (vms + 1, hours), (vms, 2 * hours))
    )
    for found in (less, more, longer):
        for p in (found.had, found.lasts, found.both, found.waited):
            assert 0 <= p.low <= p.value <= p.high <= 1
        assert found.both.value <= min(found.had.value, found.lasts.value) + 1e-9
        assert found.waited.value <= found.lasts.value + 1e-9
    # A score is of the cloud for as many VMs: the same one for more of them says more.
    for one, other in ((less, more), (less, longer)) if score is None else ((less, longer),):
        for name in ("had", "lasts", "both", "waited"):
            before, after = getattr(one, name), getattr(other, name)
            for end in ("low", "value", "high"):
                assert getattr(after, end) <= getattr(before, end) + 1e-9, name
    alone = belief.forecast(1, hours * HOUR)
    assert alone.independent == pytest.approx(alone.lasts.value)  # one VM is a gang of one


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.98), st.integers(1, 60))
def test_none_lost_is_beta_binomial(share: float, correlation: float, vms: int) -> None:
    strength = 1 / correlation - 1
    wanted = stats.betabinom.pmf(0, vms, (1 - share) * strength, share * strength)
    assert none_lost(np.array([share]), correlation, vms)[0] == pytest.approx(wanted, rel=1e-6)
    assert share**vms - 1e-9 <= wanted <= share + 1e-9


def test_the_ends_of_correlation() -> None:
    share = np.array([0.3, 0.9])
    assert none_lost(share, 1.0, 8) == pytest.approx(share)
    assert none_lost(share, 0.0, 8) == pytest.approx(share**8)
    assert none_lost(share, 1e-6, 8) == pytest.approx(share**8, rel=1e-3)
    assert none_lost(np.array([0.0, 1.0]), 0.8, 8) == pytest.approx([0.0, 1.0])


def test_a_forecast() -> None:
    one, eight, longer = (BELIEF.forecast(n, h * HOUR) for n, h in ((1, 4), (8, 4), (8, 12)))
    for found in (one, eight, longer):
        for p in (found.had, found.lasts, found.both, found.waited):
            assert 0 <= p.low <= p.value <= p.high <= 1
        assert found.both.value == pytest.approx(found.had.value * found.lasts.value)
        assert found.waited.value < found.lasts.value
        assert found.independent <= found.lasts.value + 1e-12
    assert one.lasts.value > eight.lasts.value > longer.lasts.value
    assert one.had.value > eight.had.value == longer.had.value
    assert eight.lasts.value > 2 * eight.independent  # losses that come together spare more gangs


def test_a_better_band_lives_longer() -> None:
    lasts = [
        replace(BELIEF, rate=BELIEF.rate.of_band(b)).forecast(8, 4 * HOUR).lasts.value
        for b in range(5)
    ]
    assert lasts == sorted(lasts, reverse=True)
    assert BELIEF.rate.of_band(None) == BELIEF.rate.of_band(4) == BELIEF.rate
    # A mean life of a tenth of the rate: its root in r.
    ratio = math.log1p(-0.25) / math.log1p(-0.025)
    assert BELIEF.rate.of_band(0).per_sqrt_h == pytest.approx(
        BELIEF.rate.per_sqrt_h * math.sqrt(ratio)
    )


def test_own_lives_narrow_the_interval_and_gangs_by_less() -> None:
    lives = tuple(Lifetime(30 * HOUR, False) for _ in range(32))
    before, alone = BELIEF.forecast(4, 4 * HOUR), BELIEF.after(OwnPool(lives)).forecast(4, 4 * HOUR)
    gang = BELIEF.after(OwnPool(lives, gang=8.0)).forecast(4, 4 * HOUR)
    assert before.lasts.value < gang.lasts.value < alone.lasts.value
    assert (
        alone.lasts.high - alone.lasts.low
        < gang.lasts.high - gang.lasts.low
        < before.lasts.high - before.lasts.low
    )
    refused = BELIEF.after(OwnPool(lives, refused=64)).forecast(4, 4 * HOUR)
    assert refused.had.value < alone.had.value
    assert design_effect(8, 0.5) == 4.5
    assert design_effect(0, 0.5) == design_effect(1, 0.5) == 1


def test_a_placement_score_moves_only_what_can_be_had() -> None:
    low, none, high = (replace(BELIEF, placement_score=s).forecast(4, HOUR) for s in (1, None, 9))
    assert low.had.value < none.had.value < high.had.value
    assert low.lasts == none.lasts == high.lasts


def test_life_for_work_gives_the_same_probability_back() -> None:
    life = life_for_work(Interval(0.2, 0.5, 0.9), 8, 4 * HOUR)
    for p, life_s in ((0.2, life.low), (0.5, life.value), (0.9, life.high)):
        assert math.exp(-8 * 4 * HOUR / life_s) == pytest.approx(p)
    assert math.isfinite(life_for_work(Interval(0.0, 0.5, 1.0), 8, HOUR).high)


def test_windows_kept() -> None:
    found = windows_kept(9, 10)
    assert found.value == pytest.approx(9.5 / 11)
    assert (found.low, found.high) == pytest.approx(
        tuple(stats.beta.ppf([0.1, 0.9], 9.5, 1.5)), abs=1e-4
    )
    assert windows_kept(0, 0).value == pytest.approx(0.5)


def test_what_cannot_be() -> None:
    for vms, for_s, option in [(0, 1, "count"), (10_001, 1, "count"), (1, 0, "for")]:
        with pytest.raises(RequestError) as caught:
            BELIEF.forecast(vms, for_s)
        assert caught.value.option == option
        with pytest.raises(RequestError):
            BELIEF.rate.of_band(5)
        with pytest.raises(RequestError):
            replace(BELIEF, placement_score=11).forecast(1, 1)
