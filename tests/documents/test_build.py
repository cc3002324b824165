from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import pytest

from deepvm.core.cluster.instances import Market
from deepvm.documents.build import document_of
from deepvm.documents.document import Document, at
from deepvm.documents.json_schema import json_schema


class Price(Document):
    """A price."""

    usd_per_hour: float = at("price")
    """$/h"""
    market: str
    """where it is sold"""


class _Optional(Document, total=False):
    note: str


class Offer(_Optional, schema_version="deepvm.offer/1"):
    """An offer."""

    zone: str | None
    """null for any"""
    mean_s: float | None
    prices: list[Price]
    first_price: float = at("prices.0.price")
    named: dict[str, Price]


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
    assert document_of(Offer, offer) == {
        "note": "new",
        "schema_version": "deepvm.offer/1",
        "zone": "a",
        "mean_s": 2.0,
        "prices": [DOCUMENT],
        "first_price": 1.5,
        "named": {"x": DOCUMENT},
    }


def test_unknown_values_are_null_or_left_out() -> None:
    document = document_of(Offer, OfferObject("", math.inf, (PRICE,), {}))
    assert (document["zone"], document["mean_s"]) == (None, None)
    assert "note" not in document


def test_mappings_are_read_too() -> None:
    assert document_of(Price, {"price": 1, "market": "spot"}) == {**DOCUMENT, "usd_per_hour": 1.0}


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(AttributeError, match="price"):
        document_of(Price, object())


def test_sources_are_no_part_of_the_schema() -> None:
    properties = json_schema(Price, "price", "A price")["properties"]
    assert properties["usd_per_hour"] == {"type": "number", "description": "$/h"}


class Spell(Document):
    """A time."""

    from_: float = at("span.0", digits=1)
    """its begin, seconds"""
    until: float | None = at("span.1")
    note: str = at(after="from", optional=True)


def test_positions_digits_and_words_of_python() -> None:
    assert document_of(Spell, {"span": (1.26, math.inf)}) == {"from": 1.3, "until": None}
    whole = document_of(Spell, {"span": (1, 2), "note": "short"})
    assert list(whole) == ["from", "note", "until"]
    schema = json_schema(Spell, "spell", "A time")
    assert schema["properties"]["from"]["description"] == "its begin, seconds"
    assert schema["required"] == ["from", "until"]
