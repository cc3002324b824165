"""t(n) of ``deepvm profile saturation``, as a table and as a picture."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.units import format_bytes
from deepvm.reports.pictures import STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_lines, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.profiling.saturation.measure_saturation import Saturation


def print_saturation(found: Saturation) -> None:
    """Seconds of each n, and below them n_sat in three ways, the bandwidths and the conditions."""
    drops = {"senders": 0, "pushes": 5, "median s": 0, "fastest s": 3, "slowest s": 4, "fit s": 1, "Gbit/s": 2}
    rows = []
    for n, own in sorted(found.times.items()):
        middle, fit = median(own), float(found.knee.at(np.array([float(n)]))[0])
        gbps = 8e-9 * found.setup.checkpoint_bytes / middle
        seconds = [f"{s:.4g}" for s in (middle, min(own), max(own), fit)]
        rows.append([str(n), str(len(own)), *seconds, f"{gbps:.3g}"])
    print_table([Column(header, "right", drop) for header, drop in drops.items()], rows, also="-o json")
    largest = max(found.times)
    raw = f"{found.raw}" if found.raw is not None else f"none up to {largest} senders"
    sides = (("sender", found.sender_gbps), ("receiver", found.receiver_gbps))
    bandwidths = [
        f"{side} {'not known' if gbps is None else f'{gbps:.4g} Gbit/s'}"
        + (" (measured)" if side in found.measured else "")
        for side, gbps in sides
    ]
    lines = ["", _verdict(found), f"n_sat by eq. 14 as it stands, of the medians: {raw}"]
    lines += [f"bandwidth: {', '.join(bandwidths)}", _title(found)]
    print_lines([*lines, *(f"Warning: {text}" for text in found.warnings)])


def _verdict(found: Saturation) -> str:
    knee, largest = found.knee, max(found.times)
    interval = f"95 % interval: {knee.interval(largest)}"
    if knee.n_sat is None:
        return f"no saturation seen up to {largest} senders; {interval}"
    return f"n_sat: {knee.n_sat} senders, by the knee at {knee.senders:.2f}; {interval}"


def _title(found: Saturation) -> str:
    setup = found.setup
    hosts = f"{setup.sender_type or 'senders'} to {setup.receiver_type or 'one receiver'}"
    return f"{hosts}, {format_bytes(setup.checkpoint_bytes)} by {setup.transport.upper()}"


def saturation_figure(found: Saturation) -> Figure:
    """t(n) of every push as points, the fit as a line, n_sat and its interval as a mark; both axes logarithmic.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    sizes, knee = sorted(found.times), found.knee
    largest = sizes[-1]
    n = np.unique(np.append(np.linspace(1.0, largest, 200), min(max(knee.senders, 1.0), largest)))
    with drawing(7.0, 5.0) as (figure, axes):
        low, high = (bound or largest for bound in (knee.low, knee.high))
        if low < high:
            axes.axvspan(low, high, color=STYLES[1].color, alpha=0.2, linewidth=0, label="95 % interval of n_sat")
        if knee.n_sat is not None:
            label = f"n_sat = {knee.n_sat} (knee at {knee.senders:.2f})"
            axes.axvline(knee.n_sat, color=STYLES[1].color, linestyle=STYLES[1].dashes, label=label)
        axes.plot(n, knee.at(n), label="fit: t(1) / min(n, k)", color=STYLES[0].color, linewidth=STYLES[0].width)
        x = [size for size in sizes for _ in found.times[size]]
        y = [seconds for size in sizes for seconds in found.times[size]]
        axes.plot(x, y, linestyle="none", marker="o", color="black", markersize=3.5, alpha=0.5, label="pushes")
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = [s for s in sizes if s <= 8 or s % 4 == 0 or s == largest]
        axes.set_xticks(ticks, [str(s) for s in ticks])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_xlabel("senders at once, n")
        axes.set_ylabel("seconds until the checkpoint is there, t(n)")
        figure.suptitle(
            "How many senders fill one receiver" if knee.n_sat else f"No saturation up to {largest} senders"
        )
        axes.set_title(short(_title(found), 80), fontsize="small")
        legend(figure, 2, handlelength=None)
    return figure
