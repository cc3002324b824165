"""Documents of ``simulate`` and ``traces``, and the job file."""

from __future__ import annotations

from typing import Annotated, Literal

from deepvm.documents.document import FIRST, Document, at

Span = Annotated[float | list[float], "seconds, or [low, high] for any time between"]
MaybeSpan = Annotated[
    float | list[float] | None, "seconds, or [low, high] for any time between, null for none"
]
Trace = Annotated[str, "its file, relative to the common folder"]


class Job(Document):
    """A training job and the VMs it runs on."""

    name: str
    """for people"""
    steps: int
    """optimizer steps in all"""
    step_s: Span
    """one step"""
    save_s: Span
    """writing a version"""
    backup_s: Span
    """from then until it is durable, in the background"""
    allocation_s: Span
    """from the request for a VM until it runs"""
    preparation_s: Span
    """from then until training resumes"""
    grace_s: Span
    """from the notice of a preemption until the VM is gone"""
    mttp_s: float | list[float] | None
    """mean time to preemption of a VM, seconds, null for never"""
    save_every_steps: int | None
    """the user's own saves, null for none"""
    spot_usd_per_hour: float
    """price of one spot VM, US dollars an hour"""
    on_demand_usd_per_hour: float
    """price of one on-demand VM, US dollars an hour"""
    market: Literal["spot", "on-demand"]
    """how VMs are bought"""
    missed_notice_rate: float
    """share of preemptions without notice, 0 to 1"""
    stall_s: MaybeSpan
    """how long a save blocks training"""
    memory_node_s: MaybeSpan
    """until a memory node has a version"""
    warm_preparation_s: MaybeSpan
    """preparation where a memory node has the version"""
    proactive_replacement: bool
    """whether a new VM is requested at the notice"""
    vms: int
    """number of VMs"""
    elastic: bool
    """whether training continues with fewer VMs"""
    lifetime: str
    """law of the VMs' lifetimes"""


class Spread(Document):
    """A figure over all runs."""

    mean: float
    """mean of the runs"""
    sem: float
    """standard error of the mean"""
    p5: float
    """5th percentile"""
    p50: float
    """median"""
    p95: float
    """95th percentile"""


class Breakdown(Document):
    """What the time went into; means that add up to that of total_s."""

    compute: float
    """steps that were kept, seconds"""
    recompute: float
    """steps that were lost and done again, seconds"""
    save: float
    """saves, seconds"""
    allocation: float
    """waiting for VMs, seconds"""
    preparation: float
    """preparing them, seconds"""


class Deadline(Document):
    """How the deadline was kept."""

    deadline_s: float = at("deadline.seconds")
    """the longest that the job may take, seconds"""
    policy: str = at("deadline.policy.name")
    """what decides between spot and on-demand VMs"""
    late_share: float
    """share of the runs that missed it, 0 to 1"""
    on_demand_share: float
    """share of on-demand VMs in the machine time, 0 to 1"""


class _MoreOfSimulation(Document, total=False):
    deadline: Deadline = at(lambda run: run if run.deadline else None)
    """with --deadline only"""


class SimulationRow(_MoreOfSimulation, schema_version="deepvm.simulate/1"):
    """Simulated training runs of a job under a save policy."""

    job: Job = at("job_values")
    policy: str
    """when the job saves"""
    runs: int
    """simulated training runs"""
    seed: int
    """random seed"""
    total_s: Spread = at("spreads.total_s")
    """from the first request to the last step, seconds; called makespan_s in recommend"""
    cost_usd: Spread = at("spreads.cost_usd")
    """bill of all VMs, US dollars; called total_cost_usd in recommend"""
    preemptions: Spread = at("spreads.preemptions")
    """VMs lost"""
    breakdown_s: Breakdown


class SweptRow(SimulationRow):
    """One row of a comparison."""

    sweep: dict[str, float] = at(lambda run: run.sweep or None, after=FIRST, optional=True)
    """values of --sweep by key, seconds for times; with --sweep only"""


class SimulationComparison(Document, schema_version="deepvm.simulate-comparison/1"):
    """Simulated training runs of several jobs, policies or values of a sweep."""

    rows: list[SweptRow]


class Probability(Document):
    """A probability with its 80 % interval, 0 to 1."""

    low: float
    """10 % of what may be is below"""
    value: float
    """the mean"""
    high: float
    """10 % of what may be is above"""


class LifeForWork(Document):
    """A mean life with its 80 % interval, seconds."""

    low: float
    """seconds"""
    value: float
    """seconds"""
    high: float
    """seconds"""


class PublicTraces(Document):
    """What is believed before anything is known of a pool."""

    pools: int
    """traces of one VM"""
    gangs: int
    """traces of several VMs"""
    lives: int
    """lives in the former"""
    days: float
    """their length together"""
    source: str
    """where they are from"""
    as_of: str
    """when this was learnt from them"""


class OwnJobs(Document):
    """What your own jobs saw of the type."""

    machines: int = at(lambda own: len(own.lives))
    """spot VMs that were had"""
    preemptions: int
    """of them preempted or lost"""
    machine_s: float = at(lambda own: sum(life.seconds for life in own.lives))
    """time that they lived, seconds"""
    gang: float
    """VMs that were had together, mean"""
    refused: int
    """VMs that were asked for in vain"""


class ZoneStoredPrices(Document):
    """Stored spot prices in a zone."""

    zone: str
    """its id"""
    usd_per_hour: float = at("newest")
    """the newest, US dollars an hour"""
    p95_usd_per_hour: float = at("p95")
    """not exceeded for 95 % of the time, US dollars an hour"""
    versions: int
    """stored versions in all"""
    versions_sold: int = at("sold")
    """of them with a price in this zone"""
    windows: int
    """windows of the wanted time"""
    windows_below_limit: int = at("kept")
    """of them at or below the limit throughout"""
    stays_below_limit: Probability = at("stays")
    """probability of that"""


class StoredPrices(Document):
    """What the stored versions of a public catalog say, the best zone first."""

    source: str
    """which catalog"""
    as_of: str
    """date of the newest version"""
    days: int
    """how far back they were read"""
    limit_usd_per_hour: float
    """--max-price, else the on-demand price, US dollars an hour"""
    limit_counts: bool = at("asked")
    """whether the limit is the user's, and is part of both"""
    zones: list[ZoneStoredPrices]


class SurviveEvidence(Document):
    """What the probabilities rest on."""

    interruption_band: int | None = at("band")
    """of the cloud, 0 to 4, null if unknown"""
    placement_score: int | None = at("score")
    """of the cloud, 1 to 10, null if not asked"""
    public_traces: PublicTraces = at("prior")
    own_jobs: OwnJobs | None = at("own")
    """null if there are none of this type"""
    prices: StoredPrices | None
    """with --history only"""


class Survive(Document, schema_version="deepvm.survive/1"):
    """Whether spot VMs can be had, and all live for a time."""

    instance_type: str
    """the type of the VMs"""
    region: str
    """their region"""
    zone: str | None
    """their zone, null for any"""
    vm_count: int = at("forecast.vms")
    """VMs at once"""
    for_s: float = at("forecast.for_s")
    """how long all have to live, seconds"""
    had: Probability = at("forecast.had")
    """that all can be had when they are asked for"""
    lasts: Probability = at("forecast.lasts")
    """that all live for the time, once they are had"""
    both: Probability
    """both, and that the price stays below --max-price"""
    lasts_after_wait: Probability = at("forecast.waited")
    """that all live, if they came only after a wait"""
    lasts_if_independent: float = at("forecast.independent")
    """that all live, if losses did not come together, 0 to 1"""
    life_for_work_s: LifeForWork
    """the mean time to preemption for --work at this number of VMs"""
    evidence: SurviveEvidence = at("")


class TraceRow(Document):
    """How often the VMs of a trace were available, and how long they lived."""

    trace: Trace
    vm_count: int
    """VMs that count as all"""
    gap_s: float
    """between two ticks, seconds"""
    ticks: int
    """number of observations"""
    available_share: float
    """share of the ticks with all VMs, 0 to 1"""
    lives: int = at("life_s.size")
    """number of lifetimes that begin in it"""
    preemptions: int
    """of them ended"""
    machine_s: float = at("seen_s")
    """time that the VMs were there, seconds"""
    mean_s: float | None
    """machine time for each life that ended, seconds, null when none did"""
    median_s: float | None
    """median lifetime, seconds, null when more than half had not ended"""


class Traces(Document, schema_version="deepvm.traces/1"):
    """Recorded spot VMs."""

    traces: list[TraceRow]


class FittedLaw(Document):
    """A law fitted to lifetimes."""

    law: Literal["exponential", "weibull", "lomax", "lognormal"] = at("law.name")
    """its name"""
    parameters: dict[str, float]
    """by name; scales in seconds, shapes without a unit"""
    log_likelihood: float
    """natural logarithm"""
    aic: float
    """Akaike's criterion; smaller is better"""
    mean_s: float | None
    """mean lifetime, seconds, null if infinite"""
    at_bound: bool
    """whether a parameter is at the edge of what is searched"""


class FittedTrace(Document):
    """The laws of one trace."""

    trace: Trace
    lives: int = at("life_s.size")
    """number of lifetimes"""
    preemptions: int
    """of them ended"""
    fits: list[FittedLaw]
    """the best first, empty with too few lifetimes"""


class _MoreOfTracesFit(Document, total=False):
    each: list[FittedTrace]
    """by trace, with --each only"""


class TracesFit(_MoreOfTracesFit, schema_version="deepvm.traces-fit/1"):
    """Lifetime distributions fitted to all traces together."""

    traces: list[Trace]
    lives: int = at("life_s.size")
    """number of lifetimes"""
    preemptions: int
    """of them ended"""
    machine_s: float = at("seen_s")
    """time that the VMs were there, seconds"""
    fits: list[FittedLaw]
    """the best first"""


class Cost(Document):
    """What saves and lost work cost."""

    interval_s: float | None = at(optional=True)
    """of best-fixed, seconds, null for no saves; with that policy only"""
    machine_s: float
    """time that the VMs were there, seconds"""
    saves_s: float
    """of it for saves, seconds"""
    lost_s: float
    """of it for work that was lost, seconds"""
    preemptions: float = at(exact=True)
    """lifetimes that ended"""
    cost_share: float = at("share")
    """saves and lost work over the machine time, 0 to 1"""


class CostOfTrace(Cost):
    """The same on one trace."""

    trace: Trace = at(after=FIRST)


class ReplayRow(Cost):
    """A save policy and a latency over all traces."""

    policy: str = at(after=FIRST)
    """when the job saves"""
    save_s: float = at(after=FIRST)
    """how long a save blocks training, seconds"""
    pools: list[CostOfTrace] = at(after="interval_s")
    """by trace"""


class TracesReplay(Document, schema_version="deepvm.traces-replay/1"):
    """Save policies replayed on traces."""

    step_s: float
    """one training step, seconds"""
    mttp_prior_s: float
    """mean time to preemption before a trace has shown its own, seconds"""
    traces: list[Trace]
    rows: list[ReplayRow]


class DeadlineJob(Document):
    """The job that was replayed."""

    work_s: float
    """what it takes on one VM without saves or restarts, seconds"""
    restart_s: float
    """from the request for a VM until training continues, seconds"""
    save_every_s: float
    """work between two saves, seconds, 0 for continuous"""
    save_s: float
    """how long a save blocks training, seconds"""
    backup_s: float
    """from then until the version is durable, seconds"""
    price_ratio: float
    """spot price over on-demand price"""


class DeadlineMean(Document):
    """A policy at one slack, the mean over all traces."""

    slack: float
    """deadline over work, less 1"""
    policy: str
    """its name, or foresight for the least that any could cost"""
    starts: int
    """replayed jobs"""
    missed: int
    """of them late"""
    cost_ratio: float = at("cost")
    """cost over that of on-demand alone, mean"""
    cost_ratio_p95: float = at("cost_p95")
    """the same, 95th percentile of the starts"""
    on_demand_share: float | None = at("on_demand")
    """share of on-demand VMs in the machine time, 0 to 1, null for foresight"""
    preemptions: float | None
    """mean, null for foresight"""
    end_ratio: float | None = at("took")
    """time from start to end over the deadline, mean, null for foresight"""


class DeadlineRow(DeadlineMean):
    """The same on one trace."""

    trace: str = at(after=FIRST)
    """its file"""


class TracesDeadline(Document, schema_version="deepvm.traces-deadline/1"):
    """Jobs with a deadline replayed on traces."""

    job: DeadlineJob
    means: list[DeadlineMean] = at(lambda replay: [r for r in replay["rows"] if not r.trace])
    traces: list[DeadlineRow] = at(lambda replay: [r for r in replay["rows"] if r.trace])


class TraceMetadata(Document):
    """How a trace was recorded."""

    gap_seconds: float
    """between two observations, seconds"""


class TraceFile(Document):
    """A recorded trace of spot VMs."""

    metadata: TraceMetadata
    data: list[int]
    """number of VMs that were there, at each observation"""
