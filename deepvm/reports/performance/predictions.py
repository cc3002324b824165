"""A predicted speed for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepvm.core.interval import Interval
from deepvm.core.training.doubts import NO_FIT
from deepvm.core.training.speed import TrainingSpeed
from deepvm.core.training.workload import Scaling
from deepvm.core.units import counted, format_bytes, format_seconds
from deepvm.reports.tables import print_lines

SCHEMA_VERSION = "deepvm.performance/1"
_WIDE = 0.3
"""Half width of an interval from where on a prediction is called rough."""


def document(found: TrainingSpeed) -> dict[str, Any]:
    """The pinned object of ``performance predict -o json`` for the first size of a speed."""
    workload, throughput = found.workload, found.interval(0)
    gpus = _gpus(found)
    return {
        "schema_version": SCHEMA_VERSION,
        "unit": workload.units,
        "throughput": throughput.as_document(),
        "per_gpu": throughput.scaled(1 / gpus).as_document(),
        "step_s": found.step_interval(0).as_document(),
        "mfu": found.mfu(0),
        "source": found.source.value,
        "measured": found.measured or None,
        "doubts": list(doubts(found)),
        "fits": bool(found.fits[0]),
        "model": workload.model.name,
        "method": workload.method.value,
        "precision": found.precision.value,
        "sequence": workload.model.sequence,
        "gpu_name": found.machine.accelerator.name,
        "gpu_count": gpus,
        "vm_count": int(found.vms[0]),
        "batch_per_gpu": workload.batch_on(gpus),
        "micro_batch": float(found.micro_batch[0]),
        "activation_checkpointing": bool(found.checkpointing[0]),
        "checkpoint_bytes": workload.saved_bytes,
    }


def _gpus(found: TrainingSpeed) -> int:
    return round(float(found.vms[0]) * found.machine.gpus)


def print_prediction(found: TrainingSpeed) -> None:
    """A few lines on stdout."""
    workload, gpus, nodes = found.workload, _gpus(found), int(found.vms[0])
    name = found.machine.accelerator.name
    throughput, step = found.interval(0), found.step_interval(0)
    batch = workload.batch_on(gpus)
    steps = f"{batch:.4g} a GPU" + (
        f", {workload.batch:g} in all" if workload.scaling is Scaling.STRONG else ""
    )
    if found.micro_batch[0] < batch:
        steps += f", {found.micro_batch[0]:.3g} at once"
    print_lines(
        [
            (
                f"{workload.model.name}, {workload.method.value}, {found.precision.value} on {gpus}"
                f" x {name} in {counted(nodes, 'VM')}"
            ),
            "",
            *(
                []
                if found.fits[0]
                else [f"It does not fit: {found.needs}. With enough memory:", ""]
            ),
            f"throughput  {in_words(throughput)} {workload.units}",
            (
                f"a GPU       {in_words(throughput.scaled(1 / gpus))} {workload.units}, MFU"
                f" {found.mfu(0):.0%}"
            ),
            f"a step      {format_seconds(step.value)} ({format_seconds(step.low)} to"
            f" {format_seconds(step.high)}), batch {steps}"
            + (", activation checkpointing" if found.checkpointing[0] else ""),
            f"checkpoint  {format_bytes(workload.saved_bytes)}",
            f"source      {found.source.value}",
            *(
                [f"measured    {found.measured}; --tables paper ignores it"]
                if found.measured
                else []
            ),
            "",
            *(f"Doubt: {doubt}." for doubt in doubts(found) if not doubt.startswith(NO_FIT)),
        ]
    )


def in_words(found: Interval) -> str:
    """``79.1k (71.2k to 86.4k)``: three digits, 80 % interval."""
    return f"{short(found.value)} ({short(found.low)} to {short(found.high)})"


def short(value: float) -> str:
    """Three digits with k, M or G; thousands up to 9 990 in full."""
    for letter, size, least in (("G", 1e9, 999.5e6), ("M", 1e6, 999.5e3), ("k", 1e3, 9995)):
        if value >= least:
            return f"{float(f'{value / size:.3g}'):g}{letter}"
    return f"{float(f'{value:.3g}'):g}"


def in_short(interval: Interval) -> str:
    """Such as ``330 (184-593)``."""
    return f"{short(interval.value)} ({short(interval.low)}-{short(interval.high)})"


def doubts(found: TrainingSpeed) -> Iterator[str]:
    """What should make a reader careful, the most important first."""
    yield from found.doubts(0)
    interval = found.interval(0)
    if interval.relative > _WIDE:
        yield (
            f"rough: four runs in five lie between {short(interval.low)} and {short(interval.high)}"
        )
