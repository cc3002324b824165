"""``deepvm catalog``: look at catalogs, check and convert one's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepvm.cli.catalog.diff import diff
from deepvm.cli.catalog.refresh import refresh, status
from deepvm.cli.configured import ConfiguredCommand
from deepvm.cli.option_dataclass import takes_flags
from deepvm.cli.output import EveryForm, TableJsonYamlCsv, print_csv, print_document
from deepvm.cli.plan.source_options import ShowFlags, SourceFlags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepvm.core.cluster.instances import Catalog, InstanceType
    from deepvm.reports.tables import Column

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Refresh, list, show, compare, validate and convert catalogs of instance types and prices.",
)
app.command("refresh", cls=ConfiguredCommand, short_help="Fetch prices, types and quotas from AWS now.")(refresh)
app.command("status", cls=ConfiguredCommand, short_help="Show what is kept of AWS's prices and types.")(status)
app.command("diff", cls=ConfiguredCommand, short_help="Show what changed between two catalogs.")(diff)


@app.command("list", short_help="List the catalogs that come with deepvm.")
def list_catalogs(
    output: TableJsonYamlCsv = "table",
) -> None:
    """List the catalogs that come with deepvm; what was fetched from AWS is in 'deepvm catalog status'."""
    from deepvm.catalog.store import catalog_names, load_catalog

    rows = [_summary(load_catalog(name, prices="snapshot")) for name in catalog_names()]
    if output == "table":
        from deepvm.reports.tables import Column, print_table

        columns = [
            Column("name"),
            Column("GPU types", "right", drop=2),
            Column("CPU types", "right", drop=3),
            Column("region", drop=1),
            Column("prices as of"),
            Column("description", drop=4),
        ]
        cells = [["-" if v in (None, "") else str(v) for v in row.values()] for row in rows]
        # The first sentence says what it is; all of it is in the other forms.
        shown = [[*row[:-1], row[-1].split(". ")[0].rstrip(".")] for row in cells]
        print_table(columns, shown, also="-o csv")
        return
    if output == "csv":
        print_csv(list(rows[0]) if rows else [], [list(row.values()) for row in rows])
    elif output == "yaml":
        print_document({"catalogs": rows}, output)
    else:
        print_document({"schema_version": "deepvm.catalogs/1", "catalogs": rows})


@app.command(cls=ConfiguredCommand, short_help="Show the types of a catalog with their prices.")
@takes_flags
def show(
    catalog: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="AWS's market, an embedded catalog, or a .json or .csv file.")
    ],
    flags: ShowFlags,
    output: EveryForm = "table",
) -> None:
    """Show the types of a catalog with their prices and performance, including your own measurements.

    json and csv are the formats of catalog files: redirect, edit, use.
    """
    from deepvm.catalog.store import format_catalog

    loaded = flags.load(catalog)
    if output in ("table", "wide"):
        _print_types(loaded, wide=output == "wide")
    elif output == "yaml":
        from deepvm.catalog.documents.serialization import document_of

        print_document(document_of(loaded), "yaml")
    else:
        text, left_out = format_catalog(loaded, f".{output}")
        sys.stdout.write(text)
        _warn(catalog, left_out)


@app.command()
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .json or .csv catalog.")],
) -> None:
    """Check a catalog and name every problem.

    Exit code 0 with a summary, or 4 with the place of every problem, what was found and what is allowed.
    """
    from deepvm.catalog.lint import catalog_warnings
    from deepvm.catalog.store import load_catalog

    loaded = load_catalog(file)
    sys.stdout.write(f"{file}: ok, {_counted(loaded)}\n")
    for doubt in loaded.provenance.doubts:  # names the file, and the place of the price
        sys.stderr.write(f"warning: {doubt}\n")
    _warn(file, catalog_warnings(loaded))


@app.command(cls=ConfiguredCommand)
@takes_flags
def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="AWS's market, an embedded catalog, or a .json or .csv file.")
    ],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; .json or .csv decides the format.")],
    flags: SourceFlags,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT if it exists.")] = False,
) -> None:
    """Write a catalog as JSON or as CSV."""
    import os

    from deepvm.catalog.store import ENDINGS, save_catalog
    from deepvm.errors import RequestError

    if os.path.splitext(target)[1].lower() not in ENDINGS:
        raise RequestError("OUT", target, "a file name that ends in .json or .csv")
    if os.path.lexists(target) and not force:
        raise RequestError("OUT", target, "a file that does not exist yet, or --force to overwrite it")
    loaded = flags.load(source)
    left_out = save_catalog(loaded, target)
    sys.stderr.write(f"{target}: written, {_counted(loaded)}\n")
    _warn(target, left_out)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the file format."""
    from deepvm.catalog.documents.schema import json_schema

    print_document(json_schema())


def _summary(catalog: Catalog) -> dict[str, Any]:
    gpus = sum(1 for i in catalog if i.gpu is not None)
    as_of = catalog.provenance.prices_as_of
    return {
        "name": catalog.name,
        "gpu_types": gpus,
        "cpu_types": len(catalog) - gpus,
        "region": catalog.region or None,
        "prices_as_of": None if as_of is None else as_of.isoformat(),
        "description": catalog.description,
    }


def _counted(catalog: Catalog) -> str:
    summary = _summary(catalog)
    word = "type" if len(catalog) == 1 else "types"
    return f"{len(catalog)} instance {word} ({summary['gpu_types']} GPU, {summary['cpu_types']} CPU)"


def _warn(name: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        sys.stderr.write(f"warning: {name}: {warning}\n")


def _print_types(catalog: Catalog, *, wide: bool) -> None:
    from deepvm.reports.tables import print_table

    rows = [_cells(instance, wide=wide) for instance in catalog]
    print_table(_columns(wide=wide), rows)
    as_of = catalog.provenance.prices_as_of
    from datetime import datetime, timezone

    from deepvm.reports.plans.sources import measured_lines, source_line

    now = datetime.now(timezone.utc)
    facts = [
        f"{catalog.name}: {_counted(catalog)}",
        f"region {catalog.region}" if catalog.region else "no region",
        f"prices as of {as_of}" if as_of else "prices without a date",
        f"default curve {catalog.default_speedup}",
        f"eFLOPS in {catalog.eflops_unit}",
    ]
    sys.stderr.write("; ".join(facts) + "\n")
    if catalog.provenance.source:
        sys.stderr.write(f"source: {catalog.provenance.source}\n")
    if catalog.provenance.origins:
        sys.stderr.write(f"{source_line(catalog, now)}\n")
    for line in measured_lines(catalog, now):
        sys.stderr.write(f"{line}\n")


def _columns(*, wide: bool) -> list[Column]:
    from deepvm.reports.tables import Column

    columns = [
        Column("type"),
        Column("kind", drop=8),
        Column("GPU", drop=2, wrap=False),
        Column("vCPU", "right", drop=5),
        Column("GiB", "right", drop=4),
        Column("Gbps", "right", drop=6),
        Column("on-demand $/h", "right"),
        Column("spot $/h", "right"),
        Column("eFLOPS", "right", drop=1),
        Column("FLOPP spot (op/$)", "right", drop=3),
        Column("curves", drop=7),
    ]
    more = [Column("GPU GiB", "right", drop=9), Column("quota family", drop=10), Column("note", drop=11)]
    return [*columns, *more] if wide else columns


def _cells(instance: InstanceType, *, wide: bool) -> list[str]:
    from deepvm.core.cluster.instances import flopp

    gpu, spot = instance.gpu, instance.spot_usd_per_hour
    per_dollar = None if instance.eflops is None or spot is None else flopp(instance.eflops, float(spot))
    cells = [
        instance.name,
        "CPU" if gpu is None else "GPU",
        "-" if gpu is None else f"{gpu.count} x {gpu.name}",
        str(instance.vcpus),
        _number(instance.memory_gib),
        _number(instance.network_gbps),
        "-" if instance.on_demand_usd_per_hour is None else f"{instance.on_demand_usd_per_hour:f}",
        "-" if spot is None else f"{spot:f}",
        _number(instance.eflops),
        "-" if per_dollar is None else f"{per_dollar:.4g}",
        _curves(instance),
    ]
    more = [_number(None if gpu is None else gpu.memory_gib), instance.quota_family, instance.note or "-"]
    return [*cells, *more] if wide else cells


def _curves(instance: InstanceType) -> str:
    general = [c.kind for c in instance.speedups if c.workload is None]
    workloads = len(instance.speedups) - len(general)
    if workloads:
        general.append(f"+{workloads} by workload")
    return " ".join(general) or "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"
