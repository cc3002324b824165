"""CSV of measurements written by users: a header, one row for each, comments anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepvm.documents.formats.csv import load_table
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree

MAX_NODES = 4096
_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)


def load_rows(text: str, columns: Sequence[str]) -> Tree:
    """The rows as ``{"rows": [{column: text}, ...]}``.

    Raises FileSyntaxError unless the header has each of ``columns`` once, and others not twice.
    """
    # Comments become empty lines, so that line numbers remain the file's.
    table = load_table(_COMMENT.sub("", text))
    for column in columns:
        if column not in table.columns:
            message = f"no column {column} in {','.join(table.columns)[:40]!r}"
            raise FileSyntaxError(message, table.line)
    rows: list[dict[str, str]] = []
    lines: dict[KeyPath, int] = {}
    for line, row in table.rows:
        lines["rows", len(rows)] = line
        rows.append(row)
    return Tree({"rows": rows}, lambda: lines, lambda path: str(path[-1]), table.issues)
