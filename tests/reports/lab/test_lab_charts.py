"""Axes of the page's charts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deepvm.lab.results import Estimate
from deepvm.reports.lab.lab_charts import Scale, bars, forest, ratio_scale, scatter

VALUES = st.lists(st.floats(-1e4, 1e4, allow_subnormal=False), min_size=1, max_size=9)


@given(VALUES, st.sampled_from([0.0, 1.0]))
def test_axes_hold_all_values_and_have_few_round_labels(values: list[float], around: float) -> None:
    scale = Scale.of(values, around=around)
    assert all(0 <= scale.share(value) <= 1 for value in (*values, around))
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 4 and len({label for _, label in ticks}) == len(ticks)
    for value, label in ticks:
        assert -1e-9 <= scale.share(value) <= 1 + 1e-9
        assert abs(float(label) - value) <= 1e-6 * (scale.high - scale.low)
        assert label != "-0"


def test_a_ratio_without_interval_has_no_whisker() -> None:
    rows = [("blk", Estimate(1.1, 0.9, 1.3, 3), "a"), ("ovl", Estimate(1.2, None, None, 1), "b")]
    picture = forest("ratios", rows)
    assert picture.count('class="whisker"') == 1 and picture.count('class="mean"') == 2
    assert ratio_scale(one for _, one, _ in rows).share(1.3) < 1


def test_a_wide_interval_hides_nothing() -> None:
    wide, narrow = Estimate(1.0, 0.02, 40.0, 2), Estimate(1.1, 1.05, 1.15, 6)
    scale = ratio_scale([wide, narrow])
    assert scale.share(1.15) - scale.share(1.05) > 0.04 and scale.low > 0 and scale.high < 3
    assert 'x1="0%" x2="100%"' in forest("ratios", [("a", wide, ""), ("b", narrow, "")])


def test_parts_of_bars_stand_behind_one_another() -> None:
    picture = bars("time", [("blk", [("a", 1.0, "x"), ("b", 0.0, "y"), ("c", 3.0, "z")])], "s")
    assert picture.count("<rect") == 2 and 'x="25%" width="75%"' in picture
    assert "<title>z: 3 s</title>" in picture


def test_points_of_a_scatter_have_their_words() -> None:
    assert "<title>one: 1</title>" in scatter("all", [(0.5, -2.0, "one: 1")], "right", "up")
