"""``deepvm catalog``: fetch, list, show, compare, validate and convert catalogs."""

import os
import sys
from collections.abc import Sequence

import typer

from deepvm.cli.catalog.refresh import refresh, status
from deepvm.cli.output import (
    Output,
    OutputOrWide,
    print_as,
    print_document,
    print_named,
    say,
    text,
    utc_now,
    warn,
)
from deepvm.cli.parameters import arg, flag, group, takes_flags
from deepvm.cli.plan.options import load, load_measured
from deepvm.cli.settings import ConfiguredCommand
from deepvm.errors import RequestError
from deepvm.services.plan_options import MeasuredOptions, SourceOptions

A_CATALOG = "AWS's market, an embedded catalog, or a .json or .csv file."

app = group(
    "Refresh, list, show, compare, validate and convert catalogs of instance types and prices."
)
app.command(
    "refresh", cls=ConfiguredCommand, short_help="Fetch prices, types and quotas from AWS now."
)(refresh)
app.command(
    "status", cls=ConfiguredCommand, short_help="Show the cache of AWS's prices and types."
)(status)


@app.command(cls=ConfiguredCommand, short_help="Show what changed between two catalogs.")
@takes_flags
def diff(
    old: str = arg("OLD", A_CATALOG, complete="complete_catalog"),
    new: str = arg("NEW", "The one to compare it with.", complete="complete_catalog"),
    *,
    flags: SourceOptions,
    output: Output = "table",
    fail_on_change: bool = flag("--fail-on-change", "Exit code 1 when anything changed."),
) -> None:
    """Show what changed between two catalogs: types, prices and figures.

    Prices are sorted by their change in %, the largest first.

    Example: deepvm catalog diff yesterday.json today.json
    """
    from deepvm.catalog.diff import diff_catalogs
    from deepvm.reports.prices.types import csv_rows

    changes = diff_catalogs(load(old, flags), load(new, flags))
    print_named(
        output,
        text("catalog_diff", diff=changes, old=old, new=new),
        "diff",
        changes,
        lambda: csv_rows(changes),
    )
    if fail_on_change and not changes.empty:
        raise typer.Exit(1)  # as of `git diff --exit-code`


@app.command("list", short_help="List the catalogs that come with deepvm.")
def list_catalogs(output: Output = "table") -> None:
    """List the catalogs that come with deepvm.

    'deepvm catalog status' shows what was fetched from AWS.
    """
    from deepvm.catalog.store import catalog_names, load_catalog
    from deepvm.documents.build import document_of

    catalogs = [load_catalog(name, prices="snapshot") for name in catalog_names()]
    document = document_of("prices.Catalogs", {"catalogs": catalogs})
    table = text("catalog_list", also="-o csv", catalogs=document["catalogs"])
    print_as(output, table, lambda: document)


@app.command(cls=ConfiguredCommand, short_help="Show the types of a catalog with their prices.")
@takes_flags
def show(
    catalog: str = arg("NAME|FILE", A_CATALOG, complete="complete_catalog"),
    *,
    flags: MeasuredOptions,
    output: OutputOrWide = "table",
) -> None:
    """Show the types of a catalog with their prices and performance.

    Your own measurements are included. json and csv are the formats of catalog files: redirect,
    edit, use.
    """
    loaded = load_measured(catalog, flags)
    if output in ("table", "wide"):
        from deepvm.reports.prices.types import about_lines, print_types

        print_types(loaded, wide=output == "wide")
        for line in about_lines(loaded, utc_now()):
            say(line)
    elif output == "yaml":
        from deepvm.catalog.serialization import document_of

        print_document(document_of(loaded), "yaml")
    else:
        from deepvm.catalog.store import format_catalog

        text, left_out = format_catalog(loaded, f".{output}")
        sys.stdout.write(text)
        _warn(catalog, left_out)


@app.command()
def validate(file: str = arg("FILE", "A .json or .csv catalog.")) -> None:
    """Check a catalog and name every problem.

    Exit code 0 with a summary, or 4 with the location, the value and the expected form of every
    problem.
    """
    from deepvm.catalog.catalog_files import catalog_warnings
    from deepvm.catalog.store import load_catalog
    from deepvm.reports.prices.types import type_counts

    loaded = load_catalog(file)
    sys.stdout.write(f"{file}: ok, {type_counts(loaded)}\n")
    for doubt in loaded.provenance.doubts:  # each names the file and the price
        warn(doubt)
    _warn(file, catalog_warnings(loaded))


@app.command(cls=ConfiguredCommand)
@takes_flags
def convert(
    given: str = arg("IN", A_CATALOG, complete="complete_catalog"),
    target: str = arg("OUT", "Output file; .json or .csv decides the format."),
    *,
    flags: SourceOptions,
    force: bool = flag("--force", "Overwrite OUT if it exists."),
) -> None:
    """Write a catalog as JSON or as CSV."""
    from deepvm.catalog.clouds import CATALOG_ENDINGS
    from deepvm.catalog.store import save_catalog
    from deepvm.reports.prices.types import type_counts

    if os.path.splitext(target)[1].lower() not in CATALOG_ENDINGS:
        raise RequestError("OUT", target, "a file name that ends in .json or .csv")
    if os.path.lexists(target) and not force:
        allowed = "a file that does not exist yet, or --force to overwrite it"
        raise RequestError("OUT", target, allowed)
    loaded = load(given, flags)
    left_out = save_catalog(loaded, target)
    say(f"{target}: written, {type_counts(loaded)}")
    _warn(target, left_out)


@app.command(short_help="Print the JSON Schema of catalog files.")
def schema() -> None:
    """Print the JSON Schema of catalog files, as 'deepvm schema catalog' does."""
    from deepvm.services.schemas import described

    print_document(described("catalog").schema("catalog"))


def _warn(name: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        warn(f"{name}: {warning}")
