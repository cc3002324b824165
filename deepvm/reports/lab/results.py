"""What a matrix has shown: documents, and tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deepvm.lab.checked import Checked, gate_names
from deepvm.lab.matrix import NONE, REFERENCES
from deepvm.lab.results import Cost, Estimate, SuiteResult
from deepvm.reports.lab.findings import BASE, PARTS, Findings, estimate, passing, recovery_s
from deepvm.reports.tables import Column, print_lines, print_table

TIMES = (
    "wall_s",
    "compute_s",
    "repeated_s",
    "snapshot_s",
    "write_s",
    "background_s",
    "drain_s",
    "stall_s",
)
COUNTS = ("checkpoints", "skipped")
"""Of a run, besides the parts of its recovery."""


def checked_document(found: Checked) -> dict[str, Any]:
    """Of ``deepvm lab check``."""
    gates = {
        name: dict(zip(("passed", "failed"), found.of_gate(name), strict=True))
        for name in gate_names()
    }
    return {
        "schema_version": "deepvm.lab/1",
        "runs": len(found.runs),
        "passed": found.passed,
        "left_out": list(found.left_out),
        "gates": gates,
        "failures": [
            {"run": run, "gate": gate, "reason": why} for run, gate, why in found.failures
        ],
    }


def report_document(suites: Sequence[SuiteResult]) -> dict[str, Any]:
    """Of ``deepvm lab run`` and ``report``."""
    return {"schema_version": "deepvm.lab-report/1", "suites": [_suite(one) for one in suites]}


def suite_document(found: Findings, suite: SuiteResult) -> dict[str, Any]:
    """Of one suite, with all that others need to judge it; ``*_publishable.json``."""
    config, costs = (
        found.config_of(suite),
        [cost for costs in suite.variants.values() for cost in costs],
    )
    kept = (
        "matrix",
        "dataset_size",
        "worlds",
        "virtual_shards",
        "global_batch",
        "accumulate",
        "steps",
    )
    return {
        "schema_version": "deepvm.lab-suite/1",
        **_suite(suite),
        "config": {
            **{key: config[key] for key in kept},
            "model": dict(config["model"]),
            "checkpoint_every": config["checkpoint_every"],
            "max_inflight": config["max_inflight"],
            "launcher": config["launcher"],
            "failures": found.schedule(suite),
        },
        "environment": dict(found.environment),
        "made": found.made,
        "runs": [
            {
                "run": cost.run,
                "variant": cost.variant,
                "seed": cost.seed,
                "audit": "pass" if cost.passed else "fail",
                "reason": found.reason(cost),
                "final_sha256": found.finals.get(cost.run),
            }
            for cost in costs
        ],
    }


def _suite(found: SuiteResult) -> dict[str, Any]:
    return {
        "dataset": found.dataset,
        "model": found.model,
        "failure": found.failure,
        "variants": {name: variant_document(costs) for name, costs in found.variants.items()},
        "paired": {name: _ratio(one) for name, one in found.paired.items()},
    }


def variant_document(costs: Sequence[Cost]) -> dict[str, Any]:
    """A variant of a suite: means over the runs that pass, null if none does."""
    good = passing(costs)
    goodput = estimate(costs, lambda cost: cost.goodput)
    differences = [cost.loss_difference for cost in good if cost.loss_difference is not None]
    return {
        "goodput": _rounded_all(asdict(goodput))
        if goodput
        else {"mean": None, "low": None, "high": None, "n": 0},
        "restarts": _mean(cost.restarts for cost in good),
        **{key: _mean(getattr(cost, key) for cost in good) for key in (*TIMES, *COUNTS)},
        "recovery_s": {part: _mean(getattr(cost, f"{part}_s") for cost in good) for part in PARTS},
        "loss_difference": _mean(differences),
        "diverged": sum(cost.diverged for cost in good),
        "runs": len(costs),
        "audit": "pass" if len(good) == len(costs) else "fail",
    }


def _ratio(found: Estimate) -> dict[str, Any]:
    return _rounded_all({"ratio": found.mean, "low": found.low, "high": found.high, "n": found.n})


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    found = [value for value in values if value is not None]
    return round(sum(found) / len(found), 6) if found else None


def _rounded_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()
    }


def listing_document(found: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Of ``deepvm lab list``."""
    rows = [
        {"kind": kind, "name": name, "what": what}
        for kind, names in found.items()
        for name, what in names.items()
    ]
    return {"schema_version": "deepvm.lab-list/1", "entries": rows}


# --- tables ---------------------------------------------------------------------------------------


def print_checked(found: Checked) -> None:
    """Each gate, and what is wrong."""
    head = [Column("gate"), Column("passed", "right"), Column("failed", "right")]
    print_table(head, [[name, *map(str, found.of_gate(name))] for name in gate_names()])
    print_lines([passed_words(found)])
    if found.failures:
        print_lines([""])
        print_table(
            [Column("run"), Column("gate"), Column("what is wrong")],
            [list(row) for row in found.failures],
        )


def passed_words(found: Checked) -> str:
    """How many runs pass."""
    rest = f"; {len(found.left_out)} more of the matrix were left out" if found.left_out else ""
    return f"{found.passed} of {len(found.runs)} runs pass all gates{rest}"


def print_run(checked: Checked, suites: Sequence[SuiteResult]) -> None:
    """What each variant has cost in each suite, and the paired ratios."""
    head = [
        Column("suite"),
        Column("variant", wrap=False),
        Column("runs", "right", drop=6),
        Column("steps/s", "right", drop=1),
        Column("steps/s 95 %", "right", drop=5),
        Column("restarts", "right", drop=7),
        Column("saved", "right", drop=8),
        Column("skipped", "right", drop=9),
        Column("drain s", "right", drop=10),
        Column("stall s", "right", drop=3),
        Column("recovery s", "right", drop=4),
        Column("over blocking", "right"),
        Column("ratio 95 %", "right", drop=2),
        Column("audit"),
    ]
    rows = []
    for suite in suites:
        for place, (name, costs) in enumerate(suite.variants.items()):
            good, ratio = passing(costs), suite.paired.get(f"{name}_over_{BASE}")
            goodput, stall = (
                estimate(costs, of) for of in (lambda c: c.goodput, lambda c: c.stall_s)
            )
            restarts = _mean(cost.restarts for cost in good)
            recovery = _mean(_all_recovered_s(cost) for cost in good)
            saved, skipped, drain = (
                _mean(getattr(c, key) for c in good) for key in (*COUNTS, "drain_s")
            )
            rows.append(
                [
                    "" if place else f"{suite.dataset} {suite.model} {suite.failure}",
                    name,
                    str(len(good)) if len(good) == len(costs) else f"{len(good)} of {len(costs)}",
                    "-" if goodput is None else f"{goodput.mean:.2f}",
                    _ends_words(goodput, 2),
                    "-" if restarts is None else f"{restarts:g}",
                    "-" if saved is None else f"{saved:.4g}",
                    "-" if skipped is None else f"{skipped:.4g}",
                    "-" if drain is None else f"{drain:.3f}",
                    "-" if stall is None else f"{stall.mean:.3f}",
                    f"{recovery:.2f}" if restarts and recovery is not None else "",
                    "" if ratio is None else f"{ratio.mean:.3f}" + _alone(ratio),
                    _ends_words(ratio, 3),
                    "pass" if len(good) == len(costs) else "fail",
                ]
            )
    print_table(head, rows, also="-o csv")
    names = {name for suite in suites for name in suite.variants}
    calm = [name for name in (NONE, *REFERENCES) if name in names]
    print_lines(
        [*([f"without failures: {', '.join(calm)}"] if calm else []), passed_words(checked)]
    )


def _all_recovered_s(cost: Cost) -> float | None:
    one = recovery_s(cost)
    return None if one is None else one * cost.restarts


def _alone(found: Estimate) -> str:
    """The mark of a number that has no interval: it says little."""
    return f" (n = {found.n})" if found.low is None else ""


def loss_words(variant: Mapping[str, Any], form: str) -> str:
    """The loss difference of a variant's document, and whether runs have diverged."""
    said = [] if variant["loss_difference"] is None else [format(variant["loss_difference"], form)]
    said += [f"{variant['diverged']} diverged"] if variant["diverged"] else []
    return ", ".join(said) or "-"


def ratio_words(found: Estimate) -> str:
    """A ratio with its interval, and of how many pairs of runs it is."""
    text = interval_words(found, 3)
    return text if found.low is None else f"{text}, n = {found.n}"


def _ends_words(found: Estimate | None, digits: int) -> str:
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{found.low:.{digits}f} to {found.high:.{digits}f}"


def interval_words(found: Estimate | None, digits: int) -> str:
    """A mean and its interval, or how many values it is of; a dash without any."""
    if found is None:
        return "-"
    text = f"{found.mean:.{digits}f}"
    if found.low is None or found.high is None:
        return text + _alone(found)
    return f"{text} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def print_listing(found: Mapping[str, Mapping[str, str]]) -> None:
    """What a matrix file can name."""
    rows = [
        ["" if place else kind, name, what]
        for kind, names in found.items()
        for place, (name, what) in enumerate(names.items())
    ]
    print_table([Column("kind", drop=1), Column("name"), Column("what")], rows, also="-o csv")
