"""Documents of ``run``, ``jobs`` and ``history``."""

from __future__ import annotations

from typing import Annotated

from deepvm.documents.build import With
from deepvm.documents.document import Document, at
from deepvm.documents.outputs.plans import Bill
from deepvm.documents.outputs.simulation import Spread
from deepvm.io.times import utc_text

Name = Annotated[str, "of the job"]
Market = Annotated[str, "spot or on-demand"]
Time = Annotated[str, "ISO 8601, UTC"]
MaybeTime = Annotated[str | None, "ISO 8601, UTC, null if it has not happened"]
Usd = Annotated[float, "US dollars"]
EndReason = Annotated[
    str,
    "released, preempted, lost, refused, or unready: ended before it could train; empty while it"
    " lives",
]
Epoch = Annotated[float | None, "seconds since 1970, null if it has not happened"]


class RunSaves(Document):
    """Versions that were saved, by reason."""

    emergency: int
    """before a preemption"""
    insurance: int
    """by the save policy"""
    periodic: int
    """asked for by the training or the user"""
    resize: int
    """before machines join"""
    stop: int
    """before the end"""


class RunFailedSaves(Document):
    """Versions that did not come."""

    total: int
    """in all"""
    in_a_row: int
    """since the newest version that is safe"""
    why: str
    """why the last of those did not come, empty without any"""


class RunParts(Document):
    """What the time went into, as the simulator counts."""

    allocation: float
    """waiting for machines, seconds"""
    preparation: float
    """booting, loading, joining, seconds"""
    compute: float
    """steps that count, seconds; all training where progress is unknown"""
    recompute: float | None
    """steps that were lost and done again, seconds, null if unknown"""
    save: float
    """saves, while training stood still, seconds"""


class RunBreakdown(RunParts):
    """What the time went into; with downtime_s it adds up to total_s."""

    hang: float
    """from the last sign of life until a hang was noticed, seconds"""


class RunSpent(Document):
    """What the money went into; it adds up to cost_usd."""

    allocation: Usd
    """machines that waited for others"""
    preparation: Usd
    """booting, loading, joining"""
    compute: Usd
    """steps that count; all training where progress is unknown"""
    recompute: float | None
    """steps that were lost and done again, US dollars, null if unknown"""
    save: Usd
    """saves, while training stood still"""
    hang: Usd
    """from the last sign of life until a hang was noticed"""
    downtime: Usd
    """machines that lived while there was no controller"""
    release: Usd
    """from the last step until all machines were gone"""


class RunMachine(Document):
    """A machine of a job."""

    id: str
    """its name within the job"""
    type: str
    """its instance type"""
    zone: str
    """where it was asked for"""
    market: Market
    requested: Time
    """when it was asked for"""
    ready: MaybeTime
    """when it could train"""
    notice: MaybeTime
    """when the cloud said that it takes it back"""
    end: MaybeTime
    """when it ended"""
    end_reason: EndReason
    usd: Usd
    """what it has cost"""


class RunOff(Document):
    """By how much means of the forecast are off, as shares of the fact."""

    total_s: float | None
    """of the time, null where the fact is 0"""
    cost_usd: float | None
    """of the cost, null where the fact is 0"""


class RunFact(Document):
    """What came out, but for the time in which there was no controller and nothing was trained."""

    total_s: float
    """from the submission to the end, seconds"""
    cost_usd: Usd
    """of all machines"""
    preemptions: int
    """machines that were preempted or lost"""


class RunForecast(Document):
    """What ``simulate`` predicted with what was known at the start, except the time of a step."""

    runs: int
    """simulated ones"""
    steps: int
    """all of the job; of a job that is done, as many as it did if no number was given"""
    steps_given: bool
    """whether the job file or --steps says so"""
    step_s: float
    """one step, as measured, seconds"""
    start_s: float
    """from the request for a machine until it trains, as earlier ones took, seconds"""
    mttp_s: float | None
    """mean lifetime of a machine, by inject from its first training, seconds, null: no end"""
    total_s: Spread
    """from the submission to the last step, seconds"""
    cost_usd: Spread
    """of all machines, US dollars"""
    preemptions: Spread
    """machines that are preempted"""
    fact: RunFact
    off: RunOff | None
    """null for a job that has not trained to its end"""


class RunFigures(Document):
    """Figures of a job, as the simulator counts."""

    total_s: float
    """from the submission to the last step, seconds"""
    cost_usd: Usd
    """of the machines that train, until then"""
    lost_steps: int
    """steps that were done again"""
    preemptions: int
    """machines that were preempted or lost"""
    breakdown_s: RunParts


class RunMeasured(Document):
    """Means of latencies that were measured, seconds."""

    step_s: float
    """one step"""
    stall_s: float
    """training stands still for a version"""
    took_s: float
    """from the end of a step until its version is safe"""
    allocation_s: float
    """from when a machine is needed to its launch"""
    preparation_s: float
    """from then until training resumes"""


class RunValidation(Document):
    """What ``simulate`` says, given the lives and latencies that the job had."""

    fact: RunFigures
    forecast: RunFigures | None
    """null where the simulator finds no end"""
    deviation: RunOff | None
    """null where there is no forecast"""
    measured: RunMeasured
    why: str = at(optional=True)
    """why there is no forecast"""


class RunRestartCauses(Document):
    """Restarts by cause."""

    preemption: int
    """a machine was preempted or lost"""
    hang: int
    """trainers gave no sign of life"""
    crash: int
    """trainers failed"""
    resize: int
    """machines joined or were exchanged"""
    resume: int
    """the job was resumed after its end"""


class RunRestarts(Document):
    """How often trainers were restarted, and what that cost besides repeated steps."""

    count: int
    """in all"""
    causes: RunRestartCauses
    waiting_s: float
    """waiting, loading and hangs since training first began, seconds"""
    waiting_usd: Usd
    """the same in money"""
    uncertain_s: float
    """where progress is unknown, training before the last restart, which may have been done twice,
    seconds"""
    uncertain_usd: Usd
    """the same in money"""


class RunPhases(Document):
    """What comes before the steps on a machine, on average, in seconds; null if no machine has said so."""  # noqa: E501

    code: float | None
    """fetching the code"""
    setup: float | None
    """the job file's setup"""
    data: float | None
    """fetching its data"""
    load: float | None
    """until the first trainers could begin"""
    first_step: float | None
    """from the start of a generation's trainers to its first step"""


class Run(Document, schema_version="deepvm.run/1"):
    """A job: what was trained, what was lost, and what it cost; of one that runs, until now."""

    name: Name
    state: str
    """done, stopped or failed; before the end pending, forming, running or saving"""
    why: str
    """why it stopped or failed, empty otherwise"""
    exit_code: int | None
    """of run: 0 done, 1 failed, 3 stopped, 4 its data cannot be had; null before the end"""
    steps: int | None
    """steps done, null if unknown"""
    progress_unknown: str
    """why the number of steps is unknown, empty if it is known"""
    generations: int
    """memberships that trained"""
    restarts: RunRestarts
    preemptions: int
    """machines that were preempted or lost"""
    notices: int
    """of those, how many were announced"""
    lost_steps: int | None
    """steps that were done again, null if unknown"""
    unsaved_steps: int | None
    """steps after the newest safe checkpoint, null if unknown"""
    saves: RunSaves
    failed_saves: RunFailedSaves
    version: int
    """steps of the newest version that is safe"""
    total_s: float
    """from the submission to the end, but for the time in which it was stopped, seconds"""
    breakdown_s: RunBreakdown
    phases_s: RunPhases
    between_steps: float | None
    """share of the training that passes between steps, as for data, 0 to 1, null if unknown"""
    downtime_s: float
    """without a controller, seconds; machines may have trained meanwhile"""
    cost_usd: Usd
    """what was paid"""
    head_usd: Usd
    """of that, for the machine that ran the controller of a detached job"""
    on_demand_cost_usd: float | None
    """what on-demand machines would have cost, US dollars, null if unknown"""
    same_work_on_demand_usd: float | None
    """the same steps on demand, undisturbed, US dollars, null if unknown"""
    unpriced_types: list[str]
    """types whose on-demand price is not known: these two are null then"""
    spent_usd: RunSpent
    forecast: RunForecast | None
    """null before the end, and where there is none"""
    unforeseen: str
    """why there is no forecast, empty otherwise and before the end"""
    validation: RunValidation | None
    """null without --validate"""
    machines: list[RunMachine]


class PlannedMachines(Document):
    """Machines of one kind that a job would rent."""

    role: str
    """trainer, anchor, or head, which runs the controller of a detached job"""
    type: str = at("pool.instance_type")
    """instance type"""
    zone: str = at("pool.zone")
    """where the first is asked for"""
    market: Market = at("pool.market")
    least: int
    """without so many nothing is trained"""
    most: int
    """so many are asked for"""
    usd_per_hour: float = at("pool.usd_per_hour")
    """the price of one, US dollars an hour"""
    most_usd_per_hour: float | None
    """what one may cost when prices rise, US dollars an hour, null for no limit"""


class AskedPool(Document):
    """Where training machines are asked for."""

    type: str = at("instance_type")
    """instance type"""
    zone: str
    """zone, or what covers several, among which the cloud chooses"""
    market: Market
    usd_per_hour: float
    """the price of one, US dollars an hour"""


class MadeName(Document):
    """How things that a job makes can be found."""

    what: str = at("0")
    """kind of thing, such as instances"""
    name: str = at("1")
    """its names or tags"""


class RunPlan(Document, schema_version="deepvm.run-plan/1"):
    """What a job would rent."""

    name: Name
    usd_per_hour: float
    """with the most machines, in the dearest of the pools, US dollars an hour"""
    total_usd: float | None = at("world.terms.total_usd")
    """what may be paid in all, US dollars, null without a limit"""
    max_price: float | None = at("world.terms.max_price")
    """what all machines may cost when prices rise, US dollars an hour, null if unsaid"""
    machines: list[PlannedMachines]
    pools: list[AskedPool] = at("world.pools")
    """in the order in which they are asked"""
    bill: Bill | None = at(lambda plan: plan.bill and With(plan.bill, total_usd=None))
    """what comes besides machines, null where no rates are known"""
    names: list[MadeName] = at(lambda plan: plan.names.items())
    """of all that is made in the cloud; empty where machines are simulated or yours"""


class ListedJob(Document):
    """A job in short."""

    name: Name
    state: str
    """of the job"""
    controller: str
    """alive, gone, elsewhere (its folder is not here), or over where none is needed"""
    created: Time = at(lambda job: utc_text(job.created_s))
    """when it was submitted"""
    steps: int | None
    """steps done, null if unknown"""
    preemptions: int
    """machines that were preempted or lost"""
    machines: int
    """that cost something now"""
    cost_usd: Usd = at(exact=True)
    """what was paid until now"""
    failed_saves: int
    """since the newest version that is safe"""


class Jobs(Document, schema_version="deepvm.jobs/1"):
    """The jobs of a history, the newest first."""

    jobs: list[ListedJob]


class OrphanMachine(Document):
    """A machine that no controller watches."""

    job: str
    """whose it is"""
    machine: str
    """its name within the job"""
    since: Time = at(lambda machine: utc_text(machine.since_s))
    """since when it lives"""
    known: bool
    """whether the history has its job; if not, another may, and need it"""


class Orphans(Document, schema_version="deepvm.orphans/1"):
    """Machines that live although no controller watches them."""

    orphans: list[OrphanMachine]


class Pool(Document):
    """The machines of one type in one zone and market."""

    type: str = at("instance_type")
    """instance type"""
    zone: str
    """where"""
    market: Market
    machines: int
    """that were launched"""
    preemptions: int
    """of those, how many were preempted or lost"""
    missed_notices: int = at("missed")
    """preemptions without a notice"""
    missed_low: float = at("missed_interval.0")
    """lower end of the 80 % interval of the share without a notice"""
    missed_high: float = at("missed_interval.1")
    """upper end"""
    lead_s: float | None = at("leads_s")
    """from a notice to its preemption, mean, seconds, null without any"""
    rebalances: int
    """machines that the cloud had recommended to replace, preempted or not"""
    mttp_s: float | None
    """mean time to preemption, seconds, null before the first"""
    mttp_low_s: float = at("mttp_interval_s.0")
    """lower end of its 80 % interval, seconds"""
    mttp_high_s: float | None = at("mttp_interval_s.1")
    """upper end, seconds, null before the first preemption"""
    allocation_s: float
    """from the request to the launch, mean, seconds"""
    allocation_p10_s: float = at("allocations_s.0")
    """its 10 % quantile"""
    allocation_p50_s: float = at("allocations_s.1")
    """its median"""
    allocation_p90_s: float = at("allocations_s.2")
    """its 90 % quantile"""


class Pools(Document, schema_version="deepvm.pools/1"):
    """How long machines lived, by type, zone and market."""

    pools: list[Pool]


class RecordedMachine(Document):
    """A machine as the history has it."""

    job: str
    """whose it is"""
    id: str
    """its name within the job"""
    instance_type: str
    """instance type"""
    zone: str
    """where it was asked for"""
    market: Market
    usd_per_hour: float
    """its price, US dollars an hour"""
    grace_s: float
    """from a notice to the end, as the pool has it, seconds"""
    requested_s: float
    """when it was asked for, seconds since 1970"""
    state: str
    """of the machine"""
    role: str
    """trainer or anchor"""
    launched_s: Epoch
    """when the cloud made it"""
    ready_s: Epoch
    """when it could train"""
    trained_s: Epoch
    """when its first trainers were ready"""
    heard_s: Epoch
    """the last heartbeat that was written down"""
    silent_s: Epoch
    """since when it is silent"""
    noticed_s: Epoch
    """when the cloud said that it takes it back"""
    taken_s: Epoch
    """when it takes it back, by that notice"""
    ended_s: Epoch
    """when it ended"""
    end_reason: EndReason
    epoch: int
    """the newest generation that it has to run"""
    reported: int
    """reports of its agent that were heard"""
    cloud: str
    """whose machine it is, empty when unknown"""
    rebalanced_s: Epoch
    """when the cloud recommended to replace it"""


class History(Document, schema_version="deepvm.history/1"):
    """All machines of all jobs."""

    machines: list[RecordedMachine]
