"""Save measurements in the user's tables, and report what was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from deepvm.catalog.measured.apply import reasons
from deepvm.catalog.measured.entries import FUTURE, Entry
from deepvm.catalog.measured.tables import (
    entry_of,
    machine_type,
    own_folder,
    refuse_missing_types,
    save_entries,
)
from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import every_type
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.spelling import did_you_mean
from deepvm.core.training.workload import Scaling
from deepvm.core.units import counted, format_time
from deepvm.errors import DataError, MeasurementError, RequestError

if TYPE_CHECKING:
    from deepvm.core.training.workload import Workload
    from deepvm.profiling.fit.step_fit import StepFit
    from deepvm.services.profile.options import StepsOptions

Say = Callable[[str], None]

MAX_STEP_RATIO = 20.0
"""Steps that differ by more from published ones are probably in another unit."""
USELESS_SPREAD = 0.5
"""Share of the median: with a larger spread, eFLOPS differ more by chance than VM types do."""


def check_save(kind: str, *, local: bool = False, force_local: bool = False, **types: str) -> None:
    """Check, before minutes of measuring, that the result could be saved.

    ``local``: the VMs are processes on one machine, which only ``force_local`` saves. Raises
    RequestError, DataError.
    """
    refuse_missing_types(kind, types)
    if local and not force_local:
        allowed = "this option, or --save over real hosts: one machine's processes are not VMs"
        raise RequestError("force_local", False, allowed)
    save_entries(own_folder(), ())


def entry_from(
    document: Mapping[str, Any],
    say: Say,
    *,
    measured_at: datetime | None = None,
    name: str = "document",
    **types: str,
) -> Entry:
    """The entry of the measured tables for a document of a profiling command.

    ``types``: by default the document's own; ``measured_at``: by default now; ``name``: for errors.

    Raises:
        RequestError: a type is missing. CatalogFormatError: the document is not valid.
    """
    given = types.get("instance_type")
    own = machine_type(document)
    if given and own not in ("", given):
        say(f"Note: {name}: the document says that it was measured on {own}; saved as {given}")
    moment = measured_at or datetime.now(timezone.utc)
    return entry_of(document, measured_at=moment, name=name, **types)


def steps_workload(options: StepsOptions) -> Workload | None:
    """The workload of the steps of a fit, None if the fit is not saved.

    Raises RequestError, CatalogFormatError: options of ``--save`` are missing, or given without it.
    """
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "save"}
    if not options.save:
        for name, value in given.items():
            if value:
                allowed = "only with --save, for which it says what was measured"
                raise RequestError(name, value, allowed)
        return None
    if not (options.model or options.params):
        allowed = (
            "with --save, what was trained: a model of 'deepvm performance models', or --params 7B"
        )
        raise RequestError("model", options.model, allowed)
    check_save("steptime", instance_type=options.instance_type)
    # These describe the VM and the program, not the workload.
    del given["instance_type"], given["software"]
    named = {name: value for name, value in given.items() if value is not None}
    return read_workload(**{"method": "ddp"} | named)


def save_law(fit: StepFit, workload: Workload, software: str, instance_type: str, say: Say) -> None:
    """Save a fitted step-time law with its steps. Raises as :func:`save`."""
    model = workload.model
    precision = workload.precision
    instance = every_type().by_name.get(instance_type)
    machine: dict[str, Any] = {"instance_type": instance_type}
    if instance is not None and instance.gpu is not None:
        machine["gpus"] = [f"{instance.gpu.name} {instance.gpu.memory_gib or 0:.0f}GB"]
        gpu = find_accelerator(instance.gpu.name, instance.gpu.memory_gib)
        precision = (gpu and gpu.precision(precision)) or precision
        _check_unit(fit, workload, instance, say)
    trained = {
        "model": model.name,
        "method": workload.method.value,
        "precision": precision.value,
        "sequence": model.sequence if model.sequence > 1 else None,
        "software": software,
        "activation_checkpointing": workload.checkpointing,
    }
    document = fit.saved(trained, machine)
    save([entry_from(document, say, instance_type=instance_type)], say)


def _check_unit(fit: StepFit, workload: Workload, instance: InstanceType, say: Say) -> None:
    """Note steps far from published ones, such as steps in milliseconds."""
    batch = fit.measured.batch[1]
    nodes = fit.steps.nodes.min(keepdims=True)
    measured = replace(workload, batch=batch, scaling=Scaling.WEAK)
    published = PublishedPerformance().speed(instance, measured, nodes)
    if isinstance(published, str):  # nothing is known to compare with
        return
    step = fit.fitted.predict(fit.measured.nodes[0], fit.measured.gpus[0], batch)
    ratio = step.value / float(published.step_s[0])
    if not 1 / MAX_STEP_RATIO < ratio < MAX_STEP_RATIO:
        say(
            f"Note: a step takes {ratio:.3g} times as long as published runs of"
            f" {workload.model.name} on {instance.name}; is step_time_s in seconds, and local_batch"
            " of each GPU?"
        )


def save(
    entries: Iterable[Entry], say: Say, *, force_local: bool = False, force_spread: bool = False
) -> None:
    """Save entries in the user's tables.

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
                f"{entry.name} is not saved: measured at {format_time(entry.measured_at)}, and now"
                f" it is {format_time(now)}; correct measured_at, or this machine's clock"
            )
        if entry.local and not force_local:
            allowed = (
                f"this option, or a run over real hosts: {entry.name} was measured with processes"
                " of one machine, which says nothing about the network between"
                f" {entry.subject} VMs"
            )
            raise RequestError("force_local", False, allowed)
    useless = () if force_spread else tuple(e for e in new if e.spread > USELESS_SPREAD)
    if saved := tuple(e for e in new if e not in useless):
        _save(saved, say)
    if useless:
        lines = (
            f"{entry.name} is not saved: its windows differ by {entry.spread:.0%}; stop other"
            " programs there and measure again, with more --windows or --seconds; --force-spread"
            " saves it anyway"
            for entry in useless
        )
        raise MeasurementError("\n".join(lines))


def _save(new: Sequence[Entry], say: Say) -> None:
    known = every_type()
    note_unknown_types((name for entry in new for name in entry.types), known, say)
    earlier, tables = save_entries(own_folder(), new)
    before = {e.name: e for e in earlier}
    kept = {e.name: e for e in tables}
    unused = reasons(tables, known)
    for entry in new:
        name = entry.name
        old = before.get(name)
        newest = kept[name]
        if newest != entry:
            say(
                f"Note: {name} is not saved: there is a later measurement, of"
                f" {newest.measured_at.date()};"
                f" 'deepvm tables remove {name}' makes room for this one"
            )
            continue
        if old in (None, entry):
            say(f"saved: {name}, {entry.value}")
        else:
            say(f"replaced: {name}, {entry.value}\n  before: {old.described}")
        if unused[name]:
            say(f"Note: {name} is not used: {unused[name]}")
        else:
            say(f"'deepvm recommend' uses {name} from now on")
    # Where nothing changed, an undo would revert an earlier save.
    undo = "nothing changed"
    if tables.entries != earlier.entries:
        undo = "'deepvm tables restore' undoes this"
    say(f"{tables.path}: {counted(len(tables), 'measurement')}; {undo}")


def note_unknown_types(types: Iterable[str], catalog: Catalog, say: Say) -> None:
    """Note types that no catalog has: a mistyped one would never be used."""
    for name in sorted(set(types) - set(catalog.by_name)):
        text = f"Note: no catalog that comes with deepvm has a type {name}"
        say("; ".join(filter(None, (text, did_you_mean(name, catalog.by_name)))))
