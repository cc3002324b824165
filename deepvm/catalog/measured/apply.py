"""Apply measured eFLOPS, speed-up curves and network saturation to a catalog.

Pure: the new catalog's provenance says what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from deepvm.catalog.measured.comparable_eflops import apply_speeds, choose_workload
from deepvm.catalog.measured.curves import apply_curves, curve_doubts
from deepvm.catalog.measured.entries import Applied, Entry
from deepvm.catalog.measured.saturation_pairs import apply_pairs
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.provenance import Measurement
from deepvm.errors import RequestError


def apply(tables: Iterable[Entry], catalog: Catalog, workload: str = "", among: Sequence[Catalog] = ()) -> Applied:
    """Replace a catalog's figures by measured ones.

    - ``eflops``: by the rules of :mod:`deepvm.catalog.measured.comparable_eflops`.
    - ``scaling``: the type's ``measured`` curve, by the rules of :mod:`deepvm.catalog.measured.curves`; with at least
      three sizes above 1 it becomes the default, with its ``ring``, and types with the same GPU and curves follow.
    - ``saturation``: see :mod:`deepvm.catalog.measured.saturation_pairs`.

    Args:
        tables: what was measured.
        catalog: what is known otherwise; it remains as it is when nothing concerns it.
        workload: the beginning of the workload that counts, such as ``resnet50``; empty for the rule.
        among: all catalogs that are compared with this one, such as those of other regions: their eFLOPS must come
            to one scale.

    Raises:
        RequestError: nothing was measured with this workload, or it is the beginning of several models.
    """
    trained = [e for e in tables if e.kind != "saturation"]
    if workload:
        trained = _of_workload(trained, workload)
    known = Catalog("known", tuple({i.name: i for c in (*reversed(among), catalog) for i in c}.values()))
    applied = Applied(catalog)
    # What cannot be used has no say in which workload counts.
    speeds_of = _usable(applied, known, [e for e in trained if e.kind == "eflops"])
    chosen = choose_workload(speeds_of, known)
    applied.doubts += _another_gpu(known, speeds_of)
    apply_speeds(applied, speeds_of, chosen, known)
    curves_of = _usable(applied, known, [e for e in trained if e.kind == "scaling"])
    of_curves, general = apply_curves(applied, curves_of, chosen, known)
    apply_pairs(applied, [e for e in tables if e.kind == "saturation"], known)
    if not applied.used and not applied.notes:
        return Applied(catalog)
    applied.doubts += _another_gpu(known, general.values())
    speeds = {e.subject for e in speeds_of if e.workload == chosen}
    applied.doubts += curve_doubts(applied.catalog, general, of_curves, chosen, speeds)
    about = catalog.provenance
    provenance = replace(
        about,
        measured=tuple(Measurement(e.kind, e.subject, e.workload, e.measured_at, e.value) for e in applied.used),
        doubts=(*about.doubts, *applied.doubts),
        notes=(*about.notes, *applied.notes),
    )
    applied.catalog = replace(applied.catalog, provenance=provenance)
    applied.workloads = (chosen, of_curves)
    return applied


def reasons(tables: Iterable[Entry], catalog: Catalog) -> dict[str, str]:
    """Why entries are not used in a catalog of all types that could be recommended; empty for those that are."""
    found = apply(tables, catalog)
    used = {e.name for e in found.used}
    return {
        e.name: "" if e.name in used else found.unused.get(e.name) or _not_concerned(e, catalog, found.workloads)
        for e in tables
    }


def _not_concerned(entry: Entry, catalog: Catalog, workloads: tuple[str, str]) -> str:
    if entry.kind == "saturation":
        if not {entry.sender_type, entry.receiver_type} & catalog.by_name.keys():
            return f"the catalog has neither a type {entry.sender_type} nor {entry.receiver_type}"
        return "of several measurements at one bandwidth the smallest n_sat holds"
    instance = catalog.by_name.get(entry.instance_type)
    if instance is None:
        return f"the catalog has no type {entry.instance_type}"
    if instance.gpu is None:
        return f"{entry.instance_type} has no GPU, and only types with GPUs train"
    return f"{workloads[entry.kind == 'scaling']} counts for {entry.instance_type}; --workload chooses"


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    """The entries of the workload that begins so: a whole word of it, or the beginning of one model's name."""
    found = [e for e in entries if f"{e.workload}/".startswith(f"{workload}/")]
    begins = [e for e in entries if e.workload.startswith(workload)]
    if not found and len({e.workload.partition("/")[0] for e in begins}) == 1:
        return begins
    if not found:
        known = ", ".join(sorted({e.workload for e in entries})) or "none, because nothing was measured yet"
        raise RequestError("workload", workload, f"one that was measured: {known}")
    return found


def _usable(applied: Applied, known: Catalog, entries: Iterable[Entry]) -> list[Entry]:
    """The entries that say what the GPUs of a known type do; notes why others do not."""
    usable = []
    for entry in entries:
        instance = known.by_name.get(entry.instance_type)
        if instance is None:
            continue
        why = _why_not(entry, instance)
        if why:
            applied.note(why, entry)
        elif instance.gpu is not None:
            usable.append(entry)
    return usable


def _why_not(entry: Entry, instance: InstanceType) -> str:
    gpu, of_eflops = instance.gpu, entry.kind == "eflops"
    if gpu is None:
        if not entry.gpus:
            return ""
        return (
            f"{entry.instance_type} has no GPU, but {_what(entry)} measured on {entry.gpus[0]}: not used; "
            f"'deepvm tables remove {entry.name}' and save it under the name of its type"
        )
    if entry.on_cpu and of_eflops:
        return (
            f"eFLOPS of {instance.name} were measured on its processors, not on its {gpu.name}: "
            f"they are not used; 'deepvm tables remove {entry.name}' removes them"
        )
    if entry.on_cpu:
        return (
            f"the curve of {instance.name} was measured on its processors, whose steps are longer than its "
            f"GPUs', so it is not used; 'deepvm tables remove {entry.name}' removes it"
        )
    took_part = entry.document.get("processes") or len(entry.gpus)
    if of_eflops and isinstance(took_part, int) and 0 < took_part < gpu.count:
        return (
            f"eFLOPS of {instance.name} were measured on {took_part} of its {gpu.count} GPUs, and "
            "all of them would train: they are not used; measure all, without --processes"
        )
    return ""


def _another_gpu(known: Catalog, entries: Iterable[Entry]) -> list[str]:
    """Doubts where a machine names its GPUs and none is the type's; providers' drivers add words to names."""
    return [
        f"{e.instance_type} has {gpu.name} GPUs, but {_what(e)} measured on {e.gpus[0]}: if that was "
        f"another type, 'deepvm tables remove {e.name}' and save it under its name"
        for e in entries
        if (gpu := known[e.instance_type].gpu) and e.gpus and not any(_is_model(gpu.name, n) for n in e.gpus)
    ]


def _is_model(model: str, name: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(model.lower())}(?![a-z0-9])", name.lower()) is not None


def _what(entry: Entry) -> str:
    return "its eFLOPS were" if entry.kind == "eflops" else "its curve was"
