"""Documents of ``recommend``, ``explain`` and ``sweep``."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from deepvm.documents.document import FIRST, Document, at
from deepvm.documents.outputs.performance import Interval

Usd = Annotated[float, "US dollars"]
UsdPerHour = Annotated[float, "US dollars an hour"]
Seconds = Annotated[float, "seconds"]
Market = Annotated[Literal["spot", "on-demand"], "how VMs are bought"]
VmCount = Annotated[int, "number of VMs"]
InstanceType = Annotated[str, "the provider's name of a VM type, such as g4dn.xlarge"]
Time = Annotated[str, "ISO 8601, UTC"]


def _discount(instance: Any) -> Any:
    return instance.discount or None


def _if_it_ends(job: Any, value: float) -> float | None:
    return value if math.isfinite(job.total_s) else None


def _cost_range(job: Any) -> Any:
    """The bill at a good and at a bad time."""
    if job.costs_usd is None or not math.isfinite(job.total_s):
        return None
    low, high = job.costs_usd
    return {"low": low, "high": high}


class Bounds(Document):
    """A range, both ends included."""

    min: int | None = at("least")
    """the least, null for no limit"""
    max: int | None = at("most")
    """the most, null for no limit"""


class Range(Document):
    """A range of a figure that is known roughly."""

    min: float | None = at("0")
    """lower end, null if there is none"""
    max: float | None = at("1")
    """upper end, null if there is none"""


class Quota(Document):
    """A limit of the account."""

    family: str
    """quota family, such as G and VT"""
    market: Market
    vcpus: int
    """the most vCPUs that may run"""
    in_use: int
    """vCPUs that run already"""
    code: str
    """the provider's code of the quota, empty when unknown"""


class QuotaNeed(Document):
    """What a cluster needs of a quota."""

    family: str
    """quota family, such as G and VT"""
    market: Market
    vcpus: int
    """vCPUs that the cluster needs"""
    limit: int | None
    """the most vCPUs that may run, null when unknown"""
    in_use: int | None
    """vCPUs that run already, null when unknown"""
    code: str
    """the provider's code of the quota, empty when unknown"""


class TrainedModel(Document):
    """What is trained."""

    model: str = at("workload.model.name")
    """name of the model"""
    parameters: float = at("workload.model.parameters", exact=True)
    """number of parameters"""
    unit: str = at("workload.units")
    """what throughput counts, such as tokens/s"""
    method: str = at("workload.method")
    """ddp, fsdp or lora"""
    precision: str = at("workload.precision")
    """number format of a step, auto for the best that a GPU has"""
    sequence: int = at("workload.model.sequence")
    """tokens of a sample, 1 where samples are not sequences"""
    scaling: str = at("workload.scaling")
    """weak: batch is that of each GPU; strong: of all GPUs together"""
    batch: float = at("workload.batch", exact=True)
    """samples of a step, see scaling"""
    samples: float | None = at("workload.samples", exact=True)
    """samples that the job trains on in all, null when unknown"""
    activation_checkpointing: bool | None = at("workload.checkpointing")
    """as asked, null: as usual, and where memory needs it"""
    software: str | None = at(lambda training: getattr(training.speeds, "software", None))
    """eager, transformers, compiled or tuned"""
    placement_group: bool | None = at(
        lambda training: getattr(training.speeds, "placement_group", None)
    )
    """whether the VMs are in a cluster placement group"""


class Work(Document):
    """The job."""

    job: str
    """its name"""
    steps: int
    """training steps"""
    step_s: float | None
    """one step on one VM of measured_on, seconds; null with a model"""
    save_s: float | None
    """how long a save blocks training, seconds; null with a model"""
    durable_s: float | None
    """from the end of a save until the version is durable, seconds; null with a model"""
    allocation_s: float | None
    """from the request for a VM until it runs, seconds; null with a model"""
    preparation_s: float | None
    """from then until it trains, seconds; null with a model"""
    grace_s: float | None
    """from the notice of a preemption until the VM is gone, seconds; null with a model"""
    measured_on: str | None
    """VM type that step_s is of, null when none of the catalog"""
    mttp_s: float | None
    """mean time to preemption of one spot VM, seconds, null: by the bands of the types"""
    interruption_rate: float | None
    """share of VMs preempted in a month, null: by the bands of the types"""
    save_policy: str | None
    """when the job saves; null with a model: at the best times"""
    deadline_s: float | None
    """the longest that the job may take, seconds, null for no limit"""
    total_budget_usd: float | None
    """the most that the job may cost, US dollars, null for no limit"""


class Extras(Document):
    """What bills count besides VMs, as asked for."""

    disk_gb: float | None
    """disk of each VM, GB"""
    egress_gb: float | None
    """traffic to the internet in all, GB"""
    bucket_gb: float | None
    """what a bucket keeps meanwhile, GB"""
    disk_type: str | None = at("disk_kind")
    """kind of disk, null for the cloud's usual"""
    nat: bool
    """whether VMs are behind a NAT gateway"""
    excluded: list[str] = at(lambda extras: sorted(extras.excluded))
    """costs that are not counted"""


class _MoreOfRequest(Document, total=False):
    training: TrainedModel
    """what is trained, with --model or --params only"""
    work: Work
    """the job, where one was given only"""


class Request(_MoreOfRequest):
    """What was asked for, defaults included."""

    pw_usd_per_hour: UsdPerHour = at("budget")
    """the most that the cluster may cost"""
    catalog: str
    """name of the catalog"""
    objective: str
    """what is maximised or minimised"""
    policy: str
    """how clusters are ranked"""
    speedup: str
    """kind of speed-up curve"""
    checkpoint_bytes: int
    """size of one checkpoint, bytes"""
    buffers: int
    """checkpoints that memory nodes hold at once"""
    top: int
    """how many clusters to rank"""
    solver: str
    """who proves the best cluster"""
    rank: Literal["machines", "plans"]
    """whether rows differ in what trains, or in anything"""
    extrapolate: bool
    """whether clusters beyond what was checked may come first"""
    mttp_s: float | None = at("life_s")
    """mean time to preemption of a spot VM, as given for a model, seconds"""
    architectures: list[str]
    """only these, empty for all of the default"""
    gpus: list[str]
    """globs of GPU models, empty for all"""
    instance_types: list[str]
    """globs of VM types that train, empty for all"""
    exclude: list[str]
    """globs of VM types that are left out"""
    memory_nodes: list[str]
    """globs of VM types that hold checkpoints, empty for all"""
    max_nodes: int
    """the most VMs that train in one cluster"""
    quotas: list[Quota]
    """the limits that were applied"""
    estimates: bool
    """whether types with estimated eFLOPS are allowed"""
    burstable: bool
    """whether burstable memory nodes are allowed"""
    cpu_architecture: str | None
    """x86_64 or arm64, null for both"""
    generation: str
    """which generations of VM types are allowed"""
    extras: Extras
    """what bills count besides VMs"""
    gpus_per_vm: Bounds
    """GPUs of a VM"""
    gpu_memory_bytes: Bounds
    """memory of each GPU, bytes"""
    gpu_total_memory_bytes: Bounds
    """memory of all GPUs of a VM, bytes"""


class Signal(Document):
    """One kind of figure and where it comes from."""

    dated: Literal[False] = at(lambda origin: None if origin.dated else False, optional=True)
    """only where the source bears no date: observed_at is the earliest that it can be"""
    signal: str
    """such as specs, spot or on-demand"""
    kind: str
    """live, cache, expired or embedded"""
    observed_at: Time
    """when the figures were true"""
    source: str
    """who published them"""
    refused: dict[str, int]
    """implausible rows that were left out, by reason"""


class Measured(Document):
    """A figure that was measured on the user's own machines."""

    kind: str
    """eflops, scaling or saturation"""
    subject: str
    """the VM type, or 'sender to receiver'"""
    workload: str | None
    """what was trained, null for saturation"""
    measured_at: Time
    value: str
    """the result, in words"""


class _MoreOfSource(Document, total=False):
    measured: list[Measured]
    """own measurements that were used, where there are any only"""
    measured_file: str | None
    """their file, null for the user's own tables"""
    measured_doubts: list[str]
    """limits of these measurements"""


class Source(_MoreOfSource):
    """Where a catalog's figures come from."""

    catalog: str
    """name of the catalog"""
    region: str
    """the provider's region, empty when there is none"""
    prices_as_of: str | None
    """the day the oldest prices were true, YYYY-MM-DD, null when there is none"""
    kind: str
    """embedded, file, live, cache or mixed"""
    source: str
    """the publication or service, in words"""
    eflops_unit: str
    """what eflops and throughput count, in words"""
    price_basis: str = at(lambda about: about.basis or "current")
    """which spot price is meant, in words: current, or one over time"""
    signals: list[Signal] = at("origins")
    """by kind of figure, where they differ"""
    notes: list[str]
    """what went wrong in fetching"""


class Solution(Document):
    """How the search ended."""

    status: str
    """optimal, infeasible, or why the best is not proven"""
    solver: str
    """who proved the best cluster"""
    doubt: str
    """why it is not proven, empty if it is"""


class PriceSource(Document):
    """Where a price comes from."""

    kind: str
    """live, cache, expired, embedded or file"""
    observed_at: str | None
    """when it was true, a day or ISO 8601 in UTC, null when unknown"""


class ZonePrice(Document):
    """The spot price in one zone."""

    zone: str
    """id of the zone, such as use1-az4"""
    zone_name: str | None = at("name")
    """what the account calls it, such as us-east-1a, null when unknown"""
    usd_per_hour: UsdPerHour
    """spot price of one VM"""
    since: str | None
    """since when this price holds, ISO 8601, UTC, null when unknown"""


class KnownLife(Document):
    """How long spot VMs of the type live, by the user's own history."""

    low_s: float
    """lower end of the 80 % interval of mean_s, with which plans count; seconds"""
    mean_s: float
    """mean life, seconds"""
    high_s: float
    """upper end of its interval, seconds"""
    preemptions: int
    """VMs that were preempted or lost"""
    machines: int
    """VMs that were launched"""
    newest_s: float
    """when the newest of them ended, or was last alive, seconds since 1970"""


class Reservation(Document):
    """A pool of reserved VMs."""

    pool: str
    """its name in the file of --reserved"""
    instance_type: InstanceType
    count: int
    """VMs that it has"""
    kind: str
    """reservation or capacity-block"""
    left_s: float | None
    """until its VMs are ended, seconds, null for no end"""
    until: str
    """that moment in words, empty for no end"""


class _MoreOfTrainers(Document, total=False):
    reserved: Reservation = at(after="eflops_source")
    """the pool that its VMs are of, with --reserved only"""
    on_demand_discount: float = at(_discount, after="eflops_source")
    """share of the list price that a savings plan saves, with one only"""
    known_life: KnownLife = at(after="eflops_source")
    """with --mttp history, where it says enough of the type"""
    eflops_source: str = at(lambda gpu: gpu.eflops_source or None, after="on_demand_count")
    """who measured eflops, where it was not the catalog's own source only"""


class Trainers(_MoreOfTrainers):
    """The VMs that train."""

    instance_type: InstanceType = at("type_name")
    count: VmCount
    """count of training VMs; kept for older readers, see vm_count"""
    vm_count: VmCount
    """VMs that train: spot_count + on_demand_count"""
    spot_count: VmCount
    """of them spot VMs"""
    on_demand_count: VmCount
    """of them on-demand VMs"""
    gpu_name: str | None = at("gpu.name")
    """GPU model, such as T4, null when unknown"""
    gpus_per_vm: int | None = at("gpu.count")
    """GPUs in one VM, null when unknown"""
    cpu_architecture: str | None
    """x86_64 or arm64, null when unknown"""
    eflops: float | None = at(exact=True)
    """operations a second of one VM in the catalog's eflops_unit, null when unprofiled"""
    eflops_basis: str
    """how eflops was estimated, empty when it was measured"""
    interruption_band: int | None
    """share of its VMs preempted in a month: 0 to 4 for < 5, 5-10, 10-15, 15-20, > 20 %, null
    unknown"""
    spot_usd_per_hour: float | None
    """spot price of one VM, US dollars an hour, null if not sold"""
    spot_price: PriceSource
    """where the spot price comes from"""
    on_demand_usd_per_hour: float | None
    """on-demand price of one VM, US dollars an hour, null if not sold"""
    on_demand_price: PriceSource
    """where the on-demand price comes from"""
    zones: list[ZonePrice] = at("spot_zones")
    """spot prices by zone, the cheapest first"""


class _MoreOfMemoryNodes(Document, total=False):
    reserved: Reservation = at(after="cpu_architecture")
    """the pool that its VMs are of, with --reserved only"""
    on_demand_discount: float = at(_discount, after="cpu_architecture")
    """share of the list price that a savings plan saves, with one only"""


class MemoryNodes(_MoreOfMemoryNodes):
    """The on-demand VMs that hold checkpoints."""

    instance_type: InstanceType = at("type_name")
    count: VmCount
    """count of memory nodes; kept for older readers, see vm_count"""
    vm_count: VmCount
    """VMs that hold checkpoints"""
    cpu_architecture: str | None
    """x86_64 or arm64, null when unknown"""
    on_demand_usd_per_hour: float | None
    """on-demand price of one VM, US dollars an hour"""
    on_demand_price: PriceSource
    """where the price comes from"""
    zones: list[str]
    """ids of the zones that offer the type, empty when unknown"""


class MemoryNodesElsewhere(Document):
    """The memory nodes of a cluster in another zone."""

    instance_type: InstanceType = at("instance.name")
    vm_count: VmCount = at("count")
    """VMs that hold checkpoints"""


class NextZone(Document):
    """The next-best zone for a cluster."""

    zone: str = at("zone.zone")
    """id of the zone"""
    zone_name: str | None = at("zone.name")
    """what the account calls it, null when unknown"""
    spot_usd_per_hour: UsdPerHour = at("zone.usd_per_hour")
    """spot price of one training VM there"""
    memory: MemoryNodesElsewhere | None
    """the memory nodes there, null without any"""
    usd_per_hour: UsdPerHour
    """price of all VMs there"""


class Interruptions(Document):
    """How often spot VMs of a cluster are preempted, by the band of their type."""

    vm_count: VmCount = at("vms")
    """spot VMs of the cluster"""
    independent: bool = at(lambda risk: True)
    """whether preemptions of single VMs are taken as independent"""
    vm_monthly_share: Range = at("vm_share")
    """share of single VMs preempted in a month, 0 to 1"""
    cluster_monthly_share: Range = at("share")
    """share of months in which the cluster loses a VM, 0 to 1"""
    preemptions_per_month: Range = at("losses_per_month")
    """VMs that the cluster loses in a month"""
    mean_time_between_preemptions_s: Range = at(
        lambda risk: (risk.between_s[0] or None, risk.between_s[1])
    )
    """from one preemption in the cluster to the next, seconds"""


class PredictedTraining(Document):
    """How fast a cluster trains the model."""

    throughput: Interval
    """of the cluster, in request.training.unit"""
    step_s: Interval
    """one step, seconds"""
    mfu: float
    """model FLOP utilisation, 0 to 1"""
    source: str
    """measured, published or derived"""
    precision: str
    """number format of a step"""
    batch_per_gpu: float = at(exact=True)
    """samples of a step on each GPU"""
    micro_batch: float = at(exact=True)
    """of them computed at once"""
    activation_checkpointing: bool = at("checkpointing")
    """whether activations are computed again in the backward pass"""
    checked_up_to_vms: int = at("fitted_vms")
    """the largest cluster that the source has seen, VMs"""
    state_bytes_per_gpu: float = at("state_bytes", exact=True)
    """weights, gradients and optimizer on each GPU, bytes"""
    kept_share: Interval = at("kept")
    """share of the throughput that preemptions leave, 0 to 1; low: at a bad time"""
    faster_than_first: float | None
    """probability that it trains faster than the first plan, 0 to 1, null for that one"""


class UsdRange(Document):
    """A bill at both ends of what is known, US dollars."""

    low: float
    """the speed's upper end, and spot VMs that live as long as the Spot Advisor has it"""
    high: float
    """the speed's lower end, and spot VMs that live for hours"""


class _MoreOfExpected(Document, total=False):
    total_cost_range_usd: UsdRange = at(_cost_range)
    """the bill at both ends, with a model only"""
    late_probability: float
    """of missing the deadline, 0 to 1, by what is known of a model's speed"""
    runs: int = at("spread.runs")
    """simulated runs, as the percentiles after simulation only"""
    makespan_p5_s: Seconds = at("spread.p5_s")
    """5th percentile"""
    makespan_p50_s: Seconds = at("spread.p50_s")
    """median"""
    makespan_p95_s: Seconds = at("spread.p95_s")
    """95th percentile"""
    total_cost_p5_usd: Usd = at("spread.p5_usd")
    """5th percentile"""
    total_cost_p50_usd: Usd = at("spread.p50_usd")
    """median"""
    total_cost_p95_usd: Usd = at("spread.p95_usd")
    """95th percentile"""
    late_share: float | None = at("spread.late")
    """share of the runs that miss the deadline, 0 to 1, null without one"""


class Expected(_MoreOfExpected):
    """Expected time and bill of the job, null where it never ends."""

    makespan_s: float | None = at("total_s")
    """from the first request for VMs to the last step, seconds"""
    total_cost_usd: float | None = at(lambda job: _if_it_ends(job, job.cost_usd))
    """bill of all VMs, US dollars"""
    preemptions: float | None = at(lambda job: _if_it_ends(job, job.preemptions))
    """VMs lost"""
    by: Literal["closed form", "simulation"] = at(
        lambda job: "closed form" if job.spread is None else "simulation"
    )
    """how it was computed"""
    closed_form_holds: bool = at("sound")
    """whether the closed form is within 2 % here"""


class BillItem(Document):
    """A cost besides VMs."""

    name: str
    """disk, addresses, nat, egress, bucket or boot"""
    usd_per_hour: UsdPerHour
    usd_once: Usd
    counted: str = at("what")
    """how it was counted, in words"""
    source: str | None = at("source.url")
    """who says what it costs, a URL; null where it follows from prices of VMs"""
    as_of: str | None = at("source.date")
    """the day of that figure, or when it was looked up"""
    official: bool | None = at("source.official")
    """whether the cloud itself says so; null without a source"""


class NotCounted(Document):
    """A cost that is left out."""

    name: str
    """as of an item"""
    reason: str = at("why")
    """why, in words"""


class Bill(Document):
    """What a cluster costs besides its VMs."""

    in_budget: bool = at("counted")
    """whether budgets, the ranking and the job's expected cost are of all of it, or of VMs alone"""
    items: list[BillItem]
    """what was counted"""
    not_counted: list[NotCounted]
    """what was not"""
    usd_per_hour: UsdPerHour
    """of all items by the hour, without the VMs"""
    usd_once: Usd
    """of all items that are paid once"""
    total_usd_per_hour: UsdPerHour
    """VMs and all items by the hour"""
    total_usd: float | None
    """the expected bill of the job, US dollars, null without a job"""
    rates_of_region: str | None = at("borrowed")
    """the region whose rates were taken, if it is another one"""


class _MoreOfConfiguration(Document, total=False):
    bill: Bill = at(after="expected")
    """what it costs besides its VMs, where the rates of the cloud are known only"""
    training: PredictedTraining = at("prediction")
    """how fast it trains the model, with --model or --params only"""
    expected: Expected = at("outlook")
    """time and bill of the job, where one was given only"""
    cloud: str
    """the cloud, such as gcp, where several are compared only"""


class Configuration(_MoreOfConfiguration):
    """A cluster and its figures."""

    rank: int
    """1 is the best"""
    architecture: str = at("cluster.architecture")
    """such as tiering or single-anchor"""
    region: str
    """the provider's region, empty when there is none"""
    zone: str | None = at("cluster.zone.zone")
    """id of the zone that it is priced in, null when unknown"""
    next_zone: NextZone | None
    """the next-best zone, null when none is known"""
    gpu: Trainers
    """the VMs that train"""
    memory: MemoryNodes | None
    """the memory nodes, null without any"""
    usd_per_hour: UsdPerHour = at(column=True)
    """price of all VMs"""
    speedup: float = at(column=True)
    """S(n): speed over that of one VM"""
    scaling_factor: float = at(column=True)
    """K(n) = S(n) / n, 0 to 1"""
    throughput: float = at(column=True)
    """eFLOPS x n x K(n), in source.eflops_unit"""
    flopp_spot: float | None = at(column=True)
    """operations per US dollar of one spot VM, in source.eflops_unit x seconds, null if not sold"""
    z: float = at(column=True)
    """the paper's objective, with FLOPP = eFLOPS over US dollars an hour"""
    usd_per_work: float | None = at(column=True)
    """price over throughput, US dollars an hour per source.eflops_unit"""
    speedup_kind: str
    """the curve that was used: hybrid, ring, measured or step-time"""
    estimated: bool
    """whether its eFLOPS are an estimate"""
    quotas: list[QuotaNeed]
    """quotas that it counts against"""
    interruptions: Interruptions | None
    """null without spot VMs, or when nothing is known"""
    binding: list[str] = at(lambda plan: [limit.constraint for limit in plan.binding])
    """constraints that keep a cluster of these types from being better"""
    binding_reasons: list[str] = at(lambda plan: [limit.reason for limit in plan.binding])
    """the same in words, in this order"""
    warnings: list[str]
    """reasons to doubt the figures"""


class Alternative(Configuration):
    """The best cluster by another objective."""

    objective: str = at(after=FIRST)
    """that objective"""


class NextChange(Document):
    """What more money buys."""

    pw_usd_per_hour: UsdPerHour = at("budget")
    """the next budget that buys a better cluster"""
    gain: float | None
    """by which share it is better, null if nothing is feasible now"""
    configuration: Configuration | None
    """that cluster"""


class Rejection(Document):
    """A VM type that is in no feasible cluster."""

    instance_type: InstanceType
    reason: str
    """one word, such as unprofiled, memory or budget"""
    detail: str
    """for people, with the figures"""


class Relax(Document):
    """What to change where nothing is feasible."""

    constraint: str
    """the constraint in the way"""
    advice: str
    """what to do"""


class NextMeasurement(Document):
    """What to measure next: most likely to change the decision."""

    instance_type: InstanceType = at("cluster.gpu.name")
    vm_count: VmCount = at("count")
    """VMs to measure"""
    minutes: float
    """minutes that it takes"""
    cost_usd: Usd = at("usd")
    """what it costs"""
    expected_gain: float = at("gain")
    """expected gain in throughput as a share"""
    changes_the_choice: float = at("changes")
    """probability that another cluster is chosen, 0 to 1"""
    command: str
    """the command that measures it"""


class WhyRejected(Document):
    """Why a VM type is in no feasible cluster."""

    reason: str
    """one word, such as unprofiled, memory or budget"""
    detail: str
    """for people, with the figures"""


class Explanation(Document):
    """Why a VM type is not in the best cluster."""

    instance_type: InstanceType
    verdict: str
    """the answer in words"""
    configuration: Configuration | None
    """its best cluster within the budget, null when there is none"""
    gap: float | None
    """how far that is below the winner as a share, null without one"""
    matches_at_usd_per_hour: float | None = at("matches_at")
    """the lowest budget at which it would equal the winner, US dollars an hour, null if never"""
    rejection: WhyRejected | None
    """null when it is in a feasible cluster"""


class PlacementScore(Document):
    """The provider's score of a zone."""

    zone: str = at("0")
    """id of the zone"""
    score: int = at("1")
    """1 to 10; 10: most likely to get the VMs"""


class Placement(Document):
    """How likely the provider says it is to get the VMs."""

    region: str
    """the provider's region"""
    instance_types: list[InstanceType]
    vm_count: VmCount = at("count")
    """VMs that were asked about"""
    scores: list[PlacementScore] = at(lambda placement: placement.scores.items())
    observed_at: Time


class RegionAnswer(Document):
    """What one region has."""

    cloud: str = at(optional=True)
    """the cloud, such as gcp, where several are compared only"""
    region: str
    """the provider's region"""
    source: Source
    best: Configuration | None
    """its best cluster, null when nothing is feasible there"""
    reason: str | None
    """why nothing is feasible, null when something is"""


class _MoreOfRecommendation(Document, total=False):
    on_demand: Configuration | None
    """the best cluster without spot VMs, with a model or a job only"""
    reason: str = at("infeasible.reason")
    """why nothing is feasible, only then"""
    relax: Relax = at("infeasible")
    """what to change, where nothing is feasible only"""
    cheapest: Configuration | None
    """the cheapest feasible cluster, where nothing is within the budget only"""
    next_measurement: NextMeasurement | None
    """what to measure next, with a model only"""
    explanation: Explanation
    """with --explain only"""
    placement: Placement
    """with --placement only"""
    regions: list[RegionAnswer]
    """each region, where several were asked for only"""


class Recommendation(_MoreOfRecommendation, schema_version="deepvm.recommend/1"):
    """The clusters that train fastest for a budget."""

    request: Request
    source: Source
    solution: Solution = at("")
    doubts: list[str]
    """what to doubt, one sentence each"""
    configurations: list[Configuration]
    """the ranked clusters, empty when nothing is feasible"""
    alternatives: list[Alternative]
    """the best by other objectives, where they differ from the first"""
    next_change: NextChange | None
    """null when no budget buys a better cluster"""
    nearly_as_good: Configuration | None
    """a cheaper cluster that is nearly as good, null without one"""
    rejected: list[Rejection] = at("rejections")


class ExplanationDocument(Explanation, schema_version="deepvm.explain/1"):
    """The answer to "why not this VM type?"."""

    source: Source


class _MoreOfSweepRow(Document, total=False):
    makespan_s: float | None
    """expected time of the job, seconds, with a job only"""
    total_cost_usd: float | None
    """expected bill of the job, US dollars, with a job only"""
    closed_form_holds: bool | None
    """whether the closed form is within 2 % here, with a job only"""
    runs: int | None
    """simulated runs, as the percentiles after simulation only"""
    makespan_p5_s: float | None
    """5th percentile, seconds"""
    makespan_p50_s: float | None
    """median, seconds"""
    makespan_p95_s: float | None
    """95th percentile, seconds"""
    total_cost_p5_usd: float | None
    """5th percentile, US dollars"""
    total_cost_p50_usd: float | None
    """median, US dollars"""
    total_cost_p95_usd: float | None
    """95th percentile, US dollars"""
    throughput_low: float | None
    """lower end of the throughput's 80 % interval, with a model only"""
    throughput_high: float | None
    """upper end, with a model only"""
    source: Literal["measured", "published", "derived"] | None
    """of the throughput, with a model only"""


class SweepRow(_MoreOfSweepRow):
    """The best cluster of one policy at one budget; null where nothing is feasible."""

    pw: UsdPerHour
    """the budget; kept for older readers, see pw_usd_per_hour"""
    policy: str
    """how clusters are ranked"""
    architecture: str | None
    """such as tiering or single-anchor"""
    gpu_type: str | None
    """VM type that trains; kept for older readers, see instance_type"""
    gpu_count: int | None
    """count of training VMs; kept for older readers, see vm_count"""
    memory_type: str | None
    """VM type of the memory nodes; kept for older readers, see memory_instance_type"""
    memory_count: int | None
    """count of memory nodes; kept for older readers, see memory_vm_count"""
    usd_per_hour: float | None
    """price of all VMs, US dollars an hour"""
    throughput: float | None
    """units a second of a model, else eFLOPS x n x K(n)"""
    pw_usd_per_hour: UsdPerHour
    """the budget: the most that the cluster may cost"""
    instance_type: str | None
    """VM type that trains"""
    vm_count: int | None
    """VMs that train"""
    memory_instance_type: str | None
    """VM type of the memory nodes, null without any"""
    memory_vm_count: int | None
    """VMs that hold checkpoints"""


class Sweep(Document, schema_version="deepvm.sweep/1"):
    """The best cluster of every budget under several policies."""

    catalog: str
    """name of the catalog"""
    region: str
    """the provider's region, empty when there is none"""
    model: str | None
    """name of the model, null where eFLOPS are counted"""
    unit: str
    """of throughput: such as tokens/s, or the catalog's eFLOPS unit"""
    objective: str
    """what is maximised or minimised"""
    rows: list[SweepRow]
