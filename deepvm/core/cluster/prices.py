"""What a price that changes was worth over a while: every price counts for the time that it held.

An average over rows would count a price that held for a minute like one that held for a week.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from itertools import accumulate, pairwise

from deepvm.errors import RequestError


class PriceBasis(str, Enum):
    """Which spot price of a history a plan counts with: the last one, or that of a share of the time."""

    CURRENT = "current"
    P50 = "p50"
    P95 = "p95"
    MAX = "max"


_SHARE = {PriceBasis.P50: Decimal("0.5"), PriceBasis.P95: Decimal("0.95"), PriceBasis.MAX: Decimal(1)}


@dataclass(frozen=True)
class PricePoint:
    """From a moment on, seconds since 1970, this price in $/h held, until the next change."""

    at_s: int
    usd_per_hour: Decimal


def price_over_time(changes: Sequence[PricePoint], start_s: int, end_s: int, basis: PriceBasis) -> Decimal | None:
    """The price by a basis over a window from ``start_s`` to ``end_s``, each price weighted by the time it held.

    A change before the window says what held at its beginning. ``current`` gives the last price that holds at the end.

    Returns:
        The lowest price p of those that held such that they were at most p for at least the basis' share of the time
        with a known price, $/h; None when no price is known for any part of the window.

    Raises:
        RequestError: the window is empty.
    """
    if start_s >= end_s:
        raise RequestError("end_s", end_s, f"a time after the start, {start_s}")
    # Of changes at the same moment the last one named is the one that held.
    latest = {c.at_s: c.usd_per_hour for c in sorted(changes, key=lambda c: c.at_s) if c.at_s < end_s}
    moments = list(latest)
    if not moments or basis is PriceBasis.CURRENT:
        return latest[moments[-1]] if moments else None
    seconds: dict[Decimal, int] = defaultdict(int)
    for moment, following in pairwise([*moments, end_s]):
        seconds[latest[moment]] += max(following - max(moment, start_s), 0)
    prices = sorted(price for price, known in seconds.items() if known)
    passed = accumulate(seconds[price] for price in prices)
    needed = _SHARE[basis] * sum(seconds.values())
    return next(price for price, known in zip(prices, passed, strict=True) if known >= needed)
