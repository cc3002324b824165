"""Signals for people and programs: what was fetched, what is cached, and how fresh it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TextIO

from deepvm.catalog.signals.cache import Cache, Entry
from deepvm.catalog.signals.fetching import Outcome
from deepvm.catalog.signals.signal import HISTORY, PLACEMENT, Signal, age, reason, ttl_s
from deepvm.reports.tables import Column, print_table

STATUS_VERSION = "deepvm.catalog-status/1"


@dataclass(frozen=True)
class SignalStatus:
    """State of one signal of one region.

    Attributes:
        region, kind: which one.
        state: ``fresh``, ``expired``, ``damaged``, ``other version``, ``absent``, or ``snapshot`` for what came with
            deepvm.
        signal: the facts; None if there are none that can be read.
        fetched_at: when they were fetched, UTC; None for the snapshot.
        path: the file; empty where there is none or it is part of deepvm.
        problem: why the file cannot be used; empty if it can.
        next_step: the command that makes it fresh; empty if nothing is to be done.
    """

    region: str
    kind: str
    state: str
    signal: Signal | None = None
    fetched_at: datetime | None = None
    path: str = ""
    problem: str = ""
    next_step: str = ""

    @property
    def dated(self) -> datetime | None:
        """The time from which its age counts."""
        return self.fetched_at or (None if self.signal is None else self.signal.observed_at)

    @property
    def expires_at(self) -> datetime | None:
        """Until when a cached signal counts as fresh."""
        return None if self.fetched_at is None else self.fetched_at + timedelta(seconds=ttl_s(self.kind))


def status_of(
    entries: Iterable[Entry],
    regions: Sequence[str],
    kinds: Sequence[str],
    snapshots: Mapping[str, Mapping[str, Signal]],
) -> tuple[SignalStatus, ...]:
    """State of every signal, region by region: cached, absent, or embedded.

    Args:
        entries: the files of the cache.
        regions: those to tell about.
        kinds: the signals that a region should have; others are told of if they are there.
        snapshots: the signals that came with deepvm, by region and kind.
    """
    found = []
    kept = list(entries)
    for region in regions:
        here = [e for e in kept if e.region == region]
        usable = {e.kind for e in here if e.signal is not None}
        others = [k for k in dict.fromkeys(e.kind for e in here) if k not in kinds]
        for kind in (*kinds, *others):
            files = [e for e in here if e.kind == kind]
            found += [_status(e, usable) for e in files]
            if not files:
                found.append(SignalStatus(region, kind, "absent", next_step=renewal(region, kind)))
    found += [
        SignalStatus(region, kind, "snapshot", signal)
        for region, signals in snapshots.items()
        for kind, signal in signals.items()
    ]
    return tuple(found)


def renewal(region: str, kind: str) -> str:
    """The command that fetches a signal; empty for scores, which are fetched for one plan only."""
    base, _, parameter = kind.partition(":")
    if base == PLACEMENT:
        return ""
    days = f" --days {parameter}" if base == HISTORY else ""
    return f"deepvm catalog refresh --region {region} --only {base}{days}"


def print_status(statuses: Sequence[SignalStatus], now: datetime, stream: TextIO | None = None) -> None:
    """Write the table of ``catalog status``."""
    columns = [
        Column("region"),
        Column("signal"),
        Column("state"),
        Column("rows", "right", drop=4),
        Column("age", "right", drop=1),
        Column("source", drop=3),
        Column("next step", drop=2),
    ]
    cells = [
        [
            s.region,
            s.kind,
            s.state,
            "-" if s.signal is None else str(s.signal.rows),
            "-" if s.dated is None else age(s.dated, now),
            s.problem if s.signal is None else s.signal.source,
            s.next_step,
        ]
        for s in statuses
    ]
    print_table(columns, [[c or "-" for c in row] for row in cells], stream, also="-o json")


def status_document(statuses: Sequence[SignalStatus], cache: Cache, now: datetime) -> dict[str, Any]:
    """The document of ``catalog status -o json``; times in UTC, ages in seconds."""
    return {
        "schema_version": STATUS_VERSION,
        "now": now.isoformat(),
        "cache": {"folder": None if cache.folder is None else str(cache.folder), "account": cache.account},
        "signals": [_status_row(s, now) for s in statuses],
    }


def print_outcomes(outcomes: Sequence[Outcome], now: datetime, stream: TextIO | None = None) -> None:
    """Write the table of ``catalog refresh``."""
    columns = [
        Column("region"),
        Column("signal"),
        Column("result"),
        Column("rows", "right", drop=2),
        Column("refused rows", drop=1),
        Column("age", "right", drop=3),
        Column("seconds", "right", drop=5),
        Column("source", drop=4),
    ]
    print_table(columns, [_outcome_cells(o, now) for o in outcomes], stream)


def _status(entry: Entry, usable: set[str]) -> SignalStatus:
    if entry.signal is not None:
        next_step = "" if entry.state == "fresh" else renewal(entry.region, entry.kind)
    elif entry.kind in usable:  # what was set aside long ago, beside a good one
        next_step = f"rm {shlex.quote(str(entry.path))}"
    else:
        next_step = renewal(entry.region, entry.kind)
    return SignalStatus(
        region=entry.region,
        kind=entry.kind,
        state=entry.state,
        signal=entry.signal,
        fetched_at=None if entry.signal is None else entry.signal.fetched_at,
        path=str(entry.path),
        problem=entry.problem,
        next_step=next_step,
    )


def _status_row(status: SignalStatus, now: datetime) -> dict[str, Any]:
    signal = status.signal
    return {
        "region": status.region,
        "kind": status.kind,
        "state": status.state,
        "rows": None if signal is None else signal.rows,
        "refused": {} if signal is None else dict(signal.refused),
        "observed_at": None if signal is None else signal.observed_at.isoformat(),
        "fetched_at": None if status.fetched_at is None else status.fetched_at.isoformat(),
        "expires_at": None if status.expires_at is None else status.expires_at.isoformat(),
        "age_s": None if status.dated is None else max(0, int((now - status.dated).total_seconds())),
        "source": None if signal is None else signal.source,
        "path": status.path or None,
        "problem": status.problem or None,
        "next_step": status.next_step or None,
    }


def _outcome_cells(outcome: Outcome, now: datetime) -> list[str]:
    wish, signal = outcome.wish, outcome.signal
    seconds = f"{outcome.seconds:.1f}"
    if signal is None:
        why = "not asked" if outcome.error is None else f"failed: {reason(outcome.error.why)}"
        return [wish.region, wish.kind, why, "-", "-", "-", seconds, "-"]
    refused = ", ".join(f"{count} {why}" for why, count in sorted(signal.refused.items()))
    result = "fetched" if signal.origin == "live" else "fetched by another deepvm"
    source = signal.source
    cells = [wish.region, wish.kind, result, str(signal.rows), refused]
    return [c or "-" for c in (*cells, age(signal.observed_at, now), seconds, source)]
