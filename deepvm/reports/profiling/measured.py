"""Measured tables for people and for programs: what is there, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import Tables
from deepvm.core.spelling import printable
from deepvm.io.times import format_time
from deepvm.reports.tables import Column, print_items, print_lines, print_table

LIST_VERSION = "deepvm.tables-list/1"
DIFF_VERSION = "deepvm.tables-diff/1"

_DROPS = {"kind": 2, "type": 0, "workload": 3, "measured": 4, "used": 1, "value": 0}


def list_document(tables: Tables, reasons: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object of ``tables list -o json``; ``reasons``: by name why an entry is not used, empty if it is."""
    rows = [
        {**_row(e), "used": not reasons[e.name], "why_not": reasons[e.name] or None} for e in tables
    ]
    return {"schema_version": LIST_VERSION, "path": tables.path or None, "entries": rows}


def csv_rows(entries: Iterable[Entry]) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each measurement, in short."""
    from deepvm.documents.outputs.profiling import MeasuredEntry
    from deepvm.services.rows import rows_as

    return rows_as(MeasuredEntry, [_row(e) for e in entries])


def print_list(tables: Tables, reasons: Mapping[str, str] | None = None) -> None:
    """One line for each entry on stdout; ``reasons``, as for the document, are a column and lines below."""
    columns = [
        Column(header, drop=drop)
        for header, drop in _DROPS.items()
        if header != "used" or reasons is not None
    ]
    rows = []
    for e in tables:
        used = [] if reasons is None else ["no" if reasons[e.name] else "yes"]
        rows.append(
            [e.kind, e.subject, e.workload or "-", str(e.measured_at.date()), *used, e.value]
        )
    print_table(columns, rows, also="-o json")
    unused = [
        f"Not used: {e.name}: {reasons[e.name]}." for e in tables if reasons and reasons[e.name]
    ]
    print_lines(["", *map(printable, unused)] if unused else [])


def diff_document(old: Tables, new: Tables) -> dict[str, Any]:
    """The JSON object of ``tables diff -o json``."""
    changes = [
        {"name": name, "change": _kind_of_change(a, b), "old": a and _row(a), "new": b and _row(b)}
        for name, a, b in _changes(old, new)
    ]
    return {"schema_version": DIFF_VERSION, "changed": bool(changes), "changes": changes}


def print_diff(old: Tables, new: Tables) -> None:
    """What changed from one version to the next on stdout."""
    changes = _changes(old, new)
    if not changes:
        print_lines(["No difference: the same measurements."])
        return
    items = [
        {
            Column("change"): _kind_of_change(a, b),
            Column("name"): name,
            Column("old", drop=1): _dated(a),
            Column("new", drop=2): _dated(b),
        }
        for name, a, b in changes
    ]
    print_items(items, also="-o json")


def print_entry(entry: Entry) -> None:
    """What an entry says, its raw rows as far as they are few."""
    lines = [entry.name, f"  measured {format_time(entry.measured_at)}: {entry.value}"]
    if entry.kind == "scaling":
        lines.append("  points: " + ", ".join(f"S({n:g}) = {s:.4g}" for n, s in entry.points))
    if entry.kind == "saturation":
        rates = ((side, entry.document.get(f"{side}_gbps")) for side in ("sender", "receiver"))
        said = (f"{side} {'not measured' if r is None else format(r, 'g')}" for side, r in rates)
        lines.append("  Gbit/s: " + ", ".join(said))
        interval = entry.document.get("interval")
        if isinstance(interval, list) and len(interval) == 2:
            low, high = interval
            least = entry.senders[0] if low is None else low
            end = " or more" if high is None else "" if high == least else f" to {high}"
            lines.append(f"  interval: {least}{end}")
    warnings = entry.document.get("warnings")
    lines += [f"  warning: {w}" for w in (warnings if isinstance(warnings, list) else ())]
    print_lines([printable(line) for line in lines])


def _changes(old: Tables, new: Tables) -> list[tuple[str, Entry | None, Entry | None]]:
    before, after = ({e.name: e for e in tables} for tables in (old, new))
    names = sorted({*before, *after})
    return [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]


def _kind_of_change(old: Entry | None, new: Entry | None) -> str:
    return "added" if old is None else "removed" if new is None else "changed"


def _dated(entry: Entry | None) -> str:
    return "-" if entry is None else f"{entry.value}, {entry.measured_at.date()}"


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "subject": entry.subject,
        "workload": entry.workload or None,
        "measured_at": format_time(entry.measured_at),
        "value": entry.value,
    }
