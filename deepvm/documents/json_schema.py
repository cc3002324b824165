"""JSON Schemas (draft 2020-12) and columns of CSV, both of the types that describe documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import getdoc
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
)

from deepvm.documents.document import bare, described_fields, fields_of, is_object

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def json_schema(
    kind: Any, name: str, title: str, *, required: Sequence[str] | None = None, more: bool = False
) -> dict[str, Any]:
    """The schema of a document.

    ``required``: the keys that must be there; None for those that the type requires. ``more``:
    whether objects may hold what their type does not say.
    """
    writer = _Writer(more)
    found = writer.object_of(kind) if is_object(kind) else writer.of(kind)
    if required is not None:
        found["required"] = sorted(required)
    definitions = {"$defs": dict(sorted(writer.definitions.items()))} if writer.definitions else {}
    about = {"description": found.pop("description")} if "description" in found else {}
    return {
        "$schema": DIALECT,
        "$id": f"{name}.schema.json",
        "title": title,
        **about,
        **found,
        **definitions,
    }


class _Writer:
    """Writes schemas of types, those of objects once, under ``$defs``."""

    def __init__(self, more: bool) -> None:
        self.more = more
        self.definitions: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        origin = get_origin(kind)
        arguments = get_args(kind)
        if origin is Annotated:
            texts = [text for text in arguments[1:] if isinstance(text, str)]
            described = {"description": ", ".join(reversed(texts))} if texts else {}
            return self.of(arguments[0]) | described
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if is_object(kind):
            return self._reference(kind)
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (Union, UnionType):
            return self._either([self.of(argument) for argument in arguments])
        if kind is Any:
            return {}
        raise TypeError(f"a document holds {kind!r}, which has no schema")

    def _either(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """One of several; what is said of the first is said of all."""
        about = {"description": found[0].pop("description")} if "description" in found[0] else {}
        if all(set(one) == {"type"} and isinstance(one["type"], str) for one in found):
            return {"type": [one["type"] for one in found], **about}
        return {"anyOf": found, **about}

    def _reference(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a type may hold itself
            self.definitions[name] = self.object_of(kind)
        return {"$ref": f"#/$defs/{name}"}

    def object_of(self, kind: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "description": " ".join((getdoc(kind) or "").split()),
            "properties": {key: self.of(hint) for key, hint in described_fields(kind).items()},
            "required": sorted(kind.__required_keys__),
            "additionalProperties": self.more,
        }


def columns(kind: Any) -> Iterator[tuple[str, ...]]:
    """Columns of a CSV of such objects: the keys to each value that is no object itself."""
    for key, hint in fields_of(kind).items():
        inner = bare(hint)
        if is_object(inner):
            yield from ((key, *below) for below in columns(inner))
        else:
            yield (key,)
