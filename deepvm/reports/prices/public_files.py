"""Files of public catalogs: what each of them held, and how old what is kept of them is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TextIO

from deepvm.catalog.public.public_market import Found, PublicMarket
from deepvm.catalog.signals.signal import SPECS, age, reason
from deepvm.reports.tables import Column, print_items


def print_files(
    found: Sequence[tuple[PublicMarket, Found]], now: datetime, stream: TextIO | None = None
) -> None:
    """Write the table of ``catalog refresh --source``."""
    items = []
    for market, said in found:
        specs = [kinds[SPECS] for kinds in said.signals.values() if SPECS in kinds]
        refused: Counter[str] = Counter()
        for kinds in said.signals.values():
            for signal in kinds.values():
                refused += Counter(dict(signal.refused))
        rows = ", ".join(f"{count} {why}" for why, count in sorted(refused.items()))
        items.append(
            {
                Column("cloud"): market.cloud,
                Column("source"): market.source.title,
                Column("result"): "fetched"
                if said.error is None
                else f"failed: {reason(said.error.why)}",
                Column("regions", "right", drop=1): str(len(said.signals)) if specs else "-",
                Column("types", "right", drop=2): str(len({t for s in specs for t in s.data}))
                if specs
                else "-",
                Column("refused rows", drop=3): rows or "-",
                Column("age", "right", drop=4): age(specs[0].observed_at, now, specs[0].dated)
                if specs
                else "-",
            }
        )
    print_items(items, stream)


def file_rows(markets: Sequence[PublicMarket]) -> list[dict[str, Any]]:
    """What is kept of each file: times in UTC, ages in seconds, null where nothing is."""
    rows = []
    for market in markets:
        about = market.about()
        fetched = None if about is None else about.fetched_at
        expires = fetched and fetched + timedelta(seconds=market.source.period_s)
        rows.append(
            {
                "cloud": market.cloud,
                "source": market.source.name,
                "state": "absent"
                if about is None
                else "fresh"
                if about.origin == "cache"
                else "expired",
                "regions": [] if about is None else list(about.data),
                "observed_at": about and about.observed_at.isoformat(),
                "dated": None if about is None else about.dated,
                "fetched_at": fetched and fetched.isoformat(),
                "expires_at": expires and expires.isoformat(),
                "age_s": None
                if about is None
                else max(0, int((market.now - about.observed_at).total_seconds())),
                "next_step": None
                if about is not None and about.origin == "cache"
                else f"deepvm catalog refresh --source {market.source.name} --cloud {market.cloud}",
            }
        )
    return rows


def print_file_rows(rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Write the table of public catalogs of ``catalog status``."""
    print_items(
        [
            {
                Column("public catalog"): row["source"],
                Column("cloud"): row["cloud"],
                Column("state"): row["state"],
                Column("regions", "right", drop=2): str(len(row["regions"]))
                if row["regions"]
                else "-",
                Column("age", "right"): "-"
                if row["age_s"] is None
                else age(now - timedelta(seconds=row["age_s"]), now, row["dated"]),
                Column("next step", drop=1): row["next_step"] or "-",
            }
            for row in rows
        ],
        also="-o json",
    )
