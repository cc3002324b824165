"""Figures 2, 3 and 4 of ECRL for another matrix: goodput, gain, and stall against gain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.lab.results import SuiteResult
from deepvm.reports.lab.comparison import accepted
from deepvm.reports.lab.summary import REFERENCES, LabSummary
from deepvm.reports.pictures import STYLES, drawing, legend, save_picture, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HATCHES = ("", "///", "...")
"""From the fifth bar on, colours are used again with the next one."""
_WIDTH = 0.8
"""Of the bars of a suite, which are 1 apart."""


def goodput_figure(summary: LabSummary) -> Figure:
    """Figure 2: goodput of each variant over that of the reference.

    Raises MissingExtraError.
    """
    suites = [suite.over(summary.reference) for suite in summary.suites]
    names = [
        n for n in dict.fromkeys(name for own in suites for name in own) if n not in REFERENCES
    ]
    count = max(len(names), 1)
    with drawing(max(6.0, 1.2 + 0.4 * len(suites) * count), 3.8) as (figure, axes):
        width = _WIDTH / count
        for number, name in enumerate(names):
            # The bars of a suite stand around its tick
            left = (number - (len(names) - 1) / 2) * width
            bars = {n + left: ratios[name] for n, ratios in enumerate(suites) if name in ratios}
            axes.bar(
                list(bars),
                [ratio.mean for ratio in bars.values()],
                0.92 * width,
                label=name,
                color=STYLES[number % len(STYLES)].color,
                hatch=_HATCHES[number // len(STYLES) % len(_HATCHES)],
                edgecolor="white",
            )
            for x, ratio in bars.items():
                if ratio.low is not None:
                    axes.vlines(x, ratio.low, ratio.high, "black", linewidth=1.2)
        axes.axhline(1.0, color="0.3", linewidth=1.0)
        axes.set_xticks(range(len(suites)), _labels(summary.suites), rotation=20, ha="right")
        axes.set_ylabel(f"goodput over {summary.reference or 'reference'}")
        figure.suptitle("Goodput by suite and strategy")
        if names:
            legend(figure, min(len(names), 6), handlelength=2)
    return figure


def gain_figure(summary: LabSummary) -> Figure:
    """Figure 3: goodput of overlapped over that of blocking, with its interval.

    Raises MissingExtraError.
    """
    # Horizontal bars are drawn from the bottom
    suites = accepted(summary)[::-1]
    with drawing(6.5, 1.1 + 0.4 * max(len(suites), 1)) as (figure, axes):
        for number, one in enumerate(suites):
            axes.barh(number, one.gain_percent, color=STYLES[0].color)
            if one.gain.low is not None and one.gain.high is not None:
                axes.hlines(number, 100 * (one.gain.low - 1), 100 * (one.gain.high - 1), "black")
        axes.set_yticks(range(len(suites)), _labels(suites))
        axes.axvline(0.0, color="0.3", linewidth=1.0)
        axes.set_xlabel("goodput of overlapped over blocking, %")
        figure.suptitle("Gain of overlapped over blocking")
    return figure


def stall_figure(summary: LabSummary) -> Figure:
    """Figure 4: stall that overlapped saves against what it gains. Raises MissingExtraError."""
    suites = accepted(summary)
    with drawing(6.5, 4.2) as (figure, axes):
        for number, one in enumerate(suites, 1):
            point = (one.saved_stall_s, one.gain_percent)
            label = f"{number} {one.title}"
            axes.plot(*point, "o", label=label, color=STYLES[0].color)
            axes.annotate(str(number), point, (5, 4), textcoords="offset points", fontsize=9)
        axes.axhline(0.0, color="0.3", linewidth=1.0)
        axes.set(
            xlabel="stall saved by overlapped, s a run", ylabel="goodput gained by overlapped, %"
        )
        figure.suptitle("Stall saved and goodput gained")
        if suites:
            legend(figure, 2, handlelength=0.0)
    return figure


def _labels(suites: Sequence[SuiteResult]) -> list[str]:
    return [short(suite.title, 32) for suite in suites]


FIGURES = {
    "figure-2-goodput": goodput_figure,
    "figure-3-gain": gain_figure,
    "figure-4-stall": stall_figure,
}
"""By the names of their files."""


def write_figures(out: Path, summary: LabSummary) -> Sequence[str]:
    """Write all of them as PNG and SVG; returns the names of the files.

    Raises MissingExtraError, DataError.
    """
    files = []
    for name, draw in FIGURES.items():
        figure = draw(summary)
        for file in (f"{name}.png", f"{name}.svg"):
            save_picture(figure, out / file)
            files.append(file)
    return files
