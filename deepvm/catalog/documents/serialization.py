"""A catalog as a plain document (what a JSON file holds) and back.

Nothing here validates: embedded documents are ours and a test validates them, files of users pass
:mod:`deepvm.catalog.documents.validation` first. That keeps pydantic, which is slow to import, out of the common path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from deepvm.catalog.clouds.aws.quota_codes import FAMILIES, quota_family
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, Quota, ZonePrice
from deepvm.core.cluster.memory_nodes import REAL_NODES, RULES
from deepvm.core.cluster.provenance import Provenance
from deepvm.core.cluster.saturation import PAPER_TABLE, SaturationTable
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.core.units import to_decimal
from deepvm.errors import RequestError

CATALOG_VERSION = "deepvm.catalog/1"
"""``schema_version`` of a catalog."""

QUOTAS_VERSION = "deepvm.quotas/1"
"""``schema_version`` of a file of quotas."""

Document = Mapping[str, Any]
"""A JSON object; numbers are int, Decimal or float."""


def build_catalog(document: Document, *, kind: str = "file", name: str = "") -> Catalog:
    """Make the catalog that a valid document describes.

    Args:
        document: valid by the schema; prices in $/h, memory in GiB, network in Gbit/s.
        kind: ``Provenance.kind``, ``embedded`` or ``file``.
        name: the catalog's name where the document gives none.

    Raises:
        RequestError: a core class refuses a figure; a document that passed the schema does not get here.
    """
    instances = tuple(build_instance(i) for i in document["instances"])
    rows = document.get("n_sat")
    as_of = document.get("prices_as_of")
    return Catalog(
        name=document.get("name") or name,
        instances=instances,
        region=document.get("region", ""),
        n_sat=PAPER_TABLE if rows is None else build_saturation(rows),
        quotas=build_quotas(document.get("quotas", ())),
        default_speedup=document.get("default_speedup") or _default_speedup(instances),
        eflops_unit=document.get("eflops_unit", "eFLOPS"),
        description=document.get("description", ""),
        provenance=Provenance(kind, date.fromisoformat(as_of) if as_of else None, document.get("source", "")),
        memory_nodes=RULES[document.get("memory_nodes") or REAL_NODES.name],
    )


def _default_speedup(instances: tuple[InstanceType, ...]) -> str:
    """The first kind, in the order of the paper's own, that any type carries."""
    return next((kind for kind in _CURVES if any(i.curve(kind) for i in instances)), next(iter(_CURVES)))


def build_instance(raw: Document) -> InstanceType:
    """Make one instance type from its object in ``instances``."""
    gpu = raw.get("gpu")
    return InstanceType(
        name=raw["instance_type"],
        vcpus=int(raw["vcpus"]),
        memory_gib=_float(raw.get("memory_gib")),
        network_gbps=_float(raw.get("network_gbps")),
        network_baseline_gbps=_float(raw.get("network_baseline_gbps")),
        on_demand_usd_per_hour=raw.get("on_demand_usd_per_hour"),
        spot_usd_per_hour=raw.get("spot_usd_per_hour"),
        gpu=None if gpu is None else _build_gpu(gpu),
        eflops=_float(raw.get("eflops")),
        eflops_basis=raw.get("eflops_basis", ""),
        eflops_source=raw.get("eflops_source", ""),
        default_speedup=raw.get("default_speedup") or "",
        speedup_basis=raw.get("speedup_basis", ""),
        cpu_architecture=raw.get("cpu_architecture", ""),
        burstable=raw.get("burstable", False),
        current_generation=raw.get("current_generation", True),
        interruption_band=None if (band := raw.get("interruption_band")) is None else int(band),
        spot_zones=tuple(
            ZonePrice(z["zone"], to_decimal(z["usd_per_hour"], "usd_per_hour", unit="$/h"), z.get("name", ""))
            for z in raw.get("spot_zones", ())
        ),
        zones=tuple(raw.get("zones", ())),
        unusable=raw.get("unusable", ""),
        speedups=tuple(build_curve(c) for c in raw.get("speedups", ())),
        quota_family=raw.get("quota_family") or quota_family(raw["instance_type"]),
        note=raw.get("note", ""),
    )


def build_curve(raw: Document) -> SpeedupCurve:
    """Make one speed-up curve from its object in ``speedups``; ``kind`` is hybrid, ring or measured."""
    about = {"workload": raw.get("workload"), "source": raw.get("source", "")}
    if raw.get("fitted_to") is not None:
        about["fitted_to"] = float(raw["fitted_to"])
    return _CURVES[raw["kind"]](raw, about)


def build_saturation(rows: Iterable[Document]) -> SaturationTable:
    """Make the saturation table from the rows of ``n_sat``."""
    return SaturationTable.from_rows([(float(r["network_gbps"]), int(r["n_sat"])) for r in rows])


def build_quotas(rows: Iterable[Document]) -> tuple[Quota, ...]:
    """Make quotas (vCPUs by family and market) from the rows of ``quotas``."""
    return tuple(_quota(q["family"], Market(q["market"]), int(q["vcpus"]), int(q.get("in_use") or 0)) for q in rows)


def _quota(family: str, market: Market, vcpus: int, in_use: int) -> Quota:
    known = FAMILIES.get(family)
    code, title = (known.code(market), known.title(market)) if known else ("", "")
    return Quota(family, market, vcpus, in_use, code, title)


def document_of(catalog: Catalog) -> dict[str, Any]:
    """The document that describes a catalog; :func:`build_catalog` of it gives the same catalog.

    Prices become JSON numbers whose shortest decimal form is the exact price. ``Provenance.kind`` is not part of it:
    that is where the document was found, not what it says.

    Raises:
        RequestError: a curve of a kind that the file format does not have.
    """
    as_of = catalog.provenance.prices_as_of
    return {
        "schema_version": CATALOG_VERSION,
        "name": catalog.name,
        "region": catalog.region,
        "description": catalog.description,
        "prices_as_of": None if as_of is None else as_of.isoformat(),
        "source": catalog.provenance.source,
        "eflops_unit": catalog.eflops_unit,
        "default_speedup": catalog.default_speedup,
        "memory_nodes": catalog.memory_nodes.name,
        "n_sat": [
            {"network_gbps": _plain(g), "n_sat": int(n)}
            for g, n in zip(catalog.n_sat.network_gbps, catalog.n_sat.n_sat, strict=True)
        ],
        "quotas": [_quota_document(q) for q in catalog.quotas],
        "instances": [_instance_document(i) for i in catalog],
    }


def _quota_document(quota: Quota) -> dict[str, Any]:
    document = {"family": quota.family, "market": quota.market.value, "vcpus": quota.vcpus}
    return document | ({"in_use": quota.in_use} if quota.in_use else {})


_SAID_WHERE_KNOWN = ("network_baseline_gbps", "cpu_architecture", "interruption_band", "unusable")


def _instance_document(instance: InstanceType) -> dict[str, Any]:
    document: dict[str, Any] = {
        "instance_type": instance.name,
        "vcpus": instance.vcpus,
        "memory_gib": _plain(instance.memory_gib),
        "network_gbps": _plain(instance.network_gbps),
        "on_demand_usd_per_hour": _plain(instance.on_demand_usd_per_hour),
        "spot_usd_per_hour": _plain(instance.spot_usd_per_hour),
        "quota_family": instance.quota_family,
    }
    if instance.gpu is not None:
        document["gpu"] = {
            "name": instance.gpu.name,
            "count": instance.gpu.count,
            "memory_gib": _plain(instance.gpu.memory_gib),
            "manufacturer": instance.gpu.manufacturer,
        }
    if instance.gpu is not None or instance.eflops is not None:
        # A GPU type without eFLOPS says so: whoever edits the file sees what is missing.
        document["eflops"] = _plain(instance.eflops)
    document |= {f: _plain(v) for f in _SAID_WHERE_KNOWN if (v := getattr(instance, f)) not in (None, "")}
    if instance.zones:
        document["zones"] = list(instance.zones)
    if instance.spot_zones:
        document["spot_zones"] = [_zone_document(z) for z in instance.spot_zones]
    if instance.burstable:
        document["burstable"] = True
    if not instance.current_generation:
        document["current_generation"] = False
    if instance.eflops_basis:
        document["eflops_basis"] = instance.eflops_basis
    if instance.eflops_source:
        document["eflops_source"] = instance.eflops_source
    if instance.speedups:
        document["speedups"] = [_curve_document(c) for c in instance.speedups]
        if instance.speedup_basis:
            document["speedup_basis"] = instance.speedup_basis
    if instance.default_speedup:
        document["default_speedup"] = instance.default_speedup
    if instance.note:
        document["note"] = instance.note
    return document


def _zone_document(zone: ZonePrice) -> dict[str, Any]:
    document = {"zone": zone.zone, "usd_per_hour": _plain(zone.usd_per_hour)}
    return document | ({"name": zone.name} if zone.name else {})


def _curve_document(curve: SpeedupCurve) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": curve.kind}
    if curve.workload is not None:
        document["workload"] = curve.workload
    if isinstance(curve, HybridSpeedup):
        document |= {"a": _plain(curve.a), "b": _plain(curve.b), "c": _plain(curve.c)}
    elif isinstance(curve, RingSpeedup):
        document |= {"c": _plain(curve.c), "l": _plain(curve.l)}
    elif isinstance(curve, MeasuredSpeedup):
        document["points"] = [[_plain(n), _plain(s)] for n, s in curve.points]
        if curve.beyond is not None:
            document["beyond"] = {"c": _plain(curve.beyond.c), "l": _plain(curve.beyond.l)}
    else:
        raise RequestError("speedups", curve.kind, f"curves that a file can hold: {', '.join(_CURVES)}")
    if curve.fitted_to is not None and not isinstance(curve, MeasuredSpeedup):  # its points say so themselves
        document["fitted_to"] = _plain(curve.fitted_to)
    if curve.source:
        document["source"] = curve.source
    return document


def _build_gpu(raw: Document) -> Gpu:
    return Gpu(raw["name"], int(raw.get("count", 1)), _float(raw.get("memory_gib")), raw.get("manufacturer", "NVIDIA"))


def _hybrid(raw: Document, about: dict[str, Any]) -> SpeedupCurve:
    return HybridSpeedup(float(raw["a"]), float(raw["b"]), float(raw["c"]), **about)


def _ring(raw: Document, about: dict[str, Any]) -> SpeedupCurve:
    return RingSpeedup(float(raw["c"]), float(raw["l"]), **about)


def _measured(raw: Document, about: dict[str, Any]) -> SpeedupCurve:
    beyond = raw.get("beyond")
    ring = None if beyond is None else RingSpeedup(float(beyond["c"]), float(beyond["l"]))
    return MeasuredSpeedup(tuple((float(n), float(s)) for n, s in raw["points"]), ring, **about)


_CURVES: dict[str, Callable[[Document, dict[str, Any]], SpeedupCurve]] = {
    "hybrid": _hybrid,
    "ring": _ring,
    "measured": _measured,
}


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _plain(value: float | Decimal | str | None) -> int | float | str | None:
    """A JSON number: whole where it is whole, else the shortest decimal that reads back as the same value."""
    if value is None or isinstance(value, str):
        return value
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 1e15 else number
