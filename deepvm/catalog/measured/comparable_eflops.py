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
from deepvm.core.cluster.instances import Gpu, InstanceType
from deepvm.core.spelling import listed
from deepvm.core.units import counted

MAX_LINK_RATIO = 1.25
"""Links whose ratios differ by more than this factor make published figures estimates."""


def apply_speeds(applied: MeasuredCatalog, entries: Sequence[Entry], chosen: str) -> None:
    """Put measured eFLOPS of the workload ``chosen`` into a catalog's types."""
    here = {e.subject: e for e in entries if e.workload == chosen}
    if not here:
        return
    applied.skip(entries, chosen)
    others = [e for e in entries if e.subject not in here]
    if others:
        names = listed(sorted({e.subject for e in others}))
        text = (
            f"eFLOPS of {names} were measured, but not with {chosen}, so they do not compare;"
            " 'deepvm tables list' shows them, --workload chooses"
        )
        applied.note(text, *others)
    catalog = applied.catalog
    scale = _Scale.of(applied.types, here)
    instances = tuple(i if i.gpu is None else scale.with_speed(i, i.gpu) for i in catalog)
    applied.use(e for e in here.values() if e.subject in catalog.by_name)
    rest = [
        old
        for old, new in zip(catalog, instances, strict=True)
        if old.gpu is not None and old.eflops is not None and not speed_is_ours(new)
    ]
    if rest:
        applied.doubts.append(scale.doubt(rest, chosen))
    unit = f"FLOP/s of {chosen}" if scale.estimated else catalog.eflops_unit
    applied.catalog = replace(catalog, instances=instances, eflops_unit=unit)


def choose_workload(entries: Iterable[Entry]) -> str:
    """The workload measured on the most types; among equals, the latest; empty without entries."""
    types: dict[str, set[str]] = {}
    last: dict[str, datetime] = {}
    for entry in sorted(entries, key=lambda e: e.measured_at):
        types.setdefault(entry.workload, set()).add(entry.subject)
        last[entry.workload] = entry.measured_at
    return max(types, key=lambda w: (len(types[w]), last[w], w), default="")


@dataclass(frozen=True)
class _Scale:
    """The conversion of figures measured ``here``, by type, to the scale of all types.

    Attributes:
        types: all types that are compared.
        ratios: catalog's unit in one FLOP/s, by the types that link both scales.
        estimated: whether the links are estimates; then the catalog's figures are converted to
            FLOP/s instead.
    """

    types: Mapping[str, InstanceType]
    here: Mapping[str, Entry]
    ratios: Mapping[str, float]
    estimated: bool

    @classmethod
    def of(cls, types: Mapping[str, InstanceType], here: Mapping[str, Entry]) -> _Scale:
        linked = [types[name] for name in here if types[name].eflops is not None]
        published = [i for i in linked if not i.eflops_basis]
        ratios = {i.name: (i.eflops or 0) / here[i.name].eflops for i in published or linked}
        return cls(types, here, ratios, not published)

    @property
    def links(self) -> str:
        return listed(sorted(self.ratios))

    @property
    def spread(self) -> float:
        """By how much the ratios differ, as a share of the smallest."""
        return max(self.ratios.values()) / min(self.ratios.values()) - 1

    @property
    def is_sure(self) -> bool:
        """Whether figures of the catalog count next to measured ones (rules 2 and 3)."""
        return not self.estimated and self.spread <= MAX_LINK_RATIO - 1

    def bring(self, flops: float) -> float:
        """A measured figure on the scale that counts."""
        if self.estimated:
            return _rounded(flops)
        return _rounded(flops * geometric_mean(self.ratios.values()))

    def with_speed(self, instance: InstanceType, gpu: Gpu) -> InstanceType:
        if instance.name in self.here:
            entry = self.here[instance.name]
            source = f"measured here, {entry.day} ({entry.workload}): {entry.eflops:.4g} FLOP/s"
            if not self.estimated:
                source += f", on the catalog's scale by {self.links}"
            eflops = self.bring(entry.eflops)
            return replace(instance, eflops=eflops, eflops_basis="", eflops_source=source)
        same = [
            (i, i.gpu)
            for i in map(self.types.__getitem__, sorted(self.here))
            if i.gpu and (i.gpu.name, i.gpu.memory_gib) == (gpu.name, gpu.memory_gib)
        ]
        if same:
            return self._following(instance, gpu, same)
        if instance.eflops is None or self.is_sure:
            return instance
        if not self.estimated:
            differ = f"{self.links} differ by up to {self.spread:.0%} here"
            basis = f"published for another workload, against which {differ}"
            return replace(instance, eflops_basis=instance.eflops_basis or basis)
        basis = instance.eflops_basis or f"{instance.eflops:g}, published for another workload"
        if not self.ratios:
            source = f"its eFLOPS ({basis}) compare with nothing that was measured here"
            return replace(instance, eflops=None, eflops_basis="", eflops_source=source)
        basis += f"; brought to what was measured here by the estimates of {self.links}"
        eflops = _rounded(instance.eflops / geometric_mean(self.ratios.values()))
        return replace(instance, eflops=eflops, eflops_basis=basis)

    def _following(
        self, instance: InstanceType, gpu: Gpu, same: Sequence[tuple[InstanceType, Gpu]]
    ) -> InstanceType:
        """A type with the GPU of measured types: their figures in the catalog's own proportion."""
        published = instance.eflops is not None and not instance.eflops_basis
        shares = []
        for other, its in same:
            share = gpu.count / its.count
            if published and instance.eflops and other.eflops and not other.eflops_basis:
                share = instance.eflops / other.eflops
            shares.append(share * self.here[other.name].eflops)
        names = listed([i.name for i, _ in same])
        day = max(self.here[i.name].day for i, _ in same)
        basis = f"{gpu.count} x one {gpu.name}'s, after {names}, measured here, {day}"
        if published or any(its.count == gpu.count for _, its in same):
            basis = ""
        return replace(
            instance,
            eflops=self.bring(geometric_mean(shares)),
            eflops_basis=basis,
            eflops_source=f"after {names} with the same GPU, measured here, {day}",
        )

    def doubt(self, rest: Sequence[InstanceType], chosen: str) -> str:
        """A warning about the types that keep the catalog's figures."""
        link = f"what was measured here with {chosen} to the catalog's eFLOPS"
        others = f"{counted(len(rest), 'other type')} with figures of the catalog"
        if self.is_sure:
            how = f"link (within {self.spread:.0%})" if len(self.ratios) > 1 else "alone links"
            return (
                f"{self.links} {how} {link}: {others} compare only as far as both workloads run"
                " GPUs alike; measure them too to be sure"
            )
        reason = f"no published figure links {link}"
        if not self.estimated:
            reason = f"{self.links} link {link}, and differ by {self.spread:.0%}"
        published = (i for i in rest if not i.eflops_basis)
        measure = " or ".join(smallest_of_each_gpu(published)[:3]) or "them"
        return f"{reason}, so {others} count only with --estimates; measure {measure} too"


def smallest_of_each_gpu(instances: Iterable[InstanceType]) -> list[str]:
    """The smallest type of each GPU, sorted by name: the cheapest ones to rent and measure."""
    largest_first = sorted(instances, key=lambda i: (i.vcpus, i.name), reverse=True)
    return sorted({i.gpu.name: i.name for i in largest_first if i.gpu}.values())


def speed_is_ours(instance: InstanceType) -> bool:
    """Whether a type's eFLOPS are measured on it, or on another type with its GPU."""
    return instance.eflops_source.startswith(("measured", "after"))


def _rounded(value: float) -> float:
    """To six digits."""
    return float(f"{value:.6g}")
