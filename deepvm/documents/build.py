"""Documents made of the objects that hold their values, as the type of the document says.

A key is read from the attribute (or the key) of the same name, or from where ``At`` says::

    class Zone(TypedDict):
        zone: str | None
        usd_per_hour: Annotated[float, At("newest")]
        sold_share: Annotated[float, At(lambda zone: zone.sold / zone.versions)]

    document_of(Zone, zone_prices)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import is_typeddict

from deepvm.documents.json_schema import fields_of
from deepvm.io.times import format_time

FIRST = "^"
"""In place of a key that comes before."""


@dataclass(frozen=True)
class At:
    """Where the value of a key is: a path of attributes, or a function of the object.

    ``exact``: a number stays int where it is one, though the type says float. ``after``: the key
    that it follows, or :data:`FIRST`.
    """

    source: str | Callable[[Any], Any]
    exact: bool = False
    after: str = ""

    def read(self, item: Any) -> Any:
        if callable(self.source):
            return self.source(item)
        for name in self.source.split("."):
            if item is None:
                return None
            item = _attribute(item, name)
        return item


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
        return _attribute(self.item, name)


def document_of(kind: Any, item: Any) -> dict[str, Any]:
    """The document of type ``kind`` (a TypedDict) with the values of ``item``.

    Numbers become float where the type says float, enums their values, dates ISO 8601. Where the
    type allows null, "" and numbers that are not finite become null. Keys that are not required
    come last, and are left out where their value is None.

    Raises AttributeError: ``item`` lacks a value.
    """
    document = {}
    for key, (hint, source) in _sources(kind).items():
        raw = source.read(item) if source else get_args(hint)[0]
        if raw is ABSENT:
            continue
        value = _value(hint, raw)
        given = isinstance(item, With) and key in item.values
        if value is not None or given or key in kind.__required_keys__:
            document[key] = value
    return document


@cache
def _sources(kind: Any) -> dict[str, tuple[Any, At | None]]:
    """Type and source of each key; a constant has no source."""
    sources: dict[str, tuple[Any, At | None]] = {}
    fields = fields_of(kind)
    order = sorted(fields, key=lambda key: key not in kind.__required_keys__)
    for key, hint in ((key, fields[key]) for key in order):
        bare = hint
        source = At(key)
        while get_origin(bare) is Annotated:
            bare, *marks = get_args(bare)
            source = next((mark for mark in marks if isinstance(mark, At)), source)
        if source.exact:
            bare = Any
        constant = _is_constant(bare) and key in kind.__required_keys__
        sources[key] = (bare, None if constant else source)
    moved = [(key, source.after) for key, (_, source) in sources.items() if source and source.after]
    for key, earlier in reversed(moved):
        order.remove(key)
        order.insert(0 if earlier == FIRST else order.index(earlier) + 1, key)
    return {key: sources[key] for key in order}


def _is_constant(hint: Any) -> bool:
    return get_origin(hint) is Literal and len(get_args(hint)) == 1


def _value(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        return _value(get_args(hint)[0], value)
    if origin in (Union, UnionType):
        return _optional(hint, value)
    if value is None:
        return None
    if is_typeddict(hint):
        return document_of(hint, value)
    if origin is list:
        return [_value(get_args(hint)[0], element) for element in value]
    if origin is dict:
        return {key: _value(get_args(hint)[1], element) for key, element in value.items()}
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
    if hint is float or isinstance(value, Decimal):
        return float(value)
    return value


def _attribute(item: Any, name: str) -> Any:
    if isinstance(item, Mapping):
        return item.get(name)
    return getattr(item, name)
