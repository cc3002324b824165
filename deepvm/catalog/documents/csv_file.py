"""Catalogs as CSV: the JSON document flattened to one row per instance type, for spreadsheets.

::

    # schema_version: deepvm.catalog/1
    # name: mine
    # quota: G and VT, spot, 128
    # n_sat: 0.3, 3
    instance_type,vcpus,memory_gib,...,measured,note
    g4dn.xlarge,4,16,...,1:1 2:1.036,

Lines ``# key: value`` above the header hold the catalog's own fields; ``quota`` and ``n_sat`` may
be repeated. Empty fields are left out. Keys and columns are the schema's fields in its order, and
files are validated against it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from deepvm.catalog.documents.findings import DocumentPath, shown, unknown_name
from deepvm.catalog.documents.json_file import exact_number
from deepvm.catalog.documents.schema import CatalogDocument, GpuDocument, InstanceDocument
from deepvm.catalog.documents.serialization import document_of
from deepvm.core.cluster.instances import Catalog
from deepvm.core.spelling import listed
from deepvm.errors import CatalogFormatError, Problem

MAX_ROWS = 20_000  # as many instance types as the schema allows
MAX_COLUMNS = 100
MAX_ABOVE = 10_000
"""More lines above the header are not a catalog's, nor are more columns."""

REQUIRED = ("instance_type", "vcpus")
KEYS = tuple(
    n
    for n in CatalogDocument.model_fields
    if n not in ("schema_ref", "n_sat", "quotas", "instances")
)
"""Keys of the comment lines, beside those of ``_ROWS``."""

_ROWS = {
    "quota": ("quotas", ("family", "market", "vcpus")),
    "n_sat": ("n_sat", ("network_gbps", "n_sat")),
}
"""Keys of comment lines that are rows of a list: its name in JSON, and the fields."""

_CURVES = {"hybrid": ("a", "b", "c"), "ring": ("c", "l"), "measured": ("points",)}
_COMMENT = re.compile(r"#\s*([A-Za-z_]+)\s*:(.*)")
_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?", re.ASCII)
_FIELDS = (
    "allowed: fields between commas; a field that holds a comma or a quote stands in double quotes"
)


def _columns() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in InstanceDocument.model_fields:
        if name == "gpu":
            yield from ((f"gpu_{part}", ("gpu", part)) for part in GpuDocument.model_fields)
        elif name == "speedups":
            for kind, parts in _CURVES.items():
                yield from (
                    (kind if part == "points" else f"{kind}_{part}", (kind, part)) for part in parts
                )
        elif name not in ("zones", "spot_zones"):
            yield name, (name,)


COLUMNS = dict(_columns())
"""Columns in the order they are written, and where each stands in an instance (curves by their kind)."""


def _is_text(annotation: Any) -> bool:
    return (
        annotation is str or isinstance(annotation, str) or any(map(_is_text, get_args(annotation)))
    )


_TEXTS = {n for n, f in InstanceDocument.model_fields.items() if _is_text(f.annotation)}
_TEXTS |= {"gpu_name", "gpu_manufacturer"}


def _value(text: str) -> object:
    """An exact number or a boolean; other text as it is, for validation to refuse."""
    if _NUMBER.fullmatch(text):
        return exact_number(text)
    return {"true": True, "false": False}.get(text.lower(), text)  # spreadsheets write TRUE


def _points(text: str) -> object:
    """``1:1 2:1.775`` as pairs; the text as it is where it is not of this form."""
    pairs = [token.split(":") for token in text.split()]
    return (
        [[_value(part) for part in pair] for pair in pairs]
        if all(len(p) == 2 for p in pairs)
        else text
    )


@dataclass
class CsvDocument:
    """A parsed CSV file: its document, not validated yet, and what is wrong with it as CSV.

    ``lines`` has the line of ``("instances", 3)``, ``("quotas", 0)``, ``("name",)`` and all others.
    """

    document: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lines: dict[DocumentPath, int] = field(default_factory=dict)

    def place(self, path: DocumentPath) -> str:
        """Translate a path into ``line 7, column spot_usd_per_hour``."""
        if path == ("instances",):
            return "rows below the header"
        line = (
            self.lines.get(path[:2]) or self.lines.get(path[:1]) or self.lines.get((*path[:1], 0))
        )
        if line is None:
            return f"comment lines above the header, {path[0] if path else 'all'}"
        if path[0] != "instances":
            return f"line {line}, {path[-1]}" if len(path) > 2 else f"line {line}"
        _, row, *steps = path
        if steps[:1] == ["speedups"] and len(steps) > 2:
            steps = [self.document["instances"][row]["speedups"][steps[1]]["kind"], steps[2]]
        elif steps == ["gpu"]:
            steps = ["gpu", "name"]
        column = next((name for name, where in COLUMNS.items() if where == tuple(steps[:2])), "")
        return f"line {line}, column {column}" if column else f"line {line}"

    def refuse(self, line: int, found: str, expected: str) -> None:
        """Keep a problem of a line."""
        self.problems.append(Problem(f"line {line}", found, expected))


def parse_csv(text: str, path: Path) -> CsvDocument:
    """Parse CSV into a document.

    Rows that do not fit the header are skipped and reported in ``problems``.

    Raises:
        CatalogFormatError: no header that can be used: columns missing, unknown or twice, or not
            CSV at all.
    """
    sheet = CsvDocument()
    lines = io.StringIO(text, newline="").readlines()
    above = _read_comments(sheet, lines)
    reader = csv.reader(lines[above:], strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        while header and not header[-1]:
            header.pop()
        problems = _header_problems(header, f"line {above + 1}")
        if problems:
            raise CatalogFormatError(path, [*sheet.problems, *problems])
        instances = sheet.document.setdefault("instances", [])
        before = reader.line_num
        for cells in reader:
            # A field may hold line breaks: a row is named by the line it begins in.
            line, before = above + before + 1, reader.line_num
            if any(cell.strip() for cell in cells):
                _read_row(sheet, header, cells, line)
            if len(instances) > MAX_ROWS or len(sheet.problems) > MAX_ROWS:
                # Validation says that it is too much; reading on would only take time and memory
                break
    except csv.Error as error:
        sheet.refuse(above + reader.line_num, f"not CSV: {error}", _FIELDS)
        raise CatalogFormatError(path, sheet.problems) from None
    return sheet


def _read_comments(sheet: CsvDocument, lines: Sequence[str]) -> int:
    """Read the lines above the header; returns how many there are."""
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text.startswith('"#'):
            # A spreadsheet, or format_csv, quoted the line.
            try:
                text = next(csv.reader([text]))[0]
            except csv.Error as error:
                sheet.refuse(number, f"not CSV: {error}", _FIELDS)
        elif text.startswith("#"):
            # A spreadsheet fills every line up to the width of the table.
            text = text.rstrip(", \t")
        elif text.strip(","):
            return number - 1
        if number > MAX_ABOVE:
            sheet.refuse(number, "no header row until here", _FIELDS)
            break
        match = _COMMENT.match(text)
        if match:
            _read_key(sheet, match[1].lower(), match[2].strip(), number)
    return len(lines)


def _read_key(sheet: CsvDocument, key: str, value: str, line: int) -> None:
    if key in _ROWS:
        name, fields = _ROWS[key]
        parts = [part.strip() for part in value.rsplit(",", len(fields) - 1)]
        if len(parts) != len(fields):
            sheet.refuse(line, shown(value), f"allowed: # {key}: {', '.join(fields)}")
            return
        rows = sheet.document.setdefault(name, [])
        sheet.lines[name, len(rows)] = line
        rows.append(
            {
                f: p if f in ("family", "market") else _value(p)
                for f, p in zip(fields, parts, strict=True)
            }
        )
    elif key not in KEYS:
        expected = f"{_meant(key, [*KEYS, *_ROWS])}allowed keys: {', '.join([*KEYS, *_ROWS])}"
        sheet.refuse(line, f"unknown key {shown(key)}", expected)
    elif (key,) in sheet.lines:
        expected = f"allowed: every key once; it is in line {sheet.lines[key,]} too"
        sheet.refuse(line, f"{key} appears twice", expected)
    else:
        sheet.lines[key,] = line
        if value:
            sheet.document[key] = value


def _header_problems(header: Sequence[str], place: str) -> list[Problem]:
    separator = next((s for s in (";", "\t", "|") if len(header) == 1 and s in header[0]), "")
    if separator:
        return [Problem(place, f"fields are separated by {separator!r}", _FIELDS)]
    if len(header) > MAX_COLUMNS:
        return [Problem(place, f"{len(header)} columns", f"allowed columns: {', '.join(COLUMNS)}")]
    problems = []
    for number, name in enumerate(header, start=1):
        if name in header[: number - 1]:
            problems.append(
                Problem(
                    f"{place}, column {name or number}",
                    "appears twice",
                    "allowed: every column once",
                )
            )
        elif name not in COLUMNS:
            meant = _meant(name, [c for c in COLUMNS if c not in header])
            expected = f"{meant}allowed columns: {', '.join(COLUMNS)}"
            problems.append(
                Problem(f"{place}, column {number}", f"unknown column {shown(name)}", expected)
            )
    missing = ", ".join(c for c in REQUIRED if c not in header)
    if missing:
        expected = f"the header row needs at least {', '.join(REQUIRED)} and a price"
        problems.append(Problem(place, f"missing columns: {missing}", expected))
    return problems


def _meant(name: str, known: Sequence[str]) -> str:
    near = unknown_name(name, known)
    return f"did you mean {near}? " if near else ""


def _read_row(sheet: CsvDocument, header: Sequence[str], cells: Sequence[str], line: int) -> None:
    if not any(cells[len(header) :]):
        cells = cells[: len(header)]
    if len(cells) != len(header):
        missing = (
            f" (none for {', '.join(header[len(cells) :])})" if len(cells) < len(header) else ""
        )
        expected = (
            f"allowed: {len(header)} fields, as in the header; a comma inside a field needs double"
            " quotes"
        )
        sheet.refuse(line, f"{len(cells)} fields{missing}", expected)
        return
    instance: dict[str, Any] = {}
    for column, cell in zip(header, map(str.strip, cells), strict=True):
        if cell:
            *parent, name = COLUMNS[column]
            value = (
                cell
                if column in _TEXTS
                else _points(cell)
                if column == "measured"
                else _value(cell)
            )
            part = instance.setdefault(parent[0], {}) if parent else instance
            part[name] = value
    curves = [{"kind": kind, **instance.pop(kind)} for kind in _CURVES if kind in instance]
    if curves:
        instance["speedups"] = curves
    instances = sheet.document["instances"]
    sheet.lines["instances", len(instances)] = line
    instances.append(instance)


def format_csv(catalog: Catalog) -> tuple[str, tuple[str, ...]]:
    """Format a catalog as CSV; also says what CSV cannot hold and was left out."""
    document = document_of(catalog)
    above = [(key, document[key]) for key in KEYS if document[key] not in (None, "")]
    for key, (name, fields) in _ROWS.items():
        above += [(key, ", ".join(str(row[f]) for f in fields)) for row in document[name]]
    out = io.StringIO()
    for key, value in above:
        line = f"# {key}: {value}"
        # Commas at the end look like those that a spreadsheet adds: quotes keep them.
        out.write('"' + line.replace('"', '""') + '"\n' if line.endswith(",") else line + "\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(instance) for instance in document["instances"])
    return out.getvalue(), _left_out(document)


def _cells(instance: dict[str, Any]) -> list[str]:
    general = {c["kind"]: c for c in instance.get("speedups", ()) if c.get("workload") is None}
    whole = {**instance, **general}
    cells = []
    for column, where in COLUMNS.items():
        value: Any = whole
        for step in where:
            value = (value or {}).get(step)
        if column == "measured":
            value = " ".join(f"{n}:{s}" for n, s in value or ())
        cells.append(
            "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        )
    return cells


def _left_out(document: dict[str, Any]) -> tuple[str, ...]:
    curves = [(i["instance_type"], c) for i in document["instances"] for c in i.get("speedups", ())]
    general = [(name, c) for name, c in curves if c.get("workload") is None]
    lost = {
        "curves of single workloads": [
            f"{n} {c['kind']} {c['workload']}" for n, c in curves if c.get("workload")
        ],
        "the sources of curves": [f"{name} {c['kind']}" for name, c in general if c.get("source")],
        "how far curves were fitted": [
            f"{name} {c['kind']}" for name, c in general if c.get("fitted_to")
        ],
        "vCPUs in use of quotas": [q["family"] for q in document["quotas"] if q.get("in_use")],
        "spot prices by zone": [
            i["instance_type"] for i in document["instances"] if i.get("spot_zones")
        ],
        "rings beyond measured points": [name for name, c in general if c.get("beyond")],
    }
    return tuple(f"CSV cannot hold {what}: {listed(of)}" for what, of in lost.items() if of)
