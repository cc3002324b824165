"""CSV of measurements written by users: a header, one row for each, comments anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepvm.documents.formats.csv import load_table
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree
from deepvm.errors import Issue

MAX_NODES = 4096
_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)


def load_rows(text: str, columns: Sequence[str]) -> Tree:
    """The rows as ``{"rows": [{column: text}, ...]}``.

    Raises FileSyntaxError unless the header has each of ``columns`` once, and others not twice.
    """
    # Comments become empty lines, so that line numbers remain the file's.
    table = load_table(_COMMENT.sub("", text))
    header_line, header = table.header
    names = [name.lower() for name in header]
    for column in dict.fromkeys((*columns, *filter(None, names))):
        if names.count(column) != 1:
            found = f"{names.count(column)} columns {column} in {','.join(header)[:40]!r}"
            raise FileSyntaxError(found, header_line)
    rows: list[dict[str, str]] = []
    lines: dict[KeyPath, int] = {}
    issues = []
    for line, cells in table.rows:
        if any(cells[len(names) :]) or len(cells) < len(names):
            issues.append(Issue(f"{len(cells)} fields (expected {len(names)})", line))
        else:
            lines["rows", len(rows)] = line
            rows.append(dict(zip(names, cells, strict=False)))
    return Tree({"rows": rows}, lambda: lines, lambda path: str(path[-1]), issues)
