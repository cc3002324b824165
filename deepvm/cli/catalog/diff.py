"""``deepvm catalog diff``: what changed between two catalogs."""

from __future__ import annotations

from typing import Annotated

import typer

from deepvm.cli.option_dataclass import takes_flags
from deepvm.cli.output import TableJsonCsv, print_csv, print_document
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
    output: TableJsonCsv = "table",
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Leave with exit code 1 when anything changed.")
    ] = False,
) -> None:
    """Show what changed between two catalogs: types, prices (the largest change in % first) and figures.

    Example: deepvm catalog diff yesterday.json today.json
    """
    from deepvm.catalog.diff import diff_catalogs
    from deepvm.reports.prices import diffs

    found = diff_catalogs(flags.load(old), flags.load(new))
    if output == "json":
        print_document(diffs.document(found))
    elif output == "csv":
        print_csv(*diffs.csv_rows(found))
    else:
        diffs.print_report(found, old, new)
    if fail_on_change and not found.empty:
        raise typer.Exit(CHANGED)
