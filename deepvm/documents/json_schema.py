"""JSON Schemas (draft 2020-12) of what ``data/documents`` declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.documents.declared import Schema, declared, properties

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OURS = {"at", "computed", "exact", "digits", "optional", "after", "column", "not_finite", "null"}
_LIMITS = {"minimum", "exclusiveMinimum", "minItems", "maxItems"}


def json_schema(
    kind: str, name: str, title: str, *, required: Sequence[str] | None = None, more: bool = False
) -> dict[str, Any]:
    """The schema of a document, of the ``kind`` that is declared.

    ``required``: the keys that must be there; None for those that are declared so. ``more``:
    whether objects may hold what is not declared.
    """
    writer = _Writer(more)
    if "properties" in declared(kind):
        schema = writer.object_of(kind)
    else:
        schema = writer.standard(declared(kind))
    if required is not None:
        schema["required"] = sorted(required)
    # The description before the properties: readers open a schema to learn what it is about
    about = {"description": schema.pop("description")}
    written = {"$schema": DIALECT, "$id": f"{name}.schema.json", "title": title, **about, **schema}
    if writer.definitions:
        written["$defs"] = dict(sorted(writer.definitions.items()))
    return written


class _Writer:
    """Writes schemas without the words that JSON Schema lacks, and objects once, for ``$defs``."""

    def __init__(self, more: bool) -> None:
        self.more = more
        self.definitions: dict[str, dict[str, Any]] = {}

    def object_of(self, kind: str) -> dict[str, Any]:
        every = properties(kind)
        schemas = {key: schema for key, schema in every.items() if "hidden" not in schema}
        return {
            "type": "object",
            "description": declared(kind)["description"],
            "properties": {key: self.standard(schema) for key, schema in schemas.items()},
            "required": sorted(key for key in schemas if not schemas[key].get("optional")),
            "additionalProperties": self.more,
        }

    def standard(self, schema: Schema) -> dict[str, Any]:
        return {
            word: self._word(word, schema[word]) for word in schema if word not in _OURS | _LIMITS
        }

    def _word(self, word: str, value: Any) -> Any:
        if word == "$ref":
            return self._reference(value)
        if word == "anyOf":
            return [self.standard(one) for one in value]
        if word in ("items", "additionalProperties"):
            return self.standard(value)
        return value

    def _reference(self, kind: str) -> str:
        name = kind.rpartition(".")[2]
        if name not in self.definitions:
            self.definitions[name] = {}  # set first: an object may hold others of its kind
            self.definitions[name] = self.object_of(kind)
        return f"#/$defs/{name}"
