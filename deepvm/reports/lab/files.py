"""The files next to the runs of a matrix: for people, for programs, and for others to publish."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deepvm.documents.build import document_of
from deepvm.documents.computed import MEANS
from deepvm.documents.values import With
from deepvm.errors import MissingExtraError
from deepvm.io.atomic_write import write_bytes
from deepvm.lab.audit.publication import publishable
from deepvm.lab.results import BLOCKING, Estimate, SuiteResult
from deepvm.reports.documents import to_csv
from deepvm.reports.lab.comparison import analysis
from deepvm.reports.lab.figures import write_figures
from deepvm.reports.lab.lab_page import lab_page
from deepvm.reports.lab.summary import LabSummary
from deepvm.reports.pages import render_markdown

PAGE = "report.html"
_NAMES = ("dataset", "model", "failure", "variant")


def write_all(out: Path, summary: LabSummary) -> str:
    """Write publishable files, tables, analysis, figures and the page; returns what is missing.

    Raises OSError, DataError.
    """
    names = {publishable(suite, form) for suite in summary.suites for form in ("json", "md")}
    for old in out.glob("*_publishable.*"):  # of an earlier matrix in this folder
        if old.name not in names:
            old.unlink(missing_ok=True)
    from deepvm import __version__

    figures: Sequence[str] = ()
    missing = ""
    try:
        # All other files can be written without matplotlib
        figures = write_figures(out, summary)
    except MissingExtraError as error:
        missing = f"figures 2 to 4 are not written: {error}"
    for name, text in _texts(summary):
        write_bytes(out / name, text.encode())
    write_bytes(out / PAGE, lab_page(summary, figures, __version__).encode())
    return missing


def _texts(summary: LabSummary) -> Iterator[tuple[str, str]]:
    for suite in summary.suites:
        document = suite_document(summary, suite)
        yield publishable(suite, "json"), f"{json.dumps(document, indent=1, allow_nan=False)}\n"
        config = summary.config_of(suite)
        text = render_markdown("suite.md.j2", summary=summary, suite=suite, config=config)
        yield publishable(suite, "md"), text
    yield "summary.csv", to_csv(*_summary(summary.suites))
    yield "detailed_table.csv", to_csv(*_detailed(summary))
    yield "analysis.md", analysis(summary)


def suite_document(summary: LabSummary, suite: SuiteResult) -> dict[str, Any]:
    """One suite, with all that others need to judge it."""
    config = {**summary.config_of(suite), "failures": summary.schedule(suite)}
    made = {"environment": summary.environment, "made": summary.made}
    return document_of(
        "lab.PublishedSuite", With(suite, **made, config=config, runs=_runs(summary, suite))
    )


def _summary(suites: Sequence[SuiteResult]) -> tuple[Sequence[str], list[list[Any]]]:
    """A row for each variant of a suite: means over the runs that pass."""
    header = [*_NAMES, "runs", "passed", "goodput", "goodput_low", "goodput_high", *MEANS]
    header += ["over_blocking", "over_blocking_low", "over_blocking_high", "pairs", "audit"]
    rows = []
    for suite in suites:
        for variant in suite.variants.values():
            names = [suite.dataset, suite.model, suite.failure, variant.name]
            runs = [len(variant.costs), len(variant.passing)]
            figures = [*_values(variant.estimate("goodput")), *map(variant.mean, MEANS)]
            ratio = suite.over(BLOCKING).get(variant.name)
            over = [*_values(ratio), ratio and ratio.n]
            rows.append([*names, *runs, *map(_rounded, figures), *over, variant.verdict])
    return header, rows


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _values(estimate: Estimate | None) -> list[float | None]:
    if estimate is None:
        return [None] * 3
    return [estimate.mean, estimate.low, estimate.high]


def _detailed(summary: LabSummary) -> tuple[Sequence[str], list[list[Any]]]:
    """A row for each run, with the reason if it does not pass."""
    header = [*_NAMES, "seed", "run", "goodput", *MEANS, "audit", "reason"]
    runs = [run for suite in summary.suites for run in _runs(summary, suite)]
    return header, [[run[name] for name in header] for run in runs]


def _runs(summary: LabSummary, suite: SuiteResult) -> list[dict[str, Any]]:
    """What is known of each run."""
    return [
        {
            **vars(suite),
            **vars(cost),
            "audit": "pass" if cost.passed else "fail",
            "reason": summary.reason(cost),
            "final_sha256": summary.finals.get(cost.run),
        }
        for cost in suite.costs
    ]
