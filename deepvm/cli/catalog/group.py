"""``deepvm catalog``: look at catalogs, check and convert one's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepvm.cli.catalog.refresh import refresh
from deepvm.cli.catalog.status import status
from deepvm.cli.help.completion import complete_catalog
from deepvm.cli.output import Output, OutputOrWide, print_as, print_document, say, warn
from deepvm.cli.parameters import arg, flag, group, takes_flags
from deepvm.cli.plan.options import load, load_measured
from deepvm.cli.settings import ConfiguredCommand
from deepvm.core.units import counted
from deepvm.errors import RequestError
from deepvm.services.plan_options import MeasuredOptions, SourceOptions

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog, InstanceType
    from deepvm.reports.tables import Column

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
    old: Annotated[str, arg("OLD", A_CATALOG, autocompletion=complete_catalog)],
    new: Annotated[str, arg("NEW", "The one to compare it with.", autocompletion=complete_catalog)],
    flags: SourceOptions,
    output: Output = "table",
    fail_on_change: Annotated[
        bool, flag("--fail-on-change", "Exit code 1 when anything changed.")
    ] = False,
) -> None:
    """Show what changed between two catalogs: types, prices (the largest change in % first) and figures.

    Example: deepvm catalog diff yesterday.json today.json
    """
    from deepvm.catalog.diff import diff_catalogs
    from deepvm.reports.prices import diffs

    found = diff_catalogs(load(old, flags), load(new, flags))
    table, document = lambda: diffs.print_report(found, old, new), lambda: diffs.document(found)
    print_as(output, table, document, lambda: diffs.csv_rows(found))
    if fail_on_change and not found.empty:
        raise typer.Exit(1)  # as of `git diff --exit-code`


@app.command("list", short_help="List the catalogs that come with deepvm.")
def list_catalogs(output: Output = "table") -> None:
    """List the catalogs that come with deepvm.

    'deepvm catalog status' shows what was fetched from AWS.
    """
    from deepvm.catalog.store import catalog_names, load_catalog
    from deepvm.reports.tables import Column, print_table

    columns = {
        "catalog": Column("name"),
        "gpu_type_count": Column("GPU types", "right", drop=2),
        "cpu_type_count": Column("CPU types", "right", drop=3),
        "region": Column("region", drop=1),
        "prices_as_of": Column("prices as of"),
        "description": Column("description", drop=4),
    }
    rows: list[list[Any]] = []
    for catalog in (load_catalog(name, prices="snapshot") for name in catalog_names()):
        as_of, gpus = catalog.provenance.prices_as_of, _gpu_types(catalog)
        date = None if as_of is None else as_of.isoformat()
        rows.append(
            [
                catalog.name,
                gpus,
                len(catalog) - gpus,
                catalog.region or None,
                date,
                catalog.description,
            ]
        )
    cells = [["-" if v in (None, "") else str(v) for v in row] for row in rows]
    # The first sentence says what it is; all of it is in the other forms.
    shown = [[*row[:-1], row[-1].split(". ")[0].rstrip(".")] for row in cells]
    print_as(
        output,
        lambda: print_table([*columns.values()], shown, also="-o csv"),
        lambda: {
            "schema_version": "deepvm.catalogs/1",
            "catalogs": [dict(zip(columns, row, strict=True)) for row in rows],
        },
    )


@app.command(cls=ConfiguredCommand, short_help="Show the types of a catalog with their prices.")
@takes_flags
def show(
    catalog: Annotated[str, arg("NAME|FILE", A_CATALOG, autocompletion=complete_catalog)],
    flags: MeasuredOptions,
    output: OutputOrWide = "table",
) -> None:
    """Show the types of a catalog with their prices and performance, including your own measurements.

    json and csv are the formats of catalog files: redirect, edit, use.
    """
    loaded = load_measured(catalog, flags)
    if output in ("table", "wide"):
        _print_types(loaded, wide=output == "wide")
    elif output == "yaml":
        from deepvm.catalog.serialization import document_of

        print_document(document_of(loaded), "yaml")
    else:
        from deepvm.catalog.store import format_catalog

        text, left_out = format_catalog(loaded, f".{output}")
        sys.stdout.write(text)
        _warn(catalog, left_out)


@app.command()
def validate(file: Annotated[str, arg("FILE", "A .json or .csv catalog.")]) -> None:
    """Check a catalog and name every problem.

    Exit code 0 with a summary, or 4 with the place of every problem, what was found and what is
    allowed.
    """
    from deepvm.catalog.lint import catalog_warnings
    from deepvm.catalog.store import load_catalog

    loaded = load_catalog(file)
    sys.stdout.write(f"{file}: ok, {_counted(loaded)}\n")
    for doubt in loaded.provenance.doubts:  # names the file, and the place of the price
        warn(doubt)
    _warn(file, catalog_warnings(loaded))


@app.command(cls=ConfiguredCommand)
@takes_flags
def convert(
    given: Annotated[str, arg("IN", A_CATALOG, autocompletion=complete_catalog)],
    target: Annotated[str, arg("OUT", "Output file; .json or .csv decides the format.")],
    flags: SourceOptions,
    force: Annotated[bool, flag("--force", "Overwrite OUT if it exists.")] = False,
) -> None:
    """Write a catalog as JSON or as CSV."""
    from deepvm.catalog.store import ENDINGS, save_catalog

    if os.path.splitext(target)[1].lower() not in ENDINGS:
        raise RequestError("OUT", target, "a file name that ends in .json or .csv")
    if os.path.lexists(target) and not force:
        raise RequestError(
            "OUT", target, "a file that does not exist yet, or --force to overwrite it"
        )
    loaded = load(given, flags)
    left_out = save_catalog(loaded, target)
    say(f"{target}: written, {_counted(loaded)}")
    _warn(target, left_out)


@app.command(short_help="Print the JSON Schema of catalog files.")
def schema() -> None:
    """Print the JSON Schema of catalog files, as 'deepvm schema catalog' does."""
    from deepvm.services.schemas import described

    print_document(described("catalog").schema("catalog"))


def _gpu_types(catalog: Catalog) -> int:
    return sum(1 for i in catalog if i.gpu is not None)


def _counted(catalog: Catalog) -> str:
    gpus = _gpu_types(catalog)
    return f"{counted(len(catalog), 'instance type')} ({gpus} GPU, {len(catalog) - gpus} CPU)"


def _warn(name: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        warn(f"{name}: {warning}")


def _print_types(catalog: Catalog, *, wide: bool) -> None:
    from deepvm.core.cluster.instances import flopp
    from deepvm.reports.plans.sources import measured_lines, source_line
    from deepvm.reports.tables import Column, print_table

    def usd(price: object) -> str:
        return "-" if price is None else f"{price:f}"

    def per_dollar(i: InstanceType) -> str:
        spot = i.spot_usd_per_hour
        return "-" if i.eflops is None or spot is None else f"{flopp(i.eflops, float(spot)):.4g}"

    def curves(i: InstanceType) -> str:
        general = [c.kind for c in i.speedups if c.workload is None]
        others = len(i.speedups) - len(general)
        return " ".join([*general, *([f"+{others} by workload"] if others else [])]) or "-"

    shown: list[tuple[Column, Callable[[InstanceType], str]]] = [
        (Column("type"), lambda i: i.name),
        (Column("kind", drop=8), lambda i: "CPU" if i.gpu is None else "GPU"),
        (
            Column("GPU", drop=2, wrap=False),
            lambda i: "-" if i.gpu is None else f"{i.gpu.count} x {i.gpu.name}",
        ),
        (Column("vCPU", "right", drop=5), lambda i: str(i.vcpus)),
        (Column("GiB", "right", drop=4), lambda i: _number(i.memory_gib)),
        (Column("Gbps", "right", drop=6), lambda i: _number(i.network_gbps)),
        (Column("on-demand $/h", "right"), lambda i: usd(i.on_demand_usd_per_hour)),
        (Column("spot $/h", "right"), lambda i: usd(i.spot_usd_per_hour)),
        (Column("eFLOPS", "right", drop=1), lambda i: _number(i.eflops)),
        (Column("FLOPP spot (op/$)", "right", drop=3), per_dollar),
        (Column("curves", drop=7), curves),
    ]
    if wide:
        shown += [
            (
                Column("GPU GiB", "right", drop=9),
                lambda i: _number(None if i.gpu is None else i.gpu.memory_gib),
            ),
            (Column("quota family", drop=10), lambda i: i.quota_family),
            (Column("note", drop=11), lambda i: i.note or "-"),
        ]
    print_table([column for column, _ in shown], [[cell(i) for _, cell in shown] for i in catalog])
    as_of, now = catalog.provenance.prices_as_of, datetime.now(timezone.utc)
    facts = [
        f"{catalog.name}: {_counted(catalog)}",
        f"region {catalog.region}" if catalog.region else "no region",
        f"prices as of {as_of}" if as_of else "prices without a date",
        f"default curve {catalog.default_speedup}",
        f"eFLOPS in {catalog.eflops_unit}",
    ]
    source = catalog.provenance.source
    lines = ["; ".join(facts), *([f"source: {source}"] if source else [])]
    if catalog.provenance.origins:
        lines.append(source_line(catalog, now))
    for line in (*lines, *measured_lines(catalog, now)):
        say(line)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"
