"""CSV with lines ``# key: value`` above the header, as spreadsheets save it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from deepvm.documents.tree import FileSyntaxError

_COMMENT = re.compile(r"#\s*([A-Za-z_]+)\s*:(.*)")
_SEPARATOR = re.compile(r"[^,\s]+[;\t|]\s*\S")


@dataclass
class Table:
    """The parts of a file, each with its line."""

    above: list[tuple[int, str, str]] = field(default_factory=list)
    header: tuple[int, list[str]] = (1, [])
    rows: list[tuple[int, list[str]]] = field(default_factory=list)


def load_table(text: str) -> Table:
    """Read CSV; cells have no blanks at their ends, empty rows are left out.

    Raises FileSyntaxError.
    """
    table = Table()
    lines = io.StringIO(text, newline="").readlines()
    skipped = 0
    for skipped, text in enumerate(lines):  # noqa: B007
        if text.strip(" ,\r\n\t") and not text.startswith(("#", '"#')):
            break
        if match := _COMMENT.match(_unquoted(text)):
            table.above.append((skipped + 1, match[1].lower(), match[2].strip()))
    records = _records(lines[skipped:], skipped)
    table.header = next(records, (skipped + 1, []))
    line, header = table.header
    while header and not header[-1]:
        header.pop()
    if len(header) == 1 and _SEPARATOR.search(header[0]):
        raise FileSyntaxError("fields are not separated by commas", line)
    table.rows = list(records)
    return table


def _unquoted(line: str) -> str:
    """A comment line; spreadsheets fill it with commas, or put it into quotes."""
    if not line.startswith('"'):
        return line.rstrip(", \t\r\n")
    try:
        return next(csv.reader([line]))[0]
    except csv.Error:
        return ""


def _records(lines: list[str], skipped: int) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    first = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield skipped + first, stripped
            first = reader.line_num + 1
    except csv.Error as error:
        raise FileSyntaxError(f"not CSV: {error}", skipped + reader.line_num) from None
