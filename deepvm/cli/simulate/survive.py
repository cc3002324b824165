"""``deepvm survive``: whether spot VMs can be had, and how probably all of them live for a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from deepvm.cli.help import completion as complete
from deepvm.cli.output import Output, note, print_as, say
from deepvm.cli.parameters import opt
from deepvm.cli.plan.options import AwsProfile, Offline, PriceHistory, Prices, say_notes
from deepvm.core.spelling import one_of
from deepvm.core.units import parse_seconds, to_decimal
from deepvm.documents.build import document_of
from deepvm.errors import CloudError, DataError, MissingDataError, MissingExtraError, RequestError

if TYPE_CHECKING:
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.core.cluster.instances import Catalog, InstanceType, ZonePrice
    from deepvm.core.preemption.gang_survival import OwnPool
    from deepvm.simulator.survival.evidence import PriceEvidence


def survive(
    *,
    instance_type: Annotated[
        str, opt("The type of the VMs.", "TYPE", autocompletion=complete.complete_type)
    ],
    count: Annotated[int, opt("How many are needed at once.", "N")],
    for_: Annotated[str, opt("How long all have to live, such as 4h.", "TIME", "--for")],
    catalog: Annotated[
        str,
        opt(
            "A cloud's market, an embedded catalog, or a file.",
            "NAME|FILE",
            autocompletion=complete.complete_catalog,
        ),
    ] = "aws",
    cloud: Annotated[
        str, opt("A cloud's market: aws, gcp ...", "NAME", autocompletion=complete.complete_cloud)
    ] = "",
    region: Annotated[
        str,
        opt(
            "The region; default: your own.",
            "NAME",
            "--region",
            "-r",
            autocompletion=complete.complete_region,
        ),
    ] = "",
    zone: Annotated[
        str, opt("Only this zone, by id (use1-az1) or name (us-east-1a).", "ZONE")
    ] = "",
    price_history: PriceHistory = "",
    days: Annotated[str, opt("Days of --history, 1 to 90.", "N")] = "30",
    max_price: Annotated[
        str | None, opt("The most that you bid for a VM, $/h; needs --history.", "USD")
    ] = None,
    prices: Prices = "auto",
    offline: Offline = False,
    profile: AwsProfile = "",
    output: Output = "table",
) -> None:
    """Say how probable it is that N spot VMs of a type can be had, and that all of them live for a time.

    It rests on public traces, the cloud's interruption band, your own jobs, and, where they are at
    hand, stored prices and placement scores. Losses that come together are counted as such.

    Example: deepvm survive --instance-type p4d.24xlarge --count 8 --for 4h
    """
    from deepvm.catalog.market.build_catalog import MarketRequest
    from deepvm.cli.plan.open_catalogs import market_of
    from deepvm.documents.outputs.simulation import Survive
    from deepvm.reports.simulation.survive import print_answer
    from deepvm.simulator.survival.evidence import answer

    if max_price is not None and not price_history:
        raise RequestError(
            "max_price", max_price, "together with --history FOLDER, which says how prices moved"
        )
    most = None if max_price is None else to_decimal(max_price, "max_price")
    for_s = parse_seconds(for_, "for")
    catalog = market_of(cloud, catalog)
    _check_cloud(catalog, "cloud" if cloud else "catalog")
    request = MarketRequest(prices=prices, offline=offline, profile=profile, days=days)
    loaded, kind = _type(_named(catalog, region), instance_type, request)
    place = _place(loaded, kind, zone)
    found = answer(
        loaded,
        kind,
        count,
        for_s,
        zone=zone,
        own=_own(instance_type, loaded.region, place.name),
        score=_score(loaded, kind, count, request, place.zone),
        prices=_prices(loaded, kind, price_history, int(request.days), for_s, place.zone, most),
    )
    print_as(output, lambda: print_answer(found), lambda: document_of(Survive, found))


def _check_cloud(catalog: str, option: str) -> None:
    """Raises RequestError: a cloud without a spot market, or one of which nothing is known."""
    from deepvm.catalog.clouds import cloud_of, region_in
    from deepvm.catalog.store import may_be_market

    if may_be_market(catalog) and region_in(catalog) is not None and not cloud_of(catalog).has_spot:
        title = cloud_of(catalog).title
        raise RequestError(
            option, catalog, f"a cloud with a spot market whose prices are known; {title} has none"
        )


def _named(catalog: str, region: str) -> str:
    """The catalog of a region.

    Raises RequestError: the catalog is that of another one, or of none.
    """
    from deepvm.catalog.clouds import region_in
    from deepvm.catalog.store import may_be_market

    if not region:
        return catalog
    own = region_in(catalog) if may_be_market(catalog) else None
    if own is None or own not in ("", region):
        raise RequestError(
            "region", region, f"no region beside --catalog {catalog}, or --catalog aws"
        )
    return catalog if own else f"{catalog}-{region}"


def _type(catalog: str, name: str, request: MarketRequest) -> tuple[Catalog, InstanceType]:
    """The catalog and the type; notes say where prices come from."""
    from deepvm.catalog.store import load_catalog

    loaded = load_catalog(
        catalog, prices=request.prices, offline=request.offline, profile=request.profile
    )
    say_notes([loaded])
    kind = loaded.by_name.get(name)
    if kind is None:
        why = f"; {loaded.absent[name]}" if name in loaded.absent else ""
        raise RequestError("instance_type", name, one_of(name, sorted(loaded.by_name), ", ") + why)
    if kind.spot_usd_per_hour is None:
        note(
            f"no spot price of {name} is known in {loaded.name}: it may not be sold on the spot"
            " market there"
        )
    return loaded, kind


def _place(catalog: Catalog, kind: InstanceType, zone: str) -> ZonePrice:
    """A zone by id and by name: both as given where no prices tell them apart.

    Raises RequestError: no zone of the region, or the type is not sold there.
    """
    from deepvm.core.cluster.instances import ZonePrice

    if not zone:
        return ZonePrice("", Decimal(1))
    known = [z for z in kind.spot_zones if zone in (z.zone, z.name)]
    if known:
        return replace(known[0], name=known[0].name or zone)
    if kind.spot_zones:
        sold = ", ".join(f"{z.zone} ({z.name})" if z.name else z.zone for z in kind.spot_zones)
        raise RequestError(
            "zone", zone, f"a zone in which {kind.name} is sold on the spot market: {sold}"
        )
    _check_zone(catalog, kind, zone)
    return ZonePrice(zone, Decimal(1), zone)


def _check_zone(catalog: Catalog, kind: InstanceType, zone: str) -> None:
    """Where no price tells zones apart: raises a RequestError for one that the region cannot have."""
    from deepvm.catalog.clouds import cloud_of

    if kind.zones and zone not in kind.zones:
        raise RequestError("zone", zone, f"a zone that offers {kind.name}: {', '.join(kind.zones)}")
    if kind.zones:
        return
    if not catalog.provenance.origins:
        raise RequestError("zone", zone, f"none: catalog {catalog.name} does not tell zones apart")
    if not cloud_of(catalog.name).may_be_zone(zone, catalog.region):
        raise RequestError("zone", zone, f"a zone of {catalog.region}, by its name or id")


def _own(name: str, region: str, zone: str) -> OwnPool | None:
    """What this user's jobs saw of the type; None without jobs. They know zones by name."""
    import os
    import time

    try:
        from deepvm.jobs.history.history import PLACE, History, own_folder
        from deepvm.jobs.history.pools import own_pool
    except ImportError:  # the extra [jobs]
        return None
    try:
        if not os.environ.get(PLACE) and not (own_folder() / "history.db").exists():
            return None
        if not zone.startswith(region if zone else ""):
            note(
                f"your own jobs are not asked: they know zones by name, and that of {zone} is not"
                " at hand"
            )
            return None
        with History.reader() as history:
            return own_pool(history.machines(), time.time(), name, region, zone)
    except (DataError, MissingExtraError) as error:
        note(f"your own jobs are not asked: {error}")
        return None


def _score(
    catalog: Catalog, kind: InstanceType, count: int, request: MarketRequest, zone: str
) -> int | None:
    """The cloud's placement score of the zone, or of the best one.

    None where the cloud is not asked.
    """
    from deepvm.catalog.market.open_markets import placement

    if not catalog.provenance.origins or request.offline or request.prices == "snapshot":
        return None
    try:
        scores = placement(catalog, kind, count, request, progress=say).scores
    except CloudError as error:
        if error.why != "credentials":
            note(f"no placement scores: {error}")
        return None
    return scores.get(zone) if zone else max(scores.values(), default=None)


def _prices(
    catalog: Catalog,
    kind: InstanceType,
    folder: str,
    days: int,
    for_s: float,
    zone: str,
    most: Decimal | None,
) -> PriceEvidence | None:
    """What stored prices say; None without a folder."""
    if not folder:
        return None
    from deepvm.catalog.clouds import cloud_of
    from deepvm.catalog.market.stored_prices import read_stored_prices
    from deepvm.simulator.survival.evidence import price_evidence

    if not catalog.provenance.origins:
        raise RequestError(
            "history",
            folder,
            f"a cloud's market beside it, such as --catalog aws, not {catalog.name}",
        )
    now = datetime.now(timezone.utc)
    cloud, region = cloud_of(catalog.name).name, catalog.region
    stored = read_stored_prices(folder, cloud, [region], days, now, say)[region]
    if isinstance(stored, MissingDataError):
        raise stored
    for text in stored.notes:
        note(text)
    found = price_evidence(stored, kind, for_s, zone, most)
    if found is None:
        note(
            f"{folder} has no spot price of {kind.name} in {zone or catalog.region} in {days} days"
        )
    return found if found is None or most is not None else replace(found, asked=False)
