"""Pictures of what was profiled, in the manner of the paper's Figures 4 and 5; see :mod:`deepvm.reports.pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepvm.io.atomic_write import write_bytes
from deepvm.reports.pictures import STYLES, frame, new_figure, own_settings, picture_format, render, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.profiling.fit.speedup_fit import Fit


_WIDEST = 2.0


def draw_fit(fit: Fit, path: Path, *, name: str) -> None:
    """Save :func:`fit_figure` as PNG or SVG, by the ending of the file's name.

    Args:
        fit: see :func:`fit_figure`.
        path: written whole or not at all; a file that stands there is replaced.
        name: what the points are called.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    write_bytes(path, render(fit_figure(fit, name=name), form))


def fit_figure(fit: Fit, *, name: str) -> Figure:
    """Measured speed-ups as points, the fitted laws as lines, the band of the best law as a shade (Figure 4).

    The axes end a little above what was measured and above the best law's band; another law may leave them.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    from deepvm.profiling.fit.diagnostics import REACH
    from deepvm.profiling.fit.speedup_models import best_first

    largest = fit.sizes[-1]
    n = np.arange(1.0, fit.up_to + 1.0)  # there are no clusters of 1.5 VMs, where the ring would dip
    low, high = fit.band.at(n)
    with own_settings():
        figure = new_figure(8.0, 5.4)
        axes = figure.add_subplot()
        best = f"95 % band of {fit.best.law.name}"
        axes.fill_between(n, low, high, color=STYLES[0].color, alpha=0.18, linewidth=0, label=best)
        for fitted, style in zip(best_first(fit.laws), STYLES, strict=True):
            label = f"{fitted.law.name} ({100 * fitted.mape:.1f} % off)"
            s = fitted.speedup(n)
            # A thick line would hide the band where the curve is well known.
            width = min(style.width, _WIDEST)
            axes.plot(n, s, label=label, color=style.color, linestyle=style.dashes, linewidth=width)
        x, y = zip(*fit.points, strict=True)
        axes.plot(x, y, label="measured", linestyle="none", marker="o", color="black", markersize=4.5, zorder=5)
        if fit.up_to > REACH * largest:
            axes.axvline(REACH * largest, color="0.4", linewidth=0.8)
            axes.annotate(
                "beyond: a guess",
                (REACH * largest, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize="small",
                color="0.3",
            )
        axes.set_xlabel("VMs, n")
        axes.set_ylabel("speed-up over one VM, S(n)")
        axes.set_ylim(0, 1.08 * max(float(high.max()), max(y)))
        axes.set_title(f"{len(fit.points)} measurements at {len(fit.sizes)} sizes", fontsize="small")
        figure.suptitle(f"Speed-up of {short(name)}")
        frame(axes)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, handlelength=4.2)
    return figure
