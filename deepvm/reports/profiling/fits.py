"""A fitted speed-up curve: tables, a verdict, and a picture (the paper's Figures 4 and 5)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.units import counted
from deepvm.profiling.fit.diagnostics import OFF, REACH
from deepvm.profiling.fit.speedup_fit import SHARE, Fit, next_step
from deepvm.profiling.fit.speedup_models import Fitted, best_first, comparable
from deepvm.reports.pictures import MEASURED, STYLES, drawing, legend, mark_guess, short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CURVES = {"alpha-beta": "ring", "amdahl": "ring with c 0 and", "logistic": "hybrid"}
"""Kinds of curves in catalogs that have these laws."""


def print_fit(fit: Fit, name: str) -> None:
    """What was measured, the laws, the band of the best, the verdict, doubts and what to measure next."""
    counts = f"{counted(len(fit.points), 'measurement')} at {counted(len(fit.sizes), 'size')}"
    print_lines([f"{name}: {counts}, n = {fit.sizes[0]} to {fit.sizes[-1]}", ""])
    laws = [
        {
            Column("law"): fitted.law.name,
            Column("mean error", "right"): f"{100 * fitted.mape:.1f} %",
            Column("AICc", "right", drop=1): _aicc(fitted),
            Column("parameters", drop=2): _parameters(fitted),
        }
        for fitted in best_first(fit.laws)
    ]
    print_items(laws, also="-o json")
    print_lines([""])
    band = [
        {
            Column("n", "right"): str(point.n),
            Column("measured", "right", drop=1): _measured(fit, point.n),
            Column(fit.best.law.name, "right"): f"{point.speedup:.3f}",
            Column("low", "right", drop=3): f"{point.low:.3f}",
            Column("high", "right", drop=2): f"{point.high:.3f}",
        }
        for point in fit.band_points()
    ]
    print_items(band, also="-o json")
    print_lines(["", *_verdict(fit), *(f"Warning: {text}" for text in fit.warnings)])


def _aicc(fitted: Fitted) -> str:
    return "-" if fitted.aicc is None else f"{fitted.aicc:.1f}"


def _measured(fit: Fit, n: int) -> str:
    own = [speedup for size, speedup in fit.points if size == n]
    return f"{statistics.median(own):.3f}" if own else "-"


def _verdict(fit: Fit) -> Iterator[str]:
    best, second = best_first(fit.laws)[:2]
    by = "AICc" if best.aicc is not None and comparable(fit.laws) else "mean error"
    yield (
        f"Best by {by}: {best.law.name}, {100 * best.mape:.1f} % off on average; then"
        f" {second.law.name} with {100 * second.mape:.1f} %."
    )
    largest = fit.sizes[-1]
    at = next(point for point in fit.band_points() if point.n == largest)
    yield (
        f"Trust: up to n = {fit.trusted_to}, measured up to {largest}. S({largest}) is"
        f" {at.low:.4g} to {at.high:.4g} ({100 * SHARE:.0f} % band, if the law is right)."
    )
    yield f"Use: {_use(fit)}."
    yield f"Next: {next_step(fit)}."


def _use(fit: Fit) -> str:
    best = fit.best
    kind = _CURVES.get(best.law.name)
    if kind == "hybrid" and any(text.startswith("hybrid") for text in fit.warnings):
        kind = None
    if best.mape > OFF or not comparable(fit.laws) or kind is None:
        return "the points themselves, kind measured; no law of a catalog is sure to be near enough"
    curve = f"in a catalog, a curve of kind {kind} {_parameters(best)}"
    return f"{curve}; or the points themselves, kind measured"


def _parameters(fitted: Fitted) -> str:
    pairs = zip(fitted.law.parameters, fitted.values, strict=True)
    return ", ".join(f"{name} {value:.4g}" for name, value in pairs)


def fit_figure(fit: Fit, *, name: str) -> Figure:
    """Measured speed-ups as points, the fitted laws as lines, the band of the best law as a shade (Figure 4).

    The axes end a little above what was measured and above the best law's band; another law may
    leave them.
    """
    # There are no clusters of 1.5 VMs, where the ring would dip
    n = np.arange(1.0, fit.up_to + 1.0)
    low, high = fit.band.at(n)
    with drawing(8.0, 5.4) as (figure, axes):
        best = f"95 % band of {fit.best.law.name}"
        axes.fill_between(n, low, high, color=STYLES[0].color, alpha=0.18, linewidth=0, label=best)
        for fitted, style in zip(best_first(fit.laws), STYLES, strict=True):
            label = f"{fitted.law.name} ({100 * fitted.mape:.1f} % off)"
            # A thick line would hide the band where the curve is well known.
            axes.plot(
                n,
                fitted.speedup(n),
                label=label,
                **style.line | {"linewidth": min(style.width, 2.0)},
            )
        x, y = zip(*fit.points, strict=True)
        axes.plot(x, y, label="measured", **MEASURED)
        mark_guess(axes, REACH * fit.sizes[-1], fit.up_to)
        axes.set_xlabel("VMs, n")
        axes.set_ylabel("speed-up over one VM, S(n)")
        axes.set_ylim(0, 1.08 * max(float(high.max()), max(y)))
        axes.set_title(
            f"{len(fit.points)} measurements at {len(fit.sizes)} sizes", fontsize="small"
        )
        figure.suptitle(f"Speed-up of {short(name)}")
        legend(figure, 3)
    return figure
