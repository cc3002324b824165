"""The knee of t(n): exact without noise, in any unit, as an independent search finds it, and honest
with noise.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.effort import THOROUGH

from deepvm.profiling.saturation.measure_saturation import SaturationPoint, fit_knee, raw_saturation

# Deviations of log t from the median of its n, in pushes of 4 to 16 MB between namespaces shaped by
# tbf on a machine that did other things as well: 0.4 % in the middle, and a few pushes that
# something came between.
MEASURED = np.array(
    [
        -0.02,
        -0.006,
        -0.004,
        -0.003,
        -0.002,
        0,
        0,
        0,
        0.001,
        0.003,
        0.004,
        0.006,
        0.01,
        0.04,
        0.06,
        0.2,
    ]
)


def plateau(k: float, largest: int, scale: float = 1.0) -> dict[int, list[float]]:
    return {n: [scale / min(n, k)] * 3 for n in range(1, largest + 1)}


def noisy(k: float, largest: int, repeats: int, seed: int) -> dict[int, list[float]]:
    random = np.random.default_rng(seed)
    return {
        n: list(np.exp(random.choice(MEASURED, repeats)) / min(n, k)) for n in range(1, largest + 1)
    }


@given(k=st.integers(1, 20), more=st.integers(1, 12), scale=st.floats(1e-3, 1e4))
def test_a_noiseless_plateau_gives_exactly_its_knee(k: int, more: int, scale: float) -> None:
    knee = fit_knee(plateau(k, k + more, scale), resamples=5)
    assert knee.senders == k
    assert knee.n_sat == knee.low == knee.high == max(2, k)
    assert knee.seconds == pytest.approx(scale)
    assert knee.error < 1e-9


@given(whole=st.integers(2, 9), part=st.floats(0.15, 0.85), more=st.integers(4, 9))
def test_a_knee_between_two_whole_numbers_is_found(whole: int, part: float, more: int) -> None:
    """Its n_sat is the next one: that many senders fill the receiver, one fewer do not."""
    knee = fit_knee(plateau(whole + part, whole + 1 + more), resamples=5)
    if knee.senders != pytest.approx(whole + part):
        # At large n a part of a sender is a few percent, for which the data must speak more loudly.
        assert min(part, 1 - part) / whole < 0.08
        assert knee.senders in (whole, whole + 1)
    else:
        assert knee.n_sat == whole + 1
    assert fit_knee(plateau(4.5, 8), resamples=5).senders == pytest.approx(4.5)


@given(n=st.integers(2, 12), seed=st.integers(0, 99), factor=st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(n: int, seed: int, factor: float) -> None:
    times = noisy(n / 2, n, 3, seed)
    a = fit_knee(times, resamples=20)
    b = fit_knee({m: [factor * t for t in own] for m, own in times.items()}, resamples=20)
    assert b.senders == pytest.approx(a.senders)
    assert (b.n_sat, b.low, b.high) == (a.n_sat, a.low, a.high)
    assert b.seconds == pytest.approx(factor * a.seconds)


@given(
    seed=st.integers(0, 10_000),
    k=st.floats(1, 9),
    largest=st.integers(5, 10),
    noise=st.floats(0.0, 0.15),
)
def test_the_fit_is_what_a_search_finds(seed: int, k: float, largest: int, noise: float) -> None:
    """A search over a fine grid of knees and rises, with nothing of the code that is tested."""
    random = np.random.default_rng(seed)
    y = {n: -math.log(min(n, k)) + noise * random.standard_normal() for n in range(1, largest + 1)}
    knee = fit_knee({n: [math.exp(v)] for n, v in y.items()}, resamples=1)

    def squares(place: float, rise: float) -> float:
        rest = [v + math.log(min(n, place)) - (rise if n > place else 0) for n, v in y.items()]
        middle = sum(rest) / len(rest)
        return sum((r - middle) ** 2 for r in rest)

    def score(total: float, parameters: int) -> float:
        # AICc with the floor of 1 % under the noise.
        fair = largest * math.log(total / largest + 1e-4)
        return (
            fair + 2 * parameters + 2 * parameters * (parameters + 1) / (largest - parameters - 1)
        )

    whole = min(squares(float(m), 0.0) for m in range(1, largest + 1))
    real = min(squares(1 + i / 100, 0.0) for i in range(100 * (largest - 1) + 1))
    rises = [i / 100 for i in range(101)]
    risen = min(squares(float(m), rise) for m in range(1, largest) for rise in rises)
    searched = min(score(whole, 2), score(min(real, risen), 3))
    own = score(
        largest * knee.error**2, 2 if knee.senders == int(knee.senders) and knee.rise == 1 else 3
    )
    # The grid can only be coarser; and what is said about the error must be true of the curve that
    # is returned.
    assert own <= searched + 1e-9
    said = math.sqrt(squares(knee.senders, math.log(knee.rise)) / largest)
    assert knee.error == pytest.approx(said, abs=1e-9)
    assert searched - own < 0.35


def test_a_minimum_is_a_knee() -> None:
    """A small buffer: five senders fill the receiver, and with more of them packets are dropped."""
    measured = {
        1: 0.6644,
        2: 0.3336,
        3: 0.2225,
        4: 0.1665,
        5: 0.1354,
        6: 0.1642,
        7: 0.1607,
        8: 0.1637,
    }
    knee = fit_knee({n: [t] for n, t in measured.items()})
    assert (knee.n_sat, knee.senders, raw_saturation({n: [t] for n, t in measured.items()})) == (
        5,
        5.0,
        5,
    )
    assert knee.rise == pytest.approx(0.163 / 0.133, rel=0.02)
    assert knee.at(np.array([5.0, 6.0])) == pytest.approx([0.1335, 0.163], rel=0.02)


def test_with_the_noise_that_was_measured() -> None:
    for k, n_sat in [(4.5, 5), (5, 5), (5.02, 5), (3, 3), (1, 2)]:
        for repeats in [3, 5]:
            seeds = range(100 if THOROUGH else 20)
            found = [
                fit_knee(noisy(k, 8, repeats, seed), resamples=100, seed=seed) for seed in seeds
            ]
            covered = [(f.low or 8) <= n_sat <= (f.high or 8) for f in found]
            assert np.mean(covered) >= 0.9
            assert np.mean([f.n_sat == n_sat for f in found]) >= 0.9


def test_noise_decides_eq_14_on_a_plateau_and_not_the_knee() -> None:
    raw, fitted = set(), set()
    for seed in range(20):
        times = noisy(5, 9, 3, seed)
        raw.add(raw_saturation(times))
        fitted.add(fit_knee(times, resamples=1).n_sat)
    assert fitted == {5}
    assert len(raw) > 1


def test_more_noise_makes_a_wider_interval() -> None:
    random = np.random.default_rng(1)
    widths = []
    for noise in (0.005, 0.15):
        times = {
            n: list(np.exp(noise * random.standard_normal(3)) / min(n, 4.5)) for n in range(1, 9)
        }
        knee = fit_knee(times)
        widths.append((knee.high or 8) - (knee.low or 8))
    assert widths[0] == 0 < widths[1]


def test_what_the_fit_leaves_unexplained_widens_the_interval() -> None:
    """Repeats that agree to the last digit prove nothing where their medians lie off every curve of
    ours.
    """
    off = {1: 0.2, 2: -0.2, 3: 0.2, 4: -0.2, 5: 0.2, 6: -0.2, 7: 0.2, 8: -0.2}
    knee = fit_knee({n: [math.exp(v) / min(n, 4)] * 5 for n, v in off.items()})
    assert (knee.high or 8) - (knee.low or 8) >= 2


def test_no_saturation_is_seen_where_it_lies_at_or_beyond_the_last_n() -> None:
    for k in (7.5, 8, 20):
        knee = fit_knee(plateau(k, 8))
        assert knee.n_sat is knee.low is knee.high is None
    assert fit_knee(plateau(7, 8)).n_sat == 7
    assert fit_knee({1: [2.0], 2: [1.0]}).n_sat is None
    assert fit_knee({1: [1.0], 2: [1.0]}).n_sat == 2


def test_eq_14_takes_the_first_n_that_one_more_does_not_help() -> None:
    assert raw_saturation({1: [3.0], 2: [2.0], 3: [2.0], 4: [1.0]}) == 2
    assert raw_saturation({1: [3.0], 2: [2.0], 3: [1.0]}) is None
    assert raw_saturation({1: [1.0, 9.0, 9.0], 2: [8.0, 8.0, 1.0]}) is None  # of medians 9 and 8
    assert raw_saturation({1: [3.0], 2: [2.0], 4: [5.0]}) is None  # t(3) is not known


def test_an_interval_in_words() -> None:
    for low, high, said in [
        (4, 6, "4 to 6"),
        (5, 5, "5"),
        (2, None, "2 or more"),
        (None, None, "8 or more"),
    ]:
        assert SaturationPoint(4.2, 1.0, 5, 1.0, 0.01, low, high).interval(8) == said
