"""``deepvm tables``: look at what was measured, bring it from one machine to another, undo."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.output import TableJson, note, print_document, say
from deepvm.cli.profile.save import ForceSpread
from deepvm.core.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from deepvm.catalog.measured.entries import Entry
    from deepvm.catalog.measured.tables import Tables

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An instance type, a kind, a name as 'list -o json' shows it, the beginning of one, or a glob.",
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, compare, import and export what was measured on your own machines.",
)


@app.command("list", short_help="List what was measured, and what recommend uses.")
def list_tables(
    catalog: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Say of each whether it is used with this catalog.  [default: all that come with deepvm]",
        ),
    ] = "",
    output: TableJson = "table",
) -> None:
    """List what was measured: kind, type, workload, day, whether recommend uses it, and the result."""
    from deepvm.catalog.measured.storage import CURRENT
    from deepvm.catalog.measured.tables import load_tables, own_folder
    from deepvm.reports.profiling import measured as report

    tables = load_tables(own_folder())
    why = _reasons(tables, catalog)
    if output == "json":
        print_document(report.list_document(tables, why))
        return
    report.print_list(tables, why)
    if not tables:
        note(f"nothing was measured yet ({own_folder() / CURRENT} is empty or not there); 'deepvm profile' measures")


@app.command(short_help="Show measurements with their raw figures.")
def show(name: Name, output: TableJson = "table") -> None:
    """Show measurements with their raw figures; json prints the documents whole."""
    from deepvm.reports.profiling import measured as report

    found = _called([name])
    if output == "json":
        print_document({"schema_version": "deepvm.tables/1", "entries": [e.as_document() for e in found]})
    else:
        for entry in found:
            report.print_entry(entry)


@app.command(short_help="Show what the last change did, or what yours change.")
def diff(
    catalog: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Show what the measurements change in this catalog, not what the last change did.",
        ),
    ] = "",
    output: TableJson = "table",
) -> None:
    """Show what the last change did to the measured tables, or what they change in a catalog.

    Example: deepvm tables diff --catalog paper
    """
    from deepvm.catalog.measured.tables import load_tables, own_folder, previous_tables
    from deepvm.reports.profiling import measured as report

    folder = own_folder()
    tables = load_tables(folder)
    if not catalog:
        old = previous_tables(folder)
        if output == "json":
            print_document(report.diff_document(old, tables))
        else:
            report.print_diff(old, tables)
        return
    from deepvm.catalog.diff import diff_catalogs
    from deepvm.catalog.store import load_catalog
    from deepvm.reports.prices import diffs

    published = load_catalog(catalog)
    own = tables.apply(published)
    found = diff_catalogs(published, own)
    if output == "json":
        print_document(diffs.document(found))
    else:
        diffs.print_report(found, catalog, f"{catalog} with your measurements")
    for text in own.provenance.notes[len(published.provenance.notes) :]:
        note(text)
    for text in own.provenance.doubts[len(published.provenance.doubts) :]:
        say(f"Doubt: {text}")


@app.command("import", short_help="Add measurements of a file to yours.")
def import_tables(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What 'tables export' or 'profile ... -o json' wrote, or a CSV with n,speedup or n,seconds.",
        ),
    ],
    instance_type: Annotated[str, typer.Option(metavar="TYPE", help="The type that was measured.")] = "",
    sender_type: Annotated[str, typer.Option(metavar="TYPE", help="For saturation: the type that sends.")] = "",
    receiver_type: Annotated[str, typer.Option(metavar="TYPE", help="For saturation: the type that receives.")] = "",
    kind: Annotated[str, typer.Option(metavar="scaling", help="For a CSV: what its columns are.")] = "",
    workload: Annotated[str, typer.Option(metavar="NAME", help="For a CSV: what was trained, such as resnet50.")] = "",
    measured_at: Annotated[
        str, typer.Option(metavar="TIME", help="When, such as 2026-01-31; that of the file unless given.")
    ] = "",
    force_local: Annotated[
        bool, typer.Option("--force-local", help="Also a run in which one machine stood for all VMs.")
    ] = False,
    force_spread: ForceSpread = False,
) -> None:
    """Add measurements to yours; of two of the same thing the later one stays.

    Example: deepvm tables import scaling.json --instance-type g4dn.xlarge
    """
    from pathlib import Path

    from deepvm.cli.profile.save import put
    from deepvm.errors import RequestError

    if kind not in ("", "scaling"):
        other = "; eFLOPS and saturation come as JSON, from 'deepvm profile ... -o json', which says so itself"
        raise RequestError("kind", kind, f"scaling, with a CSV{other}")
    path = Path(file)
    if path.suffix.lower() == ".csv":
        for option, value in (("kind", kind), ("instance_type", instance_type), ("workload", workload)):
            if not value:
                raise RequestError(option, value, "with a CSV: --kind scaling --instance-type TYPE --workload NAME")
        entries: Sequence[Entry] = [_of_csv(path, measured_at, instance_type, workload)]
    else:
        for option, value in (("kind", kind), ("workload", workload)):
            if value:
                raise RequestError(option, value, "nothing with JSON, which says so itself")
        entries = _of_json(path, measured_at, instance_type, sender_type, receiver_type)
    if not entries:
        say(f"{file} holds no measurement")
    put(entries, force_local=force_local, force_spread=force_spread)


@app.command(short_help="Write all measurements to one file.")
def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write, or - for standard output.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
) -> None:
    """Write all measurements to one file, to bring home and import there."""
    from pathlib import Path

    from deepvm.catalog.measured.tables import encode_tables, load_tables, own_folder
    from deepvm.core.units import counted
    from deepvm.errors import RequestError
    from deepvm.io.atomic_write import write_bytes

    tables = load_tables(own_folder())
    if file == "-":
        sys.stdout.write(encode_tables(tables).decode())
        return
    if not file.lower().endswith(".json"):
        raise RequestError("FILE", file, "a file name that ends in .json, or - for standard output")
    if os.path.lexists(file) and not force:
        raise RequestError("FILE", file, "a file that does not exist yet, or --force to overwrite it")
    write_bytes(Path(file), encode_tables(tables))
    say(f"{file}: written, {counted(len(tables), 'measurement')}")


@app.command()
def remove(
    name: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Types, kinds, names as 'list -o json' shows them, beginnings or globs."
        ),
    ],
) -> None:
    """Remove measurements; 'deepvm tables restore' brings them back."""
    from deepvm.catalog.measured.tables import own_folder, remove_entries
    from deepvm.core.units import counted

    found = _called(name)
    _, kept = remove_entries(own_folder(), (e.name for e in found))
    for entry in found:
        say(f"removed: {entry.name}")
    say(f"{kept.path}: {counted(len(kept), 'measurement')}; 'deepvm tables restore' undoes this")


@app.command(short_help="Undo the last change.")
def restore() -> None:
    """Undo the last change: swap the measured tables with what they were before it."""
    from deepvm.catalog.measured.tables import load_tables, own_folder, restore_previous
    from deepvm.core.units import counted

    path = restore_previous(own_folder())
    kept = len(load_tables(path.parent))
    say(f"{path}: {counted(kept, 'measurement') if kept else 'nothing measured'}; another restore undoes this")


def _called(names: Sequence[str]) -> tuple[Entry, ...]:
    from deepvm.catalog.measured.tables import load_tables, own_folder
    from deepvm.errors import RequestError

    tables = load_tables(own_folder())
    found: dict[str, Entry] = {}
    for name in names:
        called = tables.called(name)
        if not called:
            raise RequestError("NAME", name, _known(name, tables))
        found |= {e.name: e for e in called}
    return tuple(found.values())


def _known(name: str, tables: Tables) -> str:
    if not tables:
        return "a measurement: none, because nothing was measured yet"
    words = {word for e in tables for word in (e.name, e.instance_type, e.sender_type, e.receiver_type) if word}
    meant = did_you_mean(name, sorted(words))
    some = ", ".join([e.name for e in tables][:8])
    return f"a measurement, the beginning of its name or a glob: {some}{f'; {meant}' if meant else ''}"


def _reasons(tables: Tables, catalog: str) -> dict[str, str]:
    from deepvm.catalog.measured.apply import reasons
    from deepvm.catalog.store import load_catalog
    from deepvm.cli.profile.save import every_type

    return reasons(tables, load_catalog(catalog, prices="snapshot") if catalog else every_type()) if tables else {}


def _of_json(path: Path, measured_at: str, instance_type: str, sender_type: str, receiver_type: str) -> Sequence[Entry]:
    from deepvm.catalog.measured.entry_schema import EXPECTED, read_document
    from deepvm.catalog.measured.tables import read_tables
    from deepvm.cli.profile.save import entry_from
    from deepvm.errors import CatalogFormatError, Problem, RequestError

    document = read_document(path)
    if not isinstance(document, dict):
        raise CatalogFormatError(path, [Problem("top level", f"a {type(document).__name__}", EXPECTED)])
    if str(document.get("schema_version")).startswith("deepvm.tables/"):
        given = {"instance_type": instance_type, "sender_type": sender_type, "receiver_type": receiver_type}
        for option, value in {**given, "measured_at": measured_at}.items():
            if value:
                raise RequestError(option, value, "nothing with exported tables, which say so themselves")
        return read_tables(path).entries
    return [
        entry_from(
            document,
            instance_type=instance_type,
            sender_type=sender_type,
            receiver_type=receiver_type,
            measured_at=_moment(measured_at, path),
            name=str(path),
        )
    ]


def _of_csv(path: Path, measured_at: str, instance_type: str, workload: str) -> Entry:
    from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS
    from deepvm.catalog.measured.tables import entry_of
    from deepvm.profiling.fit.diagnostics import point_doubts
    from deepvm.profiling.fit.speedup_points import read_medians, read_points

    for text in point_doubts(read_points(path)):
        note(f"{path}: {text}")
    document = {
        "schema_version": DOCUMENT_VERSIONS["scaling"],
        "workload": {"model": workload},
        "local": False,
        "points": [{"n": int(n), "seconds": None, "speedup": s} for n, s in read_medians(path)],
        "warnings": [],
    }
    return entry_of(
        "scaling", document, measured_at=_moment(measured_at, path), instance_type=instance_type, name=str(path)
    )


def _moment(text: str, path: Path) -> datetime:
    """When something was measured: as given, else when its file was written."""
    from datetime import datetime, timezone

    from deepvm.catalog.measured.entries import FUTURE
    from deepvm.errors import RequestError
    from deepvm.io.times import parse_time

    now = datetime.now(timezone.utc)
    if not text:
        return min(now, datetime.fromtimestamp(path.stat().st_mtime, timezone.utc))
    try:
        moment = parse_time(text)
        if moment.year < 2000 or moment - now > FUTURE:
            raise ValueError
    except (ValueError, OverflowError):
        allowed = "a day or a moment with a time zone that is not in the future, such as 2026-01-31T12:00:00Z"
        raise RequestError("measured_at", text, allowed) from None
    return moment
