"""What is wrong with a document that a user wrote, in words a user can act on.

Two passes: the pydantic schema field by field, then the rules that join fields (a price at all, unique names, curves
that are curves). The second pass leaves out what the first has refused, so one reading shows every problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from deepvm.catalog.documents import schema
from deepvm.catalog.documents.json_file import RepeatedKeys
from deepvm.catalog.documents.serialization import build_curve, build_saturation
from deepvm.core.spelling import nearest
from deepvm.errors import Problem, RequestError

Path = tuple[str | int, ...]
"""Where something stands in a document: keys and list positions from the top."""

_CURVES: dict[object, type[BaseModel]] = {
    "hybrid": schema.HybridDocument,
    "ring": schema.RingDocument,
    "measured": schema.MeasuredDocument,
}
_CHILDREN: dict[tuple[type[BaseModel], str | int], type[BaseModel]] = {
    (schema.CatalogDocument, "n_sat"): schema.SaturationRow,
    (schema.CatalogDocument, "quotas"): schema.QuotaRow,
    (schema.CatalogDocument, "instances"): schema.InstanceDocument,
    (schema.InstanceDocument, "gpu"): schema.GpuDocument,
    (schema.InstanceDocument, "spot_zones"): schema.ZoneRow,
    (schema.MeasuredDocument, "beyond"): schema.RingParameters,
    (schema.QuotaDocument, "quotas"): schema.QuotaRow,
}
# Names that people and other tools use, where likeness of letters does not lead to ours.
_ALIASES = {
    "name": "instance_type",
    "type": "instance_type",
    "cpus": "vcpus",
    "cores": "vcpus",
    "ram": "memory_gib",
    "mem": "memory_gib",
    "bandwidth": "network_gbps",
    "network_bandwidth": "network_gbps",
    "price": "on_demand_usd_per_hour",
    "usd_per_hour": "on_demand_usd_per_hour",
    "ondemand": "on_demand_usd_per_hour",
    "on_demand": "on_demand_usd_per_hour",
    "ondemand_price": "on_demand_usd_per_hour",
    "on_demand_price": "on_demand_usd_per_hour",
    "spot": "spot_usd_per_hour",
    "spot_price": "spot_usd_per_hour",
    "flops": "eflops",
    "family": "quota_family",
    "date": "prices_as_of",
    "version": "schema_version",
}
_LARGER_UNIT = {"memory_gib": (1024, "MiB", "GiB"), "network_gbps": (1000, "Mbit/s", "Gbit/s")}
_BARE_NUMBER = re.compile(r"-?[0-9]*\.?[0-9]+", re.ASCII)
_FOUND_LENGTH = 60
_MANY = 1000


@dataclass(frozen=True)
class Finding:
    """A problem before it is known how its place is written (JSON path, or line and column).

    Attributes:
        path: where. found: what stands there, shortened. expected: what is allowed there.
    """

    path: Path
    found: str
    expected: str

    def problem(self, place: Callable[[Path], str]) -> Problem:
        """The problem with its place in words."""
        return Problem(place(self.path), self.found, self.expected)


def catalog_findings(document: object) -> list[Finding]:
    """Everything that is wrong with a catalog's document, the first 1000 fields of it; empty when it is valid."""
    findings, refused = _schema_findings(schema.CatalogDocument, document)
    if isinstance(document, Mapping) and ("schema_version",) not in refused:
        findings += islice(_joined_findings(document, refused), _MANY)
    return findings


def quota_findings(document: object) -> list[Finding]:
    """Everything that is wrong with the document of a quota file; empty when it is valid."""
    findings, _ = _schema_findings(schema.QuotaDocument, document)
    return findings or list(_twice_quota(document["quotas"]))  # type: ignore[index]  # valid, so it is an object


def json_place(document: object) -> Callable[[Path], str]:
    """How a path reads in JSON: ``instances[3] (g5.xlarge).spot_usd_per_hour``."""

    def place(path: Path) -> str:
        words = ""
        for depth, step in enumerate(path):
            if isinstance(step, int):
                words += f"[{step}]"
                name = _name_of(_value_at(document, path[: depth + 1]))
                words += f" ({name})" if name else ""
            else:
                words += f".{step}" if words else step
        return words or "top level"

    return place


def shown(value: object) -> str:
    """A value as it stands in the file, shortened; containers by their size only."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value)}"
    if isinstance(value, (Decimal, float)):
        text = str(value).replace("inf", "Infinity").replace("nan", "NaN")
    else:
        text = json.dumps(value)
    return text if len(text) <= _FOUND_LENGTH else text[: _FOUND_LENGTH - 3] + "..."


def unknown_name(name: str, allowed: Sequence[str]) -> str:
    """A did-you-mean for a misspelt name, empty when nothing is near."""
    near = nearest(name, allowed)
    alias = _ALIASES.get(name.lower(), "")
    return alias if alias in allowed else next(iter(near), "")


def field_description(model: type[BaseModel], path: Path) -> str:
    """What a schema says about a field; about the list where the item itself is wrong."""
    at: type[BaseModel] | None = model
    text = ""
    for step in path:
        if isinstance(step, str) and at is not None and step in at.model_fields:
            field = at.model_fields[step]
            text, at = field.description or "", _model_in(field.annotation)
    return text


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def repeated_keys(document: object) -> Iterator[Finding]:
    """Fields that an object has more than once, as :func:`.json_file.parse_json` marks them."""
    stack: list[tuple[Path, Any]] = [((), document)] if isinstance(document, (dict, list)) else []
    while stack:
        path, value = stack.pop()
        if isinstance(value, RepeatedKeys):
            for name in value.repeated:
                yield Finding((*path, name), "this field stands twice in its object", "allowed: every field once")
        children = value.items() if isinstance(value, dict) else enumerate(value)
        stack += [((*path, step), child) for step, child in children if isinstance(child, (dict, list))]


def _schema_findings(model: type[BaseModel], document: object) -> tuple[list[Finding], set[Path]]:
    """What the schema refuses, and the first two steps of the path to everything that it refuses."""
    findings = list(islice(repeated_keys(document), _MANY))
    refused = {f.path[:2] for f in findings}
    try:
        model.model_validate(document)
    except ValidationError as refusal:
        errors = refusal.errors(include_url=False, include_context=False, include_input=False)
        findings += [_translate(model, document, e["type"], e["loc"]) for e in errors[:_MANY]]
        refused |= {e["loc"][:2] for e in errors}
    # A file of another version is not judged by this one's fields.
    version = [f for f in findings if f.path == ("schema_version",) and f.found != "missing"]
    return version or findings, refused


def _translate(model: type[BaseModel], document: object, error: str, loc: Path) -> Finding:
    path, owner, field, item = _locate(model, loc)
    value = _value_at(document, path)
    kinds = ", ".join(map(str, _CURVES))
    if error.startswith("union_tag"):
        kind = _value_at(value, ("kind",))
        return Finding((*path, "kind"), "missing" if kind is _MISSING else shown(kind), f"allowed: {kinds}")
    if owner is None or field is None:
        return Finding(path, shown(value), _object_of(model))
    if error.startswith("model_") and isinstance(path[-1], int):
        return Finding(path, shown(value), _object_of(item) if item else f"allowed: an object with a kind of {kinds}")
    if error == "extra_forbidden":
        return _unknown_field(path, owner, field)
    # By its name in the file: $schema is no name that Python could have.
    description = next(f.description or "" for name, f in owner.model_fields.items() if field in (name, f.alias))
    if value is _MISSING:
        return Finding(path, "missing", f"allowed: {description}")
    return Finding(path, shown(value), f"allowed: {description}{_hint(field, description, value)}")


def _locate(
    model: type[BaseModel], loc: Path
) -> tuple[Path, type[BaseModel] | None, str | None, type[BaseModel] | None]:
    """The path without pydantic's union tags, the model that owns its last named field, that field, and its model."""
    path: list[str | int] = []
    at: type[BaseModel] | None = model
    owner: type[BaseModel] | None = None
    field: str | None = None
    for depth, step in enumerate(loc):
        if isinstance(step, str) and loc[depth - 2 : depth - 1] == ("speedups",) and step in _CURVES:
            at = _CURVES[step]
            continue
        path.append(step)
        if isinstance(step, str) and at is not None:
            owner, field, at = at, step, _CHILDREN.get((at, step))
    return tuple(path), owner, field, at


def _unknown_field(path: Path, owner: type[BaseModel], name: str) -> Finding:
    allowed = [n for n in owner.model_fields if n != "schema_ref"]
    near = unknown_name(name, allowed)
    meant = f"did you mean {near} ({owner.model_fields[near].description})? " if near else ""
    return Finding(path, "unknown field", f"{meant}allowed fields: {', '.join(allowed)}")


def _object_of(model: type[BaseModel]) -> str:
    needed = ", ".join(n for n, f in model.model_fields.items() if f.is_required())
    return f"allowed: an object with at least the fields {needed}"


def _hint(field: str, description: str, value: object) -> str:
    """What probably happened, when it is a matter of units or of how numbers are written."""
    if isinstance(value, str) and "number" in description:
        text = value.strip()
        if _BARE_NUMBER.fullmatch(text):
            return "; write the number without quotes or blanks"
        if _BARE_NUMBER.fullmatch(text.replace(",", ".", 1)):
            return "; write a decimal point, not a comma"
        if re.search(r"[0-9]", text):
            return "; write the number alone, without its unit"
    if field in _LARGER_UNIT and isinstance(value, (int, Decimal, float)) and not isinstance(value, bool):
        factor, small, large = _LARGER_UNIT[field]
        if factor < value < 10**15:
            return f"; if this is in {small}, write {float(value) / factor:g} ({large})"
    return ""


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


class _Missing:
    pass


_MISSING = _Missing()


def _value_at(document: object, path: Path) -> Any:
    value: Any = document
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


def _name_of(value: object) -> str:
    name = value.get("instance_type") if isinstance(value, Mapping) else None
    return name[:40] if isinstance(name, str) and name.isprintable() else ""
