"""A fitted speed-up curve: tables, a verdict, and a picture in the manner of the paper's Figures 4 and 5."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.units import counted
from deepvm.profiling.fit.diagnostics import CLOSE, OFF, REACH
from deepvm.profiling.fit.speedup_fit import SHARE, Fit, next_step
from deepvm.profiling.fit.speedup_models import Fitted, best_first, comparable
from deepvm.reports.pictures import MEASURED, STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def print_fit(fit: Fit, name: str) -> None:
    """What was measured, the laws, the band of the best, the verdict, doubts and the next measurement."""
    counts = f"{counted(len(fit.points), 'measurement')} at {counted(len(fit.sizes), 'size')}"
    sizes = [str(n) for n in fit.sizes]
    shown = " ".join(sizes if len(sizes) <= 12 else [*sizes[:5], "...", sizes[-1]])
    print_lines([f"{name}: {counts}, n = {shown}", ""])
    items = [
        {
            Column("law"): f.law.name,
            Column("mean error", "right"): f"{100 * f.mape:.1f} %",
            Column("AICc", "right", drop=1): "-" if f.aicc is None else f"{f.aicc:.1f}",
            Column("parameters", drop=2): _parameters(f),
        }
        for f in best_first(fit.laws)
    ]
    print_items(items, also="-o json")
    print_lines([""])
    measured = {n: statistics.median(s for size, s in fit.points if size == n) for n in fit.sizes}
    band = [
        {
            Column("n", "right"): str(p.n),
            Column("measured", "right", drop=1): f"{measured[p.n]:.3f}" if p.n in measured else "-",
            Column(fit.best.law.name, "right"): f"{p.speedup:.3f}",
            Column("low", "right", drop=3): f"{p.low:.3f}",
            Column("high", "right", drop=2): f"{p.high:.3f}",
        }
        for p in fit.band_points()
    ]
    print_items(band, also="-o json")
    print_lines(["", *_verdict(fit), f"Next: {next_step(fit)}."])
    if fit.warnings:
        print_lines(
            ["", *(f"Warning: {text}{'' if text.endswith('?') else '.'}" for text in fit.warnings)]
        )


def _verdict(fit: Fit) -> list[str]:
    best, second = best_first(fit.laws)[:2]
    better = (
        f"{best.law.name} describes these points best, {100 * best.mape:.1f} % off on average; "
    )
    if best.aicc is None or not comparable(fit.laws):
        better = (
            f"by mean error {best.law.name} is nearest, {100 * best.mape:.1f} % off on average,"
            f" then {second.law.name} with {100 * second.mape:.1f} %; too few measurements for AICc"
            " to compare laws"
        )
    elif second.aicc is None:
        better += "no other law can be compared"
    elif second.aicc - best.aicc <= CLOSE:
        better += f"{second.law.name} does it as well (AICc less than {CLOSE:g} apart)"
    else:
        better += f"{second.law.name}, the next, is {second.aicc - best.aicc:.1f} of AICc behind"
    largest = fit.sizes[-1]
    at = next(p for p in fit.band_points() if p.n == largest)
    return [
        f"Verdict: {better}.",
        (
            f"Trust: up to n = {fit.trusted_to}, measured up to {largest}. S({largest}) is "
            f"{at.low:.4g} to {at.high:.4g} ({100 * SHARE:.0f} % band, if the law is right)."
        ),
        f"Use: {_use(fit)}.",
    ]


def _use(fit: Fit) -> str:
    best = fit.best
    if best.mape > OFF:
        return (
            "the points themselves, kind measured: no law is near enough, the nearest is"
            f" {100 * best.mape:.0f} % off"
        )
    if not comparable(fit.laws):
        return (
            f"the points themselves, kind measured: {len(fit.points)} measurements do not tell the"
            " laws apart"
        )
    points = "or the points themselves, kind measured"
    match best.law.name:
        case "alpha-beta":
            return (
                f"in a catalog, a curve of kind ring (alpha-beta) with {_parameters(best)};"
                f" {points}"
            )
        case "amdahl":
            return (
                f"in a catalog, a curve of kind ring with c 0, l {best.values[0]:.4g}, which is the"
                f" same; {points}"
            )
        case "logistic" if any(text.startswith("hybrid") for text in fit.warnings):
            return (
                "the points themselves, kind measured: a hybrid with these a, b and c is wrong at"
                " small n"
            )
        case "logistic":
            return (
                f"in a catalog, a curve of kind hybrid with {_parameters(best)}, its tangent below"
                f" b; {points}"
            )
    return "the points themselves, kind measured: catalogs have no curve of this law"


def _parameters(fitted: Fitted) -> str:
    return ", ".join(
        f"{p} {v:.4g}" for p, v in zip(fitted.law.parameters, fitted.values, strict=True)
    )


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
        guess = REACH * fit.sizes[-1]
        if fit.up_to > guess:
            axes.axvline(guess, color="0.4", linewidth=0.8)
            at = ("data", "axes fraction")
            look = {"fontsize": "small", "color": "0.3"}
            axes.annotate("beyond: a guess", (guess, 0.02), (4, 0), at, "offset points", **look)
        axes.set_xlabel("VMs, n")
        axes.set_ylabel("speed-up over one VM, S(n)")
        axes.set_ylim(0, 1.08 * max(float(high.max()), max(y)))
        axes.set_title(
            f"{len(fit.points)} measurements at {len(fit.sizes)} sizes", fontsize="small"
        )
        figure.suptitle(f"Speed-up of {short(name)}")
        legend(figure, 3)
    return figure
