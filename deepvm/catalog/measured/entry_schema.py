"""Schema and validation of measured tables.

Profiling documents are validated as far as they are used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, field_validator

from deepvm.catalog.documents import findings, schema
from deepvm.catalog.documents.findings import DocumentPath, ValidationIssue, repeats, shown
from deepvm.catalog.documents.json_file import parse_json, read_existing
from deepvm.catalog.documents.schema import Lenient, Name, Number, Strict, Text, TypeName, Whole
from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS, TYPES, Entry, build_entry
from deepvm.core.training.steptime import FEWEST, StepTimeFit
from deepvm.io.times import parse_time

MAX_ENTRIES = 10_000
MAX_KEY = 100
EXPECTED = "allowed: what `deepvm tables export` or `deepvm profile ... -o json` writes"
TABLES_EXPECTED = "allowed: what `deepvm tables export` writes"
_DEEPEST = 100
_HALF = re.compile("[\ud800-\udfff]")


def _as_time(value: object) -> str:
    if not isinstance(value, str) or len(value) > 40 or not 2000 <= parse_time(value).year < 2200:
        raise ValueError("not a moment")
    return value


_NumberOrWord = StrictInt | StrictFloat | Annotated[Text, Field(max_length=100)] | None
_WORKLOAD = "what was trained: an object with at least a model"
_LONGEST_S, _MOST_GPUS, _MOST_BATCH = 1e6, 65_536, 1e9
_LEAST_EFLOPS = 1e6
"""Of the slowest processor that trains: less is another unit, which would rank last."""


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
        _MOST_GPUS,
        least=1,
        whole=True,
        null="when unknown",
    )
    activation_checkpointing: bool | None = Field(
        None, strict=True, description="true, false, or null"
    )


class _EflopsDocument(Lenient):
    schema_version: Literal["deepvm.eflops/1"] = Field(description=DOCUMENT_VERSIONS["eflops"])
    eflops: Number = schema.number("operations per second", schema.MAX_EFLOPS)
    images_per_s: Number | None = schema.number(
        "images per second", schema.MAX_EFLOPS, null="when unknown"
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
        "samples of a step on each GPU", _MOST_BATCH, null="for the workload's"
    )
    seconds_per_step: list[Number] = Field(
        [],
        description=(
            "seconds of a step in each window: a list of numbers above 0 and at most"
            f" {_LONGEST_S:g}"
        ),
    )
    failed: str | None = Field(None, description="why the run failed: text, or null")

    @field_validator("seconds_per_step")
    @classmethod
    def _are_times(cls, value: list[float]) -> list[float]:
        if not all(0 < second <= _LONGEST_S for second in value):
            raise ValueError("no times")
        return value


class _StepDocument(Strict):
    nodes: Whole = schema.number("VMs", schema.MAX_NODES, least=1, whole=True)
    gpus: Whole = schema.number("GPUs of all VMs together", _MOST_GPUS, least=1, whole=True)
    batch: Number = schema.number("samples on each GPU", _MOST_BATCH)
    step_s: Number = schema.number("seconds of a step", _LONGEST_S)


def _as_fit(value: dict[str, Any]) -> dict[str, Any]:
    """A fitted law that predicts the smallest and the largest measured cluster."""
    try:
        fit = StepTimeFit.of_document(value)
        measured = fit.measured
        assert measured is not None and min(astuple(fit.law)) >= 0 and fit.law.overlap >= 1
        assert (fit.most_nodes, fit.most_gpus) == (measured.nodes[-1], measured.gpus[1])
        for end in (0, -1):
            step = fit.predict(measured.nodes[end], measured.gpus[end], measured.batch[end])
            assert 0 < step.low <= step.high < math.inf
    except (TypeError, KeyError, ValueError, AssertionError, IndexError, AttributeError):
        raise ValueError("no fitted law") from None
    return value


_Fit = Annotated[dict[str, Any], AfterValidator(_as_fit)]
_FITTED = "the law of these steps, as 'deepvm profile' fits it: an object"


class _ScalingDocument(Lenient):
    schema_version: Literal["deepvm.scaling/1"] = Field(description=DOCUMENT_VERSIONS["scaling"])
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
    schema_version: Literal["deepvm.steptime/1"] = Field(description=DOCUMENT_VERSIONS["steptime"])
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
    schema_version: Literal["deepvm.saturation/1"] = Field(
        description=DOCUMENT_VERSIONS["saturation"]
    )
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


def tables_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of measured tables; what was measured may say more."""
    return schema.schema_of(_TablesDocument, name)


def read_document(path: Path, expected: str = EXPECTED) -> Any:
    """Read a JSON file of measurements as :func:`parse_document` does.

    A missing file is refused likewise.
    """
    return parse_document(read_existing(path, expected), path, expected)


def parse_document(text: str, path: Path, expected: str = EXPECTED) -> Any:
    """Read JSON of measurements; numbers are plain int and float.

    Raises:
        CatalogFormatError: not JSON, a field that appears twice, or what could not be written
            again.
    """
    document = parse_json(text, path, expected, float)
    findings.refuse(
        path,
        [*findings.repeated_keys(document), *_unwritable(document)],
        findings.json_place(document),
    )
    return document


def _unwritable(document: object) -> Iterator[ValidationIssue]:
    """What could be read, but not be written again."""
    for path, value in findings.containers(document):
        if len(path) > _DEEPEST:
            yield ValidationIssue(
                path[:3], "lists or objects are nested too deeply", f"allowed: {_DEEPEST} levels"
            )
            return
        for step, child in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(child, float) and not math.isfinite(child):
                yield ValidationIssue((*path, step), shown(child), "allowed: a finite number")
            if any(isinstance(text, str) and _HALF.search(text) for text in (step, child)):
                yield ValidationIssue(
                    path,
                    "a text in it holds half of a character",
                    "allowed: no lone \\ud800 to \\udfff",
                )


def tables_findings(document: object) -> list[ValidationIssue]:
    """Everything that is wrong with measured tables; empty when they are valid."""
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    for kind, known in DOCUMENT_VERSIONS.items():
        if version == known:  # a single measurement, which does not say of what type it is
            types = " ".join(f"--{name.replace('_', '-')} TYPE" for name in TYPES[kind])
            expected = (
                f"{TABLES_EXPECTED} (deepvm.tables/1); this is one measurement: 'deepvm tables"
                f" import FILE {types}' adds it to yours, which recommend uses without --tables"
            )
            return [ValidationIssue(("schema_version",), shown(version), expected)]
    found = findings.schema_findings(_TablesDocument, document)
    if any(len(f.path) < 2 for f in found):
        return found
    refused = {f.path[1] for f in found}
    raws = document["entries"]  # type: ignore[index]  # the schema had nothing against the top
    entries = {i: build_entry(raw) for i, raw in enumerate(raws) if i not in refused}
    for i, entry in entries.items():
        found += _joined_findings(entry, ("entries", i, "document"))
    names = [entry.name for entry in entries.values()]
    for at, first in repeats(names):
        expected = f"allowed: every measurement once; the first is entry {list(entries)[first] + 1}"
        found.append(
            ValidationIssue(
                ("entries", list(entries)[at]), f"a second {shown(names[at])}", expected
            )
        )
    return found


def _joined_findings(entry: Entry, path: DocumentPath) -> Iterator[ValidationIssue]:
    if entry.kind == "saturation":
        return
    if len(entry.workload) > MAX_KEY:
        expected = f"allowed: at most {MAX_KEY} characters together, as a workload of a catalog has"
        yield ValidationIssue((*path, "workload"), shown(entry.workload), expected)
    if entry.kind == "eflops" and entry.eflops < _LEAST_EFLOPS:
        expected = f"allowed: FLOP/s, {_LEAST_EFLOPS:g} or more; is it in TFLOP/s?"
        yield ValidationIssue((*path, "eflops"), shown(entry.eflops), expected)
    if entry.kind == "scaling":
        points = entry.document["points"]
        sizes = [int(p["n"]) for p in points]
        for i, _ in repeats(sizes):
            found = f"{sizes[i]} appears twice"
            yield ValidationIssue(
                (*path, "points", i, "n"), found, "allowed: every n once, the median of its repeats"
            )
        for i, point in enumerate(points):
            if sizes[i] == 1 and float(point["speedup"]) != 1:
                expected = "allowed: exactly 1 at n = 1: it is the unit"
                yield ValidationIssue(
                    (*path, "points", i, "speedup"), shown(point["speedup"]), expected
                )
        if max(sizes) == 1 and len({batch for *_, batch, _ in entry.steps}) < 2:
            wanted = (
                "allowed: at least one n above 1, or runs of several batches; measure more VMs or"
                " --batch 32,64"
            )
            yield ValidationIssue((*path, "points"), "no n above 1", wanted)
    for i, step in enumerate(entry.document["steps"] if entry.kind == "steptime" else ()):
        if step["gpus"] < step["nodes"]:
            expected = f"allowed: one on each VM or more, {step['nodes']} to {_MOST_GPUS}"
            yield ValidationIssue((*path, "steps", i, "gpus"), shown(step["gpus"]), expected)
