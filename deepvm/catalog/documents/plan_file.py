"""Plans from the documents that ``deepvm recommend -o json`` writes.

Unknown fields are ignored everywhere, because the documents grow. Known fields must be valid in
every configuration; errors name their place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from deepvm.catalog.documents import schema
from deepvm.catalog.documents.findings import (
    DocumentPath,
    ValidationIssue,
    json_place,
    refuse,
    repeats,
    schema_findings,
    shown,
)
from deepvm.catalog.documents.json_file import parse_json, read_existing
from deepvm.catalog.documents.schema import (
    MAX_NODES,
    MAX_USD,
    Day,
    Lenient,
    Name,
    Price,
    Text,
    Whole,
)
from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedDisk, PlannedVms, PlanSource
from deepvm.errors import CatalogFormatError, Problem, RequestError

STANDARD_INPUT = "standard input"
"""Name of a piped plan in errors."""

_WRITTEN = "as `deepvm recommend --pw 3 -o json > plan.json` writes it"
_EXPECTED = f"allowed: one JSON object, {_WRITTEN}"


def _as_exact(value: object) -> object:
    """A number of JSON with all its digits, unlike a float; text and booleans are no amounts."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError("not an amount")
    return value


# Types, regions and zones are put into commands, paths and scripts.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Region = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$")]
_IDENTIFIER = "1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit first"
_MOST_USD = MAX_USD * MAX_NODES
Total = Annotated[Decimal, Field(gt=0, le=_MOST_USD, decimal_places=6), BeforeValidator(_as_exact)]
Share = Annotated[Decimal, Field(ge=0, lt=1), BeforeValidator(_as_exact)]
Budget = Annotated[Decimal, Field(ge=0, le=10**12), BeforeValidator(_as_exact)]


def _count(what: str, least: int) -> Any:
    return schema.number(what, MAX_NODES, least=least, whole=True)


def _identifier(what: str, null: str = "") -> Any:
    return schema.described(f"{what}: {_IDENTIFIER}", null)


class _Zone(Lenient):
    zone: Identifier = _identifier("id of the zone, such as use1-az4")
    zone_name: Identifier | None = _identifier(
        "name of the zone, such as us-east-1a", "when unknown"
    )
    usd_per_hour: Price = schema.price("spot price of the zone")


class _Reserved(Lenient):
    pool: Identifier = _identifier("the name of the reserved pool")


class _Vms(Lenient):
    instance_type: Identifier = _identifier("the provider's name of the type")
    count: Whole = _count("VMs", 1)
    on_demand_usd_per_hour: Price | None = schema.price("on-demand price of one VM", "when unknown")
    cpu_architecture: Literal["x86_64", "arm64", ""] | None = Field(
        None, description="x86_64 or arm64, or null or empty when unknown"
    )
    on_demand_discount: Share = Field(
        Decimal(0),
        description="share of the list price that a savings plan saves: a number from 0 to below 1",
    )
    reserved: _Reserved | None = Field(
        None, description="the reserved pool of the VMs: an object with pool, or null"
    )


class _GpuVms(_Vms):
    spot_count: Whole = _count("spot VMs", 0)
    on_demand_count: Whole = _count("on-demand VMs", 0)
    spot_usd_per_hour: Price | None = schema.price("spot price of one VM", "when unknown")
    gpu_name: Name | None = schema.name_of("GPU model, such as T4", "when unknown")
    gpus_per_vm: Whole | None = schema.number(
        "GPUs in one VM", 1024, least=1, whole=True, null="when unknown"
    )
    zones: list[_Zone] | None = Field(
        None,
        max_length=1000,
        description="spot prices by zone: a list of at most 1000 objects, or null when unknown",
    )


class _MemoryVms(_Vms):
    zones: list[Identifier] | None = Field(
        None,
        max_length=1000,
        description=(
            f"ids of zones that offer the type: a list of {_IDENTIFIER}, or null when unknown"
        ),
    )


class _Configuration(Lenient):
    rank: Whole = _count("place in the recommendation", 1)
    architecture: Name = schema.name_of("name of the architecture, such as tiering")
    gpu: _GpuVms = Field(
        description=(
            "the VMs that train: an object with instance_type, count, spot_count and"
            " on_demand_count"
        )
    )
    memory: _MemoryVms | None = Field(
        None,
        description="the memory nodes: an object with instance_type and count, or null without any",
    )
    usd_per_hour: Total = Field(
        description=(
            "price of all VMs in US dollars an hour ($/h): a number above 0 with at most 6 decimals"
        )
    )
    cloud: Identifier | None = _identifier("the cloud, where several were compared", "when one was")
    region: Region | None = _identifier("the provider's region", "when unknown")
    zone: Identifier | None = _identifier("id of the zone to start in", "when unknown")
    warnings: list[Text] = Field(
        [], max_length=1000, description="warnings: a list of lines of text"
    )


class _Source(Lenient):
    catalog: Text = schema.text("name of the catalog", 1000)
    region: Region | None = _identifier("the provider's region", "when unknown")
    prices_as_of: Day | None = Field(
        None, description="the day the prices were true: a date YYYY-MM-DD, or null"
    )
    kind: Text = schema.text("kind of the catalog, such as embedded", 100)
    source: Text = schema.text("who published the prices", 10_000)
    price_basis: Text = schema.text("which spot price is meant", 1000)


class _Region(Lenient):
    cloud: Identifier | None = _identifier("the cloud, where several were compared", "when one was")
    region: Region = _identifier("the provider's region")
    source: _Source = Field(description="where its prices come from: an object")


class _Extras(Lenient):
    disk_gb: float | None = schema.number(
        "disk of each VM in GB", 1e9, least=0, null="for that of the image"
    )
    disk_type: Identifier | None = _identifier("the kind of disk", "for the usual one")
    nat: bool | None = Field(
        None, description="whether VMs stand behind a NAT gateway: true, false or null"
    )


class _Request(Lenient):
    pw_usd_per_hour: Budget | None = schema.number(
        "the most to pay in $/h", 1e12, least=0, null="when there is no budget"
    )
    extras: _Extras | None = Field(
        None, description="what the bill counts besides VMs: an object, or null"
    )


class _Relax(Lenient):
    advice: Text = schema.text("what to change", 100_000)


class _Document(Lenient):
    schema_version: Literal["deepvm.recommend/1"] = Field(
        description=f"deepvm.recommend/1, {_WRITTEN}"
    )
    request: _Request | None = Field(None, description="what was asked for: an object, or null")
    source: _Source = Field(description="where the prices come from: an object")
    regions: list[_Region] | None = Field(
        None,
        max_length=1000,
        description="the regions that were compared: a list of objects, or null",
    )
    configurations: list[_Configuration] = schema.rows("the ranked clusters", 10_000, required=True)
    reason: Text = schema.text("why nothing is feasible", 100_000)
    relax: _Relax | None = Field(
        None, description="what to change when nothing is feasible: an object or null"
    )


def load_plan(path: str | os.PathLike[str], rank: int = 1) -> Plan:
    """Read the configuration of this rank (1 is the best) from a file that ``deepvm recommend -o json`` wrote.

    Raises:
        CatalogFormatError: the file is missing, cannot be read, is not valid, or holds no
            configuration; lists every problem with its place.
        RequestError: no configuration has this rank.
    """
    return parse_plan(read_existing(Path(path), _EXPECTED), rank, os.fspath(path))


def decode_plan(data: bytes, rank: int = 1) -> Plan:
    """As :func:`load_plan`, from the bytes of standard input, in UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise CatalogFormatError(
            STANDARD_INPUT, [Problem(f"byte {error.start}", found, _EXPECTED)]
        ) from None
    if not text.strip():
        raise CatalogFormatError(STANDARD_INPUT, [Problem("file", "is empty", _EXPECTED)])
    return parse_plan(text, rank)


def parse_plan(text: str, rank: int = 1, name: str = STANDARD_INPUT) -> Plan:
    """As :func:`load_plan`, from JSON text that errors call ``name``."""
    raw = parse_json(text, Path(name), _EXPECTED)
    refuse(name, schema_findings(_Document, raw), json_place(raw))
    document = _Document.model_validate(raw)
    refuse(name, _joined_findings(document), json_place(raw))
    if not document.configurations:
        advice = document.relax.advice if document.relax else ""
        found = f"the plan has no configuration: {document.reason or 'nothing was feasible'}"
        expected = f"recommend again with what is feasible{f': {advice}' if advice else ''}"
        raise CatalogFormatError(name, [Problem("configurations", found, expected)])
    chosen = next((c for c in document.configurations if c.rank == rank), None)
    if chosen is None:
        ranks = ", ".join(str(c.rank) for c in document.configurations[:20])
        raise RequestError("rank", rank, f"the ranks of {name}: {ranks}")
    # Several regions were compared: each has prices of its own.
    own = (
        r.source
        for r in document.regions or ()
        if (r.cloud, r.region) == (chosen.cloud, chosen.region)
    )
    source = next(own, document.source)
    gpu, memory = chosen.gpu, chosen.memory
    zones = [ZonePrice(z.zone, z.usd_per_hour, z.zone_name or "") for z in gpu.zones or ()]
    nodes = None
    if memory is not None:
        nodes = PlannedVms(
            **_known(memory), on_demand_count=memory.count, offered_in=tuple(memory.zones or ())
        )
    extras = document.request.extras if document.request else None
    return Plan(
        rank=chosen.rank,
        architecture=chosen.architecture,
        training=PlannedVms(
            **_known(gpu), zones=tuple(sorted(zones, key=lambda z: (z.usd_per_hour, z.zone)))
        ),
        memory=nodes,
        usd_per_hour=chosen.usd_per_hour,
        region=chosen.region or source.region or "",
        zone=chosen.zone or "",
        budget=document.request.pw_usd_per_hour if document.request else None,
        source=PlanSource(
            **_known(source), basis="" if source.price_basis == "current" else source.price_basis
        ),
        warnings=tuple(chosen.warnings),
        disk=(
            None
            if extras is None or not extras.disk_gb
            else PlannedDisk(ceil(extras.disk_gb), extras.disk_type or "")
        ),
        nat=bool(extras and extras.nat),
    )


def _known(part: Lenient) -> dict[str, Any]:
    """The fields that the class in core has too; what is null is unknown, as are its defaults."""
    found = part.model_dump(
        exclude={"count", "zones", "region", "price_basis", "reserved"}, exclude_none=True
    )
    pool = getattr(part, "reserved", None)
    return found if pool is None else {**found, "reserved": pool.pool}


def _joined_findings(document: _Document) -> Iterator[ValidationIssue]:
    """What only several fields together can get wrong."""
    for i, _ in repeats(c.rank for c in document.configurations):
        found = f"rank {document.configurations[i].rank} appears twice"
        yield ValidationIssue(("configurations", i, "rank"), found, "allowed: every rank once")
    for i, configuration in enumerate(document.configurations):
        here: DocumentPath = ("configurations", i)
        gpu, memory = configuration.gpu, configuration.memory
        if gpu.count != gpu.spot_count + gpu.on_demand_count:
            expected = (
                f"allowed: spot_count + on_demand_count, {gpu.spot_count} + {gpu.on_demand_count}"
            )
            yield ValidationIssue((*here, "gpu", "count"), str(gpu.count), expected)
        parts = [
            (gpu.spot_count, gpu.spot_usd_per_hour),
            (gpu.on_demand_count, gpu.on_demand_usd_per_hour),
        ]
        if memory is not None:
            parts.append((memory.count, memory.on_demand_usd_per_hour))
        costs = [count * usd for count, usd in parts if count and usd is not None]
        total = sum(costs, Decimal(0))
        if (
            len(costs) == sum(1 for count, _ in parts if count)
            and total != configuration.usd_per_hour
        ):
            expected = (
                f"allowed: the sum of counts x prices, {total:f}; whoever changes a count must"
                " change this too"
            )
            yield ValidationIssue(
                (*here, "usd_per_hour"), f"{configuration.usd_per_hour:f}", expected
            )
        zones = [z.zone for z in gpu.zones or ()]
        offers = memory.zones if memory else None
        if zones and offers and not set(zones) & set(offers):
            expected = (
                f"allowed: one at least of the zones of the VMs that train, {', '.join(zones)}"
            )
            yield ValidationIssue((*here, "memory", "zones"), shown(offers), expected)
        for j, _ in repeats(zones):
            yield ValidationIssue(
                (*here, "gpu", "zones", j, "zone"),
                f"{shown(zones[j])} appears twice",
                "allowed: once",
            )
