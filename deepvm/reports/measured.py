"""Measured tables for people and for programs: what is there, and what changed."""

from __future__ import annotations

from typing import Any

from deepvm.catalog.measured_entries import Entry, Tables
from deepvm.catalog.provider import format_time
from deepvm.reports.tables import Column, print_lines, print_table

LIST_VERSION = "deepvm.tables-list/1"
DIFF_VERSION = "deepvm.tables-diff/1"

_COLUMNS = [Column("kind"), Column("type"), Column("workload"), Column("measured"), Column("value")]


def list_document(tables: Tables) -> dict[str, Any]:
    """The JSON object of ``tables list -o json``."""
    return {"schema_version": LIST_VERSION, "path": tables.path or None, "entries": [_row(e) for e in tables]}


def print_list(tables: Tables) -> None:
    """One line for each entry on stdout."""
    print_table(_COLUMNS, [_cells(e) for e in tables])


def diff_document(old: Tables, new: Tables) -> dict[str, Any]:
    """The JSON object of ``tables diff -o json``."""
    changes = [
        {"name": name, "change": _word(a, b), "old": a and _row(a), "new": b and _row(b)}
        for name, a, b in _changes(old, new)
    ]
    return {"schema_version": DIFF_VERSION, "changed": bool(changes), "changes": changes}


def print_diff(old: Tables, new: Tables) -> None:
    """What changed from one version to the next on stdout."""
    changes = _changes(old, new)
    if not changes:
        print_lines(["No difference: the same measurements."])
        return
    columns = [Column("change"), Column("name"), Column("old"), Column("new")]
    print_table(columns, [[_word(a, b), name, _dated(a), _dated(b)] for name, a, b in changes])


def print_entry(entry: Entry) -> None:
    """What an entry says, its raw rows as far as they are few."""
    lines = [entry.name, f"  measured {format_time(entry.measured_at)}: {entry.value}"]
    if entry.kind == "scaling":
        lines.append("  points: " + ", ".join(f"S({n:g}) = {s:.4g}" for n, s in entry.points))
    if entry.kind == "saturation":
        rates = [entry.document.get(side) for side in ("sender_gbps", "receiver_gbps")]
        lines.append("  Gbit/s: " + " to ".join("unknown" if r is None else f"{r:g}" for r in rates))
        interval = entry.document.get("interval")
        if isinstance(interval, list) and len(interval) == 2:
            low, high = ("more than was tried" if bound is None else str(bound) for bound in interval)
            lines.append(f"  interval: {low} to {high}" if low != high else f"  interval: {low}")
    warnings = entry.document.get("warnings")
    lines += [f"  warning: {w}" for w in (warnings if isinstance(warnings, list) else ())]
    print_lines([_plain(line) for line in lines])


def _changes(old: Tables, new: Tables) -> list[tuple[str, Entry | None, Entry | None]]:
    before, after = ({e.name: e for e in tables} for tables in (old, new))
    names = sorted({*before, *after})
    return [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]


def _word(old: Entry | None, new: Entry | None) -> str:
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


def _cells(entry: Entry) -> list[str]:
    return [entry.kind, entry.subject, entry.workload or "-", str(entry.measured_at.date()), entry.value]


def _plain(text: str) -> str:
    """The text without what a terminal would obey: a document is what somebody sent."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
