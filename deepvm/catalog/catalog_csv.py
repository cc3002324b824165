"""Catalogs as CSV: the JSON document flattened to one row per instance type, for spreadsheets.

::

    # schema_version: deepvm.catalog/1
    # name: mine
    # quota: G and VT, spot, 128
    # n_sat: 0.3, 3
    instance_type,vcpus,memory_gib,...,measured,note
    g4dn.xlarge,4,16,...,1:1 2:1.036,

Lines ``# key: value`` above the header hold the catalog's own fields; ``quota`` and ``n_sat`` may
be repeated. Empty fields are left out.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.catalog.serialization import document_of
from deepvm.core.cluster.instances import Catalog
from deepvm.core.spelling import listed
from deepvm.documents.declared import properties
from deepvm.documents.formats.csv import load_table
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree, dotted
from deepvm.errors import Issue

_ROWS = {
    "quota": ("quotas", ("family", "market", "vcpus")),
    "n_sat": ("n_sat", ("network_gbps", "n_sat")),
}
"""Keys of comment lines that are rows of a list: its name in JSON, and the fields."""
_CURVES = {"hybrid": ("a", "b", "c"), "ring": ("c", "l"), "measured": ("points",)}
_LOST = {
    "spot_zones": "spot prices by zone",
    "source": "the sources of curves",
    "fitted_to": "how far curves were fitted",
    "beyond": "rings beyond measured points",
}
"""Keys of instances and curves that CSV cannot hold, in words."""
_NO_KEYS = ("$schema", "n_sat", "quotas", "instances")
_PARTS = {
    "gpu": [("gpu", part) for part in properties("catalog.GpuDocument")],
    "speedups": [(kind, part) for kind, parts in _CURVES.items() for part in parts],
    "zones": [],
    "spot_zones": [],
}
COLUMNS = {
    "_".join(path).removesuffix("_points"): path
    for name in properties("catalog.InstanceDocument")
    for path in _PARTS.get(name, [(name,)])
}
"""Columns in the order they are written, and where each stands in an instance (curves by kind)."""


def load(text: str) -> Tree:
    """Read CSV as the document of a catalog, not validated yet. Raises FileSyntaxError."""
    table = load_table(text)
    instances: Any = []
    document: dict[str, Any] = {"instances": instances}
    lines: dict[KeyPath, int] = {}
    issues = table.issues
    for line, key, value in table.above:
        if key in _ROWS:
            name, fields = _ROWS[key]
            rows = document.setdefault(name, [])
            lines.setdefault((name,), line)
            lines[name, len(rows)] = line
            parts = [part.strip() for part in value.rsplit(",", len(fields) - 1)]
            rows.append(dict(zip(fields, parts, strict=False)))
        elif (key,) in lines:
            issues.append(Issue(f"repeated key {key} (expected every key once)", line, key))
        else:
            lines[key,] = line
            if value:
                document[key] = value
    lines["instances",] = table.line
    for name in table.columns:
        if name not in COLUMNS:
            raise FileSyntaxError(f"unknown column {name!r}", table.line)
    for line, row in table.rows:
        lines["instances", len(instances)] = line
        instances.append(_instance(row))

    def label(path: KeyPath) -> str:
        """The column of a path, or its key."""
        if path[0] != "instances" or len(path) < 3:
            return dotted(path)
        names = [step for step in path[2:] if isinstance(step, str)]
        if names[0] == "speedups" and len(path) > 3:
            names[0] = instances[path[1]]["speedups"][path[3]]["kind"]
        return "_".join(names).removesuffix("_points")

    return Tree(document, lambda: lines, label, issues)


def _instance(row: Mapping[str, str]) -> dict[str, Any]:
    instance: dict[str, Any] = {}
    for column, cell in row.items():
        if cell:
            *parent, name = COLUMNS[column]
            part = instance
            for step in parent:
                part = part.setdefault(step, {})
            part[name] = cell
    curves = [{"kind": kind, **instance.pop(kind)} for kind in _CURVES if kind in instance]
    for curve in curves:
        if "points" in curve:
            curve["points"] = [pair.split(":") for pair in curve["points"].split()]
    if curves:
        instance["speedups"] = curves
    return instance


def format_csv(catalog: Catalog) -> tuple[str, tuple[str, ...]]:
    """Format a catalog as CSV; also says what CSV cannot hold and was left out."""
    document = document_of(catalog)
    keys = [name for name in properties("catalog.CatalogDocument") if name not in _NO_KEYS]
    above = [(key, document[key]) for key in keys if document[key] not in (None, "")]
    for key, (name, fields) in _ROWS.items():
        above += [(key, ", ".join(str(row[f]) for f in fields)) for row in document[name]]
    out = io.StringIO()
    for key, value in above:
        line = f"# {key}: {value}"
        if line.endswith(","):
            # Quotes keep commas at the end apart from those that a spreadsheet adds.
            line = '"' + line.replace('"', '""') + '"'
        out.write(f"{line}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(instance) for instance in document["instances"])
    return out.getvalue(), _left_out(document)


def _cells(instance: dict[str, Any]) -> list[str]:
    general = {c["kind"]: c for c in instance.get("speedups", ()) if c.get("workload") is None}
    return [_cell({**instance, **general}, path) for path in COLUMNS.values()]


def _cell(value: Any, path: Sequence[str]) -> str:
    for step in path:
        value = (value or {}).get(step)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(f"{n}:{speedup}" for n, speedup in value)
    return str(value)


def _left_out(document: dict[str, Any]) -> tuple[str, ...]:
    lost: dict[str, list[str]] = defaultdict(list)
    for instance in document["instances"]:
        parts = {instance["instance_type"]: instance}
        for curve in instance.get("speedups", ()):
            name = f"{instance['instance_type']} {curve['kind']}"
            if "workload" in curve:
                lost["curves of single workloads"].append(f"{name} {curve['workload']}")
            else:
                parts[name] = curve
        for name, part in parts.items():
            for key in filter(part.get, _LOST):
                lost[_LOST[key]].append(name)
    in_use = [quota["family"] for quota in document["quotas"] if "in_use" in quota]
    if in_use:
        lost["vCPUs in use of quotas"] = in_use
    return tuple(f"CSV cannot hold {part}: {listed(names)}" for part, names in lost.items())
