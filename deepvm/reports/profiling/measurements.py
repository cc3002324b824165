"""What ``deepvm profile eflops|scaling|saturation`` and ``ckpt bench`` measured: tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.spelling import joined
from deepvm.core.training.steptime import StepTimeFit
from deepvm.core.units import format_bytes
from deepvm.reports.pictures import STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.profiling.checkpoint.bench import Bench
    from deepvm.profiling.checkpoint.node_bench import NodeBench
    from deepvm.profiling.eflops.measure_eflops import Eflops
    from deepvm.profiling.saturation.measure_saturation import Saturation
    from deepvm.profiling.scaling.scaling_document import Curve

_UNITS = ("", "k", "M", "G", "T", "P", "E")


def print_eflops(found: Sequence[Eflops]) -> None:
    """One row for each model, and below them what the numbers mean; ``found`` is of one machine and one request."""
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
    images = "random images" if first.data == "synthetic" else f"images of {first.data}"
    gpus = ", ".join(machine["gpus"][: first.processes])
    processes = "1 process" if first.processes == 1 else f"{first.processes} processes"
    cpu = f"{machine['processor']}, {processes} x {first.threads} of {machine['cores']} cores"
    built = f" for CUDA {machine['cuda']}" if machine["cuda"] else ""
    print_lines(
        [
            "",
            (
                "eFLOPS: operations a second in training, 3 x forward pass x images/s; medians of "
                f"{len(first.windows)} windows. spread: (fastest - slowest) / median."
            ),
            (
                f"Each number belongs to its model and to batch {workload.batch}, {images} of"
                f" {workload.resolution} x {workload.resolution}, {workload.dtype},"
                f" {workload.optimizer}: one machine has several times as many eFLOPS with one"
                " workload as with another, so compare machines by the same."
            ),
            f"{gpus if first.device == 'cuda' else cpu}, torch {machine['torch']}{built}",
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
    """Times and speed-ups of each size, the failed runs with their reasons, and where it was measured."""
    items = []
    measured, cells = {p.n: p for p in curve.points}, {(c.n, c.batch): c for c in curve.cells}
    for n in curve.plan["sizes"]:
        for batch in curve.batches:
            step = speed = shown = share = "-"
            cell = cells.get((n, batch))
            if cell is not None:
                step, speed = f"{cell.step_s:.4g}", f"{cell.gpus * batch / cell.step_s:.5g}"
            if batch == curve.batch and (point := measured.get(n)) and point.speedup is not None:
                shown, share = f"{point.speedup:.3f}", f"{point.speedup / n:.0%}"
            batches = {Column("batch", "right"): str(batch)} if len(curve.batches) > 1 else {}
            spread = (
                {Column("spread", "right", drop=5): f"{cell.spread:.0%}" if cell else "-"}
                if batches
                else {}
            )
            items.append(
                {
                    Column("VMs", "right"): str(n),
                    **batches,
                    Column(
                        "runs", "right", drop=4
                    ): f"{cell.runs if cell else 0}/{curve.plan['repeats']}",
                    Column("step s", "right", drop=3): step,
                    **spread,
                    Column(
                        "images/s" if curve.workload.get("resolution") else "samples/s",
                        "right",
                        drop=2,
                    ): speed,
                    Column("speed-up", "right"): shown,
                    Column("of linear", "right", drop=1): share,
                }
            )
    print_items(items, also="-o json")
    work, machine = curve.workload, curve.machine
    lines = [
        f"failed, n = {r.n}{f', batch {r.batch}' if r.batch else ''}, repeat {r.repeat}: {r.failed}"
        for r in curve.runs
        if r.failed is not None
    ]
    lines += [f"warning: {w}" for w in curve.warnings]
    if curve.fit is not None:
        lines.append(
            "fit: S(n) = c / (1 + exp(-a (n - b))), "
            + ", ".join(f"{k} = {curve.fit[k]:.4g}" for k in "abc")
        )
    if curve.step_time is not None and len(curve.batches) > 1:
        law = StepTimeFit.of_document(curve.step_time)
        lines.append(
            f"step-time law: half of the runs within {law.error:.1%}; gradients take"
            f" {law.law.grad_fixed:.3g} s + {law.law.grad_per_sample:.3g} s a sample"
        )
    each = joined(map(str, curve.batches))
    lines.append(
        f"{work['model']}, {each} {_samples(work)} for each of {work['processes']} {work['device']}"
        f" processes on a VM, {work['dtype']}, {work['optimizer']}; medians of {work['windows']}"
        f" windows of {work['steps']} steps"
    )
    where = ", ".join(machine.get("gpus", ())) or machine.get("processor", "unknown")
    lines.append(f"{where}, torch {machine.get('torch', 'unknown')}")
    print_lines(["", *lines])


def _samples(work: Mapping[str, Any]) -> str:
    if work.get("resolution") is None:
        return f"samples of {work.get('sequence')} tokens ({work.get('method')})"
    return f"images of {work['resolution']} x {work['resolution']}"


def print_saturation(found: Saturation) -> None:
    """Seconds of each n, and below them n_sat in three ways, the bandwidths and the conditions."""
    drops = {
        "senders": 0,
        "pushes": 5,
        "median s": 0,
        "fastest s": 3,
        "slowest s": 4,
        "fit s": 1,
        "Gbit/s": 2,
    }
    rows = []
    for n, own in sorted(found.times.items()):
        middle, fit = median(own), float(found.knee.at(np.array([float(n)]))[0])
        gbps = 8e-9 * found.setup.checkpoint_bytes / middle
        seconds = [f"{s:.4g}" for s in (middle, min(own), max(own), fit)]
        rows.append([str(n), str(len(own)), *seconds, f"{gbps:.3g}"])
    print_table(
        [Column(header, "right", drop) for header, drop in drops.items()], rows, also="-o json"
    )
    largest = max(found.times)
    raw = f"{found.raw}" if found.raw is not None else f"none up to {largest} senders"
    sides = (("sender", found.sender_gbps), ("receiver", found.receiver_gbps))
    bandwidths = [
        f"{side} {'not known' if gbps is None else f'{gbps:.4g} Gbit/s'}"
        + (" (measured)" if side in found.measured else "")
        for side, gbps in sides
    ]
    lines = ["", _saturation_verdict(found), f"n_sat by eq. 14 as it stands, of the medians: {raw}"]
    lines += [f"bandwidth: {', '.join(bandwidths)}", _hosts(found)]
    print_lines([*lines, *(f"Warning: {text}" for text in found.warnings)])


def _saturation_verdict(found: Saturation) -> str:
    knee, largest = found.knee, max(found.times)
    interval = f"95 % interval: {knee.interval(largest)}"
    if knee.n_sat is None:
        return f"no saturation seen up to {largest} senders; {interval}"
    return f"n_sat: {knee.n_sat} senders, by the knee at {knee.senders:.2f}; {interval}"


def _hosts(found: Saturation) -> str:
    setup = found.setup
    hosts = f"{setup.sender_type or 'senders'} to {setup.receiver_type or 'one receiver'}"
    return f"{hosts}, {format_bytes(setup.checkpoint_bytes)} by {setup.transport.upper()}"


def saturation_figure(found: Saturation) -> Figure:
    """t(n) of every push as points, the fit as a line, n_sat and its interval as a mark.

    Both axes logarithmic.
    """
    sizes, knee = sorted(found.times), found.knee
    largest = sizes[-1]
    n = np.unique(np.append(np.linspace(1.0, largest, 200), min(max(knee.senders, 1.0), largest)))
    with drawing(7.0, 5.0) as (figure, axes):
        low, high = (bound or largest for bound in (knee.low, knee.high))
        if low < high:
            axes.axvspan(
                low,
                high,
                color=STYLES[1].color,
                alpha=0.2,
                linewidth=0,
                label="95 % interval of n_sat",
            )
        if knee.n_sat is not None:
            label = f"n_sat = {knee.n_sat} (knee at {knee.senders:.2f})"
            axes.axvline(knee.n_sat, color=STYLES[1].color, linestyle=STYLES[1].dashes, label=label)
        axes.plot(
            n,
            knee.at(n),
            label="fit: t(1) / min(n, k)",
            color=STYLES[0].color,
            linewidth=STYLES[0].width,
        )
        x = [size for size in sizes for _ in found.times[size]]
        y = [seconds for size in sizes for seconds in found.times[size]]
        axes.plot(
            x,
            y,
            linestyle="none",
            marker="o",
            color="black",
            markersize=3.5,
            alpha=0.5,
            label="pushes",
        )
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
            "How many senders fill one receiver"
            if knee.n_sat
            else f"No saturation up to {largest} senders"
        )
        axes.set_title(short(_hosts(found), 80), fontsize="small")
        legend(figure, 2, handlelength=None)
    return figure


def print_bench(bench: Bench) -> None:
    """Seconds and ratios of every method, and below them where they were measured."""
    drops = {"stall s": 0, "safe s": 0, "in training s": 5, "extra s": 6}
    drops |= {"stall x": 2, "safe x": 1, "in training x": 3, "extra x": 4}
    columns = [Column("method"), *(Column(header, "right", drop) for header, drop in drops.items())]
    rows = []
    for name, own in bench.methods.items():
        seconds = [own.stall_s, own.durable_s, own.training_s, own.extra_s]
        figures = [
            *seconds,
            own.stall_ratio,
            own.durable_ratio,
            own.training_ratio,
            own.extra_ratio,
        ]
        # A loop that seems to be faster with a checkpoint tells only how much loops differ.
        rows.append([name, *("-" if f is None else f"{f:.3f}" if f > 0 else "~0" for f in figures)])
    print_table(columns, rows, also="-o json")
    print_lines(
        [
            "",
            (
                "stall: training waits. safe: until the guarantee holds, with nothing else running,"
                " or in training."
            ),
            (
                "extra: how much longer the loop takes; ~0: no longer than loops differ. x: times"
                " torch.save with fsync."
            ),
            (
                f"{bench.model}, {bench.bytes / 1e6:.0f} MB of state, {bench.steps} steps of"
                f" {bench.step_s:.3f} s after each save; medians of {bench.reps}"
            ),
            "{processor}, {cores} cores, {file_system}, torch {torch}, {measured_at}".format(
                **bench.machine
            ),
        ]
    )


def print_node_bench(bench: NodeBench) -> None:
    """Speeds of a memory node by trainers and size, and below them what the machine can do."""
    columns = [
        Column("trainers", "right"),
        Column("ranks", "right", drop=4),
        Column("state", "right"),
        Column("seconds", "right", drop=3),
        Column("GB/s", "right"),
        Column("TCP x 1", "right", drop=2),
        Column("TCP x 2", "right", drop=1),
        Column("ratio", "right"),
        Column("fairness", "right"),
    ]
    rows = []
    for own in bench.rows:
        speeds = [own.bytes_s, own.plain_1_bytes_s, own.plain_2_bytes_s]
        gigabytes = ["-" if s is None else f"{s / 1e9:.2f}" for s in speeds]
        figures = ["-" if f is None else f"{f:.2f}" for f in (own.ratio, own.fairness)]
        seconds = "-" if own.seconds is None else f"{own.seconds:.3f}"
        rows.append(
            [
                str(own.trainers),
                str(own.ranks),
                format_bytes(own.bytes),
                seconds,
                *gigabytes,
                *figures,
            ]
        )
    print_table(columns, rows, also="-o json")
    copy, write = (bench.limits[name] for name in ("memory_copy_bytes_s", "direct_write_bytes_s"))
    disk = (
        f"the disk written at {write / 1e9:.1f} GB/s (O_DIRECT)"
        if write
        else "the disk takes no O_DIRECT"
    )
    print_lines(
        [
            *(
                f"{own.trainers} x {format_bytes(own.bytes)}: {own.problem}"
                for own in bench.rows
                if own.problem
            ),
            "",
            (
                "Of all trainers together, until the node has verified the last one's version. TCP:"
                " plain connections of"
            ),
            (
                "the same trainers, 1 or 2 each. ratio: to TCP x 2. fairness: time of the first"
                " trainer over the last's."
            ),
            f"Memory is copied at {(copy or 0) / 1e9:.1f} GB/s, {disk}.",
            "{processor}, {cores} cores for all of it, {file_system}, {measured_at}".format(
                **bench.machine
            )
            + f"; medians of {bench.reps}",
        ]
    )


def bench_figure(bench: Bench) -> Figure:
    """Bars of what a checkpoint costs with each method, over torch.save with fsync: the stall, and until it is safe."""
    names, own = list(bench.methods), list(bench.methods.values())
    bars = {
        "training waits": [f.stall_ratio for f in own],
        "until it is safe": [f.durable_ratio for f in own],
    }
    with drawing(8.0, 1.7 + 0.55 * len(names)) as (figure, axes):
        for index, (label, values) in enumerate(bars.items()):
            places = np.arange(len(names)) + 0.4 * index - 0.2
            drawn = axes.barh(places, values, 0.38, label=label, color=STYLES[index].color)
            axes.bar_label(drawn, [f"{v:.3f}" for v in values], padding=3, fontsize="small")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        # Between the best and the worst lie two orders of magnitude.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="0.4", linewidth=0.8)
        axes.margins(x=0.15)
        axes.set_xlabel("seconds over those of torch.save with fsync (no unit)")
        figure.suptitle(
            f"What a checkpoint costs: {bench.model}, {bench.bytes / 1e6:.0f} MB of state"
        )
        machine = (
            f"{short(bench.machine['processor'])}, {bench.machine['cores']} cores,"
            f" {bench.machine['file_system']}"
        )
        axes.set_title(f"{machine}; medians of {bench.reps}", fontsize="small")
        legend(figure, len(bars), handlelength=None)
    return figure
