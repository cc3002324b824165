"""Save measurements: ``--save`` of the profiling commands, and ``deepvm tables import``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepvm.cli.output import note, say
from deepvm.core.spelling import did_you_mean

if TYPE_CHECKING:
    from deepvm.catalog.measured.entries import Entry
    from deepvm.catalog.measured.tables import Tables
    from deepvm.core.cluster.instances import Catalog

Save = Annotated[
    bool,
    typer.Option("--save", show_default=False, help="Keep it in the measured tables, for recommend to use at once."),
]
ForceSpread = Annotated[
    bool,
    typer.Option("--force-spread", show_default=False, help="Save even eFLOPS whose windows differ by more than half."),
]
ForceLocal = Annotated[
    bool, typer.Option("--force-local", show_default=False, help="Save even what processes of one machine did.")
]
InstanceType = Annotated[
    str, typer.Option(metavar="TYPE", help="What the provider calls these machines; needed with --save.")
]
USELESS_SPREAD = 0.5
"""eFLOPS whose windows differ by more than this share of their median decide nothing: VM types differ by less."""


def check_save(
    kind: str,
    *,
    instance_type: str = "",
    sender_type: str = "",
    receiver_type: str = "",
    local: bool = False,
    force_local: bool = False,
) -> None:
    """Check, before minutes of measuring, that the result could be saved.

    Args:
        kind: of what is going to be measured.
        instance_type: of the machines, but for saturation.
        sender_type: for saturation.
        receiver_type: for saturation.
        local: whether processes of this machine stand for VMs.
        force_local: whether that is to be saved.

    Raises:
        RequestError: a type is missing, or a local run is to be saved without ``force_local``.
        DataError: the tables cannot be read or written.
    """
    from deepvm.catalog.measured.tables import own_folder, save_entries
    from deepvm.errors import RequestError

    pair = {"sender_type": sender_type, "receiver_type": receiver_type}
    for option, value in (pair if kind == "saturation" else {"instance_type": instance_type}).items():
        if not 1 <= len(value) <= 100 or not value.isprintable():
            raise RequestError(option, value, "with --save, the provider's name of the type, such as g4dn.xlarge")
    if local and not force_local:
        allowed = "this option, or --save over real hosts: processes of one machine say nothing of VMs"
        raise RequestError("force_local", False, allowed)
    save_entries(own_folder(), ())


def entry_from(
    document: Mapping[str, Any],
    *,
    instance_type: str = "",
    sender_type: str = "",
    receiver_type: str = "",
    measured_at: datetime | None = None,
    name: str = "document",
) -> Entry:
    """The entry of the measured tables for a document of a profiling command.

    Args:
        document: as the command prints it with ``-o json``; its ``schema_version`` says what it is.
        instance_type: the type of the VM; what the document's machine says unless given.
        sender_type: for saturation; the document's unless given.
        receiver_type: for saturation; the document's unless given.
        measured_at: when; now unless given.
        name: of the document, for messages.

    Raises:
        RequestError: a type is missing. CatalogFormatError: the document is no measurement, or not valid.
    """
    from datetime import timezone

    from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS
    from deepvm.catalog.measured.tables import entry_of
    from deepvm.errors import CatalogFormatError, Problem

    version = document.get("schema_version")
    family = version.partition("/")[0] if isinstance(version, str) else ""
    kind = next((k for k, v in DOCUMENT_VERSIONS.items() if v.partition("/")[0] == family), "")
    if not kind:
        found = "missing" if version is None else repr(version)[:60]
        fit = "; import the points themselves, as CSV" if family == "deepvm.fit" else ""
        allowed = f"allowed: deepvm.tables/1, {', '.join(DOCUMENT_VERSIONS.values())}{fit}"
        raise CatalogFormatError(name, [Problem("schema_version", found, allowed)])
    machine = document.get("machine")
    own = machine.get("instance_type") if isinstance(machine, Mapping) else ""
    if instance_type and isinstance(own, str) and own and own != instance_type:
        note(f"{name}: measured on {own} by its own words, and saved as {instance_type}")
    types = (
        {
            "sender_type": sender_type or _text(document, "sender_type"),
            "receiver_type": receiver_type or _text(document, "receiver_type"),
        }
        if kind == "saturation"
        else {"instance_type": instance_type or (own if isinstance(own, str) else "")}
    )
    moment = measured_at or datetime.now(timezone.utc)
    return entry_of(kind, document, measured_at=moment, name=name, **types)


def put(entries: Iterable[Entry], *, force_local: bool = False, force_spread: bool = False) -> None:
    """Save entries in the user's tables and say what was done on stderr.

    Raises:
        RequestError: a local run without ``force_local``.
        DataError: the tables cannot be written, or a measurement is of the future.
        MeasurementError: eFLOPS with a useless spread without ``force_spread``; the other entries are saved.
    """
    from datetime import datetime, timezone

    from deepvm.catalog.measured.entries import FUTURE
    from deepvm.errors import DataError, MeasurementError, RequestError
    from deepvm.io.times import format_time

    new = tuple(entries)
    now = datetime.now(timezone.utc)
    for entry in new:
        if entry.measured_at - now > FUTURE:  # it would win over every later measurement
            raise DataError(
                f"{entry.name} is not saved: it says that it was measured at {format_time(entry.measured_at)}, and now "
                f"it is {format_time(now)}; correct measured_at, or this machine's clock"
            )
    local = next((e for e in new if e.local), None)
    if local is not None and not force_local:
        raise RequestError(
            "force_local",
            False,
            f"this option, or a run over real hosts: {local.name} was measured with processes of one machine, which "
            f"says nothing about the network between {local.subject} VMs",
        )
    useless = [] if force_spread else [e for e in new if _spread(e) > USELESS_SPREAD]
    new = tuple(e for e in new if e not in useless)
    if new:
        _save(new)
    if useless:
        raise MeasurementError("\n".join(map(_refusal, useless)))


def _spread(entry: Entry) -> float:
    return float(entry.document.get("spread") or 0) if entry.kind == "eflops" else 0.0


def _refusal(entry: Entry) -> str:
    return (
        f"{entry.name} is not saved: its windows differ by {_spread(entry):.0%}, so the number may be anything; end "
        "what else runs there and measure again, with more --windows or --seconds; --force-spread saves it all the same"
    )


def _save(new: tuple[Entry, ...]) -> None:
    from deepvm.catalog.measured.tables import own_folder, save_entries
    from deepvm.core.units import counted

    known = every_type()
    warn_of_types((t for e in new for t in (e.instance_type, e.sender_type, e.receiver_type) if t), known)
    earlier, tables = save_entries(own_folder(), new)
    kept, before = {e.name: e for e in tables}, {e.name: e for e in earlier}
    for entry in new:
        old = before.get(entry.name)
        if kept[entry.name] == entry:
            replaced = old is not None and old != entry
            say(f"{'replaced' if replaced else 'saved'}: {entry.name}, {entry.value}")
            if replaced and old is not None:
                say(f"  before: {old.value}, {old.measured_at.date()}")
        else:
            note(
                f"{entry.name} is not saved: there is a later measurement, of {kept[entry.name].measured_at.date()}; "
                f"'deepvm tables remove {entry.name}' makes room for this one"
            )
    _say_which_are_used([e for e in new if kept[e.name] == e], tables, known)
    undo = "'deepvm tables restore' undoes the last change" if tables != earlier else "nothing changed"
    say(f"{tables.path}: {counted(len(tables), 'measurement')}; {undo}")


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def every_type() -> Catalog:
    """All types that come with deepvm, AWS's first."""
    from deepvm.catalog.store import catalog_names, load_catalog
    from deepvm.core.cluster.instances import Catalog

    names = sorted(catalog_names(), key=lambda n: not n.startswith("aws"))
    types = {i.name: i for name in reversed(names) for i in load_catalog(name, prices="snapshot")}
    return Catalog("all that come with deepvm", tuple(types.values()))


def warn_of_types(types: Iterable[str], catalog: Catalog | None = None) -> None:
    """Note types that are in no catalog: a mistyped type would silently never be used."""
    known = (catalog or every_type()).by_name
    for name in sorted(set(types) - set(known)):
        meant = did_you_mean(name, known)
        note(f"no catalog that comes with deepvm has a type {name}{f'; {meant}' if meant else ''}")


def _say_which_are_used(new: Sequence[Entry], tables: Tables, known: Catalog) -> None:
    from deepvm.catalog.measured.apply import reasons

    found = reasons(tables, known)
    why = {e.name: found[e.name] for e in new if found[e.name]}
    if any(e.name not in why for e in new):
        what = "the others" if why else "it" if len(new) == 1 else "them"
        say(f"'deepvm recommend' uses {what} from now on")
    for name, reason in why.items():
        note(f"'deepvm recommend' does not use {name}: {reason}")
