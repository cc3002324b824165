"""Rows by what they have in common."""

from collections.abc import Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """The values of each key; keys and values are in the order of the pairs."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
