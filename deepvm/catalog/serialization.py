"""Catalogs to and from plain documents (the contents of a JSON file)."""
# Nothing is validated here, which keeps pydantic, slow to import, off the common path: a test
# validates the embedded documents, and users' files pass :mod:`deepvm.catalog.catalog_files` first.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import date
from typing import TYPE_CHECKING, Any

from deepvm.catalog.clouds import DEFAULT_CLOUD, REGISTRY
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, Quota, ZonePrice
from deepvm.core.cluster.memory_nodes import PAPER_TABLE, REAL_NODES, RULES, SaturationTable
from deepvm.core.cluster.provenance import Provenance
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.catalog.signals.cloud import Cloud
    from deepvm.core.bill import Rates

CATALOG_VERSION = "deepvm.catalog/1"  # ``schema_version`` of a catalog
AS_SHOWN = "a catalog, as `deepvm catalog show paper -o json` prints it"
Document = JsonObject  # numbers are int, Decimal or float


def build_catalog(document: Document, *, kind: str = "file", name: str = "") -> Catalog:
    """Build a catalog from a valid document; ``name`` is for one that gives none."""
    instances = tuple(build_instance(i) for i in document["instances"])
    rows = document.get("n_sat")
    as_of = document.get("prices_as_of")
    # The first kind, in the order of the paper's own, that any type has.
    usual = next(
        (kind for kind in _CURVES if any(i.curve(kind) for i in instances)), HybridSpeedup.kind
    )
    return Catalog(
        name=document.get("name") or name,
        instances=instances,
        region=document.get("region", ""),
        n_sat=PAPER_TABLE if rows is None else build_saturation(rows),
        quotas=build_quotas(document.get("quotas", ())),
        default_speedup=document.get("default_speedup") or usual,
        eflops_unit=document.get("eflops_unit", "eFLOPS"),
        description=document.get("description", ""),
        provenance=Provenance(
            kind, date.fromisoformat(str(as_of)) if as_of else None, document.get("source", "")
        ),
        memory_nodes=RULES[document.get("memory_nodes") or REAL_NODES.name],
        rates=_rates(document.get("name") or name, document.get("region", "")),
    )


def _rates(name: str, region: str) -> "Rates | None":
    cloud = name.removesuffix(f"-{region}")
    if not region or cloud not in REGISTRY:
        return None
    from deepvm.catalog.published.cloud_rates import rates_of

    return rates_of(cloud, region)


def build_instance(raw: Document) -> InstanceType:
    """Build an instance type from an object of ``instances``."""
    gpu = raw.get("gpu")
    return InstanceType(
        **{name: raw[name] for name in _AS_IT_STANDS if raw.get(name) is not None},
        name=raw["instance_type"],
        gpu=None if gpu is None else Gpu(**gpu),
        spot_zones=tuple(ZonePrice(**zone) for zone in raw.get("spot_zones", ())),
        zones=tuple(raw.get("zones", ())),
        speedups=tuple(build_curve(c) for c in raw.get("speedups", ())),
        quota_family=raw.get("quota_family") or DEFAULT_CLOUD.quota_family(raw["instance_type"]),
    )


def build_curve(raw: Document) -> SpeedupCurve:
    """Build a speed-up curve from an object of ``speedups``."""
    about: JsonDict = {}
    for name, value in raw.items():
        if isinstance(value, Mapping):
            about[name] = RingSpeedup(float(value["c"]), float(value["l"]))
        elif isinstance(value, str):
            about[name] = value
        elif isinstance(value, Sequence):
            about[name] = tuple((float(n), float(s)) for n, s in value)
        elif value is not None:
            about[name] = float(value)
    return _CURVES[about.pop("kind")](**about)


def build_saturation(rows: Iterable[Document]) -> SaturationTable:
    """Build the saturation table from the rows of ``n_sat``."""
    return SaturationTable.from_rows([(float(r["network_gbps"]), int(r["n_sat"])) for r in rows])


def build_quotas(rows: Iterable[Document], cloud: "Cloud" = DEFAULT_CLOUD) -> tuple[Quota, ...]:
    """Build quotas (vCPUs by family and market) from the rows of ``quotas``."""
    quotas = []
    for row in rows:
        market = Market(row["market"])
        code, title = cloud.quota_names.get((row["family"], market), ("", ""))
        quotas.append(Quota(row["family"], market, row["vcpus"], row.get("in_use", 0), code, title))
    return tuple(quotas)


def document_of(catalog: Catalog) -> JsonDict:
    """The document of a catalog, from which :func:`build_catalog` builds an equal one."""
    # Prices become JSON numbers whose shortest decimal form is the exact price.
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
        "quotas": [
            {"family": q.family, "market": q.market.value, "vcpus": q.vcpus}
            | ({"in_use": q.in_use} if q.in_use else {})
            for q in catalog.quotas
        ],
        "instances": [_instance_document(i) for i in catalog],
    }


def _instance_document(instance: InstanceType) -> JsonDict:
    document: JsonDict = {"instance_type": instance.name}
    document |= {name: _plain(getattr(instance, name)) for name in _ALWAYS}
    if instance.gpu is not None:
        document["gpu"] = {f.name: _plain(getattr(instance.gpu, f.name)) for f in fields(Gpu)}
        # ``null`` for a GPU type without eFLOPS: people who edit the file see what is missing.
        document["eflops"] = _plain(instance.eflops)
    for name in _WHERE_KNOWN:
        value = getattr(instance, name)
        if value != _DEFAULTS[name] and name not in document:
            if name == "speedups":
                document[name] = [_curve_document(c) for c in value]
            else:
                document[name] = _plain(value)
    if not instance.speedups:
        document.pop("speedup_basis", None)
    return document


def _curve_document(curve: SpeedupCurve) -> JsonDict:
    if curve.kind not in _CURVES:
        raise RequestError(
            "speedups", curve.kind, f"curves that a file can hold: {', '.join(_CURVES)}"
        )
    names = ["workload", *(f.name for f in fields(curve) if not f.kw_only), "fitted_to", "source"]
    if isinstance(curve, MeasuredSpeedup):
        names.remove("fitted_to")  # its points say so themselves
    return {"kind": curve.kind, **_filled(curve, *names)}


def _filled(record: object, *names: str) -> JsonDict:
    values = {name: _plain(getattr(record, name)) for name in names}
    return {name: value for name, value in values.items() if value not in (None, "")}


_CURVES: dict[str, Callable[..., SpeedupCurve]] = {
    curve.kind: curve for curve in (HybridSpeedup, RingSpeedup, MeasuredSpeedup)
}
_DEFAULTS = {f.name: f.default for f in fields(InstanceType)}
_BUILT = {"name", "gpu", "spot_zones", "zones", "speedups", "quota_family"}
_AS_IT_STANDS = _DEFAULTS.keys() - _BUILT
_ALWAYS = (
    "vcpus",
    "memory_gib",
    "network_gbps",
    "on_demand_usd_per_hour",
    "spot_usd_per_hour",
    "quota_family",
)
_WHERE_KNOWN = (
    "eflops",
    "network_baseline_gbps",
    "cpu_architecture",
    "interruption_band",
    "unusable",
    "zones",
    "spot_zones",
    "burstable",
    "current_generation",
    "eflops_basis",
    "eflops_source",
    "speedups",
    "speedup_basis",
    "default_speedup",
    "note",
)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, ZonePrice):
        return _filled(value, "zone", "usd_per_hour", "name")
    if isinstance(value, RingSpeedup):
        return _filled(value, "c", "l")
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return int(number)
    return number
