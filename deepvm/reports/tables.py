"""Tables on a terminal and in a pipe.

A terminal that is too narrow gets cells wrapped between words; if that is not enough, columns are
left out in the order that the table declares (:attr:`Column.drop`) and named below; a line for each
cell is the last resort. A pipe or a file gets all columns in full width, so that ``| sort``, ``|
less`` and a diff work.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from deepvm.reports.terminal import (
    BEST,
    paint,
    pieces,
    print_lines,
    room_of,
    width_of,
    without_controls,
    wrapped,
)

__all__ = ["Column", "fitting", "picked", "print_items", "print_lines", "print_table"]

_GAP = 2
"""Spaces between columns."""
RANKING = ("", "#")
"""Headers of the first column of tables that rank: their first row is the answer."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: its name, with the unit. align: right for numbers, which are never wrapped, left for
            names.
        drop: narrow terminals leave out the highest first, of equal ones the rightmost; 0: never.
        wrap: whether names may be continued on the next line where there is a space.
    """

    header: str
    align: Literal["left", "right"] = "left"
    drop: int = 0
    wrap: bool = True


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    stream: TextIO | None = None,
    *,
    also: str = "",
) -> None:
    """Write a table to ``stream`` (stdout).

    On a terminal in its width, see :mod:`deepvm.reports.terminal`.

    ``also``: an option, such as ``-o csv``, that shows all columns on a narrow terminal. A table
    that ranks, whose first column is called ``#`` or nothing, has its first row in colour.
    """
    stream = stream or sys.stdout
    rows = [[without_controls(cell) for cell in row] for row in rows]
    width = width_of(stream)
    left_out = []
    if width:
        shown = fitting(columns, rows, width)
        if shown is None:
            _print_cells(columns, rows, stream, width)
            return
        left_out = [c.header for place, c in enumerate(columns) if place not in shown]
        columns, rows = picked(columns, rows, shown)
    ranks = bool(columns) and columns[0].header in RANKING
    for place, text in enumerate(table_lines(columns, rows, width or sys.maxsize)):
        stream.write(f"{paint(text, BEST, stream) if ranks and place == 1 else text}\n")
    if left_out:
        ways = "'| less -S'" + (f" or '{also}'" if also else "")
        print_lines(
            [f"Left out at {width} columns: {', '.join(left_out)}. All of them: {ways}."], stream
        )


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = sys.maxsize
) -> list[str]:
    """The header and each row as text, of columns that fit."""
    widths = _widths(columns, rows, width)
    assert widths is not None
    header = _line(columns, [c.header for c in columns], widths, bottom=True)
    return [header, *(_line(columns, row, widths, bottom=False) for row in rows)]


def print_items(
    items: Sequence[Mapping[Column, str]], stream: TextIO | None = None, *, also: str = ""
) -> None:
    """Write a table of rows that name their columns, a dash where one lacks a column.

    See :func:`print_table`.
    """
    columns = list(dict.fromkeys(column for item in items for column in item))
    print_table(
        columns,
        [[item.get(column, "-") for column in columns] for item in items],
        stream,
        also=also,
    )


def _line(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], *, bottom: bool
) -> str:
    """A row, in as many lines as its highest cell; ``bottom``: lower cells stand at the last."""
    blocks = [
        wrapped(c, w, "") if room_of(c) > w else [c] for c, w in zip(cells, widths, strict=True)
    ]
    height = max(map(len, blocks), default=1)
    lines = []
    for place in range(height):
        parts = []
        for column, block, width in zip(columns, blocks, widths, strict=True):
            at = place - (height - len(block) if bottom else 0)
            text = block[at] if 0 <= at < len(block) else ""
            space = " " * (width - room_of(text))
            parts.append(space + text if column.align == "right" else text + space)
        lines.append((" " * _GAP).join(parts).rstrip())
    return "\n".join(lines)


def picked(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], places: Sequence[int]
) -> tuple[list[Column], list[list[str]]]:
    """Some of the columns."""
    return [columns[i] for i in places], [[row[i] for i in places] for row in rows]


def fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> list[int] | None:
    """Columns that fit into this width; None when not even the mandatory ones do."""
    shown = list(range(len(columns)))
    while _widths(*picked(columns, rows, shown), width) is None:
        last = max(shown, key=lambda i: (columns[i].drop, i))
        if len(shown) == 1 or not columns[last].drop:
            return None
        shown.remove(last)
    return shown


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], most: int
) -> list[int] | None:
    """Column widths that fit, wrapping the widest columns first.

    None where a word or number would be torn.

    A number that is continued on the next line is misread: right-aligned cells are never wrapped.
    """
    least = []
    widths = []
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        wraps = column.wrap and column.align == "left"
        if wraps:
            whole = [piece for cell in cells for piece in pieces(cell)]
        else:
            whole = cells
        least.append(max((room_of(text) for text in (*whole, *column.header.split())), default=0))
        widths.append(max(room_of(text) for text in (*cells, column.header)))
    left = most - _GAP * (len(columns) - 1)
    while sum(widths) > left:
        place = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        if widths[place] <= least[place]:
            return None
        widths[place] -= 1
    return widths


def _print_cells(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO, width: int
) -> None:
    blocks = []
    for row in rows:
        lines: list[str] = []
        for column, cell in zip(columns, row, strict=True):
            if column.header:
                line = f"{column.header}: {cell}"
            else:
                line = cell
            torn = column.align == "right" and len(line) > width
            lines += (
                [*wrapped(f"{column.header}:", width), f"  {cell}"]
                if torn
                else wrapped(line, width)
            )
        blocks.append("\n".join(lines))
    stream.write("\n\n".join(blocks) + "\n")
