"""Measured tables as users edit and import them; profiling documents as far as they are used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, field_validator

from deepvm.core.training.steptime import FEWEST, StepTimeFit
from deepvm.documents import fields as schema
from deepvm.documents.fields import (
    Lenient,
    Name,
    Strict,
    Text,
    TypeName,
)
from deepvm.documents.fields import StrictNumber as Number
from deepvm.documents.fields import StrictWhole as Whole
from deepvm.documents.files import read_object
from deepvm.documents.formats import json
from deepvm.documents.inputs.catalog import MAX_EFLOPS
from deepvm.documents.issues import repeats
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import KeyPath
from deepvm.io.times import parse_time

MAX_ENTRIES = 10_000


def _as_time(value: str) -> str:
    if not 2000 <= parse_time(value).year < 2200:
        raise ValueError("not a moment")
    return value


_NumberOrWord = StrictInt | StrictFloat | Annotated[Text, Field(max_length=100)] | None
_WORKLOAD = "what was trained: an object with at least a model"
# Beyond these it is a slip of the pen
MAX_STEP_S = 1e6
MAX_GPUS = 65_536
MAX_BATCH = 1e9


class _WorkloadDocument(Lenient):
    model: Name = schema.name_of("the model that was trained")
    resolution: _NumberOrWord = Field(
        None, description="side of an image in pixels: a number, or null"
    )
    sequence: _NumberOrWord = Field(None, description="tokens of a sample: a number, or null")
    batch: _NumberOrWord = Field(
        None, description="samples of a step of one GPU: a number, or null"
    )
    dtype: _NumberOrWord = Field(
        None, description="type of the numbers, such as float32: a word, or null"
    )
    optimizer: _NumberOrWord = Field(None, description="such as adam: a word, or null")
    method: Literal["ddp", "fsdp", "lora"] | None = Field(
        None, description="ddp, fsdp or lora, or null"
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"] | None = Field(
        None, description="auto, fp32, tf32, fp16, bf16, fp8 or fp4, or null"
    )
    software: Literal["eager", "transformers", "compiled", "tuned"] | None = Field(
        None, description="eager, transformers, compiled or tuned, or null"
    )
    trains: Name | None = schema.name_of(
        "what recommend --model calls it", "for the model's own name"
    )
    processes: Whole | None = schema.number(
        "processes on each VM, one for each GPU",
        MAX_GPUS,
        least=1,
        whole=True,
        null="when unknown",
    )
    activation_checkpointing: bool | None = Field(
        None, strict=True, description="true, false, or null"
    )


def _in_flops(eflops: float) -> float:
    if eflops < 1e6:  # of the slowest processor that trains
        raise ValueError("expected FLOP/s, 1e6 or more; is it in TFLOP/s?")
    return eflops


class _EflopsDocument(Lenient):
    schema_version: Literal["deepvm.eflops/1"] = Field(description="deepvm.eflops/1")
    eflops: Annotated[Number, AfterValidator(_in_flops)] = schema.number(
        "operations per second", MAX_EFLOPS
    )
    images_per_s: Number | None = schema.number(
        "images per second", MAX_EFLOPS, null="when unknown"
    )
    spread: Number | None = schema.number(
        "spread of the windows as a share of the median", 1000, least=0, null="when unknown"
    )
    workload: _WorkloadDocument = Field(description=_WORKLOAD)
    machine: dict[str, Any] | None = Field(None, description="the machine: an object, or null")


class _SizeDocument(Lenient):
    n: Whole = schema.number("VMs", schema.MAX_NODES, least=1, whole=True)


class _PointDocument(_SizeDocument):
    speedup: Number = schema.number(
        "speed-up over one VM, exactly 1 at n = 1", 1_000_000, least=0.000001
    )


class _RunDocument(_SizeDocument):
    batch: Number | None = schema.number(
        "samples of a step on each GPU", MAX_BATCH, null="for the workload's"
    )
    seconds_per_step: list[Number] = Field(
        [],
        description=(
            "seconds of a step in each window: a list of numbers above 0 and at most"
            f" {MAX_STEP_S:g}"
        ),
    )
    failed: str | None = Field(None, description="why the run failed: text, or null")

    @field_validator("seconds_per_step")
    @classmethod
    def _are_times(cls, value: list[float]) -> list[float]:
        if not all(0 < second <= MAX_STEP_S for second in value):
            raise ValueError("no times")
        return value


class _StepDocument(Strict):
    nodes: Whole = schema.number("VMs", schema.MAX_NODES, least=1, whole=True)
    gpus: Whole = schema.number("GPUs of all VMs together", MAX_GPUS, least=1, whole=True)
    batch: Number = schema.number("samples on each GPU", MAX_BATCH)
    step_s: Number = schema.number("seconds of a step", MAX_STEP_S)


def _as_fit(value: dict[str, Any]) -> dict[str, Any]:
    """A fitted law that predicts the smallest and the largest measured cluster."""
    try:
        fit = StepTimeFit.of_document(value)
        measured = fit.measured
        assert min(astuple(fit.law)) >= 0 and fit.law.overlap >= 1
        for end in (0, -1):
            step = fit.predict(measured.nodes[end], measured.gpus[end], measured.batch[end])
            assert 0 < step.low <= step.high < math.inf
    except (TypeError, KeyError, ValueError, AssertionError, IndexError, AttributeError):
        raise ValueError("no fitted law") from None
    return value


_Fit = Annotated[dict[str, Any], AfterValidator(_as_fit)]
_FITTED = "the law of these steps, as 'deepvm profile' fits it: an object"


class _ScalingDocument(Lenient):
    schema_version: Literal["deepvm.scaling/1"] = Field(description="deepvm.scaling/1")
    workload: _WorkloadDocument = Field(description=_WORKLOAD)
    local: bool = Field(
        False, strict=True, description="whether one machine stood for all VMs: true or false"
    )
    points: list[_PointDocument] = schema.rows(
        "measured speed-ups, every n once, one above 1",
        1000,
        least=1,
        required=True,
        of="objects with n and speedup",
    )
    runs: list[_RunDocument] | None = Field(
        None,
        max_length=100_000,
        description="training runs: a list of objects with n and seconds_per_step, or null",
    )
    step_time: _Fit | None = Field(None, description=f"{_FITTED}, or null")


class _StepTimeDocument(Lenient):
    schema_version: Literal["deepvm.steptime/1"] = Field(description="deepvm.steptime/1")
    workload: _WorkloadDocument = Field(description=_WORKLOAD)
    fit: _Fit = Field(description=_FITTED)
    steps: list[_StepDocument] = schema.rows(
        "measured steps",
        20_000,
        least=FEWEST,
        required=True,
        of="objects with nodes, gpus, batch and step_s",
    )


class _SaturationDocument(Lenient):
    schema_version: Literal["deepvm.saturation/1"] = Field(description="deepvm.saturation/1")
    transport: Name = schema.name_of("how the bytes travelled, such as tcp")
    sender_gbps: Number | None = schema.number(
        "bandwidth of a sender, Gbit/s", schema.MAX_NETWORK_GBPS, null="when unknown"
    )
    receiver_gbps: Number | None = schema.number(
        "bandwidth of the receiver, Gbit/s", schema.MAX_NETWORK_GBPS, null="when unknown"
    )
    times: list[_SizeDocument] = schema.rows(
        "times by the number of senders", 1000, least=1, required=True, of="objects with n"
    )
    n_sat_knee: Number | None = schema.number(
        "senders at saturation", schema.MAX_NODES, least=1, null="when none was seen"
    )


class _Entry(Strict):
    measured_at: Annotated[str, AfterValidator(_as_time)] = Field(
        description="when, in ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z"
    )


class _TypeEntry(_Entry):
    instance_type: TypeName = schema.name_of("the provider's name of the type")


_PRINTED = Field(description="what the profiling command printed: an object")


class _EflopsEntry(_TypeEntry):
    kind: Literal["eflops"]
    document: _EflopsDocument = _PRINTED


class _ScalingEntry(_TypeEntry):
    kind: Literal["scaling"]
    document: _ScalingDocument = _PRINTED


class _SaturationEntry(_Entry):
    kind: Literal["saturation"]
    sender_type: TypeName = schema.name_of("the provider's name of the type that sends")
    receiver_type: TypeName = schema.name_of("the provider's name of the type that receives")
    document: _SaturationDocument = _PRINTED


class _StepTimeEntry(_TypeEntry):
    kind: Literal["steptime"]
    document: _StepTimeDocument = _PRINTED


_AnyEntry = Annotated[
    _EflopsEntry | _ScalingEntry | _SaturationEntry | _StepTimeEntry, Field(discriminator="kind")
]


class _TablesDocument(Strict):
    """What was measured on the user's own machines."""

    schema_version: Literal["deepvm.tables/1"] = Field(
        description="deepvm.tables/1, what `deepvm tables export` writes"
    )
    deepvm: Text = schema.text("which deepvm wrote it", 100)
    entries: list[_AnyEntry] = schema.rows("measurements", MAX_ENTRIES, required=True)


def _rules(document: _TablesDocument) -> Rules:
    for row, entry in enumerate(document.entries):
        path = ("entries", row, "document")
        if isinstance(entry, _ScalingEntry):
            yield from _scaling_rules(entry.document, (*path, "points"))
        elif isinstance(entry, _StepTimeEntry):
            yield from few_gpus(entry.document.steps, (*path, "steps"))


def few_gpus(rows: Iterable[Any], path: KeyPath) -> Rules:
    """Refuse rows of ``nodes`` and ``gpus`` with fewer GPUs than VMs."""
    for number, row in enumerate(rows):
        if row.gpus < row.nodes:
            yield (*path, number, "gpus"), f"{row.gpus} (expected one or more on each VM)"


def _scaling_rules(document: _ScalingDocument, path: KeyPath) -> Rules:
    sizes = [point.n for point in document.points]
    for row, _ in repeats(sizes):
        yield (*path, row, "n"), f"{sizes[row]} occurs twice (expected the median of its repeats)"
    for row, point in enumerate(document.points):
        if point.n == 1 and point.speedup != 1:
            yield (*path, row, "speedup"), f"{point.speedup} (expected exactly 1 at n = 1)"
    runs = [run for run in document.runs or () if run.seconds_per_step and run.failed is None]
    batches = {run.batch or document.workload.batch for run in runs}
    if max(sizes) == 1 and len(batches) < 2:
        yield path, "no n above 1 (expected one, or runs of several batches)"


TABLES = FileFormat(
    _TablesDocument,
    "what `deepvm tables export` writes",
    partial(json.load, number=float),
    _rules,
)


def read_document(path: Path) -> dict[str, Any]:
    """The object in a JSON file of measurements, not yet validated. Raises CatalogFormatError."""
    expected = "what `deepvm tables export` or `deepvm profile ... -o json` writes"
    found: dict[str, Any] = read_object(path, expected, TABLES.load).value
    return found
