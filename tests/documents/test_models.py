"""Models of declared files: what each word of a declaration refuses, and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from deepvm.documents.fields import FORMATS
from deepvm.documents.models import model_of

DECLARED: dict[str, Any] = {
    "Zone": {
        "description": "A zone.",
        "properties": {
            "kind": {"const": "zone"},
            "name": {"type": "string", "format": "name", "description": "its name"},
            "share": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "size": {"enum": ["small", "large"], "default": "small"},
            "since": {"type": ["string", "null"], "format": "time"},
        },
    },
    "Region": {
        "additionalProperties": True,
        "properties": {"kind": {"const": "region"}, "count": {"type": "integer", "minimum": 1}},
    },
    "Places": {
        "properties": {
            "places": {
                "type": "array",
                "maxItems": 2,
                "items": {
                    "anyOf": [{"$ref": "test.Zone"}, {"$ref": "test.Region"}],
                    "discriminator": "kind",
                },
            }
        }
    },
}


@pytest.fixture
def places(declare: Callable[[Mapping[str, Any]], None]) -> type[BaseModel]:
    declare(DECLARED)
    return model_of("test.Places")


def test_what_is_left_out_is_null_or_the_default(places: type[BaseModel]) -> None:
    (zone,) = places.model_validate({"places": [{"kind": "zone", "name": "a"}]}).model_dump()[
        "places"
    ]
    assert zone == {"kind": "zone", "name": "a", "share": None, "size": "small", "since": None}
    assert model_of("test.Zone").__doc__ == "A zone."


@pytest.mark.parametrize(
    "place",
    [
        {"kind": "zone"},
        {"kind": "city", "name": "a"},
        {"kind": "zone", "name": " a"},
        {"kind": "zone", "name": "a", "share": 1.5},
        {"kind": "zone", "name": "a", "share": "0.5"},
        {"kind": "zone", "name": "a", "size": "huge"},
        {"kind": "zone", "name": "a", "since": "2026-01-31T12:00:00"},
        {"kind": "zone", "name": "a", "color": "red"},
        {"kind": "region", "count": True},
        {"kind": "region", "count": 0},
    ],
)
def test_what_a_declaration_refuses(places: type[BaseModel], place: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        places.model_validate({"places": [place]})


def test_limits_of_lists_and_keys_of_later_versions(places: type[BaseModel]) -> None:
    region = {"kind": "region", "count": 2, "later": "more"}
    assert places.model_validate({"places": [region] * 2})
    with pytest.raises(ValidationError):
        places.model_validate({"places": [region] * 3})


@pytest.mark.parametrize("text", ["20231001", "2023-W01-1", "2023-10-1", "2023-13-01", 20231001])
def test_a_day_has_one_form(text: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(FORMATS["day"]).validate_python(text)


@pytest.mark.parametrize("kind", ["price", "amount", "short_count"])
@pytest.mark.parametrize("text", ["1_000", "\u0663", "0x10", "nan", "", True])
def test_numbers_have_plain_digits(kind: str, text: object) -> None:
    number: TypeAdapter[Any] = TypeAdapter(FORMATS[kind])
    with pytest.raises(ValidationError):
        number.validate_python(text)
    assert number.validate_python("3e0") == 3
