"""Check which offers of a public catalog are plausible, and whether the whole file is.

Offers that break a rule are left out and counted. A file with many of them is refused as a whole,
and the previous file stays in use.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median_high

from deepvm.catalog.public.offers import Offer, Rows, memory_fits
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
LEAST_SHARE = 0.6
"""Least share of the highest price of one GPU in any region; lower prices are of reserved GPUs.

GCP's own prices of one model differ by 0.62 at most (L4);
its calendar mode of the Dynamic Workload Scheduler costs 0.33 (H100) to 0.58 (A100) of the price in
us-central1 (skypilot-catalog v8/gcp, 2026).
"""
_FEWEST_ROWS = 10
"""Smaller files are not judged by a share: one bad row of three says little."""

CONFLICT = "two prices for one type and place"
WRONG_MEMORY = "GPU memory that the model does not have"
FAR = "price far from its family's"
FAR_SPOT = "spot price far from the type's others"

_SIZE = re.compile("(?<=.)[._-][^._-]*$")


def check(table: Rows) -> Rows:
    """Apply the rules to every row of a file; each type and place is there once.

    Raises DataError: nothing is left, or too much is broken.
    """
    refused = table.refused.copy()
    offers = []
    for offer in _each_once(table.offers, refused):
        memory = offer.gpu_memory_gib
        if memory is None or memory_fits(offer.gpu, memory):
            offers.append(offer)
        else:
            refused[offer.region, WRONG_MEMORY] += 1
    offers = _without_far(offers, refused)
    rows = len(table.offers) + table.refused.total()
    broken = refused.total()
    reasons = "; ".join(f"{n} x {reason}" for (_, reason), n in refused.most_common(3))
    if not offers:
        raise DataError(f"the file holds no offer that can be used: {reasons or 'no rows'}")
    if rows >= _FEWEST_ROWS and broken > MOST_BROKEN * rows:
        raise DataError(f"{broken} of {counted(rows, 'row')} cannot be true: {reasons}")
    return Rows(offers, refused)


def _each_once(offers: Sequence[Offer], refused: Counter[tuple[str, str]]) -> list[Offer]:
    """Each type and place once: rows of different markets are joined, equal ones dropped.

    Of different prices none is used.
    """
    by_key: dict[tuple[str, str, str], list[Offer]] = defaultdict(list)
    for offer in offers:
        by_key[offer.instance_type, offer.region, offer.zone].append(offer)
    kept = []
    for same in by_key.values():
        on_demand = {o.on_demand for o in same} - {None}
        spot = {o.spot for o in same} - {None}
        if len(on_demand) > 1 or len(spot) > 1:
            refused[same[0].region, CONFLICT] += len(same)
            continue
        price = next(iter(on_demand), None)
        spot_price = next(iter(spot), None)
        kept.append(same[0].model_copy(update={"on_demand": price, "spot": spot_price}))
    return kept


def _without_far(offers: Sequence[Offer], refused: Counter[tuple[str, str]]) -> list[Offer]:
    """The offers, without prices that are far from those of their peers.

    Peers on demand have the same GPU, or are of one family of CPU types. Spot prices are compared
    with those of one type in all its zones only: between types of one family real spot prices
    differ by more than the rule allows.
    """
    peers: dict[str, list[float]] = defaultdict(list)
    for offer in offers:
        if offer.on_demand is not None:
            peers[_family(offer)].append(_unit_price(offer))
        if offer.spot is not None:
            peers[offer.instance_type].append(float(offer.spot))
    usual = {key: median_high(p) for key, p in peers.items() if len(p) >= FEWEST_PEERS}

    def is_far(price: float, key: str) -> bool:
        median = usual.get(key, price)
        return not LEAST_OF_MEDIAN * median <= price <= MOST_OF_MEDIAN * median

    kept = []
    for offer in offers:
        if offer.on_demand is not None and is_far(_unit_price(offer), _family(offer)):
            refused[offer.region, FAR] += 1
            offer = offer.model_copy(update={"on_demand": None})
        if offer.spot is not None:
            spot = float(offer.spot)
            share = spot / float(offer.on_demand or spot)
            if (
                is_far(spot, offer.instance_type)
                or not LEAST_SPOT_SHARE <= share <= MOST_SPOT_SHARE
            ):
                refused[offer.region, FAR_SPOT] += 1
                offer = offer.model_copy(update={"spot": None})
        if offer.on_demand is not None or offer.spot is not None:
            kept.append(offer)
    return kept


def _family(offer: Offer) -> str:
    if offer.gpu:
        return f"GPU {offer.gpu} {offer.gpu_memory_gib}"
    return f"CPU {_SIZE.sub('', offer.instance_type)}"


def _unit_price(offer: Offer) -> float:
    """$/h on demand for each GPU, or GiB of a CPU type.

    Sizes of a CPU family are priced in proportion to their memory.
    """
    return float(offer.on_demand or 0) / (offer.gpu_count or offer.memory_gib or offer.vcpus)


def without_reserved(offers: Sequence[Offer], model: Callable[[Offer], object]) -> list[Offer]:
    """The offers, without prices on demand that are those of reserved GPUs.

    They are recognized by the price of one GPU of the ``model`` in other regions.
    """
    by_model: dict[object, list[float]] = defaultdict(list)
    for offer in offers:
        if offer.gpu and offer.on_demand is not None:
            by_model[model(offer)].append(_unit_price(offer))
    least = {}
    for name, prices in by_model.items():
        usual = median_high(prices)
        least[name] = LEAST_SHARE * max(p for p in prices if p <= MOST_OF_MEDIAN * usual)
    return [
        o.model_copy(update={"on_demand": None}) if _unit_price(o) < least.get(model(o), 0) else o
        for o in offers
    ]
