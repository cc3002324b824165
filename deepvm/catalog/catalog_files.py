"""Files of catalogs and quotas: what is read, and the rules that join their fields."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.catalog import catalog_csv
from deepvm.catalog.serialization import build_curve, build_saturation
from deepvm.documents.inputs.catalog import (
    CatalogDocument,
    InstanceDocument,
    QuotaDocument,
    QuotaRow,
)
from deepvm.documents.issues import repeats
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import KeyPath, shown
from deepvm.errors import RequestError


def _catalog_rules(document: CatalogDocument) -> Rules:
    if document.n_sat is not None:
        try:
            build_saturation(row.model_dump() for row in document.n_sat)
        except RequestError as error:
            yield ("n_sat",), f"expected {error.allowed}"
    yield from _quota_rules(document.quotas)
    names = [instance.instance_type for instance in document.instances]
    for row, first in repeats(names):
        message = f"{shown(names[row])} occurs twice, first as instance {first + 1}"
        yield ("instances", row, "instance_type"), message
    for row, instance in enumerate(document.instances):
        yield from _instance_rules(("instances", row), instance)


def _instance_rules(path: KeyPath, instance: InstanceDocument) -> Rules:
    if instance.on_demand_usd_per_hour is None and instance.spot_usd_per_hour is None:
        message = "no price (expected on_demand_usd_per_hour or spot_usd_per_hour, or both)"
        yield (*path, "spot_usd_per_hour"), message
    yield from _zone_rules((*path, "spot_zones"), instance)
    for row, _ in repeats((curve.kind, curve.workload) for curve in instance.speedups):
        yield (*path, "speedups", row), "expected one curve of each kind and workload"
    for row, curve in enumerate(instance.speedups):
        try:
            build_curve(curve.model_dump())
        except RequestError as error:
            yield (*path, "speedups", row, error.option), f"expected {error.allowed}"


def _zone_rules(path: KeyPath, instance: InstanceDocument) -> Rules:
    prices = [zone.usd_per_hour for zone in instance.spot_zones]
    for row, _ in repeats(zone.zone for zone in instance.spot_zones):
        yield (*path, row), "expected one price of each zone"
    if prices != sorted(prices):
        yield path, "expected the cheapest zone first"
    if prices and min(prices) != instance.spot_usd_per_hour:
        yield path, f"expected spot_usd_per_hour to be the cheapest zone's price, {min(prices)}"


def _quota_rules(rows: Sequence[QuotaRow]) -> Rules:
    for row, _ in repeats((quota.family, quota.market) for quota in rows):
        yield ("quotas", row), "expected one limit of each family and market"


_AS_SHOWN = "as `deepvm catalog show paper -o json` prints it"
JSON_CATALOG = FileFormat(CatalogDocument, f"a catalog, {_AS_SHOWN}", rules=_catalog_rules)
CSV_CATALOG = FileFormat(
    CatalogDocument, "a catalog of comma-separated values", catalog_csv.load, _catalog_rules
)
QUOTAS = FileFormat(
    QuotaDocument, "a JSON file of quotas", rules=lambda document: _quota_rules(document.quotas)
)
