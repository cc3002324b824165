"""Documents compared with the schemas that ``deepvm schema`` prints."""

from __future__ import annotations

import csv
import io
from typing import Any

import jsonschema

from deepvm.services.schemas import DOCUMENTS, described, rows_as


def check(document: Any, name: str) -> None:
    """The document holds what its schema says, and nothing else."""
    schema = described(name).schema(name)
    found = [
        f"{e.json_path}: {e.message[:200]}"
        for e in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]
    assert not found, found


def check_rows(document: Any, text: str, name: str) -> None:
    """The CSV has one header, that of the document's rows, and a line for each row."""
    lines = [line for line in io.StringIO(text) if not line.startswith("#")]
    header, *rows = csv.reader(lines)
    assert len(set(header)) == len(header) and all(header)
    assert all(len(row) == len(header) for row in rows)
    output = DOCUMENTS[name]
    if output.rows:
        assert header == rows_as(output.row, (), output.key)[0]
        assert len(rows) == len(document[output.rows])
