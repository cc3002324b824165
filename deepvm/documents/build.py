"""Documents made of the objects that hold their values, as :class:`Document` says."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin

from deepvm.documents.document import FIRST, At, attribute, bare, fields_of, is_object, may_be_null
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
    hints = fields_of(kind)
    for key, source in _sources(kind).items():
        raw = source.read(item, key)
        if raw is ABSENT:
            continue
        value = _scalar(Any, raw) if source.exact else _value(hints[key], raw)
        given = isinstance(item, With) and key in item.values
        if value is not None or given or key in kind.__required_keys__:
            document[key] = value
    return document


@cache
def _sources(kind: Any) -> dict[str, At]:
    """Where the value of each key is, in the order of the document."""
    known = getattr(kind, "__sources__", {})
    sources = {key: known.get(key, At()) for key in fields_of(kind)}
    order = sorted(sources, key=lambda key: key not in kind.__required_keys__)
    for key in [key for key in reversed(order) if sources[key].after]:
        earlier = sources[key].after
        order.remove(key)
        order.insert(0 if earlier == FIRST else order.index(earlier) + 1, key)
    return {key: sources[key] for key in order}


def _value(hint: Any, value: Any) -> Any:
    if value is None or (may_be_null(hint) and (value == "" or _is_not_finite(value))):
        return None
    hint = bare(hint)
    if is_object(hint):
        return document_of(hint, value)
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], element) for element in value]
    if get_origin(hint) is dict:
        return {key: _value(get_args(hint)[1], element) for key, element in dict(value).items()}
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
