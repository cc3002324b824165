"""Figures 2, 3 and 4 of ECRL for a matrix of one's own: goodput, gain, and stall against gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm.lab.results import Estimate, SuiteResult
from deepvm.reports.lab.analysis import Accepted, accepted
from deepvm.reports.lab.findings import BASE, REFERENCES, Findings
from deepvm.reports.pictures import STYLES, drawing, legend, save_picture, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HATCHES = ("", "///", "...")
"""Behind the fourth bar colours come again."""


def suite_name(suite: SuiteResult) -> str:
    """As figures call it."""
    return f"{suite.dataset} {suite.model} {suite.failure}"


def over_reference(found: Findings, suite: SuiteResult) -> Mapping[str, Estimate]:
    """Goodput of each other variant over that of the reference, of the same seeds."""
    ratios = {}
    for name in suite.variants:
        pair = found.complete(suite, [found.reference, name])
        if name != found.reference and pair:
            values = zip(pair[name], pair[found.reference], strict=True)
            ratios[name] = Estimate.of_ratios(
                [one.goodput / whole.goodput for one, whole in values]
            )
    return ratios


def goodput_figure(found: Findings) -> Figure:
    """Figure 2: goodput of each variant, that of the reference being 1.

    Raises MissingExtraError.
    """
    suites = found.suites
    known = [over_reference(found, one) for one in suites]
    names = list(dict.fromkeys(name for one in known for name in one if name not in REFERENCES))
    with drawing(max(6.0, 1.2 + 0.4 * len(suites) * max(len(names), 1)), 3.8) as (figure, axes):
        width = 0.8 / max(len(names), 1)
        for place, name in enumerate(names):
            style, hatch = (
                STYLES[place % len(STYLES)],
                _HATCHES[place // len(STYLES) % len(_HATCHES)],
            )
            at = [
                n + (place - (len(names) - 1) / 2) * width
                for n, one in enumerate(known)
                if name in one
            ]
            ratios = [one[name] for one in known if name in one]
            heights = [one.mean for one in ratios]
            axes.bar(
                at,
                heights,
                width * 0.92,
                label=name,
                color=style.color,
                hatch=hatch,
                edgecolor="white",
            )
            _whiskers(axes, at, ratios)
        axes.axhline(1.0, color="0.3", linewidth=1.0)
        axes.set_xticks(
            range(len(suites)),
            [short(suite_name(one), 32) for one in suites],
            rotation=20,
            ha="right",
        )
        axes.set_ylabel(f"goodput over {found.reference or 'reference'}")
        figure.suptitle("Goodput by suite and strategy")
        if names:
            legend(figure, min(len(names), 6), handlelength=None)
    return figure


def _whiskers(axes: Any, at: Sequence[float], ratios: Sequence[Estimate]) -> None:
    for x, one in zip(at, ratios, strict=True):
        if one.low is not None and one.high is not None:
            axes.plot([x, x], [one.low, one.high], color="black", linewidth=1.2)


def gain_figure(found: Findings) -> Figure:
    """Figure 3: by how much overlapped trains more than blocking, with its interval.

    Raises MissingExtraError.
    """
    suites = accepted(found)
    with drawing(6.5, 1.1 + 0.4 * max(len(suites), 1)) as (figure, axes):
        for number, one in enumerate(reversed(suites)):
            gain = one.ratio("ovl", BASE)
            assert gain is not None
            axes.barh(number, 100 * (gain.mean - 1), color=STYLES[0].color)
            if gain.low is not None and gain.high is not None:
                axes.plot(
                    [100 * (gain.low - 1), 100 * (gain.high - 1)], [number, number], color="black"
                )
        axes.set_yticks(
            range(len(suites)), [short(suite_name(one.suite), 32) for one in reversed(suites)]
        )
        axes.axvline(0.0, color="0.3", linewidth=1.0)
        axes.set_xlabel("goodput of overlapped over blocking, %")
        figure.suptitle("Gain of overlapped over blocking")
    return figure


def stall_figure(found: Findings) -> Figure:
    """Figure 4: stall that overlapped saves against what it gains. Raises MissingExtraError."""
    with drawing(6.5, 4.2) as (figure, axes):
        for number, one in enumerate(accepted(found), 1):
            x, y = stall_and_gain(one)
            label = f"{number} {suite_name(one.suite)}"
            axes.plot([x], [y], linestyle="none", marker="o", color=STYLES[0].color, label=label)
            axes.annotate(
                str(number), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=9
            )
        axes.axhline(0.0, color="0.3", linewidth=1.0)
        axes.set_xlabel("stall saved by overlapped, s a run")
        axes.set_ylabel("goodput gained by overlapped, %")
        figure.suptitle("Stall that is saved, and what it brings")
        if axes.lines[:-1]:
            legend(figure, 2, handlelength=0.0)
    return figure


def stall_and_gain(one: Accepted) -> tuple[float, float]:
    """Seconds a run, and per cent of goodput."""
    gain = one.ratio("ovl", BASE)
    assert gain is not None
    return -one.saved(lambda cost: cost.stall_s), 100 * (gain.mean - 1)


FIGURES = {
    "figure-2-goodput": goodput_figure,
    "figure-3-gain": gain_figure,
    "figure-4-stall": stall_figure,
}
"""By the names of their files."""


def write_figures(out: Path, found: Findings) -> Sequence[str]:
    """Write all of them as PNG and SVG; returns the names of the files.

    Raises MissingExtraError, DataError.
    """
    drawn = {name: draw(found) for name, draw in FIGURES.items()}
    for name, figure in drawn.items():
        for form in ("png", "svg"):
            save_picture(figure, out / f"{name}.{form}")
    return [f"{name}.{form}" for name in drawn for form in ("png", "svg")]
