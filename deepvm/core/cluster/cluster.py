"""What the planner answers with: clusters, recommendations and rejections."""

import math
from decimal import Decimal
from typing import TYPE_CHECKING

from deepvm.core.cluster.instances import InstanceType, Market, ZonePrice
from deepvm.core.units import MICRO_USD, Interval, format_usd
from deepvm.records import dataclass

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
        """Raises a ValueError if the type is not sold in this market."""
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
        return self.spot_count + self.on_demand_count

    @property
    def gpus(self) -> int:
        """Of all its VMs; 1 each where the catalog does not say."""
        if self.gpu.gpu is None:
            return self.gpu_count
        return self.gpu_count * self.gpu.gpu.count

    @property
    def memory_count(self) -> int:
        return self.memory.count if self.memory else 0

    @property
    def groups(self) -> tuple[NodeGroup, ...]:
        """The groups that are not empty, spot first."""
        spot = NodeGroup(self.gpu, Market.SPOT, self.spot_count)
        on_demand = NodeGroup(self.gpu, Market.ON_DEMAND, self.on_demand_count)
        return tuple(g for g in (spot, on_demand, self.memory) if g and g.count)

    @property
    def micro_usd_per_hour(self) -> int:
        return sum(g.micro_usd_per_hour for g in self.groups)

    @property
    def usd_per_hour(self) -> Decimal:
        return Decimal(self.micro_usd_per_hour) / MICRO_USD

    @property
    def zone(self) -> ZonePrice | None:
        """The zone whose spot price it pays; None when unknown, and without spot VMs."""
        if self.spot_count:
            return next(iter(self.gpu.spot_zones), None)
        return None

    def __str__(self) -> str:
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
    """Expected time and bill of a job on a cluster, preemptions included."""

    total_s: float  # from the request to the end; infinite if the job never ends
    cost_usd: float
    preemptions: float
    sound: bool = True  # whether the closed form is within 2 % here (preemption.makespan)
    spread: Spread | None = None  # of simulated runs; the other figures are then their means
    # of a fast run at a good time, a slow one at a bad time
    costs_usd: tuple[float, float] | None = None
    late_probability: float | None = None  # as far as the speed is known


@dataclass(frozen=True)
class Prediction:
    """How fast a cluster trains a model: 80 % intervals, and where they come from."""

    throughput: Interval  # units a second of the cluster
    step_s: Interval
    mfu: float  # model FLOP utilization
    source: str  # measured, published or derived
    precision: str
    batch_per_gpu: float  # samples of a step
    micro_batch: float  # of them computed at once
    checkpointing: bool  # of activations
    fitted_vms: int  # largest cluster that the source has seen
    kept: Interval  # share that preemptions leave: at a bad time, usually, at a good one
    state_bytes: float  # weights, gradients and optimizer on each GPU
    # probability of being over 1 % faster than the first plan
    faster_than_first: float | None = None
    trusted: bool = True  # whether so large a cluster, and batch, may come first


@dataclass(frozen=True)
class Recommendation:
    """A cluster and its figures; rank 1 is the best.

    Attributes:
        speedup: S(n) after the clamp. scaling_factor: K(n) = S(n)/n (eq. 13).
        throughput: eFLOPS x n x K(n), in the catalog's eFLOPS unit.
        flopp_spot: operations per dollar of one spot VM (eq. 1).
        z: the paper's objective (eq. 4, 8) with FLOPP = eFLOPS / usd_per_hour, without the constant
            3600.
        usd_per_work: price over throughput, $/h per eFLOPS unit; None if the throughput is 0.
        binding: what keeps a cluster of these types from being better.
        warnings: reasons to doubt the figures. outlook: of the user's job; None without one.
        prediction: of the throughput, where a model is trained and not eFLOPS are counted.
        next_zone: the cheapest cluster of as many of these VMs in another zone, if asked for.
        bill: what it costs besides its VMs; None where the catalog knows no rates.
        value: what the policy maximizes.
        late: probability of missing the deadline; 1 where it may cost more than the total budget.
        refuted: whether a warning of its own is a reason not to take it (planner.ranking).
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
    bill: "Bill | None" = None
    value: float = 0.0
    late: float = 0.0
    refuted: bool = False

    @property
    def usd_per_hour(self) -> Decimal:
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

    def __repr__(self) -> str:
        return (
            f"<Recommendation: {self.cluster}, ${format_usd(self.usd_per_hour)}/h, throughput"
            f" {self.throughput:.4g}>"
        )

    @property
    def estimated(self) -> bool:
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
