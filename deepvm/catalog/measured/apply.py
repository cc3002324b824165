"""Apply measured eFLOPS, speed-up curves and network saturation to a catalog.

Pure: the new catalog's provenance says what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from deepvm.catalog.measured.comparable_eflops import choose_workload, measured_speeds
from deepvm.catalog.measured.curves import choose_curves, curve_doubts, with_curves
from deepvm.catalog.measured.entries import Entry, Note
from deepvm.catalog.measured.gpu_check import another_gpu, usable_entries
from deepvm.catalog.measured.saturation_pairs import measured_pairs
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.provenance import Measurement
from deepvm.errors import RequestError


@dataclass(frozen=True)
class Applied:
    """A catalog with measured figures.

    Attributes:
        catalog: the catalog. used: the entries that changed it. notes: why others did not. workloads:
            of the eFLOPS and the curves in use, empty without any.
    """

    catalog: Catalog
    used: tuple[Entry, ...] = ()
    notes: tuple[Note, ...] = ()
    workloads: tuple[str, str] = ("", "")


def apply(tables: Iterable[Entry], catalog: Catalog, workload: str = "", *, among: Sequence[Catalog] = ()) -> Catalog:
    """Replace a catalog's figures by measured ones.

    - ``eflops``: by the rule of :mod:`deepvm.catalog.measured.comparable_eflops`.
    - ``scaling``: the type's ``measured`` curve, which becomes its default where it has at least three sizes above 1,
      and then its ``ring`` as well; types that had its curves, because they have its GPU, follow. Only curves of one
      workload count, by the rule of :mod:`deepvm.catalog.measured.curves`.
    - ``saturation``: see :mod:`deepvm.catalog.measured.saturation_pairs`.

    Args:
        tables: what was measured.
        catalog: what is known otherwise; returned as it is when nothing concerns it.
        workload: the beginning of the workload that counts, such as ``resnet50``; empty for the rule.
        among: all catalogs that are compared with this one, such as those of other regions: their eFLOPS must come
            to one scale.

    Raises:
        RequestError: nothing was measured with this workload, or it is the beginning of several models.
    """
    return _applied(tables, catalog, workload, among).catalog


def reasons(tables: Iterable[Entry], catalog: Catalog) -> dict[str, str]:
    """Why entries are not used in a catalog, by name; empty for those that are.

    Args:
        tables: what was measured.
        catalog: all types that could be recommended.
    """
    found = _applied(tables, catalog, "", ())
    told = {name: note.text for note in found.notes for name in note.unused}
    used = {e.name for e in found.used}
    return {
        e.name: "" if e.name in used else told.get(e.name) or _not_concerned(e, catalog, found.workloads)
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


def _applied(tables: Iterable[Entry], catalog: Catalog, workload: str, among: Sequence[Catalog]) -> Applied:
    trained = [e for e in tables if e.kind != "saturation"]
    if workload:
        trained = _of_workload(trained, workload)
    known = Catalog("known", tuple({i.name: i for c in (*reversed(among), catalog) for i in c}.values()))
    # What cannot be used has no say in which workload counts.
    speeds_of, unused = usable_entries(known, [e for e in trained if e.kind == "eflops"])
    chosen = choose_workload(speeds_of, known)
    speeds = measured_speeds(catalog, speeds_of, chosen, known)
    curves = choose_curves(known, [e for e in trained if e.kind == "scaling"], chosen)
    instances = with_curves(speeds.instances, curves, known)
    n_sat, pairs, told = measured_pairs(catalog, [e for e in tables if e.kind == "saturation"], known)
    notes = (*unused, *speeds.notes, *curves.notes, *told)
    used = (*speeds.used, *(e for name, e in curves.general.items() if name in catalog.by_name), *pairs)
    if not used and not notes:
        return Applied(catalog)
    here = {e.subject for e in speeds_of if e.workload == chosen}
    doubts = [*another_gpu(known, speeds_of), *speeds.doubts, *curve_doubts(instances, curves, chosen, here)]
    about = catalog.provenance
    provenance = replace(
        about,
        measured=tuple(Measurement(e.kind, e.subject, e.workload, e.measured_at, e.value) for e in used),
        doubts=(*about.doubts, *doubts),
        notes=(*about.notes, *(note.text for note in notes)),
    )
    found = replace(catalog, instances=instances, eflops_unit=speeds.unit, n_sat=n_sat, provenance=provenance)
    return Applied(found, used, notes, (chosen, curves.workload))


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    """The entries of the workload that begins so: a whole word of it, or the beginning of one model's name."""
    found = [e for e in entries if e.workload == workload or e.workload.startswith(f"{workload}/")]
    if not found:
        begins = [e for e in entries if e.workload.startswith(workload)]
        found = begins if len({e.workload.partition("/")[0] for e in begins}) == 1 else []
    if not found:
        known = ", ".join(sorted({e.workload for e in entries})) or "none, because nothing was measured yet"
        raise RequestError("workload", workload, f"one that was measured: {known}")
    return found
