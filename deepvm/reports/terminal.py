"""Lines and tables: on a terminal in its width, in pipes and files whole."""
# A table that is too wide gets cells wrapped between words, then leaves out columns (Column.drop)
# and names them below; a line for each cell is the last resort. Commands that people copy stay
# whole.

import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Literal, TextIO

from deepvm.records import dataclass, replace

USUAL_WIDTH = 80
# Colors, as a terminal reads them. They mark the first row of a ranking, what to be careful with,
# and what went wrong
BEST, WARNING, ERROR = "1;32", "33", "1;31"

_COPIED = (
    r"\(?'(?:deepvm|pip|aws|-|\|)[^'\n]*'\S*",  # 'deepvm catalog refresh', '| less -S'
    r"(?:->|[Ee]xample:|Your job) +deepvm .*",
    r"(?<=you mean )(?:--|'?deepvm )[^?\n]*\?",
    r"pip install (?:-e )?'[^'\n]*'\S*",
    r"\{\".*\}\S*",  # the example of a JSON file
)
_PIECE = re.compile(rf"\s*(?:{'|'.join(_COPIED)}|\S+)")


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind a stream, or of ``COLUMNS``; 0 if it is no terminal."""
    if not stream.isatty():
        return 0
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def paint(text: str, color: str, stream: TextIO) -> str:
    """The text in an ANSI color on a terminal, or with ``FORCE_COLOR``, never with ``NO_COLOR``."""
    if os.environ.get("NO_COLOR"):
        return text
    colorful = stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    if not colorful and os.environ.get("FORCE_COLOR", "0") in ("", "0"):
        return text
    # Each line separately: a pager such as ``less -R`` resets colors at the end of a line.
    return "\n".join(f"\x1b[{color}m{line}\x1b[0m" for line in text.split("\n"))


def _columns_of(text: str) -> int:
    """Columns that a text takes: letters of some scripts take two, some marks none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # slow to load

    return cell_len(text)


def pieces(text: str) -> list[str]:
    """The parts of a text that stay whole: words and commands."""
    return [piece.strip() for piece in _PIECE.findall(text)]


def wrapped(line: str, width: int, indent: str = "  ") -> list[str]:
    """Lines of at most ``width`` columns."""
    if line.startswith("  deepvm "):
        return [line]  # a command to be copied
    lines: list[str] = []
    for piece in _PIECE.findall(line):
        if lines and _columns_of(lines[-1] + piece) <= width:
            lines[-1] += piece
        else:
            lines.append(indent + piece.lstrip() if lines else piece)
    return lines or [""]


_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
_TURNS = dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)


def visible(text: str) -> str:
    """A user's text with signs for control characters and for what changes the text's direction."""
    return text.translate(_SIGNS | _TURNS)


_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colors, and where the cursor goes
    # Titles, links, clipboards
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)


def without_controls(text: str) -> str:
    """A text that a terminal only shows."""
    if text.isprintable():
        return text
    lines = _SEQUENCE.sub("", text).split("\n")
    return visible("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def fitted(text: str, stream: TextIO) -> str:
    """A text of one line or several as a stream shows it."""
    text = without_controls(text)
    width = width_of(stream)
    return "\n".join(
        part for line in text.split("\n") for part in (wrapped(line, width) if width else [line])
    )


def print_lines(lines: Sequence[str]) -> None:
    """Write sentences to stdout, one a line."""
    stream = sys.stdout
    for line in lines:
        text = fitted(line, stream)
        if line.startswith(("! ", "Warning: ")):
            text = paint(text, WARNING, stream)
        stream.write(f"{text}\n")


_GAP = 2  # Spaces between columns
# Headers of the first column of tables that rank: their first row is the answer
RANKING = ("", "#")


@dataclass(frozen=True)
class Column:
    """A column of a table. ``drop``: narrow terminals leave out the highest first; 0: never."""

    header: str
    align: Literal["left", "right"] = "left"
    drop: int = 0
    wrap: bool = True
    cells: Sequence[str] = ()

    @property
    def width(self) -> int:
        return max(map(_columns_of, (self.header, *self.cells)))

    @property
    def least_width(self) -> int:
        """In less, a word or number would be torn."""
        parts = self.cells
        if self.wrap and self.align == "left":
            parts = [piece for cell in self.cells for piece in pieces(cell)]
        return max(map(_columns_of, (*parts, *self.header.split())), default=0)

    def aligned(self, text: str, width: int) -> str:
        space = " " * (width - _columns_of(text))
        if self.align == "right":
            return space + text
        return text + space


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit into this width; empty when not even the mandatory ones do."""
    kept = list(columns)
    while widths_of(kept, width) is None:
        # Of columns that may go alike, the first in this order: the rightmost
        last = max(reversed(kept), key=lambda column: column.drop)
        if len(kept) == 1 or not last.drop:
            return []
        kept = [column for column in kept if column is not last]
    return kept


def widths_of(columns: Sequence[Column], limit: int) -> list[int] | None:
    """Column widths that fit, wrapping the widest columns first; None where there are none."""
    widths = [column.width for column in columns]
    limit -= _GAP * (len(columns) - 1)
    if sum(widths) <= limit:
        return widths
    # Only a table that is too wide is looked at word by word, which is slow.
    least = [column.least_width for column in columns]
    while sum(widths) > limit:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        if widths[widest] <= least[widest]:
            return None
        widths[widest] -= 1
    return widths


def table_lines(columns: Sequence[Column], limit: int = sys.maxsize) -> list[str]:
    """The header and each row as text, of columns that fit."""
    widths = widths_of(columns, limit)
    assert widths is not None
    header, *rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
    return [_row(columns, header, widths, bottom=True), *(_row(columns, r, widths) for r in rows)]


def _row(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], *, bottom: bool = False
) -> str:
    blocks = [
        wrapped(c, w, "") if _columns_of(c) > w else [c] for c, w in zip(cells, widths, strict=True)
    ]
    # The lines of a header count from the last, which is next to the first row
    if bottom:
        blocks = [block[::-1] for block in blocks]
    lines = [
        (" " * _GAP).join(map(Column.aligned, columns, line, widths)).rstrip()
        for line in zip_longest(*blocks, fillvalue="")
    ]
    return "\n".join(lines[::-1] if bottom else lines)


def _cell_lines(columns: Sequence[Column], width: int) -> str:
    rows = []
    for row in zip(*(column.cells for column in columns), strict=True):
        lines = []
        for column, cell in zip(columns, row, strict=True):
            if column.header:
                line = f"{column.header}: {cell}"
            else:
                line = cell
            if column.align == "right" and len(line) > width:
                # A number is never torn, even if the terminal is narrower than it.
                lines += [*wrapped(f"{column.header}:", width), f"  {cell}"]
            else:
                lines += wrapped(line, width)
        rows.append("\n".join(lines))
    return "\n\n".join(rows)


def print_table(columns: Sequence[Column], *, also: str = "") -> None:
    """Write a table to stdout, on a terminal in its width."""
    stream = sys.stdout
    lines = table_text(columns, width_of(stream) or sys.maxsize, stream, also=also)
    stream.write("".join(f"{line}\n" for line in lines))


def table_text(
    columns: Sequence[Column], width: int, stream: TextIO, *, also: str = ""
) -> list[str]:
    """The lines of a table of at most ``width`` columns, as ``stream`` shows them."""
    columns = [replace(c, cells=[*map(without_controls, c.cells)]) for c in columns]
    kept = fitting(columns, width)
    if not kept:
        return _cell_lines(columns, width).split("\n")
    rows = table_lines(kept, width)
    if len(rows) > 1 and columns[0].header in RANKING:
        rows[1] = paint(rows[1], BEST, stream)
    lines = "\n".join(rows).split("\n")
    left_out = [column.header for column in columns if column not in kept]
    if left_out:
        ways = "'| less -S'" + (f" or '{also}'" if also else "")
        text = f"Left out at {width} columns: {', '.join(left_out)}. All of them: {ways}."
        lines += wrapped(without_controls(text), width)
    return lines


def print_rows(head: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout, of columns without cells and of rows: for scripts and notebooks."""
    columns = zip(head, *rows, strict=True)
    print_table([replace(column, cells=cells) for column, *cells in columns])
