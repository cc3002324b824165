"""What is wrong with a catalog or with quotas, in words a user can act on.

Two passes: the schema field by field (:mod:`deepvm.catalog.documents.findings`), then the rules that join fields (a
price at all, unique names, curves that are curves). The second pass leaves out what the first has refused, so one
reading shows every problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from deepvm.catalog.documents.findings import MANY, Finding, Path, repeats, schema_findings, shown
from deepvm.catalog.documents.schema import CatalogDocument, QuotaDocument
from deepvm.catalog.documents.serialization import build_curve, build_saturation
from deepvm.errors import RequestError


def catalog_findings(document: object) -> list[Finding]:
    """Everything that is wrong with a catalog's document, the first 1000 fields of it; empty when it is valid."""
    findings = schema_findings(CatalogDocument, document)
    refused = {f.path[:2] for f in findings}
    if isinstance(document, Mapping) and ("schema_version",) not in refused and len(findings) < MANY:
        findings += islice(_joined_findings(document, refused), MANY)
    return findings


def quota_findings(document: object) -> list[Finding]:
    """Everything that is wrong with the document of a quota file; empty when it is valid."""
    return schema_findings(QuotaDocument, document) or list(_second_quotas(document["quotas"]))  # type: ignore[index]  # valid, so it is an object


def _joined_findings(document: Mapping[str, Any], refused: set[Path]) -> Iterator[Finding]:
    parts = {path[0] for path in refused}
    if document.get("n_sat") is not None and "n_sat" not in parts:
        try:
            build_saturation(document["n_sat"])
        except RequestError as error:
            twice = error.option == "network_gbps"
            found = "two rows for one bandwidth" if twice else "n_sat falls while the bandwidth grows"
            yield Finding(("n_sat",), found, f"allowed: {error.allowed}")
    if "quotas" not in parts:
        yield from _second_quotas(document.get("quotas", ()))
    instances = document.get("instances")
    if not isinstance(instances, list):
        return
    names = [i.get("instance_type") if isinstance(i, Mapping) else None for i in instances]
    # What is no name has been refused; its position stands for it, because it may be a list.
    for i, first in repeats(name if isinstance(name, str) and name else i for i, name in enumerate(names)):
        expected = f"allowed: every name once; the first is instance {first + 1}"
        yield Finding(("instances", i, "instance_type"), f"{shown(names[i])} stands twice", expected)
    for i, instance in enumerate(instances):
        if ("instances", i) not in refused and ("instances",) not in refused:
            yield from _instance_findings(("instances", i), instance)


def _instance_findings(path: Path, instance: Mapping[str, Any]) -> Iterator[Finding]:
    if instance.get("on_demand_usd_per_hour") is None and instance.get("spot_usd_per_hour") is None:
        yield Finding(path, "no price", "allowed: on_demand_usd_per_hour or spot_usd_per_hour, or both, in $/h")
    yield from _zone_findings((*path, "spot_zones"), instance)
    curves = instance.get("speedups", ())
    for j, _ in repeats((c["kind"], c.get("workload")) for c in curves):
        workload = curves[j].get("workload")
        about = f"workload {shown(workload)}" if workload else "no workload (the general one)"
        found = f"a second {curves[j]['kind']} curve with {about}"
        yield Finding((*path, "speedups", j), found, "allowed: one of each kind and workload")
    for j, curve in enumerate(curves):
        try:
            build_curve(curve)
        except RequestError as error:
            found = shown(curve.get(error.option))
            yield Finding((*path, "speedups", j, error.option), found, f"allowed: {error.allowed}")


def _zone_findings(path: Path, instance: Mapping[str, Any]) -> Iterator[Finding]:
    rows = instance.get("spot_zones", ())
    prices = [Decimal(str(row["usd_per_hour"])) for row in rows]
    for j, _ in repeats(row["zone"] for row in rows):
        yield Finding((*path, j), f"a second price of zone {shown(rows[j]['zone'])}", "allowed: one of each zone")
    if prices != sorted(prices):
        yield Finding(path, "not sorted by price", "allowed: the cheapest zone first")
    spot = instance.get("spot_usd_per_hour")
    if prices and (spot is None or Decimal(str(spot)) != min(prices)):
        expected = "allowed: the cheapest as in spot_usd_per_hour; or leave spot_zones out after a change of that price"
        yield Finding(path, f"the cheapest zone costs {min(prices)}, the type {shown(spot)}", expected)


def _second_quotas(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for i, _ in repeats((row["family"], row["market"]) for row in rows):
        found = f"a second limit of {shown(rows[i]['family'])} {rows[i]['market']}"
        yield Finding(("quotas", i), found, "allowed: one of each")
