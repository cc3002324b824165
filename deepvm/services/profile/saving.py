"""Read measurements from files, save them in the user's tables, and report what was saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.catalog.measured.apply import reasons
from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS, FUTURE, Entry
from deepvm.catalog.measured.tables import (
    entry_of,
    machine_type,
    own_folder,
    read_tables,
    refuse_missing_types,
    save_entries,
)
from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import every_type
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.progress import Say
from deepvm.core.spelling import did_you_mean
from deepvm.core.training.workload import Scaling
from deepvm.core.units import counted, format_time, parse_time
from deepvm.documents.inputs.tables import read_document
from deepvm.errors import DataError, MeasurementError, OptionMismatchError, RequestError

if TYPE_CHECKING:
    from deepvm.core.training.workload import Workload
    from deepvm.profiling.fit.step_fit import StepFit
    from deepvm.services.profile.options import StepsOptions


MAX_STEP_RATIO = 20.0  # Steps that differ by more from published ones are probably in another unit
# Share of the median: with a larger spread, eFLOPS differ more by chance than VM types do
USELESS_SPREAD = 0.5


def check_save(kind: str, *, local: bool = False, force_local: bool = False, **types: str) -> None:
    """Check before measuring that it can be saved. Raises RequestError, DataError."""
    # ``local``: VMs are processes of one machine
    refuse_missing_types(kind, types)
    if local and not force_local:
        allowed = "this option, or --save over real hosts: one machine's processes are not VMs"
        raise RequestError("force_local", False, allowed)
    save_entries(own_folder(), ())


def entry_from(
    document: JsonObject,
    say: Say,
    *,
    measured_at: datetime | None = None,
    name: str = "document",
    **types: str,
) -> Entry:
    """The entry of the document ``name`` of a command. Raises RequestError, CatalogFormatError."""
    given = types.get("instance_type")
    own = machine_type(document)
    if given and own not in ("", given):
        say(f"Note: {name}: the document says that it was measured on {own}; saved as {given}")
    moment = measured_at or datetime.now(timezone.utc)
    return entry_of(document, measured_at=moment, name=name, **types)


def steps_workload(options: StepsOptions) -> Workload | None:
    """The workload of the steps of a fit, None if not saved. Raises RequestError, DataError."""
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "save"}
    if not options.save:
        for name, value in given.items():
            if value:
                reason = "needs --save, for which it says what was measured"
                raise OptionMismatchError(name, value, reason)
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
    machine: JsonDict = {"instance_type": instance_type}
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
    """Save entries. Raises RequestError, DataError; after all others MeasurementError: a spread."""
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
        advice = "stop other programs there and measure again, with more --windows or --seconds"
        lines = (
            f"{entry.name} is not saved: its windows differ by {entry.spread:.0%}; {advice};"
            " --force-spread saves it anyway"
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
                f" {newest.measured_at.date()}; 'deepvm tables remove {name}' makes room for this"
                " one"
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


def read_json(path: Path, measured_at: str, types: Mapping[str, str], say: Say) -> Sequence[Entry]:
    """Measurements of a JSON file, perhaps several exported ones. Raises as :func:`entry_from`."""
    document = read_document(path)
    if not str(document.get("schema_version")).startswith("deepvm.tables/"):
        moment = _moment(measured_at, path)
        return [entry_from(document, say, **types, measured_at=moment, name=str(path))]
    for option, value in {**types, "measured_at": measured_at}.items():
        if value:
            allowed = "nothing with exported tables, which say so themselves"
            raise RequestError(option, value, allowed)
    return read_tables(path).entries


def read_csv(path: Path, measured_at: str, instance_type: str, workload: str, say: Say) -> Entry:
    """A speed-up curve of a CSV with the columns n and speedup, or n and seconds."""
    from deepvm.profiling.fit.points import read_medians, read_points
    from deepvm.profiling.fit.speedup_fit import point_doubts

    for text in point_doubts(read_points(path)):
        say(f"Note: {path}: {text}")
    document = {
        "schema_version": DOCUMENT_VERSIONS["scaling"],
        "workload": {"model": workload},
        "local": False,
        "points": [{"n": int(n), "seconds": None, "speedup": s} for n, s in read_medians(path)],
        "warnings": [],
    }
    moment = _moment(measured_at, path)
    return entry_of(document, measured_at=moment, instance_type=instance_type, name=str(path))


def _moment(text: str, path: Path) -> datetime:
    now = datetime.now(timezone.utc)
    if not text:
        return min(now, datetime.fromtimestamp(path.stat().st_mtime, timezone.utc))
    with suppress(ValueError):
        moment = parse_time(text)
        if moment.year >= 2000 and moment - now <= FUTURE:
            return moment
    allowed = "a day or a time with a zone, not in the future, such as 2026-01-31T12:00:00Z"
    raise RequestError("measured_at", text, allowed)
