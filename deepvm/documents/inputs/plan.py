"""Plans from the documents that ``deepvm recommend -o json`` writes."""

import os
from decimal import Decimal
from math import ceil
from operator import itemgetter
from typing import Any

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedDisk, PlannedVms, PlanSource
from deepvm.core.json_types import JsonObject
from deepvm.documents.models import model_of
from deepvm.documents.reader import FileFormat
from deepvm.errors import CatalogFormatError, Issue, RequestError
from deepvm.io.safe_read import StrPath, decoded

STANDARD_INPUT = "standard input"  # Name of a piped plan in errors

PLAN = FileFormat(
    model_of("plan_file.Document"),
    "one JSON object, as `deepvm recommend --pw 3 -o json > plan.json` writes it",
)


def load_plan(path: StrPath, rank: int = 1) -> Plan:
    """Read the configuration of this rank (1 is the best) from a file."""
    return _plan(PLAN.read(path).model_dump(), os.fspath(path), rank)


def decode_plan(data: bytes, rank: int = 1) -> Plan:
    """As :func:`load_plan`, from the bytes of standard input, in UTF-8."""
    return parse_plan(decoded(STANDARD_INPUT, data, PLAN.expected), rank)


def parse_plan(content: str, rank: int = 1, name: str = STANDARD_INPUT) -> Plan:
    """As :func:`load_plan`, from JSON text that errors call ``name``."""
    return _plan(PLAN.parse(content, name).model_dump(), name, rank)


def _plan(document: JsonObject, name: str, rank: int) -> Plan:
    configurations = document["configurations"]
    if not configurations:
        message = f"the plan has no configuration: {document['reason'] or 'nothing was feasible'}"
        if document["relax"] and document["relax"]["advice"]:
            message += f"; recommend again: {document['relax']['advice']}"
        raise CatalogFormatError(name, [Issue(message)])
    chosen = next((c for c in configurations if c["rank"] == rank), None)
    if chosen is None:
        ranks = ", ".join(str(c["rank"]) for c in configurations[:20])
        raise RequestError("rank", rank, f"the ranks of {name}: {ranks}")
    problem = _contradiction(chosen)
    if problem:
        raise CatalogFormatError(name, [Issue(f"rank {rank}: {problem}")])
    rows = sorted(chosen["gpu"]["zones"] or (), key=itemgetter("usd_per_hour", "zone"))
    zones = tuple(ZonePrice(z["zone"], z["usd_per_hour"], z["zone_name"] or "") for z in rows)
    memory = None
    if nodes := chosen["memory"]:
        offered_in = tuple(nodes["zones"] or ())
        memory = _vms(nodes, on_demand_count=nodes["count"], offered_in=offered_in)
    request = document["request"] or {}
    extras = request.get("extras") or {}
    disk = None
    if extras.get("disk_gb"):
        disk = PlannedDisk(ceil(extras["disk_gb"]), extras["disk_type"] or "")
    source = _source_of(document, chosen)
    basis = source["price_basis"]
    return Plan(
        rank=rank,
        architecture=chosen["architecture"],
        training=_vms(chosen["gpu"], zones=zones),
        memory=memory,
        usd_per_hour=chosen["usd_per_hour"],
        region=chosen["region"] or source["region"] or "",
        zone=chosen["zone"] or "",
        budget=request.get("pw_usd_per_hour"),
        source=PlanSource(
            source["catalog"],
            source["kind"],
            source["prices_as_of"],
            source["source"],
            "" if basis == "current" else basis,
        ),
        warnings=tuple(chosen["warnings"]),
        disk=disk,
        nat=bool(extras.get("nat")),
    )


def _vms(vms: JsonObject, **values: Any) -> PlannedVms:
    known = {key: value for key, value in vms.items() if value is not None}
    if vms["reserved"]:
        known["reserved"] = vms["reserved"]["pool"]
    for key in ("count", "zones"):
        known.pop(key, None)
    return PlannedVms(**known | values)


def _contradiction(chosen: JsonObject) -> str:  # a plan may be edited by hand
    gpu = chosen["gpu"]
    if gpu["count"] != gpu["spot_count"] + gpu["on_demand_count"]:
        return f"gpu.count {gpu['count']} is not spot_count + on_demand_count"
    markets = ("spot", "on_demand")
    parts = [(gpu[f"{market}_count"], gpu[f"{market}_usd_per_hour"]) for market in markets]
    if memory := chosen["memory"]:
        parts.append((memory["count"], memory["on_demand_usd_per_hour"]))
    prices = [count * price for count, price in parts if count and price is not None]
    total = sum(prices, Decimal(0))
    if len(prices) == sum(count > 0 for count, _ in parts) and total != chosen["usd_per_hour"]:
        return (
            f"usd_per_hour {chosen['usd_per_hour']:f} is not the sum of counts x prices, {total:f}"
        )
    return ""


def _source_of(document: JsonObject, chosen: JsonObject) -> JsonObject:
    source: JsonObject = document["source"]
    for region in document["regions"] or ():
        if (region["cloud"], region["region"]) == (chosen["cloud"], chosen["region"]):
            source = region["source"]
    return source
