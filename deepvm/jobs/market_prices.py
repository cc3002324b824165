"""Spot prices from a cloud at submission; implausible ones count as unknown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from decimal import Decimal

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.prices import PricedType, PriceSanityCheck

log = logging.getLogger("deepvm.jobs")


def plausible_prices(
    name: str, market: Market, prices: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Prices of a type by zone, $/h.

    None for one that cannot be true next to those of the catalog, which is logged.

    Of two zones the one with the wrong price would come first, whatever it costs.
    """
    catalog = load_catalog()
    found = dict(prices)
    if market is not Market.SPOT or name not in catalog.by_name:
        return found
    judged = PriceSanityCheck(
        {
            i.name: PricedType(i.vcpus, i.on_demand_usd_per_hour, i.spot_usd_per_hour)
            for i in catalog
        }
    )
    for zone, usd in prices.items():
        doubt = None if usd is None else judged.spot(name, Decimal(str(usd)))
        if doubt is not None:
            log.warning("the spot price of %s in %s is left out: %s", name, zone, doubt)
            found[zone] = None
    return found
