from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from deepvm.core.cluster.instances import Market
from deepvm.documents.build import ABSENT, With, document_of
from deepvm.documents.declared import json_schema

OBJECTS = {
    "Price": {
        "description": "A price.",
        "properties": {
            "usd_per_hour": {"type": "number", "description": "$/h", "at": "price"},
            "market": {"type": "string", "description": "where it is sold"},
        },
    },
    "Offer": {
        "description": "An offer.",
        "properties": {
            "note": {"type": "string", "optional": True},
            "schema_version": {"const": "deepvm.offer/1"},
            "zone": {"type": ["string", "null"], "description": "null for any"},
            "mean_s": {"type": ["number", "null"]},
            "prices": {"type": "array", "items": {"$ref": "test.Price"}},
            "first_price": {"type": "number", "at": "prices.0.price"},
            "last_price": {"type": "number", "at": "prices.-1.price"},
            "count": {"type": "integer", "at": "prices.#"},
            "named": {"type": "object", "additionalProperties": {"$ref": "test.Price"}},
        },
    },
    "Dated": {
        "description": "An offer of a day.",
        "extends": "test.Offer",
        "properties": {
            "from": {"type": "number", "at": "span.0", "digits": 1},
            "until": {"type": ["number", "null"], "at": "span.1"},
            "day": {"type": "string", "after": "^"},
            "by": {"type": "string", "computed": "by", "optional": True, "after": "from"},
            "exact": {"type": "number", "at": "span.0", "exact": True},
            "pairs": {"type": "array", "items": {"$ref": "test.Pair"}, "at": "named"},
        },
    },
    "Pair": {
        "description": "A name and its price.",
        "properties": {
            "name": {"type": "string", "at": "0"},
            "usd": {"type": "number", "at": "1.price"},
        },
    },
}


@pytest.fixture(autouse=True)
def objects(declare: Any) -> None:
    declare(OBJECTS)


@dataclass(frozen=True)
class PriceObject:
    price: Decimal
    market: Market


@dataclass(frozen=True)
class OfferObject:
    zone: str
    mean_s: float
    prices: tuple[PriceObject, ...]
    named: dict[str, PriceObject]
    note: str | None = None


PRICE = PriceObject(Decimal("1.5"), Market.SPOT)
DOCUMENT = {"usd_per_hour": 1.5, "market": "spot"}


def test_values_of_an_object() -> None:
    offer = OfferObject("a", 2, (PRICE,), {"x": PRICE}, "new")
    document = document_of("test.Offer", offer)
    assert document == {
        "schema_version": "deepvm.offer/1",
        "zone": "a",
        "mean_s": 2.0,
        "prices": [DOCUMENT],
        "first_price": 1.5,
        "last_price": 1.5,
        "count": 1,
        "named": {"x": DOCUMENT},
        "note": "new",
    }
    assert list(document)[-1] == "note"


def test_unknown_values_are_null_or_left_out() -> None:
    document = document_of("test.Offer", OfferObject("", math.inf, (PRICE,), {}))
    assert (document["zone"], document["mean_s"]) == (None, None)
    assert "note" not in document


def test_mappings_are_read_too() -> None:
    price = {"price": 1, "market": "spot"}
    assert document_of("test.Price", price) == {**DOCUMENT, "usd_per_hour": 1.0}


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(AttributeError, match="price"):
        document_of("test.Price", object())


def test_more_values_replace_those_of_an_object() -> None:
    more = With(PRICE, market=None)
    assert document_of("test.Price", more) == {"usd_per_hour": 1.5, "market": None}
    assert list(document_of("test.Price", With(PRICE, market=ABSENT))) == ["usd_per_hour"]


def test_what_an_object_extends() -> None:
    offer = OfferObject("a", 2, (PRICE,), {"x": PRICE})
    values = With(offer, span=(1.26, math.inf), day=date(2026, 1, 2), spread=None)
    document = document_of("test.Dated", values)
    assert (document["from"], document["until"], document["exact"]) == (1.3, None, 1.26)
    assert document["day"] == "2026-01-02"
    assert document["pairs"] == [{"name": "x", "usd": 1.5}]
    assert document["by"] == "closed form"
    keys = list(document)
    assert keys[:2] == ["day", "schema_version"]
    assert keys[keys.index("from") + 1] == "by"
    whole = document_of("test.Dated", With(values, span=(1, 2)))
    assert isinstance(whole["from"], float) and isinstance(whole["exact"], int)


def test_sources_are_no_part_of_the_schema() -> None:
    properties = json_schema("test.Price", "price", "A price")["properties"]
    assert properties["usd_per_hour"] == {"type": "number", "description": "$/h"}
    schema = json_schema("test.Dated", "dated", "A day")
    assert "by" not in schema["required"] and "zone" in schema["required"]
    assert schema["properties"]["by"] == {"type": "string"}
