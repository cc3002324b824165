"""What documents hold: ``data/documents/*.json``, in the words of JSON Schema.

    "Zone": {
     "description": "A zone.",
     "properties": {
      "zone": {"type": ["string", "null"], "description": "its id, null for any"},
      "usd_per_hour": {"type": "number", "description": "US dollars an hour", "at": "newest"}
     }
    }

Objects are named by their file, as in ``{"$ref": "simulation.Spread"}``. Besides JSON Schema's
words, an object may have ``extends``, the name of an object whose properties it has too, and a
property:

``at``: where its value is, a path of attributes, positions and ``#`` for a count; empty: the object
itself. Without it the value is where the key says.
``computed``: its value is computed in ``build.py``, of what is there.
``exact``: a number stays int where it is one, though the type is number.
``digits``: it is rounded to so many.
``optional``: the key may be left out, as it is for None; all others are required.
``null``: though optional, the key is there for None.
``after``: the key that it follows in documents, or ``^`` for the first place.
``column``: a CSV that does not have all keys has this one.
``hidden``: the schemas that users see do not name it.

:mod:`deepvm.documents.models` says what else files that users write may have. The schemas that
users see do not have the limits of numbers and lists in records of the lab.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.user_dirs import read_data

Schema = JsonObject
FIRST = "^"
NULL = {"type": "null"}


@cache
def definitions(file: str) -> Mapping[str, Schema]:
    """What a file declares, by name."""
    schemas: Mapping[str, Schema] = read_data(f"documents/{file}.json")
    return schemas


@cache
def declared(name: str) -> Schema:
    """A declaration, such as ``simulation.Job``, with the properties that it extends."""
    file, _, own = name.partition(".")
    schema = definitions(file)[own]
    if "extends" not in schema:
        return schema
    return {**schema, "properties": properties(schema["extends"]) | schema["properties"]}


def properties(name: str) -> dict[str, Schema]:
    """The properties of an object, by key."""
    schemas: dict[str, Schema] = declared(name)["properties"]
    return schemas


def may_be_null(schema: Schema) -> bool:
    """Whether null is one of several types."""
    kinds = schema.get("type", ())
    return NULL in schema.get("anyOf", ()) or ("null" in kinds and kinds != "null")


def without_null(schema: Schema) -> Schema:
    """The other type, where null is one of two."""
    kinds = schema.get("anyOf", ())
    if isinstance(schema.get("type"), list):
        kinds = [NULL if kind == "null" else {**schema, "type": kind} for kind in schema["type"]]
    others = [kind for kind in kinds if kind != NULL]
    if len(others) == 1 < len(kinds):
        other: Schema = others[0]
        return other
    return schema


def object_in(schema: Schema) -> str:
    """The name of the object that a list, a mapping or the first of several types holds."""
    while "$ref" not in schema:
        inner = schema.get("items") or schema.get("additionalProperties")
        schema = inner or schema["anyOf"][0]
    name: str = schema["$ref"]
    return name


def columns(name: str) -> Iterator[tuple[str, ...]]:
    """Columns of a CSV of such objects: the keys to each value that is no object itself."""
    for key, schema in properties(name).items():
        inner = without_null(schema)
        if "$ref" in inner:
            yield from ((key, *below) for below in columns(inner["$ref"]))
        else:
            yield (key,)


DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OURS = {"at", "computed", "exact", "digits", "optional", "after", "column", "null"}
_LIMITS = {"minimum", "exclusiveMinimum", "minItems", "maxItems"}


def json_schema(
    kind: str, name: str, title: str, *, required: Sequence[str] | None = None, more: bool = False
) -> JsonDict:
    """The schema of a document, of the ``kind`` that is declared."""
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
    def __init__(self, more: bool) -> None:
        self.more = more
        self.definitions: dict[str, JsonDict] = {}

    def object_of(self, kind: str) -> JsonDict:
        every = properties(kind)
        schemas = {key: schema for key, schema in every.items() if "hidden" not in schema}
        return {
            "type": "object",
            "description": declared(kind)["description"],
            "properties": {key: self.standard(schema) for key, schema in schemas.items()},
            "required": sorted(key for key in schemas if not schemas[key].get("optional")),
            "additionalProperties": self.more,
        }

    def standard(self, schema: Schema) -> JsonDict:
        words = {word: value for word, value in schema.items() if word not in _OURS | _LIMITS}
        if "$ref" in words:
            kind = words["$ref"]
            name = kind.rpartition(".")[2]
            if name not in self.definitions:
                self.definitions[name] = {}  # set first: an object may hold others of its kind
                self.definitions[name] = self.object_of(kind)
            words["$ref"] = f"#/$defs/{name}"
        if "anyOf" in words:
            words["anyOf"] = [self.standard(one) for one in words["anyOf"]]
        for word in ("items", "additionalProperties"):
            if word in words:
                words[word] = self.standard(words[word])
        return words
