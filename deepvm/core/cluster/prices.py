"""What a price that changes was worth over a while, and which prices can be true.

Over a while every price counts for the time that it held: an average over rows would count a price
that held for a minute like one that held for a week.

A price far from those of comparable VMs is an error of its source, not an offer. The bounds are far
outside of all real prices that were looked at (6 183 prices of AWS from 2021 to 2026, on demand and
spot): an offer that is merely good stays.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import accumulate, pairwise

from deepvm.core.units import format_usd
from deepvm.errors import RequestError
from deepvm.records import dataclass


class PriceBasis(str, Enum):
    """Which spot price of a history a plan uses: the last one, or a quantile over time."""

    CURRENT = "current"
    P50 = "p50"
    P95 = "p95"
    MAX = "max"


_SHARE = {
    PriceBasis.P50: Decimal("0.5"),
    PriceBasis.P95: Decimal("0.95"),
    PriceBasis.MAX: Decimal(1),
}


@dataclass(frozen=True)
class PricePoint:
    """A price in $/h that held from a moment, seconds since 1970, until the next change."""

    at_s: int
    usd_per_hour: Decimal
    since: str = ""  # that moment as the market says it


def price_over_time(
    changes: Sequence[PricePoint], start_s: int, end_s: int, basis: PriceBasis
) -> Decimal | None:
    """The price by a basis over a window from ``start_s`` to ``end_s``, $/h; None if unknown.

    ``current`` is the price at the end, else the lowest that was not exceeded for at least the
    basis's share of the time with a known price. The last change before the window holds at its
    start. An empty window raises a RequestError.
    """
    if start_s >= end_s:
        raise RequestError("end_s", end_s, f"a time after the start, {start_s}")
    # Of changes at the same moment the last one holds.
    latest = {
        c.at_s: c.usd_per_hour for c in sorted(changes, key=lambda c: c.at_s) if c.at_s < end_s
    }
    moments = list(latest)
    if not moments:
        return None
    if basis is PriceBasis.CURRENT:
        return latest[moments[-1]]
    seconds: dict[Decimal, int] = defaultdict(int)
    for moment, following in pairwise([*moments, end_s]):
        seconds[latest[moment]] += max(following - max(moment, start_s), 0)
    prices = sorted(price for price, known in seconds.items() if known)
    passed = accumulate(seconds[price] for price in prices)
    needed = _SHARE[basis] * sum(seconds.values())
    return next(price for price, known in zip(prices, passed, strict=True) if known >= needed)


def windows_below(
    changes: Sequence[PricePoint], start_s: int, end_s: int, for_s: float, most: Decimal
) -> tuple[int, int]:
    """Consecutive windows in which a price stayed within a limit, and all with a known price."""
    points = sorted(changes, key=lambda c: c.at_s)
    moments = [c.at_s for c in points]
    kept = count = 0
    for number in range(int((end_s - start_s) // for_s)):
        window_start_s = start_s + number * for_s
        window_end_s = start_s + (number + 1) * for_s
        # The last change before the window holds at its start.
        first = max(bisect_right(moments, window_start_s) - 1, 0)
        inside = [c.usd_per_hour for c in points[first : bisect_left(moments, window_end_s)]]
        if inside:
            count += 1
            kept += max(inside) <= most
    return kept, count


LEAST_USD_PER_HOUR = Decimal("0.0005")  # the cheapest real price is 0.0011 (t3.nano, spot)
MOST_USD_PER_HOUR = Decimal(10_000)  # the dearest real price is 361 (u7in-32tb.224xlarge)

# Spot prices as a share of the type's on-demand price. Real ones are a tenth or more; above 1 they
# are rare, up to 1.2.
LEAST_SPOT_SHARE = Decimal("0.02")
MOST_SPOT_SHARE = Decimal(10)

# On-demand prices for each vCPU, as a factor from their family's median (real ones: 8 below, 2.9
# above), and of types of small families from the median of all types (3.3 below, 12.6 above).
FAMILY_SPREAD = Decimal(25)
CATALOG_SPREAD = Decimal(50)

IMPLAUSIBLE = "implausible price"  # The reason under which refused prices are counted

FEWEST_PEERS = 3  # a median of fewer prices may be the wrong price itself


@dataclass(frozen=True)
class PriceWarning:
    """An implausible price, and what it was compared with, in words."""

    usd_per_hour: Decimal
    why: str

    def __str__(self) -> str:
        return f"${format_usd(self.usd_per_hour)}/h is {self.why}"


@dataclass(frozen=True)
class PricedType:
    """A type's vCPUs and $/h for comparison; the spot price is the median of its zones."""

    vcpus: int
    on_demand_usd_per_hour: Decimal | None = None
    spot_usd_per_hour: Decimal | None = None


class PriceSanityCheck:
    """Compares the prices of a region with each other."""

    def __init__(self, types: Mapping[str, PricedType]) -> None:
        self.types = types
        self._families: dict[str, list[Decimal]] = defaultdict(list)
        self._all: list[Decimal] = []
        for name, priced in types.items():
            prices = (priced.on_demand_usd_per_hour, priced.spot_usd_per_hour)
            price = next((p for p in prices if p is not None and not _outside(p)), None)
            if price is not None:
                insort(self._all, price / priced.vcpus)
                insort(self._families[family(name)], price / priced.vcpus)

    def on_demand(self, name: str, price: Decimal) -> PriceWarning | None:
        if warning := self._by_peers(name, price, Decimal(1), Decimal(1)):
            return warning
        # Of contradicting on-demand and spot prices, the one further from its peers
        spot = self.types[name].spot_usd_per_hour
        (usual, _, words) = self._peers(name)
        if spot is None or _outside(spot) or not usual:
            return None
        nearer = max(price / usual, usual / price) <= max(spot / usual, usual / spot)
        if nearer or LEAST_SPOT_SHARE * price <= spot <= MOST_SPOT_SHARE * price:
            return None
        far = f"above {1 / LEAST_SPOT_SHARE:.0f} times"
        if price < spot:
            far = f"below 1/{MOST_SPOT_SHARE} of"
        return PriceWarning(
            price, f"{far} its spot price, ${format_usd(spot)}/h, which is nearer to {words}"
        )

    def spot(self, name: str, price: Decimal) -> PriceWarning | None:
        own = self.types[name].on_demand_usd_per_hour
        if own is None or self.on_demand(name, own):
            return self._by_peers(name, price, LEAST_SPOT_SHARE, MOST_SPOT_SHARE)
        why = _outside(price)
        its_price = f"its on-demand price, ${format_usd(own)}/h"
        if price < LEAST_SPOT_SHARE * own:
            why = f"below {LEAST_SPOT_SHARE * 100:.0f} % of {its_price}"
        elif price > MOST_SPOT_SHARE * own:
            why = f"above {MOST_SPOT_SHARE} times {its_price}"
        if why:
            return PriceWarning(price, why)
        return None

    def _by_peers(
        self, name: str, price: Decimal, least: Decimal, most: Decimal
    ) -> PriceWarning | None:
        why = _outside(price)
        (usual, spread, words) = self._peers(name)
        if not why and usual and price < usual * least / spread:
            why = f"below 1/{spread / least:.0f} of {words}"
        elif not why and usual and price > usual * most * spread:
            why = f"above {spread * most:.0f} times {words}"
        if why:
            return PriceWarning(price, why)
        return None

    def _peers(self, name: str) -> tuple[Decimal, Decimal, str]:
        """$/h of comparable VMs of this size (0: unknown), the spread, and both in words."""
        vcpus = self.types[name].vcpus
        group = self._families.get(family(name), [])
        spread = FAMILY_SPREAD
        whose = f"family {family(name)}"
        if len(group) < FEWEST_PEERS:
            group = self._all
            spread = CATALOG_SPREAD
            whose = "all types"
        if len(group) < FEWEST_PEERS:
            return Decimal(0), spread, ""
        usual = group[len(group) // 2] * vcpus
        return usual, spread, f"the median of {whose} for {vcpus} vCPUs, ${usual:.4f}/h"


def family(name: str) -> str:
    """The family of a type, ``g4dn`` of ``g4dn.xlarge``."""
    return name.partition(".")[0]


def _outside(price: Decimal) -> str:
    if price < LEAST_USD_PER_HOUR:
        return f"below ${LEAST_USD_PER_HOUR}/h, less than any VM costs"
    if price > MOST_USD_PER_HOUR:
        return f"above ${MOST_USD_PER_HOUR}/h, more than any VM costs"
    return ""
