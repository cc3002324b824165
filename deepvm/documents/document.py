"""How documents are declared: a key for each value, its type, its description, and its source.

    class Zone(Document, schema_version="deepvm.zone/1"):
        zone: str | None
        usd_per_hour: float = at("newest")
        sold_share: float = at(lambda zone: zone.sold / zone.versions)
        '''share of the versions in which it was sold, 0 to 1'''

A string below a key describes its value, with its unit. A type adds a text of its own: with
``UsdPerHour = Annotated[float, "US dollars an hour"]`` a value of it that is described as "spot
price of one VM" becomes "spot price of one VM, US dollars an hour".
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

FIRST = "^"
"""In place of a key that comes before."""


@dataclass(frozen=True)
class At:
    """Where the value of a key is: a path of attributes and positions, or a function of the object.

    An empty path: the object itself. ``exact``: a number stays int where it is one, though the type
    says float. ``digits``: it is rounded to so many. ``after``: the key that it follows, or
    :data:`FIRST`. ``optional``: the key may be left out. ``column``: a CSV that does not have all
    keys has this one.
    """

    source: str | Callable[[Any], Any] | None = None
    exact: bool = False
    digits: int | None = None
    after: str = ""
    optional: bool = False
    column: bool = False

    def read(self, item: Any, key: str = "") -> Any:
        if callable(self.source):
            return self.source(item)
        path = key if self.source is None else self.source
        for name in filter(None, path.split(".")):
            if item is None:
                return None
            item = attribute(item, name)
        if self.digits is None or item is None:
            return item
        return round(item, self.digits)


def at(source: str | Callable[[Any], Any] | None = None, **how: Any) -> Any:
    """See :class:`At`; without a source the value is where the key says."""
    return At(source, **how)


def attribute(item: Any, name: str) -> Any:
    """A value of an object, a mapping or a sequence."""
    if isinstance(item, Mapping):
        return item.get(name)
    if name.isdigit():
        return item[int(name)]
    return getattr(item, name)


class Document:
    """What programs read. Keys of ``total=False`` may be left out, as may optional ones."""

    __required_keys__ = frozenset[str]()
    __sources__ = dict[str, At]()

    def __init_subclass__(cls, schema_version: str = "", total: bool = True) -> None:
        own = cls.__annotations__
        # `from_`: words of Python cannot be names.
        hints = {name.rstrip("_"): hint for name, hint in own.items()}
        sources = {name.rstrip("_"): vars(cls).get(name, At()) for name in own}
        if schema_version:
            hints = {"schema_version": Literal[schema_version], **hints}
            sources["schema_version"] = At(lambda item: schema_version)
        cls.__annotations__ = hints
        cls.__sources__ = cls.__sources__ | sources
        cls.__required_keys__ |= {key for key in sources if total and not sources[key].optional}


def is_object(kind: Any) -> bool:
    """Whether a type describes an object by its keys."""
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, Document))


def bare(hint: Any) -> Any:
    """A type without its texts, and without null if that leaves one."""
    kinds = get_args(hint)
    if get_origin(hint) is Annotated:
        return bare(kinds[0])
    if NoneType in kinds and len(kinds) == 2:
        return bare(next(kind for kind in kinds if kind is not NoneType))
    return hint


def may_be_null(hint: Any) -> bool:
    """Whether null is one of the types of a union."""
    if get_origin(hint) is Annotated:
        return may_be_null(get_args(hint)[0])
    return NoneType in get_args(hint)


@cache
def fields_of(kind: Any) -> Mapping[str, Any]:
    """The keys of an object with their types."""
    return get_type_hints(kind, include_extras=True)


def described_fields(kind: Any) -> dict[str, Any]:
    """The same, each with the text below it."""
    texts = _texts_below(kind)
    fields = dict(fields_of(kind))
    for key in fields.keys() & texts.keys():
        fields[key] = Annotated[fields[key], texts[key]]
    return fields


def _texts_below(kind: Any) -> dict[str, str]:
    """The texts below the keys of an object and of those that it extends."""
    module = sys.modules[kind.__module__]
    body = _classes_in(module.__name__).get(kind.__name__)
    if body is None:
        return {}
    texts: dict[str, str] = {}
    for base in body.bases:
        if isinstance(base, ast.Name) and is_object(getattr(module, base.id)):
            texts |= _texts_below(getattr(module, base.id))
    for key, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            texts[ast.unparse(key.target).rstrip("_")] = " ".join(
                ast.literal_eval(text.value).split()
            )
    return texts


@cache
def _classes_in(module: str) -> dict[str, ast.ClassDef]:
    """The source of the classes of a module: Python keeps no texts below keys."""
    tree = ast.parse(getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
