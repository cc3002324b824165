"""From catalog and request to columns of candidates, with a reason for each rejected type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.cluster.speedup import STEP_TIME, SpeedupCurve, scaling_factor
from deepvm.core.extras import Surcharge
from deepvm.core.spelling import refuse_unknown
from deepvm.core.units import MICRO_USD
from deepvm.errors import MissingDataError
from deepvm.planner.columns import (
    REGISTRY,
    UNLIMITED_USD,
    Architecture,
    MemoryNodeTable,
    TrainingTable,
)
from deepvm.planner.rejections import (
    UNLIMITED,
    first_rejection,
    memory_reasons,
    quota_count,
    quota_too_small,
    refuse_unmatched_globs,
    training_reasons,
)
from deepvm.planner.request import PlanRequest, PolicyName
from deepvm.planner.search.enumeration import Block, Enumeration, scoring
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.training.speed import Training, TrainingSpeed

_ints: Callable[[Iterable[int]], IntArray] = partial(np.fromiter, dtype=np.int64)


@dataclass(frozen=True)
class GpuCandidate:
    """A type that can train, at the spot price of one zone."""

    instance: InstanceType
    curve: SpeedupCurve
    k: FloatArray  # K(n) for n = 1 ... max_nodes
    n_sat: int  # of its own network, 0 if unknown
    memory_set: int = 0  # a column of MemoryNodeTable.offered
    cheapest: bool = True  # whether no zone has a lower spot price


@dataclass(frozen=True)
class Candidates:
    """What a plan for a request may consist of, and why the rest may not."""

    catalog: Catalog
    request: PlanRequest
    architectures: tuple[Architecture, ...]
    gpus: tuple[GpuCandidate, ...]
    tier: MemoryNodeTable
    rejections: tuple[Rejection, ...]
    reference: InstanceType | None  # the type that the job's step is measured on
    surcharge: Surcharge = Surcharge()  # part of all prices already

    def only(self, name: str) -> Candidates:
        gpus = tuple(gpu for gpu in self.gpus if gpu.instance.name == name)
        if gpus:
            return replace(self, gpus=gpus)
        return replace(self, tier=self.tier.only(name))

    def asked(self, **changes: Any) -> Candidates:
        return replace(self, request=replace(self.request, **changes))

    def plans(self, top: int = 1) -> Enumeration:
        return Enumeration.build([self.block(a) for a in self.architectures], top)

    def block(self, architecture: Architecture) -> Block:
        sizes = self.sizes(architecture)
        request = self.request
        sizes = sizes.take(sizes.lasting)
        # A first cut by the VMs' own price; _plans in enumeration.py checks with memory nodes.
        if request.needs_work:
            sizes = sizes.take(np.isfinite(sizes.total_s))
        if request.work is not None and request.work.constrained:
            sizes = sizes.take(sizes.price <= sizes.most_usd)
        tier = self.tier
        if request.work is not None:  # reserved pools must outlast the job
            sizes = sizes.take(sizes.total_s <= sizes.by_type(lambda t: t.left_s))
            sizes, tier = _with_lasting_nodes(sizes, tier)
        if architecture.tiered:
            sizes = sizes.take(np.asarray(tier.offered.any(axis=0))[sizes.memory_set])
        return Block(architecture, sizes, tier, scoring(request, sizes))

    def sizes(self, architecture: Architecture) -> TrainingTable:
        """All (type, zone, n) of an architecture that scale within quotas and ``max_nodes``."""
        quotas = self.request.quotas_of(self.catalog)
        placed = [g for g in self.gpus if architecture.tiered or g.cheapest]
        allowed = [g for g in placed if not architecture.lacks(g.instance)]
        types = tuple(g.instance for g in allowed)
        counts = np.arange(architecture.smallest_count, self.request.max_nodes + 1, dtype=np.int64)
        type_index = np.repeat(np.arange(len(types)), len(counts))
        count = np.tile(counts, len(types))
        on_demand = architecture.on_demand(count)
        spot = count - on_demand
        eflops = np.array([t.eflops or 0.0 for t in types])[type_index]
        more = self.surcharge
        # The price in a market that the architecture does not use may be missing.
        spot_price, on_demand_price = (
            _ints(t.micro_usd_per_hour(market) or 0 for t in types)[type_index] for market in Market
        )
        spot_z = spot * (eflops / np.maximum(spot_price, 1) * MICRO_USD)
        on_demand_z = on_demand * (eflops / np.maximum(on_demand_price, 1) * MICRO_USD)
        nothing = np.zeros(len(count))
        one = nothing + 1
        # Without a model, or with --extrapolate, every size may come first
        believed = self.request.training is None or self.request.extrapolate
        sizes = TrainingTable(
            types=types,
            type_index=type_index,
            curves=tuple(g.curve for g in allowed),
            count=count,
            spot=spot,
            on_demand=on_demand,
            price=spot * (spot_price + more.spot)
            + on_demand * (on_demand_price + more.on_demand)
            + more.cluster,
            k=np.concatenate([np.zeros(0), *(g.k[counts - 1] for g in allowed)]),
            ideal_throughput=eflops * count,
            ideal_z=spot_z + on_demand_z,
            n_sat=_ints(g.n_sat for g in allowed)[type_index],
            memory_set=_ints(g.memory_set for g in allowed)[type_index],
            quotas=quotas,
            total_s=nothing,
            billed_s=nothing,
            preemptions=nothing,
            sound=np.ones(len(count), dtype=np.bool_),
            late=nothing,
            slow_s=nothing,
            spread=nothing,
            most_usd=np.full(len(count), UNLIMITED_USD),
            sure_usd=np.full(len(count), UNLIMITED_USD),
            kept=one,
            kept_bad=one,
            kept_good=one,
            lost_per_s=nothing,
            trusted=np.concatenate(
                [
                    np.zeros(0, dtype=np.bool_),
                    *(believed | ~g.curve.extrapolated(counts.astype(float)) for g in allowed),
                ]
            ),
        )
        # Only DeepVM's own policy counts K(n) (V-C1), but where a model does not fit nothing trains
        trains = sizes.k > 0
        if self.request.policy is not PolicyName.DEEPVM and self.request.training is None:
            trains |= True
        for market, vms in zip(Market, (spot, on_demand), strict=True):
            trains &= vms <= sizes.by_type(partial(quota_count, quotas, market=market))
        sizes = sizes.take(trains)
        if self.request.training is not None:
            from deepvm.planner.recovery import with_losses

            sizes = with_losses(sizes, architecture, self.request)
        if self.request.work is None:
            return sizes
        return self.request.work.forecast(sizes, self.reference)


def _with_lasting_nodes(
    sizes: TrainingTable, tier: MemoryNodeTable
) -> tuple[TrainingTable, MemoryNodeTable]:
    """Memory-node sets without pools that end before the job does, for the sizes concerned."""
    for row, left_s in enumerate(t.left_s for t in tier.types):
        late = sizes.total_s > left_s
        if late.any():
            without = tier.offered.copy()
            without[row] = False
            sizes = replace(
                sizes, memory_set=sizes.memory_set + np.where(late, tier.offered.shape[1], 0)
            )
            tier = replace(tier, offered=np.hstack([tier.offered, without]))
    return sizes, tier


def architectures_of(request: PlanRequest) -> tuple[Architecture, ...]:
    """The architectures that a request considers; raises a RequestError for an unknown name."""
    for name in request.architectures:
        refuse_unknown("architecture", name, REGISTRY)
    # Without a model the cost of a preemption is unknown, and clusters without on-demand VMs would
    # always win.
    counted = request.training is not None
    names = request.architectures or tuple(n for n, a in REGISTRY.items() if a.published or counted)
    return tuple(
        a
        for n, a in REGISTRY.items()
        if n in names and (a.known_to_baselines or request.has_objective)
    )


def gather(catalog: Catalog, request: PlanRequest) -> Candidates:
    """Split the catalog's types into candidates and rejections.

    Raises a RequestError, or a MissingDataError if no type has a curve of the requested kind.
    """
    architectures = architectures_of(request)
    surcharge = Surcharge()
    if request.extras.counted:
        from deepvm.core.bill import surcharge_of  # few requests count more than VMs

        surcharge = surcharge_of(catalog.rates, request.extras)
    if request.work is not None:
        work = replace(request.work.in_market(catalog.grace_s), besides_usd=surcharge.once_usd)
        request = replace(request, work=work)
    if request.training is not None:
        catalog = trained(catalog, request.training, request.max_nodes)
    refuse_unmatched_globs(request, catalog)
    gpu_types = [i for i in catalog if i.gpu is not None]
    if any(i.speedups for i in gpu_types) and not any(
        _curve(i, catalog, request) for i in gpu_types
    ):
        kinds = sorted({c.kind for i in gpu_types for c in i.speedups if c.workload is None})
        cure = f"ask for a speedup that it has, or make it default_speedup: {', '.join(kinds)}"
        raise MissingDataError(
            f"no type of catalog {catalog.name} has a general {request.curves_of(catalog)} speed-up"
            " curve; " + (cure if kinds else "its curves are all tied to a workload")
        )
    results = [
        _gpu_candidate(i, catalog, request, architectures)
        for i in sorted(gpu_types, key=lambda i: i.name)
    ]
    trains = [r for r in results if isinstance(r, GpuCandidate)]
    quotas = request.quotas_of(catalog)
    rule = catalog.memory_nodes
    tiered = any(a.tiered for a in architectures)
    cpu_types = sorted((i for i in catalog if i.gpu is None and tiered), key=lambda i: i.name)
    refused = [first_rejection(i, memory_reasons(i, request, quotas, rule)) for i in cpu_types]
    memory = [i for i, why in zip(cpu_types, refused, strict=True) if why is None]
    rejections = tuple(r for r in (*results, *refused) if isinstance(r, Rejection))
    zones = sorted({zone for g in trains for zone in zone_ids(g.instance)})
    rows = [[not m.zones or zone in m.zones for zone in zones] for m in memory]
    sold = np.array(rows, dtype=np.bool_).reshape(len(memory), len(zones))
    gpus, offered = _in_zones(trains, zones, sold)
    gbps = [i.memory_node_gbps(rule) or 0.0 for i in memory]
    for_speed = [1] * len(memory)
    if request.training is not None:
        # Slow to import, and only models need it
        from deepvm.planner.recovery import nodes_to_receive

        for_speed = [nodes_to_receive(each, request.checkpoint_bytes) for each in gbps]
    tier = MemoryNodeTable(
        types=tuple(memory),
        price=_ints(
            (i.micro_usd_per_hour(Market.ON_DEMAND) or 0) + surcharge.on_demand for i in memory
        ),
        n_sat=_ints(rule.n_sat(catalog.n_sat, each) for each in gbps),
        max_count=_ints(
            min(quota_count(quotas, i, Market.ON_DEMAND), rule.most_nodes or UNLIMITED)
            for i in memory
        ),
        share_bytes=_ints(
            rule.share_bytes(i.memory_bytes or 0, request.checkpoint_bytes, request.buffers)
            for i in memory
        ),
        needed_bytes=request.memory_needed_bytes,
        for_speed=_ints(for_speed),
        sold=sold,
        offered=offered,
    )
    reference = None
    if request.work is not None:
        reference = request.work.reference([g.instance for g in gpus], gpu_types)
    return Candidates(catalog, request, architectures, gpus, tier, rejections, reference, surcharge)


def _in_zones(
    gpus: Sequence[GpuCandidate], zones: Sequence[str], sold: BoolArray
) -> tuple[tuple[GpuCandidate, ...], BoolArray]:
    """Each candidate in each useful zone, and :attr:`MemoryNodeTable.offered`, deduplicated."""
    columns: dict[bytes, int] = {}
    placed = []
    for gpu in gpus:
        for i, (instance, nodes) in enumerate(_places(gpu.instance, zones, sold)):
            column = columns.setdefault(nodes.tobytes(), len(columns))
            placed.append(replace(gpu, instance=instance, memory_set=column, cheapest=i == 0))
    offered = [np.frombuffer(column, dtype=np.bool_) for column in columns]
    return tuple(placed), np.array(offered, dtype=np.bool_).reshape(len(columns), len(sold)).T


def zone_ids(instance: InstanceType) -> tuple[str, ...]:
    """Ids of the zones in which a type may train; empty when unknown."""
    return tuple(z.zone for z in instance.spot_zones) or instance.zones


def _places(
    instance: InstanceType, zones: Sequence[str], sold: BoolArray
) -> Iterator[tuple[InstanceType, BoolArray]]:
    """A type in each zone that can be optimal, cheapest first, with its memory nodes.

    Spot VMs and memory nodes must be in one zone. For given types and counts the cheapest zone that
    sells both is best by every objective, so a memory node is used in that zone only, and a zone
    that is left without any is omitted, but for the cheapest, where clusters without memory nodes
    are. The search stays exact and finds each cluster once.
    """
    left = np.ones(len(sold), dtype=np.bool_)
    if not instance.spot_zones:
        columns = [zones.index(zone) for zone in instance.zones]
        yield instance, np.asarray(sold[:, columns].any(axis=1)) if columns else left
        return
    for i, zone in enumerate(sorted(instance.spot_zones, key=lambda z: (z.usd_per_hour, z.zone))):
        sold_here = sold[:, zones.index(zone.zone)]
        if i == 0 or (left & sold_here).any():
            yield instance.in_zone(zone), left & sold_here
        left = left & ~sold_here


def _gpu_candidate(
    instance: InstanceType,
    catalog: Catalog,
    request: PlanRequest,
    architectures: Sequence[Architecture],
) -> GpuCandidate | Rejection:
    left_out = first_rejection(instance, training_reasons(instance, request))
    if left_out is not None:
        return left_out
    curve = _curve(instance, catalog, request)
    if curve is None:
        return Rejection(
            instance.name, "no-curve", f"it has no {request.curves_of(catalog)} speed-up curve"
        )
    missing = {a.name: a.lacks(instance) for a in architectures}
    if missing and all(missing.values()):
        detail = "; ".join(
            f"{why.replace('-', ' ')}, which {name} needs" for name, why in missing.items()
        )
        return Rejection(instance.name, next(iter(missing.values())), detail)
    most = request.max_nodes
    k = scaling_factor(curve, np.arange(1, most + 1, dtype=np.float64))
    if not (k > 0).any() and request.training is not None:
        needs = (
            getattr(curve, "needs", "")
            or f"{request.training.workload.model.name} does not fit on {most} of them"
        )
        return Rejection(
            instance.name,
            "global-batch" if needs.startswith("a global batch") else "gpu-memory",
            needs,
        )
    if not (k > 0).any() and request.policy is PolicyName.DEEPVM:
        return Rejection(
            instance.name,
            "not-scaling",
            f"its {curve.kind} curve is never above 0 up to {most} VMs",
        )
    quotas = request.quotas_of(catalog)
    for market in Market:
        if (
            all(market in a.markets for a in architectures)
            and quota_count(quotas, instance, market) == 0
        ):
            return Rejection(instance.name, "quota", quota_too_small(quotas, instance, market))
    n_sat = 0
    if instance.network_gbps is not None:
        n_sat = int(catalog.n_sat.lookup(instance.network_gbps))
    return GpuCandidate(instance, curve, k, n_sat)


def _curve(instance: InstanceType, catalog: Catalog, request: PlanRequest) -> SpeedupCurve | None:
    kind = request.curves_of(catalog)
    if request.speedup is None and instance.default_speedup:
        return instance.curve(instance.default_speedup) or instance.curve(kind)
    return instance.curve(kind)


def trained(catalog: Catalog, training: Training, most_vms: int) -> Catalog:
    """The catalog with throughput in the workload's unit and curves by the step-time law.

    Types of unknown speed lose their eFLOPS, and ``eflops_source`` says why; for a type whose
    memory is too small the curve is 0 everywhere. ``most_vms``: the largest cluster that matters.
    """
    from deepvm.core.training.speed import StepTimeSpeedup  # slow to load, and only models need it

    sizes = np.arange(1, most_vms + 1, dtype=np.float64)
    instances = list(catalog)
    for i, instance in enumerate(instances):
        if instance.gpu is None:
            continue
        speed = partial(training.speeds.speed, instance, training.workload)
        known = speed(sizes)
        changes: dict[str, Any] = {"eflops": None, "eflops_source": known, "speedups": ()}
        if not isinstance(known, str):
            curve = StepTimeSpeedup.of(known, cast("Callable[[FloatArray], TrainingSpeed]", speed))
            changes = {"eflops": curve.unit, "eflops_source": "", "speedups": (curve,)}
        changes |= {"eflops_basis": "", "speedup_basis": "", "default_speedup": ""}
        instances[i] = replace(instance, **changes)
    return replace(
        catalog,
        instances=tuple(instances),
        eflops_unit=training.workload.units,
        default_speedup=STEP_TIME,
    )


def speed_of_one(instance: InstanceType, training: Training) -> TrainingSpeed | str:
    """The speed of one VM of a type, or why there is none."""
    speed = training.speeds.speed(instance, training.workload, np.ones(1))
    if isinstance(speed, str) or speed.fits[0]:
        return speed
    return speed.needs
