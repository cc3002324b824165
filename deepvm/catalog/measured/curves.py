"""Measured speed-up curves: which are used, for which types, and which are not comparable.

The throughput of a cluster is eFLOPS x S(n), so a curve must match the eFLOPS of its type and the
curves of the types that it is ranked with. Speed-ups of two workloads may differ several times at
the same n. So:

1. Only curves of one workload count: the one that was asked for, else that of the measured eFLOPS
   (or of its model), else the one measured on the most types, else the latest. Others are kept but
   rank nothing.
2. Types that were not measured use the catalog's curves and eFLOPS, perhaps of another workload
   (the paper does not name it): a warning says so, and what to measure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from deepvm.catalog.measured.comparable_eflops import (
    choose_workload,
    smallest_of_each_gpu,
    speed_is_ours,
)
from deepvm.catalog.measured.entries import Entry, MeasuredCatalog, same_workload
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.speedup import MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.core.spelling import listed
from deepvm.core.units import counted

FEWEST_SIZES = 3
"""Sizes above 1 that a curve needs to become a type's own default.

The ring beyond them has two parameters.
"""

_HERE = "measured here, "


def apply_curves(
    applied: MeasuredCatalog,
    entries: Sequence[Entry],
    speeds: Sequence[Entry],
    eflops_workload: str,
) -> None:
    """Put measured curves into a catalog's types.

    Types that shared a measured type's curves change as well. ``speeds`` are the measured eFLOPS,
    ``eflops_workload`` the workload of those that count.
    """
    wanted = _workload(entries, eflops_workload)
    applied.skip(entries, wanted)
    by_type: dict[str, list[Entry]] = {}
    for entry in entries:
        by_type.setdefault(entry.subject, []).append(entry)
    general: dict[str, Entry] = {}
    for name, own in by_type.items():
        fit = [e for e in own if same_workload(e.workload, wanted)]
        if fit:
            general[name] = max(fit, key=lambda e: (e.workload == wanted, e.measured_at))
            continue
        theirs = " and ".join(sorted({e.workload for e in own}))
        applied.note(
            f"the speed-up of {name} was measured with {theirs}, what counts here with {wanted}:"
            " they do not compare, so it is not used; --workload chooses, or measure both with one"
            " workload",
            *own,
        )
    defaults = {name: e for name, e in general.items() if e.sizes >= FEWEST_SIZES}
    instances = []
    for instance in applied.catalog:
        name = instance.name
        if name not in by_type:
            name = _alike(instance, applied.types, defaults)
        if name:
            instance = _with_curves(instance, by_type[name], general.get(name))
        instances.append(instance)
    applied.catalog = replace(applied.catalog, instances=tuple(instances))
    applied.use(e for name, e in general.items() if name in applied.catalog.by_name)
    fast = {e.subject for e in speeds if e.workload == eflops_workload}
    for name, entry in general.items():
        of = eflops_workload if name in fast else entry.workload
        applied.doubts += _curve_doubts(entry, of)
    applied.doubts += _ranking_doubts(applied.catalog, defaults, wanted)


def _workload(entries: Sequence[Entry], eflops_workload: str) -> str:
    if any(same_workload(e.workload, eflops_workload) for e in entries):
        return eflops_workload
    # Curves that are too short to be a default decide only if all are.
    enough = [e for e in entries if e.sizes >= FEWEST_SIZES] or entries
    alike = [e for e in enough if e.workload.partition("/")[0] == eflops_workload.partition("/")[0]]
    return choose_workload(alike or enough)


def _curve_doubts(entry: Entry, eflops_workload: str) -> Iterator[str]:
    """Warnings about one curve, next to eFLOPS of the same type."""
    about = f"the curve of {entry.subject} was measured"
    if entry.local:
        yield f"{about} with processes of one machine, not with VMs"
    if entry.sizes < FEWEST_SIZES:
        sizes = counted(entry.sizes, "size")
        yield (f"{about} at {sizes} above 1, too few: it counts only with --speedup measured")
    if not same_workload(entry.workload, eflops_workload):
        yield f"{about} with {entry.workload}, its eFLOPS with {eflops_workload}"


def _ranking_doubts(catalog: Catalog, defaults: Collection[str], workload: str) -> Iterator[str]:
    """Rule 2: doubts about ranking measured curves next to figures that may not be comparable."""
    # Types with estimated eFLOPS rank only with --estimates, which says so itself.
    ranked = [
        i for i in catalog if i.gpu is not None and i.eflops is not None and not i.eflops_basis
    ]
    own = sorted(i.name for i in ranked if i.name in defaults)
    rest = []
    for instance in ranked:
        curve = instance.curve(instance.default_speedup)
        if curve is None or not curve.source.startswith(_HERE):
            rest.append(instance)
    published = [i.name for i in ranked if i.name in defaults and not speed_is_ours(i)]
    if own and rest:
        go = "goes" if len(rest) == 1 else "go"
        yield (
            f"the speed-up of {listed(own)} was measured here with {workload}, and"
            f" {listed([i.name for i in rest])} {go} by the catalog's, which may be of another"
            " workload: they compare only as far as both scale alike; run 'deepvm profile scaling'"
            f" with {workload} on {listed(smallest_of_each_gpu(rest))} too"
        )
    if published:
        yield (
            f"the eFLOPS of {listed(published)} are the catalog's, perhaps of another workload than"
            f" {workload}, with which the speed-up was measured here; run 'deepvm profile eflops'"
            " with that there too"
        )


def _alike(
    instance: InstanceType, types: Mapping[str, InstanceType], defaults: Iterable[str]
) -> str:
    """The measured type with the same GPUs and curves, whose curves a type takes; "" if none."""
    for name in sorted(defaults):
        other = types[name]
        if other.gpu == instance.gpu and _shared(other) == _shared(instance):
            return name
    return ""


def _shared(instance: InstanceType) -> set[SpeedupCurve]:
    return {c for c in instance.speedups if c.workload is None}


def _with_curves(
    instance: InstanceType, entries: Sequence[Entry], general: Entry | None
) -> InstanceType:
    """A type with measured curves; with enough sizes the ``general`` one becomes its default.

    ``entries`` were measured on it, or on another type with its GPU.
    """
    basis = ""
    new: list[SpeedupCurve] = []
    if general is not None:
        new += _curves(general)
    if entries[0].subject == instance.name:
        new += [curve for e in entries for curve in _curves(e, e.workload)]
    else:
        basis = f"those of {entries[0].subject}, the same GPU"
    replaced = {(c.kind, c.workload) for c in new}
    kept = [c for c in instance.speedups if (c.kind, c.workload) not in replaced]
    if general is None or general.sizes < FEWEST_SIZES:
        return replace(instance, speedups=(*kept, *new))
    if instance.speedup_basis and not basis:
        kept = []  # curves of another type are worse than its own
    return replace(
        instance,
        speedups=(*kept, *new),
        default_speedup=MeasuredSpeedup.kind,
        speedup_basis=basis,
    )


def _curves(entry: Entry, workload: str | None = None) -> list[SpeedupCurve]:
    """The measured curve and, of a general one with enough sizes, the ring through its points."""
    ring = RingSpeedup.fit([p for p in entry.points if p[0] > 1])
    source = f"{_HERE}{entry.day} ({entry.workload})"
    curve = MeasuredSpeedup(entry.points, ring, workload=workload, source=source)
    if workload is not None or entry.sizes < FEWEST_SIZES:
        return [curve]
    return [replace(ring, fitted_to=entry.points[-1][0], source=source), curve]
