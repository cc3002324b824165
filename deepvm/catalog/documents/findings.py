"""What is wrong with a document that users write: place, value and what is allowed.

Two passes find every problem at once: pydantic's errors, each with the description of its field,
word for word; then, in the parts that the first pass accepted, the rules that join fields (any
price, unique names, proper curves).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from deepvm import __version__
from deepvm.catalog.documents.json_file import RepeatedKeys
from deepvm.catalog.documents.schema import CatalogDocument, QuotaDocument
from deepvm.catalog.documents.serialization import build_curve, build_saturation
from deepvm.core.spelling import nearest
from deepvm.errors import CatalogFormatError, Problem, RequestError

DocumentPath = tuple[str | int, ...]
"""Where something stands in a document: keys and list positions from the top."""

Place = Callable[[DocumentPath], str]
"""How a path reads in a kind of file."""

MANY = 1000
"""Problems of one file that are reported."""

# Names that people and other tools use, where likeness of letters does not lead to ours.
_ALIASES = {
    "instance_type": ("name", "type"),
    "vcpus": ("cpus", "cores"),
    "memory_gib": ("ram", "mem"),
    "network_gbps": ("bandwidth", "network_bandwidth"),
    "on_demand_usd_per_hour": (
        "price",
        "usd_per_hour",
        "ondemand",
        "on_demand",
        "ondemand_price",
        "on_demand_price",
    ),
    "spot_usd_per_hour": ("spot", "spot_price"),
    "eflops": ("flops",),
    "quota_family": ("family",),
    "prices_as_of": ("date",),
    "schema_version": ("version",),
}
_LARGER_UNIT = {"memory_gib": (1024, "MiB", "GiB"), "network_gbps": (1000, "Mbit/s", "Gbit/s")}
_BARE_NUMBER = re.compile(r"-?[0-9]*\.?[0-9]+", re.ASCII)
_FOUND_LENGTH = 60
_MISSING = object()


@dataclass(frozen=True)
class ValidationIssue:
    """A :class:`~deepvm.errors.Problem` whose place is not in words yet (JSON path, or line and column)."""

    path: DocumentPath
    found: str
    expected: str


def refuse(
    name: Path | str,
    findings: Iterable[ValidationIssue],
    place: Place,
    problems: Iterable[Problem] = (),
) -> None:
    """Raise a CatalogFormatError with every problem and finding, if there are any."""
    found = [*problems, *(Problem(place(f.path), f.found, f.expected) for f in findings)]
    if found:
        raise CatalogFormatError(name, found)


def json_place(document: object) -> Place:
    """How a path reads in JSON: ``instances[3] (g5.xlarge).spot_usd_per_hour``."""

    def place(path: DocumentPath) -> str:
        words, value = "", document
        for step in path:
            value = _at(value, step)
            if isinstance(step, str):
                words += f".{step}" if words else step
                continue
            name = _at(value, "instance_type")
            words += f"[{step}]"
            if isinstance(name, str) and name and name.isprintable():
                words += f" ({name[:40]})"
        return words or "top level"

    return place


def shown(value: object) -> str:
    """A value as it stands in the file, shortened; containers by their size only."""
    if value is _MISSING:
        return "missing"
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
    """What a misspelt name probably means, empty when nothing is near."""
    known_as = (
        field for field, others in _ALIASES.items() if name.lower() in others and field in allowed
    )
    return next(iter([*known_as, *nearest(name, allowed)]), "")


def repeats(keys: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Positions of keys that came before, each with the position of the first one."""
    first: dict[Hashable, int] = {}
    for i, key in enumerate(keys):
        if first.setdefault(key, i) != i:
            yield i, first[key]


def repeated_keys(document: object) -> list[ValidationIssue]:
    """Fields that an object has more than once, as :func:`.json_file.parse_json` marks them.

    The first 1000.
    """
    paths = (
        (*p, name)
        for p, o in containers(document)
        if isinstance(o, RepeatedKeys)
        for name in o.repeated
    )
    found = "this field appears twice in its object"
    return [
        ValidationIssue(path, found, "allowed: every field once") for path in islice(paths, MANY)
    ]


def containers(document: object) -> Iterator[tuple[DocumentPath, dict[str, Any] | list[Any]]]:
    """Every object and list of a document, with its path."""
    stack: list[tuple[DocumentPath, Any]] = [((), document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, (dict, list)):
            yield path, value
            children = value.items() if isinstance(value, dict) else enumerate(value)
            stack += [
                ((*path, step), child)
                for step, child in children
                if isinstance(child, (dict, list))
            ]


def schema_findings(model: type[BaseModel], document: object) -> list[ValidationIssue]:
    """What a schema refuses, one finding for each field, the first 1000; repeated keys come first.

    An object of another version is not judged by this one's fields.
    """
    found = repeated_keys(document)
    try:
        model.model_validate(document)
    except ValidationError as refusal:
        errors = refusal.errors(include_url=False, include_context=False, include_input=False)
        translated = (_translate(model, document, e["type"], e["loc"]) for e in errors[:MANY])
        # A union refuses in the name of each of its members
        found += {f.path: f for f in translated}.values()
    versions = {
        f.path for f in found if f.path[-1:] == ("schema_version",) and f.found != "missing"
    }
    others = [v[:-1] for v in versions]
    return [
        f for f in found if f.path in versions or not any(f.path[: len(o)] == o for o in others)
    ]


def _translate(
    model: type[BaseModel], document: object, error: str, loc: DocumentPath
) -> ValidationIssue:
    """Follow an error's location through the document and the schema, to the field whose description tells."""
    path: DocumentPath = ()
    parent, value = None, document
    models: tuple[type[BaseModel], ...] = (model,)
    owner = field = None
    for step in loc:
        if isinstance(step, str) and len(models) > 1:  # the kind of a union's member, not a step
            models = tuple(m for m in models if step in _kinds(m))
            continue
        if isinstance(step, str) and not models:
            break  # the type of a member of a union of plain types
        path, parent, value = (*path, step), value, _at(value, step)
        if isinstance(step, str):
            owner = models[0]
            # Also by its name in the file: $schema is no name that Python could have.
            field = next(
                (f for name, f in owner.model_fields.items() if step in (name, f.alias)), None
            )
            models = _models_in(field.annotation) if field else ()
    kinds = ", ".join(kind for m in models for kind in _kinds(m)) if len(models) > 1 else ""
    if error.startswith("union_tag"):
        return ValidationIssue((*path, "kind"), shown(_at(value, "kind")), f"allowed: {kinds}")
    if owner is None:
        version = model.model_fields["schema_version"].description
        return ValidationIssue(
            path, shown(value), f"allowed: an object with the schema_version {version}"
        )
    if field is None:
        allowed = [n for n in owner.model_fields if n != "schema_ref"]
        near = unknown_name(str(path[-1]), allowed)
        meant = f"did you mean {near} ({owner.model_fields[near].description})? " if near else ""
        return ValidationIssue(
            path, "unknown field", f"{meant}allowed fields: {', '.join(allowed)}"
        )
    if error.startswith("model_") and isinstance(path[-1], int):
        needed = ", ".join(n for n, f in models[0].model_fields.items() if f.is_required())
        what = f"a kind of {kinds}" if kinds else f"at least the fields {needed}"
        return ValidationIssue(path, shown(value), f"allowed: an object with {what}")
    description = field.description or ""
    if path[-1] == "schema_version":
        hint = _newer(get_args(field.annotation)[0], value, parent)
    else:
        hint = _hint(path[-1], description, value)
    return ValidationIssue(path, shown(value), f"allowed: {description}{hint}")


def _models_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(model for part in get_args(annotation) for model in _models_in(part))


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["kind"].annotation)


def _newer(known: str, version: object, document: object) -> str:
    """Which deepvm reads a file of a newer version."""
    family, _, number = known.partition("/")
    pattern = rf"{re.escape(family)}/([0-9]{{1,9}})"
    match = re.fullmatch(pattern, version, re.ASCII) if isinstance(version, str) else None
    if match is None or int(match[1]) <= int(number):
        return ""
    by = _at(document, "deepvm")
    known_by = isinstance(by, str) and re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", by)
    which = f"deepvm {by} or newer" if known_by else "a newer deepvm"
    return f"; this file needs {which}, this is {__version__}: pip install --upgrade deepvm"


def _hint(field: str | int, description: str, value: object) -> str:
    """What probably happened, when it is a matter of units or of how numbers are written."""
    if isinstance(value, str) and "number" in description:
        text = value.strip()
        if _BARE_NUMBER.fullmatch(text):
            return "; write the number without quotes or blanks"
        if _BARE_NUMBER.fullmatch(text.replace(",", ".", 1)):
            return "; write a decimal point, not a comma"
        if re.search(r"[0-9]", text):
            return "; write the number alone, without its unit"
    if (
        field in _LARGER_UNIT
        and isinstance(value, (int, Decimal, float))
        and not isinstance(value, bool)
    ):
        factor, small, large = _LARGER_UNIT[field]
        if factor < value < 10**15:
            return f"; if this is in {small}, write {float(value) / factor:g} ({large})"
    return ""


def _at(value: Any, step: str | int) -> Any:
    try:
        return value[step]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def catalog_findings(document: object) -> list[ValidationIssue]:
    """Everything that is wrong with a catalog's document, the first 1000 fields of it.

    Empty when it is valid.
    """
    findings = schema_findings(CatalogDocument, document)
    refused = {f.path[:2] for f in findings}
    if (
        isinstance(document, Mapping)
        and ("schema_version",) not in refused
        and len(findings) < MANY
    ):
        findings += islice(_joined_findings(document, refused), MANY)
    return findings


def quota_findings(document: object) -> list[ValidationIssue]:
    """Everything that is wrong with the document of a quota file; empty when it is valid."""
    return schema_findings(QuotaDocument, document) or list(_second_quotas(document["quotas"]))  # type: ignore[index]  # valid, so it is an object


def _joined_findings(
    document: Mapping[str, Any], refused: set[DocumentPath]
) -> Iterator[ValidationIssue]:
    parts = {path[0] for path in refused}
    if document.get("n_sat") is not None and "n_sat" not in parts:
        try:
            build_saturation(document["n_sat"])
        except RequestError as error:
            twice = error.option == "network_gbps"
            found = (
                "two rows for one bandwidth" if twice else "n_sat falls while the bandwidth grows"
            )
            yield ValidationIssue(("n_sat",), found, f"allowed: {error.allowed}")
    if "quotas" not in parts:
        yield from _second_quotas(document.get("quotas", ()))
    instances = document.get("instances")
    if not isinstance(instances, list):
        return
    names = [i.get("instance_type") if isinstance(i, Mapping) else None for i in instances]
    # An invalid name is reported already; its position is the key, since it may be unhashable.
    for i, first in repeats(
        name if isinstance(name, str) and name else i for i, name in enumerate(names)
    ):
        expected = f"allowed: every name once; the first is instance {first + 1}"
        yield ValidationIssue(
            ("instances", i, "instance_type"), f"{shown(names[i])} appears twice", expected
        )
    for i, instance in enumerate(instances):
        if ("instances", i) not in refused and ("instances",) not in refused:
            yield from _instance_findings(("instances", i), instance)


def _instance_findings(
    path: DocumentPath, instance: Mapping[str, Any]
) -> Iterator[ValidationIssue]:
    if instance.get("on_demand_usd_per_hour") is None and instance.get("spot_usd_per_hour") is None:
        yield ValidationIssue(
            path,
            "no price",
            "allowed: on_demand_usd_per_hour or spot_usd_per_hour, or both, in $/h",
        )
    yield from _zone_findings((*path, "spot_zones"), instance)
    curves = instance.get("speedups", ())
    for j, _ in repeats((c["kind"], c.get("workload")) for c in curves):
        workload = curves[j].get("workload")
        about = f"workload {shown(workload)}" if workload else "no workload (the general one)"
        found = f"a second {curves[j]['kind']} curve with {about}"
        yield ValidationIssue(
            (*path, "speedups", j), found, "allowed: one of each kind and workload"
        )
    for j, curve in enumerate(curves):
        try:
            build_curve(curve)
        except RequestError as error:
            found = shown(curve.get(error.option))
            yield ValidationIssue(
                (*path, "speedups", j, error.option), found, f"allowed: {error.allowed}"
            )


def _zone_findings(path: DocumentPath, instance: Mapping[str, Any]) -> Iterator[ValidationIssue]:
    rows = instance.get("spot_zones", ())
    prices = [Decimal(str(row["usd_per_hour"])) for row in rows]
    for j, _ in repeats(row["zone"] for row in rows):
        yield ValidationIssue(
            (*path, j),
            f"a second price of zone {shown(rows[j]['zone'])}",
            "allowed: one of each zone",
        )
    if prices != sorted(prices):
        yield ValidationIssue(path, "not sorted by price", "allowed: the cheapest zone first")
    spot = instance.get("spot_usd_per_hour")
    if prices and (spot is None or Decimal(str(spot)) != min(prices)):
        expected = (
            "allowed: the cheapest as in spot_usd_per_hour; or leave spot_zones out after a change"
            " of that price"
        )
        yield ValidationIssue(
            path, f"the cheapest zone costs {min(prices)}, the type {shown(spot)}", expected
        )


def _second_quotas(rows: Sequence[Mapping[str, Any]]) -> Iterator[ValidationIssue]:
    for i, _ in repeats((row["family"], row["market"]) for row in rows):
        found = f"a second limit of {shown(rows[i]['family'])} {rows[i]['market']}"
        yield ValidationIssue(("quotas", i), found, "allowed: one of each")
