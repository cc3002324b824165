"""Figures 2, 3 and 4 of ECRL for a matrix of one's own: goodput, gain, and stall against gain."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.lab.results import SuiteResult
from deepvm.reports.pictures import STYLES, drawing, legend, save_picture, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REFERENCES = ("ref-blk", "none")


def name_of(suite: SuiteResult) -> str:
    """As figures call it."""
    return f"{suite.dataset} {suite.model} {suite.failure}"


def goodput_figure(suites: Sequence[SuiteResult]) -> Figure:
    """Figure 2: goodput of each variant, that of the reference being 1. Raises MissingExtraError."""
    names = [name for name in dict.fromkeys(n for one in suites for n in one.variants) if name not in _REFERENCES]
    with drawing(max(6.0, 1.2 + 0.45 * len(suites) * max(len(names), 1)), 3.6) as (figure, axes):
        width = 0.8 / max(len(names), 1)
        for place, name in enumerate(names):
            style = STYLES[place % len(STYLES)]
            at, heights = [], []
            for number, suite in enumerate(suites):
                base = next((suite.variants[r] for r in _REFERENCES if r in suite.variants), None)
                if base is None or name not in suite.variants:
                    continue
                at.append(number + (place - (len(names) - 1) / 2) * width)
                whole = statistics.fmean(cost.goodput for cost in base)
                heights.append(statistics.fmean(cost.goodput for cost in suite.variants[name]) / whole)
            axes.bar(at, heights, width * 0.92, label=name, color=style.color)
        axes.axhline(1.0, color="0.3", linewidth=1.0)
        axes.set_xticks(range(len(suites)), [short(name_of(one), 32) for one in suites], rotation=20, ha="right")
        axes.set_ylabel("goodput over reference")
        legend(figure, max(len(names), 1), handlelength=None)
    return figure


def gain_figure(suites: Sequence[SuiteResult]) -> Figure:
    """Figure 3: by how much overlapped trains more than blocking, with its interval. Raises MissingExtraError."""
    with drawing(6.5, 0.9 + 0.4 * len(suites)) as (figure, axes):
        for number, suite in enumerate(reversed(suites)):
            gain = suite.paired.get("ovl_over_blk")
            if gain is None:
                continue
            axes.barh(number, 100 * (gain.mean - 1), color=STYLES[0].color)
            if gain.low is not None and gain.high is not None:
                axes.plot([100 * (gain.low - 1), 100 * (gain.high - 1)], [number, number], color="black")
        axes.set_yticks(range(len(suites)), [short(name_of(one), 32) for one in reversed(suites)])
        axes.axvline(0.0, color="0.3", linewidth=1.0)
        axes.set_xlabel("goodput of overlapped over blocking, %")
    return figure


def stall_figure(suites: Sequence[SuiteResult]) -> Figure:
    """Figure 4: stall that overlapped saves against what it gains. Raises MissingExtraError."""
    with drawing(5.0, 3.8) as (figure, axes):
        for suite in suites:
            gain, stalls = suite.paired.get("ovl_over_blk"), [suite.variants.get(name) for name in ("blk", "ovl")]
            if gain is None or not all(stalls):
                continue
            blk, ovl = (statistics.fmean(cost.stall_s for cost in costs or ()) for costs in stalls)
            x, y = blk - ovl, 100 * (gain.mean - 1)
            axes.plot([x], [y], linestyle="none", marker="o", color=STYLES[0].color)
            axes.annotate(name_of(suite), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
        axes.set_xlabel("stall saved, s")
        axes.set_ylabel("goodput gained, %")
    return figure


def write_figures(out: Path, suites: Sequence[SuiteResult]) -> dict[str, Figure]:
    """Write all of them as PNG and SVG. Raises MissingExtraError, DataError."""
    drawn = {"figure-2-goodput": goodput_figure, "figure-3-gain": gain_figure, "figure-4-stall": stall_figure}
    found = {name: draw(suites) for name, draw in drawn.items()}
    for name, figure in found.items():
        for form in ("png", "svg"):
            save_picture(figure, out / f"{name}.{form}")
    return found
