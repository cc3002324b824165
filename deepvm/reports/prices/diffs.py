"""What changed between two catalogs: as a document, as rows, and as a report for people."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from deepvm.catalog.diff import CatalogDiff
from deepvm.core.cluster.instances import Market
from deepvm.documents.build import document_of
from deepvm.documents.computed import percent
from deepvm.reports.text import print_text

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
    return document_of("prices.CatalogDiff", diff)


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
            "percent": percent(p),
        }
    for f in diff.figures:
        yield {"change": "figure", **vars(f), "instance_type": f.instance_type or None}


def _text(price: Decimal | None) -> str | None:
    if price is None:
        return None
    return f"{price:f}"


def print_report(diff: CatalogDiff, old: str = "", new: str = "") -> None:
    """Print the report; ``old`` and ``new`` are what the user calls the catalogs."""
    print_text("catalog_diff", diff=diff, old=old, new=new)
