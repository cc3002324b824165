"""The cache of prices for people and programs: what was fetched, and how fresh it is.

Times in UTC, ages in seconds, null where there is nothing to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from deepvm.catalog.public.public_market import PublicCatalog
from deepvm.catalog.signals.cache import Cache, Entry
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.fetching import Quotes, SignalRequest
from deepvm.catalog.signals.signal import HISTORY, PLACEMENT, SPECS, Signal, age, reason, ttl_s
from deepvm.documents.values import With
from deepvm.errors import CloudError
from deepvm.reports.text import print_text


def signal_rows(cache: Cache, cloud: Cloud, regions: Sequence[str], now: datetime) -> list[With]:
    """Every signal of these regions, or of all that are cached, and of the snapshots.

    A region should have all ``cloud.kinds``; other kinds are shown if they exist.
    """
    entries = cache.entries(now)
    shown: list[Entry] = []
    for region in regions or dict.fromkeys(e.region for e in entries):
        of_region = {kind: Entry(region, kind, state="absent") for kind in cloud.kinds}
        of_region |= {e.kind: e for e in entries if e.region == region}
        shown += of_region.values()
    for region in cloud.snapshot_regions():
        if not regions or region in regions:
            embedded = cloud.snapshot(region).items()
            shown += [Entry(region, k, state="snapshot", signal=s) for k, s in embedded]
    return [_cached(entry, now) for entry in shown]


def _cached(entry: Entry, now: datetime) -> With:
    signal = entry.signal
    settled = entry.state in ("fresh", "snapshot")
    return With(
        entry,
        refused=dict(signal.refused) if signal else {},
        next_step=None if settled else _renewal(entry.region, entry.kind),
        **_times(signal, ttl_s(entry.kind), now),
    )


def file_rows(catalogs: Sequence[PublicCatalog], now: datetime, *, absent: bool) -> list[With]:
    """Public catalogs that were ever fetched; ``absent``: the others too."""
    return [_file(c, about, now) for c in catalogs if (about := c.about()) or absent]


def _file(catalog: PublicCatalog, about: Signal | None, now: datetime) -> With:
    source = catalog.source
    state = "absent"
    if about is not None:
        state = "fresh" if about.fresh else "expired"
    step = f"deepvm catalog refresh --source {source.name} --cloud {catalog.cloud.name}"
    return With(
        catalog,
        state=state,
        regions=list(about.data) if about else [],
        dated=about and about.dated,
        next_step=None if state == "fresh" else step,
        **_times(about, source.period_s, now, of_file=True),
    )


def _times(
    signal: Signal | None, ttl_s: int, now: datetime, of_file: bool = False
) -> dict[str, Any]:
    """When a signal was true and fetched, until when it is fresh, and its age, also in words.

    The age counts from when it was fetched, of a public file from when that was written.
    """
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


def _renewal(region: str, kind: str) -> str | None:
    """The command that fetches a signal; none for scores, which are fetched for one plan only."""
    base, _, parameter = kind.partition(":")
    if base == PLACEMENT:
        return None
    days = f" --days {parameter}" if base == HISTORY else ""
    return f"deepvm catalog refresh --region {region} --only {base}{days}"


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
    """What came of a request: the refused rows of all signals, and the age of the first."""
    if not signals:
        why = reason(error.why if error else "credentials")
        return {"result": f"failed: {why}", "refused": "-", "age": "-"}
    refused: Counter[str] = Counter()
    for signal in signals:
        refused.update(signal.refused)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
    old = age(signals[0].observed_at, now, signals[0].dated)
    return {"result": "fetched", "refused": counts or "-", "age": old}
