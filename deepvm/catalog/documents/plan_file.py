"""Plans from the documents that ``deepvm recommend -o json`` writes.

Unknown fields are ignored everywhere, because the documents grow. Known fields must be valid in every configuration;
errors name their place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from deepvm.catalog.documents.findings import (
    Finding,
    Path,
    json_place,
    refuse,
    repeated_keys,
    schema_findings,
    shown,
)
from deepvm.catalog.documents.json_file import parse_json
from deepvm.catalog.documents.schema import MAX_USD_PER_HOUR, Day, Price, Text, Whole
from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedVms, PlanSource
from deepvm.errors import CatalogFormatError, Problem, RequestError
from deepvm.io.safe_read import read_text

PLAN_VERSION = "deepvm.recommend/1"
STANDARD_INPUT = "standard input"
"""Name of a piped plan in errors."""

_EXPECTED = "allowed: one JSON object, as `deepvm recommend --pw 3 -o json > plan.json` writes it"
_MOST_VMS = 1_000_000
_PRICE = f"a number above 0 and at most {MAX_USD_PER_HOUR} with at most 6 decimals"


def _as_total(value: object) -> Decimal:
    """An amount for all VMs: exact, up to what the most VMs cost at the highest price."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError("not a number")
    total = Decimal(value)
    if not 0 < total <= MAX_USD_PER_HOUR * _MOST_VMS or total != round(total, 6):
        raise ValueError("out of range")
    return total


def _as_budget(value: object) -> Decimal:
    """What somebody would pay: any number of decimals."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or not 0 <= Decimal(value) <= 10**12:
        raise ValueError("not an amount")
    return Decimal(value)


Name = Annotated[Text, Field(min_length=1, max_length=100)]
# Types, regions and zones are put into commands, paths and scripts.
Place = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
_PLACE = "1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit first"
Total = Annotated[Decimal, BeforeValidator(_as_total)]
Count = Annotated[Whole, Field(ge=0, le=_MOST_VMS)]
Positive = Annotated[Whole, Field(ge=1, le=_MOST_VMS)]
CpuArchitecture = Literal["x86_64", "arm64", ""]


def _price(what: str) -> Any:
    return Field(None, description=f"{what} in US dollars an hour ($/h): {_PRICE}, or null when unknown")


class _Object(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


class ZoneDocument(_Object):
    """The spot price of one zone."""

    zone: Place = Field(description=f"id of the zone, such as use1-az4: {_PLACE}")
    zone_name: Place | None = Field(
        None, description=f"name of the zone, such as us-east-1a: {_PLACE}, or null when unknown"
    )
    usd_per_hour: Price = Field(description=f"spot price of the zone in US dollars an hour ($/h): {_PRICE}")


class _Vms(_Object):
    instance_type: Place = Field(description=f"the provider's name of the type: one line of {_PLACE}")
    count: Positive = Field(description=f"VMs: a whole number from 1 to {_MOST_VMS}")
    on_demand_usd_per_hour: Price | None = _price("on-demand price of one VM")
    cpu_architecture: CpuArchitecture | None = Field(None, description="x86_64 or arm64, or null or empty when unknown")


class GpuVmsDocument(_Vms):
    """The VMs that train."""

    spot_count: Count = Field(description=f"spot VMs: a whole number from 0 to {_MOST_VMS}")
    on_demand_count: Count = Field(description=f"on-demand VMs: a whole number from 0 to {_MOST_VMS}")
    spot_usd_per_hour: Price | None = _price("spot price of one VM")
    gpu_name: Name | None = Field(
        None, description="GPU model, such as T4: one line of 1 to 100 characters, or null when unknown"
    )
    gpus_per_vm: Annotated[Whole, Field(ge=1, le=1024)] | None = Field(
        None, description="GPUs in one VM: a whole number from 1 to 1024, or null when unknown"
    )
    zones: list[ZoneDocument] | None = Field(
        None, max_length=1000, description="spot prices by zone: a list of at most 1000 objects, or null when unknown"
    )


class MemoryVmsDocument(_Vms):
    """The on-demand VMs that hold checkpoints."""

    zones: list[Place] | None = Field(
        None, max_length=1000, description=f"ids of zones that offer the type: a list of {_PLACE}, or null when unknown"
    )


class ConfigurationDocument(_Object):
    """One ranked cluster."""

    rank: Positive = Field(description=f"place in the recommendation: a whole number from 1 to {_MOST_VMS}")
    architecture: Name = Field(description="name of the architecture, such as tiering: one line of text")
    gpu: GpuVmsDocument = Field(
        description="the VMs that train: an object with instance_type, count, spot_count and on_demand_count"
    )
    memory: MemoryVmsDocument | None = Field(
        None, description="the memory nodes: an object with instance_type and count, or null without any"
    )
    usd_per_hour: Total = Field(
        description="price of all VMs in US dollars an hour ($/h): a number above 0 with at most 6 decimals"
    )
    region: Place | Literal[""] | None = Field(None, description=f"the provider's region: {_PLACE}, or null")
    zone: Place | None = Field(None, description=f"id of the zone to start in: {_PLACE}, or null when unknown")
    warnings: list[Text] = Field([], max_length=1000, description="warnings: a list of lines of text")


class SourceDocument(_Object):
    """Where the prices come from."""

    catalog: Text = Field("", max_length=1000, description="name of the catalog: one line of text")
    region: Place | Literal[""] | None = Field(None, description=f"the provider's region: {_PLACE}, or null")
    prices_as_of: Day | None = Field(None, description="the day the prices were true: a date YYYY-MM-DD, or null")
    kind: Text = Field("", max_length=100, description="kind of the catalog, such as embedded: one line of text")
    source: Text = Field("", max_length=10_000, description="who published the prices: one line of text")
    price_basis: Text = Field("", max_length=1000, description="which spot price is meant: one line of text")


class RegionDocument(_Object):
    """One of several regions that were compared."""

    region: Place | Literal[""] = Field(description=f"the provider's region: {_PLACE}")
    source: SourceDocument = Field(description="where its prices come from: an object")


class RequestDocument(_Object):
    """What was asked for."""

    pw_usd_per_hour: Annotated[Decimal, BeforeValidator(_as_budget)] | None = Field(
        None, description="the most to pay in US dollars an hour ($/h): a number from 0 to 1e12, or null"
    )


class RelaxDocument(_Object):
    """What to change when nothing is feasible."""

    advice: Text = Field("", description="what to change: one line of text")


class PlanDocument(_Object):
    """The document of a recommendation, as far as a plan needs it."""

    schema_version: Literal["deepvm.recommend/1"] = Field(description=f"version of the format: {PLAN_VERSION}")
    request: RequestDocument | None = Field(None, description="what was asked for: an object, or null")
    source: SourceDocument = Field(description="where the prices come from: an object")
    regions: list[RegionDocument] | None = Field(
        None, max_length=1000, description="the regions that were compared: a list of objects, or null"
    )
    configurations: list[ConfigurationDocument] = Field(
        max_length=10_000, description="the ranked clusters: a list of objects"
    )
    reason: Text = Field("", description="why nothing is feasible: one line of text")
    relax: RelaxDocument | None = Field(None, description="what to change when nothing is feasible: an object or null")


def load_plan(path: str | os.PathLike[str], rank: int = 1) -> Plan:
    """Read one configuration of a file that ``deepvm recommend -o json`` wrote.

    Args:
        path: the file.
        rank: which configuration, 1 is the best.

    Raises:
        CatalogFormatError: the file is missing, cannot be read, is not valid, or holds no configuration; lists every
            problem with its place.
        RequestError: no configuration has this rank.
    """
    file = FilePath(path)
    try:
        text = read_text(file, _EXPECTED)
    except FileNotFoundError:
        raise CatalogFormatError(file, [Problem("file", "does not exist", _EXPECTED)]) from None
    return parse_plan(text, rank, str(file))


def decode_plan(data: bytes, rank: int = 1, name: str = STANDARD_INPUT) -> Plan:
    """Read one configuration of a document in UTF-8 that did not come from a file, as :func:`load_plan` does.

    Raises:
        CatalogFormatError: not UTF-8, empty, or not valid. RequestError: no configuration has this rank.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise CatalogFormatError(name, [Problem(f"byte {error.start}", found, _EXPECTED)]) from None
    if not text.strip():
        raise CatalogFormatError(name, [Problem("file", "is empty", _EXPECTED)])
    return parse_plan(text, rank, name)


def parse_plan(text: str, rank: int = 1, name: str = STANDARD_INPUT) -> Plan:
    """Read one configuration of a document's text, as :func:`load_plan` does.

    Args:
        text: JSON.
        rank: which configuration, 1 is the best.
        name: what the document is called in errors.

    Raises:
        CatalogFormatError: not valid. RequestError: no configuration has this rank.
    """
    raw = parse_json(text, FilePath(name), _EXPECTED)
    refuse(name, _findings(raw), json_place(raw))
    document = PlanDocument.model_validate(raw)
    refuse(name, _joined(document), json_place(raw))
    if not document.configurations:
        advice = document.relax.advice if document.relax else ""
        found = f"the plan has no configuration: {document.reason or 'nothing was feasible'}"
        expected = f"recommend again with what is feasible{f': {advice}' if advice else ''}"
        raise CatalogFormatError(name, [Problem("configurations", found, expected)])
    chosen = [c for c in document.configurations if c.rank == rank]
    if not chosen:
        ranks = ", ".join(str(c.rank) for c in document.configurations[:20])
        raise RequestError("rank", rank, f"the ranks of {name}: {ranks}")
    # Several regions were compared: each has prices of its own.
    sources = [r.source for r in document.regions or () if r.region == chosen[0].region]
    budget = document.request.pw_usd_per_hour if document.request else None
    return _plan(chosen[0], (sources or [document.source])[0], budget)


def _plan(chosen: ConfigurationDocument, source: SourceDocument, budget: Decimal | None) -> Plan:
    gpu, memory = chosen.gpu, chosen.memory
    zones = [ZonePrice(z.zone, z.usd_per_hour, z.zone_name or "") for z in gpu.zones or ()]
    return Plan(
        rank=chosen.rank,
        architecture=chosen.architecture,
        training=PlannedVms(
            instance_type=gpu.instance_type,
            spot_count=gpu.spot_count,
            on_demand_count=gpu.on_demand_count,
            spot_usd_per_hour=gpu.spot_usd_per_hour,
            on_demand_usd_per_hour=gpu.on_demand_usd_per_hour,
            gpu_name=gpu.gpu_name or "",
            gpus_per_vm=gpu.gpus_per_vm,
            cpu_architecture=gpu.cpu_architecture or "",
            zones=tuple(sorted(zones, key=lambda z: (z.usd_per_hour, z.zone))),
        ),
        memory=None
        if memory is None
        else PlannedVms(
            instance_type=memory.instance_type,
            on_demand_count=memory.count,
            on_demand_usd_per_hour=memory.on_demand_usd_per_hour,
            cpu_architecture=memory.cpu_architecture or "",
            offered_in=tuple(memory.zones or ()),
        ),
        usd_per_hour=chosen.usd_per_hour,
        region=chosen.region or source.region or "",
        zone=chosen.zone or "",
        budget=budget,
        source=PlanSource(
            catalog=source.catalog,
            kind=source.kind,
            prices_as_of=date.fromisoformat(source.prices_as_of) if source.prices_as_of else None,
            source=source.source,
            basis="" if source.price_basis == "current" else source.price_basis,
        ),
        warnings=tuple(chosen.warnings),
    )


def _findings(document: object) -> list[Finding]:
    if not isinstance(document, Mapping):
        return [Finding((), shown(document), _EXPECTED)]
    version = document.get("schema_version")
    if version != PLAN_VERSION:  # a document of another kind is not judged by this one's fields
        found = "missing" if "schema_version" not in document else shown(version)
        expected = f"allowed: {PLAN_VERSION}, {_EXPECTED.removeprefix('allowed: ')}"
        return [Finding(("schema_version",), found, expected)]
    return [*repeated_keys(document), *schema_findings(PlanDocument, document)]


def _joined(document: PlanDocument) -> Iterator[Finding]:
    """What only several fields together can get wrong."""
    first: dict[int, int] = {}
    for i, configuration in enumerate(document.configurations):
        here: Path = ("configurations", i)
        if first.setdefault(configuration.rank, i) != i:
            yield Finding((*here, "rank"), f"rank {configuration.rank} stands twice", "allowed: every rank once")
        gpu = configuration.gpu
        if gpu.count != gpu.spot_count + gpu.on_demand_count:
            expected = f"allowed: spot_count + on_demand_count, {gpu.spot_count} + {gpu.on_demand_count}"
            yield Finding((*here, "gpu", "count"), str(gpu.count), expected)
        total = _total(configuration)
        if total is not None and total != configuration.usd_per_hour:
            expected = f"allowed: the sum of counts x prices, {total:f}; whoever changes a count must change this too"
            yield Finding((*here, "usd_per_hour"), f"{configuration.usd_per_hour:f}", expected)
        zones = [z.zone for z in gpu.zones or ()]
        offers = configuration.memory.zones if configuration.memory else None
        if zones and offers and not set(zones) & set(offers):
            expected = f"allowed: one at least of the zones of the VMs that train, {', '.join(zones)}"
            yield Finding((*here, "memory", "zones"), shown(offers), expected)
        for j, zone in enumerate(zones):
            if zone in zones[:j]:
                yield Finding((*here, "gpu", "zones", j, "zone"), f"{shown(zone)} stands twice", "allowed: once")


def _total(configuration: ConfigurationDocument) -> Decimal | None:
    """Price of all VMs in $/h by their own prices, None where one is not told."""
    gpu, memory = configuration.gpu, configuration.memory
    parts = [(gpu.spot_count, gpu.spot_usd_per_hour), (gpu.on_demand_count, gpu.on_demand_usd_per_hour)]
    if memory is not None:
        parts.append((memory.count, memory.on_demand_usd_per_hour))
    if any(count and price is None for count, price in parts):
        return None
    return sum((count * price for count, price in parts if count and price is not None), Decimal(0))
