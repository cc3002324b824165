"""Where the values of documents are: paths into objects, and objects with more values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def value_at(item: Any, path: str) -> Any:
    """The value at a path, such as ``costs.0``; None where an object on the way is None."""
    for name in filter(None, path.split(".")):
        if item is None:
            return None
        item = attribute(item, name)
    return item


def attribute(item: Any, name: str) -> Any:
    """A value of an object, a mapping or a sequence; ``#``: how many there are."""
    if name == "#":
        return len(item)
    if isinstance(item, Mapping):
        # Documents of an older deepvm lack some keys
        return item.get(name)
    if name.removeprefix("-").isdigit():
        return item[int(name)]
    return getattr(item, name)
