"""Which measurements say what the GPUs of their type do: a wrong type is easily typed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from deepvm.catalog.measured.entries import Entry, Note
from deepvm.core.cluster.instances import Catalog, InstanceType


def usable_entries(catalog: Catalog, entries: Iterable[Entry]) -> tuple[list[Entry], list[Note]]:
    """The entries that count, and why others do not.

    Args:
        catalog: all types that are compared; entries of other types are left out without a word.
        entries: of kind ``eflops`` or ``scaling``.
    """
    usable, notes = [], []
    for entry in entries:
        instance = catalog.by_name.get(entry.instance_type)
        if instance is None:
            continue
        why = _why_not(entry, instance)
        if why:
            notes.append(Note(why, (entry.name,)))
        elif instance.gpu is not None:
            usable.append(entry)
    return usable, notes


def _why_not(entry: Entry, instance: InstanceType) -> str:
    gpu, of_eflops = instance.gpu, entry.kind == "eflops"
    if gpu is None:
        return _gpu_of_a_cpu_type(entry)
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


def _gpu_of_a_cpu_type(entry: Entry) -> str:
    if not entry.gpus:
        return ""
    return (
        f"{entry.instance_type} has no GPU, but {_what(entry)} measured on {entry.gpus[0]}: not used; "
        f"'deepvm tables remove {entry.name}' and save it under the name of its type"
    )


def another_gpu(catalog: Catalog, entries: Iterable[Entry]) -> list[str]:
    """Doubts where a machine names its GPUs and none is the type's; providers' drivers add words to names.

    Args:
        catalog: holds the types of all entries.
        entries: of kind ``eflops`` or ``scaling``.
    """
    return [
        f"{e.instance_type} has {gpu.name} GPUs, but {_what(e)} measured on {e.gpus[0]}: if that was "
        f"another type, 'deepvm tables remove {e.name}' and save it under its name"
        for e in entries
        if (gpu := catalog[e.instance_type].gpu) and e.gpus and not any(_is_model(gpu.name, n) for n in e.gpus)
    ]


def _is_model(model: str, name: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(model.lower())}(?![a-z0-9])", name.lower()) is not None


def _what(entry: Entry) -> str:
    return "its eFLOPS were" if entry.kind == "eflops" else "its curve was"
