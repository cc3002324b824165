"""What ``profile eflops``, ``scaling`` and ``saturation`` measured: tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.spelling import joined
from deepvm.core.training.steptime import StepTimeFit
from deepvm.core.units import format_bytes
from deepvm.reports.pictures import MEASURED, STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.profiling.eflops.measure_eflops import Eflops
    from deepvm.profiling.saturation.measure_saturation import Saturation
    from deepvm.profiling.scaling.scaling_document import Curve

_UNITS = ("", "k", "M", "G", "T", "P", "E")


def print_eflops(found: Sequence[Eflops]) -> None:
    """A row for each model; ``found`` is of one machine and one request."""
    items = [
        {
            Column("model"): one.workload.model,
            Column("eFLOPS", "right"): f"{scaled(one.eflops)}FLOP/s",
            Column("images/s", "right", drop=2): f"{one.images_per_s:,.1f}",
            Column("spread", "right", drop=1): f"{one.spread:.1%}",
            Column("forward pass", "right", drop=3): f"{scaled(one.forward_flops)}FLOP",
        }
        for one in found
    ]
    print_items(items, also="-o json")
    first = found[0]
    workload, machine = first.workload, first.machine
    device = ", ".join(machine["gpus"][: first.processes])
    if first.device != "cuda":
        device = (
            f"{machine['processor']}, {first.processes} x {first.threads} of {machine['cores']}"
            " cores"
        )
    print_lines(
        [
            "",
            "eFLOPS: 3 x forward pass x images/s in training; medians of"
            f" {len(first.windows)} windows. spread: (fastest - slowest) / median.",
            f"Compare machines by the same workload only: the model, batch {workload.batch},"
            f" {first.data} images of {workload.resolution} pixels, {workload.dtype},"
            f" {workload.optimizer}.",
            f"{device}, torch {machine['torch']}, CUDA {machine['cuda'] or 'none'}",
        ]
    )


def scaled(number: float) -> str:
    """Three digits and the prefix of the unit that follows: ``1.23 G``."""
    power = 0
    # 999.5 would be shown as 1e+03.
    while number >= 999.5 and power < len(_UNITS) - 1:
        number, power = number / 1000, power + 1
    digits = f"{number:#.3g}".rstrip(".")
    return f"{digits} {_UNITS[power]}"


def print_curve(curve: Curve) -> None:
    """Times and speed-ups of each size, failed runs with reasons, and where it was measured."""
    sizes = ((n, batch) for n in curve.plan["sizes"] for batch in curve.batches)
    print_items([_curve_cells(curve, n, batch) for n, batch in sizes], also="-o json")
    print_lines(["", *_curve_notes(curve)])


def _curve_cells(curve: Curve, n: int, batch: int) -> dict[Column, str]:
    cell = next((c for c in curve.cells if (c.n, c.batch) == (n, batch)), None)
    point = next((p for p in curve.points if p.n == n and batch == curve.batch), None)
    cells = {
        Column("VMs", "right"): str(n),
        Column("batch", "right"): str(batch),
        Column("runs", "right", drop=4): f"{cell.runs if cell else 0}/{curve.plan['repeats']}",
        Column("step s", "right", drop=3): "-",
        Column("spread", "right", drop=5): "-",
        Column("samples/s", "right", drop=2): "-",
        Column("speed-up", "right"): "-",
        Column("of linear", "right", drop=1): "-",
    }
    if cell is not None:
        cells[Column("step s", "right", drop=3)] = f"{cell.step_s:.4g}"
        cells[Column("spread", "right", drop=5)] = f"{cell.spread:.0%}"
        rate = cell.gpus * batch / cell.step_s
        cells[Column("samples/s", "right", drop=2)] = f"{rate:.5g}"
    if point is not None and point.speedup is not None:
        cells[Column("speed-up", "right")] = f"{point.speedup:.3f}"
        cells[Column("of linear", "right", drop=1)] = f"{point.speedup / n:.0%}"
    return cells


def _curve_notes(curve: Curve) -> Iterator[str]:
    for run in curve.runs:
        if run.failed is not None:
            batch = run.batch or curve.batch
            yield f"failed, n = {run.n}, batch {batch}, repeat {run.repeat}: {run.failed}"
    yield from (f"warning: {text}" for text in curve.warnings)
    if curve.fit is not None:
        parameters = ", ".join(f"{k} = {curve.fit[k]:.4g}" for k in "abc")
        yield f"fit: S(n) = c / (1 + exp(-a (n - b))), {parameters}"
    if curve.step_time is not None and len(curve.batches) > 1:
        fit = StepTimeFit.of_document(curve.step_time)
        yield (
            f"step-time law: half of the runs within {fit.error:.1%}; gradients take"
            f" {fit.law.grad_fixed:.3g} s + {fit.law.grad_per_sample:.3g} s a sample"
        )
    work, machine = curve.workload, curve.machine
    samples = f"images of {work['resolution']} pixels"
    if work.get("resolution") is None:
        samples = f"samples of {work.get('sequence')} tokens ({work.get('method')})"
    yield (
        f"{work['model']}, {joined(map(str, curve.batches))} {samples} for each of"
        f" {work['processes']} {work['device']} processes on a VM, {work['dtype']},"
        f" {work['optimizer']}; medians of {work['windows']} windows of {work['steps']} steps"
    )
    device = ", ".join(machine.get("gpus", ())) or machine.get("processor", "unknown")
    yield f"{device}, torch {machine.get('torch', 'unknown')}"


def print_saturation(found: Saturation) -> None:
    """Seconds of each n, and below them n_sat, the bandwidths and the conditions."""
    print_items([_push_cells(found, n) for n in sorted(found.times)], also="-o json")
    print_lines(["", *_saturation_notes(found)])


def _push_cells(found: Saturation, n: int) -> dict[Column, str]:
    own = found.times[n]
    middle, fit = median(own), float(found.knee.at(np.array([float(n)]))[0])
    return {
        Column("senders", "right"): str(n),
        Column("pushes", "right", drop=5): str(len(own)),
        Column("median s", "right"): f"{middle:.4g}",
        Column("fastest s", "right", drop=3): f"{min(own):.4g}",
        Column("slowest s", "right", drop=4): f"{max(own):.4g}",
        Column("fit s", "right", drop=1): f"{fit:.4g}",
        Column("Gbit/s", "right", drop=2): f"{8e-9 * found.setup.checkpoint_bytes / middle:.3g}",
    }


def _saturation_notes(found: Saturation) -> Iterator[str]:
    knee, largest = found.knee, max(found.times)
    interval = f"95 % interval: {knee.interval(largest)}"
    if knee.n_sat is None:
        yield f"no saturation seen up to {largest} senders; {interval}"
    else:
        yield f"n_sat: {knee.n_sat} senders, by the knee at {knee.senders:.2f}; {interval}"
    raw = f"none up to {largest} senders" if found.raw is None else f"{found.raw}"
    yield f"n_sat by eq. 14 as it stands, of the medians: {raw}"
    for side, gbps in (("sender", found.sender_gbps), ("receiver", found.receiver_gbps)):
        measured = " (measured)" if side in found.measured else ""
        rate = "not known" if gbps is None else f"{gbps:.4g} Gbit/s{measured}"
        yield f"bandwidth of the {side}: {rate}"
    yield _hosts(found)
    yield from (f"Warning: {text}" for text in found.warnings)


def _hosts(found: Saturation) -> str:
    setup = found.setup
    hosts = f"{setup.sender_type or 'senders'} to {setup.receiver_type or 'one receiver'}"
    return f"{hosts}, {format_bytes(setup.checkpoint_bytes)} by {setup.transport.upper()}"


def saturation_figure(found: Saturation) -> Figure:
    """t(n) of every push as points, the fit as a line, n_sat and its interval; logarithmic axes."""
    sizes, knee = sorted(found.times), found.knee
    largest, bend = sizes[-1], STYLES[1]
    n = np.unique(np.append(np.linspace(1.0, largest, 200), min(max(knee.senders, 1.0), largest)))
    with drawing(7.0, 5.0) as (figure, axes):
        low, high = knee.low or largest, knee.high or largest
        if low < high:
            look = {"color": bend.color, "alpha": 0.2, "linewidth": 0}
            axes.axvspan(low, high, label="95 % interval of n_sat", **look)
        if knee.n_sat is not None:
            label = f"n_sat = {knee.n_sat} (knee at {knee.senders:.2f})"
            axes.axvline(knee.n_sat, color=bend.color, linestyle=bend.dashes, label=label)
        axes.plot(n, knee.at(n), label="fit: t(1) / min(n, k)", **STYLES[0].line)
        pushes = [(size, seconds) for size in sizes for seconds in found.times[size]]
        axes.plot(*zip(*pushes, strict=True), label="pushes", **MEASURED)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = [s for s in sizes if s <= 8 or s % 4 == 0 or s == largest]
        axes.set_xticks(ticks, [str(s) for s in ticks])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_xlabel("senders at once, n")
        axes.set_ylabel("seconds until the checkpoint is there, t(n)")
        figure.suptitle("How many senders fill one receiver")
        axes.set_title(short(_hosts(found), 80), fontsize="small")
        legend(figure, 2, handlelength=None)
    return figure
