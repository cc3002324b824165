"""The files beside the runs of a matrix: for people, for programs, and for others to publish."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.errors import MissingExtraError
from deepvm.io.atomic_write import write_bytes
from deepvm.lab.audit.publication import publishable
from deepvm.lab.checked import Checked
from deepvm.lab.records import Records
from deepvm.lab.results import SuiteResult
from deepvm.reports.documents import to_csv
from deepvm.reports.lab.analysis import analysis
from deepvm.reports.lab.figures import write_figures
from deepvm.reports.lab.findings import PARTS, Findings, estimate, ranks_words, variant_words
from deepvm.reports.lab.lab_page import PAGE, LabPage
from deepvm.reports.lab.results import (
    COUNTS,
    TIMES,
    interval_words,
    loss_words,
    ratio_words,
    suite_document,
    variant_document,
)

_NAMES = ("dataset", "model", "failure", "variant")
_MEASURED = (
    "goodput",
    "restarts",
    *TIMES,
    *COUNTS,
    *(f"{part}_s" for part in PARTS),
    "loss_difference",
)


@dataclass(frozen=True)
class Written:
    """What has been written. ``missing``: what has not, and why; empty if all is there."""

    suites: Sequence[SuiteResult]
    missing: str = ""


def write_all(out: Path, checked: Checked, records: Sequence[tuple[Records, bool]]) -> Written:
    """Write publishable files, tables, analysis, figures and the page.

    Raises OSError, DataError.
    """
    from deepvm import __version__

    found = Findings.of(out, checked, records)
    names = {publishable(suite, form) for suite in found.suites for form in ("json", "md")}
    for old in out.glob("*_publishable.*"):  # of suites that a matrix before had in this folder
        if old.name not in names:
            old.unlink(missing_ok=True)
    for suite in found.suites:
        text = json.dumps(suite_document(found, suite), indent=1, allow_nan=False)
        write_bytes(out / publishable(suite, "json"), f"{text}\n".encode())
        write_bytes(
            out / publishable(suite, "md"), "\n".join(_markdown(found, suite)).encode() + b"\n"
        )
    write_bytes(out / "summary.csv", to_csv(*_summary(found.suites)).encode())
    write_bytes(out / "detailed_table.csv", to_csv(*_detailed(found)).encode())
    write_bytes(out / "analysis.md", analysis(found).encode())
    missing = ""
    figures: Sequence[str] = ()
    try:
        figures = write_figures(out, found)
    except MissingExtraError as error:
        missing = f"figures 2 to 4 are not written: {error}"
    write_bytes(out / PAGE, LabPage(found, figures, __version__).render().encode())
    return Written(found.suites, missing)


def _summary(suites: Sequence[SuiteResult]) -> tuple[Sequence[str], list[list[Any]]]:
    """A row for each variant of a suite: means over the runs that pass."""
    head = [*_NAMES, "runs", "passed", "goodput", "goodput_low", "goodput_high", *_MEASURED[1:]]
    head += ["over_blocking", "over_blocking_low", "over_blocking_high", "pairs", "audit"]
    rows = []
    for suite in suites:
        for name, costs in suite.variants.items():
            one, ratio = variant_document(costs), suite.paired.get(f"{name}_over_blk")
            goodput = one["goodput"]
            flat = {**one, **{f"{part}_s": one["recovery_s"][part] for part in PARTS}}
            measured = [goodput[key] for key in ("mean", "low", "high")] + [
                flat[key] for key in _MEASURED[1:]
            ]
            pairs = [None] * 4 if ratio is None else [ratio.mean, ratio.low, ratio.high, ratio.n]
            names = [suite.dataset, suite.model, suite.failure, name, len(costs), goodput["n"]]
            rows.append([*names, *measured, *pairs, one["audit"]])
    return head, rows


def _detailed(found: Findings) -> tuple[Sequence[str], list[list[Any]]]:
    """A row for each run, those that do not pass too: they say why."""
    head = [*_NAMES, "seed", "run", *_MEASURED, "audit", "reason"]
    rows = []
    for suite in found.suites:
        for name, costs in suite.variants.items():
            for cost in costs:
                measured = [getattr(cost, key) for key in _MEASURED]
                names = [suite.dataset, suite.model, suite.failure, name, cost.seed, cost.run]
                rows.append(
                    [*names, *measured, "pass" if cost.passed else "fail", found.reason(cost)]
                )
    return head, rows


def _markdown(found: Findings, suite: SuiteResult) -> list[str]:
    config = found.config_of(suite)
    lines = [
        f"# {suite.dataset}, {suite.model}, failures: {suite.failure}",
        "",
        (
            f"Failures: {found.schedule(suite)}. {config['steps']} steps, a checkpoint every"
            f" {config['checkpoint_every']}; ranks: {ranks_words(config)}; global batch"
            f" {config['global_batch']}, launcher {config['launcher']}."
        ),
        "",
        (
            "Means over runs that pass all gates, with the 95 % interval of Student's t; times in"
            " seconds a run."
        ),
        "",
        (
            "| variant | passed | goodput, steps/s | over blocking, paired | restarts | saved |"
            " skipped | stall | drain | write | snapshot | detect | restart | restore | replay |"
            " loss difference |"
        ),
        f"|{'---|' * 16}",
    ]
    for name, costs in suite.variants.items():
        one, ratio = variant_document(costs), suite.paired.get(f"{name}_over_blk")
        times = [
            *(one[key] for key in ("stall_s", "drain_s", "write_s", "snapshot_s")),
            *one["recovery_s"].values(),
        ]
        cells = [
            variant_words(suite, name),
            f"{one['goodput']['n']} of {len(costs)}",
            interval_words(estimate(costs, lambda cost: cost.goodput), 3),
            "-" if ratio is None else ratio_words(ratio),
            *("-" if one[key] is None else f"{one[key]:.4g}" for key in ("restarts", *COUNTS)),
            *("-" if value is None else f"{value:.3f}" for value in times),
            loss_words(one, ".6g"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    left_out = found.left_out(suite)
    if left_out:
        lines += ["", "Left out, because they do not pass all gates:", ""]
        lines += [f"- `{run}`: {why}" for run, why in left_out]
    for doubt in found.doubts():
        lines += ["", doubt]
    return lines
