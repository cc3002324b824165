"""Reading AWS's replies about prices and placement scores; pure, so that recorded replies test it.

A wrong price breaks a budget, so nothing is guessed here: a row that cannot be trusted is refused and counted. Of two
prices for one thing the higher one is kept, because a budget must not be exceeded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import ROUND_CEILING, Decimal
from typing import Any

from deepvm.catalog.clouds.aws.responses import Reading
from deepvm.core.units import to_decimal
from deepvm.errors import RequestError

ZERO, UNPARSABLE, CONFLICT = "zero price", "unparsable row", "second price for the same type"
NO_DOLLARS = "no price per hour in US dollars"
OTHER_OPERATION = "other operation than RunInstances"
OTHER_PRODUCT, UNKNOWN_ZONE = "other product than Linux/UNIX", "unknown zone"

LINUX = "Linux/UNIX"
"""The product whose spot prices are meant; accounts from before 2013 know it as ``Linux/UNIX (Amazon VPC)`` as well."""

_MICRO = Decimal("0.000001")


class _RowRefusedError(Exception):
    """A row that cannot be trusted; its text is the reason."""


@dataclass(frozen=True)
class _SpotRow:
    type_name: str
    zone: str
    since: datetime
    price: Decimal


def price_text(price: Decimal) -> str:
    """A price as Signals carry it: exact, at most six decimals, rounded up, without trailing zeros.

    Args:
        price: in dollars, above 0.
    """
    text = f"{price.quantize(_MICRO, rounding=ROUND_CEILING):f}".rstrip("0")
    return text.rstrip(".")


def read_on_demand(rows: Iterable[Any]) -> Reading:
    """The ``on-demand`` prices of GetProducts' PriceList, whose rows are JSON texts."""
    prices: dict[str, Decimal] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            name, offers = _product(row)
        except _RowRefusedError as reason:
            refused[str(reason)] += 1
            continue
        for offer in offers:
            refused[CONFLICT] += name in prices and prices[name] != offer
            prices[name] = max(offer, prices.get(name, offer))
    return Reading({name: price_text(price) for name, price in sorted(prices.items())}, dict(+refused))


def lack_zone_ids(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether some rows of DescribeSpotPriceHistory name their zones in this account's way alone."""
    return any(not row.get("AvailabilityZoneId") for row in rows)


def read_spot(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> Reading:
    """The ``spot`` prices of rows of DescribeSpotPriceHistory: the newest of each type and zone.

    Args:
        rows: as AWS gives them, in any order.
        zone_ids: zone ids by this account's names, for rows without an id.
    """
    refused: Counter[str] = Counter()
    newest: dict[tuple[str, str], _SpotRow] = {}
    for row in _spot_rows(rows, zone_ids, refused):
        place = (row.type_name, row.zone)
        old = newest.get(place)
        if old is not None and old.since == row.since:
            refused[CONFLICT] += old.price != row.price
        if old is None or (row.since, row.price) > (old.since, old.price):
            newest[place] = row
    data: dict[str, dict[str, list[str]]] = {}
    for (name, zone), row in sorted(newest.items()):
        data.setdefault(name, {})[zone] = [price_text(row.price), f"{row.since:%Y-%m-%dT%H:%M:%SZ}"]
    return Reading(data, dict(+refused))


def read_history(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> Reading:
    """The ``history`` of rows of DescribeSpotPriceHistory: the change points of each type and zone, oldest first.

    Args:
        rows: as AWS gives them, in any order.
        zone_ids: zone ids by this account's names, for rows without an id.
    """
    refused: Counter[str] = Counter()
    points: dict[tuple[str, str], dict[int, Decimal]] = {}
    for row in _spot_rows(rows, zone_ids, refused):
        at, known = int(row.since.timestamp()), points.setdefault((row.type_name, row.zone), {})
        refused[CONFLICT] += at in known and known[at] != row.price
        known[at] = max(row.price, known.get(at, row.price))
    data: dict[str, dict[str, list[list[Any]]]] = {}
    for (name, zone), known in sorted(points.items()):
        data.setdefault(name, {})[zone] = [[at, price_text(price)] for at, price in sorted(known.items())]
    return Reading(data, dict(+refused))


def read_placement(rows: Iterable[Mapping[str, Any]], region: str) -> Reading:
    """The ``placement`` scores of rows of GetSpotPlacementScores, best first.

    Args:
        rows: as AWS gives them.
        region: whose zones are meant.
    """
    scores, refused = [], Counter[str]()
    for row in rows:
        zone, score = row.get("AvailabilityZoneId"), row.get("Score")
        if row.get("Region", region) != region or not zone or not isinstance(score, int) or not 1 <= score <= 10:
            refused[UNPARSABLE] += 1
        else:
            scores.append({"zone": zone, "score": score})
    return Reading(sorted(scores, key=lambda s: (-s["score"], s["zone"])), dict(refused))


def _product(row: Any) -> tuple[str, list[Decimal]]:
    """The type and hourly prices of one row of the price list."""
    try:
        document = json.loads(row)
        attributes = document["product"]["attributes"]
        name, operation = attributes["instanceType"], attributes.get("operation", "")
        terms = document["terms"].get("OnDemand") or {}
        dimensions = [d for term in terms.values() for d in term["priceDimensions"].values()]
        hourly = [d["pricePerUnit"] for d in dimensions if d.get("unit") == "Hrs"]
        texts = [prices["USD"] for prices in hourly if "USD" in prices]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _RowRefusedError(UNPARSABLE) from None
    if not isinstance(name, str) or not name:
        raise _RowRefusedError(UNPARSABLE)
    # RunInstances:0002 and the like are Windows, SQL Server or BYOL machines under the same name.
    if operation != "RunInstances":
        raise _RowRefusedError(OTHER_OPERATION)
    if not texts:
        raise _RowRefusedError(NO_DOLLARS)
    return name, [_amount(text) for text in texts]


def _spot_rows(
    rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str], refused: Counter[str]
) -> Iterator[_SpotRow]:
    for row in rows:
        try:
            yield _spot_row(row, zone_ids)
        except _RowRefusedError as reason:
            refused[str(reason)] += 1


def _spot_row(row: Mapping[str, Any], zone_ids: Mapping[str, str]) -> _SpotRow:
    name, since = row.get("InstanceType"), row.get("Timestamp")
    if not name or not isinstance(since, datetime) or since.tzinfo is None:
        raise _RowRefusedError(UNPARSABLE)
    if not str(row.get("ProductDescription", LINUX)).startswith(LINUX):
        raise _RowRefusedError(OTHER_PRODUCT)
    zone = row.get("AvailabilityZoneId") or zone_ids.get(row.get("AvailabilityZone") or "")
    if not zone:
        raise _RowRefusedError(UNKNOWN_ZONE)
    return _SpotRow(name, zone, since.astimezone(timezone.utc), _amount(row.get("SpotPrice")))


def _amount(text: Any) -> Decimal:
    try:
        price = to_decimal(text, "price", zero=True)
    except RequestError:
        raise _RowRefusedError(UNPARSABLE) from None
    if not price:
        raise _RowRefusedError(ZERO)
    return price
