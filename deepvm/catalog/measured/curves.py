"""Measured speed-up curves: which are used, for which types, and what they cannot be compared with.

The throughput of a cluster is eFLOPS x S(n), so a curve must match the eFLOPS of its type and the
curves of the types that it is ranked with. Speed-ups of two workloads may differ several times at
the same n. So:

1. Only curves of one workload count: the one that was asked for, else that of the measured eFLOPS
   (or of its model), else the one measured on the most types, else the latest. Others are kept but
   rank nothing.
2. Types that were not measured use the catalog's curves and eFLOPS, perhaps of another workload
   (the paper does not name it): a doubt says so, and what to measure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    applied: MeasuredCatalog, usable: Sequence[Entry], eflops_workload: str, all_types: Catalog
) -> tuple[str, dict[str, Entry]]:
    """Put measured curves into a catalog's types.

    Types that shared a measured type's curves change as well. ``eflops_workload`` is the workload
    of the measured eFLOPS, ``all_types`` all that are compared, before any change. Returns the
    workload that counts by rule 1, empty without curves, and its curves by type.
    """
    wanted = _workload(usable, eflops_workload)
    applied.skip(usable, wanted)
    by_type: dict[str, list[Entry]] = {}
    for entry in usable:
        by_type.setdefault(entry.instance_type, []).append(entry)
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
    instances = []
    for instance in applied.catalog:
        if instance.name in by_type:
            curves = [_curve(e, e.workload) for e in by_type[instance.name]]
            new = _with_curves(instance, general.get(instance.name), curves)
        else:
            new = _following(instance, all_types, general)
        instances.append(new)
    applied.used += [e for name, e in general.items() if name in applied.catalog.by_name]
    applied.catalog = replace(applied.catalog, instances=tuple(instances))
    return wanted, general


def _workload(entries: Sequence[Entry], eflops_workload: str) -> str:
    if any(same_workload(e.workload, eflops_workload) for e in entries):
        return eflops_workload
    # A curve that is too short to go by has a say only among its like.
    enough = [e for e in entries if e.sizes >= FEWEST_SIZES] or entries
    alike = [e for e in enough if e.workload.partition("/")[0] == eflops_workload.partition("/")[0]]
    return choose_workload(alike or enough)


def curve_doubts(
    catalog: Catalog,
    general: Mapping[str, Entry],
    workload: str,
    eflops_workload: str,
    speeds: Collection[str],
) -> list[str]:
    """Doubts about ranking measured curves next to figures that may not be comparable.

    ``general`` are the curves of :func:`apply_curves` and ``workload`` is theirs; ``speeds`` are
    the types whose eFLOPS were measured, with ``eflops_workload``.
    """
    found = []
    for name, entry in general.items():
        about = f"the curve of {name} was measured"
        if entry.local:
            found.append(f"{about} with processes of one machine, not with VMs")
        if entry.sizes < FEWEST_SIZES:
            sizes = counted(entry.sizes, "size")
            found.append(
                f"{about} at {sizes} above 1, too few to go by: it counts only with --speedup"
                " measured"
            )
        if name in speeds and not same_workload(entry.workload, eflops_workload):
            found.append(f"{about} with {entry.workload}, its eFLOPS with {eflops_workload}")
    # Rule 2. Types with estimated eFLOPS rank only with --estimates, which says so itself.
    ranked = [
        i for i in catalog if i.gpu is not None and i.eflops is not None and not i.eflops_basis
    ]
    own = sorted({i.name for i in ranked} & set(_defaults(general)))
    rest = [
        i
        for i in ranked
        if (curve := i.curve(i.default_speedup)) is None or not curve.source.startswith(_HERE)
    ]
    published = [i.name for i in ranked if i.name in own and not speed_is_ours(i)]
    if own and rest:
        goes = "goes" if len(rest) == 1 else "go"
        found.append(
            f"the speed-up of {listed(own)} was measured here with {workload}, and"
            f" {listed([i.name for i in rest])} {goes} by the catalog's, which may be of another"
            " workload: they compare only as far as both scale alike; run 'deepvm profile scaling'"
            f" with {workload} on {listed(smallest_of_each_gpu(rest))} too"
        )
    if published:
        found.append(
            f"the eFLOPS of {listed(published)} are the catalog's, perhaps of another workload than"
            f" {workload}, with which the speed-up was measured here; run 'deepvm profile eflops'"
            " with that there too"
        )
    return found


def _defaults(general: Mapping[str, Entry]) -> list[str]:
    """Types that use their measured curve by default, sorted."""
    return sorted(name for name, entry in general.items() if entry.sizes >= FEWEST_SIZES)


def _with_curves(
    instance: InstanceType,
    general: Entry | None,
    of_workloads: Sequence[SpeedupCurve] = (),
    basis: str = "",
) -> InstanceType:
    """A type with measured curves; with enough sizes the ``general`` one becomes its default."""
    new = [*(_general_curves(general) if general else ()), *of_workloads]
    replaced = {(c.kind, c.workload) for c in new}
    kept = [c for c in instance.speedups if (c.kind, c.workload) not in replaced]
    if general is None or general.sizes < FEWEST_SIZES:
        return replace(instance, speedups=(*kept, *new))
    if instance.speedup_basis and not basis:
        kept = []  # curves that were another type's say less than its own
    return replace(
        instance,
        speedups=(*kept, *new),
        default_speedup=MeasuredSpeedup.kind,
        speedup_basis=basis,
    )


def _following(
    instance: InstanceType, all_types: Catalog, general: Mapping[str, Entry]
) -> InstanceType:
    """Give a type the measured curves of another one with the same GPUs and curves."""
    for name in _defaults(general):
        other = all_types[name]
        if other.gpu == instance.gpu and _shared(other) == _shared(instance):
            return _with_curves(instance, general[name], basis=f"those of {name}, the same GPU")
    return instance


def _shared(instance: InstanceType) -> set[SpeedupCurve]:
    return {c for c in instance.speedups if c.workload is None}


def _general_curves(entry: Entry) -> list[SpeedupCurve]:
    """The measured curve and, where the points determine it, the ring through them."""
    curve = _curve(entry, None)
    if entry.sizes < FEWEST_SIZES or curve.beyond is None:
        return [curve]
    return [replace(curve.beyond, fitted_to=curve.points[-1][0], source=curve.source), curve]


def _curve(entry: Entry, workload: str | None) -> MeasuredSpeedup:
    ring = RingSpeedup.fit([p for p in entry.points if p[0] > 1])
    source = f"{_HERE}{entry.day} ({entry.workload})"
    return MeasuredSpeedup(entry.points, ring, workload=workload, source=source)
