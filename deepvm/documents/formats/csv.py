"""CSV with lines ``# key: value`` above the header, as spreadsheets save it."""

import csv
import io
import re
from collections.abc import Iterator

from deepvm.documents.tree import FileSyntaxError
from deepvm.errors import Issue
from deepvm.records import dataclass, field

_SEPARATOR = re.compile(r"[^,\s]+[;\t|]\s*\S")
_COMMENT = re.compile(r"#\s*([A-Za-z_]+)\s*:(.*)")


@dataclass
class Table:
    """The parts of a file, each with its line; names of columns in lower case."""

    above: list[tuple[int, str, str]] = field(default_factory=list)
    line: int = 1
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)


def load_table(text: str) -> Table:
    """Read CSV; cells have no blanks at their ends, empty rows are left out."""
    table = Table()
    lines = io.StringIO(text, newline="").readlines()
    skipped = 0
    for skipped, text in enumerate(lines):  # noqa: B007
        if text.strip(" ,\r\n\t") and not text.startswith(("#", '"#')):
            break
        if match := _COMMENT.match(_unquoted(text)):
            table.above.append((skipped + 1, match[1].lower(), match[2].strip()))
    records = _records(lines[skipped:], skipped)
    table.line, header = next(records, (skipped + 1, []))
    # Spreadsheets pad all lines to the widest one, also a header below longer comments
    while header and not header[-1]:
        header.pop()
    if len(header) == 1 and _SEPARATOR.search(header[0]):
        raise FileSyntaxError("fields are not separated by commas", table.line)
    table.columns = [name.lower() for name in header]
    for name in filter(None, table.columns):
        if table.columns.count(name) > 1:
            raise FileSyntaxError(f"repeated column {name}", table.line)
    for line, cells in records:
        if any(cells[len(header) :]) or len(cells) < len(header):
            table.issues.append(
                Issue(f"{len(cells)} fields (expected {len(header)}, as in the header)", line)
            )
        else:
            table.rows.append((line, dict(zip(table.columns, cells, strict=False))))
    return table


def _unquoted(line: str) -> str:
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
