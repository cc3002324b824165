"""``deepvm catalog status``: the cache of prices and types."""

from __future__ import annotations

from datetime import datetime, timezone

from deepvm.cli.catalog.refresh import ALL, CLOUD_NAMES, PROFILE, clouds_named, region_option
from deepvm.cli.output import Output, note, print_named, text


def status(
    region: list[str] | None = region_option(None),
    cloud: list[str] | None = CLOUD_NAMES,
    profile: str = PROFILE,
    output: Output = "table",
) -> None:
    """Show the cache of prices and types.

    Lists what it holds, how old that is, whether it is fresh, and what renews it. Sends no requests
    and changes nothing.
    """
    from deepvm.catalog.clouds import DEFAULT_CLOUD
    from deepvm.catalog.public.public_market import AUTO, public_catalogs
    from deepvm.reports.prices.status import file_rows, signal_rows

    cache = DEFAULT_CLOUD.cache(profile)
    now = datetime.now(timezone.utc)
    clouds = clouds_named(cloud or [])
    names = [r for r in dict.fromkeys(region or []) if r != ALL]
    regions = [DEFAULT_CLOUD.check_region(name) for name in names]
    if ALL in (region or []):
        regions = []
    public = [c for one in clouds for c in public_catalogs(one, AUTO, now)]
    files = file_rows(public, now, absent=bool(cloud))
    signals = []
    if DEFAULT_CLOUD in clouds:
        signals = signal_rows(cache, DEFAULT_CLOUD, regions, now)
    values = {"now": now.isoformat(), "cache": cache, "signals": signals, "public_catalogs": files}
    table = text("catalog_status", signals=signals, files=files)
    print_named(output, table, "catalog-status", values)
    if output != "table" or DEFAULT_CLOUD not in clouds:
        return
    if cache.folder is None:
        note("there is no home folder for the cache; DEEPVM_CACHE_DIR names another folder")
    elif not any(row.path for row in signals):
        note(f"{cache.folder} is empty; 'deepvm catalog refresh' fetches from AWS")
