"""Plans from the documents that ``deepvm recommend -o json`` writes.

Unknown fields are ignored, because the documents grow.
"""

from __future__ import annotations

import os
from decimal import Decimal
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedDisk, PlannedVms, PlanSource
from deepvm.documents.fields import (
    MAX_NODES,
    MAX_USD,
    Day,
    Lenient,
    Name,
    Price,
    Text,
    Whole,
)
from deepvm.documents.reader import FileFormat
from deepvm.errors import CatalogFormatError, Issue, RequestError
from deepvm.io.safe_read import decoded

STANDARD_INPUT = "standard input"
"""Name of a piped plan in errors."""


def _as_exact(value: object) -> object:
    """A number with all its digits, unlike a float."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError("not an amount")
    return value


# Types, regions and zones are put into commands, paths and scripts.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Region = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$")]
_MOST_USD = MAX_USD * MAX_NODES
Total = Annotated[Decimal, Field(gt=0, le=_MOST_USD, decimal_places=6), BeforeValidator(_as_exact)]
Share = Annotated[Decimal, Field(ge=0, lt=1), BeforeValidator(_as_exact)]
Budget = Annotated[Decimal, Field(ge=0, le=10**12), BeforeValidator(_as_exact)]
Count = Annotated[Whole, Field(ge=0, le=MAX_NODES)]
Positive = Annotated[Whole, Field(ge=1, le=MAX_NODES)]


class _Zone(Lenient):
    zone: Identifier
    zone_name: Identifier | None = None
    usd_per_hour: Price


class _Reserved(Lenient):
    pool: Identifier


class _Vms(Lenient):
    instance_type: Identifier
    count: Positive
    on_demand_usd_per_hour: Price | None = None
    cpu_architecture: Literal["x86_64", "arm64", ""] | None = None
    on_demand_discount: Share = Decimal(0)
    reserved: _Reserved | None = None

    def planned(self, **values: Any) -> PlannedVms:
        """With these values; what is null has its default."""
        known = self.model_dump(exclude={"count", "zones", "reserved"}, exclude_none=True)
        if self.reserved is not None:
            known["reserved"] = self.reserved.pool
        return PlannedVms(**known, **values)


class _GpuVms(_Vms):
    spot_count: Count
    on_demand_count: Count
    spot_usd_per_hour: Price | None = None
    gpu_name: Name | None = None
    gpus_per_vm: Positive | None = None
    zones: list[_Zone] | None = None

    @property
    def priced_zones(self) -> tuple[ZonePrice, ...]:
        """The cheapest first."""
        zones = sorted(self.zones or (), key=lambda each: (each.usd_per_hour, each.zone))
        return tuple(ZonePrice(z.zone, z.usd_per_hour, z.zone_name or "") for z in zones)


class _MemoryVms(_Vms):
    zones: list[Identifier] | None = None


class _Configuration(Lenient):
    rank: Positive
    architecture: Name
    gpu: _GpuVms
    memory: _MemoryVms | None = None
    usd_per_hour: Total
    cloud: Identifier | None = None
    region: Region | None = None
    zone: Identifier | None = None
    warnings: list[Text] = []


class _Source(Lenient):
    catalog: Text = ""
    region: Region | None = None
    prices_as_of: Day | None = None
    kind: Text = ""
    source: Text = ""
    price_basis: Text = ""


class _Region(Lenient):
    cloud: Identifier | None = None
    region: Region
    source: _Source


class _Extras(Lenient):
    disk_gb: Annotated[float, Field(ge=0, le=1e9)] | None = None
    disk_type: Identifier | None = None
    nat: bool | None = None


class _Request(Lenient):
    pw_usd_per_hour: Budget | None = None
    extras: _Extras | None = None


class _Relax(Lenient):
    advice: Text = ""


class _Document(Lenient):
    schema_version: Literal["deepvm.recommend/1"]
    request: _Request | None = None
    source: _Source
    regions: list[_Region] | None = None
    configurations: list[_Configuration]
    reason: Text = ""
    relax: _Relax | None = None


PLAN = FileFormat(
    _Document,
    "one JSON object, as `deepvm recommend --pw 3 -o json > plan.json` writes it",
)


def load_plan(path: str | os.PathLike[str], rank: int = 1) -> Plan:
    """Read the configuration of this rank (1 is the best) from a file.

    Raises:
        CatalogFormatError: the file is missing, not valid, or holds no configuration.
        RequestError: no configuration has this rank.
    """
    return _plan(PLAN.read(path), os.fspath(path), rank)


def decode_plan(data: bytes, rank: int = 1) -> Plan:
    """As :func:`load_plan`, from the bytes of standard input, in UTF-8."""
    return parse_plan(decoded(STANDARD_INPUT, data, PLAN.expected), rank)


def parse_plan(content: str, rank: int = 1, name: str = STANDARD_INPUT) -> Plan:
    """As :func:`load_plan`, from JSON text that errors call ``name``."""
    return _plan(PLAN.parse(content, name), name, rank)


def _plan(document: _Document, name: str, rank: int) -> Plan:
    if not document.configurations:
        message = f"the plan has no configuration: {document.reason or 'nothing was feasible'}"
        if document.relax and document.relax.advice:
            message += f"; recommend again: {document.relax.advice}"
        raise CatalogFormatError(name, [Issue(message)])
    chosen = next((c for c in document.configurations if c.rank == rank), None)
    if chosen is None:
        ranks = ", ".join(str(c.rank) for c in document.configurations[:20])
        raise RequestError("rank", rank, f"the ranks of {name}: {ranks}")
    problem = _contradiction(chosen)
    if problem:
        raise CatalogFormatError(name, [Issue(f"rank {rank}: {problem}")])
    source = _source_of(document, chosen)
    request = document.request or _Request()
    extras = request.extras or _Extras()
    memory = None
    if nodes := chosen.memory:
        zones = tuple(nodes.zones or ())
        memory = nodes.planned(on_demand_count=nodes.count, offered_in=zones)
    disk = None
    if extras.disk_gb:
        disk = PlannedDisk(ceil(extras.disk_gb), extras.disk_type or "")
    return Plan(
        rank=chosen.rank,
        architecture=chosen.architecture,
        training=chosen.gpu.planned(zones=chosen.gpu.priced_zones),
        memory=memory,
        usd_per_hour=chosen.usd_per_hour,
        region=chosen.region or source.region or "",
        zone=chosen.zone or "",
        budget=request.pw_usd_per_hour,
        source=PlanSource(
            **source.model_dump(exclude={"region", "price_basis"}, exclude_none=True),
            basis="" if source.price_basis == "current" else source.price_basis,
        ),
        warnings=tuple(chosen.warnings),
        disk=disk,
        nat=bool(extras.nat),
    )


def _contradiction(chosen: _Configuration) -> str:
    """Where counts and prices do not fit each other, as in a plan that was edited by hand."""
    gpu = chosen.gpu
    if gpu.count != gpu.spot_count + gpu.on_demand_count:
        return f"gpu.count {gpu.count} is not spot_count + on_demand_count"
    parts = [
        (gpu.spot_count, gpu.spot_usd_per_hour),
        (gpu.on_demand_count, gpu.on_demand_usd_per_hour),
    ]
    if chosen.memory is not None:
        parts.append((chosen.memory.count, chosen.memory.on_demand_usd_per_hour))
    prices = [count * price for count, price in parts if count and price is not None]
    total = sum(prices, Decimal(0))
    if len(prices) == sum(count > 0 for count, _ in parts) and total != chosen.usd_per_hour:
        return f"usd_per_hour {chosen.usd_per_hour:f} is not the sum of counts x prices, {total:f}"
    return ""


def _source_of(document: _Document, chosen: _Configuration) -> _Source:
    """Where the prices come from; each of several regions has its own source."""
    for region in document.regions or ():
        if (region.cloud, region.region) == (chosen.cloud, chosen.region):
            return region.source
    return document.source
