"""What changed between two catalogs: as a document, as rows, and as a report for people."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from deepvm.catalog.diff import CatalogDiff, FigureChange, Plain
from deepvm.core.cluster.instances import Catalog, Market
from deepvm.core.units import counted
from deepvm.documents.build import document_of
from deepvm.documents.outputs import prices as documents
from deepvm.reports.text import print_text

_LONGEST_CELL = 40

CSV_HEADER = [
    "change",
    "instance_type",
    "market",
    "zone",
    "figure",
    "old",
    "new",
    "difference",
    "percent",
]


def document(diff: CatalogDiff) -> dict[str, Any]:
    """The document of ``catalog diff``."""
    return document_of(documents.CatalogDiff, diff)


def csv_rows(diff: CatalogDiff) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each change.

    ``change`` is added, removed, price or figure, prices are in $/h. A type that was added or
    removed has one row for each of its prices, which stand where the type exists.
    """
    return CSV_HEADER, [[row.get(name) for name in CSV_HEADER] for row in _rows(diff)]


def _rows(diff: CatalogDiff) -> Iterator[dict[str, Any]]:
    for change, side, instances in (
        ("added", "new", diff.added),
        ("removed", "old", diff.removed),
    ):
        for instance in instances:
            for market in Market:
                price = instance.usd_per_hour(market)
                row = {"change": change, "instance_type": instance.name, "market": market.value}
                if price is not None:
                    yield {**row, side: _text(price)}
    for p in diff.prices:
        yield {
            "change": "price",
            "instance_type": p.instance_type,
            "market": p.market.value,
            "zone": p.zone or None,
            "old": _text(p.old),
            "new": _text(p.new),
            "difference": _text(p.difference),
            "percent": documents.rounded_percent(p),
        }
    for f in diff.figures:
        yield {"change": "figure", **vars(f), "instance_type": f.instance_type or None}


def _text(price: Decimal | None) -> str | None:
    return None if price is None else f"{price:f}"


def print_report(diff: CatalogDiff, old: str = "", new: str = "") -> None:
    """Print the report; ``old`` and ``new`` are what the user calls the catalogs."""
    long = [f for f in diff.figures if max(map(len, map(_figure, (f.old, f.new)))) > _LONGEST_CELL]
    short = [f for f in diff.figures if f not in long]
    print_text(
        "catalog_diff",
        diff=diff,
        old=_named(diff.old, old),
        new=_named(diff.new, new),
        zones=any(p.zone for p in diff.prices),
        short=[_shown(f) for f in short],
        long=[_shown(f) for f in long],
        curve_changed=any(f.figure == "default_speedup" and f.instance_type for f in diff.figures),
    )


def _shown(change: FigureChange) -> dict[str, str]:
    return {name: _figure(value) for name, value in vars(change).items()}


def _figure(value: Plain) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _named(catalog: Catalog, called: str) -> str:
    as_of = catalog.provenance.prices_as_of
    date = f"as of {as_of}" if as_of else "undated"
    facts = f"{catalog.region or 'no region'}, {date}, {counted(len(catalog), 'type')}"
    name = catalog.name if called in ("", catalog.name) else f"{called}: {catalog.name}"
    return f"{name} ({facts})"
