"""A sweep with a job as a picture: time and bill over the budgets, with units, and open where there
is nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from support.builders import paper

from deepvm.core.cluster.cluster import JobEstimate, Spread
from deepvm.planner.job_forecast import Work
from deepvm.planner.sweep import SweepRow, parse_budgets
from deepvm.reports.pictures import render, save_picture
from deepvm.reports.plans.sweeps import outlooks_figure
from deepvm.services.recommend import sweep

PNG = b"\x89PNG\r\n\x1a\n"


def job(**limits: Any) -> Work:
    made = Work.parse(work=100, life_s=43_200.0, **limits)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def rows() -> list[SweepRow]:
    return sweep(
        paper(), parse_budgets("0:3:0.5"), ["deepvm", "cost-first"], work=100, mttp=43_200.0
    )


def figure_of(rows: list[SweepRow], **limits: Any) -> Any:
    return outlooks_figure(rows, job(**limits), catalog_name="paper")


def lines_of(axes: Any) -> dict[str, Any]:
    return {
        line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")
    }


def spread_out(row: SweepRow) -> SweepRow:
    """As if it had been simulated."""
    found = row.recommendation
    if found is None or found.outlook is None:
        return row
    t, c = found.outlook.total_s, found.outlook.cost_usd
    spread = Spread(200, 0.9 * t, t, 1.2 * t, 0.8 * c, c, 1.3 * c)
    return replace(
        row, recommendation=replace(found, outlook=replace(found.outlook, spread=spread))
    )


def test_both_panels_name_their_axis_and_unit(rows: list[SweepRow]) -> None:
    time, bill = figure_of(rows).axes
    assert time.get_ylabel() == "expected time (h)" and bill.get_ylabel() == "expected bill ($)"
    assert "$/h" in bill.get_xlabel()


def test_lines_are_time_and_bill_of_each_policy(rows: list[SweepRow]) -> None:
    time, bill = figure_of(rows).axes
    assert list(lines_of(time)) == ["DeepVM", "Cost-First"] == list(lines_of(bill))
    own = [r.recommendation for r in rows if r.policy.value == "deepvm"]
    for axes, figures in (
        (time, [math.nan if r is None else r.outlook.total_s / 3600 for r in own]),  # type: ignore[union-attr]
        (bill, [math.nan if r is None else r.outlook.cost_usd for r in own]),  # type: ignore[union-attr]
    ):
        line = lines_of(axes)["DeepVM"]
        assert line.get_xdata().tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
        assert np.asarray(line.get_ydata()) == pytest.approx(figures, nan_ok=True)
        assert math.isnan(line.get_ydata()[0])  # nothing is feasible for $0/h
    assert time.get_xlim()[0] <= 0


def test_what_never_ends_is_left_open_too(rows: list[SweepRow]) -> None:
    def unending(row: SweepRow) -> SweepRow:
        never = JobEstimate(math.inf, math.inf, 1e9, sound=False)
        found = row.recommendation
        return row if found is None else replace(row, recommendation=replace(found, outlook=never))

    figure = figure_of([unending(r) if r.budget == 1 else r for r in rows])
    for axes in figure.axes:
        assert math.isnan(lines_of(axes)["DeepVM"].get_ydata()[2])
        assert np.isfinite(axes.get_ylim()).all()
    assert "no line: nothing is feasible, or the job does not end" in figure.axes[0].get_title()


def bars_of(axes: Any) -> list[tuple[float, float, float]]:
    """Budget, lower and upper end of each vertical bar."""
    found = [s for c in axes.collections if isinstance(c, LineCollection) for s in c.get_segments()]
    assert all(s[0][0] == s[1][0] for s in found)
    return [(float(s[0][0]), float(s[0][1]), float(s[1][1])) for s in found]


def test_each_simulated_budget_shows_its_range() -> None:
    """The last one too, one before a gap, and one alone: there the band has no width."""
    for budgets in ["3", "0,1", "1,2,3"]:
        found = [
            spread_out(r)
            for r in sweep(paper(), parse_budgets(budgets), ["deepvm"], work=100, mttp=43_200.0)
        ]
        gap = JobEstimate(math.inf, math.inf, 1e9, sound=False)
        if budgets == "1,2,3":
            assert found[1].recommendation is not None
            found[1] = replace(
                found[1], recommendation=replace(found[1].recommendation, outlook=gap)
            )
        outlooks = [
            (float(r.budget), r.recommendation.outlook)
            for r in found
            if r.recommendation is not None
        ]
        drawn = [
            (budget, o.spread) for budget, o in outlooks if o is not None and o.spread is not None
        ]
        time, bill = figure_of(found).axes
        assert drawn and bars_of(time) == [
            pytest.approx((b, s.p5_s / 3600, s.p95_s / 3600)) for b, s in drawn
        ]
        assert bars_of(bill) == [pytest.approx((b, s.p5_usd, s.p95_usd)) for b, s in drawn]


def test_bars_do_not_hide_each_other(rows: list[SweepRow]) -> None:
    """Policies that buy the same cluster: the wider bars are below, and those of a hundred budgets
    do not touch.
    """
    axes = figure_of([spread_out(r) for r in rows]).axes[0]
    bars = [c for c in axes.collections if isinstance(c, LineCollection)]
    widths = [c.get_linewidth()[0] for c in bars]
    assert (
        len(bars) == 2
        and widths[0] > widths[1] > 0
        and bars[0].get_zorder() == bars[1].get_zorder()
    )
    assert not bars_of(figure_of(rows).axes[0])
    many = [replace(spread_out(rows[-2]), budget=Decimal(n)) for n in range(100)]
    figure = figure_of(many)
    render(figure)
    (thin,) = (c for c in figure.axes[0].collections if isinstance(c, LineCollection))
    apart = figure.axes[0].transData.transform([(0, 0), (1, 0)])[:, 0]
    assert 0 < thin.get_linewidth()[0] * figure.dpi / 72 < apart[1] - apart[0]


def test_the_band_is_that_of_the_simulated_runs(rows: list[SweepRow]) -> None:
    plain, simulated = figure_of(rows), figure_of([spread_out(r) for r in rows])
    assert not any(axes.collections for axes in plain.axes)
    assert (
        "200 simulated runs" in simulated.axes[0].get_title()
        and "closed form" in plain.axes[0].get_title()
    )
    for axes, low, high in zip(simulated.axes, (0.9, 0.8), (1.2, 1.3), strict=True):
        bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
        assert len(bands) == 2
        value = lines_of(axes)["DeepVM"].get_ydata()[-1]
        corners = bands[0].get_paths()[0].vertices
        # The step to it, and its own ends
        at_3 = {round(y / value, 4) for x, y in corners if x == 3}
        assert {low, high} <= at_3 and len(at_3) <= 4


def test_what_the_closed_form_does_not_hold_for_is_marked(rows: list[SweepRow]) -> None:
    def doubtful(row: SweepRow) -> SweepRow:
        found = row.recommendation
        if found is None or found.outlook is None:
            return row
        return replace(
            row, recommendation=replace(found, outlook=replace(found.outlook, sound=False))
        )

    figure = figure_of([doubtful(r) for r in rows])
    said = "hollow: it does not hold there"
    assert said in figure.axes[0].get_title() and said not in figure_of(rows).axes[0].get_title()
    hollow = [line for line in figure.axes[0].get_lines() if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 2 and not [
        line
        for line in figure_of(rows).axes[0].get_lines()
        if line.get_markerfacecolor() == "white"
    ]
    simulated = figure_of([spread_out(doubtful(r)) for r in rows])
    assert said not in simulated.axes[0].get_title()


def test_limits_of_the_job_are_drawn(rows: list[SweepRow]) -> None:
    figure = figure_of(rows, deadline="48h", total_budget=100)
    time, bill = figure.axes
    levels = [{float(line.get_ydata()[0]) for line in axes.get_lines()} for axes in (time, bill)]
    assert 48.0 in levels[0] and 100.0 in levels[1]
    assert [axes.texts[0].get_text() for axes in (time, bill)] == ["deadline", "total budget"]
    high = figure_of(rows, deadline="4000h").axes[0]
    assert high.get_ylim()[1] > 4000  # it is seen, and the curve below it


@pytest.mark.parametrize(
    "policies", [["deepvm"], ["deepvm", "noscale", "cost-first", "performance-first"]]
)
def test_nothing_is_written_outside_of_the_picture(policies: list[str]) -> None:
    many = sweep(paper(), parse_budgets("0:3:0.5"), policies, work=4, mttp="40min")
    figure = outlooks_figure(many, job(), catalog_name="a name of a catalog that is long " * 3)
    render(figure)
    for box in (figure.axes[0].title.get_window_extent(), figure.legends[0].get_window_extent()):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_the_picture_is_drawn_and_the_same_each_time(rows: list[SweepRow], tmp_path: Path) -> None:
    save_picture(outlooks_figure(rows, job(), catalog_name="$paper$" * 20), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert render(figure_of(rows), "svg") == render(figure_of(rows[::-1]), "svg")


def test_nothing_feasible_is_said(tmp_path: Path) -> None:
    none = sweep(paper(), parse_budgets("0,0.01"), work=100)
    assert "no policy has a feasible cluster" in figure_of(none).axes[0].get_title()
    save_picture(figure_of(none), tmp_path / "a.svg")
