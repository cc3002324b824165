"""Save measurements: ``--save`` of the profiling commands, and ``deepvm tables import``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from deepvm.catalog.measured.apply import reasons
from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS, FUTURE, Entry
from deepvm.catalog.measured.tables import MeasuredTypes, entry_of, own_folder, save_entries
from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.store import catalog_names, load_catalog
from deepvm.cli.output import note, say
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.spelling import did_you_mean
from deepvm.core.training.workload import Scaling
from deepvm.core.units import counted
from deepvm.errors import CatalogFormatError, DataError, MeasurementError, Problem, RequestError
from deepvm.io.times import format_time

if TYPE_CHECKING:
    from typing import Unpack

    from deepvm.core.training.workload import Workload
    from deepvm.profiling.fit.step_fit import StepFit

FAR_OFF = 20.0  # times longer or shorter than known steps: another unit, or another workload
# Of the median: VM types differ by less than eFLOPS whose windows differ by more
USELESS_SPREAD = 0.5


def check_save(
    kind: str, *, local: bool = False, force_local: bool = False, **types: Unpack[MeasuredTypes]
) -> None:
    """Check, before minutes of measuring, that the result could be saved.

    Raises RequestError, DataError.

    ``local``: the VMs are processes on one machine, which only ``force_local`` saves.
    """
    for option in ("sender_type", "receiver_type") if kind == "saturation" else ("instance_type",):
        value = str(types.get(option, ""))
        if not 1 <= len(value) <= 100 or not value.isprintable():
            raise RequestError(
                option, value, "with --save, the provider's name of the type, such as g4dn.xlarge"
            )
    if local and not force_local:
        allowed = (
            "this option, or --save over real hosts: processes of one machine say nothing of VMs"
        )
        raise RequestError("force_local", False, allowed)
    save_entries(own_folder(), ())


def entry_from(
    document: Mapping[str, Any],
    *,
    measured_at: datetime | None = None,
    name: str = "document",
    **types: Unpack[MeasuredTypes],
) -> Entry:
    """The entry of the measured tables for a document of a profiling command.

    ``types``: instance_type, or sender_type and receiver_type, by default the document's own;
    ``measured_at``: by default now; ``name``: for messages.

    Raises:
        RequestError: a type is missing. CatalogFormatError: the document is no measurement, or not
            valid.
    """
    version = document.get("schema_version")
    family = str(version).partition("/")[0]
    kind = next((k for k, v in DOCUMENT_VERSIONS.items() if v.partition("/")[0] == family), "")
    if not kind:
        found = "missing" if version is None else repr(version)[:60]
        fit = "; import the points themselves, as CSV" if family == "deepvm.fit" else ""
        allowed = f"allowed: deepvm.tables/1, {', '.join(DOCUMENT_VERSIONS.values())}{fit}"
        raise CatalogFormatError(name, [Problem("schema_version", found, allowed)])

    def text(of: Any, key: str) -> str:
        value = of.get(key) if isinstance(of, Mapping) else None
        return value if isinstance(value, str) else ""

    given, own = types.get("instance_type"), text(document.get("machine"), "instance_type")
    if given and own and own != given:
        note(f"{name}: the document says that it was measured on {own}; saved as {given}")
    known: MeasuredTypes = {"instance_type": given or own}
    if kind == "saturation":
        sender, receiver = types.get("sender_type"), types.get("receiver_type")
        known = {"sender_type": sender or text(document, "sender_type")}
        known["receiver_type"] = receiver or text(document, "receiver_type")
    return entry_of(
        kind, document, measured_at=measured_at or datetime.now(timezone.utc), name=name, **known
    )


def save_law(found: StepFit, workload: Workload, software: str, instance_type: str) -> None:
    """Save a fitted step-time law with its steps, and say what was done. Raises as :func:`put`."""
    model, precision = workload.model, workload.precision
    instance = every_type().by_name.get(instance_type)
    machine: dict[str, Any] = {"instance_type": instance_type}
    if instance is not None and instance.gpu is not None:
        machine["gpus"] = [f"{instance.gpu.name} {instance.gpu.memory_gib or 0:.0f}GB"]
        gpu = find_accelerator(instance.gpu.name, instance.gpu.memory_gib)
        precision = (gpu and gpu.precision(precision)) or precision
        _doubt_unit(found, workload, instance)
    trained = {
        "model": model.name,
        "method": workload.method.value,
        "precision": precision.value,
        "sequence": model.sequence if model.sequence > 1 else None,
        "software": software,
        "activation_checkpointing": workload.checkpointing,
    }
    put([entry_from(found.saved(trained, machine), instance_type=instance_type)])


def _doubt_unit(found: StepFit, workload: Workload, instance: InstanceType) -> None:
    """Note steps that are far from what is known of a model and a GPU, as milliseconds would be."""
    batch, nodes = found.measured.batch[1], found.steps.nodes.min(keepdims=True)
    asked = replace(workload, batch=batch, scaling=Scaling.WEAK)
    known = PublishedPerformance().speed(instance, asked, nodes)
    if isinstance(known, str):
        return
    own = found.fitted.predict(found.measured.nodes[0], found.measured.gpus[0], batch).value
    ratio = own / float(known.step_s[0])
    if not 1 / FAR_OFF < ratio < FAR_OFF:
        times = f"{ratio:.3g} times as long" if ratio > 1 else f"{1 / ratio:.3g} times as short"
        note(
            f"a step is {times} as others' runs say of {workload.model.name} on {instance.name}; is"
            " step_time_s in seconds, and local_batch of each GPU?"
        )


def put(entries: Iterable[Entry], *, force_local: bool = False, force_spread: bool = False) -> None:
    """Save entries in the user's tables and say what was done on stderr.

    Raises:
        RequestError: a local run without ``force_local``. DataError: a measurement of the future,
            or unwritable tables.
        MeasurementError: eFLOPS with a useless spread without ``force_spread``; the other entries
            are saved.
    """
    new = tuple(entries)
    now = datetime.now(timezone.utc)
    for entry in new:
        if entry.measured_at - now > FUTURE:  # it would win over every later measurement
            raise DataError(
                f"{entry.name} is not saved: it says that it was measured at"
                f" {format_time(entry.measured_at)}, and now it is {format_time(now)}; correct"
                " measured_at, or this machine's clock"
            )
        if entry.local and not force_local:
            why = (
                f"{entry.name} was measured with processes of one machine, which says nothing about"
                " the network"
            )
            allowed = f"this option, or a run over real hosts: {why} between {entry.subject} VMs"
            raise RequestError("force_local", False, allowed)
    spreads = {
        e.name: float(e.document.get("spread") or 0)
        for e in new
        if e.kind == "eflops" and not force_spread
    }
    useless = {name: spread for name, spread in spreads.items() if spread > USELESS_SPREAD}
    new = tuple(e for e in new if e.name not in useless)
    if new:
        _save(new)
    if useless:
        advice = "end what else runs there and measure again, with more --windows or --seconds"
        lines = (
            f"{name} is not saved: its windows differ by {spread:.0%}, so the number may be"
            f" anything; {advice}; --force-spread saves it anyway"
            for name, spread in useless.items()
        )
        raise MeasurementError("\n".join(lines))


def _save(new: tuple[Entry, ...]) -> None:
    known = every_type()
    warn_of_types(
        (t for e in new for t in (e.instance_type, e.sender_type, e.receiver_type) if t), known
    )
    earlier, tables = save_entries(own_folder(), new)
    kept, before = {e.name: e for e in tables}, {e.name: e for e in earlier}
    saved = [e for e in new if kept[e.name] == e]
    for entry in new:
        old = before.get(entry.name)
        if entry not in saved:
            note(
                f"{entry.name} is not saved: there is a later measurement, of"
                f" {kept[entry.name].measured_at.date()}; 'deepvm tables remove {entry.name}' makes"
                " room for this one"
            )
        elif old is None or old == entry:
            say(f"saved: {entry.name}, {entry.value}")
        else:
            say(
                f"replaced: {entry.name}, {entry.value}\n  before: {old.value},"
                f" {old.measured_at.date()}"
            )
    unused = {name: reason for name, reason in reasons(tables, known).items() if reason}
    why = {e.name: unused[e.name] for e in saved if e.name in unused}
    if len(why) < len({e.name for e in saved}):
        what = "the others" if why else "it" if len(saved) == 1 else "them"
        say(f"'deepvm recommend' uses {what} from now on")
    for name, reason in why.items():
        note(f"'deepvm recommend' does not use {name}: {reason}")
    undo = (
        "'deepvm tables restore' undoes the last change" if tables != earlier else "nothing changed"
    )
    say(f"{tables.path}: {counted(len(tables), 'measurement')}; {undo}")


def every_type() -> Catalog:
    """All types that come with deepvm; AWS's definition of a type wins."""
    names = sorted(catalog_names(), key=lambda n: not n.startswith("aws"))
    types = {i.name: i for name in reversed(names) for i in load_catalog(name, prices="snapshot")}
    return Catalog("all that come with deepvm", tuple(types.values()))


def warn_of_types(types: Iterable[str], catalog: Catalog | None = None) -> None:
    """Note types that are in no catalog: a mistyped one would never be used."""
    known = (catalog or every_type()).by_name
    for name in sorted(set(types) - set(known)):
        meant = did_you_mean(name, known)
        note(f"no catalog that comes with deepvm has a type {name}{f'; {meant}' if meant else ''}")
