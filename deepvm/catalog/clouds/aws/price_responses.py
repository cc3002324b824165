"""Reading AWS's replies about prices and placement scores; pure, so that recorded replies test it.

A wrong price breaks a budget, so nothing is guessed here: a row that cannot be trusted is refused and counted. Of two
prices for one thing the higher one is kept, because a budget must not be exceeded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from decimal import ROUND_CEILING, Decimal
from typing import Any

from deepvm.catalog.clouds.aws.responses import Reading
from deepvm.core.units import to_decimal
from deepvm.errors import RequestError
from deepvm.io.times import format_time

ZERO, UNPARSABLE, CONFLICT = "zero price", "unparsable row", "second price for the same type"
NO_DOLLARS = "no price per hour in US dollars"
OTHER_OPERATION = "other operation than RunInstances"
OTHER_PRODUCT, UNKNOWN_ZONE = "other product than Linux/UNIX", "unknown zone"

LINUX = "Linux/UNIX"
"""The product whose spot prices are meant; accounts from before 2013 know it as ``Linux/UNIX (Amazon VPC)`` as well."""

_MICRO = Decimal("0.000001")


class _RowRefusedError(Exception):
    """A row that cannot be trusted; its text is the reason."""


def price_text(price: Decimal) -> str:
    """A price above 0 $ as Signals carry it: exact, at most six decimals, rounded up, without trailing zeros."""
    return f"{price.quantize(_MICRO, rounding=ROUND_CEILING):f}".rstrip("0").rstrip(".")


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


def read_spot(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> Reading:
    """The ``spot`` prices: the newest of each type and zone, and since when; arguments as of :func:`read_history`."""
    history = read_history(rows, zone_ids)
    for zones in history.data.values():
        for zone, changes in zones.items():
            at, price = changes[-1]
            zones[zone] = [price, format_time(datetime.fromtimestamp(at, timezone.utc))]
    return history


def read_history(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> Reading:
    """The ``history`` of rows of DescribeSpotPriceHistory: the change points of each type and zone, oldest first.

    Args:
        rows: as AWS gives them, in any order.
        zone_ids: zone ids by this account's names, for rows without an id.
    """
    refused: Counter[str] = Counter()
    points: dict[tuple[str, str], dict[int, Decimal]] = {}
    for row in rows:
        try:
            place, at, price = _change(row, zone_ids)
        except _RowRefusedError as reason:
            refused[str(reason)] += 1
            continue
        known = points.setdefault(place, {})
        refused[CONFLICT] += at in known and known[at] != price
        known[at] = max(price, known.get(at, price))
    data: dict[str, dict[str, list[list[Any]]]] = {}
    for (name, zone), known in sorted(points.items()):
        data.setdefault(name, {})[zone] = [[at, price_text(price)] for at, price in sorted(known.items())]
    return Reading(data, dict(+refused))


def read_placement(rows: Iterable[Mapping[str, Any]], region: str) -> Reading:
    """The ``placement`` scores of a region in rows of GetSpotPlacementScores, best first."""
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


def _change(row: Mapping[str, Any], zone_ids: Mapping[str, str]) -> tuple[tuple[str, str], int, Decimal]:
    """Type and zone of a row of DescribeSpotPriceHistory, since when its price holds (s since 1970), and the price."""
    name, since = row.get("InstanceType"), row.get("Timestamp")
    if not name or not isinstance(since, datetime) or since.tzinfo is None:
        raise _RowRefusedError(UNPARSABLE)
    if not str(row.get("ProductDescription", LINUX)).startswith(LINUX):
        raise _RowRefusedError(OTHER_PRODUCT)
    zone = row.get("AvailabilityZoneId") or zone_ids.get(row.get("AvailabilityZone") or "")
    if not zone:
        raise _RowRefusedError(UNKNOWN_ZONE)
    return (name, zone), int(since.timestamp()), _amount(row.get("SpotPrice"))


def _amount(text: Any) -> Decimal:
    try:
        price = to_decimal(text, "price", zero=True)
    except RequestError:
        raise _RowRefusedError(UNPARSABLE) from None
    if not price:
        raise _RowRefusedError(ZERO)
    return price
