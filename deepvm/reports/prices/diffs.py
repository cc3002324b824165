"""What changed between two catalogs: as a document, as rows, and as a report for people."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from deepvm.catalog.diff import CatalogDiff, FigureChange, Plain, PriceChange
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.units import counted
from deepvm.reports.tables import Column, print_items, print_lines

SCHEMA_VERSION = "deepvm.diff/1"


def document(diff: CatalogDiff) -> dict[str, Any]:
    """The pinned JSON object of ``catalog diff -o json``.

    Money in $/h, in the shortest exact decimal form.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "old": _about(diff.old),
        "new": _about(diff.new),
        "changed": not diff.empty,
        "added": [_type(i) for i in diff.added],
        "removed": [_type(i) for i in diff.removed],
        "prices": [
            {
                "instance_type": p.instance_type,
                "market": p.market.value,
                "zone": p.zone or None,
                "old_usd_per_hour": _number(p.old),
                "new_usd_per_hour": _number(p.new),
                "change_usd_per_hour": _number(p.difference),
                "change_percent": _percent(p),
            }
            for p in diff.prices
        ],
        "figures": [
            {
                "instance_type": f.instance_type or None,
                "figure": f.figure,
                "old": f.old,
                "new": f.new,
            }
            for f in diff.figures
        ],
    }


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

    ``change`` is added, removed, price or figure, prices are in $/h.

    A type that was added or removed has one row for each of its prices, which stand where the type
    exists.
    """
    rows: list[list[Any]] = []
    for word, instances in (("added", diff.added), ("removed", diff.removed)):
        for instance in instances:
            for market in Market:
                price = instance.usd_per_hour(market)
                if price is not None:
                    sides = [None, f"{price:f}"] if word == "added" else [f"{price:f}", None]
                    rows.append([word, instance.name, market.value, None, None, *sides, None, None])
    for p in diff.prices:
        texts = [None if v is None else f"{v:f}" for v in (p.old, p.new, p.difference)]
        rows.append(
            ["price", p.instance_type, p.market.value, p.zone or None, None, *texts, _percent(p)]
        )
    for f in diff.figures:
        rows.append(
            ["figure", f.instance_type or None, None, None, f.figure, f.old, f.new, None, None]
        )
    return CSV_HEADER, rows


def print_report(diff: CatalogDiff, old: str = "", new: str = "") -> None:
    """Tables on stdout, for a person; ``old`` and ``new`` are what that person calls the catalogs."""
    print_lines([f"From {_named(diff.old, old)} to {_named(diff.new, new)}."])
    if diff.empty:
        print_lines(["No difference: the same types, prices and figures."])
        return
    if diff.old.region != diff.new.region:
        print_lines(["The regions differ: these are not two days of one place."])
    for title, instances in (("Added", diff.added), ("Removed", diff.removed)):
        if instances:
            print_lines(["", f"{title}: {counted(len(instances), 'type')}"])
            print_items([_type_cells(i) for i in instances], also="-o json")
    if diff.prices:
        print_lines(["", f"Prices: {counted(len(diff.prices), 'change')}, the largest first"])
        zones = any(p.zone for p in diff.prices)
        print_items([_price_cells(p, zones=zones) for p in diff.prices], also="-o json")
    if diff.figures:
        print_lines(["", f"Figures: {counted(len(diff.figures), 'change')}"])
        cells = [_figure_cells(f) for f in diff.figures]
        # Too wide for a column: on lines of their own.
        long = [c for c in cells if max(map(len, list(c.values())[2:])) > _LONGEST_CELL]
        if len(long) < len(cells):
            print_items([c for c in cells if c not in long], also="-o json")
        for name, figure, before, after in (c.values() for c in long):
            print_lines(["", f"{name}, {figure}", f"  old: {before}", f"  new: {after}"])
        if any(f.figure == "default_speedup" and f.instance_type for f in diff.figures):
            kind = diff.new.default_speedup
            print_lines(
                [
                    "",
                    (
                        "default_speedup is the curve that a type goes by; -, the catalog's own,"
                        f" is {kind}."
                    ),
                ]
            )


_LONGEST_CELL = 40


def _about(catalog: Catalog) -> dict[str, Any]:
    as_of = catalog.provenance.prices_as_of
    return {
        "catalog": catalog.name,
        "region": catalog.region,
        "prices_as_of": None if as_of is None else as_of.isoformat(),
        "kind": catalog.provenance.kind,
        "type_count": len(catalog),
    }


def _type(instance: InstanceType) -> dict[str, Any]:
    return {
        "instance_type": instance.name,
        "on_demand_usd_per_hour": _number(instance.on_demand_usd_per_hour),
        "spot_usd_per_hour": _number(instance.spot_usd_per_hour),
    }


def _number(price: Decimal | None) -> float | None:
    return None if price is None else float(price)


def _percent(change: PriceChange) -> float | None:
    return None if change.percent is None else float(round(change.percent, 4))


def _named(catalog: Catalog, called: str) -> str:
    as_of = catalog.provenance.prices_as_of
    facts = [
        catalog.region or "no region",
        f"as of {as_of}" if as_of else "undated",
        counted(len(catalog), "type"),
    ]
    name = catalog.name if called in ("", catalog.name) else f"{called}: {catalog.name}"
    return f"{name} ({', '.join(facts)})"


def _type_cells(instance: InstanceType) -> dict[Column, str]:
    gpu = instance.gpu
    return {
        Column("type"): instance.name,
        Column("GPU", drop=2): "-" if gpu is None else f"{gpu.count} x {gpu.name}",
        Column("on-demand $/h", "right"): _price(instance.on_demand_usd_per_hour),
        Column("spot $/h", "right", drop=1): _price(instance.spot_usd_per_hour),
    }


def _price_cells(change: PriceChange, *, zones: bool) -> dict[Column, str]:
    return {
        Column("type"): change.instance_type,
        Column("market"): change.market.value,
        **({Column("zone"): change.zone or "-"} if zones else {}),
        Column("old $/h", "right", drop=1): _price(change.old),
        Column("new $/h", "right"): _price(change.new),
        Column("change $/h", "right", drop=3): (
            "-" if change.difference is None else f"{change.difference:+f}"
        ),
        Column("change %", "right", drop=2): (
            "-" if change.percent is None else f"{change.percent:+.2f}"
        ),
    }


def _figure_cells(change: FigureChange) -> dict[Column, str]:
    return {
        Column("type"): change.instance_type or "(catalog)",
        Column("figure"): change.figure,
        Column("old", drop=1): _figure(change.old),
        Column("new", drop=2): _figure(change.new),
    }


def _price(price: Decimal | None) -> str:
    return "-" if price is None else f"{price:f}"


def _figure(value: Plain) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
