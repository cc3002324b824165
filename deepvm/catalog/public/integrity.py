"""Which offers of a public catalog can be true, and whether the whole file can.

What breaks a rule is left out and counted. A file in which much breaks is refused: then nothing in
it is trusted, and what was fetched before stays.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median_high
from typing import Literal, NamedTuple

from deepvm.catalog.public.gpu_names import memory_fits
from deepvm.catalog.public.offer import Offer, Refused
from deepvm.catalog.public.source import Row
from deepvm.catalog.signals.signal import ON_DEMAND, SPECS, SPOT
from deepvm.core.units import counted
from deepvm.errors import DataError

LEAST_OF_MEDIAN, MOST_OF_MEDIAN = 0.2, 5.0
"""A price, as a factor from the median of its family."""
FEWEST_PEERS = 3
"""A median of fewer prices may be the wrong price itself."""
LEAST_SPOT_SHARE, MOST_SPOT_SHARE = 0.02, 10.0
"""A spot price, as a share of the type's on-demand price: a market is often below, rarely above."""
MOST_BROKEN = 0.1
"""Share of a file's rows above which it is refused."""
_FEWEST_ROWS = 10
"""Below which a file is not judged by a share: one bad row of three says little."""

DOUBLED = "doubled row"
CONFLICT = "two prices for one type and place"
WRONG_MEMORY = "GPU memory that the model does not have"
FAR = "price far from its family's"
FAR_SPOT = "spot price far from the type's others"

# What a stranger's file says is printed and becomes the name of a folder.
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}", re.ASCII)


class Place(NamedTuple):
    """What a count of refused rows is about: a region (empty: unknown) and a kind of signal."""

    region: str
    kind: str


@dataclass(frozen=True)
class Checked:
    """What is left of a file: offers, each key once; refused rows by place and reason.

    Foreign rows by reason.
    """

    offers: tuple[Offer, ...]
    refused: Mapping[Place, Mapping[str, int]]
    foreign: Mapping[str, int]

    @property
    def broken(self) -> int:
        """How many rows, or prices, break a rule."""
        return sum(n for counts in self.refused.values() for n in counts.values())


def check(rows: Iterable[Row]) -> Checked:
    """Apply the rules to every row of a file.

    Raises DataError: nothing is left, or too much is broken.
    """
    tally = _Tally()
    offers = _each_once(tally.offers(rows), tally)
    offers = [o for o in offers if not tally.refuse(o, SPECS, _problem(o))]
    for market in _MARKETS:
        offers = _without_far(offers, market, tally)
    reasons = tally.reasons()
    if not offers:
        raise DataError(f"the file holds no offer that can be used; {tally.worst()}")
    broken = sum(n for reason, n in reasons.items() if reason != DOUBLED)
    if tally.rows >= _FEWEST_ROWS and broken > MOST_BROKEN * tally.rows:
        raise DataError(f"{broken} of {counted(tally.rows, 'row')} cannot be true: {tally.worst()}")
    return Checked(tuple(offers), tally.refused, tally.foreign)


class _Tally:
    """Counts rows, and what is refused."""

    def __init__(self) -> None:
        self.rows = 0
        self.refused: dict[Place, Counter[str]] = defaultdict(Counter)
        self.foreign: Counter[str] = Counter()

    def offers(self, rows: Iterable[Row]) -> list[Offer]:
        offers = []
        for row in rows:
            if isinstance(row, Refused) and row.foreign:
                self.foreign[row.reason] += 1
                continue
            self.rows += 1
            if isinstance(row, Refused):
                self.refused[Place(row.region, SPECS)][row.reason] += 1
            else:
                offers.append(row)
        return offers

    def refuse(self, offer: Offer, kind: str, reason: str) -> bool:
        """Count an offer for a reason, if there is one; whether there is."""
        if reason:
            region = offer.region if _REGION.fullmatch(offer.region) else ""
            self.refused[Place(region, kind)][reason] += 1
        return bool(reason)

    def reasons(self) -> Counter[str]:
        reasons: Counter[str] = Counter()
        for counts in self.refused.values():
            reasons += counts
        return reasons

    def worst(self) -> str:
        """The commonest reasons, in words."""
        common = (self.reasons() or self.foreign).most_common(3)
        return ", ".join(f"{n} x {reason}" for reason, n in common) or "it has no rows"


def _each_once(offers: Iterable[Offer], tally: _Tally) -> list[Offer]:
    """Each type and place once: rows of different markets are joined, equal ones dropped.

    Of different prices none is used.
    """
    by_key: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in offers:
        by_key.setdefault((offer.instance_type, offer.region, offer.zone), []).append(offer)
    kept = []
    for same in by_key.values():
        on_demand = {o.on_demand for o in same} - {None}
        spot = {o.spot for o in same} - {None}
        if len(on_demand) > 1 or len(spot) > 1:
            for offer in same:
                tally.refuse(offer, SPECS, CONFLICT)
            continue
        for offer in same[len({(o.on_demand, o.spot) for o in same}) :]:
            tally.refuse(offer, SPECS, DOUBLED)
        price = next(iter(on_demand), None)
        spot_price = next(iter(spot), None)
        kept.append(replace(same[0], on_demand=price, spot=spot_price))
    return kept


def _problem(offer: Offer) -> str:
    """What is wrong with what an offer says of the VM; empty if nothing is."""
    if not _REGION.fullmatch(offer.region):
        return "unreadable region"
    if not _NAME.fullmatch(offer.instance_type) or not _NAME.fullmatch(offer.zone or "none"):
        return "unreadable name"
    if not _GPU.fullmatch(offer.gpu or "none"):
        return "unreadable GPU"
    known = offer.gpu and offer.gpu_memory_gib is not None
    return WRONG_MEMORY if known and not memory_fits(offer.gpu, offer.gpu_memory_gib or 0.0) else ""


_Market = Literal["on_demand", "spot"]
# On demand first: spot prices are compared with those that are left.
_MARKETS: dict[_Market, tuple[str, str]] = {"on_demand": (ON_DEMAND, FAR), "spot": (SPOT, FAR_SPOT)}


def _without_far(offers: list[Offer], market: _Market, tally: _Tally) -> list[Offer]:
    """The offers, without prices of a market that are far from those of their peers."""
    peers: dict[tuple[str, float], list[float]] = defaultdict(list)
    for offer in offers:
        if getattr(offer, market) is not None:
            peers[_peers(offer, market)].append(_figure(offer, market))
    usual = {key: median_high(v) for key, v in peers.items() if len(v) >= FEWEST_PEERS}
    kind, reason = _MARKETS[market]
    kept = []
    for offer in offers:
        if getattr(offer, market) is not None and _is_far(offer, market, usual):
            tally.refuse(offer, kind, reason)
            spot_only = replace(offer, on_demand=None)
            on_demand_only = replace(offer, spot=None)
            offer = spot_only if market == "on_demand" else on_demand_only
        if offer.on_demand is not None or offer.spot is not None:
            kept.append(offer)
    return kept


def _is_far(offer: Offer, market: _Market, usual: Mapping[tuple[str, float], float]) -> bool:
    value = _figure(offer, market)
    share = 1.0
    if market == "spot" and offer.on_demand is not None:
        share = value / float(offer.on_demand)
    if not LEAST_SPOT_SHARE <= share <= MOST_SPOT_SHARE:
        return True
    middle = usual.get(_peers(offer, market), value)
    return not LEAST_OF_MEDIAN * middle <= value <= MOST_OF_MEDIAN * middle


def _peers(offer: Offer, market: _Market) -> tuple[str, float]:
    """Which offers are compared: on demand those with the same GPU, or of one family of CPU types.

    Spot prices are those of one type in all its zones, because a market follows what is free in
    each: between types of one family they differ by more than the rule allows, and truly.
    """
    if market == "spot":
        return offer.instance_type, 0.0
    if offer.gpu:
        return offer.gpu, offer.gpu_memory_gib or 0.0
    return _without_size(offer.instance_type), 0.0


def _figure(offer: Offer, market: _Market) -> float:
    """What is compared, $/h: of the whole VM; on demand for each GPU, or GiB of a CPU type.

    Sizes of a CPU family are priced in proportion to their memory.
    """
    if market == "spot":
        return float(offer.spot or 0)
    return float(offer.on_demand or 0) / (offer.gpu_count or offer.memory_gib or offer.vcpus)


@lru_cache(maxsize=4096)
def _without_size(name: str) -> str:
    cut = max(name.rfind(mark) for mark in ".-_")
    return f"CPU {name[:cut] if cut > 0 else name}"
