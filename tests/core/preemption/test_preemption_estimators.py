"""What is learnt of preemptions: against integration by brute force, censored lives, arrays against
numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from deepvm.core.preemption.preemption_estimators import Lifetimes, LomaxHistory, Notices

lives = st.lists(st.tuples(st.floats(1, 1e6), st.booleans()), max_size=12)


def weights(history: LomaxHistory) -> np.ndarray:
    found = np.exp(history.log_weights() - history.log_weights().max())
    return np.asarray(found / found.sum())


def learnt(history: LomaxHistory, seen: list[tuple[float, bool]]) -> LomaxHistory:
    for life, ended in seen:
        history = history.after(life, ended)
    return history


@given(st.floats(60, 1e6), st.floats(0.1, 20), lives)
def test_mean_lifetime_is_the_posterior_of_a_gamma_prior(
    prior: float, strength: float, seen: list[tuple[float, bool]]
) -> None:
    """The rate has the density of Gamma(strength) times each life's likelihood.

    Its mean, by brute force.
    """
    found = Lifetimes(prior, strength)
    for life, ended in seen:
        found = found.after(life, ended)
    deaths, time = sum(e for _, e in seen), sum(t for t, _ in seen)
    assert found.mean_s == pytest.approx((strength * prior + time) / (strength + deaths))
    log_rate = np.linspace(math.log(1 / found.mean_s) - 12, math.log(1 / found.mean_s) + 4, 40_001)
    rate = np.exp(log_rate)
    # With the Jacobian of the logarithm
    log_density = strength * log_rate - strength * prior * rate
    log_density += deaths * log_rate - rate * time
    weight = np.exp(log_density - log_density.max())
    if strength + deaths > 1:  # below, the grid cuts off what lies next to a rate of 0
        assert 1 / found.mean_s == pytest.approx(
            float((weight * rate).sum() / weight.sum()), rel=1e-3
        )


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_notices_count_preemptions_only(seen: list[tuple[bool, bool]]) -> None:
    found = Notices()
    for missed, preempted in seen:
        found = found.after(missed, preempted)
    misses, preemptions = sum(m and p for m, p in seen), sum(p for _, p in seen)
    assert found.missed_rate == pytest.approx((1 + misses) / (10 + preemptions))
    assert 0 < found.missed_rate < 1


@settings(max_examples=examples(40))
@given(st.floats(300, 1e5), lives)
def test_lomax_posterior_against_brute_force(mttp_s: float, seen: list[tuple[float, bool]]) -> None:
    """Prior times likelihood on a fine grid of shapes, for each scale.

    Nothing of it is in closed form.
    """
    start = LomaxHistory.around(mttp_s, size=9)
    found = learnt(start, seen)
    log_shape = np.linspace(math.log(1e-4), math.log(100), 6001)
    shape = np.exp(log_shape)
    rate = start.strength / start.shape0
    density = start.prior[:, None] + (start.strength * log_shape - rate * shape)[None, :]
    for life, ended in seen:
        log = np.log1p(life / start.scale_s)[:, None]
        density = density - shape * log
        if ended:
            density = density + log_shape - np.log(start.scale_s)[:, None] - log
    weight = np.exp(density - density.max())
    own = weight.sum(axis=1)
    assert weights(found) == pytest.approx(own / own.sum(), abs=1e-6)
    probable = own > 1e-9 * own.sum()
    assert found.shape()[..., probable] == pytest.approx(
        (weight @ shape)[probable] / own[probable], rel=1e-4
    )


@given(lives)
def test_the_prior_weighs_as_stated(seen: list[tuple[float, bool]]) -> None:
    """Before anything is seen: shape 2 and the scale nearest to the one that gives the mean."""
    shape, scale = LomaxHistory.around(5000.0, size=25).most_probable()
    assert (shape, scale) == pytest.approx((2, 5000))
    strong = replace(LomaxHistory.around(5000.0), strength=1e12)
    assert learnt(strong, seen).shape() == pytest.approx(np.full(13, 2.0), rel=1e-6)


@given(st.floats(1, 1e6), lives)
def test_a_life_that_was_only_watched_speaks_for_a_lower_hazard(
    life: float, seen: list[tuple[float, bool]]
) -> None:
    before = learnt(LomaxHistory.around(5000.0), seen)
    watched, ended = before.after(life, False), before.after(life, True)
    assert np.all(watched.shape() < before.shape()) and np.all(watched.shape() < ended.shape())
    assert watched.ended == before.ended and ended.ended == before.ended + 1
    assert Lifetimes(5000.0).after(life, False).mean_s > 5000 - 1e-9
    assert Lifetimes(5000.0).after(life, False).mean_s > Lifetimes(5000.0).after(life, True).mean_s


@given(lives.filter(bool), st.randoms())
def test_the_order_of_lives_does_not_matter(seen: list[tuple[float, bool]], random: object) -> None:
    one = learnt(LomaxHistory.around(5000.0), seen)
    other = learnt(LomaxHistory.around(5000.0), seen[::-1])
    assert weights(one) == pytest.approx(weights(other), abs=1e-9)
    assert one.shape() == pytest.approx(other.shape())


@settings(max_examples=examples(40))
@given(st.integers(1, 5), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_arrays_learn_what_numbers_learn(runs: int, count: int, seed: int) -> None:
    """One array step for all runs gives what each run learns by itself."""
    random = np.random.default_rng(seed)
    life, ended = random.exponential(5000, (count, runs)), random.random((count, runs)) < 0.7
    together, means, notices = LomaxHistory.around(7200.0), Lifetimes(7200.0), Notices()
    for one, over in zip(life, ended, strict=True):
        together, means = together.after(one, over), means.after(one, over)
        notices = notices.after(~over, over)
    shape, scale = (np.broadcast_to(v, runs) for v in together.most_probable())
    for run in range(runs):
        alone, mean = LomaxHistory.around(7200.0), Lifetimes(7200.0)
        for one, over in zip(life[:, run], ended[:, run], strict=True):
            alone, mean = alone.after(float(one), bool(over)), mean.after(float(one), bool(over))
        its_shape, its_scale = alone.most_probable()
        assert (shape[run], scale[run]) == pytest.approx((float(its_shape), float(its_scale)))
        assert np.broadcast_to(means.mean_s, runs)[run] == pytest.approx(mean.mean_s)
    assert np.all(np.broadcast_to(notices.missed_rate, runs) <= 0.1 + 1e-12)


def test_numbers_and_arrays_go_together() -> None:
    for life in [100.0, np.array([100.0, 900.0])]:
        for ended in [True, False, np.array([True, False])]:
            found = LomaxHistory.around(5000.0).after(life, ended).after(50.0, True).most_probable()  # type: ignore[arg-type]
            for run in range(2):
                one, over = (
                    bool(np.broadcast_to(v, 2)[run])
                    if v is ended
                    else float(np.broadcast_to(v, 2)[run])
                    for v in (life, ended)
                )
                alone = (
                    LomaxHistory.around(5000.0).after(one, over).after(50.0, True).most_probable()
                )
                assert [np.broadcast_to(v, 2)[run] for v in found] == pytest.approx(
                    [float(v) for v in alone]
                )


def test_a_lomax_law_is_found_again() -> None:
    """A thousand lives of shape 1.5 and scale 3000 s, a fifth only watched."""
    random = np.random.default_rng(5)
    life = random.pareto(1.5, 1000) * 3000
    limit = random.exponential(20_000, 1000)
    seen = [(float(min(a, b)), bool(a <= b)) for a, b in zip(life, limit, strict=True)]
    shape, scale = learnt(LomaxHistory.around(10_800.0), seen).most_probable()
    # Shape and scale stand in for each other; the hazard is what is used
    for age in (0, 1000, 10_000):
        assert shape / (scale + age) == pytest.approx(1.5 / (3000 + age), rel=0.2)
    history = learnt(LomaxHistory.around(10_800.0), [(100.0, True)] * 200)
    assert history.shape().shape == (13,) and float(weights(history).sum()) == pytest.approx(1)
