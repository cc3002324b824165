"""Apply measured eFLOPS, speed-up curves and network saturation to a catalog.

Pure: the new catalog's provenance says what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from deepvm.catalog.measured.comparable_eflops import apply_speeds, choose_workload
from deepvm.catalog.measured.curves import apply_curves, curve_doubts
from deepvm.catalog.measured.entries import Entry, MeasuredCatalog
from deepvm.catalog.measured.steps import step_times
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.memory_nodes import MemoryNodeRule, SaturationTable
from deepvm.core.cluster.provenance import Measurement
from deepvm.core.training.workload import Workload
from deepvm.errors import RequestError


def apply(
    tables: Iterable[Entry], catalog: Catalog, workload: str = "", among: Sequence[Catalog] = ()
) -> MeasuredCatalog:
    """Replace a catalog's figures by measured ones.

    - ``eflops``: by the rules of :mod:`deepvm.catalog.measured.comparable_eflops`.
    - ``scaling``: the type's ``measured`` curve, by the rules of
      :mod:`deepvm.catalog.measured.curves`; with at least three sizes above 1 it becomes the
      default, with its ``ring``, and types with the same GPU and curves follow.
    - ``saturation``: at the bandwidth where the planner looks; of measurements that contradict each
      other the smaller.

    Args:
        tables: what was measured.
        catalog: what is known otherwise; it remains as it is when nothing concerns it.
        workload: the beginning of the workload that counts, such as ``resnet50``; empty for the
            rule.
        among: all catalogs that are compared with this one, such as those of other regions: their
            eFLOPS must come to one scale.

    Raises:
        RequestError: nothing was measured with this workload, or it is the beginning of several
            models.
    """
    trained = [e for e in tables if e.kind in ("eflops", "scaling")]
    if workload:
        trained = _of_workload(trained, workload)
    all_types = Catalog(
        "all types", tuple({i.name: i for c in (*reversed(among), catalog) for i in c}.values())
    )
    applied = MeasuredCatalog(catalog)
    # What cannot be used has no say in which workload counts.
    speeds_of = _usable(applied, all_types, [e for e in trained if e.kind == "eflops"])
    eflops_workload = choose_workload(speeds_of)
    applied.doubts += _another_gpu(all_types, speeds_of)
    apply_speeds(applied, speeds_of, eflops_workload, all_types)
    curves_of = _usable(applied, all_types, [e for e in trained if e.kind == "scaling" and e.sizes])
    curve_workload, general = apply_curves(applied, curves_of, eflops_workload, all_types)
    _apply_pairs(applied, [e for e in tables if e.kind == "saturation"], all_types)
    if not applied.used and not applied.notes:
        return MeasuredCatalog(catalog)
    applied.doubts += _another_gpu(all_types, general.values())
    speeds = {e.subject for e in speeds_of if e.workload == eflops_workload}
    applied.doubts += curve_doubts(
        applied.catalog, general, curve_workload, eflops_workload, speeds
    )
    applied.workloads = (eflops_workload, curve_workload)
    return _finished(applied, [_measurement(entry) for entry in applied.used])


def _finished(applied: MeasuredCatalog, measured: Sequence[Measurement]) -> MeasuredCatalog:
    """Say in the catalog's provenance what was measured, and what to think of it."""
    about = applied.catalog.provenance
    provenance = replace(
        about,
        measured=tuple(measured),
        doubts=(*about.doubts, *applied.doubts),
        notes=(*about.notes, *applied.notes),
    )
    applied.catalog = replace(applied.catalog, provenance=provenance)
    return applied


def _measurement(entry: Entry, kind: str = "") -> Measurement:
    about = (entry.subject, entry.workload, entry.measured_at, entry.value, len(entry.steps))
    return Measurement(kind or entry.kind, *about)


def apply_steps(
    tables: Iterable[Entry], catalog: Catalog, workload: Workload, software: str
) -> MeasuredCatalog:
    """A catalog whose provenance names the measured steps of a workload.

    Measured saturation is in it. The steps themselves are for
    :class:`deepvm.catalog.measured.measured_performance.MeasuredPerformance`; eFLOPS and curves say
    nothing about a workload.
    """
    applied = MeasuredCatalog(catalog)
    entries = list(tables)
    if pairs := [e for e in entries if e.kind == "saturation"]:
        _apply_pairs(applied, pairs, catalog)
    used = [_measurement(e) for e in applied.used]
    there = {i.gpu.name.casefold() for i in catalog if i.gpu is not None}
    for group in step_times(entries, catalog.by_name)[0]:
        if (
            group.gpu is None
            or group.gpu.name.casefold() not in there
            or group.trained.model != workload.model.name
        ):
            continue
        if why := group.trained.differs(workload, group.gpu, software):
            applied.note(f"steps of {group.instance_type} are not used: {why}", *group.entries)
            continue
        applied.used += group.entries
        used += [_measurement(e, "steps") for e in group.entries]
        applied.doubts += _another_gpu(
            catalog, [e for e in group.entries if e.instance_type in catalog.by_name]
        )
    if used or applied.notes:
        return _finished(applied, used)
    return applied


def reasons(tables: Iterable[Entry], catalog: Catalog) -> dict[str, str]:
    """Why entries are not used in a catalog of all types that could be recommended.

    Empty for those that are.
    """
    found = apply(tables, catalog)
    steps, unused = step_times(tables, catalog.by_name)
    with_gpu = [e for group in steps if group.gpu is not None for e in group.entries]
    used = {e.name for e in (*found.used, *with_gpu)}
    known = unused | found.unused | dict.fromkeys(used, "")
    return {
        e.name: known[e.name] if e.name in known else _not_concerned(e, catalog, found.workloads)
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
    if entry.kind == "steptime":
        return f"the data sheet of its GPU, {instance.gpu.name}, is not known here"
    return (
        f"{workloads[entry.kind == 'scaling']} counts for {entry.instance_type}; --workload chooses"
    )


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    """The entries of the workload that begins so.

    What is given is a whole word of it, or the beginning of one model's name.
    """
    found = [e for e in entries if f"{e.workload}/".startswith(f"{workload}/")]
    begins = [e for e in entries if e.workload.startswith(workload)]
    if found:
        return found
    if len({e.workload.partition("/")[0] for e in begins}) == 1:
        return begins
    known = ", ".join(sorted({e.workload for e in entries})) or "none, nothing was measured yet"
    raise RequestError("workload", workload, f"one that was measured: {known}")


def _usable(applied: MeasuredCatalog, all_types: Catalog, entries: Iterable[Entry]) -> list[Entry]:
    """The entries that say what the GPUs of a known type do; notes why others do not."""
    usable = []
    for entry in entries:
        instance = all_types.by_name.get(entry.instance_type)
        if instance is None:
            continue
        why = _why_not(entry, instance)
        if why:
            applied.note(why, entry)
        elif instance.gpu is not None:
            usable.append(entry)
    return usable


def _why_not(entry: Entry, instance: InstanceType) -> str:
    gpu = instance.gpu
    cure = f"'deepvm tables remove {entry.name}' removes it"
    if gpu is None:
        if not entry.gpus:
            return ""
        return (
            f"{entry.instance_type} has no GPU, but {_what(entry)} measured on"
            f" {entry.gpus[0]}; {cure}"
        )
    if entry.on_cpu:
        return (
            f"{_what(entry)} measured on its processors, not on its {gpu.name}, for"
            f" {instance.name}: not used; {cure}"
        )
    took_part = entry.document.get("processes") or len(entry.gpus)
    if entry.kind == "eflops" and isinstance(took_part, int) and 0 < took_part < gpu.count:
        return (
            f"eFLOPS of {instance.name} were measured on {took_part} of its {gpu.count} GPUs: not"
            " used; measure all, without --processes"
        )
    return ""


def _another_gpu(all_types: Catalog, entries: Iterable[Entry]) -> list[str]:
    """Doubts where a machine names its GPUs and none is the type's."""
    doubts = []
    for entry in entries:
        gpu = all_types[entry.instance_type].gpu
        if gpu is None or not entry.gpus:
            continue
        # Providers' drivers add words to names.
        model = re.compile(rf"\b{re.escape(gpu.name)}\b", re.IGNORECASE)
        if not any(map(model.search, entry.gpus)):
            doubts.append(
                f"{entry.instance_type} has {gpu.name} GPUs, but {_what(entry)} measured on"
                f" {entry.gpus[0]}: if that was another type, 'deepvm tables remove {entry.name}'"
                " and save it under its name"
            )
    return doubts


def _what(entry: Entry) -> str:
    return {"eflops": "its eFLOPS were", "scaling": "its curve was"}.get(
        entry.kind, "its steps were"
    )


def _apply_pairs(applied: MeasuredCatalog, entries: Sequence[Entry], all_types: Catalog) -> None:
    """Merge n_sat measured between two types into a catalog's table of n_sat by bandwidth.

    The table is DeepVM's Table V. A pair's row is at the bandwidth by which the planner looks n_sat
    up, min(sender, receiver) in the catalog, not at the bandwidth that was seen: one stream of a
    25 Gbit/s VM may reach 5. For a type that the catalog does not know, the document's bandwidth
    counts.

    n_sat must not fall as bandwidth grows. A measured knee replaces the published row of its
    bandwidth, lowers larger rows of less bandwidth, and removes smaller rows of more bandwidth. Of
    contradicting measurements the smaller holds: it only asks for more memory nodes. A measurement
    without a knee up to N senders means n_sat >= N: it lifts a row and never lowers one.
    """
    catalog = applied.catalog
    known = []
    for entry in entries:
        if not {entry.sender_type, entry.receiver_type} & all_types.by_name.keys():
            continue
        gbps = _bandwidth(entry, all_types, catalog.memory_nodes)
        senders, seen = entry.senders
        if gbps is None:
            applied.note(
                f"n_sat of {entry.subject} is not used: the bandwidth of the pair is unknown",
                entry,
            )
        else:
            known.append((gbps, senders, seen, entry))
    published = dict(zip(catalog.n_sat.network_gbps, map(int, catalog.n_sat.n_sat), strict=True))
    table = dict(published)
    own: dict[float, int] = {}
    # Knees first, of one bandwidth the smallest; then bounds, of one bandwidth the largest.
    for gbps, senders, seen, entry in sorted(
        known, key=lambda k: (0, -k[0], k[1]) if k[2] else (1, k[0], -k[1])
    ):
        if seen and gbps in own:
            continue
        lifted = min([senders, *(n for g, n in own.items() if g >= gbps)])
        now = int(SaturationTable.from_rows(list(table.items())).lookup(gbps))
        if not seen and lifted <= now:
            applied.note(
                f"n_sat of {entry.subject} stays {now}: no saturation was seen up to {senders}"
                " senders; measure with more to know it",
                entry,
            )
            continue
        own[gbps] = lifted
        larger = {g: n for g, n in table.items() if g > gbps and n >= lifted}
        smaller = {g: min(n, lifted) for g, n in table.items() if g < gbps}
        table = smaller | {gbps: lifted} | larger
        applied.used.append(entry)
    for gbps, n in published.items():
        if gbps in own or table.get(gbps) == n:
            continue
        if gbps in table:
            what = f"n_sat at {gbps:g} Gbit/s comes down from {n} to {table[gbps]}"
            applied.note(f"{what}, measured here at more bandwidth")
        else:
            applied.note(f"n_sat {n} at {gbps:g} Gbit/s gives way: more was measured at less")
    applied.catalog = replace(catalog, n_sat=SaturationTable.from_rows(list(table.items())))


def _bandwidth(entry: Entry, all_types: Catalog, rule: MemoryNodeRule) -> float | None:
    """Gbit/s of a pair, min(sender, receiver), None if unknown."""
    sender = all_types.by_name.get(entry.sender_type)
    receiver = all_types.by_name.get(entry.receiver_type)
    sent = (sender and sender.network_gbps) or entry.document.get("sender_gbps")
    received = receiver and receiver.memory_node_gbps(rule)
    received = received or entry.document.get("receiver_gbps")
    if sent is None or received is None:
        return None
    return float(min(sent, received))
