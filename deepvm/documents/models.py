"""Pydantic models of files that ``data/documents`` declares, for :mod:`deepvm.documents.reader`.

Besides the words of :mod:`deepvm.documents.declared`, a value may have JSON Schema's limits,
``decimalPlaces``, a ``default``, and a ``format``:

- of texts: ``line``, ``name``, ``type``, ``visible``, ``time``, ``day``; ``instant``, which becomes
  one; of what a job file says, ``span`` and ``lifetimes``, seconds or a list of them;
- of numbers that may stand in a text, as all do in CSV: ``count``, ``amount``, ``price``; those
  that may be short, such as ``7B``: ``short_count``, ``short_amount``;
- of numbers that keep all their digits: ``exact``; that may be NaN or infinite: ``not_finite``;
  of switches in CSV: ``flag``;
- of texts without blanks at their ends: ``stripped``; of times with a unit, in seconds:
  ``duration``; and those that the reader of a file adds to ``FORMATS``.

``discriminator``: the key by which several objects differ. A value that may be null is null by
default, an object may have the default ``{}``.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, Field, create_model

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.documents import fields
from deepvm.documents.declared import Schema, declared, may_be_null, without_null
from deepvm.documents.reader import Rules

# Files that declare what the lab has written: exact types, and keys lack only if ``optional``
_RECORDS = ("lab", "logs")
_OPTIONS = {
    "description": "description",
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
    """The model of a declared object, such as ``tables._Entry``."""
    about = declared(name)
    record = name.partition(".")[0] in _RECORDS
    members: dict[str, Any] = {}
    for key, schema in about["properties"].items():
        if record:
            may_lack = schema.get("optional")
        else:
            may_lack = may_be_null(schema)
        default = schema.get("default", None if may_lack else ...)
        checked = default == {}  # it becomes an object
        about_it = Field(default, validate_default=checked, **_options(schema))
        members[key] = (_type(schema), about_it)
    base: type[BaseModel] = fields.Strict
    if about.get("additionalProperties"):
        base = fields.Lenient
    if record:
        base = fields.Record
    model = create_model(name.rpartition(".")[2], __base__=base, **members)
    model.__doc__ = about.get("description")
    return model


def by_values(rules: Callable[[JsonObject], Rules]) -> Callable[[BaseModel], Rules]:
    """Rules of a :class:`FileFormat` that read a document as plain data."""
    return lambda document: rules(document.model_dump())


def _options(schema: Schema) -> JsonDict:
    return {_OPTIONS[word]: schema[word] for word in schema if word in _OPTIONS}


def _bounded(schema: Schema) -> Any:
    options = _options(schema)
    if options:
        return Annotated[_type(schema), Field(**options)]
    return _type(schema)


def _element(schema: Schema) -> Any:
    kind, *checks = get_args(_type(schema))
    return Annotated[(kind, Field(**_options(schema)), *checks)]


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
    kind = schema.get("type", "any")
    if kind == "array":
        return list[_bounded(schema["items"])]  # type: ignore[misc]
    if "additionalProperties" in schema:
        names = schema.get("propertyNames", {"type": "string"})
        return dict[_bounded(names), _bounded(schema["additionalProperties"])]  # type: ignore[misc]
    return fields.FORMATS[schema.get("format", kind)]
