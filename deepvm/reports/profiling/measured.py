"""Measured tables for programs, and what changed in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deepvm.catalog.measured.entries import Entry
from deepvm.catalog.measured.tables import Tables
from deepvm.documents.build import document_of
from deepvm.services.schemas import rows_as


def csv_rows(entries: Iterable[Entry]) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each measurement, in short."""
    rows = [document_of("profiling.MeasuredEntry", entry) for entry in entries]
    return rows_as("profiling.MeasuredEntry", rows)


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
        if self.new is None:
            return "removed"
        return "changed"


def changes(old: Tables, new: Tables) -> list[Change]:
    """What differs, by name."""
    before, after = ({e.name: e for e in tables} for tables in (old, new))
    pairs = (Change(n, before.get(n), after.get(n)) for n in sorted({*before, *after}))
    return [change for change in pairs if change.old != change.new]
