"""The types of a catalog and its changes; the cache of prices: what is in it, and how fresh."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from deepvm.catalog.diff import CatalogDiff, PriceChange
from deepvm.catalog.public.public_market import PublicCatalog
from deepvm.catalog.signals.cache import Entry
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.fetching import Quotes, SignalRequest
from deepvm.catalog.signals.signal import HISTORY, PLACEMENT, SPECS, Signal, age, reason, ttl_s
from deepvm.core.cluster.instances import Catalog, Market
from deepvm.core.json_types import JsonDict
from deepvm.core.units import counted
from deepvm.documents.build import With, percent
from deepvm.errors import CloudError
from deepvm.reports.plans.sources import measured_lines, source_line
from deepvm.reports.text import print_text, text_blocks
from deepvm.services.schemas import Table


def print_types(catalog: Catalog, *, wide: bool) -> None:
    """Write the table of ``catalog show``."""
    print_text("catalog_types", types=catalog, wide=wide)


def about_lines(catalog: Catalog, now: datetime) -> list[str]:
    """How many types a catalog has, of where and when, and what its figures rest on."""
    counts = type_counts(catalog)
    lines = text_blocks("catalog_about", ["about"], catalog=catalog, counts=counts)
    if catalog.provenance.origins:
        lines.append(source_line(catalog, now))
    return [*lines, *measured_lines(catalog)]


def type_counts(catalog: Catalog) -> str:
    """``14 instance types (6 GPU, 8 CPU)``."""
    gpus = sum(i.gpu is not None for i in catalog)
    return f"{counted(len(catalog), 'instance type')} ({gpus} GPU, {len(catalog) - gpus} CPU)"


CSV_HEADER = ["change", "instance_type", "market", "zone"]
CSV_HEADER += ["figure", "old", "new", "difference", "percent"]


def csv_rows(diff: CatalogDiff) -> Table:
    """Header and one row for each change, or for each price of a type that came or went; in $/h."""
    changes = [
        ("added", PriceChange(i.name, market, None, i.usd_per_hour(market)))
        for i in diff.added
        for market in Market
    ]
    changes += [
        ("removed", PriceChange(i.name, market, i.usd_per_hour(market), None))
        for i in diff.removed
        for market in Market
    ]
    changes += [("price", change) for change in diff.prices]
    rows: list[list[Any]] = []
    for name, p in changes:
        prices = [_text(price) for price in (p.old, p.new, p.difference)]
        if any(prices):
            key = [name, p.instance_type, p.market.value, p.zone, None]
            rows.append([*key, *prices, percent(p)])
    for f in diff.figures:
        rows.append(["figure", f.instance_type, None, None, f.figure, f.old, f.new, None, None])
    return CSV_HEADER, rows


def _text(price: Decimal | None) -> str | None:
    if price is None:
        return None
    return f"{price:f}"


def signal_rows(cloud: Cloud, profile: str, regions: Sequence[str], now: datetime) -> list[With]:
    """Every signal of these regions, or of all that are cached, and of the snapshots."""
    entries = cloud.cache(profile).entries(now)
    shown: list[Entry] = []
    for region in regions or dict.fromkeys(e.region for e in entries):
        of_region = {kind: Entry(region, kind, state="absent") for kind in cloud.kinds}
        of_region |= {e.kind: e for e in entries if e.region == region}
        shown += of_region.values()
    for region in cloud.snapshot_regions():
        if not regions or region in regions:
            embedded = cloud.snapshot(region).items()
            shown += [Entry(region, k, state="snapshot", signal=s) for k, s in embedded]
    rows = []
    for entry in shown:
        refused = dict(entry.signal.refused) if entry.signal else {}
        times = _times(entry.signal, ttl_s(entry.kind), now)
        step = _renewal(entry, cloud)
        rows.append(With(entry, cloud=cloud, refused=refused, next_step=step, **times))
    return rows


def file_rows(catalogs: Sequence[PublicCatalog], now: datetime, *, absent: bool) -> list[With]:
    """Public catalogs that were ever fetched; ``absent``: the others too."""
    return [_file(c, about, now) for c in catalogs if (about := c.about()) or absent]


def _file(catalog: PublicCatalog, about: Signal | None, now: datetime) -> With:
    source = catalog.source
    state = "absent"
    if about is not None:
        state = "expired"
        if about.fresh:
            state = "fresh"
    step = f"deepvm catalog refresh --source {source.name} --cloud {catalog.cloud.name}"
    return With(
        catalog,
        state=state,
        regions=list(about.data) if about else [],
        dated=about and about.dated,
        next_step=None if state == "fresh" else step,
        **_times(about, source.period_s, now, of_file=True),
    )


def _times(signal: Signal | None, ttl_s: int, now: datetime, of_file: bool = False) -> JsonDict:
    if signal is None:
        times = dict.fromkeys(("observed_at", "fetched_at", "expires_at", "age_s"))
        return {**times, "age": "-"}
    fetched = signal.fetched_at
    since = signal.observed_at
    if fetched is not None and not of_file:
        since = fetched
    expires = fetched and fetched + timedelta(seconds=ttl_s)
    return {
        "observed_at": signal.observed_at.isoformat(),
        "fetched_at": fetched and fetched.isoformat(),
        "expires_at": expires and expires.isoformat(),
        "age_s": max(0, int((now - since).total_seconds())),
        "age": age(since, now, signal.dated),
    }


def _renewal(entry: Entry, cloud: Cloud) -> str | None:
    base, _, parameter = entry.kind.partition(":")
    if base == PLACEMENT or entry.state in ("fresh", "snapshot") or not cloud.has_api:
        return None  # public catalogs renew those of other clouds, which have rows of their own
    command = f"deepvm catalog refresh --region {entry.region} --only {base}"
    if base == HISTORY:
        command += f" --days {parameter}"
    return command


def print_quotes(requests: Sequence[SignalRequest], quotes: Quotes, now: datetime) -> None:
    """Write a table of the requests to a cloud, with the state of each answer."""
    rows = []
    for request in requests:
        signal = quotes.signals.get(request)
        result = _result([signal] if signal else [], quotes.errors.get(request), now)
        seconds = quotes.seconds.get(request, 0.0)
        rows.append({"request": request, "signal": signal, "seconds": seconds, **result})
    print_text("catalog_refresh_cloud", rows=rows)


def print_files(results: Sequence[tuple[PublicCatalog, list[Signal]]], now: datetime) -> None:
    """Write the table of what public catalogs were asked for."""
    rows = []
    for catalog, signals in results:
        types = {name for s in signals if s.kind == SPECS for name in s.data}
        counts = {"regions": len({s.region for s in signals}) or "-", "types": len(types) or "-"}
        rows.append({"catalog": catalog, **counts, **_result(signals, catalog.error, now)})
    print_text("catalog_refresh_files", rows=rows)


def _result(signals: Sequence[Signal], error: CloudError | None, now: datetime) -> dict[str, str]:
    if not signals:
        why = reason(error.why if error else "credentials")
        return {"result": f"failed: {why}", "refused": "-", "age": "-"}
    refused: Counter[str] = Counter()
    for signal in signals:
        refused.update(signal.refused)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
    old = age(signals[0].observed_at, now, signals[0].dated)
    return {"result": "fetched", "refused": counts or "-", "age": old}
