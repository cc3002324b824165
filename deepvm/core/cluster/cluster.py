"""What the planner answers with: clusters, recommendations and rejections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from deepvm.core.cluster.instances import InstanceType, Market, ZonePrice
from deepvm.core.units import MICRO_USD, Interval

if TYPE_CHECKING:
    from deepvm.core.bill import Bill


@dataclass(frozen=True)
class NodeGroup:
    """Equal VMs bought in one market."""

    instance: InstanceType
    market: Market
    count: int

    @property
    def micro_usd_per_hour(self) -> int:
        """Whole micro-dollars an hour of the group.

        Raises a ValueError if the type is not sold in this market.
        """
        price = self.instance.micro_usd_per_hour(self.market)
        if price is None:
            raise ValueError(f"{self.instance.name} has no {self.market.value} price")
        return self.count * price


@dataclass(frozen=True)
class Cluster:
    """The VMs of one training run.

    ``gpu``: the instance type that trains, at the spot price of the cluster's zone. ``memory``: the
    on-demand VMs that hold checkpoints, None where the architecture has none.
    """

    architecture: str
    gpu: InstanceType
    spot_count: int
    on_demand_count: int
    memory: NodeGroup | None = None

    @property
    def gpu_count(self) -> int:
        """All VMs that train."""
        return self.spot_count + self.on_demand_count

    @property
    def memory_count(self) -> int:
        """The VMs that hold checkpoints."""
        return self.memory.count if self.memory else 0

    @property
    def groups(self) -> tuple[NodeGroup, ...]:
        """The groups that are not empty, spot first."""
        spot = NodeGroup(self.gpu, Market.SPOT, self.spot_count)
        on_demand = NodeGroup(self.gpu, Market.ON_DEMAND, self.on_demand_count)
        return tuple(g for g in (spot, on_demand, self.memory) if g and g.count)

    @property
    def micro_usd_per_hour(self) -> int:
        """Exact price in micro-dollars an hour."""
        return sum(g.micro_usd_per_hour for g in self.groups)

    @property
    def usd_per_hour(self) -> Decimal:
        """Exact price in $/h."""
        return Decimal(self.micro_usd_per_hour) / MICRO_USD

    @property
    def zone(self) -> ZonePrice | None:
        """The zone whose spot price it pays; None when unknown, and without spot VMs."""
        if self.spot_count:
            return next(iter(self.gpu.spot_zones), None)
        return None

    def __str__(self) -> str:
        """``17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand)``."""
        return " + ".join(f"{g.count} x {g.instance.name} ({g.market.value})" for g in self.groups)


@dataclass(frozen=True)
class BindingConstraint:
    """A constraint, such as ``budget``, that prevents a better cluster, and by how much."""

    constraint: str
    reason: str


@dataclass(frozen=True)
class Spread:
    """Percentiles of time and bill over simulated runs; ``late``: share of missed deadlines."""

    runs: int
    p5_s: float
    p50_s: float
    p95_s: float
    p5_usd: float
    p50_usd: float
    p95_usd: float
    late: float | None = None


@dataclass(frozen=True)
class JobEstimate:
    """Expected time and bill of a job on a cluster, preemptions included.

    Attributes:
        total_s: seconds from the request to the end; infinite if the job never ends.
        cost_usd: the bill for all VMs. preemptions: how many.
        sound: whether the closed form is within 2 % here (:mod:`deepvm.core.preemption.makespan`).
        spread: of simulated runs if there are any; the other figures are then their means.
        costs_usd: the bill of a fast run at a good time for spot VMs, and of a slow one at a bad
            time; with a model.
        late_probability: of missing the deadline, as far as the speed is known; None without a
            model or a deadline.
    """

    total_s: float
    cost_usd: float
    preemptions: float
    sound: bool = True
    spread: Spread | None = None
    costs_usd: tuple[float, float] | None = None
    late_probability: float | None = None


@dataclass(frozen=True)
class Prediction:
    """How fast a cluster trains a model: 80 % intervals, and where they come from.

    Attributes:
        throughput: units a second of the cluster. step_s: seconds of a step. mfu: model FLOP
            utilisation.
        source: ``measured``, ``published`` or ``derived``. precision: of the step.
        batch_per_gpu, micro_batch: samples of a step on each GPU, and of them computed at once.
        checkpointing: activation checkpointing. fitted_vms: the largest cluster that the source has
            seen.
        kept: share of the throughput that preemptions leave: at a bad time, usually, at a good one.
        state_bytes: weights, gradients and optimizer on each GPU.
        faster_than_first: probability that it trains more than 1 % faster than the first plan; None
            for that one.
        trusted: whether so large a cluster, and batch, may come first.
    """

    throughput: Interval
    step_s: Interval
    mfu: float
    source: str
    precision: str
    batch_per_gpu: float
    micro_batch: float
    checkpointing: bool
    fitted_vms: int
    kept: Interval
    state_bytes: float
    faster_than_first: float | None = None
    trusted: bool = True


@dataclass(frozen=True)
class Recommendation:
    """A cluster and its figures; rank 1 is the best.

    Attributes:
        speedup: S(n) after the clamp. scaling_factor: K(n) = S(n)/n (eq. 13). speedup_kind: the
            curve that was used.
        throughput: eFLOPS x n x K(n), in the catalog's eFLOPS unit.
        flopp_spot: operations per dollar of one spot VM (eq. 1); None where it has no spot price.
        z: the paper's objective (eq. 4, 8) with FLOPP = eFLOPS / usd_per_hour, without the constant
            3600.
        usd_per_work: price over throughput, $/h per eFLOPS unit; None if the throughput is 0.
        binding: what keeps a cluster of these types from being better; empty when nothing does.
        warnings: reasons to doubt the figures. outlook: of the user's job; None without one.
        prediction: of the throughput, where a model is trained and not eFLOPS are counted.
        next_zone: the cheapest cluster of as many of these VMs in another zone, perhaps with other
            memory nodes; None if there is none, or if it was not asked for.
        bill: what it costs besides its VMs; None where the catalog knows no rates.
        value: what the policy maximises.
    """

    rank: int
    cluster: Cluster
    speedup: float
    scaling_factor: float
    throughput: float
    flopp_spot: float | None
    z: float
    usd_per_work: float | None
    speedup_kind: str
    binding: tuple[BindingConstraint, ...] = ()
    warnings: tuple[str, ...] = ()
    outlook: JobEstimate | None = None
    prediction: Prediction | None = None
    next_zone: Cluster | None = None
    bill: Bill | None = None
    value: float = 0.0

    @property
    def usd_per_hour(self) -> Decimal:
        """Exact price in $/h."""
        return self.cluster.usd_per_hour

    @property
    def counted_usd_per_hour(self) -> Decimal:
        """What the budget is compared with, $/h: VMs, plus other costs if the bill counts."""
        if self.bill is not None and self.bill.counted:
            return self.bill.total_usd_per_hour
        return self.usd_per_hour

    @property
    def whole_usd(self) -> float | None:
        """Expected bill of the job with all known costs; None without a job that ends."""
        if self.bill is None or self.outlook is None or not math.isfinite(self.outlook.total_s):
            return None
        if self.bill.counted:
            return self.outlook.cost_usd
        return self.outlook.cost_usd + float(self.bill.usd_of(self.outlook.total_s / 3600))

    @property
    def kept_throughput(self) -> Interval:
        """Throughput less the usual loss to preemptions, with an 80 % interval if known."""
        if self.prediction is None:
            return Interval.exact(self.throughput)
        return self.prediction.throughput.scaled(self.prediction.kept.value)

    @property
    def estimated(self) -> bool:
        """Whether its eFLOPS are an estimate."""
        return bool(self.cluster.gpu.eflops_basis)


@dataclass(frozen=True)
class Rejection:
    """A type that is in no feasible cluster of this request.

    ``detail`` is for people, with the figures; ``reason`` one word for programs: ``unprofiled``,
    ``excluded``, ``unusable``, ``memory``, ``gpu-memory``, ``global-batch``, ``speed-unknown``,
    ``no-wheels``, ``burstable``, ``previous-generation``, ``vcpus``, ``network-unknown``,
    ``no-spot-price``, ``no-on-demand-price``, ``no-curve``, ``not-scaling``, ``quota``, ``budget``,
    ``max-nodes``, ``architecture``, ``saturation``, ``preemptions``, ``reserved``.
    """

    instance_type: str
    reason: str
    detail: str = ""
