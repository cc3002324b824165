"""Tables of ``catalog refresh``: what came, from where, and how old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from deepvm.catalog.public.public_market import PublicCatalog
from deepvm.catalog.signals.fetching import Outcome
from deepvm.catalog.signals.signal import SPECS, Signal, age, reason
from deepvm.errors import CloudError
from deepvm.reports.tables import Column, print_items


def print_outcomes(outcomes: Sequence[Outcome], now: datetime) -> None:
    """Write the table of what a cloud was asked for."""
    items = []
    for outcome in outcomes:
        signal = outcome.signal
        result = _failed(outcome.error, "AWS credentials do not work")
        if signal is not None:
            result = "fetched" if signal.origin == "live" else "fetched by another deepvm"
        items.append(
            {
                Column("region"): outcome.request.region,
                Column("signal"): outcome.request.kind,
                Column("result"): result,
                Column("rows", "right", drop=2): str(signal.rows) if signal else "-",
                Column("refused rows", drop=1): _refused([signal] if signal else []),
                Column("age", "right", drop=3): age(signal.observed_at, now) if signal else "-",
                Column("seconds", "right", drop=5): f"{outcome.seconds:.1f}",
                Column("source", drop=4): signal.source if signal else "-",
            }
        )
    print_items(items)


def print_files(results: Sequence[tuple[PublicCatalog, list[Signal]]], now: datetime) -> None:
    """Write the table of what public catalogs were asked for."""
    items = []
    for catalog, signals in results:
        specs = [s for s in signals if s.kind == SPECS]
        row = {
            Column("cloud"): catalog.cloud.name,
            Column("source"): catalog.source.title,
            Column("result"): _failed(catalog.error, "") if catalog.error else "fetched",
        }
        if specs:
            types = {name for s in specs for name in s.data}
            row |= {
                Column("regions", "right", drop=1): str(len({s.region for s in signals})),
                Column("types", "right", drop=2): str(len(types)),
                Column("refused rows", drop=3): _refused(signals),
                Column("age", "right", drop=4): age(specs[0].observed_at, now, specs[0].dated),
            }
        items.append(row)
    print_items(items)


def _failed(error: CloudError | None, otherwise: str) -> str:
    return f"failed: {reason(error.why) if error else otherwise}"


def _refused(signals: Iterable[Signal]) -> str:
    rows: Counter[str] = Counter()
    for signal in signals:
        rows.update(signal.refused)
    return ", ".join(f"{count} {why}" for why, count in sorted(rows.items())) or "-"
