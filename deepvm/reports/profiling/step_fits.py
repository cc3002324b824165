"""A fitted step-time law: its parameters, what dominates a step, predictions, and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.interval import Z80, Interval
from deepvm.core.training.steptime import REACH, FloatArray
from deepvm.core.units import counted
from deepvm.profiling.fit.step_fit import Prediction, Shares, StepFit
from deepvm.reports.pictures import MEASURED, STYLES, drawing, legend, mark_guess, short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deepvm.reports.pictures import Style

_DECADES = np.log(50.0)  # steps that differ more are drawn on a logarithmic scale
_NOT_MEASURED = "not measured"


def print_step_fit(fit: StepFit, name: str) -> None:
    """What was measured, the law, how well it fits, what dominates, predictions and warnings."""
    print_lines([f"{short(name)}: {_counts(fit)}", ""])
    print_items(list(_parameters(fit)), also="-o json")
    print_lines(["", *_notes(fit)])
    if fit.predictions:
        print_lines([""])
        print_items([_cells(prediction) for prediction in fit.predictions], also="-o json")
    if fit.warnings:
        print_lines(["", *(f"Warning: {text}" for text in fit.warnings)])


def _counts(fit: StepFit) -> str:
    known = fit.measured
    (least, most), (small, large) = known.gpus, known.batch
    return (
        f"{counted(len(fit.steps), 'measured step')}, {known.nodes[0]} to {known.nodes[-1]} VMs,"
        f" {least} to {most} GPUs, batch {small:g} to {large:g}"
    )


def _parameters(fit: StepFit) -> Iterator[dict[Column, str]]:
    law, known = fit.fitted.law, fit.measured
    both = known.local or known.several > 0
    more = bool((fit.steps.gpus[fit.steps.nodes > 1] > 2).any())
    rows = (
        ("gradients on each GPU, for any batch", "grad_fixed", True),
        ("gradients, for each sample", "grad_per_sample", True),
        ("synchronization of 2 GPUs of one VM", "local_fixed", known.local),
        ("  for each further GPU", "local_per_gpu", max(known.local_gpus, default=1) > 2),
        ("synchronization of 2 GPUs of two VMs", "network_fixed", known.several > 0),
        ("  for each further GPU", "network_per_gpu", more),
        ("overlap of the two: 1 none, 10 nearly whole", "overlap", both),
        ("gradients wait for the slowest of K GPUs: K^x", "straggling", both),
    )
    for text, name, is_known in rows:
        value = getattr(law, name)
        shown = f"{value:.3g}" if name in ("overlap", "straggling") else seconds(value)
        yield {
            Column("part of a step"): text,
            Column("parameter", drop=1): name,
            Column("value", "right"): shown if is_known else _NOT_MEASURED,
        }


def _notes(fit: StepFit) -> Iterator[str]:
    fitted = fit.fitted
    vms, gpus = int(REACH * fitted.most_nodes), int(REACH * fitted.most_gpus)
    yield (
        f"Error: half of the measured steps within {fitted.error:.1%}, four of five within"
        f" {fit.most_off:.1%}."
    )
    yield (
        f"Trust: up to {REACH} x what was measured, {counted(vms, 'VM')} and"
        f" {counted(gpus, 'GPU')}."
    )
    for batch in dict.fromkeys(fit.measured.batch):
        yield _dominates(fit.shares(batch))


def _dominates(shares: Shares) -> str:
    asked, longer = shares.asked, "gradients"
    if shares.sync_s > shares.grad_s:
        longer = "synchronization"
    return (
        f"{counted(asked.nodes, 'VM')}, {counted(asked.gpus, 'GPU')}, batch {asked.batch:g}:"
        f" {seconds(shares.step_s)} a step, mostly {longer} (gradients {seconds(shares.grad_s)},"
        f" synchronization {seconds(shares.sync_s)})."
    )


def _cells(prediction: Prediction) -> dict[Column, str]:
    asked, step, rate = prediction.asked, prediction.step_s, prediction.throughput
    return {
        Column("VMs", "right"): str(asked.nodes),
        Column("GPUs", "right"): str(asked.gpus),
        Column("batch", "right"): f"{asked.batch:g}",
        Column("step", "right"): seconds(step.value),
        Column("80 % interval", "right", drop=3): f"{seconds(step.low)} to {seconds(step.high)}",
        Column("samples/s", "right"): f"{rate.value:.4g}",
        Column("80 % interval of it", "right", drop=2): _ends(rate),
        Column("", drop=1): "extrapolated" if prediction.extrapolated else "",
    }


def _ends(rate: Interval) -> str:
    return f"{rate.low:.4g} to {rate.high:.4g}"


def seconds(value: float) -> str:
    """Three digits in s, ms or us: steps last from microseconds to minutes."""
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    unit, size = next(((unit, size) for unit, size in units if value >= 0.9995 * size), units[-1])
    scaled = value / size
    return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:.0f} {unit}"


def step_figure(fit: StepFit, *, name: str) -> Figure:
    """Step time against GPUs, a line for each of at most four batches; VMs are filled in turn.

    Points are measured steps; the shade is the 80 % interval of the smallest batch. Raises
    MissingExtraError without matplotlib.
    """
    known = fit.measured
    most = max([known.gpus[1], *(p.asked.gpus for p in fit.predictions)])
    gpus = np.unique(np.round(np.geomspace(1, most, 200)))  # there are no clusters of 1.5 GPUs
    with drawing(8.0, 5.4) as (figure, axes):
        batches = _some_batches(fit)
        for batch, style in zip(batches, STYLES, strict=False):
            _draw_batch(axes, fit, gpus, batch, style, shade=batch == batches[0])
        mark_guess(axes, REACH * known.gpus[1], most)
        if np.ptp(np.log(fit.steps.step_s)) > _DECADES:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: seconds(value))
        else:
            axes.set_ylim(bottom=0)
        axes.set_ylabel("seconds of a step")
        axes.set_xlabel(f"GPUs, up to {known.most_per_vm} on each VM (points: measured)")
        axes.set_title(_counts(fit), fontsize="small")
        figure.suptitle(f"Step time of {short(name)}")
        legend(figure, 3)
    return figure


def _draw_batch(
    axes: Axes, fit: StepFit, gpus: FloatArray, batch: float, style: Style, *, shade: bool
) -> None:
    nodes, at = np.ceil(gpus / fit.measured.most_per_vm), np.full_like(gpus, batch)
    line = fit.fitted.law.step_s(nodes, gpus, at)
    if shade:
        factor = np.exp(Z80 * np.asarray(fit.fitted.deviation(nodes, gpus, at)))
        look: dict[str, Any] = {"color": style.color, "alpha": 0.18, "linewidth": 0}
        axes.fill_between(
            gpus, line / factor, line * factor, label=f"80 % of batch {batch:g}", **look
        )
    axes.plot(gpus, line, **style.line | {"linewidth": min(style.width, 2.0)})
    mark = MEASURED | {"color": style.color, "marker": style.marker}
    own = fit.steps.batch == batch
    axes.plot(fit.steps.gpus[own], fit.steps.step_s[own], label=f"batch {batch:g}", **mark)


def _some_batches(fit: StepFit) -> list[float]:
    """At most four of the measured batches, the smallest and the largest among them."""
    batches = np.unique(fit.steps.batch)
    places = np.linspace(0, len(batches) - 1, min(len(batches), len(STYLES)))
    return [float(batches[round(place)]) for place in places]
