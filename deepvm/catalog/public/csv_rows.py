"""Rows of a CSV file from the web, by the names of its columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from deepvm.errors import DataError


def csv_rows(body: bytes, needed: Sequence[str]) -> Iterator[Mapping[str, str] | None]:
    """Each row by column, without spaces around values; None for one with too many or few cells.

    Raises:
        DataError: no CSV file with the ``needed`` columns, or one that breaks off.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError("the file is not text") from None
    if text.lstrip()[:1] in ("", "<", "{", "["):
        raise DataError("the file is empty, a web page or JSON, not CSV")
    if not text.endswith("\n"):
        raise DataError("the file breaks off in the middle of a row")
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        head = [name.strip() for name in next(rows)]
        lacking = [name for name in needed if name not in head]
        if lacking:
            raise DataError(f"the file has no column {', '.join(lacking)}")
        if len(set(head)) < len(head):
            raise DataError("two columns of the file have one name")
        for row in rows:
            if len(row) == len(head):
                yield dict(zip(head, map(str.strip, row), strict=True))
            elif row:
                yield None
    except csv.Error as error:
        raise DataError(f"the file is no CSV ({error})") from None
