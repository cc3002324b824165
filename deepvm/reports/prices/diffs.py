"""What changed between two catalogs, as rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from deepvm.catalog.diff import CatalogDiff, PriceChange
from deepvm.core.cluster.instances import Market
from deepvm.documents.computed import percent

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


def csv_rows(diff: CatalogDiff) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each change.

    ``change`` is added, removed, price or figure, prices are in $/h. A type that was added or
    removed has one row for each of its prices, which stand where the type exists.
    """
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
    return None if price is None else f"{price:f}"
