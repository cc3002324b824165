"""Tables on a terminal and in a pipe.

A terminal gets a rich table. A pipe or a file gets the same cells in plain columns of full width: no box characters,
no colour, nothing cut off, so that ``| sort``, ``| less`` and a diff work.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TextIO


@dataclass(frozen=True)
class Column:
    """A column: its header (with the unit), and whether cells stand right (numbers) or left (names)."""

    header: str
    align: Literal["left", "right"] = "left"


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> None:
    """Write a table; ``rows`` hold one string for each column.

    Respects ``NO_COLOR`` and ``COLUMNS`` on a terminal.
    """
    stream = stream or sys.stdout
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(columns, rows, stream)
        return
    widths = [max(len(c.header), *(len(r[i]) for r in rows), 0) for i, c in enumerate(columns)]
    for cells in ([c.header for c in columns], *rows):
        parts = [
            cell.rjust(w) if c.align == "right" else cell.ljust(w)
            for cell, c, w in zip(cells, columns, widths, strict=True)
        ]
        stream.write("  ".join(parts).rstrip() + "\n")


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for column in columns:
        table.add_column(column.header, justify=column.align, overflow="fold")
    for row in rows:
        # Text, not str: a name such as "[bold]" in a user's file is data, not markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(file=stream, highlight=False).print(table)


def _wrapped(line: str, width: int) -> list[str]:
    # Neither words nor options may be torn apart: people copy them.
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def print_lines(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """Write sentences, one a line; on a terminal they are wrapped between words, with an indent."""
    stream = stream or sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else 0
    for line in lines:
        fits = not width or len(line) <= width
        wrapped = [line] if fits else _wrapped(line, width)
        stream.write("\n".join(wrapped) + "\n")
