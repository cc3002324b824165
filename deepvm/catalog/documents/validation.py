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

from pydantic import BaseModel

from deepvm.catalog.documents.findings import MANY, Finding, Path, repeated_keys, schema_findings, shown
from deepvm.catalog.documents.schema import CatalogDocument, QuotaDocument
from deepvm.catalog.documents.serialization import build_curve, build_saturation
from deepvm.errors import RequestError


def catalog_findings(document: object) -> list[Finding]:
    """Everything that is wrong with a catalog's document, the first 1000 fields of it; empty when it is valid."""
    findings = _field_findings(CatalogDocument, document)
    refused = {f.path[:2] for f in findings}
    if isinstance(document, Mapping) and ("schema_version",) not in refused and len(findings) < MANY:
        findings += islice(_joined_findings(document, refused), MANY)
    return findings


def quota_findings(document: object) -> list[Finding]:
    """Everything that is wrong with the document of a quota file; empty when it is valid."""
    return _field_findings(QuotaDocument, document) or list(_twice_quota(document["quotas"]))  # type: ignore[index]  # valid, so it is an object


def _field_findings(model: type[BaseModel], document: object) -> list[Finding]:
    findings = [*repeated_keys(document), *schema_findings(model, document)]
    # A file of another version is not judged by this one's fields.
    version = [f for f in findings if f.path == ("schema_version",) and f.found != "missing"]
    return version or findings


def _joined_findings(document: Mapping[str, Any], refused: set[Path]) -> Iterator[Finding]:
    if document.get("n_sat") is not None and not _any_below(("n_sat",), refused):
        try:
            build_saturation(document["n_sat"])
        except RequestError as error:
            twice = error.option == "network_gbps"
            found = "two rows for one bandwidth" if twice else "n_sat falls while the bandwidth grows"
            yield Finding(("n_sat",), found, f"allowed: {error.allowed}")
    if not _any_below(("quotas",), refused):
        yield from _twice_quota(document.get("quotas", ()))
    instances = document.get("instances")
    if not isinstance(instances, list):
        return
    first: dict[str, int] = {}
    for i, instance in enumerate(instances):
        name = instance.get("instance_type") if isinstance(instance, Mapping) else None
        if isinstance(name, str) and name and first.setdefault(name, i) != i:
            where = ("instances", i, "instance_type")
            expected = f"allowed: every name once; the first is instance {first[name] + 1}"
            yield Finding(where, f"{shown(name)} stands twice", expected)
        if ("instances", i) not in refused and ("instances",) not in refused:
            yield from _instance_findings(("instances", i), instance)


def _instance_findings(path: Path, instance: Mapping[str, Any]) -> Iterator[Finding]:
    if instance.get("on_demand_usd_per_hour") is None and instance.get("spot_usd_per_hour") is None:
        yield Finding(path, "no price", "allowed: on_demand_usd_per_hour or spot_usd_per_hour, or both, in $/h")
    yield from _zone_findings((*path, "spot_zones"), instance)
    seen: set[tuple[str, str | None]] = set()
    for j, raw in enumerate(instance.get("speedups", ())):
        which = (raw["kind"], raw.get("workload"))
        if which in seen:
            about = f"workload {shown(which[1])}" if which[1] else "no workload (the general one)"
            found = f"a second {which[0]} curve with {about}"
            yield Finding((*path, "speedups", j), found, "allowed: one of each kind and workload")
        seen.add(which)
        try:
            build_curve(raw)
        except RequestError as error:
            found = shown(raw.get(error.option))
            yield Finding((*path, "speedups", j, error.option), found, f"allowed: {error.allowed}")


def _zone_findings(path: Path, instance: Mapping[str, Any]) -> Iterator[Finding]:
    rows = instance.get("spot_zones", ())
    prices = [Decimal(str(row["usd_per_hour"])) for row in rows]
    zones = [row["zone"] for row in rows]
    for j, zone in enumerate(zones):
        if zone in zones[:j]:
            yield Finding((*path, j), f"a second price of zone {shown(zone)}", "allowed: one of each zone")
    if prices != sorted(prices):
        yield Finding(path, "not sorted by price", "allowed: the cheapest zone first")
    spot = instance.get("spot_usd_per_hour")
    if prices and (spot is None or Decimal(str(spot)) != min(prices)):
        expected = "allowed: the cheapest as in spot_usd_per_hour; or leave spot_zones out after a change of that price"
        yield Finding(path, f"the cheapest zone costs {min(prices)}, the type {shown(spot)}", expected)


def _twice_quota(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for i, row in enumerate(rows):
        which = (row["family"], row["market"])
        if which in seen:
            yield Finding(("quotas", i), f"a second limit of {shown(which[0])} {which[1]}", "allowed: one of each")
        seen.add(which)


def _any_below(path: Path, refused: set[Path]) -> bool:
    return any(r[: len(path)] == path for r in refused)
