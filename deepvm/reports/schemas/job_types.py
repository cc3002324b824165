"""Documents of ``run``, ``jobs`` and ``history``."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

Name = Annotated[str, "of the job"]
Market = Annotated[str, "spot or on-demand"]
Time = Annotated[str, "ISO 8601, UTC"]
MaybeTime = Annotated[str | None, "ISO 8601, UTC, null if it has not happened"]
Usd = Annotated[float, "US dollars"]
Epoch = Annotated[float | None, "seconds since 1970, null if it has not happened"]


class RunSaves(TypedDict):
    """Versions that were saved, by reason."""

    emergency: Annotated[int, "before a preemption"]
    insurance: Annotated[int, "by the save policy"]
    periodic: Annotated[int, "asked for by the training or the user"]
    resize: Annotated[int, "before machines join"]
    stop: Annotated[int, "before the end"]


class RunBreakdown(TypedDict):
    """What the time went into; it adds up to total_s."""

    allocation: Annotated[float, "waiting for machines, seconds"]
    preparation: Annotated[float, "booting, loading, joining, seconds"]
    compute: Annotated[float, "steps that count, seconds"]
    recompute: Annotated[float, "steps that were lost and done again, seconds"]
    save: Annotated[float, "saves, while training stood still, seconds"]


class RunSpent(TypedDict):
    """What the money went into; it adds up to cost_usd."""

    allocation: Annotated[Usd, "machines that waited for others"]
    preparation: Annotated[Usd, "booting, loading, joining"]
    compute: Annotated[Usd, "steps that count"]
    recompute: Annotated[Usd, "steps that were lost and done again"]
    save: Annotated[Usd, "saves, while training stood still"]
    release: Annotated[Usd, "from the last step until all machines were gone"]


class RunMachine(TypedDict):
    """A machine of a job."""

    id: Annotated[str, "its name within the job"]
    type: Annotated[str, "its instance type"]
    zone: Annotated[str, "where it was asked for"]
    market: Market
    requested: Annotated[Time, "when it was asked for"]
    ready: Annotated[MaybeTime, "when it could train"]
    notice: Annotated[MaybeTime, "when the cloud said that it takes it back"]
    end: Annotated[MaybeTime, "when it ended"]
    end_reason: Annotated[str, "released, preempted, lost or refused; empty while it lives"]
    usd: Annotated[Usd, "what it has cost"]


class Run(TypedDict):
    """A job: what was trained, what was lost, and what it cost; of one that runs, until now."""

    schema_version: Literal["deepvm.run/1"]
    name: Name
    state: Annotated[str, "done, stopped or failed; before the end pending, forming, running or saving"]
    why: Annotated[str, "why it stopped or failed, empty otherwise"]
    steps: Annotated[int, "steps done"]
    generations: Annotated[int, "memberships that trained"]
    preemptions: Annotated[int, "machines that were taken back or lost"]
    notices: Annotated[int, "of those, how many were announced"]
    lost_steps: Annotated[int, "steps that were done again"]
    saves: RunSaves
    total_s: Annotated[float, "from the submission to the end, seconds"]
    breakdown_s: RunBreakdown
    cost_usd: Annotated[Usd, "what was paid"]
    head_usd: Annotated[Usd, "of that, for the machine that ran the controller of a detached job"]
    on_demand_cost_usd: Annotated[float | None, "what on-demand machines would have cost, US dollars, null if unknown"]
    same_work_on_demand_usd: Annotated[
        float | None, "the same steps on demand, undisturbed, US dollars, null if unknown"
    ]
    spent_usd: RunSpent
    machines: list[RunMachine]


class ListedJob(TypedDict):
    """A job in short."""

    name: Name
    state: Annotated[str, "of the job"]
    controller: Annotated[str, "alive, gone, elsewhere (its folder is not here), or over where none is needed"]
    created: Annotated[Time, "when it was submitted"]
    steps: Annotated[int, "steps done"]
    preemptions: Annotated[int, "machines that were taken back or lost"]
    machines: Annotated[int, "that cost something now"]
    cost_usd: Annotated[Usd, "what was paid until now"]


class Jobs(TypedDict):
    """The jobs of a history, the newest first."""

    schema_version: Literal["deepvm.jobs/1"]
    jobs: list[ListedJob]


class OrphanMachine(TypedDict):
    """A machine that no controller watches."""

    job: Annotated[str, "whose it is"]
    machine: Annotated[str, "its name within the job"]
    since: Annotated[Time, "since when it lives"]


class Orphans(TypedDict):
    """Machines that live although no controller watches them."""

    schema_version: Literal["deepvm.orphans/1"]
    orphans: list[OrphanMachine]


class Pool(TypedDict):
    """The machines of one type in one zone and market."""

    type: Annotated[str, "instance type"]
    zone: Annotated[str, "where"]
    market: Market
    machines: Annotated[int, "that were launched"]
    preemptions: Annotated[int, "of those, how many were taken back or lost"]
    missed_notices: Annotated[int, "preemptions without a notice"]
    missed_low: Annotated[float, "lower end of the 80 % interval of the share without a notice"]
    missed_high: Annotated[float, "upper end"]
    lead_s: Annotated[float | None, "from a notice to its preemption, mean, seconds, null without any"]
    mttp_s: Annotated[float | None, "mean time to preemption, seconds, null before the first"]
    mttp_low_s: Annotated[float, "lower end of its 80 % interval, seconds"]
    mttp_high_s: Annotated[float | None, "upper end, seconds, null before the first preemption"]
    allocation_s: Annotated[float, "from the request to the launch, mean, seconds"]
    allocation_p10_s: Annotated[float, "its 10 % quantile"]
    allocation_p50_s: Annotated[float, "its median"]
    allocation_p90_s: Annotated[float, "its 90 % quantile"]


class Pools(TypedDict):
    """How long machines lived, by type, zone and market."""

    schema_version: Literal["deepvm.pools/1"]
    pools: list[Pool]


class RecordedMachine(TypedDict):
    """A machine as the history has it."""

    job: Annotated[str, "whose it is"]
    id: Annotated[str, "its name within the job"]
    instance_type: Annotated[str, "instance type"]
    zone: Annotated[str, "where it was asked for"]
    market: Market
    usd_per_hour: Annotated[float, "its price, US dollars an hour"]
    grace_s: Annotated[float, "from a notice to the end, as the pool has it, seconds"]
    requested_s: Annotated[float, "when it was asked for, seconds since 1970"]
    state: Annotated[str, "of the machine"]
    role: Annotated[str, "trainer or anchor"]
    launched_s: Annotated[Epoch, "when the cloud made it"]
    ready_s: Annotated[Epoch, "when it could train"]
    trained_s: Annotated[Epoch, "when its first trainers were ready"]
    heard_s: Annotated[Epoch, "the last heartbeat that was written down"]
    silent_s: Annotated[Epoch, "since when it is silent"]
    noticed_s: Annotated[Epoch, "when the cloud said that it takes it back"]
    taken_s: Annotated[Epoch, "when it takes it back, by that notice"]
    ended_s: Annotated[Epoch, "when it ended"]
    end_reason: Annotated[str, "released, preempted, lost or refused; empty while it lives"]
    epoch: Annotated[int, "the newest generation that it was told to run"]
    reported: Annotated[int, "reports of its agent that were heard"]
    cloud: Annotated[str, "whose machine it is, empty if nobody wrote it down"]


class History(TypedDict):
    """All machines of all jobs."""

    schema_version: Literal["deepvm.history/1"]
    machines: list[RecordedMachine]
