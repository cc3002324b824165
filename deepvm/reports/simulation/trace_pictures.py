"""Traces as a picture: when the machines were there, and how many of the lives last how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepvm.io.atomic_write import write_bytes
from deepvm.reports.pictures import STYLES, frame, new_figure, own_settings, picture_format, render, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deepvm.simulator.traces.lifetime_fit import Fitted
    from deepvm.simulator.traces.trace import Trace, TraceLives

MOST = 40
"""Only the first traces are drawn; more would be too thin to see."""


def draw_traces(traces: Sequence[Trace], pools: Sequence[TraceLives], fits: Sequence[Fitted], path: Path) -> None:
    """Save :func:`traces_figure` as PNG or SVG, by the ending of the file's name.

    Args:
        traces: see :func:`traces_figure`.
        pools: their lives.
        fits: the laws fitted to them.
        path: written whole or not at all; a file that stands there is replaced.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    write_bytes(path, render(traces_figure(traces, pools, fits), form))


def traces_figure(traces: Sequence[Trace], pools: Sequence[TraceLives], fits: Sequence[Fitted]) -> Figure:
    """Availability over time, a row for each of the first ``MOST`` traces, above the survival curve with the fits.

    Args:
        traces: of the upper frame.
        pools: all lives, for the lower frame.
        fits: laws as lines, the best first; none when there are too few lives.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    shown = traces[:MOST]
    upper = 0.9 + 0.2 * max(len(shown), 3)
    with own_settings():
        figure = new_figure(8.6, upper + 4.4)
        above, below = figure.subplots(2, 1, height_ratios=[upper, 4.0])
        _availability(above, shown)
        _survival(below, pools, fits)
        more = "" if len(shown) == len(traces) else f", the first {MOST} of {len(traces)} traces"
        figure.suptitle(f"When the machines were there{more}, and how long they lived")
    return figure


def _availability(axes: Axes, traces: Sequence[Trace]) -> None:
    for row, trace in enumerate(traces):
        # Only ticks at which something changes: a trace has tens of thousands.
        change = np.flatnonzero(np.diff(trace.counts, prepend=-1))
        day = np.append(change, trace.counts.size) * trace.gap_s / 86_400
        height = trace.counts[change] / max(trace.nodes, 1)
        bottom, colour = row + 0.4, STYLES[0].color
        axes.fill_between(day, bottom, bottom - 0.8 * np.append(height, height[-1]), step="post", color=colour, lw=0)
        axes.plot([0, day[-1]], [bottom, bottom], color="0.75", linewidth=0.6)
    unlike = len({t.path.stem for t in traces}) == len(traces)
    own = [t.path.stem if unlike else f"{t.path.absolute().parent.name}/{t.path.stem}" for t in traces]
    labels = [f"{short(name)} ({t.nodes})" for name, t in zip(own, traces, strict=True)]
    axes.set_yticks(range(len(traces)), labels, fontsize="small")
    axes.set_ylim(len(traces) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("days from the beginning of each trace")
    axes.set_title("machines that were there; in brackets, how many a full bar is", fontsize="small")
    frame(axes)
    axes.grid(visible=False, axis="y")


def _survival(axes: Axes, pools: Sequence[TraceLives], fits: Sequence[Fitted]) -> None:
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    curve = survival_curve(pools)
    life = np.concatenate([pool.life_s for pool in pools])
    t = np.geomspace(life.min() / 2, life.max() * 1.5, 400)
    for fit, style in zip(fits, STYLES, strict=False):
        label = f"{fit.law.name} (AIC {fit.aic:,.0f})"
        share = fit.survival(t)
        axes.plot(t / 3600, share, label=label, color=style.color, linestyle=style.dashes, linewidth=style.width)
    seen = np.append(curve.t_s, life.max())
    lasting = np.concatenate([[1.0], curve.share])
    x, y = np.concatenate([[t[0]], seen]), np.append(lasting, lasting[-1])
    axes.step(x / 3600, y, where="post", color="black", linewidth=1.3, label="seen (Kaplan-Meier)", zorder=5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("hours")
    axes.set_ylabel("share of lives that last longer")
    axes.set_title(f"{life.size} lives, {sum(p.preemptions for p in pools)} of them ended", fontsize="small")
    frame(axes)
    axes.legend(loc="upper right", frameon=False, handlelength=4.2, fontsize="small")
