"""``deepvm reproduce``: recompute the figures of the papers."""

from __future__ import annotations

from typing import Literal

import typer

from deepvm.cli.output import Output, note, print_as, say
from deepvm.cli.parameters import arg, opt
from deepvm.errors import missing_extra


def reproduce(
    paper: Literal["deepvm", "thesis", "scaling", "all"] = arg(
        "[PAPER]", "deepvm, thesis, scaling or all of them.", "all"
    ),
    only: Literal["same", "close", "differs"] | None = opt(
        None, "Show only the figures with this verdict; all are computed."
    ),
    output: Output = "table",
) -> None:
    """Compute the figures of the papers again: published, ours, the difference, a verdict.

    deepvm: the tables and figures of DeepVM, by the planner. thesis: tables 6.2 and 6.3 of the
    Spotify thesis, by the simulator. scaling: laws of scaling, fitted to published speed-ups and
    steps; needs the extra fit, and is left out of all of them without it.

    Verdicts: same, to the printed digits; close, within a tolerance that has a reason; differs.
    Exit code 1 if a figure differs and that is not known.

    Example: deepvm reproduce thesis -o csv
    """
    from deepvm.cli.long_runs import Progress
    from deepvm.reports.reproduction import comparisons as report
    from deepvm.reports.reproduction import papers

    names = _computable() if paper == "all" else [paper]
    with Progress(papers.parts_of(names), "tables") as progress:
        results = papers.reproduce(names, only, progress=progress.advance)
    print_as(
        output,
        lambda: report.print_reproductions(results),
        lambda: report.document(results),
        lambda: report.csv_rows(results),
    )
    unexpected = [figure for paper in results for figure in paper.unexpected]
    for part, own in unexpected:
        say(f"Not expected: {part.id}, {own.name}: {own.shown}, not {own.published}")
    if unexpected:
        raise typer.Exit(1)


def _computable() -> list[str]:
    """The papers whose libraries are installed; a note names the others."""
    from deepvm.reports.reproduction.papers import PAPERS, computations

    names = []
    for name in PAPERS:
        try:
            computations(name)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            note(f"{name} is left out: {missing}")
        else:
            names.append(name)
    return names
