"""Pydantic models of files that ``data/documents`` declares, for :mod:`deepvm.documents.reader`.

Besides the words of :mod:`deepvm.documents.declared`, a value may have JSON Schema's limits,
``decimalPlaces``, a ``default``, and a ``format``:

- of texts: ``line``, ``name``, ``type``, ``visible``, ``time``, ``day``; ``instant``, which becomes
  one; of what a job file says, ``span`` and ``lifetimes``, seconds or a list of them;
- of numbers that may stand in a text, as all do in CSV: ``count``, ``amount``, ``price``; those
  that may be short, such as ``7B``: ``short_count``, ``short_amount``;
- of numbers that keep all their digits: ``exact``; of switches in CSV: ``flag``.

``discriminator``: the key by which several objects differ. A value that may be null is null by
default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, Field, StrictBool, create_model

from deepvm.documents import fields
from deepvm.documents.declared import Schema, declared, may_be_null, without_null
from deepvm.documents.reader import Rules

_TYPES: dict[str, Any] = {
    "integer": fields.StrictWhole,
    "number": fields.StrictNumber,
    "string": str,
    "boolean": StrictBool,
    "object": dict[str, Any],
    "null": None,
    "line": fields.Text,
    "name": fields.Name,
    "type": fields.TypeName,
    "time": fields.Moment,
    "count": fields.Whole,
    "amount": fields.Number,
    "short_count": fields.ShortWhole,
    "short_amount": fields.ShortNumber,
    "price": fields.Price,
    "exact": fields.Exact,
    "day": fields.Day,
    "instant": fields.Instant,
    "visible": fields.Visible,
    "span": fields.Span,
    "lifetimes": fields.Lifetimes,
    "flag": bool,
}
_LIMITS = {
    "exclusiveMinimum": "gt",
    "minimum": "ge",
    "exclusiveMaximum": "lt",
    "maximum": "le",
    "decimalPlaces": "decimal_places",
    "pattern": "pattern",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "discriminator": "discriminator",
}


@cache
def model_of(name: str) -> type[BaseModel]:
    """The model of a declared object, such as ``tables._Entry``.

    It refuses unknown keys unless the declaration has ``additionalProperties``.
    """
    about = declared(name)
    members: dict[str, Any] = {}
    for key, schema in about["properties"].items():
        default = schema.get("default", None if may_be_null(schema) else ...)
        description = schema.get("description")
        members[key] = (_type(schema), Field(default, description=description, **_limits(schema)))
    base = fields.Lenient if about.get("additionalProperties") else fields.Strict
    model = create_model(name.rpartition(".")[2], __base__=base, **members)
    model.__doc__ = about.get("description")
    return model


def by_values(rules: Callable[[Mapping[str, Any]], Rules]) -> Callable[[BaseModel], Rules]:
    """Rules of a :class:`FileFormat` that read a document as plain data."""
    return lambda document: rules(document.model_dump())


def _limits(schema: Schema) -> dict[str, Any]:
    return {_LIMITS[word]: schema[word] for word in schema if word in _LIMITS}


def _bounded(schema: Schema) -> Any:
    return Annotated[_type(schema), Field(**_limits(schema))]


def _element(schema: Schema) -> Any:
    """A number in a tuple: pydantic writes its limits into the schema if they come first."""
    kind, *checks = get_args(_type(schema))
    return Annotated[(kind, Field(**_limits(schema)), *checks)]


def _type(schema: Schema) -> Any:
    other = without_null(schema)
    if other is not schema:
        return _type(other) | None
    if "anyOf" in schema:
        return Union[tuple(map(_bounded, schema["anyOf"]))]  # noqa: UP007
    if "$ref" in schema:
        return model_of(schema["$ref"])
    if "const" in schema or "enum" in schema:
        return Literal[tuple(schema.get("enum", [schema.get("const")]))]
    if "prefixItems" in schema:
        return tuple[tuple(map(_element, schema["prefixItems"]))]  # type: ignore[misc]
    if schema["type"] == "array":
        return list[_bounded(schema["items"])]  # type: ignore[misc]
    return _TYPES[schema.get("format", schema["type"])]
