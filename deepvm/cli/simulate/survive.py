"""``deepvm survive``: how probably N spot VMs are available, and all survive for a time."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from typing import TYPE_CHECKING

from deepvm.cli.output import Output, note, print_named, say, text, utc_now
from deepvm.cli.parameters import takes_flags
from deepvm.cli.plan.options import load
from deepvm.core.options import again, option
from deepvm.core.units import parse_seconds, to_decimal
from deepvm.errors import (
    CloudError,
    DataError,
    MissingExtraError,
    OptionMismatchError,
    RequestError,
)
from deepvm.records import MISSING, dataclass, replace
from deepvm.services.plan_options import CatalogOptions, SourceOptions, catalog_option

if TYPE_CHECKING:
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.core.cluster.instances import Catalog, InstanceType, ZonePrice
    from deepvm.core.preemption.gang_survival import OwnPool
    from deepvm.simulator.survival.evidence import PriceEvidence


@dataclass(frozen=True, kw_only=True)
class _SurviveFlags:
    instance_type: str = option(MISSING, "The type of the VMs.", "TYPE", complete="complete_type")
    count: int = option(MISSING, "How many are needed at once.", "N", kind=int)
    for_: str = option(MISSING, "How long all must survive, such as 4h.", "TIME", "--for")
    catalog: str = catalog_option("A cloud's market, an embedded catalog, or a file.")
    cloud: str = option("", "A cloud's market: aws, gcp ...", "NAME", complete="complete_cloud")
    region: str = option(
        "", "The region; default: your own.", "NAME", "--region", "-r", complete="complete_region"
    )
    zone: str = again(CatalogOptions, "zone")
    price_history: str = again(CatalogOptions, "price_history")
    days: str = option("30", "Days of --history, 1 to 90.", "N")
    max_price: str | None = option(
        None, "The most that you bid for a VM, $/h; needs --history.", "USD"
    )
    prices: str = again(CatalogOptions, "prices")
    offline: bool = again(CatalogOptions, "offline")
    profile: str = again(CatalogOptions, "profile")


@takes_flags
def survive(flags: _SurviveFlags, output: Output = "table") -> None:
    """Estimate how probably N spot VMs of a type are available and all survive for a time.

    From public traces, the cloud's interruption band, your own jobs, and, where available, stored
    prices and placement scores. Correlated losses are counted as such.

    Example: deepvm survive --instance-type p4d.24xlarge --count 8 --for 4h
    """
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.core.lifetimes import BANDS
    from deepvm.planner.explain import allowed_type
    from deepvm.simulator.survival.evidence import answer

    limit = None
    if flags.max_price is not None:
        if not flags.price_history:
            reason = "needs --history FOLDER, which says how prices moved"
            raise OptionMismatchError("max_price", flags.max_price, reason)
        limit = to_decimal(flags.max_price, "max_price")
    for_s = parse_seconds(flags.for_, "for")
    market = _market(flags)
    request = MarketRequest(
        prices=flags.prices, offline=flags.offline, profile=flags.profile, days=flags.days
    )
    source = SourceOptions(prices=flags.prices, offline=flags.offline, profile=flags.profile)
    catalog = load(market, source)
    name = flags.instance_type
    kind = catalog.by_name.get(name)
    if kind is None:
        raise RequestError("instance_type", name, allowed_type(catalog, name))
    if kind.spot_usd_per_hour is None:
        note(f"no spot price of {name} is known in {catalog.name}")
    zone = _zone(catalog, kind, flags.zone)
    prices = None
    if flags.price_history:
        prices = _prices(catalog, kind, flags, for_s, zone.zone, limit)
    found = answer(
        catalog,
        kind,
        flags.count,
        for_s,
        zone=flags.zone,
        own=_own(kind.name, catalog.region, zone.name),
        score=_score(catalog, kind, flags.count, request, zone.zone),
        prices=prices,
    )
    band = None
    if found.band is not None:
        band = BANDS[found.band]
    print_named(output, text("survive", answer=found, band=band), "survive", found)


def _market(flags: _SurviveFlags) -> str:
    from deepvm.catalog.clouds import cloud_of, region_in
    from deepvm.services.open_catalogs import market_of

    catalog = market_of(flags.cloud, flags.catalog)
    own = region_in(catalog)
    if own is not None and not cloud_of(catalog).has_spot:
        title = cloud_of(catalog).title
        allowed = f"a cloud with a spot market whose prices are known; {title} has none"
        raise RequestError("cloud" if flags.cloud else "catalog", catalog, allowed)
    region = flags.region
    if region in ("", own):
        return catalog
    if own != "":
        reason = f"does not go with --catalog {catalog}"
        raise OptionMismatchError("region", region, reason, "--catalog aws")
    return f"{catalog}-{region}"


def _zone(catalog: Catalog, kind: InstanceType, zone: str) -> ZonePrice:
    from deepvm.catalog.clouds import cloud_of
    from deepvm.core.cluster.instances import ZonePrice

    if not zone:
        return ZonePrice("", Decimal(1))
    for known in kind.spot_zones:
        if zone in (known.zone, known.name):
            return replace(known, name=known.name or zone)
    sold = [known.zone for known in kind.spot_zones] or kind.zones
    if sold and zone not in sold:
        raise RequestError("zone", zone, f"a zone that offers {kind.name}: {', '.join(sold)}")
    if not sold and not catalog.provenance.origins:
        reason = f"does not fit catalog {catalog.name}, which does not distinguish zones"
        raise OptionMismatchError("zone", zone, reason)
    if not sold and not cloud_of(catalog.name).may_be_zone(zone, catalog.region):
        raise RequestError("zone", zone, f"a zone of {catalog.region}, by its name or id")
    return ZonePrice(zone, Decimal(1), zone)


def _own(name: str, region: str, zone: str) -> OwnPool | None:
    """What this user's jobs observed of the type; None without jobs. They know zones by name."""
    try:
        from deepvm.jobs.history.history import PLACE, History, own_folder
        from deepvm.jobs.history.pools import own_pool

        if not os.environ.get(PLACE) and not (own_folder() / "history.db").exists():
            return None
        if not zone.startswith(region if zone else ""):
            reason = f"they know zones by name, and that of {zone} is unknown"
            note(f"your own jobs are not counted: {reason}")
            return None
        with History.reader() as history:
            return own_pool(history.machines(), time.time(), name, region, zone)
    except ImportError:  # the extra [jobs]
        return None
    except (DataError, MissingExtraError) as error:
        note(f"your own jobs are not counted: {error}")
        return None


def _score(
    catalog: Catalog, kind: InstanceType, count: int, request: MarketRequest, zone: str
) -> int | None:
    from deepvm.catalog.market.open_markets import placement

    if not catalog.provenance.origins or request.offline or request.prices == "snapshot":
        return None
    try:
        scores = placement(catalog, kind, count, request, progress=say).scores
    except CloudError as error:
        if error.why != "credentials":
            note(f"no placement scores: {error}")
        return None
    if zone:
        return scores.get(zone)
    return max(scores.values(), default=None)


def _prices(
    catalog: Catalog,
    kind: InstanceType,
    flags: _SurviveFlags,
    for_s: float,
    zone: str,
    limit: Decimal | None,
) -> PriceEvidence | None:
    """Evidence from stored prices; None: they have nothing of the type."""
    from deepvm.catalog.clouds import cloud_of
    from deepvm.catalog.market.stored_prices import read_stored_prices
    from deepvm.simulator.survival.evidence import price_evidence

    folder = flags.price_history
    region = catalog.region
    days = int(flags.days)
    if not catalog.provenance.origins:
        allowed = f"a cloud's market, such as --catalog aws, not {catalog.name}"
        raise RequestError("history", folder, allowed)
    cloud = cloud_of(catalog.name).name
    now = utc_now()
    stored = read_stored_prices(folder, cloud, [region], days, now, say)[region]
    stored.check()
    for line in stored.notes:
        note(line)
    found = price_evidence(stored, kind, for_s, zone, limit)
    if found is None:
        note(f"{folder} has no spot price of {kind.name} in {zone or region} in {days} days")
    return found
