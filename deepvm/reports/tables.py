"""Tables on a terminal and in a pipe.

A terminal gets a rich table, wrapped between words. If it is too narrow, columns are left out in the order that the
table declares (:attr:`Column.drop`) and named below; a line for each cell is the last resort. A pipe or a file gets
plain columns of full width, without box characters or colour, so that ``| sort``, ``| less`` and a diff work.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

_GAP = 2
"""Spaces between columns."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: its name, with the unit. align: right for numbers, which are never wrapped, left for names.
        drop: narrow terminals leave out the highest first, of equal ones the rightmost; 0: never.
        wrap: whether names may be continued on the next line where there is a space.
    """

    header: str
    align: Literal["left", "right"] = "left"
    drop: int = 0
    wrap: bool = True


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO | None = None, *, also: str = ""
) -> None:
    """Write a table to ``stream`` (stdout); respects ``NO_COLOR`` and ``COLUMNS`` on a terminal.

    ``also``: an option, such as ``-o csv``, that shows all columns on a narrow terminal.
    """
    stream = stream or sys.stdout
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(columns, rows, stream, also)
        return
    widths = [max(len(c.header), *(len(r[i]) for r in rows), 0) for i, c in enumerate(columns)]
    for cells in ([c.header for c in columns], *rows):
        parts = [
            cell.rjust(w) if c.align == "right" else cell.ljust(w)
            for cell, c, w in zip(cells, columns, widths, strict=True)
        ]
        stream.write("  ".join(parts).rstrip() + "\n")


def print_items(items: Sequence[Mapping[Column, str]], stream: TextIO | None = None, *, also: str = "") -> None:
    """Write a table of rows that name their columns, a dash where one lacks a column; see :func:`print_table`."""
    columns = list(dict.fromkeys(column for item in items for column in item))
    print_table(columns, [[item.get(column, "-") for column in columns] for item in items], stream, also=also)


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO, also: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    shown = fitting(columns, rows, console.width)
    if shown is None:
        _print_cells(columns, rows, stream, console.width)
        return
    left_out = [c.header for place, c in enumerate(columns) if place not in shown]
    columns, rows = [columns[i] for i in shown], [[row[i] for i in shown] for row in rows]
    widths = _widths(columns, rows, console.width)
    assert widths is not None
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold cyan")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column.header, justify=column.align, overflow="fold", width=width)
    for row in rows:
        # Text, not str: a name such as "[bold]" in a user's file is data, not markup.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    if left_out:
        ways = "'| less -S'" + (f" or '{also}'" if also else "")
        print_lines([f"Left out at {console.width} columns: {', '.join(left_out)}. All of them: {ways}."], stream)


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Columns that fit into this width; None when not even the mandatory ones do."""
    shown = list(range(len(columns)))
    while _widths([columns[i] for i in shown], [[row[i] for i in shown] for row in rows], width) is None:
        last = max(shown, key=lambda i: (columns[i].drop, i))
        if len(shown) == 1 or not columns[last].drop:
            return None
        shown.remove(last)
    return shown


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], most: int) -> list[int] | None:
    """Column widths that fit, wrapping the widest columns first; None where a word or number would be torn.

    A number that is continued on the next line is misread: right-aligned cells are never wrapped.
    """
    from rich.cells import cell_len

    least, widths = [], []
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        wraps = column.wrap and column.align == "left"
        whole = [word for cell in cells for word in cell.split()] if wraps else cells
        least.append(max((cell_len(text) for text in (*whole, *column.header.split())), default=0))
        widths.append(max(cell_len(text) for text in (*cells, column.header)))
    left = most - _GAP * (len(columns) - 1)
    while sum(widths) > left:
        place = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        if widths[place] <= least[place]:
            return None
        widths[place] -= 1
    return widths


def _print_cells(columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO, width: int) -> None:
    blocks = []
    for row in rows:
        lines: list[str] = []
        for column, cell in zip(columns, row, strict=True):
            line = f"{column.header}: {cell}"
            torn = column.align == "right" and len(line) > width
            lines += [*_wrapped(f"{column.header}:", width), f"  {cell}"] if torn else _wrapped(line, width)
        blocks.append("\n".join(lines))
    stream.write("\n\n".join(blocks) + "\n")


def _wrapped(line: str, width: int) -> list[str]:
    # Never break words or options: people copy them.
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def print_lines(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """Write sentences, one a line; on a terminal they are wrapped between words, with an indent."""
    stream = stream or sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else 0
    for line in lines:
        fits = not width or len(line) <= width
        stream.write("\n".join([line] if fits else _wrapped(line, width)) + "\n")
