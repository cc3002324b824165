"""Open the catalogs that the options name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

# First here: its import, deeper in the call stack, may cross a chunk of CPython's frame stack at
# each of thousands of calls, which maps and unmaps it every time (60 ms of `recommend`).
import numpy  # noqa: F401

from deepvm.cli.output import note, say
from deepvm.cli.plan.options import DEFAULT_CATALOG, HISTORY, PlanFlags, say_notes
from deepvm.cli.plan.own_history import with_history
from deepvm.cli.settings import set_elsewhere
from deepvm.errors import CloudError, DeepVMError, MissingDataError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepvm.catalog.market.open_markets import Placement
    from deepvm.catalog.signals.cloud import Cloud
    from deepvm.core.cluster.instances import Catalog
    from deepvm.planner.regions import Comparison


def open_catalogs(flags: PlanFlags, *, details: bool = False) -> tuple[Catalog, ...]:
    """The catalogs that the options name, one per cloud and region, with the user's measurements.

    Notes name the sources. ``details``: of sources that are as usual, too.

    Raises DataError, CloudError (``--prices live`` failed), or RequestError (options contradict
    each other).
    """
    flags.check()
    found = flags.with_measurements(_of_market(flags, details) or [_other(flags)])
    found = with_history(found) if flags.mttp == HISTORY else found
    for name in dict.fromkeys(c.name for c in found if c.rates is None):
        for option in (o for o in ("disk", "egress", "bucket", "nat") if getattr(flags, o, None)):
            note(f"--{option} has no effect: no rates are known for catalog {name}")
    if disk_type := getattr(flags, "disk_type", None):
        if not getattr(flags, "disk", None) and not set_elsewhere("disk_type"):
            note(f"--disk-type {disk_type} has no effect without --disk")
        from deepvm.core.bill.bill import refuse_unknown_disk
        from deepvm.core.bill.extras import Extras

        refuse_unknown_disk(
            [c.rates for c in found if c.rates is not None], Extras.parse(disk_type=disk_type)
        )
    if not flags.reserved and not flags.savings_plan:
        return tuple(found)
    from deepvm.cli.plan.committed import with_commitments

    return with_commitments(found, flags.reserved, flags.savings_plan)


def _of_market(flags: PlanFlags, details: bool) -> Sequence[Catalog]:
    """Catalogs of a cloud's market; none if ``--catalog`` names something else."""
    from deepvm.catalog.store import may_be_market

    if flags.clouds:
        return _of_clouds(flags, details)
    if not may_be_market(flags.catalog):  # the market's modules are slow to load
        return []
    from deepvm.catalog.clouds import cloud_of, region_in
    from deepvm.catalog.market.open_markets import open_markets

    named, regions = region_in(flags.catalog), flags.regions
    if named is None:
        return []
    flags = _without_contradiction(flags)
    if named and regions and regions != (named,):
        setter = set_elsewhere("region")
        if not setter:
            raise RequestError(
                "region", regions[0], f"{named}, which --catalog names, or --catalog aws"
            )
        note(
            f"region = {', '.join(regions)} ({setter}) has no effect beside --catalog"
            f" {flags.catalog}"
        )
    regions = (named,) if named else regions
    catalogs = open_markets(regions, flags.market(), cloud=cloud_of(flags.catalog), progress=say)
    say_notes(catalogs, details=details)
    return catalogs


def _without_contradiction(flags: PlanFlags) -> PlanFlags:
    """A setting for all commands must not contradict the command line."""
    if (
        flags.price_history
        and flags.price_basis == "current"
        and not set_elsewhere("price_history")
    ):
        note(f"--history {flags.price_history} has no effect without --price-basis p50, p95 or max")
    setter = set_elsewhere("prices")
    if flags.offline and flags.prices == "live" and setter and not set_elsewhere("offline"):
        note(f"prices = live ({setter}) has no effect beside --offline")
        return replace(flags, prices="auto")
    return flags


def _of_clouds(flags: PlanFlags, details: bool) -> Sequence[Catalog]:
    """Catalogs of the clouds that ``--cloud`` names.

    Of several, those without prices are left out with a note.
    """
    from deepvm.catalog.clouds import REGISTRY
    from deepvm.catalog.market.open_markets import open_markets

    if flags.catalog != DEFAULT_CATALOG and not set_elsewhere("catalog"):
        raise RequestError("cloud", flags.cloud[0], f"either --cloud or --catalog {flags.catalog}")
    flags = _without_contradiction(flags)
    clouds = [REGISTRY[name] for name in flags.clouds]
    found: list[Catalog] = []
    failed: list[DeepVMError] = []
    silent: dict[str, CloudError] = {}
    for cloud, regions in zip(clouds, _regions_of(flags, clouds), strict=True):
        try:
            found += open_markets(
                regions,
                flags.market(),
                cloud=cloud,
                progress=say,
                silent=silent,
                others=len(clouds) > 1,
            )
        except (MissingDataError, CloudError, RequestError) as error:
            failed.append(error)
            if len(clouds) > 1:
                note(f"{cloud.title} is left out: {error}")
    if not found:
        raise failed[0]
    say_notes(found, details=details)
    return found


def _regions_of(flags: PlanFlags, clouds: Sequence[Cloud]) -> list[list[str]]:
    """The named regions of each cloud, by the form of their names; none: its usual one.

    Raises RequestError.
    """
    found: list[list[str]] = [[] for _ in clouds]
    for name in flags.regions:
        errors = []
        for cloud, regions in zip(clouds, found, strict=True):
            try:
                regions.append(name if name == "all" else cloud.check_region(name))
            except RequestError as error:
                errors.append(error)
        if len(errors) == len(clouds):
            raise errors[0]
    return found


def _other(flags: PlanFlags) -> Catalog:
    """An embedded catalog or a file, for which most of the options about prices mean nothing."""
    from deepvm.catalog.store import load_catalog

    catalog = load_catalog(flags.catalog, network=flags.network, zone=flags.zone)
    foreign, setter = [r for r in flags.regions if r != catalog.region], set_elsewhere("region")
    if foreign and not setter:
        has = (
            f"it holds prices of {catalog.region}"
            if catalog.region
            else "its types are in no region"
        )
        raise MissingDataError(
            f"catalog {catalog.name} has no prices of region {foreign[0]!r}: {has}"
        )
    if foreign:
        note(
            f"region = {', '.join(flags.regions)} ({setter}) has no effect on catalog"
            f" {catalog.name}"
        )
    options = {
        f"--profile {flags.profile}": flags.profile,
        f"--zone {flags.zone}": flags.zone and not catalog.zones,
        f"--price-basis {flags.price_basis}": flags.price_basis != "current",
        f"--prices {flags.prices}": flags.prices != "auto",
        f"--days {flags.days}": flags.days not in ("30", ""),
        f"--history {flags.price_history}": flags.price_history,
        "--placement-scores": flags.placement_scores,
        f"--source {flags.source}": (
            flags.source not in ("auto", "none") and not set_elsewhere("source")
        ),
    }
    for shown in (option for option, given in options.items() if given):
        why = "does not tell zones apart" if shown.startswith("--zone") else "is not read from AWS"
        note(f"{shown} has no effect: catalog {catalog.name} {why}")
    return catalog


def one_catalog(flags: PlanFlags) -> Catalog:
    """The catalog that the options name, for a command that takes only one. Raises RequestError."""
    if len(flags.regions) > 1 or "all" in flags.regions:
        raise RequestError(
            "region", " ".join(flags.regions), "one region; 'deepvm recommend' compares several"
        )
    if len(flags.clouds) > 1:
        raise RequestError(
            "cloud", " ".join(flags.clouds), "one cloud; 'deepvm recommend' compares several"
        )
    return open_catalogs(flags)[0]


def market_of(cloud: str, catalog: str) -> str:
    """The catalog that ``--cloud`` names, for a command that takes only one.

    ``catalog`` without it.

    Raises RequestError.
    """
    if not cloud:
        return catalog
    from deepvm.catalog.clouds import clouds_of

    if catalog != DEFAULT_CATALOG and not set_elsewhere("catalog"):
        raise RequestError("cloud", cloud, f"either --cloud or --catalog {catalog}")
    first, *others = clouds_of([cloud])
    if others:
        raise RequestError("cloud", cloud, "one cloud; 'deepvm recommend' compares several")
    return first


def placement_of(found: Comparison, flags: PlanFlags) -> Placement | None:
    """AWS's scores for the best cluster's spot VMs, if wanted and available."""
    if not flags.placement_scores or not found.ranked:
        return None
    from deepvm.catalog.market.open_markets import placement

    best = found.ranked[0]
    cluster, catalog = best.recommendation.cluster, best.answer.catalog
    if not catalog.provenance.origins or not cluster.spot_count:
        why = (
            "the best cluster has no spot VMs"
            if catalog.provenance.origins
            else "prices are not read from AWS"
        )
        note(f"no placement scores: {why}")
        return None
    try:
        return placement(catalog, cluster.gpu, cluster.spot_count, flags.market(), progress=say)
    except CloudError as error:
        note(f"no placement scores: {error}")
        return None
