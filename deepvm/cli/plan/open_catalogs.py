"""Open the catalogs that the options name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.cli.output import note, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepvm.catalog.market.live import Placement
    from deepvm.catalog.measured.tables import Tables
    from deepvm.cli.plan.options import PlanFlags
    from deepvm.core.cluster.instances import Catalog
    from deepvm.planner.regions import Comparison


def open_catalogs(flags: PlanFlags) -> tuple[Catalog, ...]:
    """The catalogs that the options mean, one for each region, with notes on stderr about where they come from.

    What the user measured is in them.

    Raises:
        MissingDataError: the catalog holds prices of another region, or nothing is known of the region.
        CloudError: AWS had to answer and did not.
        DataError: it cannot be found or read.
        RequestError: options that contradict each other, or a workload that was not measured.
    """
    return measured(_published(flags), flags.tables, flags.workload)


def _published(flags: PlanFlags) -> tuple[Catalog, ...]:
    from deepvm.catalog.store import may_be_market
    from deepvm.errors import RequestError

    regions = flags.regions
    if not may_be_market(flags.catalog):  # the market's modules are many: a file does without them
        return (_other(flags),)
    from deepvm.catalog.clouds import cloud_of, region_in
    from deepvm.catalog.market.live import open_markets

    named = region_in(flags.catalog)
    if named is None:
        return (_other(flags),)
    if flags.offline and flags.prices == "live" and not _set_elsewhere("offline", True):
        setter = _set_elsewhere("prices", "live")
        if setter:
            note(f"prices = live ({setter}) has no effect beside --offline")
            flags = replace(flags, prices="auto")
    if named and regions and regions != (named,):
        setter = _set_elsewhere("region", list(flags.region))
        if not setter:
            raise RequestError("region", regions[0], f"{named}, which --catalog names, or --catalog aws")
        note(f"region = {', '.join(regions)} ({setter}) has no effect beside --catalog {flags.catalog}")
    market = flags.market()
    catalogs = open_markets((named,) if named else regions, market, cloud=cloud_of(flags.catalog), progress=say)
    for text in dict.fromkeys(n for catalog in catalogs for n in catalog.provenance.notes):
        note(text)
    return catalogs


def measured(catalogs: Sequence[Catalog], tables: str, workload: str) -> tuple[Catalog, ...]:
    """Catalogs with the figures that the user measured, with notes about those that cannot be used.

    Args:
        catalogs: all that are compared.
        tables: ``auto``, ``paper`` or a file.
        workload: which of several counts, empty for the rule.

    Raises:
        DataError: the tables cannot be read.
        RequestError: nothing was measured with the workload.
    """
    if tables == "auto" and not workload:
        from deepvm.catalog.measured.storage import nothing_measured

        if nothing_measured():
            return tuple(catalogs)
    from deepvm.catalog.measured.tables import open_tables

    found = open_tables(tables)
    if found is None:
        if workload:
            note(f"--workload {workload} has no effect beside --tables paper")
        return tuple(catalogs)
    if not found and not workload:
        return tuple(catalogs)
    applied = tuple(_named(found.apply(c, workload, among=catalogs), found, tables) for c in catalogs)
    before = {text for catalog in catalogs for text in catalog.provenance.notes}
    for text in dict.fromkeys(t for catalog in applied for t in catalog.provenance.notes):
        if text not in before:  # those have been said
            note(text)
    return applied


def _named(catalog: Catalog, tables: Tables, name: str) -> Catalog:
    """The catalog, which says of what file its measured figures are where it is not the user's own."""
    if name == "auto" or not catalog.provenance.measured:
        return catalog
    return replace(catalog, provenance=replace(catalog.provenance, measured_file=tables.path))


def _other(flags: PlanFlags) -> Catalog:
    """An embedded catalog or a file, for which most of the options about prices mean nothing."""
    from deepvm.catalog.store import load_catalog
    from deepvm.core.cluster.one_zone import zones_of
    from deepvm.errors import MissingDataError

    catalog = load_catalog(flags.catalog, network=flags.network, zone=flags.zone)
    setter = _set_elsewhere("region", list(flags.region)) if flags.regions else ""
    if setter and flags.regions != (catalog.region,):
        note(f"region = {', '.join(flags.regions)} ({setter}) has no effect on catalog {catalog.name}")
    for region in () if setter else flags.regions:
        if region != catalog.region:
            has = f"it holds prices of {catalog.region}" if catalog.region else "its types are in no region"
            raise MissingDataError(f"catalog {catalog.name} has no prices of region {region!r}: {has}")
    idle = {
        "--profile": flags.profile,
        "--zone": "" if zones_of(catalog) else flags.zone,
        "--price-basis": flags.price_basis if flags.price_basis != "current" else "",
        "--prices": flags.prices if flags.prices != "auto" else "",
        "--days": flags.days if flags.days != "30" else "",
        "--placement-scores": "" if not flags.placement_scores else "it",
    }
    for option, value in idle.items():
        if value:
            shown = option if value == "it" else f"{option} {value}"
            why = "does not tell zones apart" if option == "--zone" else "is not read from AWS"
            note(f"{shown} has no effect: catalog {catalog.name} {why}")
    return catalog


def _set_elsewhere(name: str, value: object) -> str:
    """Which file or variable set an option to this value; empty when the command line did.

    What is set for all commands must not stand in the way of what is asked for now.
    """
    import os

    from deepvm.cli.settings import read_settings, value_for

    setting = read_settings(os.environ).by_name.get(name)
    if setting is None or value_for(setting, several=isinstance(value, list)) != value:
        return ""
    return setting.source


def one_catalog(flags: PlanFlags) -> Catalog:
    """The catalog that the options mean, where a command takes only one.

    Raises:
        RequestError: several regions.
    """
    from deepvm.errors import RequestError

    if len(flags.regions) > 1 or "all" in flags.regions:
        raise RequestError("region", " ".join(flags.regions), "one region; 'deepvm recommend' compares several")
    return open_catalogs(flags)[0]


def placement_of(found: Comparison, flags: PlanFlags) -> Placement | None:
    """AWS's scores for the best cluster's spot VMs, where they were asked for and can be had."""
    if not flags.placement_scores or not found.ranked:
        return None
    from deepvm.catalog.market.live import placement
    from deepvm.errors import CloudError

    best = found.ranked[0]
    if not best.answer.catalog.provenance.origins or not best.recommendation.cluster.spot_count:
        return None
    gpu, catalog = best.recommendation.cluster.gpu, best.answer.catalog
    try:
        return placement(catalog, gpu, best.recommendation.cluster.spot_count, flags.market(), progress=say)
    except CloudError as error:
        note(f"no placement scores: {error}")
        return None
