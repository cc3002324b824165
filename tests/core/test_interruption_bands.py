"""From AWS's bands of one VM to a cluster: what the formulas promise, and a simulation that knows
none of them.
"""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.core.lifetimes import (
    BAND_SHARES,
    BANDS,
    MONTH_S,
    ClusterRisk,
    cluster_share,
    mean_life_s,
    share_over,
)
from deepvm.errors import RequestError

shares = st.floats(0.0, 0.999)


@given(shares, st.integers(1, 500))
def test_a_larger_cluster_is_hit_more_often(share: float, vms: int) -> None:
    assert cluster_share(share, 1) == pytest.approx(share)
    assert cluster_share(share, vms) <= cluster_share(share, vms + 1) <= 1
    assert cluster_share(share, vms) == pytest.approx(1 - (1 - share) ** vms)
    # A cluster that is hit vms times as often as one VM: the same of the exponential law.
    assert cluster_share(share, vms) == pytest.approx(share_over(mean_life_s(share) / vms))


def test_the_cluster_of_one_is_the_vm() -> None:
    for band in range(len(BANDS)):
        risk = ClusterRisk.of_band(band, 1)
        low, high = BANDS[band]
        assert risk.vm_share == (low, high)
        assert risk.share[0] == pytest.approx(low) and (high is None) == (risk.share[1] is None)
        assert risk.share[1] is None or risk.share[1] == pytest.approx(high)
        assert risk.between_s[1] == mean_life_s(low)


@given(st.integers(0, 3), st.integers(1, 100))
def test_a_worse_band_begins_where_the_better_one_ends(band: int, vms: int) -> None:
    better, worse = ClusterRisk.of_band(band, vms), ClusterRisk.of_band(band + 1, vms)
    assert (
        better.share[1] == worse.share[0]
        and better.losses_per_month[1] == worse.losses_per_month[0]
    )
    assert better.between_s[0] == worse.between_s[1]
    for risk in (better, worse):
        for low, high in (risk.share, risk.losses_per_month, risk.between_s):
            assert high is None or low < high
        assert (
            risk.losses_per_month[0] * risk.between_s[1] == pytest.approx(MONTH_S)
            or risk.between_s[1] == math.inf
        )


def test_what_has_no_end_has_none() -> None:
    worst, best = ClusterRisk.of_band(4, 10), ClusterRisk.of_band(0, 10)
    assert worst.share == (pytest.approx(0.8926, abs=1e-4), None)
    assert worst.losses_per_month[1] is None and worst.between_s[0] == 0
    assert best.share[0] == 0 and best.losses_per_month[0] == 0 and best.between_s[1] == math.inf


def test_a_simulation_of_independent_vms_agrees() -> None:
    """Day after day each VM goes or stays, so that the share of a month is gone after one, and is
    replaced.
    """
    for share, vms in [(0.05, 3), (0.15, 8), (0.2, 9), (0.2, 1)]:
        draw, days, months = random.Random(7), 30, 4000
        a_day = 1 - (1 - share) ** (1 / days)
        hit = losses = 0
        for _ in range(months):
            lost = sum(draw.random() < a_day for _ in range(vms * days))
            hit += lost > 0
            losses += lost
        assert hit / months == pytest.approx(cluster_share(share, vms), abs=0.025)
        expected = MONTH_S / (mean_life_s(share) / vms)
        assert losses / months == pytest.approx(
            expected, abs=4 * math.sqrt(expected / months) + 0.01 * expected
        )


def test_the_words_and_the_middles_are_those_of_the_bands() -> None:
    for (low, high), words, middle in zip(BANDS, INTERRUPTION_BANDS, BAND_SHARES, strict=True):
        said = [int(n) / 100 for n in re.findall(r"\d+", words)]
        assert said == [end for end in (low, high) if end]
        assert low < middle and (high is None or middle == pytest.approx((low + high) / 2))


def test_what_cannot_be() -> None:
    for band, vms in [(5, 1), (-1, 1), (0, 0)]:
        with pytest.raises(RequestError):
            ClusterRisk.of_band(band, vms)
