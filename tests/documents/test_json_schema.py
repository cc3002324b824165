"""Schemas and columns of what is declared, and the declarations themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import deepvm
from deepvm.documents.build import COMPUTED
from deepvm.documents.declared import (
    columns,
    declared,
    definitions,
    json_schema,
    object_in,
    properties,
)
from deepvm.io.user_dirs import data_folder

INNER = {
    "description": "An inner object.",
    "properties": {
        "low": {"type": "number", "description": "the least, seconds"},
        "names": {"type": "array", "items": {"type": "string"}},
    },
}
OUTER = {
    "description": "A document.",
    "properties": {
        "extra": {
            "anyOf": [{"$ref": "test.Inner"}, {"type": "null"}],
            "description": "sometimes",
            "optional": True,
        },
        "schema_version": {"const": "deepvm.outer/1"},
        "kind": {"enum": ["a", "b"]},
        "inner": {"$ref": "test.Inner", "description": "always"},
        "mixed": {"type": ["string", "number", "null"], "description": "anything"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "rows": {"type": "array", "items": {"$ref": "test.Inner"}},
        "rest": {},
    },
}
DOCUMENT = {
    "schema_version": "deepvm.outer/1",
    "kind": "a",
    "inner": {"low": 1.5, "names": []},
    "mixed": None,
    "counts": {"x": 1},
    "rows": [{"low": 0, "names": ["n"]}],
    "rest": [1, "two"],
}


@pytest.fixture
def outer(declare: Any) -> None:
    listed = {
        "anyOf": [{"$ref": "test.Outer"}, {"type": "array", "items": {"$ref": "test.Outer"}}],
        "description": "One or several.",
    }
    declare({"Inner": INNER, "Outer": OUTER, "Listed": listed})


def valid(document: object, **options: Any) -> bool:
    schema = json_schema("test.Outer", "outer", "Outer", **options)
    return bool(jsonschema.Draft202012Validator(schema).is_valid(document))


@pytest.mark.usefixtures("outer")
def test_a_document_as_declared_is_valid() -> None:
    assert (
        valid(DOCUMENT)
        and valid(DOCUMENT | {"extra": None})
        and valid(DOCUMENT | {"extra": DOCUMENT["inner"]})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"new": 1},
        {"kind": "c"},
        {"inner": {"low": "1", "names": []}},
        {"inner": {"low": 1, "names": [], "new": 1}},
        {"counts": {"x": "1"}},
        {"rows": [{"low": 1}]},
        {"mixed": [1]},
        {"extra": 1},
    ],
)
@pytest.mark.usefixtures("outer")
def test_any_other_is_not(change: dict[str, Any]) -> None:
    assert not valid(DOCUMENT | change)


@pytest.mark.usefixtures("outer")
def test_files_of_users_may_leave_out_and_add() -> None:
    assert valid({"kind": "a", "mixed": 1}, required=("kind",)) and not valid(
        {"mixed": 1}, required=("kind",)
    )
    assert valid(DOCUMENT | {"new": 1}, more=True)


@pytest.mark.usefixtures("outer")
def test_what_is_no_object() -> None:
    schema = json_schema("test.Listed", "listed", "Listed")
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid([DOCUMENT])
    assert schema["description"] == "One or several." and set(schema["$defs"]) == {"Inner", "Outer"}
    assert object_in(declared("test.Listed")) == "test.Outer"


@pytest.mark.usefixtures("outer")
def test_columns_are_the_ways_to_values() -> None:
    names = [".".join(path) for path in columns("test.Outer")]
    assert names[:3] == ["extra.low", "extra.names", "schema_version"]
    assert "inner.low" in names and {"counts", "rows", "rest", "mixed"} <= set(names)


FILES = [path.stem for path in (data_folder() / "documents").glob("*.json") if path.stem != "index"]
WORDS = {"description", "type", "anyOf", "enum", "const", "$ref", "items", "additionalProperties"}
WORDS |= {"at", "computed", "exact", "digits", "optional", "null", "after", "hidden", "column"}
WORDS |= {"minimum", "exclusiveMinimum", "minItems", "maxItems"}
WORDS |= {"maximum", "minLength", "maxLength", "format", "default", "discriminator"}
WORDS |= {"prefixItems", "pattern", "exclusiveMaximum", "decimalPlaces", "propertyNames"}


def parts(schema: Any) -> Iterator[Any]:
    """A schema and those in it."""
    yield schema
    for inner in (
        *schema.get("anyOf", ()),
        *schema.get("prefixItems", ()),
        schema.get("items"),
        schema.get("additionalProperties"),
        schema.get("propertyNames"),
    ):
        if inner is not None:
            yield from parts(inner)


@pytest.mark.parametrize("file", FILES)
def test_declarations_have_known_words_and_name_what_exists(file: str) -> None:
    for name, schema in definitions(file).items():
        assert schema.get("description") or name.startswith("_")
        if "properties" not in schema:
            assert object_in(schema)
            continue
        assert set(schema) <= {"description", "extends", "properties", "additionalProperties"}
        known = properties(f"{file}.{name}")
        for key, value in schema["properties"].items():
            assert value.get("computed", "by") in COMPUTED
            assert value.get("after", "^") in {"^", *known}, key
            for part in parts(value):
                assert set(part) <= WORDS, (name, key)
                assert "$ref" not in part or declared(part["$ref"])


def test_code_names_declarations_that_exist() -> None:
    code = "".join(path.read_text() for path in Path(deepvm.__file__).parent.rglob("*.py"))
    names = set(re.findall(rf'"((?:{"|".join(FILES)})\.[A-Z]\w+)"', code))
    assert len(names) > 15 and all(map(declared, names))
    computed = {
        value["computed"]
        for file in FILES
        for schema in definitions(file).values()
        for value in schema.get("properties", {}).values()
        if "computed" in value
    }
    assert computed == set(COMPUTED)
