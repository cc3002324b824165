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
from typing import NamedTuple

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
"""A spot price, as a share of the type's on-demand price: a market may be much below, and sometimes above."""
MOST_BROKEN = 0.1
"""Share of a file's rows above which it is refused."""
_FEWEST_ROWS = 10
"""Below which a file is not judged by a share: one bad row of three says little."""

DOUBLED, CONFLICT = "doubled row", "two prices for one type and place"
WRONG_MEMORY = "GPU memory that the model does not have"
FAR, FAR_SPOT = "price far from its family's", "spot price far from the type's others"
_HARMLESS = frozenset({DOUBLED})

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
    offers = _each_once(list(tally.offers(rows)), tally)
    offers = [o for o in offers if not tally.refuse(o, SPECS, _problem(o))]
    offers = [
        o
        for o in (tally.priced(o, SPOT, far) for o, far in _far_spot(_near(offers, tally)))
        if o is not None
    ]
    broken = sum(
        n for counts in tally.refused.values() for r, n in counts.items() if r not in _HARMLESS
    )
    if not offers:
        raise DataError(f"the file holds no offer that can be used; {tally.worst()}")
    if tally.rows >= _FEWEST_ROWS and broken > MOST_BROKEN * tally.rows:
        raise DataError(f"{broken} of {counted(tally.rows, 'row')} cannot be true: {tally.worst()}")
    return Checked(
        tuple(offers), {p: dict(c) for p, c in tally.refused.items()}, dict(tally.foreign)
    )


class _Tally:
    """Counts rows, and what is refused."""

    def __init__(self) -> None:
        self.rows = 0
        self.refused: dict[Place, Counter[str]] = defaultdict(Counter)
        self.foreign: Counter[str] = Counter()

    def offers(self, rows: Iterable[Row]) -> Iterable[Offer]:
        for row in rows:
            if isinstance(row, Offer):
                self.rows += 1
                yield row
            elif row.foreign:
                self.foreign[row.reason] += 1
            else:
                self.rows += 1
                self.count(row)

    def count(self, row: Refused, kind: str = SPECS) -> None:
        self.refused[Place(row.region, kind)][row.reason] += 1

    def refuse(self, offer: Offer, kind: str, reason: str) -> bool:
        """Count an offer for a reason, if there is one; whether there is."""
        if reason:
            region = offer.region if _REGION.fullmatch(offer.region) else ""
            self.count(Refused(reason, region), kind)
        return bool(reason)

    def priced(self, offer: Offer, kind: str, reason: str) -> Offer | None:
        """The offer, without the price of a market if there is a reason.

        None if it has no other.
        """
        if not self.refuse(offer, kind, reason):
            return offer
        left = replace(offer, on_demand=None) if kind == ON_DEMAND else replace(offer, spot=None)
        return None if left.on_demand is None and left.spot is None else left

    def worst(self) -> str:
        """The commonest reasons, in words."""
        reasons: Counter[str] = Counter()
        for counts in self.refused.values():
            reasons += counts
        named = [f"{n} x {reason}" for reason, n in (reasons or self.foreign).most_common(3)]
        return ", ".join(named) or "it has no rows"


def _each_once(offers: list[Offer], tally: _Tally) -> list[Offer]:
    """Each type and place once: rows of different markets are joined, equal ones dropped.

    Different ones all.
    """
    by_key: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in offers:
        by_key.setdefault((offer.instance_type, offer.region, offer.zone), []).append(offer)
    kept = []
    for same in by_key.values():
        first, *others = same
        for other in others:
            if first.on_demand is None and other.spot is None:
                first = replace(first, on_demand=other.on_demand)
            elif first.spot is None and other.on_demand is None:
                first = replace(first, spot=other.spot)
            elif (other.on_demand or first.on_demand, other.spot or first.spot) == (
                first.on_demand,
                first.spot,
            ):
                tally.refuse(first, SPECS, DOUBLED)
            else:
                for _ in same:
                    tally.refuse(first, SPECS, CONFLICT)
                break
        else:
            kept.append(first)
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


def _near(offers: list[Offer], tally: _Tally) -> list[Offer]:
    """The offers, without on-demand prices that are far from those of their family."""
    families: dict[tuple[str, float], list[float]] = defaultdict(list)
    for offer in offers:
        if offer.on_demand is not None:
            families[_family(offer)].append(_each(offer))
    usual = {
        family: median_high(found)
        for family, found in families.items()
        if len(found) >= FEWEST_PEERS
    }
    found = (
        tally.priced(
            o, ON_DEMAND, FAR if o.on_demand and _is_far(_each(o), usual.get(_family(o))) else ""
        )
        for o in offers
    )
    return [o for o in found if o is not None]


def _far_spot(offers: list[Offer]) -> Iterable[tuple[Offer, str]]:
    """Each offer, and what is wrong with its spot price; empty if nothing is.

    Of one type in all its zones, because a market follows what is free in each: what a GPU costs on
    the spot market differs between types of one family by more than the rule allows, and truly.
    """
    of_type: dict[str, list[float]] = defaultdict(list)
    for offer in offers:
        if offer.spot is not None:
            of_type[offer.instance_type].append(float(offer.spot))
    usual = {
        name: median_high(found) for name, found in of_type.items() if len(found) >= FEWEST_PEERS
    }
    for offer in offers:
        if offer.spot is None:
            yield offer, ""
            continue
        spot, share = (
            float(offer.spot),
            0.0 if offer.on_demand is None else float(offer.spot) / float(offer.on_demand),
        )
        odd = bool(share) and not LEAST_SPOT_SHARE <= share <= MOST_SPOT_SHARE
        yield offer, FAR_SPOT if odd or _is_far(spot, usual.get(offer.instance_type)) else ""


def _is_far(value: float, usual: float | None) -> bool:
    return usual is not None and not LEAST_OF_MEDIAN * usual <= value <= MOST_OF_MEDIAN * usual


def _family(offer: Offer) -> tuple[str, float]:
    """Types that are compared: with the same GPU, or of one family of CPU types, by name without its size."""
    if offer.gpu:
        return offer.gpu, offer.gpu_memory_gib or 0.0
    return _without_size(offer.instance_type), 0.0


@lru_cache(maxsize=4096)
def _without_size(name: str) -> str:
    cut = max(name.rfind(mark) for mark in ".-_")
    return f"CPU {name[:cut] if cut > 0 else name}"


def _each(offer: Offer) -> float:
    """$/h on demand for each GPU.

    For each GiB of a CPU type, in proportion to which its family's sizes are priced.
    """
    return float(offer.on_demand or 0) / (offer.gpu_count or offer.memory_gib or offer.vcpus)
