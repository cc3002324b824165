"""``deepvm catalog diff``: what changed between two catalogs."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from deepvm.cli.option_dataclass import takes_flags
from deepvm.cli.plan.source_options import SourceFlags

CHANGED = 1
"""Exit code of ``--fail-on-change`` when something changed, as ``diff`` and ``git diff --exit-code`` have it."""


@takes_flags
def diff(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="AWS's market, an embedded catalog, or a .json or .csv file.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The one to compare it with.")],
    flags: SourceFlags,
    output: Annotated[
        Literal["table", "json", "csv"], typer.Option("--output", "-o", help="How to print the answer.")
    ] = "table",
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Leave with exit code 1 when anything changed.")
    ] = False,
) -> None:
    """Show what changed between two catalogs: types, prices (the largest change in % first) and figures.

    Example: deepvm catalog diff yesterday.json today.json
    """
    from deepvm.catalog.diff import diff_catalogs
    from deepvm.reports import documents
    from deepvm.reports.prices import diffs

    found = diff_catalogs(flags.load(old), flags.load(new))
    if output == "json":
        sys.stdout.write(documents.to_json(diffs.document(found)))
    elif output == "csv":
        sys.stdout.write(documents.to_csv(*diffs.csv_rows(found)))
    else:
        diffs.print_report(found, old, new)
    if fail_on_change and not found.empty:
        raise typer.Exit(CHANGED)
