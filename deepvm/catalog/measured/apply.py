"""Apply measured eFLOPS, speed-up curves and network saturation to a catalog.

Pure: the new catalog's provenance says what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from deepvm.catalog.measured.comparable_eflops import apply_speeds, choose_workload
from deepvm.catalog.measured.curves import apply_curves, curve_doubts
from deepvm.catalog.measured.entries import Entry, MeasuredCatalog
from deepvm.catalog.measured.steps import step_times
from deepvm.core.cluster.instances import Catalog
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
    entries = list(tables)
    trained = [e for e in entries if e.kind in ("eflops", "scaling")]
    if workload:
        trained = _of_workload(trained, workload)
    types = {i.name: i for c in (*reversed(among), catalog) for i in c}
    all_types = Catalog("all types", tuple(types.values()))
    applied = MeasuredCatalog(catalog)
    # What cannot be used has no say in which workload counts.
    speeds_of = _usable(applied, all_types, [e for e in trained if e.kind == "eflops"])
    eflops_workload = choose_workload(speeds_of)
    applied.doubts += _another_gpu(all_types, speeds_of)
    apply_speeds(applied, speeds_of, eflops_workload, all_types)
    curves_of = _usable(applied, all_types, [e for e in trained if e.kind == "scaling" and e.sizes])
    curve_workload, general = apply_curves(applied, curves_of, eflops_workload, all_types)
    _apply_pairs(applied, entries, all_types)
    applied.doubts += _another_gpu(all_types, general.values())
    speeds = {e.subject for e in speeds_of if e.workload == eflops_workload}
    applied.doubts += curve_doubts(
        applied.catalog, general, curve_workload, eflops_workload, speeds
    )
    return _finished(applied, catalog, [_measurement(e, e.kind) for e in applied.used])


def _finished(
    applied: MeasuredCatalog, before: Catalog, measured: Sequence[Measurement]
) -> MeasuredCatalog:
    """Say in the catalog's provenance what was measured, and what to think of it."""
    if not measured and not applied.notes:
        return replace(applied, catalog=before, doubts=[])
    about = applied.catalog.provenance
    provenance = replace(
        about,
        measured=tuple(measured),
        doubts=(*about.doubts, *applied.doubts),
        notes=(*about.notes, *applied.notes),
    )
    return replace(applied, catalog=replace(applied.catalog, provenance=provenance))


def _measurement(entry: Entry, kind: str) -> Measurement:
    about = (entry.subject, entry.workload, entry.measured_at, entry.value, len(entry.steps))
    return Measurement(kind, *about)


def apply_steps(
    tables: Iterable[Entry], catalog: Catalog, workload: Workload, software: str
) -> MeasuredCatalog:
    """A catalog whose provenance names the measured steps of a workload.

    Measured saturation is in it. The steps themselves are for
    :class:`deepvm.catalog.measured.steps.MeasuredPerformance`; eFLOPS and curves say
    nothing about a workload.
    """
    applied = MeasuredCatalog(catalog)
    entries = list(tables)
    _apply_pairs(applied, entries, catalog)
    measured = [_measurement(e, e.kind) for e in applied.used]
    gpus = {i.gpu.name.casefold() for i in catalog if i.gpu is not None}
    for group in step_times(entries, catalog.by_name)[0]:
        gpu = group.gpu
        of_model = group.trained.model == workload.model.name
        if gpu is None or gpu.name.casefold() not in gpus or not of_model:
            continue
        if reason := group.trained.differs(workload, gpu, software):
            text = f"steps of {group.instance_type} are not used: {reason}"
            applied.note(text, *group.entries)
            continue
        applied.used += group.entries
        measured += [_measurement(e, "steps") for e in group.entries]
        applied.doubts += _another_gpu(catalog, group.entries)
    return _finished(applied, catalog, measured)


def reasons(tables: Iterable[Entry], catalog: Catalog) -> dict[str, str]:
    """Why entries are not used in a catalog of all types that could be recommended.

    Empty for those that are.
    """
    entries = list(tables)
    applied = apply(entries, catalog)
    groups, unused = step_times(entries, catalog.by_name)
    with_gpu = [e for group in groups if group.gpu is not None for e in group.entries]
    used = {e.name for e in (*applied.used, *with_gpu)}
    known = unused | applied.unused | dict.fromkeys(used, "")
    unknown = "its GPU, or what was trained, is not known here"
    return {e.name: known.get(e.name, unknown) for e in entries}


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    """The entries of the workload that begins so.

    What is given is a whole word of it, or the beginning of one model's name.
    """
    words = [e for e in entries if f"{e.workload}/".startswith(f"{workload}/")]
    begins = [e for e in entries if e.workload.startswith(workload)]
    if words or len({e.workload.partition("/")[0] for e in begins}) == 1:
        return words or begins
    known = ", ".join(sorted({e.workload for e in entries})) or "none, nothing was measured yet"
    raise RequestError("workload", workload, f"one that was measured: {known}")


def _usable(applied: MeasuredCatalog, all_types: Catalog, entries: Iterable[Entry]) -> list[Entry]:
    """The entries that say what the GPUs of a known type do; notes why others do not."""
    usable = []
    for entry in entries:
        instance = all_types.by_name.get(entry.instance_type)
        reason = entry.misfit(instance)
        if instance is None:
            reason = f"the catalog has no type {entry.instance_type}"
        if not reason:
            usable.append(entry)
        elif instance is None or (instance.gpu is None and not entry.gpus):
            applied.unused[entry.name] = reason
        else:
            applied.note(f"{reason}; 'deepvm tables remove {entry.name}' removes it", entry)
    return usable


def _another_gpu(all_types: Catalog, entries: Iterable[Entry]) -> list[str]:
    """Doubts where a machine names its GPUs and none is the type's."""
    doubts = []
    for entry in entries:
        instance = all_types.by_name.get(entry.instance_type)
        if instance is None or instance.gpu is None or not entry.gpus:
            continue
        gpu = instance.gpu.name
        # Providers' drivers add words to names.
        model = re.compile(rf"\b{re.escape(gpu)}\b", re.IGNORECASE)
        if not any(map(model.search, entry.gpus)):
            doubts.append(
                f"{entry.instance_type} has {gpu} GPUs, but {entry.what_was} measured on"
                f" {entry.gpus[0]}: if that was another type, 'deepvm tables remove {entry.name}'"
                " and save it under its name"
            )
    return doubts


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
    published = dict(zip(catalog.n_sat.network_gbps, catalog.n_sat.n_sat, strict=True))
    table = dict(published)
    own: dict[float, int] = {}
    known = []
    for entry in entries:
        if entry.kind != "saturation":
            continue
        senders, seen = entry.senders
        if all_types.by_name.keys().isdisjoint(entry.types):
            types = " nor ".join(entry.types)
            applied.unused[entry.name] = f"the catalog has neither a type {types}"
        elif gbps := _bandwidth(entry, all_types, catalog.memory_nodes):
            # Knees first, of one bandwidth the smallest; then bounds, of one the largest.
            known.append(((0, -gbps, senders) if seen else (1, gbps, -senders), gbps, entry))
        else:
            why = f"n_sat of {entry.subject} is not used: the bandwidth of the pair is unknown"
            applied.note(why, entry)
    for _, gbps, entry in sorted(known, key=itemgetter(0)):
        senders, seen = entry.senders
        if seen and gbps in own:
            why = "of several measurements at one bandwidth the smallest n_sat holds"
            applied.unused[entry.name] = why
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
        if gbps not in table:
            applied.note(f"n_sat {n} at {gbps:g} Gbit/s gives way: more was measured at less")
        elif gbps not in own and table[gbps] != n:
            what = f"n_sat at {gbps:g} Gbit/s comes down from {n} to {table[gbps]}"
            applied.note(f"{what}, measured here at more bandwidth")
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
