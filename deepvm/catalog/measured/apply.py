"""Apply measured eFLOPS, speed-up curves and network saturation to a catalog.

One ranking must not mix figures of two workloads. A catalog's eFLOPS are of one workload and unit
(the paper's: 377 for a T4); ``deepvm profile eflops`` measures FLOP/s of another (10^12 and more),
which would beat all others. So:

1. Of several measured workloads one counts: the one that was asked for, else the one measured on
   the most types, else the latest. Its curves count, too, or those of its model.
2. Types with a measured and a published figure link the two scales, by the geometric mean of their
   ratios. A single link keeps its published figure: it does not tell which type is faster.
3. Where the ratios differ by more than a quarter, published figures become estimates, which need
   ``--estimates``.
4. Without a link only measured types may train. ``--estimates`` adds the others, linked by the
   estimates of the measured types.
5. Types with the GPU of a measured one follow it: the same figure for as many GPUs, a multiple (an
   estimate) otherwise.
6. Types without a measured curve use the catalog's, perhaps of another workload: a warning says so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import geometric_mean

from deepvm.catalog.measured.entries import Entry, MeasuredCatalog, same_workload
from deepvm.catalog.measured.steps import step_times
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType
from deepvm.core.cluster.memory_nodes import MemoryNodeRule, SaturationTable
from deepvm.core.cluster.speedup import MeasuredSpeedup, RingSpeedup, SpeedupCurve
from deepvm.core.grouping import grouped
from deepvm.core.spelling import listed
from deepvm.core.training.workload import Workload
from deepvm.core.units import counted
from deepvm.errors import RequestError

# Links whose ratios differ by more than this factor make published figures estimates
MAX_LINK_RATIO = 1.25


def _apply_speeds(applied: MeasuredCatalog, entries: Sequence[Entry], chosen: str) -> None:
    here = {e.subject: e for e in entries if e.workload == chosen}
    if not here:
        return
    applied.skip(entries, chosen)
    others = [e for e in entries if e.subject not in here]
    if others:
        names = listed(sorted({e.subject for e in others}))
        applied.note(
            f"eFLOPS of {names} were measured, but not with {chosen}, so they do not compare;"
            " 'deepvm tables list' shows them, --workload chooses",
            *others,
        )
    catalog = applied.catalog
    scale = _Scale(applied.types, here)
    instances = tuple(i if i.gpu is None else scale.with_speed(i, i.gpu) for i in catalog)
    applied.use(e for e in here.values() if e.subject in catalog.by_name)
    rest = [
        old
        for old, new in zip(catalog, instances, strict=True)
        if old.gpu is not None and old.eflops is not None and not speed_is_ours(new)
    ]
    if rest:
        applied.doubts.append(scale.doubt(rest, chosen))
    unit = catalog.eflops_unit
    if scale.estimated:
        unit = f"FLOP/s of {chosen}"
    applied.catalog = replace(catalog, instances=instances, eflops_unit=unit)


def choose_workload(entries: Iterable[Entry]) -> str:
    """The workload measured on the most types; among equals, the latest; empty without entries."""
    types: dict[str, set[str]] = {}
    last = {}
    for entry in sorted(entries, key=lambda e: e.measured_at):
        types.setdefault(entry.workload, set()).add(entry.subject)
        last[entry.workload] = entry.measured_at
    return max(types, key=lambda w: (len(types[w]), last[w], w), default="")


class _Scale:
    """The conversion of figures measured ``here``, by type, to the scale of all types."""

    def __init__(self, types: Mapping[str, InstanceType], here: Mapping[str, Entry]) -> None:
        linked = [types[name] for name in here if types[name].eflops is not None]
        published = [i for i in linked if not i.eflops_basis]
        self.types = types
        self.here = here
        self.ratios = {i.name: (i.eflops or 0) / here[i.name].eflops for i in published or linked}
        self.estimated = not published

    @property
    def links(self) -> str:
        return listed(sorted(self.ratios))

    @property
    def spread(self) -> float:
        return max(self.ratios.values()) / min(self.ratios.values()) - 1

    @property
    def is_sure(self) -> bool:
        return not self.estimated and self.spread <= MAX_LINK_RATIO - 1

    def bring(self, flops: float) -> float:
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
        measured = [self.types[name] for name in sorted(self.here)]
        kind = (gpu.name, gpu.memory_gib)
        same = [(i, i.gpu) for i in measured if i.gpu and (i.gpu.name, i.gpu.memory_gib) == kind]
        if same:
            return self._following(instance, gpu, same)
        if instance.eflops is None or self.is_sure:
            return instance
        if not self.estimated:
            basis = (
                f"published for another workload, against which {self.links} differ by up to"
                f" {self.spread:.0%} here"
            )
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
        source = f"after {names} with the same GPU, measured here, {day}"
        eflops = self.bring(geometric_mean(shares))
        return replace(instance, eflops=eflops, eflops_basis=basis, eflops_source=source)

    def doubt(self, rest: Sequence[InstanceType], chosen: str) -> str:
        link = f"what was measured here with {chosen} to the catalog's eFLOPS"
        others = f"{counted(len(rest), 'other type')} with figures of the catalog"
        if self.is_sure:
            how = "alone links"
            if len(self.ratios) > 1:
                how = f"link (within {self.spread:.0%})"
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
    return float(f"{value:.6g}")


# Sizes above 1 that a curve needs to become a type's own default. The ring beyond them has two
# parameters
FEWEST_SIZES = 3

_HERE = "measured here, "


def _apply_curves(
    applied: MeasuredCatalog,
    entries: Sequence[Entry],
    speeds: Sequence[Entry],
    eflops_workload: str,
) -> None:
    wanted = _workload(entries, eflops_workload)
    applied.skip(entries, wanted)
    by_type = grouped((entry.subject, entry) for entry in entries)
    general = {}
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
        of = entry.workload
        if name in fast:
            of = eflops_workload
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
    about = f"the curve of {entry.subject} was measured"
    if entry.local:
        yield f"{about} with processes of one machine, not with VMs"
    if entry.sizes < FEWEST_SIZES:
        sizes = counted(entry.sizes, "size")
        yield (f"{about} at {sizes} above 1, too few: it counts only with --speedup measured")
    if not same_workload(entry.workload, eflops_workload):
        yield f"{about} with {entry.workload}, its eFLOPS with {eflops_workload}"


def _ranking_doubts(catalog: Catalog, defaults: Collection[str], workload: str) -> Iterator[str]:
    """Rule 6: doubts about ranking measured curves next to figures that may not be comparable."""
    # Types with estimated eFLOPS rank only with --estimates, which says so itself.
    ranked = [
        i for i in catalog if i.gpu is not None and i.eflops is not None and not i.eflops_basis
    ]
    own = sorted(i.name for i in ranked if i.name in defaults)
    curves = [(i, i.curve(i.default_speedup)) for i in ranked]
    rest = [i for i, curve in curves if curve is None or not curve.source.startswith(_HERE)]
    published = [i.name for i in ranked if i.name in defaults and not speed_is_ours(i)]
    if own and rest:
        go = "go"
        if len(rest) == 1:
            go = "goes"
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
    def shared(one: InstanceType) -> set[SpeedupCurve]:
        return {c for c in one.speedups if c.workload is None}

    for name in sorted(defaults):
        other = types[name]
        if other.gpu == instance.gpu and shared(other) == shared(instance):
            return name
    return ""


def _with_curves(
    instance: InstanceType, entries: Sequence[Entry], general: Entry | None
) -> InstanceType:
    basis = ""
    new = []
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
    instance = replace(instance, default_speedup=MeasuredSpeedup.kind, speedup_basis=basis)
    return replace(instance, speedups=(*kept, *new))


def _curves(entry: Entry, workload: str | None = None) -> list[SpeedupCurve]:
    ring = _ring(tuple(p for p in entry.points if p[0] > 1))
    source = f"{_HERE}{entry.day} ({entry.workload})"
    curve = MeasuredSpeedup(entry.points, ring, workload=workload, source=source)
    if workload is not None or entry.sizes < FEWEST_SIZES:
        return [curve]
    return [replace(ring, fitted_to=entry.points[-1][0], source=source), curve]


_ring = cache(RingSpeedup.fit)  # an entry of a GPU is for several types


def apply(
    tables: Iterable[Entry], catalog: Catalog, workload: str = "", among: Sequence[Catalog] = ()
) -> MeasuredCatalog:
    """Replace a catalog's figures by measured ones, of ``workload`` or by the rules.

    ``among``: compared catalogs, whose eFLOPS get one scale. Raises RequestError: nothing was
    measured with this workload, or it starts several models.
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
    _apply_speeds(applied, speeds, eflops_workload)
    _apply_curves(applied, [e for e in usable if e.kind == "scaling"], speeds, eflops_workload)
    _apply_pairs(applied, entries)
    return applied.finished(catalog)


def apply_steps(
    tables: Iterable[Entry], catalog: Catalog, workload: Workload, software: str
) -> MeasuredCatalog:
    """A catalog whose provenance names the measured steps of a workload."""
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
            applied.note(f"steps of {group.instance_type} are not used: {reason}", *group.entries)
        else:
            applied.use(group.entries, "steps")
    return applied.finished(catalog)


def reasons(tables: Iterable[Entry], catalog: Catalog) -> dict[str, str]:
    """Why entries are not used in a catalog of all types that could be recommended."""
    entries = list(tables)
    groups, unused = step_times(entries, catalog.by_name)
    known = unused | apply(entries, catalog).reasons
    known |= {e.name: "" for group in groups if group.gpu is not None for e in group.entries}
    unknown = "its GPU, or what was trained, is not known here"
    return {e.name: known.get(e.name, unknown) for e in entries}


def _of_workload(entries: Sequence[Entry], workload: str) -> list[Entry]:
    # ``workload`` is one or more whole parts of it, or the start of one model's name.
    words = [e for e in entries if f"{e.workload}/".startswith(f"{workload}/")]
    matching = [e for e in entries if e.workload.startswith(workload)]
    if words or len({e.workload.partition("/")[0] for e in matching}) == 1:
        return words or matching
    known = ", ".join(sorted({e.workload for e in entries})) or "none, nothing was measured yet"
    raise RequestError("workload", workload, f"one that was measured: {known}")


def _usable(applied: MeasuredCatalog, entries: Iterable[Entry]) -> list[Entry]:
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
    """Merge n_sat measured between two types into a catalog's table (Table V) by bandwidth."""
    # A pair's row is at min(sender, receiver) in the catalog, where the planner looks n_sat up, not
    # at the bandwidth that was seen. n_sat must not fall as bandwidth grows: a measured knee
    # replaces the row of its bandwidth, lowers larger rows of less and removes smaller rows of
    # more. Of contradicting measurements the smaller holds: it only asks for more memory nodes.
    # Without a knee up to N senders, n_sat >= N: it lifts a row and never lowers one.
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
            applied.note(
                f"n_sat at {gbps:g} Gbit/s comes down from {n} to {now}, measured here at more"
                " bandwidth"
            )
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
    sender, receiver = map(types.get, entry.types)
    sent = (sender and sender.network_gbps) or entry.document.get("sender_gbps")
    received = receiver and receiver.memory_node_gbps(rule)
    received = received or entry.document.get("receiver_gbps")
    if sent is None or received is None:
        return None
    return float(min(sent, received))
