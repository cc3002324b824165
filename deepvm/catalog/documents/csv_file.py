"""Catalogs as CSV: the JSON document flattened to one row per instance type, for spreadsheets.

::

    # schema_version: deepvm.catalog/1
    # name: mine
    # quota: G and VT, spot, 128
    # n_sat: 0.3, 3
    instance_type,vcpus,memory_gib,...,measured,note
    g4dn.xlarge,4,16,...,1:1 2:1.036,

Lines ``# key: value`` above the header hold the catalog's own fields; ``quota`` and ``n_sat`` may be repeated. An empty
field is one that the JSON document leaves out. Rows are validated against the same schema as JSON.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from deepvm.catalog.documents.findings import Path, shown, unknown_name
from deepvm.catalog.documents.json_file import exact_number
from deepvm.catalog.documents.serialization import document_of
from deepvm.core.cluster.instances import Catalog
from deepvm.core.spelling import listed
from deepvm.errors import CatalogFormatError, Problem

MAX_ROWS = 20_000
"""As many instance types as the schema allows."""

MAX_COLUMNS = 100
MAX_ABOVE = 10_000
"""More lines above the header are not a catalog's; nor are more columns than 100."""

REQUIRED = ("instance_type", "vcpus")
KEYS = (
    "schema_version",
    "name",
    "region",
    "description",
    "prices_as_of",
    "source",
    "eflops_unit",
    "default_speedup",
    "memory_nodes",
)
"""Keys of the comment lines, beside ``quota`` and ``n_sat``."""

_KINDS = ("hybrid", "ring", "measured")
_COMMENT = re.compile(r"#\s*([A-Za-z_]+)\s*:(.*)")
_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?", re.ASCII)
_FIELDS = "allowed: fields between commas; a field that holds a comma or a quote stands in double quotes"
_ABOVE = "comment lines above the header"


def _truth(text: str) -> object:
    return {"true": True, "false": False}.get(text.lower(), text)  # spreadsheets write TRUE


def _number(text: str) -> object:
    """The exact number, or the text as it is, for validation to refuse."""
    return exact_number(text) if _NUMBER.fullmatch(text) else text


def _points(text: str) -> object:
    """``1:1 2:1.775`` as pairs; the text as it is where it is not of this form."""
    pairs = [token.split(":") for token in text.split()]
    return [[_number(part) for part in pair] for pair in pairs] if all(len(p) == 2 for p in pairs) else text


@dataclass(frozen=True)
class Column:
    """How a column is read, and where it stands in an instance (curves by their kind): under its own name if empty."""

    read: Callable[[str], object]
    where: tuple[str, ...] = ()


COLUMNS = {
    "instance_type": Column(str),
    "vcpus": Column(_number),
    "memory_gib": Column(_number),
    "network_gbps": Column(_number),
    "network_baseline_gbps": Column(_number),
    "on_demand_usd_per_hour": Column(_number),
    "spot_usd_per_hour": Column(_number),
    "gpu_name": Column(str, ("gpu", "name")),
    "gpu_count": Column(_number, ("gpu", "count")),
    "gpu_memory_gib": Column(_number, ("gpu", "memory_gib")),
    "gpu_manufacturer": Column(str, ("gpu", "manufacturer")),
    "eflops": Column(_number),
    "eflops_basis": Column(str),
    "eflops_source": Column(str),
    "quota_family": Column(str),
    "hybrid_a": Column(_number, ("hybrid", "a")),
    "hybrid_b": Column(_number, ("hybrid", "b")),
    "hybrid_c": Column(_number, ("hybrid", "c")),
    "ring_c": Column(_number, ("ring", "c")),
    "ring_l": Column(_number, ("ring", "l")),
    "measured": Column(_points, ("measured", "points")),
    "speedup_basis": Column(str),
    "default_speedup": Column(str),
    "cpu_architecture": Column(str),
    "burstable": Column(_truth),
    "current_generation": Column(_truth),
    "interruption_band": Column(_number),
    "unusable": Column(str),
    "note": Column(str),
}
"""Columns in the order they are written."""


def _where(column: str) -> tuple[str, ...]:
    return COLUMNS[column].where or (column,)


@dataclass
class Sheet:
    """A parsed CSV file, with the line of everything in it.

    Attributes:
        document: as in JSON, not validated yet.
        problems: what is wrong with the file as CSV.
        lines: line of each key, ``("instances", 3)``, ``("quotas", 0)``, ``("name",)``.
        kinds: the kinds of the curves of each instance, in the order of its ``speedups``.
    """

    document: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)
    kinds: list[list[str]] = field(default_factory=list)

    def place(self, path: Path) -> str:
        """Translate a path into ``line 7, column spot_usd_per_hour``."""
        if path == ("instances",):
            return "rows below the header"
        line = self.lines.get(path[:2]) or self.lines.get(path[:1]) or self.lines.get((*path[:1], 0))
        if line is None:
            return f"{_ABOVE}, {path[0] if path else 'all'}"
        if path[0] != "instances":
            return f"line {line}, {path[-1]}" if len(path) > 2 else f"line {line}"
        column = self._column(int(path[1]), [str(step) for step in path[2:]])
        return f"line {line}, column {column}" if column else f"line {line}"

    def _column(self, row: int, steps: Sequence[str]) -> str:
        if steps[:1] == ["speedups"] and len(steps) > 2:
            steps = [self.kinds[row][int(steps[1])], steps[2]]
        elif steps == ["gpu"]:
            steps = ["gpu", "name"]
        return next((name for name in COLUMNS if _where(name) == tuple(steps[:2])), "")


def parse_csv(text: str, path: FilePath) -> Sheet:
    """Parse CSV into a document; rows that do not fit the header are skipped and reported in ``problems``.

    Raises:
        CatalogFormatError: no header that can be used: columns missing, unknown or twice, or not CSV at all.
    """
    sheet = Sheet()
    stream = io.StringIO(text, newline="")
    header_line, first = _read_comments(sheet, stream)
    reader = csv.reader(_chain(first, stream), strict=True)
    try:
        header = _read_header(sheet, next(reader, []), header_line)
        if header is None:
            raise CatalogFormatError(path, sheet.problems)
        instances = sheet.document.setdefault("instances", [])
        before = reader.line_num
        for cells in reader:
            # A field may hold line breaks: a row is named by the line it begins in.
            line, before = header_line + before, reader.line_num
            if any(cell.strip() for cell in cells):
                _read_row(sheet, header, cells, line, instances)
            if len(instances) > MAX_ROWS or len(sheet.problems) > MAX_ROWS:
                break  # validation says that it is too much; reading on would only take time and memory
    except csv.Error as error:
        line = header_line + reader.line_num - 1
        sheet.problems.append(Problem(f"line {line}", f"not CSV: {error}", _FIELDS))
        raise CatalogFormatError(path, sheet.problems) from None
    return sheet


def format_csv(catalog: Catalog) -> tuple[str, tuple[str, ...]]:
    """Format a catalog as CSV; also says what CSV cannot hold and was left out."""
    document = document_of(catalog)
    out = io.StringIO()
    for key in KEYS:
        if document[key] not in (None, ""):
            out.write(_comment(key, document[key]))
    for quota in document["quotas"]:
        out.write(_comment("quota", f"{quota['family']}, {quota['market']}, {quota['vcpus']}"))
    for row in document["n_sat"]:
        out.write(_comment("n_sat", f"{row['network_gbps']}, {row['n_sat']}"))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for instance in document["instances"]:
        writer.writerow(_cells(instance))
    return out.getvalue(), _left_out(document)


def _chain(first: str, stream: io.StringIO) -> Any:
    if first:
        yield first
    yield from stream


def _read_comments(sheet: Sheet, stream: io.StringIO) -> tuple[int, str]:
    """Read the lines above the header; returns the header's line number and text."""
    number = 0
    for number, line in enumerate(stream, start=1):
        text = line.strip()
        if text.startswith('"#'):
            # A spreadsheet, or format_csv, quoted the line.
            text = next(csv.reader([text]))[0]
        elif text.startswith("#"):
            # A spreadsheet fills every line up to the width of the table.
            text = text.rstrip(", \t")
        elif text.strip(","):
            return number, line
        match = _COMMENT.match(text)
        if number > MAX_ABOVE:
            sheet.problems.append(Problem(f"line {number}", "no header row until here", _FIELDS))
            return number, ""
        if match:
            _read_key(sheet, match[1].lower(), match[2].strip(), number)
    return number + 1, ""


def _read_key(sheet: Sheet, key: str, value: str, line: int) -> None:
    place = f"line {line}"
    if key in ("quota", "n_sat"):
        names = ("family", "market", "vcpus") if key == "quota" else ("network_gbps", "n_sat")
        parts = [part.strip() for part in value.rsplit(",", len(names) - 1)]
        if len(parts) != len(names):
            sheet.problems.append(Problem(place, shown(value), f"allowed: # {key}: {', '.join(names)}"))
            return
        rows = sheet.document.setdefault("quotas" if key == "quota" else key, [])
        sheet.lines["quotas" if key == "quota" else key, len(rows)] = line
        rows.append({n: p if n in ("family", "market") else _number(p) for n, p in zip(names, parts, strict=True)})
    elif key not in KEYS:
        near = unknown_name(key, [*KEYS, "quota", "n_sat"])
        meant = f"did you mean {near}? " if near else ""
        expected = f"{meant}allowed keys: {', '.join(KEYS)}, quota, n_sat"
        sheet.problems.append(Problem(place, f"unknown key {shown(key)}", expected))
    elif (key,) in sheet.lines:
        expected = f"allowed: every key once; it stands in line {sheet.lines[key,]} too"
        sheet.problems.append(Problem(place, f"{key} stands twice", expected))
    else:
        sheet.lines[key,] = line
        if value:
            sheet.document[key] = value


def _read_header(sheet: Sheet, cells: Sequence[str], line: int) -> list[str] | None:
    header = [cell.strip() for cell in cells]
    while header and not header[-1]:
        header.pop()
    place = f"line {line}"
    separator = next((s for s in (";", "\t", "|") if len(header) == 1 and s in header[0]), "")
    if separator:
        found = [Problem(place, f"fields are separated by {separator!r}", _FIELDS)]
    elif len(header) > MAX_COLUMNS:
        found = [Problem(place, f"{len(header)} columns", f"allowed columns: {', '.join(COLUMNS)}")]
    else:
        found = _column_problems(header, place)
    sheet.problems += found
    return None if found else header


def _column_problems(header: Sequence[str], place: str) -> list[Problem]:
    problems = []
    seen: set[str] = set()
    for number, name in enumerate(header, start=1):
        if name in seen:
            problems.append(Problem(f"{place}, column {name or number}", "stands twice", "allowed: every column once"))
        elif name not in COLUMNS:
            near = unknown_name(name, [c for c in COLUMNS if c not in header])
            meant = f"did you mean {near}? " if near else ""
            expected = f"{meant}allowed columns: {', '.join(COLUMNS)}"
            problems.append(Problem(f"{place}, column {number}", f"unknown column {shown(name)}", expected))
        seen.add(name)
    missing = [c for c in REQUIRED if c not in seen]
    if missing:
        expected = f"the header row needs at least {', '.join(REQUIRED)} and a price"
        problems.append(Problem(place, f"missing columns: {', '.join(missing)}", expected))
    return problems


def _read_row(sheet: Sheet, header: Sequence[str], cells: Sequence[str], line: int, instances: list[Any]) -> None:
    if len(cells) > len(header) and not any(cells[len(header) :]):
        cells = cells[: len(header)]
    if len(cells) != len(header):
        missing = f" (none for {', '.join(header[len(cells) :])})" if len(cells) < len(header) else ""
        expected = f"allowed: {len(header)} fields, as in the header; a comma inside a field needs double quotes"
        sheet.problems.append(Problem(f"line {line}", f"{len(cells)} fields{missing}", expected))
        return
    instance: dict[str, Any] = {}
    curves: dict[str, dict[str, Any]] = {}
    for column, cell in zip(header, map(str.strip, cells), strict=True):
        if not cell:
            continue
        *parent, name = _where(column)
        value = COLUMNS[column].read(cell)
        if not parent:
            instance[name] = value
        elif parent == ["gpu"]:
            instance.setdefault("gpu", {})[name] = value
        else:
            curves.setdefault(parent[0], {"kind": parent[0]})[name] = value
    if curves:
        instance["speedups"] = [curves[kind] for kind in _KINDS if kind in curves]
    sheet.lines["instances", len(instances)] = line
    sheet.kinds.append([kind for kind in _KINDS if kind in curves])
    instances.append(instance)


def _comment(key: str, value: object) -> str:
    line = f"# {key}: {value}"
    # Commas at the end look like those that a spreadsheet adds: quotes keep them.
    return '"' + line.replace('"', '""') + '"\n' if line.endswith(",") else line + "\n"


def _cells(instance: dict[str, Any]) -> list[str]:
    general = {c["kind"]: c for c in instance.get("speedups", ()) if c.get("workload") is None}
    whole = {**instance, **general}
    cells = []
    for column in COLUMNS:
        value: Any = whole
        for step in _where(column):
            value = (value or {}).get(step)
        if column == "measured":
            value = " ".join(f"{n}:{s}" for n, s in value or ())
        cells.append("" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
    return cells


def _left_out(document: dict[str, Any]) -> tuple[str, ...]:
    curves = [(i["instance_type"], c) for i in document["instances"] for c in i.get("speedups", ())]
    general = [(name, c) for name, c in curves if c.get("workload") is None]
    lost = {
        "curves of single workloads": [f"{n} {c['kind']} {c['workload']}" for n, c in curves if c.get("workload")],
        "the sources of curves": [f"{name} {c['kind']}" for name, c in general if c.get("source")],
        "how far curves were fitted": [f"{name} {c['kind']}" for name, c in general if c.get("fitted_to")],
        "vCPUs in use of quotas": [q["family"] for q in document["quotas"] if q.get("in_use")],
        "spot prices by zone": [i["instance_type"] for i in document["instances"] if i.get("spot_zones")],
        "rings beyond measured points": [name for name, c in general if c.get("beyond")],
    }
    return tuple(f"CSV cannot hold {what}: {listed(of)}" for what, of in lost.items() if of)
