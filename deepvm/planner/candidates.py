"""From a catalog and a request to columns of candidates, with a reason for every type that is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType, Market, Quota
from deepvm.core.cluster.speedup import ScalingFactor, SpeedupCurve, scaling_factor
from deepvm.core.units import MICRO_USD
from deepvm.errors import MissingDataError, RequestError
from deepvm.planner.architectures.base import Architecture
from deepvm.planner.columns import BoolArray, FloatArray, IntArray, MemoryTier, Sizes
from deepvm.planner.rejections import (
    memory_rejection,
    quota_count,
    quota_too_small,
    refuse_idle_globs,
    training_rejection,
)
from deepvm.planner.request import PlanRequest, PolicyName
from deepvm.planner.zones import Offers, places_of

if TYPE_CHECKING:
    from deepvm.planner.job_forecast import Work  # loads what only jobs need


@dataclass(frozen=True)
class GpuCandidate:
    """A type that can train, in one zone, with its scaling factor for n = 1 ... max_nodes.

    Attributes:
        instance: the type at the spot price of its zone.
        n_sat: senders of this type that saturate their own network; 0 when its bandwidth is unknown.
        offers: the memory nodes that it is planned with, a column of :attr:`MemoryTier.offered`.
        cheapest: whether no zone has a lower spot price.
    """

    instance: InstanceType
    curve: SpeedupCurve
    scaling: ScalingFactor
    n_sat: int
    offers: int = 0
    cheapest: bool = True


@dataclass(frozen=True)
class Candidates:
    """Everything that may stand in a plan, and why the rest may not.

    Attributes:
        ignores_scaling: whether the policy does not look at K(n), and so also takes sizes that the curve says train
            nothing.
        work: what is to be trained, None when nobody says. reference: the type that its step is measured on.
    """

    gpus: tuple[GpuCandidate, ...]
    tier: MemoryTier
    quotas: tuple[Quota, ...]
    max_nodes: int
    rejections: tuple[Rejection, ...]
    speedup_kind: str
    ignores_scaling: bool = False
    work: Work | None = None
    reference: InstanceType | None = None

    def sizes(self, architecture: Architecture) -> Sizes:
        """All (type, zone, n) of an architecture that the quotas and ``max_nodes`` allow and that scale at all."""
        placed = [g for g in self.gpus if architecture.tiered or g.cheapest]
        allowed = [g for g in placed if not missing_for(architecture, g.instance)]
        types = tuple(g.instance for g in allowed)
        counts = np.arange(architecture.smallest_count, self.max_nodes + 1, dtype=np.int64)
        spot, on_demand = architecture.split(counts)
        shape = (len(types), len(counts))

        def column(values: Iterable[float], dtype: type) -> npt.NDArray[np.generic]:
            return np.broadcast_to(np.array(list(values), dtype=dtype)[:, None], shape)

        def price(market: Market) -> IntArray:
            return np.asarray(column((t.micro_usd_per_hour(market) or 0 for t in types), np.int64), dtype=np.int64)

        def scaled(name: str) -> npt.NDArray[np.generic]:
            rows = [getattr(g.scaling, name)[counts - 1] for g in allowed]
            return np.array(rows) if rows else np.zeros(shape)

        spot_price, on_demand_price = price(Market.SPOT), price(Market.ON_DEMAND)
        eflops = np.asarray(column((t.eflops or 0.0 for t in types), np.float64), dtype=np.float64)
        k = np.asarray(scaled("k"), dtype=np.float64)
        grid = np.broadcast_to(counts, shape)
        # FLOPP of a market that the architecture does not use is multiplied by 0 VMs; its price may be missing.
        ideal_z = sum(
            n * (eflops / np.where(p > 0, p, 1) * MICRO_USD)
            for n, p in ((spot, spot_price), (on_demand, on_demand_price))
        )
        columns = {
            "type_index": column(range(len(types)), np.int64),
            "count": grid,
            "spot": np.broadcast_to(spot, shape),
            "on_demand": np.broadcast_to(on_demand, shape),
            "price": spot * spot_price + on_demand * on_demand_price,
            "k": k,
            "ideal_throughput": eflops * grid,
            "ideal_z": ideal_z,
            "n_sat": column((g.n_sat for g in allowed), np.int64),
            "clamped": np.asarray(scaled("clamped"), dtype=np.bool_),
            "extrapolated": np.asarray(scaled("extrapolated"), dtype=np.bool_),
            "offers": column((g.offers for g in allowed), np.int64),
            "total_s": np.zeros(1),
            "billed_s": np.zeros(1),
            "preemptions": np.zeros(1),
            "sound": np.ones(1, dtype=np.bool_),
            "most_usd": np.array([np.iinfo(np.int64).max]),
        }
        flat = {name: np.ascontiguousarray(np.broadcast_to(c, shape)).reshape(-1) for name, c in columns.items()}
        rows = Sizes(types=types, quotas=self.quotas, **flat)
        rows = rows.take(((rows.k > 0) | self.ignores_scaling) & self._within_quotas(rows))
        if self.work is None:
            return rows
        rows = self.work.forecast(rows, self.reference)
        return replace(rows, most_usd=self.work.allowed_micro_usd(rows))

    def _within_quotas(self, sizes: Sizes) -> BoolArray:
        def limits(market: Market) -> IntArray:
            most = [quota_count(self.quotas, t, market) for t in sizes.types]
            return np.array(most, dtype=np.int64)[sizes.type_index]

        if not sizes.types:
            return np.zeros(0, dtype=np.bool_)
        return np.asarray((sizes.spot <= limits(Market.SPOT)) & (sizes.on_demand <= limits(Market.ON_DEMAND)))


def missing_for(architecture: Architecture, instance: InstanceType) -> str:
    """What an architecture needs of a training VM and the catalog does not know; empty when nothing is missing."""
    for market in sorted(architecture.markets, key=lambda m: m.value):
        if instance.usd_per_hour(market) is None:
            return f"no-{market.value}-price"
    return "network-unknown" if architecture.tiered and instance.network_gbps is None else ""


def gather(catalog: Catalog, request: PlanRequest, architectures: Sequence[Architecture]) -> Candidates:
    """Split the catalog's types into candidates and rejections.

    Raises:
        RequestError: a glob matches no type at all.
        MissingDataError: no type of the catalog has the kind of speed-up curve that was asked for.
    """
    if not isinstance(catalog, Catalog):  # people pass its name
        raise RequestError("catalog", catalog, "a Catalog, such as deepvm.load_catalog('paper')")
    kind = request.speedup.value if request.speedup else catalog.default_speedup
    quotas = catalog.quotas if request.quotas is None else request.quotas
    gpu_types = [i for i in catalog if i.gpu is not None]
    cpu_types = [i for i in catalog if i.gpu is None]
    refuse_idle_globs(request, catalog)
    if any(i.speedups for i in gpu_types) and not any(_curve(i, request, kind) for i in gpu_types):
        kinds = sorted({c.kind for i in gpu_types for c in i.speedups if c.workload is None})
        cure = f"ask for a speedup that it has, or make it default_speedup: {', '.join(kinds)}"
        raise MissingDataError(
            f"no type of catalog {catalog.name} has a general {kind} speed-up curve; "
            + (cure if kinds else "its curves are all tied to a workload")
        )
    rejections: list[Rejection] = []
    found_gpus: list[GpuCandidate] = []
    counts = np.arange(1, request.max_nodes + 1, dtype=np.float64)
    for instance in sorted(gpu_types, key=lambda i: i.name):
        found = _gpu_candidate(instance, catalog, request, architectures, quotas, kind, counts)
        if isinstance(found, Rejection):
            rejections.append(found)
        else:
            found_gpus.append(found)
    memory: list[InstanceType] = []
    tiered = any(a.tiered for a in architectures)
    for instance in sorted(cpu_types, key=lambda i: i.name):
        reason = memory_rejection(instance, request, quotas, catalog.memory_nodes) if tiered else None
        if reason is not None:
            rejections.append(reason)
        elif tiered:
            memory.append(instance)
    offers = Offers.of((g.instance for g in found_gpus), memory)
    gpus, offered = _in_zones(found_gpus, offers)
    rule = catalog.memory_nodes
    tier = MemoryTier(
        types=tuple(memory),
        price=_ints(i.micro_usd_per_hour(Market.ON_DEMAND) or 0 for i in memory),
        n_sat=_ints(rule.n_sat(catalog.n_sat, i.memory_node_gbps(rule) or 0.0) for i in memory),
        max_count=_ints(quota_count(quotas, i, Market.ON_DEMAND) for i in memory),
        room_bytes=_ints(rule.room_bytes(i.memory_bytes or 0) for i in memory),
        needed_bytes=request.memory_needed_bytes,
        sold=offers.sold,
        offered=offered,
    )
    work = request.work
    return Candidates(
        work=work,
        reference=None if work is None else work.reference([g.instance for g in gpus], gpu_types),
        gpus=gpus,
        tier=tier,
        quotas=tuple(quotas),
        max_nodes=request.max_nodes,
        rejections=tuple(rejections),
        speedup_kind=kind,
        ignores_scaling=ignores_scaling(request),
    )


def _in_zones(gpus: Sequence[GpuCandidate], offers: Offers) -> tuple[tuple[GpuCandidate, ...], BoolArray]:
    """Each candidate in each zone that matters, and :attr:`MemoryTier.offered`: equal columns stand once."""
    columns: dict[bytes, int] = {}
    offered: list[BoolArray] = []
    placed = []
    for gpu in gpus:
        for place in places_of(gpu.instance, offers):
            column = columns.setdefault(place.offered.tobytes(), len(columns))
            if column == len(offered):
                offered.append(place.offered)
            placed.append(replace(gpu, instance=place.instance, offers=column, cheapest=place.cheapest))
    return tuple(placed), np.array(offered, dtype=np.bool_).reshape(len(offered), len(offers.sold)).T


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def _gpu_candidate(
    instance: InstanceType,
    catalog: Catalog,
    request: PlanRequest,
    architectures: Sequence[Architecture],
    quotas: Sequence[Quota],
    kind: str,
    counts: FloatArray,
) -> GpuCandidate | Rejection:
    left_out = training_rejection(instance, request)
    if left_out is not None:
        return left_out
    curve = _curve(instance, request, kind)
    if curve is None:
        return Rejection(instance.name, "no-curve", f"it has no {kind} speed-up curve")
    kind = curve.kind
    missing = {a.name: missing_for(a, instance) for a in architectures}
    if missing and all(missing.values()):
        detail = "; ".join(f"{why.replace('-', ' ')}, which {name} needs" for name, why in missing.items())
        return Rejection(instance.name, next(iter(missing.values())), detail)
    scaling = scaling_factor(curve, counts)
    if not (scaling.k > 0).any() and not ignores_scaling(request):
        return Rejection(instance.name, "not-scaling", f"its {kind} curve is never above 0 up to {len(counts)} VMs")
    for market in (Market.SPOT, Market.ON_DEMAND):
        needing = [a for a in architectures if market in a.markets]
        if len(needing) == len(architectures) and quota_count(quotas, instance, market) == 0:
            return Rejection(instance.name, "quota", quota_too_small(quotas, instance, market))
    n_sat = 0 if instance.network_gbps is None else int(catalog.n_sat.lookup(instance.network_gbps))
    return GpuCandidate(instance, curve, scaling, n_sat)


def _curve(instance: InstanceType, request: PlanRequest, kind: str) -> SpeedupCurve | None:
    """The general curve to use: of the kind that was asked for, else of the type's own kind, else the catalog's."""
    own = instance.default_speedup if request.speedup is None else ""
    return (instance.curve(own) if own else None) or instance.curve(kind)


def ignores_scaling(request: PlanRequest) -> bool:
    """Whether the policy chooses without K(n), as all but DeepVM's own do (V-C1)."""
    return request.policy is not PolicyName.DEEPVM
