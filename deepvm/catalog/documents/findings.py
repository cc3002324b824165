"""What is wrong with a document, field by field: pydantic's errors as place, value and what is allowed.

One translation for every file that users write. A field's description in its schema is what its error says, word for
word; the value is shown as it stands in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path as FilePath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from deepvm.catalog.documents.json_file import RepeatedKeys
from deepvm.core.spelling import nearest
from deepvm.errors import CatalogFormatError, Problem

Path = tuple[str | int, ...]
"""Where something stands in a document: keys and list positions from the top."""

MANY = 1000
"""Problems of one file that are told."""

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


@dataclass(frozen=True)
class Finding:
    """A problem before it is known how its place is written (JSON path, or line and column).

    Attributes:
        path: where. found: what stands there, shortened. expected: what is allowed there.
    """

    path: Path
    found: str
    expected: str

    def below(self, path: Path) -> Finding:
        """The same in a document that stands at this path of another one."""
        return replace(self, path=(*path, *self.path))

    def problem(self, place: Callable[[Path], str]) -> Problem:
        """The problem with its place in words."""
        return Problem(place(self.path), self.found, self.expected)


def refuse(
    name: FilePath | str,
    findings: Iterable[Finding],
    place: Callable[[Path], str],
    problems: Iterable[Problem] = (),
) -> None:
    """Raise if anything was found.

    Raises:
        CatalogFormatError: with every problem and finding.
    """
    found = [*problems, *(f.problem(place) for f in findings)]
    if found:
        raise CatalogFormatError(name, found)


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


def repeated_keys(document: object) -> Iterator[Finding]:
    """Fields that an object has more than once, as :func:`.json_file.parse_json` marks them; the first 1000."""
    return islice(_repeated(document), MANY)


def _repeated(document: object) -> Iterator[Finding]:
    stack: list[tuple[Path, Any]] = [((), document)] if isinstance(document, (dict, list)) else []
    while stack:
        path, value = stack.pop()
        if isinstance(value, RepeatedKeys):
            for name in value.repeated:
                yield Finding((*path, name), "this field stands twice in its object", "allowed: every field once")
        children = value.items() if isinstance(value, dict) else enumerate(value)
        stack += [((*path, step), child) for step, child in children if isinstance(child, (dict, list))]


def schema_findings(model: type[BaseModel], document: object) -> list[Finding]:
    """What a schema refuses, one finding for each field, the first 1000."""
    try:
        model.model_validate(document)
    except ValidationError as refusal:
        errors = refusal.errors(include_url=False, include_context=False, include_input=False)
        found = (_translate(model, document, e["type"], e["loc"]) for e in errors[:MANY])
        return list({f.path: f for f in found}.values())  # a union refuses in the name of each of its members
    return []


@dataclass
class _Spot:
    """Where an error's location leads in a document and in its schema.

    Attributes:
        path: the location without pydantic's tags of unions. value: what stands there in the document.
        models: the objects that may stand there. owner: the object that has the last named field.
        name: of that field. field: what the schema knows of it, None where it does not.
    """

    path: Path
    value: Any
    models: tuple[type[BaseModel], ...]
    owner: type[BaseModel] | None = None
    name: str = ""
    field: FieldInfo | None = None

    def follow(self, loc: Path) -> None:
        for step in loc:
            if isinstance(step, str) and len(self.models) > 1:
                self.models = tuple(m for m in self.models if step in _kinds(m))
                continue
            if isinstance(step, str) and not isinstance(self.value, Mapping):
                return  # the tag of a union of plain types
            self.path, self.value = (*self.path, step), _value_at(self.value, (step,))
            if isinstance(step, str) and self.models:
                self.owner, self.name, self.field = self.models[0], step, _field(self.models[0], step)
                self.models = _models_in(self.field.annotation) if self.field else ()


def _translate(model: type[BaseModel], document: object, error: str, loc: Path) -> Finding:
    spot = _Spot((), document, (model,))
    spot.follow(loc)
    path, value = spot.path, spot.value
    if error.startswith("union_tag"):
        kind = _value_at(value, ("kind",))
        return Finding((*path, "kind"), _shown_or_missing(kind), f"allowed: {_all_kinds(spot.models)}")
    if spot.owner is None:
        return Finding(path, shown(value), _object_of(model))
    if spot.field is None:
        return _unknown_field(path, spot.owner, spot.name)
    if error.startswith("model_") and isinstance(path[-1], int):
        return Finding(path, shown(value), _object_of(*spot.models))
    description = spot.field.description or ""
    hint = "" if value is _MISSING else _hint(spot.name, description, value)
    return Finding(path, _shown_or_missing(value), f"allowed: {description}{hint}")


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    # By its name in the file: $schema is no name that Python could have.
    return next((f for n, f in model.model_fields.items() if name in (n, f.alias)), None)


def _models_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(model for part in get_args(annotation) for model in _models_in(part))


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["kind"].annotation)


def _all_kinds(models: Iterable[type[BaseModel]]) -> str:
    return ", ".join(kind for model in models for kind in _kinds(model))


def _unknown_field(path: Path, owner: type[BaseModel], name: str) -> Finding:
    allowed = [n for n in owner.model_fields if n != "schema_ref"]
    near = unknown_name(name, allowed)
    meant = f"did you mean {near} ({owner.model_fields[near].description})? " if near else ""
    return Finding(path, "unknown field", f"{meant}allowed fields: {', '.join(allowed)}")


def _object_of(model: type[BaseModel], *others: type[BaseModel]) -> str:
    if others:
        return f"allowed: an object with a kind of {_all_kinds((model, *others))}"
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


class _Missing:
    pass


_MISSING = _Missing()


def _shown_or_missing(value: object) -> str:
    return "missing" if value is _MISSING else shown(value)


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
