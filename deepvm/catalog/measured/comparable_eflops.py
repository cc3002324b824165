"""Which eFLOPS are comparable: keeps figures of different workloads out of one ranking.

A catalog's eFLOPS are of one workload and in one unit (the paper's: 377 for a T4). What ``deepvm profile eflops``
measures is FLOP/s of another workload (10^12 and more). Side by side, whatever was measured would beat everything else.
So a figure counts only on a scale that it shares with the others:

1. Figures measured here with one and the same workload compare with each other. Where several workloads were measured,
   one counts: the one that was asked for, else the one measured on the most types, else the one measured last.
2. A type with a figure measured here and a published one of the catalog links the two scales; with several, the
   geometric mean of their ratios does. Measured figures are brought to the catalog's scale by it, the others stay as
   they are. One type alone then keeps its figure: a single measurement says nothing about which type is faster.
3. Where the ratios of several links differ by more than a quarter, the workloads run the GPUs so differently that
   published figures are estimates beside the measured ones: they need ``--estimates``.
4. Without a link nothing compares: only what was measured here may train. ``--estimates`` lets the others in, linked by
   the estimates of the types that were measured.
5. Other types with the same GPU follow a measured one, as they do in the catalog: the same figure for the same number
   of GPUs, a multiple (an estimate) for another number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from deepvm.catalog.measured.entries import Entry, Note
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.spelling import listed

FAR_APART = 1.25
"""Links whose ratios differ by more than this factor make published figures estimates."""

_DIGITS = 6


@dataclass(frozen=True)
class Speeds:
    """A catalog's types with measured eFLOPS in them.

    Attributes:
        instances: all types, in the catalog's order. unit: what eFLOPS count now.
        used: the entries whose figures are in. notes: why others are not.
        doubts: see :class:`deepvm.core.cluster.instances.Provenance`.
    """

    instances: tuple[InstanceType, ...]
    unit: str
    used: tuple[Entry, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class _Scale:
    """The conversion of measured figures to the catalog's scale.

    Attributes:
        factor: catalog's unit in one FLOP/s. links: the types that say so. spread: largest ratio over smallest.
        estimated: whether they are estimates, so that the catalog's figures come to the measured scale instead.
    """

    factor: float
    links: tuple[str, ...]
    spread: float
    estimated: bool


def measured_speeds(catalog: Catalog, entries: Sequence[Entry], chosen: str, known: Catalog) -> Speeds:
    """Put measured eFLOPS into a catalog's types.

    Args:
        catalog: where they go.
        entries: of kind ``eflops``, those that can be used.
        chosen: the workload that counts, as :func:`choose_workload` gives it.
        known: all types that are compared, in whatever region; they set the scale.
    """
    here = {e.instance_type: e for e in entries if e.workload == chosen}
    if not here:
        return Speeds(catalog.instances, catalog.eflops_unit)
    notes = []
    others = sorted({e.instance_type for e in entries} - set(here))
    if others:
        why = (
            f"eFLOPS of {listed(others)} were measured, but not with {chosen}, so they do not compare; "
            "'deepvm tables list' shows them, --workload chooses"
        )
        notes.append(Note(why, tuple(e.name for e in entries if e.instance_type in others)))
    scale = _scale(known, here)
    found = tuple(_with_speed(i, known, here, scale) for i in catalog)
    unit = f"FLOP/s of {chosen}" if scale.estimated else catalog.eflops_unit
    used = tuple(e for e in here.values() if e.instance_type in catalog.by_name)
    return Speeds(found, unit, used, _doubts(catalog, found, here, scale, chosen), tuple(notes))


def choose_workload(entries: Iterable[Entry], catalog: Catalog) -> str:
    """The workload measured on the most GPU types of a catalog; among equals, the latest.

    Args:
        entries: those that can be used.
        catalog: whose types count.
    """
    types: dict[str, set[str]] = {}
    last: dict[str, tuple[datetime, str]] = {}
    for entry in entries:
        instance = catalog.by_name.get(entry.instance_type)
        if instance is not None and instance.gpu is not None:
            types.setdefault(entry.workload, set()).add(entry.instance_type)
            moment = (entry.measured_at, entry.workload)
            last[entry.workload] = max(last.get(entry.workload, moment), moment)
    return max(types, key=lambda w: (len(types[w]), last[w]), default="")


def _scale(catalog: Catalog, here: Mapping[str, Entry]) -> _Scale:
    known = {n: i for n in here if (i := catalog[n]).eflops is not None}
    published = {n: i for n, i in known.items() if not i.eflops_basis}
    links = published or known
    ratios = [_figure(i) / _measured(here[n]) for n, i in links.items()]
    if not ratios:
        return _Scale(1.0, (), 1.0, True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return _Scale(mean, tuple(sorted(links)), max(ratios) / min(ratios), not published)


def _with_speed(instance: InstanceType, catalog: Catalog, here: Mapping[str, Entry], scale: _Scale) -> InstanceType:
    if instance.gpu is None:
        return instance
    factor = 1.0 if scale.estimated else scale.factor
    if instance.name in here:
        entry = here[instance.name]
        source = f"measured here, {entry.measured_at.date()} ({entry.workload}): {_measured(entry):.4g} FLOP/s"
        if not scale.estimated:
            source += f", on the catalog's scale by {listed(scale.links)}"
        return replace(instance, eflops=_rounded(_measured(entry) * factor), eflops_basis="", eflops_source=source)
    same = [
        n
        for n in sorted(here)
        if (g := catalog[n].gpu) and (g.name, g.memory_gib) == (instance.gpu.name, instance.gpu.memory_gib)
    ]
    if same:
        return _following(instance, [catalog[n] for n in same], here, factor)
    if instance.eflops is None:
        return instance
    if not scale.estimated:
        if scale.spread <= FAR_APART or instance.eflops_basis:
            return instance
        basis = (
            f"published for another workload, against which {listed(scale.links)} differ by up to "
            f"{scale.spread - 1:.0%} here"
        )
        return replace(instance, eflops_basis=basis)
    published = instance.eflops_basis or f"{instance.eflops:g}, published for another workload"
    if not scale.links:
        source = f"its eFLOPS ({published}) compare with nothing that was measured here"
        return replace(instance, eflops=None, eflops_basis="", eflops_source=source)
    basis = f"{published}; brought to what was measured here by the estimates of {listed(scale.links)}"
    return replace(instance, eflops=_rounded(instance.eflops / scale.factor), eflops_basis=basis)


def _following(
    instance: InstanceType, same: Sequence[InstanceType], here: Mapping[str, Entry], factor: float
) -> InstanceType:
    """A type with the GPU of types that were measured: their figures in the catalog's own proportion."""
    assert instance.gpu is not None
    shares = []
    for other in same:
        assert other.gpu is not None
        share = instance.gpu.count / other.gpu.count
        if instance.eflops and other.eflops and not (instance.eflops_basis or other.eflops_basis):
            share = instance.eflops / other.eflops
        shares.append(share * _measured(here[other.name]) * factor)
    speed = math.exp(sum(map(math.log, shares)) / len(shares))
    names = listed([i.name for i in same])
    alike = any(i.gpu and i.gpu.count == instance.gpu.count for i in same)
    published = instance.eflops is not None and not instance.eflops_basis
    times = "" if alike else f"{instance.gpu.count} x one {instance.gpu.name}'s, "
    day = max(here[i.name].measured_at for i in same).date()
    return replace(
        instance,
        eflops=_rounded(speed),
        eflops_basis="" if alike or published else f"{times}after {names}, measured here, {day}",
        eflops_source=f"after {names} with the same GPU, measured here, {day}",
    )


def _doubts(
    catalog: Catalog, found: Sequence[InstanceType], here: Mapping[str, Entry], scale: _Scale, chosen: str
) -> tuple[str, ...]:
    rest = [i.name for i, new in zip(catalog, found, strict=True) if _rests(i, new)]
    if not rest:
        return ()
    measured, count = listed(sorted(here)), f"{len(rest)} other {'type' if len(rest) == 1 else 'types'}"
    if scale.estimated:
        published = smallest_of_each_gpu(i for i in catalog if i.eflops is not None and not i.eflops_basis)
        too = (
            f"measure {' or '.join(published[:3])} with the same workload too to compare them, or " if published else ""
        )
        return (
            f"{measured}: eFLOPS measured here with {chosen} compare with none of the catalog's, which are of "
            f"another workload, so {count} with figures of the catalog count only with --estimates; {too}leave the "
            "measured tables out with --tables paper",
        )
    if scale.spread > FAR_APART:
        return (
            f"{listed(scale.links)} link what was measured here with {chosen} to the catalog's eFLOPS, and differ "
            f"by {scale.spread - 1:.0%}: GPUs compare differently in the two workloads, so {count} with figures of the "
            "catalog count only with --estimates; measure them too",
        )
    how = "alone links" if len(scale.links) == 1 else f"link (within {scale.spread - 1:.0%})"
    return (
        f"{listed(scale.links)} {how} what was measured here with {chosen} to the catalog's eFLOPS: {count} with "
        "figures of the catalog compare only as far as both workloads run GPUs alike; measure them too to be sure",
    )


def smallest_of_each_gpu(instances: Iterable[InstanceType]) -> list[str]:
    """The smallest type of each GPU, sorted by name: the cheapest ones to rent and measure."""
    found = sorted(instances, key=lambda i: (i.vcpus, i.name), reverse=True)
    return sorted({i.gpu.name: i.name for i in found if i.gpu}.values())


def _rests(old: InstanceType, new: InstanceType) -> bool:
    """Whether a type still uses the catalog's figure."""
    return old.gpu is not None and old.eflops is not None and not new.eflops_source.startswith(("measured", "after"))


def _figure(instance: InstanceType) -> float:
    assert instance.eflops is not None
    return instance.eflops


def _measured(entry: Entry) -> float:
    return float(entry.document["eflops"])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
