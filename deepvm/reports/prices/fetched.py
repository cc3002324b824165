"""Tables of ``catalog refresh``: what came, from where, and how old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from deepvm.catalog.public.public_market import PublicCatalog
from deepvm.catalog.signals.fetching import Outcome
from deepvm.catalog.signals.signal import SPECS, Signal, age, reason
from deepvm.errors import CloudError
from deepvm.reports.text import print_text


def print_outcomes(outcomes: Sequence[Outcome], now: datetime) -> None:
    """Write the table of what a cloud was asked for."""
    rows = []
    for outcome in outcomes:
        if outcome.signal is None:
            signals = []
        else:
            signals = [outcome.signal]
        result = "fetched" if signals else _failed(outcome.error)
        rows.append({"outcome": outcome, "result": result, **_about(signals, now)})
    print_text("catalog_refresh_cloud", rows=rows)


def print_files(results: Sequence[tuple[PublicCatalog, list[Signal]]], now: datetime) -> None:
    """Write the table of what public catalogs were asked for."""
    rows = []
    for catalog, signals in results:
        types = {name for s in signals if s.kind == SPECS for name in s.data}
        result = "fetched"
        if catalog.error:
            result = _failed(catalog.error)
        counts = {"regions": len({s.region for s in signals}) or "-", "types": len(types) or "-"}
        rows.append({"catalog": catalog, "result": result, **counts, **_about(signals, now)})
    print_text("catalog_refresh_files", rows=rows)


def _failed(error: CloudError | None) -> str:
    return f"failed: {reason(error.why if error else 'credentials')}"


def _about(signals: Sequence[Signal], now: datetime) -> dict[str, str]:
    refused: Counter[str] = Counter()
    for signal in signals:
        refused.update(signal.refused)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
    ages = [age(s.observed_at, now, s.dated) for s in signals]
    return {"refused": counts or "-", "age": ages[0] if ages else "-"}
