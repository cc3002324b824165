"""Documents as tables: one row for each of what they list, a column for each value.

The header follows from the type of a row, whatever the rows hold: values of objects have dotted
names, such as ``step_s.low``; lists, and objects whose keys vary, are in one field, as JSON in CSV.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from deepvm.documents.json_schema import columns
from deepvm.services.schemas import OutputSpec, described, name_of


def rows_of(document: Any, name: str = "") -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a document; ``name``: of one without a ``schema_version``."""
    if isinstance(document, list) and document:
        first = document[0]
    else:
        first = document
    found = described(name or name_of(first))
    assert isinstance(found, OutputSpec)  # files that are validated have a CSV of their own
    return rows_as(found.row, _listed(document, found), found.key)


def rows_as(
    kind: Any, rows: Iterable[Mapping[str, Any]], key: str = ""
) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of objects of a type; ``key``: of a column in front of what the type says."""
    paths = [
        *([(key,)] if key else []),
        *(path for path in columns(kind) if path != ("schema_version",)),
    ]
    return [".".join(path) for path in paths], [
        [_cell(row, path) for path in paths] for row in rows
    ]


def header_of(found: OutputSpec) -> list[str]:
    """The header of the CSV of a document that has none of its own."""
    return rows_as(found.row, (), found.key)[0]


def _listed(document: Any, found: OutputSpec) -> Iterator[Mapping[str, Any]]:
    rows = document[found.rows] if found.rows else document
    if found.key:
        yield from ({found.key: name, **row} for name, row in rows.items())
    else:
        yield from rows if isinstance(rows, list) else [rows]


def _cell(row: Any, path: Sequence[str]) -> Any:
    for key in path:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row
