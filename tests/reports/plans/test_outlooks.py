"""What is said of a cluster's interruptions: rounded so that it is never more than is known."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.lifetimes import ClusterRisk
from deepvm.documents.build import document_of
from deepvm.reports.plans.words import losses_words, share_words


def test_shares() -> None:
    for band, vms, words in [
        (4, 10, "at least 89 %"),
        (4, 9, "at least 86 %"),
        (1, 9, "36 to 62 %"),
        (0, 9, "at most 37 %"),
        (0, 1, "at most 5 %"),
        (3, 1, "15 to 20 %"),
        (4, 1, "at least 20 %"),
        (4, 1000, "at least 99 %"),
    ]:
        assert share_words(ClusterRisk.of_band(band, vms)) == words


def test_losses() -> None:
    for band, words in [
        (4, "at least 2.0 a month, or one in at most 16 d"),
        (1, "0.46 to 0.95 a month, or one in 32 to 66 d"),
        (0, "at most 0.47 a month, or one in at least 65 d"),
    ]:
        assert losses_words(ClusterRisk.of_band(band, 9)) == words


@given(st.integers(0, 4), st.integers(1, 400))
def test_what_is_said_holds(band: int, vms: int) -> None:
    risk, said = ClusterRisk.of_band(band, vms), share_words(ClusterRisk.of_band(band, vms))
    numbers = [float(n) / 100 for n in re.findall(r"[\d.]+", said)]
    low, high = risk.share
    if high is None:
        assert low - 0.0101 < numbers[0] <= low + 1e-9 and said.startswith("at least")
    else:
        assert high - 1e-9 <= numbers[-1] < high + 0.0101
        assert len(numbers) == 1 or low - 0.0101 < numbers[0] <= low + 1e-9


def test_documents_have_null_where_nothing_is_known() -> None:
    worst, best = (
        document_of("plans.Interruptions", ClusterRisk.of_band(4, 9)),
        document_of("plans.Interruptions", ClusterRisk.of_band(0, 9)),
    )
    assert worst["vm_monthly_share"] == {"min": 0.2, "max": None} and worst["vm_count"] == 9
    assert worst["cluster_monthly_share"] == {"min": pytest.approx(1 - 0.8**9), "max": None}
    assert worst["mean_time_between_preemptions_s"] == {
        "min": None,
        "max": pytest.approx(86400 * 15.156, rel=1e-3),
    }
    assert (
        best["mean_time_between_preemptions_s"]["max"] is None
        and best["preemptions_per_month"]["min"] == 0
    )
    ends = [end for part in best.values() if isinstance(part, dict) for end in part.values()]
    assert len(ends) == 8 and all(end is None or math.isfinite(end) for end in ends)
