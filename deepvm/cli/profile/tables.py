"""``deepvm tables``: list, compare, import, export and remove measurements; undo changes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.cli.output import Output, note, print_as, print_named, say, text
from deepvm.cli.parameters import arg, flag, group, opt
from deepvm.cli.profile.profile_group import FORCE_SPREAD
from deepvm.core.spelling import did_you_mean, listed
from deepvm.core.units import counted
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.catalog.measured.entries import Entry
    from deepvm.catalog.measured.tables import Tables

app = group("List, show, compare, import and export what was measured on your own machines.")


@app.command("list", short_help="List measurements, and what recommend uses.")
def list_tables(
    catalog: str = opt(
        "", "What is used with this catalog; default: any embedded one.", "NAME|FILE"
    ),
    output: Output = "table",
) -> None:
    """List measurements: kind, type, workload, day, whether recommend uses it, and the result."""
    from deepvm.catalog.measured.apply import reasons
    from deepvm.catalog.store import every_type, load_catalog
    from deepvm.documents.build import With

    folder, tables = _own()
    if catalog:
        types = load_catalog(catalog, prices="snapshot")
    else:
        types = every_type()
    unused = reasons(tables, types)
    entries = [With(e, used=not unused[e.name], why_not=unused[e.name]) for e in tables]
    print_named(
        output,
        text("tables_list", tables=tables, reasons=unused),
        "tables-list",
        {"path": tables.path, "entries": entries},
    )
    if not tables and output == "table":
        note(f"nothing was measured yet (no entries in {folder}); 'deepvm profile' measures")


@app.command(short_help="Show measurements with their raw figures.")
def show(
    name: str = arg(
        "NAME", "Instance type, kind, name as in 'list -o json', its beginning, or a glob."
    ),
    output: Output = "table",
) -> None:
    """Show measurements with their raw figures.

    Json and yaml print the documents whole, csv a row for each.
    """
    from deepvm.reports.profiling.measurements import csv_rows

    named = _called([name])
    entries = [e.as_document() for e in named]
    document = {"schema_version": "deepvm.tables/1", "entries": entries}
    print_as(output, text("tables_show", entries=named), lambda: document, lambda: csv_rows(named))


@app.command(short_help="Show the last change, or what your measurements change.")
def diff(
    catalog: str = opt(
        "", "Show instead what the measurements change in this catalog.", "NAME|FILE"
    ),
    output: Output = "table",
) -> None:
    """Show what the last change did to the measured tables, or what they change in a catalog.

    Example: deepvm tables diff --catalog paper
    """
    from deepvm.catalog.diff import diff_catalogs
    from deepvm.catalog.measured.tables import previous_tables
    from deepvm.catalog.store import load_catalog
    from deepvm.reports.prices.types import csv_rows
    from deepvm.reports.profiling.measurements import changes

    folder, tables = _own()
    if not catalog:
        last = changes(previous_tables(folder), tables)
        values = {"changed": bool(last), "changes": last}
        print_named(output, text("tables_diff", changes=last), "tables-diff", values)
        return
    published = load_catalog(catalog)
    own = tables.apply(published)
    differences = diff_catalogs(published, own)
    changed = f"{catalog} with your measurements"
    table = text("catalog_diff", diff=differences, old=catalog, new=changed)
    print_named(output, table, "diff", differences, lambda: csv_rows(differences))
    for line in own.provenance.notes[len(published.provenance.notes) :]:
        note(line)
    for line in own.provenance.doubts[len(published.provenance.doubts) :]:
        say(f"Warning: {line}")


@app.command("import", short_help="Add measurements of a file to yours.")
def import_tables(
    file: str = arg(
        "FILE", "JSON of 'tables export' or 'profile', or a CSV: n,speedup or n,seconds."
    ),
    instance_type: str = opt("", "The type that was measured.", "TYPE"),
    sender_type: str = opt("", "For saturation: the type that sends.", "TYPE"),
    receiver_type: str = opt("", "For saturation: the type that receives.", "TYPE"),
    kind: str = opt("", "For a CSV: what its columns are.", "scaling"),
    workload: str = opt("", "For a CSV: what was trained, such as resnet50.", "NAME"),
    measured_at: str = opt("", "When, such as 2026-01-31; default: the file's own time.", "TIME"),
    force_local: bool = flag("--force-local", "Import even if VMs were processes on one machine."),
    force_spread: bool = FORCE_SPREAD,
) -> None:
    """Add measurements to yours; the newer duplicate wins.

    Example: deepvm tables import scaling.json --instance-type g4dn.xlarge
    """
    from deepvm.services.profile.saving import read_csv, read_json, save

    path = Path(file)
    is_csv = path.suffix.lower() == ".csv"
    if kind != ("scaling" if is_csv else ""):
        raise RequestError("kind", kind, _CSV_ONLY)
    if bool(workload) != is_csv:
        raise RequestError("workload", workload, _CSV_ONLY)
    if is_csv and not instance_type:
        raise RequestError("instance_type", instance_type, _CSV_ONLY)
    types = {"instance_type": instance_type}
    types |= {"sender_type": sender_type, "receiver_type": receiver_type}
    entries: Sequence[Entry]
    if is_csv:
        entries = [read_csv(path, measured_at, instance_type, workload, say)]
    else:
        entries = read_json(path, measured_at, types, say)
    if not entries:
        say(f"{file} holds no measurement")
    save(entries, say, force_local=force_local, force_spread=force_spread)


_CSV_ONLY = "with a CSV only: --kind scaling --instance-type TYPE --workload NAME"


@app.command(short_help="Write all measurements to one file.")
def export(
    file: str = arg("FILE", "Output file, or - for stdout."),
    force: bool = flag("--force", "Overwrite FILE if it exists."),
) -> None:
    """Write all measurements to one file, to copy back and import."""
    from deepvm.catalog.measured.tables import encode_tables
    from deepvm.io.atomic_write import write_bytes

    _, tables = _own()
    if file == "-":
        sys.stdout.write(encode_tables(tables).decode())
        return
    if not file.lower().endswith(".json"):
        raise RequestError("FILE", file, "a file name that ends in .json, or - for standard output")
    if os.path.lexists(file) and not force:
        allowed = "a file that does not exist yet, or --force to overwrite it"
        raise RequestError("FILE", file, allowed)
    write_bytes(Path(file), encode_tables(tables))
    say(f"{file}: written, {counted(len(tables), 'measurement')}")


@app.command()
def remove(name: list[str] = arg("NAME...", "Names as for 'tables show'.")) -> None:
    """Remove measurements; 'deepvm tables restore' brings them back."""
    from deepvm.catalog.measured.tables import own_folder, save_entries

    named = _called(name)
    _, kept = save_entries(own_folder(), (), remove=[e.name for e in named])
    for entry in named:
        say(f"removed: {entry.name}")
    say(f"{kept.path}: {counted(len(kept), 'measurement')}; 'deepvm tables restore' undoes this")


@app.command(short_help="Undo the last change.")
def restore() -> None:
    """Undo the last change: swap the measured tables with what they were before it."""
    from deepvm.catalog.measured.tables import own_folder, restore_previous

    path = restore_previous(own_folder())
    kept = len(_own()[1])
    content = counted(kept, "measurement") if kept else "nothing measured"
    say(f"{path}: {content}; another restore undoes this")


def _own() -> "tuple[Path, Tables]":
    from deepvm.catalog.measured.tables import load_tables, own_folder

    folder = own_folder()
    return folder, load_tables(folder)


def _called(names: Sequence[str]) -> "tuple[Entry, ...]":
    _, tables = _own()
    named: dict[str, Entry] = {}
    for name in names:
        called = {entry.name: entry for entry in tables.called(name)}
        if not called:
            words = {word for entry in tables for word in (entry.name, *entry.types)}
            known = listed([e.name for e in tables], 8) or "none, nothing was measured"
            allowed = f"a measurement, the beginning of its name or a glob: {known}"
            guess = did_you_mean(name, sorted(words))
            raise RequestError("NAME", name, "; ".join(filter(None, (allowed, guess))))
        named |= called
    return tuple(named.values())
