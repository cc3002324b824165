"""The cache of prices for people and programs: what is in it, and how fresh it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from deepvm.catalog.public.public_market import PublicCatalog
from deepvm.catalog.signals.cache import Cache, Entry
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.signal import HISTORY, PLACEMENT, Signal, age, ttl_s
from deepvm.reports.tables import Column, print_items, print_lines

Row = dict[str, Any]


class CacheStatus:
    """Times in UTC, ages in seconds, null where there is nothing to say."""

    def __init__(self, now: datetime, cache: Cache) -> None:
        self.now, self.cache = now, cache
        self.signals: list[Row] = []
        self.files: list[Row] = []

    def add_cloud(self, cloud: Cloud, regions: Sequence[str]) -> None:
        """State of every signal of these regions, or of all that are cached.

        A region should have all ``cloud.kinds``; other kinds are shown if they exist.
        """
        entries = [e for e in self.cache.entries(self.now) if e.account in ("", self.cache.account)]
        for region in regions or dict.fromkeys(e.region for e in entries):
            here = [e for e in entries if e.region == region]
            for kind in dict.fromkeys((*cloud.kinds, *(e.kind for e in here))):
                files = [e for e in here if e.kind == kind]
                usable = any(e.signal is not None for e in files)
                self.signals += [self._cached(e, usable) for e in files]
                if not files:
                    absent = self._signal(region, kind, "absent")
                    self.signals.append(absent | {"next_step": _renewal(region, kind)})
        for region in cloud.snapshot_regions():
            if not regions or region in regions:
                for kind, signal in cloud.snapshot(region).items():
                    self.signals.append(self._signal(region, kind, "snapshot", signal))

    def add_file(self, catalog: PublicCatalog, *, always: bool) -> None:
        """A public catalog, if it was ever fetched or ``always``."""
        about = catalog.about()
        if about is None and not always:
            return
        name, cloud = catalog.source.name, catalog.cloud.name
        fresh = about is not None and about.origin == "cache"
        step = f"deepvm catalog refresh --source {name} --cloud {cloud}"
        self.files.append(
            {
                "cloud": cloud,
                "source": name,
                "state": "fresh" if fresh else "expired" if about else "absent",
                "regions": list(about.data) if about else [],
                "observed_at": about and about.observed_at.isoformat(),
                "dated": about and about.dated,
                **_lifetime(about, catalog.source.period_s),
                "age_s": about and self._age_s(about.observed_at),
                "next_step": None if fresh else step,
            }
        )

    def document(self) -> Row:
        """The document of ``catalog status -o json``."""
        folder = self.cache.folder
        return {
            "schema_version": "deepvm.catalog-status/1",
            "now": self.now.isoformat(),
            "cache": {"folder": folder and str(folder), "account": self.cache.account},
            "signals": self.signals,
            "public_catalogs": self.files,
        }

    def print(self) -> None:
        if self.signals:
            print_items([self._signal_cells(s) for s in self.signals], also="-o json")
        if self.signals and self.files:
            print_lines([""])
        if self.files:
            print_items([self._file_cells(f) for f in self.files], also="-o json")

    def _cached(self, entry: Entry, usable: bool) -> Row:
        """A file of the cache; ``usable``: whether it, or another of its kind, can be read."""
        signal, next_step = entry.signal, _renewal(entry.region, entry.kind)
        if entry.state == "fresh":
            next_step = None
        elif signal is None and usable:  # renamed long ago, next to a good one
            next_step = f"rm {shlex.quote(str(entry.path))}"
        return self._signal(entry.region, entry.kind, entry.state, signal) | {
            "path": str(entry.path),
            "problem": entry.problem or None,
            "next_step": next_step,
        }

    def _signal(self, region: str, kind: str, state: str, signal: Signal | None = None) -> Row:
        since = signal and (signal.fetched_at or signal.observed_at)
        return {
            "region": region,
            "signal": kind,
            "state": state,
            "row_count": signal and signal.rows,
            "refused": dict(signal.refused) if signal else {},
            "observed_at": signal and signal.observed_at.isoformat(),
            **_lifetime(signal, ttl_s(kind)),
            "age_s": since and self._age_s(since),
            "source": signal and signal.source,
            "path": None,
            "problem": None,
            "next_step": None,
        }

    def _age_s(self, moment: datetime) -> int:
        return max(0, int((self.now - moment).total_seconds()))

    def _age(self, row: Row, dated: bool = True) -> str:
        if row["age_s"] is None:
            return "-"
        return age(self.now - timedelta(seconds=row["age_s"]), self.now, dated)

    def _signal_cells(self, row: Row) -> dict[Column, str]:
        rows = row["row_count"]
        return {
            Column("region"): row["region"],
            Column("signal"): row["signal"],
            Column("state"): row["state"],
            Column("rows", "right", drop=4): "-" if rows is None else str(rows),
            Column("age", "right", drop=1): self._age(row),
            Column("source", drop=3): row["source"] or row["problem"] or "-",
            Column("next step", drop=2): row["next_step"] or "-",
        }

    def _file_cells(self, row: Row) -> dict[Column, str]:
        return {
            Column("public catalog"): row["source"],
            Column("cloud"): row["cloud"],
            Column("state"): row["state"],
            Column("regions", "right", drop=2): str(len(row["regions"]) or "-"),
            Column("age", "right"): self._age(row, row["dated"]),
            Column("next step", drop=1): row["next_step"] or "-",
        }


def _lifetime(signal: Signal | None, ttl_s: int) -> Row:
    """When a signal was fetched, and until when it is fresh."""
    fetched = signal and signal.fetched_at
    expires = fetched and fetched + timedelta(seconds=ttl_s)
    return {
        "fetched_at": fetched and fetched.isoformat(),
        "expires_at": expires and expires.isoformat(),
    }


def _renewal(region: str, kind: str) -> str | None:
    """The command that fetches a signal; none for scores, which are fetched for one plan only."""
    base, _, parameter = kind.partition(":")
    if base == PLACEMENT:
        return None
    days = f" --days {parameter}" if base == HISTORY else ""
    return f"deepvm catalog refresh --region {region} --only {base}{days}"
