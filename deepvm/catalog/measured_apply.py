"""Measured tables in a catalogue: eFLOPS, speed-up curves and network saturation of the user's own machines.

Pure: what was measured and a catalogue come in, a catalogue goes out that says in its provenance what is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from deepvm.catalog.measured_eflops import choose_workload, measured_speeds, usable_speeds
from deepvm.catalog.measured_entries import Entry, Tables
from deepvm.catalog.measured_pairs import measured_pairs
from deepvm.core.instances import Catalog, InstanceType, Measurement
from deepvm.core.speedup import MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.errors import RequestError

FEWEST_SIZES = 3
"""Sizes above 1 that a curve needs to become a type's own default: the ring beyond them has two parameters."""


def apply(tables: Tables, catalog: Catalog, workload: str = "", *, among: Sequence[Catalog] = ()) -> Catalog:
    """Put measured figures in the place of a catalogue's own.

    - ``eflops``: by the rule of :mod:`deepvm.catalog.measured_eflops`.
    - ``scaling``: the type's ``measured`` curve, which becomes its default where it has at least three sizes above 1,
      and then its ``ring`` as well; types that had its curves, because they have its GPU, follow. Of several workloads
      the one that was asked for, else that of the eFLOPS, else the one measured last. The others stand beside it as
      curves of their workloads.
    - ``saturation``: see :mod:`deepvm.catalog.measured_pairs`.

    Args:
        tables: what was measured.
        catalog: what is known otherwise; returned as it is when nothing concerns it.
        workload: the beginning of the workload that counts, such as ``resnet50``; empty for the rule.
        among: all catalogues that are compared with this one, such as those of other regions: their eFLOPS must come
            to one scale.

    Raises:
        RequestError: nothing was measured with this workload.
    """
    trained = [e for e in tables if e.kind != "saturation"]
    if workload:
        trained = _of_workload(trained, workload)
    known = Catalog("known", tuple({i.name: i for c in (*reversed(among), catalog) for i in c}.values()))
    # What cannot be used has no say in which workload counts.
    speeds_of, unused = usable_speeds(known, [e for e in trained if e.kind == "eflops"])
    chosen = choose_workload(speeds_of, known)
    speeds = measured_speeds(catalog, speeds_of, chosen, known)
    curves_of, without = _usable_curves(known, [e for e in trained if e.kind == "scaling"])
    curves = _by_type(curves_of)
    wanted = chosen or choose_workload((e for es in curves.values() for e in es), known)
    general = {name: _general(es, wanted) for name, es in curves.items()}
    instances = tuple(
        _with_curves(i, curves[i.name], wanted) if i.name in curves else _following(i, known, general)
        for i in speeds.instances
    )
    n_sat, pairs, told = measured_pairs(catalog, [e for e in tables if e.kind == "saturation"], known)
    told = [*unused, *speeds.notes, *without, *told]
    used = [*speeds.used, *(e for name, e in general.items() if name in catalog.by_name), *pairs]
    if not used and not told:
        return catalog
    about = catalog.provenance
    provenance = replace(
        about,
        measured=tuple(Measurement(e.kind, e.subject, e.workload, e.measured_at, e.value) for e in used),
        doubts=(*about.doubts, *speeds.doubts, *_curve_doubts(general, chosen, {e.subject for e in speeds.used})),
        notes=(*about.notes, *told),
    )
    return replace(catalog, instances=instances, eflops_unit=speeds.unit, n_sat=n_sat, provenance=provenance)


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    found = [e for e in entries if e.workload == workload or e.workload.startswith(f"{workload}/")]
    if not found:
        known = ", ".join(sorted({e.workload for e in entries})) or "none, because nothing was measured yet"
        raise RequestError("workload", workload, f"one that was measured: {known}")
    return found


def _usable_curves(catalog: Catalog, entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """The curves of types that train, and which of them are none of their GPUs, in words."""
    found = [e for e in entries if (i := catalog.by_name.get(e.instance_type)) is not None and i.gpu is not None]
    notes = [
        f"the curve of {e.instance_type} was measured on its processors, whose steps are longer than its GPUs', so it "
        f"is not used; 'deepvm tables remove {e.name}' removes it"
        for e in found
        if e.on_cpu
    ]
    return [e for e in found if not e.on_cpu], notes


def _by_type(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.instance_type, []).append(entry)
    return found


def _general(entries: Sequence[Entry], wanted: str) -> Entry:
    """The curve that counts for a type: of the workload, else of the same model, else the last."""

    def model(workload: str) -> str:
        return workload.partition("/")[0]

    return max(entries, key=lambda e: (e.workload == wanted, model(e.workload) == model(wanted), e.measured_at))


def _with_curves(instance: InstanceType, entries: Sequence[Entry], wanted: str) -> InstanceType:
    general = _general(entries, wanted)
    new: list[SpeedupCurve] = [*_general_curves(general), *(_curve(e, e.workload) for e in entries)]
    replaced = {(c.kind, c.workload) for c in new}
    # Curves that were another type's say less than its own.
    kept = [c for c in instance.speedups if (c.kind, c.workload) not in replaced and not instance.speedup_basis]
    default = MeasuredSpeedup.kind if _sizes(general) >= FEWEST_SIZES else instance.default_speedup
    if default != MeasuredSpeedup.kind:
        return replace(instance, speedups=(*_others(instance, replaced), *new))
    return replace(instance, speedups=(*kept, *new), default_speedup=default, speedup_basis="")


def _following(instance: InstanceType, known: Catalog, general: Mapping[str, Entry]) -> InstanceType:
    """A type that has the curves of another one with the same GPUs: it has the measured ones too."""
    for name, entry in sorted(general.items()):
        other = known[name]
        if other.gpu == instance.gpu and _shared(other) == _shared(instance) and _sizes(entry) >= FEWEST_SIZES:
            new = _general_curves(entry)
            return replace(
                instance,
                speedups=(*_others(instance, {(c.kind, None) for c in new}), *new),
                default_speedup=MeasuredSpeedup.kind,
                speedup_basis=f"those of {name}, the same GPU",
            )
    return instance


def _shared(instance: InstanceType) -> set[SpeedupCurve]:
    return {c for c in instance.speedups if c.workload is None}


def _others(instance: InstanceType, replaced: Collection[tuple[str, str | None]]) -> list[SpeedupCurve]:
    return [c for c in instance.speedups if (c.kind, c.workload) not in replaced]


def _general_curves(entry: Entry) -> list[SpeedupCurve]:
    """The measured curve and, where the points determine it, the ring through them."""
    curve = _curve(entry, None)
    if _sizes(entry) < FEWEST_SIZES or curve.beyond is None:
        return [curve]
    return [replace(curve.beyond, fitted_to=curve.points[-1][0], source=curve.source), curve]


def _curve(entry: Entry, workload: str | None) -> MeasuredSpeedup:
    points = entry.points
    ring = RingSpeedup.fit([p for p in points if p[0] > 1])
    return MeasuredSpeedup(points, ring, workload=workload, source=_said(entry))


def _said(entry: Entry) -> str:
    return f"measured here, {entry.measured_at.date()} ({entry.workload})"


def _sizes(entry: Entry) -> int:
    return sum(1 for n, _ in entry.points if n > 1)


def _curve_doubts(general: Mapping[str, Entry], chosen: str, with_speed: Collection[str]) -> list[str]:
    found = []
    for name, entry in general.items():
        if entry.local:
            found.append(f"the curve of {name} was measured with processes of one machine, not with VMs")
        if _sizes(entry) < FEWEST_SIZES:
            sizes = "1 size" if _sizes(entry) == 1 else f"{_sizes(entry)} sizes"
            found.append(
                f"the curve of {name} was measured at {sizes} above 1, too few to go by: it counts only with "
                "--speedup measured"
            )
        if name in with_speed and not f"{chosen}/".startswith(f"{entry.workload}/"):
            found.append(f"the curve of {name} was measured with {entry.workload}, its eFLOPS with {chosen}")
    return found
