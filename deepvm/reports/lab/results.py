"""What a matrix has shown: documents, tables on the terminal, and the files of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepvm.io.atomic_write import write_bytes
from deepvm.lab.audit.gates import Records
from deepvm.lab.checked import Checked, gate_names
from deepvm.lab.results import Cost, Estimate, SuiteResult, suites_of
from deepvm.reports.documents import to_csv
from deepvm.reports.tables import Column, print_lines, print_table

_FORM = "deepvm.lab-report/1"
_PARTS = ("detect", "restart", "restore", "replay")


def checked_document(found: Checked) -> dict[str, Any]:
    """Of ``deepvm lab check``."""
    gates = {name: dict(zip(("passed", "failed"), found.of_gate(name), strict=True)) for name in gate_names()}
    return {
        "schema_version": "deepvm.lab/1",
        "runs": len(found.runs),
        "passed": found.passed,
        "gates": gates,
        "failures": [{"run": run, "gate": gate, "reason": why} for run, gate, why in found.failures],
    }


def report_document(suites: Sequence[SuiteResult]) -> dict[str, Any]:
    """Of ``deepvm lab run`` and ``report``."""
    return {"schema_version": _FORM, "suites": [_suite(one) for one in suites]}


def _suite(found: SuiteResult) -> dict[str, Any]:
    return {
        "dataset": found.dataset,
        "model": found.model,
        "failure": found.failure,
        "variants": {name: _variant(costs) for name, costs in found.variants.items()},
        "paired": {name: _ratio(one) for name, one in found.paired.items()},
    }


def _variant(costs: Sequence[Cost]) -> dict[str, Any]:
    goodput = Estimate.of([cost.goodput for cost in costs])
    return {
        "goodput": {key: _rounded(value) for key, value in asdict(goodput).items()},
        "restarts": _mean(cost.restarts for cost in costs),
        "wall_s": _mean(cost.wall_s for cost in costs),
        "compute_s": _mean(cost.compute_s for cost in costs),
        "snapshot_s": _mean(cost.snapshot_s for cost in costs),
        "write_s": _mean(cost.write_s for cost in costs),
        "background_s": _mean(cost.background_s for cost in costs),
        "stall_s": _mean(cost.stall_s for cost in costs),
        "recovery_s": {part: _mean(getattr(cost, f"{part}_s") for cost in costs) for part in _PARTS},
        "audit": "pass" if all(cost.passed for cost in costs) else "fail",
    }


def _ratio(found: Estimate) -> dict[str, Any]:
    return {
        "ratio": _rounded(found.mean),
        "low": _rounded(found.low),
        "high": _rounded(found.high),
        "n": found.n,
    }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return _rounded(sum(found) / len(found)) or 0.0


def _rounded(value: float | None) -> Any:
    return value if value is None or isinstance(value, int) else round(value, 6)


# --- tables ----------------------------------------------------------------------------------------------------------


def print_checked(found: Checked) -> None:
    """Each gate, and what is wrong."""
    head = [Column("gate"), Column("passed", "right"), Column("failed", "right")]
    print_table(head, [[name, *map(str, found.of_gate(name))] for name in gate_names()])
    print_lines([f"{found.passed} of {len(found.runs)} runs pass all gates"])
    if found.failures:
        print_lines([""])
        print_table([Column("run"), Column("gate"), Column("what is wrong")], [list(row) for row in found.failures])


def print_run(checked: Checked, suites: Sequence[SuiteResult]) -> None:
    """What each variant has cost in each suite, and the paired ratios."""
    head = [
        Column("suite"),
        Column("variant"),
        Column("goodput, steps/s", "right"),
        Column("restarts", "right"),
        Column("stall s", "right"),
        Column("recovery s", "right", drop=1),
        Column("over blocking", "right"),
        Column("audit"),
    ]
    rows = []
    for suite in suites:
        for place, (name, costs) in enumerate(suite.variants.items()):
            one, ratio = _variant(costs), suite.paired.get(f"{name}_over_blk")
            recovery = sum(one["recovery_s"].values())
            rows.append(
                [
                    "" if place else f"{suite.dataset}-{suite.model}-{suite.failure}",
                    name,
                    _interval(Estimate.of([cost.goodput for cost in costs]), 2),
                    f"{one['restarts']:g}",
                    f"{one['stall_s']:.3f}",
                    f"{recovery:.2f}" if one["restarts"] else "",
                    "" if ratio is None else _interval(ratio, 3),
                    one["audit"],
                ]
            )
    print_table(head, rows, also="-o csv")
    print_lines([f"{checked.passed} of {len(checked.runs)} runs pass all gates"])


def _interval(found: Estimate, digits: int) -> str:
    text = f"{found.mean:.{digits}f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def listing_document(found: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Of ``deepvm lab list``."""
    rows = [{"kind": kind, "name": name, "what": what} for kind, names in found.items() for name, what in names.items()]
    return {"schema_version": "deepvm.lab-list/1", "entries": rows}


def print_listing(found: Mapping[str, Mapping[str, str]]) -> None:
    """What a matrix file can name."""
    rows = [
        ["" if place else kind, name, what]
        for kind, names in found.items()
        for place, (name, what) in enumerate(names.items())
    ]
    print_table([Column(""), Column("name"), Column("what")], rows)


# --- files -----------------------------------------------------------------------------------------------------------

_COLUMNS = ("dataset", "model", "failure", "variant")
_MEASURED = ("goodput", "restarts", "wall_s", "compute_s", "snapshot_s", "write_s", "background_s", "stall_s")


def write_all(out: Path, checked: Checked, records: Sequence[tuple[Records, bool]]) -> list[SuiteResult]:
    """Write what others read: publishable files, tables, analysis, figures, the page. Raises OSError."""
    suites = suites_of(records)
    for suite in suites:
        name = re.sub(r"[^a-z0-9-]+", "-", f"{suite.dataset}-{suite.model}-{suite.failure}")
        document = {"schema_version": "deepvm.lab-suite/1", **_suite(suite)}
        write_bytes(out / f"{name}_publishable.json", json.dumps(document, indent=1).encode() + b"\n")
        write_bytes(out / f"{name}_publishable.md", "\n".join(_markdown(suite)).encode() + b"\n")
    write_bytes(out / "summary.csv", to_csv(*_summary(suites)).encode())
    write_bytes(out / "detailed_table.csv", to_csv(*_detailed(suites)).encode())
    return suites


def _summary(suites: Sequence[SuiteResult]) -> tuple[Sequence[str], list[list[Any]]]:
    """A row for each variant of a suite."""
    head = [*_COLUMNS, "runs", *_MEASURED, *(f"{part}_s" for part in _PARTS), "audit"]
    rows = []
    for suite in suites:
        for name, costs in suite.variants.items():
            one = _variant(costs)
            measured = [one["goodput"]["mean"], *(one[key] for key in _MEASURED[1:])]
            recovery = [one["recovery_s"][part] for part in _PARTS]
            rows.append(
                [suite.dataset, suite.model, suite.failure, name, len(costs), *measured, *recovery, one["audit"]]
            )
    return head, rows


def _detailed(suites: Sequence[SuiteResult]) -> tuple[Sequence[str], list[list[Any]]]:
    """A row for each run."""
    head = [*_COLUMNS, "seed", *_MEASURED, *(f"{part}_s" for part in _PARTS), "audit"]
    rows = []
    for suite in suites:
        for name, costs in suite.variants.items():
            for cost in costs:
                measured = [_rounded(getattr(cost, key)) for key in (*_MEASURED, *(f"{part}_s" for part in _PARTS))]
                names = [suite.dataset, suite.model, suite.failure, name, cost.seed]
                rows.append([*names, *measured, "pass" if cost.passed else "fail"])
    return head, rows


def _markdown(suite: SuiteResult) -> list[str]:
    lines = [
        f"# {suite.dataset}, {suite.model}, failures: {suite.failure}",
        "",
        "| variant | goodput, steps/s | restarts | stall, s | write, s | snapshot, s | audit |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, costs in suite.variants.items():
        one = _variant(costs)
        goodput = _interval(Estimate.of([cost.goodput for cost in costs]), 3)
        cells = [
            name,
            goodput,
            f"{one['restarts']:g}",
            *(f"{one[k]:.3f}" for k in ("stall_s", "write_s", "snapshot_s")),
        ]
        lines.append(f"| {' | '.join(cells)} | {one['audit']} |")
    for name, ratio in suite.paired.items():
        lines += ["", f"{name.replace('_', ' ')}: {_interval(ratio, 3)}, {ratio.n} pairs"]
    return lines
