"""Files of catalogs and quotas, which ``data/documents/catalog.json`` declares.

Here are the rules that join their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.catalog import catalog_csv
from deepvm.catalog.serialization import build_curve, build_saturation
from deepvm.documents.issues import repeats
from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import KeyPath, shown
from deepvm.errors import RequestError


def _catalog_rules(document: Mapping[str, Any]) -> Rules:
    if document["n_sat"] is not None:
        try:
            build_saturation(document["n_sat"])
        except RequestError as error:
            yield ("n_sat",), f"expected {error.allowed}"
    yield from _quota_rules(document)
    instances = document["instances"]
    names = [instance["instance_type"] for instance in instances]
    for row, first in repeats(names):
        message = f"{shown(names[row])} occurs twice, first as instance {first + 1}"
        yield ("instances", row, "instance_type"), message
    for row, instance in enumerate(instances):
        yield from _instance_rules(("instances", row), instance)


def _instance_rules(path: KeyPath, instance: Mapping[str, Any]) -> Rules:
    spot = instance["spot_usd_per_hour"]
    if instance["on_demand_usd_per_hour"] is None and spot is None:
        message = "no price (expected on_demand_usd_per_hour or spot_usd_per_hour, or both)"
        yield (*path, "spot_usd_per_hour"), message
    zones = instance["spot_zones"]
    prices = [zone["usd_per_hour"] for zone in zones]
    for row, _ in repeats(zone["zone"] for zone in zones):
        yield (*path, "spot_zones", row), "expected one price of each zone"
    if prices != sorted(prices):
        yield (*path, "spot_zones"), "expected the cheapest zone first"
    if prices and min(prices) != spot:
        message = f"expected spot_usd_per_hour to be the cheapest zone's price, {min(prices)}"
        yield (*path, "spot_zones"), message
    curves: Sequence[Any] = instance["speedups"]
    for row, _ in repeats((curve["kind"], curve["workload"]) for curve in curves):
        yield (*path, "speedups", row), "expected one curve of each kind and workload"
    for row, curve in enumerate(curves):
        try:
            build_curve(curve)
        except RequestError as error:
            yield (*path, "speedups", row, error.option), f"expected {error.allowed}"


def _quota_rules(document: Mapping[str, Any]) -> Rules:
    rows = document["quotas"]
    for row, _ in repeats((quota["family"], quota["market"]) for quota in rows):
        yield ("quotas", row), "expected one limit of each family and market"


_CATALOG = model_of("catalog.CatalogDocument")
_AS_SHOWN = "as `deepvm catalog show paper -o json` prints it"
JSON_CATALOG = FileFormat(_CATALOG, f"a catalog, {_AS_SHOWN}", rules=by_values(_catalog_rules))
CSV_CATALOG = FileFormat(
    _CATALOG, "a catalog of comma-separated values", catalog_csv.load, by_values(_catalog_rules)
)
QUOTAS = FileFormat(
    model_of("catalog.QuotaDocument"),
    "a JSON file of quotas",
    rules=by_values(_quota_rules),
)
