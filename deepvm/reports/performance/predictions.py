"""A predicted speed for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepvm.core.interval import Interval
from deepvm.core.training.doubts import NO_FIT
from deepvm.core.training.speed import TrainingSpeed
from deepvm.core.training.workload import Scaling
from deepvm.core.units import counted, format_bytes, format_seconds
from deepvm.documents.build import With, document_of
from deepvm.documents.outputs.performance import Prediction
from deepvm.reports.tables import print_lines

_ROUGH = 0.3
"""Half width of an interval from where on a prediction is called rough."""


def document(speed: TrainingSpeed) -> dict[str, Any]:
    """The object of ``performance predict -o json`` for the first size of a speed."""
    return document_of(Prediction, With(speed, doubts=list(doubts(speed))))


def print_prediction(speed: TrainingSpeed) -> None:
    """A few lines on stdout."""
    print_lines([*_lines(speed), ""])
    print_lines([f"Doubt: {text}." for text in doubts(speed) if not text.startswith(NO_FIT)])


def _lines(speed: TrainingSpeed) -> Iterator[str]:
    workload, gpus = speed.workload, speed.gpu_count
    throughput, step = speed.interval(0), speed.step_interval(0)
    batch = workload.batch_on(gpus)
    yield (
        f"{workload.model.name}, {workload.method.value}, {speed.precision.value} on {gpus}"
        f" x {speed.machine.accelerator.name} in {counted(int(speed.vms[0]), 'VM')}"
    )
    yield ""
    if not speed.fits[0]:
        yield f"It does not fit: {speed.needs}. With enough memory:"
        yield ""
    yield f"throughput  {in_words(throughput)} {workload.units}"
    each = in_words(throughput.scaled(1 / gpus))
    yield f"a GPU       {each} {workload.units}, MFU {speed.mfu(0):.0%}"
    times = [format_seconds(seconds) for seconds in (step.value, step.low, step.high)]
    yield "a step      {} ({} to {})".format(*times)
    total = f", {workload.batch:g} in all" if workload.scaling is Scaling.STRONG else ""
    yield f"batch       {batch:.4g} a GPU{total}, {speed.micro_batch[0]:.3g} at once"
    if speed.checkpointing[0]:
        yield "memory      with activation checkpointing"
    yield f"checkpoint  {format_bytes(workload.saved_bytes)}"
    yield f"source      {speed.source.value}"
    if speed.measured:
        yield f"measured    {speed.measured}; --tables paper ignores it"


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


def doubts(speed: TrainingSpeed) -> Iterator[str]:
    """Warnings, the most important first."""
    yield from speed.doubts(0)
    interval = speed.interval(0)
    if interval.relative > _ROUGH:
        ends = f"{short(interval.low)} and {short(interval.high)}"
        yield f"rough: four runs in five lie between {ends}"
