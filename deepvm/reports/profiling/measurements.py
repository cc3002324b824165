"""Measurements: their pictures (Figures 4 and 5), rows, and what changed in tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import Tables
from deepvm.core.arrays import FloatArray
from deepvm.core.training.roofline import REACH
from deepvm.core.units import Z80, counted, format_bytes
from deepvm.documents.build import document_of
from deepvm.records import dataclass
from deepvm.reports.pictures import (
    MEASURED,
    STYLES,
    Axes,
    Figure,
    Style,
    drawing,
    legend,
    mark_guess,
    short,
)
from deepvm.reports.text import format_step
from deepvm.services.schemas import Table, rows_as

if TYPE_CHECKING:
    from deepvm.profiling.checkpoint.bench import Bench
    from deepvm.profiling.fit.speedup_fit import Fit
    from deepvm.profiling.fit.step_fit import StepFit
    from deepvm.profiling.saturation.measure_saturation import Saturation


# Steps whose times differ by a larger factor are drawn on a logarithmic scale
_MAX_LINEAR_LOG_RATIO = np.log(50.0)


def bench_figure(bench: Bench) -> Figure:
    """Bars of the stall and of the time until it is safe, over torch.save with fsync."""
    names = list(bench.methods)
    own = list(bench.methods.values())
    bars = {
        "training waits": [method.stall_ratio for method in own],
        "until it is safe": [method.durable_ratio for method in own],
    }
    with drawing(8.0, 1.7 + 0.55 * len(names)) as (figure, axes):
        for index, (label, values) in enumerate(bars.items()):
            places = np.arange(len(names)) + 0.4 * index - 0.2
            drawn = axes.barh(places, values, 0.38, label=label, color=STYLES[index].color)
            axes.bar_label(drawn, fmt="{:.3f}", padding=3, fontsize="small")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        # Between the best and the worst lie two orders of magnitude.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="0.4", linewidth=0.8)
        axes.margins(x=0.15)
        machine = "{processor:.40}, {cores} cores, {file_system}".format(**bench.machine)
        axes.set(
            title=f"{machine}; medians of {bench.reps}",
            xlabel="seconds over those of torch.save with fsync (no unit)",
        )
        state = f"{bench.bytes / 1e6:.0f} MB of state"
        figure.suptitle(f"What a checkpoint costs: {bench.model}, {state}")
        legend(figure, len(bars), handlelength=2)
    return figure


def fit_figure(fit: Fit, *, name: str) -> Figure:
    """Figure 4: measured speed-ups, the fitted laws as lines, the best law's band as a shade."""
    # There are no clusters of 1.5 VMs, where the ring would dip
    n = np.arange(1.0, fit.up_to + 1.0)
    low, high = fit.band.at(n)
    with drawing(8.0, 5.4) as (figure, axes):
        best = f"95 % band of {fit.best.law.name}"
        axes.fill_between(n, low, high, color=STYLES[0].color, alpha=0.18, linewidth=0, label=best)
        for fitted, style in zip(fit.ranked, STYLES, strict=True):
            label = f"{fitted.law.name} ({100 * fitted.mape:.1f} % off)"
            axes.plot(n, fitted.speedup(n), label=label, **style.thin)
        x, y = zip(*fit.points, strict=True)
        axes.plot(x, y, label="measured", **MEASURED)
        mark_guess(axes, REACH * fit.sizes[-1], fit.up_to)
        axes.set(
            title=f"{len(fit.points)} measurements at {len(fit.sizes)} sizes",
            xlabel="VMs, n",
            ylabel="speed-up over one VM, S(n)",
            ylim=(0, 1.08 * max(high.max(), *y)),
        )
        figure.suptitle(f"Speed-up of {short(name)}")
        legend(figure, 3)
    return figure


def conditions(saturation: Saturation) -> str:
    """What pushed how much to what, in words."""
    setup = saturation.setup
    hosts = f"{setup.sender_type or 'senders'} to {setup.receiver_type or 'one receiver'}"
    return f"{hosts}, {format_bytes(setup.checkpoint_bytes)} by {setup.transport.upper()}"


def saturation_figure(saturation: Saturation) -> Figure:
    """t(n) of every push as points, the fit as a line, n_sat and its interval; logarithmic axes."""
    sizes = sorted(saturation.times)
    knee = saturation.knee
    largest = sizes[-1]
    bend = STYLES[1]
    n = np.linspace(1.0, largest, 1000)
    with drawing(7.0, 5.0) as (figure, axes):
        if knee.low != knee.high:
            ends = knee.low or largest, knee.high or largest
            label = "95 % interval of n_sat"
            axes.axvspan(*ends, label=label, color=bend.color, alpha=0.2, linewidth=0)
        if knee.n_sat is not None:
            label = f"n_sat = {knee.n_sat} (knee at {knee.senders:.2f})"
            axes.axvline(knee.n_sat, color=bend.color, linestyle=bend.dashes, label=label)
        axes.plot(n, knee.at(n), label="fit: t(1) / min(n, k)", **STYLES[0].line)
        pushes = [(size, seconds) for size in sizes for seconds in saturation.times[size]]
        axes.plot(*zip(*pushes, strict=True), label="pushes", **MEASURED)
        axes.set(
            title=short(conditions(saturation), 80),
            xlabel="senders at once, n",
            ylabel="seconds until the checkpoint is there, t(n)",
            xscale="log",
            yscale="log",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}")
        figure.suptitle("How many senders fill one receiver")
        legend(figure, 2, handlelength=2)
    return figure


def step_figure(fit: StepFit, *, name: str) -> Figure:
    """Step time against GPUs, a line for each of at most four batches; VMs are filled in turn."""
    known = fit.measured
    most = max([known.gpus[1], *(p.asked.gpus for p in fit.predictions)])
    gpus = np.unique(np.round(np.geomspace(1, most, 200)))  # there are no clusters of 1.5 GPUs
    with drawing(8.0, 5.4) as (figure, axes):
        every = np.unique(fit.steps.batch)
        places = np.linspace(0, len(every) - 1, min(len(every), len(STYLES)))
        batches = [float(every[round(place)]) for place in places]
        for batch, style in zip(batches, STYLES, strict=False):
            _draw_batch(axes, fit, gpus, batch, style, shade=batch == batches[0])
        mark_guess(axes, REACH * known.gpus[1], most)
        if np.ptp(np.log(fit.steps.step_s)) > _MAX_LINEAR_LOG_RATIO:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: format_step(value))
        else:
            axes.set_ylim(bottom=0)
        axes.set(
            title=counted(len(fit.steps), "measured step"),
            xlabel=f"GPUs, up to {known.most_per_vm} on each VM (points: measured)",
            ylabel="seconds of a step",
        )
        figure.suptitle(f"Step time of {short(name)}")
        legend(figure, 3)
    return figure


def _draw_batch(
    axes: Axes, fit: StepFit, gpus: FloatArray, batch: float, style: Style, *, shade: bool
) -> None:
    nodes = np.ceil(gpus / fit.measured.most_per_vm)
    at = np.full_like(gpus, batch)
    line = fit.fitted.law.step_s(nodes, gpus, at)
    if shade:
        factor = np.exp(Z80 * fit.fitted.measured.deviation(nodes, gpus, at))
        label = f"80 % of batch {batch:g}"
        low, high = line / factor, line * factor
        axes.fill_between(gpus, low, high, label=label, color=style.color, alpha=0.18, linewidth=0)
    axes.plot(gpus, line, **style.thin)
    mark = MEASURED | {"color": style.color, "marker": style.marker}
    own = fit.steps.batch == batch
    axes.plot(fit.steps.gpus[own], fit.steps.step_s[own], label=f"batch {batch:g}", **mark)


def csv_rows(entries: Iterable[Entry]) -> Table:
    """Header and a row for each measurement, in short."""
    rows = [document_of("profiling.MeasuredEntry", entry) for entry in entries]
    return rows_as("profiling.MeasuredEntry", rows)


@dataclass(frozen=True)
class Change:
    """An entry before and after the last change; None where there was none."""

    name: str
    old: Entry | None
    new: Entry | None

    @property
    def change(self) -> str:
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        return "changed"


def changes(old: Tables, new: Tables) -> list[Change]:
    """What differs, by name."""
    before, after = ({e.name: e for e in tables} for tables in (old, new))
    pairs = (Change(n, before.get(n), after.get(n)) for n in sorted({*before, *after}))
    return [change for change in pairs if change.old != change.new]
