"""Files of catalogs (JSON, CSV) and of quotas: rules that join fields, and warnings."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from deepvm.catalog.serialization import AS_SHOWN, build_curve, build_saturation, document_of
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.speedup import SpeedupCurve
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.spelling import listed
from deepvm.core.units import counted
from deepvm.documents.declared import properties
from deepvm.documents.formats.csv import load_table
from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat, Rules, repeats
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree, dotted, shown
from deepvm.errors import Issue, RequestError

# A CSV has the JSON document flattened to one row per instance type, for spreadsheets:
#
#     # schema_version: deepvm.catalog/1
#     # quota: G and VT, spot, 128
#     # n_sat: 0.3, 3
#     instance_type,vcpus,memory_gib,...,measured,note
#     g4dn.xlarge,4,16,...,1:1 2:1.036,
#
# Lines ``# key: value`` hold the catalog's own fields; ``quota`` and ``n_sat`` may be repeated.

# Keys of comment lines that are rows of a list: its name in JSON, and the fields
_ROWS = {
    "quota": ("quotas", ("family", "market", "vcpus")),
    "n_sat": ("n_sat", ("network_gbps", "n_sat")),
}
_CURVES = {"hybrid": ("a", "b", "c"), "ring": ("c", "l"), "measured": ("points",)}
# Keys of instances and curves that CSV cannot hold, in words
_LOST = {
    "spot_zones": "spot prices by zone",
    "source": "the sources of curves",
    "fitted_to": "how far curves were fitted",
    "beyond": "rings beyond measured points",
}
_NO_KEYS = ("$schema", "n_sat", "quotas", "instances")
_PARTS = {
    "gpu": [("gpu", part) for part in properties("catalog.GpuDocument")],
    "speedups": [(kind, part) for kind, parts in _CURVES.items() for part in parts],
    "zones": [],
    "spot_zones": [],
}
# Columns in the order they are written, and where each stands in an instance (curves by kind)
COLUMNS = {
    "_".join(path).removesuffix("_points"): path
    for name in properties("catalog.InstanceDocument")
    for path in _PARTS.get(name, [(name,)])
}


def load_csv(text: str) -> Tree:
    """Read CSV as the document of a catalog, not validated yet. Raises FileSyntaxError."""
    table = load_table(text)
    instances: Any = []
    document: JsonDict = {"instances": instances}
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
        if path[0] != "instances" or len(path) < 3:
            return dotted(path)
        names = [step for step in path[2:] if isinstance(step, str)]
        if names[0] == "speedups" and len(path) > 3:
            names[0] = instances[path[1]]["speedups"][path[3]]["kind"]
        return "_".join(names).removesuffix("_points")

    return Tree(document, lambda: lines, label, issues)


def _instance(row: Mapping[str, str]) -> JsonDict:
    instance: JsonDict = {}
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


def _cells(instance: JsonDict) -> list[str]:
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


def _left_out(document: JsonDict) -> tuple[str, ...]:
    lost = defaultdict(list)
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


def _catalog_rules(document: JsonObject) -> Rules:
    if document["n_sat"] is not None:
        try:
            build_saturation(document["n_sat"])
        except RequestError as error:
            yield ("n_sat",), f"expected {error.allowed}"
    yield from _quota_rules(document)
    instances = document["instances"]
    names = [instance["instance_type"] for instance in instances]
    for row, first in repeats(names):
        yield (
            ("instances", row, "instance_type"),
            f"{shown(names[row])} occurs twice, first as instance {first + 1}",
        )
    for row, instance in enumerate(instances):
        yield from _instance_rules(("instances", row), instance)


def _instance_rules(path: KeyPath, instance: JsonObject) -> Rules:
    spot = instance["spot_usd_per_hour"]
    if instance["on_demand_usd_per_hour"] is None and spot is None:
        message = "no price (expected on_demand_usd_per_hour or spot_usd_per_hour, or both)"
        yield (*path, "spot_usd_per_hour"), message
    zones = instance["spot_zones"]
    prices = [zone["usd_per_hour"] for zone in zones]
    for row, _ in repeats(zone["zone"] for zone in zones):
        yield (*path, "spot_zones", row), "expected one price of each zone"
    if prices != sorted(prices):
        yield (*path, "spot_zones"), "expected the cheapest zone first"
    if prices and min(prices) != spot:
        message = f"expected spot_usd_per_hour to be the cheapest zone's price, {min(prices)}"
        yield (*path, "spot_zones"), message
    curves: Sequence[Any] = instance["speedups"]
    for row, _ in repeats((curve["kind"], curve["workload"]) for curve in curves):
        yield (*path, "speedups", row), "expected one curve of each kind and workload"
    for row, curve in enumerate(curves):
        try:
            build_curve(curve)
        except RequestError as error:
            yield (*path, "speedups", row, error.option), f"expected {error.allowed}"


def _quota_rules(document: JsonObject) -> Rules:
    rows = document["quotas"]
    for row, _ in repeats((quota["family"], quota["market"]) for quota in rows):
        yield ("quotas", row), "expected one limit of each family and market"


_CATALOG = model_of("catalog.CatalogDocument")
JSON_CATALOG = FileFormat(_CATALOG, AS_SHOWN, rules=by_values(_catalog_rules))
CSV_CATALOG = FileFormat(
    _CATALOG, "a catalog of comma-separated values", load_csv, by_values(_catalog_rules)
)
QUOTAS = FileFormat(
    model_of("catalog.QuotaDocument"), "a JSON file of quotas", rules=by_values(_quota_rules)
)


# Curves are examined for n = 1 to this many VMs, the largest cluster in the paper
LARGEST_COUNT = 32


def catalog_warnings(catalog: Catalog) -> tuple[str, ...]:
    """Warnings about a valid catalog, one sentence each."""
    gpus = [i for i in catalog if i.gpu is not None]
    cpus = [i for i in catalog if i.gpu is None]
    kind = catalog.default_speedup
    no_nodes = [i for i in cpus if None in (i.memory_gib, i.network_gbps, i.on_demand_usd_per_hour)]
    groups = (
        ("without eflops, recommended for a model only", [i for i in gpus if i.eflops is None]),
        (
            "without a spot price, recommended on demand only",
            [i for i in gpus if i.spot_usd_per_hour is None],
        ),
        (
            f"without a general {kind} curve, the default",
            [i for i in gpus if i.curve(kind) is None],
        ),
        ("without memory, network or on-demand price, no memory nodes", no_nodes),
        (
            "more expensive on the spot market than on demand",
            [i for i in catalog if (i.spot_usd_per_hour or 0) > (i.on_demand_usd_per_hour or inf)],
        ),
    )
    named = [
        f"{counted(len(types), 'type')} {property_}: {listed([i.name for i in types])}"
        for property_, types in groups
        if types
    ]
    return tuple([*named, *(w for i in gpus for c in i.speedups for w in _clamped(i, c))])


def _clamped(instance: InstanceType, curve: SpeedupCurve) -> Iterator[str]:
    n = np.arange(1.0, LARGEST_COUNT + 1)
    try:
        raw = curve.speedup(n) / n
    except ModuleNotFoundError:
        return  # measured curves need scipy, and a file is valid without it
    which = f"{curve.kind} curve" + (f" of {curve.workload}" if curve.workload else "")
    wrong = {"negative, counted as 0": n[raw < 0], "above n, counted as n": n[raw > 1]}
    for meaning, sizes in wrong.items():
        if sizes.size:
            yield (
                f"{instance.name}: the {which} is {meaning} from n = {sizes[0]:g} to {sizes[-1]:g}"
            )
