"""The results of a matrix as a page for a browser: one file, no network, no scripts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.lab.audit.gates import GATES
from deepvm.lab.audit.publication import publishable
from deepvm.lab.matrix import CALM
from deepvm.lab.results import Estimate, SuiteResult, Variant
from deepvm.reports.charts import Scale
from deepvm.reports.lab.columns import COSTS, RECOVERY, Columns, format_pairs
from deepvm.reports.lab.comparison import FACTORS, accepted
from deepvm.reports.lab.figures import over_reference, suite_name
from deepvm.reports.lab.scales import ratio_scale
from deepvm.reports.lab.summary import REFERENCES, LabSummary, label
from deepvm.reports.pages import render

TIME = {
    "compute": "steps that count",
    "recompute": "repeated steps",
    "save": "stalls of checkpoints",
    "detect": "until a failure is detected",
    "restart": "until ranks are back",
    "restore": "restoring",
    "rest": "the rest: first start, waits for other ranks, steps that failures cut off",
}
"""Parts of a run's time that exclude one another, by style."""


def lab_page(summary: LabSummary, figures: Sequence[str] = (), version: str = "") -> str:
    """The whole page, in ASCII. ``figures``: files of pictures to link to."""
    factors = {name: summary.values(of) for name, (of, _) in FACTORS.items()}
    factors["seeds"] = summary.values(lambda config: config["seed"])
    overall = {suite_name(suite): over_reference(summary, suite) for suite in summary.suites}
    return render(
        "lab_page.html.j2",
        summary=summary,
        figures=figures,
        matrices=summary.values(lambda config: config["matrix"]),
        version=version,
        gates={name: (inspect.getdoc(gate) or "").split("\n")[0] for name, gate in GATES.items()},
        failing=_failing(summary),
        references=REFERENCES,
        suites=[_suite(summary, suite) for suite in summary.suites],
        time=TIME,
        time_keys=[(f"share {style}", text) for style, text in TIME.items()],
        overall={suite: _ratios(ratios) for suite, ratios in overall.items() if ratios},
        overall_scale=ratio_scale(one for ratios in overall.values() for one in ratios.values()),
        compared=_compared(summary),
        factors=[(name, ", ".join(values)) for name, values in factors.items()],
        ratio_scale=ratio_scale,
        Scale=Scale,
    )


def _failing(summary: LabSummary) -> Mapping[str, list[tuple[str, str]]]:
    """By run, the gates that fail with their reasons; later ones often follow from the first."""
    gates: dict[str, list[tuple[str, str]]] = {}
    for run, gate, reason in summary.checked.failures:
        gates.setdefault(run, []).append((gate, reason))
    return gates


def _suite(summary: LabSummary, suite: SuiteResult) -> Mapping[str, Any]:
    variants = suite.variants.values()
    recovered = [one for one in variants if suite.failure != CALM and one.mean("restarts")]
    ratios = {one.name: one.over_blocking for one in variants if one.over_blocking is not None}
    return {
        "name": suite_name(suite),
        "schedule": summary.schedule(suite),
        "ratios": _ratios(ratios),
        "costs": [[label(suite, one), one.verdict, *_cells(COSTS, one)] for one in variants],
        "cost_header": ["variant", "audit", *COSTS],
        "time": {one.name: _time(one) for one in variants if one.passing},
        "recovery": [[one.name, *_cells(RECOVERY, one)] for one in recovered],
        "recovery_header": ["variant", *RECOVERY],
        "left_out": summary.left_out(suite),
        "files": [publishable(suite, form) for form in ("json", "md")],
    }


def _cells(columns: Columns, variant: Variant) -> list[str]:
    return [cell(variant) for cell in columns.values()]


def _ratios(ratios: Mapping[str, Estimate]) -> list[tuple[str, Estimate, str]]:
    """What a forest plot shows: name, ratio, and its tip."""
    return [(name, ratio, f"{name}: {format_pairs(ratio)}") for name, ratio in ratios.items()]


def _time(variant: Variant) -> Mapping[str, float]:
    """Seconds of a run by part, see :data:`TIME`."""
    repeated_s = variant.mean("repeated_s") or 0.0
    parts = {"compute": (variant.mean("compute_s") or 0.0) - repeated_s, "recompute": repeated_s}
    parts["save"] = variant.mean("stall_s") or 0.0
    for part in ("detect", "restart", "restore"):
        parts[part] = variant.mean(f"{part}_s") or 0.0
    rest_s = (variant.mean("wall_s") or 0.0) - sum(parts.values())
    return {**parts, "rest": max(rest_s, 0.0)}


def _compared(summary: LabSummary) -> Mapping[str, Any]:
    """Overlapped against blocking, by suite."""
    suites = {suite_name(one.suite): one for one in accepted(summary)}
    return {
        "gains": _ratios({name: one.gain for name, one in suites.items()}),
        "points": [(one.saved_stall_s, one.gain_percent, name) for name, one in suites.items()],
    }
