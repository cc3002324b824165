"""Plans from the documents that ``deepvm recommend -o json`` writes.

Unknown fields are ignored, because the documents grow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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
    described,
    name_of,
    number,
    price,
    rows,
    text,
)
from deepvm.documents.issues import repeats
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import KeyPath
from deepvm.errors import CatalogFormatError, Issue, RequestError

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


def _count(what: str, least: int) -> Any:
    return number(what, MAX_NODES, least=least, whole=True)


def _identifier(what: str, null: str = "") -> Any:
    allowed = "1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit first"
    return described(f"{what}: {allowed}", null)


class _Zone(Lenient):
    zone: Identifier = _identifier("id of the zone")
    zone_name: Identifier | None = _identifier("name of the zone", "when unknown")
    usd_per_hour: Price = price("spot price of the zone")


class _Reserved(Lenient):
    pool: Identifier = _identifier("the name of the reserved pool")


class _Vms(Lenient):
    instance_type: Identifier = _identifier("the provider's name of the type")
    count: Whole = _count("VMs", 1)
    on_demand_usd_per_hour: Price | None = price("on-demand price of one VM", "when unknown")
    cpu_architecture: Literal["x86_64", "arm64", ""] | None = described(
        "x86_64 or arm64", "when unknown"
    )
    on_demand_discount: Share = Field(Decimal(0), description="a number from 0 to below 1")
    reserved: _Reserved | None = described("an object with pool", "for none")

    def known(self) -> dict[str, Any]:
        """The fields of :class:`PlannedVms`; what is null has its default."""
        fields = self.model_dump(exclude={"count", "zones", "reserved"}, exclude_none=True)
        if self.reserved is not None:
            fields["reserved"] = self.reserved.pool
        return fields


class _GpuVms(_Vms):
    spot_count: Whole = _count("spot VMs", 0)
    on_demand_count: Whole = _count("on-demand VMs", 0)
    spot_usd_per_hour: Price | None = price("spot price of one VM", "when unknown")
    gpu_name: Name | None = name_of("GPU model, such as T4", "when unknown")
    gpus_per_vm: Whole | None = number(
        "GPUs in one VM", 1024, least=1, whole=True, null="when unknown"
    )
    zones: list[_Zone] | None = described("spot prices by zone", "when unknown")


class _MemoryVms(_Vms):
    zones: list[Identifier] | None = described("ids of zones that offer the type", "when unknown")


class _Configuration(Lenient):
    rank: Whole = _count("position in the recommendation", 1)
    architecture: Name = name_of("name of the architecture, such as tiering")
    gpu: _GpuVms = described("the VMs that train: an object")
    memory: _MemoryVms | None = described("the memory nodes: an object", "without any")
    usd_per_hour: Total = described("$/h of all VMs: a number above 0 with at most 6 decimals")
    cloud: Identifier | None = _identifier("the cloud", "when one was asked")
    region: Region | None = _identifier("the provider's region", "when unknown")
    zone: Identifier | None = _identifier("id of the zone to start in", "when unknown")
    warnings: list[Text] = rows("warnings", 1000, of="lines of text")


class _Source(Lenient):
    catalog: Text = text("name of the catalog", 1000)
    region: Region | None = _identifier("the provider's region", "when unknown")
    prices_as_of: Day | None = described("a date YYYY-MM-DD", "when unknown")
    kind: Text = text("kind of the catalog, such as embedded", 100)
    source: Text = text("who published the prices", 10_000)
    price_basis: Text = text("which spot price is meant", 1000)


class _Region(Lenient):
    cloud: Identifier | None = _identifier("the cloud", "when one was asked")
    region: Region = _identifier("the provider's region")
    source: _Source = described("where its prices come from: an object")


class _Extras(Lenient):
    disk_gb: float | None = number("disk of each VM in GB", 1e9, least=0, null="for the image's")
    disk_type: Identifier | None = _identifier("the kind of disk", "for the usual one")
    nat: bool | None = described("whether VMs use a NAT gateway: true or false", "when unknown")


class _Request(Lenient):
    pw_usd_per_hour: Budget | None = number("the budget in $/h", 1e12, least=0, null="for none")
    extras: _Extras | None = described("what the bill counts besides VMs: an object", "for none")


class _Relax(Lenient):
    advice: Text = text("what to change", 100_000)


class _Document(Lenient):
    schema_version: Literal["deepvm.recommend/1"] = described("deepvm.recommend/1")
    request: _Request | None = described("what was asked for: an object", "when unknown")
    source: _Source = described("where the prices come from: an object")
    regions: list[_Region] | None = described("the regions that were compared", "for one")
    configurations: list[_Configuration] = rows("the ranked clusters", 10_000, required=True)
    reason: Text = text("why nothing is feasible", 100_000)
    relax: _Relax | None = described("what to change: an object", "for nothing")


def _rules(document: _Document) -> Rules:
    for row, _ in repeats(c.rank for c in document.configurations):
        yield ("configurations", row, "rank"), "expected every rank once"
    for row, configuration in enumerate(document.configurations):
        yield from _configuration_rules(("configurations", row), configuration)


def _configuration_rules(path: KeyPath, configuration: _Configuration) -> Rules:
    gpu = configuration.gpu
    memory = configuration.memory
    if gpu.count != gpu.spot_count + gpu.on_demand_count:
        yield (*path, "gpu", "count"), f"{gpu.count} is not spot_count + on_demand_count"
    total = _sum_of_prices(configuration)
    if total not in (None, configuration.usd_per_hour):
        message = f"{configuration.usd_per_hour:f} is not the sum of counts x prices, {total:f}"
        yield (*path, "usd_per_hour"), message
    zones = [zone.zone for zone in gpu.zones or ()]
    for row, _ in repeats(zones):
        yield (*path, "gpu", "zones", row, "zone"), "expected every zone once"
    offered = memory.zones if memory else None
    if zones and offered and not set(zones) & set(offered):
        message = f"expected one at least of the zones of the VMs that train, {', '.join(zones)}"
        yield (*path, "memory", "zones"), message


def _sum_of_prices(configuration: _Configuration) -> Decimal | None:
    """$/h of the parts; None where a price is unknown."""
    gpu = configuration.gpu
    memory = configuration.memory
    parts = [
        (gpu.spot_count, gpu.spot_usd_per_hour),
        (gpu.on_demand_count, gpu.on_demand_usd_per_hour),
    ]
    if memory is not None:
        parts.append((memory.count, memory.on_demand_usd_per_hour))
    total = Decimal(0)
    for count, usd_per_hour in parts:
        if count and usd_per_hour is None:
            return None
        total += count * (usd_per_hour or 0)
    return total


PLAN = FileFormat(
    _Document,
    "one JSON object, as `deepvm recommend --pw 3 -o json > plan.json` writes it",
    rules=_rules,
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
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        issue = Issue(f"byte 0x{data[error.start]:02x} is not UTF-8 (expected {PLAN.expected})")
        raise CatalogFormatError(STANDARD_INPUT, [issue]) from None
    return parse_plan(content, rank)


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
    source = _source_of(document, chosen)
    basis = source.price_basis
    if basis == "current":
        basis = ""
    request = document.request or _Request()
    extras = request.extras or _Extras()
    return Plan(
        rank=chosen.rank,
        architecture=chosen.architecture,
        training=PlannedVms(**chosen.gpu.known(), zones=tuple(_zones(chosen.gpu))),
        memory=_nodes(chosen.memory),
        usd_per_hour=chosen.usd_per_hour,
        region=chosen.region or source.region or "",
        zone=chosen.zone or "",
        budget=request.pw_usd_per_hour,
        source=PlanSource(
            **source.model_dump(exclude={"region", "price_basis"}, exclude_none=True),
            basis=basis,
        ),
        warnings=tuple(chosen.warnings),
        disk=_disk(extras),
        nat=bool(extras.nat),
    )


def _source_of(document: _Document, chosen: _Configuration) -> _Source:
    """Where the prices come from; each of several regions has its own source."""
    for region in document.regions or ():
        if (region.cloud, region.region) == (chosen.cloud, chosen.region):
            return region.source
    return document.source


def _zones(gpu: _GpuVms) -> Iterator[ZonePrice]:
    for zone in sorted(gpu.zones or (), key=lambda each: (each.usd_per_hour, each.zone)):
        yield ZonePrice(zone.zone, zone.usd_per_hour, zone.zone_name or "")


def _nodes(memory: _MemoryVms | None) -> PlannedVms | None:
    if memory is None:
        return None
    offered_in = tuple(memory.zones or ())
    return PlannedVms(**memory.known(), on_demand_count=memory.count, offered_in=offered_in)


def _disk(extras: _Extras) -> PlannedDisk | None:
    if not extras.disk_gb:
        return None
    return PlannedDisk(ceil(extras.disk_gb), extras.disk_type or "")
