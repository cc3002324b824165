"""``deepvm reproduce``: recompute the figures of the papers."""

from typing import Literal

import typer

from deepvm.cli.output import Output, note, print_named, say, text
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
    from deepvm.reports.reproduction import papers

    if paper == "all":
        names = _computable()
    else:
        names = [paper]
    with Progress(papers.parts_of(names), "tables") as progress:
        results = papers.reproduce(names, only, progress=progress.advance)
    table = text("reproduce", also="-o csv", papers=results, reasons=papers.reasons)
    values = {"papers": results}
    print_named(output, table, "reproduce", values, lambda: papers.csv_rows(results))
    unexpected = [figure for paper in results for figure in paper.unexpected]
    for part, own in unexpected:
        say(f"Not expected: {part.id}, {own.name}: {own.shown}, not {own.published}")
    if unexpected:
        raise typer.Exit(1)


def _computable() -> list[str]:
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
