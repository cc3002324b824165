"""Measured tables for people and for programs: entries, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import Tables
from deepvm.core.spelling import printable
from deepvm.documents.build import document_of
from deepvm.documents.outputs import profiling as outputs
from deepvm.io.times import format_time
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.services.rows import rows_as


def list_document(tables: Tables, reasons: Mapping[str, str]) -> dict[str, Any]:
    """``tables list -o json``; ``reasons``: by name why an entry is not used, empty if it is."""
    rows = [
        document_of(outputs.MeasuredEntry, entry)
        | {"used": not reasons[entry.name], "why_not": reasons[entry.name] or None}
        for entry in tables
    ]
    return {
        "schema_version": "deepvm.tables-list/1",
        "path": tables.path or None,
        "entries": rows,
    }


def csv_rows(entries: Iterable[Entry]) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each measurement, in short."""
    rows = [document_of(outputs.MeasuredEntry, entry) for entry in entries]
    return rows_as(outputs.MeasuredEntry, rows)


def print_list(tables: Tables, reasons: Mapping[str, str] | None = None) -> None:
    """One line for each entry on stdout; ``reasons``: as for the document."""
    if not tables:
        print_lines(["No measurements."])
        return
    print_items([_cells(entry, reasons) for entry in tables], also="-o json")
    unused = [f"Not used: {name}: {reason}." for name, reason in (reasons or {}).items() if reason]
    if unused:
        print_lines(["", *map(printable, unused)])


def _cells(entry: Entry, reasons: Mapping[str, str] | None) -> dict[Column, str]:
    cells = {
        Column("kind", drop=2): entry.kind,
        Column("type"): entry.subject,
        Column("workload", drop=3): entry.workload or "-",
        Column("measured", drop=4): str(entry.measured_at.date()),
    }
    if reasons is not None:
        cells[Column("used", drop=1)] = "no" if reasons[entry.name] else "yes"
    cells[Column("value")] = entry.value
    return cells


@dataclass(frozen=True)
class Change:
    """An entry before and after the last change; None where there was none."""

    name: str
    old: Entry | None
    new: Entry | None

    @property
    def change(self) -> str:
        """Which kind of change."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


def changes(old: Tables, new: Tables) -> list[Change]:
    """What differs, by name."""
    before, after = ({e.name: e for e in tables} for tables in (old, new))
    pairs = (Change(n, before.get(n), after.get(n)) for n in sorted({*before, *after}))
    return [change for change in pairs if change.old != change.new]


def print_diff(found: list[Change]) -> None:
    """What changed from one version to the next on stdout."""
    if not found:
        print_lines(["No difference: the same measurements."])
        return
    items = [
        {
            Column("change"): change.change,
            Column("name"): change.name,
            Column("old", drop=1): change.old.described if change.old else "-",
            Column("new", drop=2): change.new.described if change.new else "-",
        }
        for change in found
    ]
    print_items(items, also="-o json")


def print_entry(entry: Entry) -> None:
    """What an entry says, its raw rows as far as they are few."""
    document = entry.document
    lines = [entry.name, f"  measured {format_time(entry.measured_at)}: {entry.value}"]
    if entry.kind == "scaling":
        lines.append("  points: " + ", ".join(f"S({n:g}) = {s:.4g}" for n, s in entry.points))
    if entry.kind == "saturation":
        for key in ("sender_gbps", "receiver_gbps", "interval"):
            lines.append(f"  {key}: {document.get(key)}")
    lines += [f"  warning: {text}" for text in document.get("warnings") or ()]
    print_lines([printable(line) for line in lines])
