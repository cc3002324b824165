"""Tables that the scripts print: their rows come one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deepvm.reports.terminal import Column, print_table


def print_rows(head: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout."""
    columns = zip(head, *rows, strict=True)
    print_table([replace(column, cells=cells) for column, *cells in columns])
