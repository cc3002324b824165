"""Rows of a CSV file from the web, by the names of its columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from deepvm.catalog.public.offer import Cells
from deepvm.errors import DataError


def csv_rows(body: bytes, needed: Sequence[str]) -> Iterator[Cells]:
    """Each row by column; one with other cells than columns has None as a key or as a value.

    Raises:
        DataError: no CSV file with the ``needed`` columns, or one that breaks off.
    """
    try:
        text = body.decode("utf-8-sig")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        lacking = [name for name in needed if name not in (rows.fieldnames or ())]
        if lacking:
            raise DataError(f"the file has no column {', '.join(lacking)}")
        if not text.endswith("\n"):
            raise DataError("the file breaks off in the middle of a row")
        yield from rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the file is no CSV ({error})") from None
