"""Apply measured eFLOPS, speed-up curves and network saturation to a catalog.

Pure: the new catalog's provenance says what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from deepvm.catalog.measured.comparable_eflops import apply_speeds, choose_workload
from deepvm.catalog.measured.curves import apply_curves
from deepvm.catalog.measured.entries import Entry, MeasuredCatalog
from deepvm.catalog.measured.steps import step_times
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.memory_nodes import MemoryNodeRule, SaturationTable
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
        catalog: the figures to replace; it is returned unchanged when no entry concerns it.
        workload: the start of the workload that counts, such as ``resnet50``; empty: chosen by
            the rule.
        among: all catalogs that are compared with this one, such as those of other regions: their
            eFLOPS must come to one scale.

    Raises:
        RequestError: nothing was measured with this workload, or it is the start of several
            models.
    """
    entries = list(tables)
    trained = [e for e in entries if e.kind in ("eflops", "scaling")]
    if workload:
        trained = _of_workload(trained, workload)
    types = {i.name: i for c in (*reversed(among), catalog) for i in c}
    applied = MeasuredCatalog(catalog, types)
    # Unusable entries must not decide which workload counts.
    usable = _usable(applied, (e for e in trained if e.kind == "eflops" or e.sizes))
    speeds = [e for e in usable if e.kind == "eflops"]
    eflops_workload = choose_workload(speeds)
    apply_speeds(applied, speeds, eflops_workload)
    apply_curves(applied, [e for e in usable if e.kind == "scaling"], speeds, eflops_workload)
    _apply_pairs(applied, entries)
    return applied.finished(catalog)


def apply_steps(
    tables: Iterable[Entry], catalog: Catalog, workload: Workload, software: str
) -> MeasuredCatalog:
    """A catalog whose provenance names the measured steps of a workload.

    Measured saturation is in it. The steps themselves are for
    :class:`deepvm.catalog.measured.steps.MeasuredPerformance`; eFLOPS and curves say
    nothing about a workload.
    """
    applied = MeasuredCatalog(catalog, catalog.by_name)
    entries = list(tables)
    _apply_pairs(applied, entries)
    gpus = {i.gpu.name.casefold() for i in catalog if i.gpu is not None}
    for group in step_times(entries, catalog.by_name)[0]:
        gpu = group.gpu
        of_model = group.trained.model == workload.model.name
        if gpu is None or gpu.name.casefold() not in gpus or not of_model:
            continue
        if reason := group.trained.differs(workload, gpu, software):
            text = f"steps of {group.instance_type} are not used: {reason}"
            applied.note(text, *group.entries)
        else:
            applied.use(group.entries, "steps")
    return applied.finished(catalog)


def reasons(tables: Iterable[Entry], catalog: Catalog) -> dict[str, str]:
    """Why entries are not used in a catalog of all types that could be recommended.

    Empty for those that are.
    """
    entries = list(tables)
    groups, unused = step_times(entries, catalog.by_name)
    known = unused | apply(entries, catalog).reasons
    known |= {e.name: "" for group in groups if group.gpu is not None for e in group.entries}
    unknown = "its GPU, or what was trained, is not known here"
    return {e.name: known.get(e.name, unknown) for e in entries}


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    """The entries whose workload starts with a text.

    The text is one or more whole parts of the workload, or the start of one model's name.
    """
    words = [e for e in entries if f"{e.workload}/".startswith(f"{workload}/")]
    matching = [e for e in entries if e.workload.startswith(workload)]
    if words or len({e.workload.partition("/")[0] for e in matching}) == 1:
        return words or matching
    known = ", ".join(sorted({e.workload for e in entries})) or "none, nothing was measured yet"
    raise RequestError("workload", workload, f"one that was measured: {known}")


def _usable(applied: MeasuredCatalog, entries: Iterable[Entry]) -> list[Entry]:
    """The entries that say what the GPUs of a known type do; notes why others do not."""
    usable = []
    for entry in entries:
        instance = applied.types.get(entry.subject)
        reason = entry.misfit(instance)
        if instance is None:
            applied.reasons[entry.name] = f"the catalog has no type {entry.subject}"
        elif not reason:
            usable.append(entry)
        elif instance.gpu is None and not entry.gpus:
            applied.reasons[entry.name] = reason
        else:
            applied.note(f"{reason}; 'deepvm tables remove {entry.name}' removes it", entry)
    return usable


def _apply_pairs(applied: MeasuredCatalog, entries: Sequence[Entry]) -> None:
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
    own: dict[float, int] = {}
    known: dict[bool, list[tuple[float, int, Entry]]] = {True: [], False: []}
    for entry in entries:
        if entry.kind != "saturation":
            continue
        senders, seen = entry.senders
        gbps = _bandwidth(entry, applied.types, catalog.memory_nodes)
        if applied.types.keys().isdisjoint(entry.types):
            types = " nor ".join(entry.types)
            applied.reasons[entry.name] = f"the catalog has neither a type {types}"
        elif gbps is None:
            reason = f"n_sat of {entry.subject} is not used: the bandwidth of the pair is unknown"
            applied.note(reason, entry)
        else:
            known[seen].append((gbps, senders, entry))
    for gbps, senders, entry in sorted(known[True], key=lambda row: (-row[0], row[1])):
        if gbps in own:
            reason = "of several measurements at one bandwidth the smallest n_sat holds"
            applied.reasons[entry.name] = reason
            continue
        own[gbps] = min([senders, *own.values()])
        applied.use([entry])
    for gbps, senders, entry in sorted(known[False], key=lambda row: (row[0], -row[1])):
        now = int(_joined(published, own).lookup(gbps))
        lifted = min([senders, *(n for g, n in own.items() if g >= gbps)])
        if lifted > now:
            own[gbps] = lifted
            applied.use([entry])
            continue
        applied.note(
            f"n_sat of {entry.subject} stays {now}: no saturation was seen up to {senders}"
            " senders; measure with more to know it",
            entry,
        )
    table = _joined(published, own)
    for gbps, n in published.items():
        now = int(table.lookup(gbps))
        if now > n and gbps not in own:
            applied.note(f"n_sat {n} at {gbps:g} Gbit/s gives way: more was measured at less")
        elif now < n and gbps not in own:
            change = f"n_sat at {gbps:g} Gbit/s comes down from {n} to {now}"
            applied.note(f"{change}, measured here at more bandwidth")
    applied.catalog = replace(catalog, n_sat=table)


def _joined(published: Mapping[float, int], own: Mapping[float, int]) -> SaturationTable:
    """One table that never decreases, in which measured rows hold."""
    table = dict(own)
    for gbps, n in published.items():
        below = [count for at, count in own.items() if at <= gbps]
        above = [count for at, count in own.items() if at >= gbps]
        if gbps not in own and n >= max(below, default=0):
            table[gbps] = min([n, *above])
    return SaturationTable.from_rows(list(table.items()))


def _bandwidth(
    entry: Entry, types: Mapping[str, InstanceType], rule: MemoryNodeRule
) -> float | None:
    """Gbit/s of a pair, min(sender, receiver), None if unknown."""
    sender, receiver = map(types.get, entry.types)
    sent = (sender and sender.network_gbps) or entry.document.get("sender_gbps")
    received = receiver and receiver.memory_node_gbps(rule)
    received = received or entry.document.get("receiver_gbps")
    if sent is None or received is None:
        return None
    return float(min(sent, received))
