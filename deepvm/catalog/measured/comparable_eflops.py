"""Which eFLOPS are comparable: keeps figures of different workloads out of one ranking.

A catalog's eFLOPS are of one workload and unit (the paper's: 377 for a T4); ``deepvm profile
eflops`` measures FLOP/s of another workload (10^12 and more), which would beat all others. So a
figure counts only on a common scale:

1. Figures measured with one workload are comparable. Of several workloads one counts: the one that
   was asked for, else the one measured on the most types, else the latest.
2. A type with a measured and a published figure links the two scales, several by the geometric mean
   of their ratios: measured figures are converted to the catalog's scale. A single link keeps its
   published figure, because one measurement does not tell which type is faster.
3. Where the ratios differ by more than a quarter, the workloads run the GPUs too differently:
   published figures become estimates, which need ``--estimates``.
4. Without a link only measured types may train. ``--estimates`` adds the others, linked by the
   estimates of the measured types.
5. Types with the GPU of a measured one follow it: the same figure for as many GPUs, a multiple (an
   estimate) otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import geometric_mean

from deepvm.catalog.measured.entries import Entry, MeasuredCatalog
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType
from deepvm.core.spelling import listed
from deepvm.core.units import counted

FAR_APART = 1.25
"""Links whose ratios differ by more than this factor make published figures estimates."""


@dataclass(frozen=True)
class _Scale:
    """The conversion of measured figures to the catalog's scale.

    Attributes:
        factor: catalog's unit in one FLOP/s. links: the types that say so. spread: largest ratio
            over smallest.
        estimated: whether the links are estimates; then the catalog's figures are converted to
            FLOP/s instead.
    """

    factor: float
    links: tuple[str, ...]
    spread: float
    estimated: bool

    def bring(self, flops: float) -> float:
        """A measured figure on the scale that counts, to six digits."""
        return _rounded(flops if self.estimated else flops * self.factor)


def apply_speeds(
    applied: MeasuredCatalog, entries: Sequence[Entry], chosen: str, all_types: Catalog
) -> None:
    """Put measured eFLOPS of the workload ``chosen`` into a catalog's types.

    ``all_types`` are all types that are compared, in any region; they set the scale.
    """
    here = {e.instance_type: e for e in entries if e.workload == chosen}
    if not here:
        return
    others = sorted({e.instance_type for e in entries} - set(here))
    if others:
        why = (
            f"eFLOPS of {listed(others)} were measured, but not with {chosen}, so they do not"
            " compare; 'deepvm tables list' shows them, --workload chooses"
        )
        applied.note(why, *(e for e in entries if e.instance_type in others))
    catalog = applied.catalog
    scale = _scale(all_types, here)
    found = tuple(
        i if i.gpu is None else _with_speed(i, i.gpu, all_types, here, scale) for i in catalog
    )
    if scale.estimated:
        unit = f"FLOP/s of {chosen}"
    else:
        unit = catalog.eflops_unit
    applied.used += [e for e in here.values() if e.instance_type in catalog.by_name]
    rest = [
        n
        for i, n in zip(catalog, found, strict=True)
        if i.gpu and i.eflops is not None and not speed_is_ours(n)
    ]
    if rest:
        applied.doubts.append(_doubt(catalog, len(rest), sorted(here), scale, chosen))
    applied.catalog = replace(catalog, instances=found, eflops_unit=unit)


def choose_workload(entries: Iterable[Entry]) -> str:
    """The workload measured on the most types; among equals, the latest; empty without entries."""
    types: dict[str, set[str]] = {}
    last: dict[str, datetime] = {}
    for entry in sorted(entries, key=lambda e: e.measured_at):
        types.setdefault(entry.workload, set()).add(entry.instance_type)
        last[entry.workload] = entry.measured_at
    return max(types, key=lambda w: (len(types[w]), last[w], w), default="")


def _scale(catalog: Catalog, here: Mapping[str, Entry]) -> _Scale:
    ratios = {
        n: eflops / e.eflops for n, e in here.items() if (eflops := catalog[n].eflops) is not None
    }
    published = {n: ratio for n, ratio in ratios.items() if not catalog[n].eflops_basis}
    links = published or ratios
    if not links:
        return _Scale(1.0, (), 1.0, True)
    spread = max(links.values()) / min(links.values())
    return _Scale(geometric_mean(links.values()), tuple(sorted(links)), spread, not published)


def _with_speed(
    instance: InstanceType, gpu: Gpu, catalog: Catalog, here: Mapping[str, Entry], scale: _Scale
) -> InstanceType:
    if instance.name in here:
        entry = here[instance.name]
        source = (
            f"measured here, {entry.measured_at.date()} ({entry.workload}): {entry.eflops:.4g}"
            " FLOP/s"
        )
        if not scale.estimated:
            source += f", on the catalog's scale by {listed(scale.links)}"
        return replace(
            instance, eflops=scale.bring(entry.eflops), eflops_basis="", eflops_source=source
        )
    measured = [(catalog[n], g) for n in sorted(here) if (g := catalog[n].gpu)]
    same = [(i, g) for i, g in measured if (g.name, g.memory_gib) == (gpu.name, gpu.memory_gib)]
    if same:
        return _following(instance, gpu, same, here, scale)
    if instance.eflops is None:
        return instance
    if not scale.estimated:
        if scale.spread <= FAR_APART or instance.eflops_basis:
            return instance
        differ = f"{listed(scale.links)} differ by up to {scale.spread - 1:.0%} here"
        return replace(
            instance, eflops_basis=f"published for another workload, against which {differ}"
        )
    published = instance.eflops_basis or f"{instance.eflops:g}, published for another workload"
    if not scale.links:
        source = f"its eFLOPS ({published}) compare with nothing that was measured here"
        return replace(instance, eflops=None, eflops_basis="", eflops_source=source)
    basis = (
        f"{published}; brought to what was measured here by the estimates of {listed(scale.links)}"
    )
    return replace(instance, eflops=_rounded(instance.eflops / scale.factor), eflops_basis=basis)


def _following(
    instance: InstanceType,
    gpu: Gpu,
    same: Sequence[tuple[InstanceType, Gpu]],
    here: Mapping[str, Entry],
    scale: _Scale,
) -> InstanceType:
    """A type with the GPU of measured types: their figures in the catalog's own proportion."""
    shares = []
    for other, its in same:
        share = gpu.count / its.count
        if instance.eflops and other.eflops and not (instance.eflops_basis or other.eflops_basis):
            share = instance.eflops / other.eflops
        shares.append(share * here[other.name].eflops)
    names = listed([i.name for i, _ in same])
    day = max(here[i.name].measured_at for i, _ in same).date()
    alike = any(its.count == gpu.count for _, its in same)
    published = instance.eflops is not None and not instance.eflops_basis
    basis = f"{gpu.count} x one {gpu.name}'s, after {names}, measured here, {day}"
    return replace(
        instance,
        eflops=scale.bring(geometric_mean(shares)),
        eflops_basis="" if alike or published else basis,
        eflops_source=f"after {names} with the same GPU, measured here, {day}",
    )


def _doubt(catalog: Catalog, rest: int, measured: Sequence[str], scale: _Scale, chosen: str) -> str:
    """What to think of types that keep the catalog's figures."""
    others = f"{counted(rest, 'other type')} with figures of the catalog"
    links = listed(scale.links)
    if scale.estimated:
        reason = (
            f"{listed(measured)}: eFLOPS measured here with {chosen} compare with none of the"
            " catalog's, which are of another workload"
        )
    elif scale.spread > FAR_APART:
        reason = (
            f"{links} link what was measured here with {chosen} to the catalog's eFLOPS, and differ"
            f" by {scale.spread - 1:.0%}"
        )
    else:
        if len(scale.links) == 1:
            how = "alone links"
        else:
            how = f"link (within {scale.spread - 1:.0%})"
        return (
            f"{links} {how} what was measured here with {chosen} to the catalog's eFLOPS: {others}"
            " compare only as far as both workloads run GPUs alike; measure them too to be sure"
        )
    published = (i for i in catalog if i.eflops is not None and not i.eflops_basis)
    measure = " or ".join(smallest_of_each_gpu(published)[:3]) or "them"
    return f"{reason}, so {others} count only with --estimates; measure {measure} too"


def smallest_of_each_gpu(instances: Iterable[InstanceType]) -> list[str]:
    """The smallest type of each GPU, sorted by name: the cheapest ones to rent and measure."""
    found = sorted(instances, key=lambda i: (i.vcpus, i.name), reverse=True)
    return sorted({i.gpu.name: i.name for i in found if i.gpu}.values())


def speed_is_ours(instance: InstanceType) -> bool:
    """Whether a type's eFLOPS are measured on it, or on another type with its GPU."""
    return instance.eflops_source.startswith(("measured", "after"))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
