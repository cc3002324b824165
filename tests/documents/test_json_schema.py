"""Schemas and columns of types."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest

from deepvm.documents.json_schema import columns, json_schema

Seconds = Annotated[float, "seconds"]


class Inner(TypedDict):
    """An inner object."""

    low: Seconds
    """the least"""
    names: list[str]


class More(TypedDict, total=False):
    extra: Inner | None
    """sometimes"""


class Outer(More):
    """A document."""

    schema_version: Literal["deepvm.outer/1"]
    kind: Literal["a", "b"]
    inner: Inner
    """always"""
    mixed: str | float | None
    """anything"""
    counts: dict[str, int]
    rows: list[Inner]
    rest: Any


DOCUMENT = {
    "schema_version": "deepvm.outer/1",
    "kind": "a",
    "inner": {"low": 1.5, "names": []},
    "mixed": None,
    "counts": {"x": 1},
    "rows": [{"low": 0, "names": ["n"]}],
    "rest": [1, "two"],
}


def valid(document: object, **options: Any) -> bool:
    return bool(
        jsonschema.Draft202012Validator(json_schema(Outer, "outer", "Outer", **options)).is_valid(
            document
        )
    )


def test_a_document_of_the_type_is_valid() -> None:
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
def test_any_other_is_not(change: dict[str, Any]) -> None:
    assert not valid(DOCUMENT | change)


def test_files_of_users_may_leave_out_and_add() -> None:
    assert valid({"kind": "a", "mixed": 1}, required=("kind",)) and not valid(
        {"mixed": 1}, required=("kind",)
    )
    assert valid(DOCUMENT | {"new": 1}, more=True)


def test_descriptions_hold_the_unit() -> None:
    found = json_schema(Outer, "outer", "Outer")
    assert found["$defs"]["Inner"]["properties"]["low"] == {
        "type": "number",
        "description": "the least, seconds",
    }
    assert found["properties"]["mixed"] == {
        "type": ["string", "number", "null"],
        "description": "anything",
    }
    assert (found["title"], found["description"]) == ("Outer", "A document.")


def test_columns_are_the_ways_to_values() -> None:
    names = [".".join(path) for path in columns(Outer)]
    assert names[:3] == ["extra.low", "extra.names", "schema_version"]
    assert "inner.low" in names and {"counts", "rows", "rest", "mixed"} <= set(names)


def test_what_has_no_schema_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="complex"):
        json_schema(complex, "name", "title")
