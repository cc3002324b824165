"""Documents made of the objects that hold their values, as ``data/documents`` declares them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any

from deepvm.core.units import format_time
from deepvm.documents.computed import COMPUTED
from deepvm.documents.declared import FIRST, Schema, may_be_null, properties, without_null
from deepvm.documents.values import ABSENT, With, value_at

_PLAIN = {"boolean": bool, "integer": int, "number": float, "string": str}


def document_of(kind: str, item: Any) -> dict[str, Any]:
    """The document of a kind, such as ``simulation.Survive``, with the values of ``item``.

    Numbers become float where the type is number, enums their values, dates ISO 8601. Where the
    type allows null, "" and numbers that are not finite become null. A list of a mapping is one of
    its items. Keys that are not required come last, and are left out where their value is None.

    Raises AttributeError: ``item`` lacks a value.
    """
    document = {}
    for key, schema in ordered(kind).items():
        raw = _raw(key, schema, item)
        if raw is ABSENT:
            continue
        value = _plain(None, raw) if schema.get("exact") else _value(schema, raw)
        # A value that a caller passes with ``With`` is in the document even if it is None
        given = "null" in schema or (isinstance(item, With) and key in item.values)
        if value is not None or given or not schema.get("optional"):
            document[key] = value
    return document


@cache
def ordered(kind: str) -> dict[str, Schema]:
    """The properties of an object, in the order of the document."""
    schemas = properties(kind)
    order = sorted(schemas, key=lambda key: bool(schemas[key].get("optional")))
    # Reversed: of several keys after the same one, the last that is inserted comes first
    for key in [key for key in reversed(order) if "after" in schemas[key]]:
        earlier = schemas[key]["after"]
        order.remove(key)
        order.insert(0 if earlier == FIRST else order.index(earlier) + 1, key)
    return {key: schemas[key] for key in order}


def _raw(key: str, schema: Schema, item: Any) -> Any:
    if "computed" in schema:
        return COMPUTED[schema["computed"]](value_at(item, schema.get("at", "")))
    if "const" in schema:
        return schema["const"]
    value = value_at(item, schema.get("at", key))
    if "digits" in schema and value is not None:
        return round(value, schema["digits"])
    return value


def _value(schema: Schema, value: Any) -> Any:
    # Objects have an empty text or infinity for what is unknown or unlimited
    if value is None or (may_be_null(schema) and (value == "" or _is_not_finite(value))):
        return None
    schema = without_null(schema)
    if "$ref" in schema:
        return document_of(schema["$ref"], value)
    if "items" in schema:
        elements = value.items() if isinstance(value, Mapping) else value
        return [_value(schema["items"], element) for element in elements]
    if "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {key: _value(inner, element) for key, element in dict(value).items()}
    return _plain(schema.get("type"), value)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(kind: Any, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(kind, str):
        return _PLAIN[kind](value)
    return float(value) if isinstance(value, Decimal) else value
