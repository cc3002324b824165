"""Schema and validation of measured tables.

Profiling documents are validated as far as they are used; the rest is kept as it is. Their numbers become plain int and
float, because they are written again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from deepvm import __version__
from deepvm.catalog.documents.findings import (
    MANY,
    Finding,
    Path,
    json_place,
    refuse,
    repeated_keys,
    schema_findings,
    shown,
)
from deepvm.catalog.documents.json_file import parse_json
from deepvm.catalog.documents.schema import (
    MAX_EFLOPS,
    MAX_NETWORK_GBPS,
    MAX_NODES,
    NetworkGbps,
    Number,
    Text,
    TypeName,
    Whole,
)
from deepvm.catalog.measured.entries import (
    DOCUMENT_VERSIONS,
    TABLES_VERSION,
    build_entry,
    workload_key,
)
from deepvm.errors import CatalogFormatError, Problem
from deepvm.io.times import parse_time

MAX_ENTRIES = 10_000
MAX_KEY = 100
EXPECTED = "allowed: what `deepvm tables export` or `deepvm profile ... -o json` writes"
TABLES_EXPECTED = "allowed: what `deepvm tables export` writes"
_DEEPEST = 100
_SINCE, _UNTIL = 2000, 2200


def _as_time(value: object) -> str:
    if not isinstance(value, str) or len(value) > 40 or not _SINCE <= parse_time(value).year < _UNTIL:
        raise ValueError("not a moment")
    return value


def _short(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and len(value) > 100):
        raise ValueError("not a word")
    return value


class _Measured(BaseModel):
    # A profiling command may come to say more.
    model_config = ConfigDict(extra="ignore", defer_build=True)


_Word = Annotated[Text, Field(min_length=1, max_length=100)]
_NumberOrWord = Annotated[int | float | Decimal | Text | None, BeforeValidator(_short)]
_Positive = Annotated[Number, Field(gt=0, le=MAX_EFLOPS)]
_Count = Annotated[Whole, Field(ge=1, le=MAX_NODES)]


class WorkloadDocument(_Measured):
    """What was trained; figures compare only where all of it is the same."""

    model: _Word = Field(description="the model that was trained: one line of 1 to 100 characters")
    resolution: _NumberOrWord = Field(None, description="side of an image in pixels: a number, or null")
    batch: _NumberOrWord = Field(None, description="samples of a step of one GPU: a number, or null")
    dtype: _NumberOrWord = Field(None, description="type of the numbers, such as float32: a word, or null")
    optimizer: _NumberOrWord = Field(None, description="such as adam: a word, or null")


class EflopsDocument(_Measured):
    """``deepvm.eflops/1``, as far as it is used."""

    eflops: _Positive = Field(description="operations per second: a number above 0 and at most 1e+30")
    images_per_s: _Positive | None = Field(None, description="images per second: a number above 0, or null")
    spread: Annotated[Number, Field(ge=0, le=1000)] | None = Field(
        None, description="spread of the windows as a share of the median: a number from 0 to 1000, or null"
    )
    workload: WorkloadDocument = Field(description="what was trained: an object with at least a model")
    machine: dict[str, Any] | None = Field(None, description="the machine: an object, or null")


class PointDocument(_Measured):
    """A speed-up that was measured."""

    n: _Count = Field(description=f"VMs: a whole number from 1 to {MAX_NODES}")
    speedup: Annotated[Number, Field(ge=0.000001, le=1_000_000)] = Field(
        description="speed-up over one VM: a number from 0.000001 to 1000000, exactly 1 at n = 1"
    )


class ScalingDocument(_Measured):
    """``deepvm.scaling/1``, as far as it is used."""

    workload: WorkloadDocument = Field(description="what was trained: an object with at least a model")
    local: bool = Field(False, strict=True, description="whether one machine stood for all VMs: true or false")
    points: Annotated[list[PointDocument], Field(min_length=1, max_length=1000)] = Field(
        description="measured speed-ups: a list of 1 to 1000 objects with n and speedup, every n once, one above 1"
    )


class TimesDocument(_Measured):
    """How long n senders took."""

    n: _Count = Field(description=f"senders: a whole number from 1 to {MAX_NODES}")


class SaturationDocument(_Measured):
    """``deepvm.saturation/1``, as far as it is used."""

    transport: _Word = Field(description="how the bytes travelled, such as tcp: one line of 1 to 100 characters")
    sender_gbps: NetworkGbps | None = Field(
        None, description=f"bandwidth of a sender in Gbit/s: a number above 0 and at most {MAX_NETWORK_GBPS}, or null"
    )
    receiver_gbps: NetworkGbps | None = Field(
        None,
        description=f"bandwidth of the receiver in Gbit/s: a number above 0 and at most {MAX_NETWORK_GBPS}, or null",
    )
    times: Annotated[list[TimesDocument], Field(min_length=1, max_length=1000)] = Field(
        description="times by the number of senders: a list of 1 to 1000 objects with n"
    )
    n_sat_knee: Annotated[Number, Field(ge=1, le=MAX_NODES)] | None = Field(
        None, description=f"senders at saturation: a number from 1 to {MAX_NODES}, or null when none was seen"
    )


DOCUMENTS: dict[str, type[BaseModel]] = {
    "eflops": EflopsDocument,
    "scaling": ScalingDocument,
    "saturation": SaturationDocument,
}

_TYPE = "the provider's name of the type: one line of 1 to 100 characters"
_Name = Annotated[TypeName, Field(min_length=1, max_length=100)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)
    kind: Literal["eflops", "scaling", "saturation"] = Field(description="eflops, scaling or saturation")
    measured_at: Annotated[str, AfterValidator(_as_time)] = Field(
        description="when, in ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z"
    )
    document: dict[str, Any] = Field(description="what the profiling command printed: an object")


class TypeEntry(_Entry):
    """A measurement of one type."""

    instance_type: _Name = Field(description=_TYPE)


class PairEntry(_Entry):
    """A measurement between two types."""

    sender_type: _Name = Field(description=_TYPE)
    receiver_type: _Name = Field(description=_TYPE)


class TablesDocument(BaseModel):
    """Measured tables."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    schema_version: Literal["deepvm.tables/1"] = Field(description=f"version of the format: {TABLES_VERSION}")
    deepvm: Text = Field("", max_length=100, description="which deepvm wrote it: one line of at most 100 characters")
    entries: Annotated[list[dict[str, Any]], Field(max_length=MAX_ENTRIES)] = Field(
        description=f"measurements: a list of at most {MAX_ENTRIES} objects"
    )


def parse_document(text: str, path: FilePath, expected: str = EXPECTED) -> Any:
    """Read JSON of measurements; numbers are plain int and float.

    Raises:
        CatalogFormatError: not JSON, a number that is not finite, or a field that stands twice.
    """
    document = parse_json(text, path, expected)
    place = json_place(document)
    refuse(path, repeated_keys(document), place)
    try:
        plain = _plain(document)
    except RecursionError:
        raise CatalogFormatError(path, [Problem("file", "lists or objects are nested too deeply", expected)]) from None
    refuse(path, islice(_not_finite((), plain), MANY), place)
    try:
        json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise CatalogFormatError(
            path, [Problem("file", "a text holds half of a character (\\ud800)", expected)]
        ) from None
    return plain


def version_finding(document: object, known: str) -> Finding | None:
    """What is wrong with ``schema_version``; a newer one says which deepvm is needed."""
    if not isinstance(document, Mapping):
        return Finding((), shown(document), EXPECTED)
    version = document.get("schema_version")
    if version == known:
        return None
    where: Path = ("schema_version",)
    family, _, number = known.partition("/")
    newer = (
        re.fullmatch(rf"{re.escape(family)}/([0-9]{{1,9}})", version, re.ASCII) if isinstance(version, str) else None
    )
    if newer is None or int(newer[1]) <= int(number):
        found = "missing" if "schema_version" not in document else shown(version)
        return Finding(where, found, f"allowed: {known}")
    by = document.get("deepvm")
    which = (
        f"deepvm {by} or newer"
        if isinstance(by, str) and re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", by)
        else "a newer deepvm"
    )
    upgrade = f"needs {which}, this is {__version__}: pip install --upgrade deepvm"
    return Finding(where, f"{shown(version)} is newer than this deepvm reads ({known})", upgrade)


def tables_findings(document: object) -> list[Finding]:
    """Everything that is wrong with measured tables; empty when they are valid."""
    version = version_finding(document, TABLES_VERSION)
    if version is not None:
        return [replace(version, expected=_way_into_tables(document) or version.expected)]
    found = schema_findings(TablesDocument, document)
    if found:
        return found
    first: dict[str, int] = {}
    for i, raw in enumerate(document["entries"]):  # type: ignore[index]  # valid, so it is an object
        wrong = entry_findings(raw, ("entries", i))
        found += wrong
        if not wrong:
            name = build_entry(raw).name
            if first.setdefault(name, i) != i:
                expected = f"allowed: every measurement once; the first is entry {first[name] + 1}"
                found.append(Finding(("entries", i), f"a second {shown(name)}", expected))
        if len(found) > MANY:
            break
    return found


def _way_into_tables(document: object) -> str:
    """What to do with a single measurement, which does not say of what type it is; empty for anything else."""
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    kind = next((k for k, v in DOCUMENT_VERSIONS.items() if v == version), "")
    if not kind:
        return ""
    types = "--sender-type TYPE --receiver-type TYPE" if kind == "saturation" else "--instance-type TYPE"
    return (
        f"{TABLES_EXPECTED} ({TABLES_VERSION}); this is one measurement: 'deepvm tables import FILE {types}' adds it "
        "to yours, which recommend uses without --tables"
    )


def entry_findings(raw: Mapping[str, Any], path: Path = ()) -> list[Finding]:
    """Everything that is wrong with one entry and the document in it."""
    kind = raw.get("kind")
    found = schema_findings(PairEntry if kind == "saturation" else TypeEntry, raw)
    return [f.below(path) for f in found] or document_findings(raw["kind"], raw["document"], (*path, "document"))


def document_findings(kind: str, document: object, path: Path = ()) -> list[Finding]:
    """Everything that is wrong with the document of a profiling command."""
    version = version_finding(document, DOCUMENT_VERSIONS[kind])
    if version is not None:
        return [version.below(path)]
    found = [f.below(path) for f in schema_findings(DOCUMENTS[kind], document)]
    if not found and kind != "saturation":
        key = workload_key(document["workload"])  # type: ignore[index]  # valid, so it is an object
        if len(key) > MAX_KEY:
            expected = f"allowed: at most {MAX_KEY} characters together, as a workload of a catalog has"
            found.append(Finding((*path, "workload"), shown(key), expected))
    if not found and kind == "scaling":
        found += _curve_findings(document["points"], (*path, "points"))  # type: ignore[index]  # valid
    return found


def _curve_findings(points: list[Mapping[str, Any]], path: Path) -> Iterator[Finding]:
    sizes = [int(p["n"]) for p in points]
    for i, (n, point) in enumerate(zip(sizes, points, strict=True)):
        if n in sizes[:i]:
            yield Finding((*path, i, "n"), f"{n} stands twice", "allowed: every n once, the median of its repeats")
        elif n == 1 and float(point["speedup"]) != 1:
            yield Finding((*path, i, "speedup"), shown(point["speedup"]), "allowed: exactly 1 at n = 1: it is the unit")
    if max(sizes) == 1:
        yield Finding(path, "no n above 1", "allowed: at least one n above 1; measure more VMs")


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        return {key: _plain(v, depth + 1) for key, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, depth + 1) for v in value]
    return float(value) if isinstance(value, Decimal) else value


def _not_finite(path: Path, value: Any) -> Iterator[Finding]:
    if isinstance(value, (dict, list)):
        for step, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _not_finite((*path, step), child)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Finding(path, shown(value), "allowed: a finite number")
