"""Axes of the page's charts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deepvm.lab.results import Estimate
from deepvm.reports.lab.files import ratio_scale
from deepvm.reports.pages import Scale

VALUES = st.lists(st.floats(-1e4, 1e4, allow_subnormal=False), min_size=1, max_size=9)


@given(VALUES, st.sampled_from([0.0, 1.0]))
def test_axes_hold_all_values_and_have_few_round_labels(values: list[float], around: float) -> None:
    scale = Scale.of(values, around=around)
    assert all(0 <= scale.share(value) <= 1 for value in (*values, around))
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 4 and len({label for _, label in ticks}) == len(ticks)
    for value, label in ticks:
        assert -1e-9 <= scale.share(value) <= 1 + 1e-9
        size = 1000 if label.endswith("k") else 1
        assert abs(float(label.rstrip("k")) * size - value) <= 1e-6 * (scale.high - scale.low)
        assert label != "-0"


def test_a_wide_interval_hides_nothing() -> None:
    wide, narrow = Estimate(1.0, 0.02, 40.0, 2), Estimate(1.1, 1.05, 1.15, 6)
    scale = ratio_scale([wide, narrow])
    assert scale.share(1.15) - scale.share(1.05) > 0.04 and scale.low > 0 and scale.high < 3
    assert (scale.share(0.02), scale.share(40.0)) == (0.0, 1.0)
