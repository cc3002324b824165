"""Signals for people and programs: what was fetched, what is cached, and how fresh it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TextIO

from deepvm.catalog.signals.cache import Cache, Entry
from deepvm.catalog.signals.fetching import Outcome
from deepvm.catalog.signals.signal import HISTORY, PLACEMENT, Signal, age, reason, ttl_s
from deepvm.reports.tables import Column, print_items

STATUS_VERSION = "deepvm.catalog-status/1"


def status_rows(
    entries: Sequence[Entry],
    regions: Sequence[str],
    kinds: Sequence[str],
    snapshots: Mapping[str, Mapping[str, Signal]],
    now: datetime,
) -> list[dict[str, Any]]:
    """State of every signal, region by region.

    Times in UTC, ages in seconds, null where there is nothing to say.

    ``entries``: files of the cache. ``kinds``: signals that a region should have; others are shown
    if they exist.
    ``snapshots``: the signals that came with deepvm, by region and kind.
    """
    found = []
    for region in regions:
        here = [e for e in entries if e.region == region]
        for kind in dict.fromkeys((*kinds, *(e.kind for e in here))):
            files = [e for e in here if e.kind == kind]
            usable = any(e.signal is not None for e in files)
            found += [_cached(e, now, usable=usable) for e in files]
            if not files:
                found.append(_row(region, kind, "absent", now, next_step=renewal(region, kind)))
    for region, signals in snapshots.items():
        found += [_row(region, kind, "snapshot", now, signal) for kind, signal in signals.items()]
    return found


def _cached(entry: Entry, now: datetime, *, usable: bool) -> dict[str, Any]:
    """A file of the cache; ``usable``: whether it, or another of its kind, can be read."""
    signal, next_step = entry.signal, renewal(entry.region, entry.kind)
    if entry.state == "fresh":
        next_step = ""
    elif signal is None and usable:  # set aside long ago, beside a good one
        next_step = f"rm {shlex.quote(str(entry.path))}"
    known = () if signal is None else (signal, signal.fetched_at)
    row = _row(entry.region, entry.kind, entry.state, now, *known)
    return row | {
        "path": str(entry.path),
        "problem": entry.problem or None,
        "next_step": next_step or None,
    }


def _row(
    region: str,
    kind: str,
    state: str,
    now: datetime,
    signal: Signal | None = None,
    fetched_at: datetime | None = None,
    next_step: str = "",
) -> dict[str, Any]:
    observed_at = None if signal is None else signal.observed_at
    dated = fetched_at or observed_at
    return {
        "region": region,
        "signal": kind,
        "state": state,
        "row_count": None if signal is None else signal.rows,
        "refused": {} if signal is None else dict(signal.refused),
        "observed_at": observed_at and observed_at.isoformat(),
        "fetched_at": fetched_at and fetched_at.isoformat(),
        "expires_at": fetched_at and (fetched_at + timedelta(seconds=ttl_s(kind))).isoformat(),
        "age_s": None if dated is None else max(0, int((now - dated).total_seconds())),
        "source": signal and signal.source,
        "path": None,
        "problem": None,
        "next_step": next_step or None,
    }


def renewal(region: str, kind: str) -> str:
    """The command that fetches a signal; empty for scores, which are fetched for one plan only."""
    base, _, parameter = kind.partition(":")
    if base == PLACEMENT:
        return ""
    days = f" --days {parameter}" if base == HISTORY else ""
    return f"deepvm catalog refresh --region {region} --only {base}{days}"


def print_status(statuses: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Write the table of ``catalog status``."""
    items = [
        {
            Column("region"): s["region"],
            Column("signal"): s["signal"],
            Column("state"): s["state"],
            Column("rows", "right", drop=4): "-" if s["row_count"] is None else str(s["row_count"]),
            Column("age", "right", drop=1): "-"
            if s["age_s"] is None
            else age(now - timedelta(seconds=s["age_s"]), now),
            Column("source", drop=3): (s["source"] if s["observed_at"] else s["problem"]) or "-",
            Column("next step", drop=2): s["next_step"] or "-",
        }
        for s in statuses
    ]
    print_items(items, also="-o json")


def status_document(
    statuses: Sequence[Mapping[str, Any]],
    cache: Cache,
    now: datetime,
    files: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The document of ``catalog status -o json``; ``files``: what is kept of public catalogs."""
    return {
        "schema_version": STATUS_VERSION,
        "now": now.isoformat(),
        "cache": {
            "folder": None if cache.folder is None else str(cache.folder),
            "account": cache.account,
        },
        "signals": statuses,
        "public_catalogs": files,
    }


def print_outcomes(
    outcomes: Sequence[Outcome], now: datetime, stream: TextIO | None = None
) -> None:
    """Write the table of ``catalog refresh``."""
    items = []
    for outcome in outcomes:
        signal = outcome.signal
        result = "not asked" if outcome.error is None else f"failed: {reason(outcome.error.why)}"
        if signal is not None:
            result = "fetched" if signal.origin == "live" else "fetched by another deepvm"
        refused = signal and ", ".join(
            f"{count} {why}" for why, count in sorted(signal.refused.items())
        )
        items.append(
            {
                Column("region"): outcome.request.region,
                Column("signal"): outcome.request.kind,
                Column("result"): result,
                Column("rows", "right", drop=2): str(signal.rows) if signal else "-",
                Column("refused rows", drop=1): refused or "-",
                Column("age", "right", drop=3): age(signal.observed_at, now) if signal else "-",
                Column("seconds", "right", drop=5): f"{outcome.seconds:.1f}",
                Column("source", drop=4): (signal and signal.source) or "-",
            }
        )
    print_items(items, stream)
