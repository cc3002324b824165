"""Documents made of the objects that hold their values, as :class:`Document` says."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from deepvm.documents.document import FIRST, At, attribute, fields_of, is_object, source_of
from deepvm.io.times import format_time

ABSENT: Any = object()
"""The value of a key that is left out."""


class With:
    """An object with more values, which also replace its own; they appear even if None."""

    def __init__(self, item: Any, **values: Any) -> None:
        self.item = item
        self.values = values

    def __getattr__(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        return attribute(self.item, name)


def document_of(kind: Any, item: Any) -> dict[str, Any]:
    """The document of type ``kind`` with the values of ``item``.

    Numbers become float where the type says float, enums their values, dates ISO 8601. Where the
    type allows null, "" and numbers that are not finite become null. Keys that are not required
    come last, and are left out where their value is None.

    Raises AttributeError: ``item`` lacks a value.
    """
    document = {}
    for key, (hint, source) in _sources(kind).items():
        raw = source.read(item)
        if raw is ABSENT:
            continue
        value = _value(hint, raw)
        given = isinstance(item, With) and key in item.values
        if value is not None or given or key in kind.__required_keys__:
            document[key] = value
    return document


@cache
def _sources(kind: Any) -> dict[str, tuple[Any, At]]:
    """Type and source of each key."""
    sources: dict[str, tuple[Any, At]] = {}
    fields = fields_of(kind)
    order = sorted(fields, key=lambda key: key not in kind.__required_keys__)
    moved = []
    for key in order:
        hint = fields[key]
        while get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        source = source_of(kind, key)
        if source.exact:
            hint = Any
        elif (
            get_origin(hint) is Literal
            and len(get_args(hint)) == 1
            and key in kind.__required_keys__
        ):
            source = At(partial(_constant, get_args(hint)[0]))
        sources[key] = (hint, source)
        if source.after:
            moved.append((key, source.after))
    for key, earlier in reversed(moved):
        order.remove(key)
        order.insert(0 if earlier == FIRST else order.index(earlier) + 1, key)
    return {key: sources[key] for key in order}


def _constant(value: Any, item: Any) -> Any:
    return value


def _value(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        return _value(get_args(hint)[0], value)
    if origin in (Union, UnionType):
        return _optional(hint, value)
    if value is None:
        return None
    if is_object(hint):
        return document_of(hint, value)
    if origin is list:
        return [_value(get_args(hint)[0], element) for element in value]
    if origin is dict:
        return {key: _value(get_args(hint)[1], element) for key, element in dict(value).items()}
    return _scalar(hint, value)


def _optional(hint: Any, value: Any) -> Any:
    """A value that may be null, or of one of several types."""
    others = [option for option in get_args(hint) if option is not NoneType]
    nullable = len(others) < len(get_args(hint))
    if nullable and (value is None or value == "" or _is_not_finite(value)):
        return None
    if len(others) == 1:
        return _value(others[0], value)
    return _scalar(hint, value)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _scalar(hint: Any, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if hint in (bool, float, str):
        return hint(value)
    return float(value) if isinstance(value, Decimal) else value
