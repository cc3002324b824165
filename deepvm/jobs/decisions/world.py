"""What the controller knows: machines, generation, saves, costs. Plain data, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from deepvm.core.preemption.savepolicy import Adaptive, SaveFacts, SavePolicy
from deepvm.jobs.decisions.pool_record import PoolRecord
from deepvm.jobs.decisions.states import Job, Machine

RELEASED, PREEMPTED, LOST, REFUSED, UNREADY = "released", "preempted", "lost", "refused", "unready"
"""Why a machine ended; unready: before it could train, without a preemption by the cloud."""


class Role(Enum):
    """What a machine is for."""

    TRAINER = "trainer"
    ANCHOR = "anchor"  # it keeps versions in its memory


class Reason(Enum):
    """Why a version is wanted."""

    EMERGENCY = "emergency"  # a machine goes
    INSURANCE = "insurance"  # by the policy
    PERIODIC = "periodic"  # by the training itself
    RESIZE = "resize"  # a machine comes
    STOP = "stop"  # money, time or the user end the job

    @property
    def holds(self) -> bool:
        """Whether training waits until it is safe, and longer."""
        return self in (Reason.EMERGENCY, Reason.RESIZE, Reason.STOP)


@dataclass(frozen=True)
class Pool:
    """Where machines come from: one type in one zone and market."""

    instance_type: str
    zone: str
    market: str
    usd_per_hour: float
    grace_s: float = 120.0

    @property
    def place(self) -> tuple[str, str, str]:
        """What it is, without its price of the moment."""
        return self.instance_type, self.zone, self.market


Pools: TypeAlias = tuple[Pool, ...]


@dataclass(frozen=True)
class MachineRecord:
    """A machine; times in seconds since the epoch, None until they are known.

    Attributes:
        id: the token of the request, and the machine's tag in the cloud.
        trained_s: when its first trainers were ready. taken_s: when the cloud takes it back, by its
            notice.
        epoch: the newest generation that it was ordered to run. reported: the newest report of its
            agent that has reported.
    """

    id: str
    pool: Pool
    requested_s: float
    state: Machine = Machine.INTENT
    launched_s: float | None = None
    ready_s: float | None = None
    trained_s: float | None = None
    heard_s: float | None = None
    silent_s: float | None = None
    noticed_s: float | None = None
    taken_s: float | None = None
    ended_s: float | None = None
    end_reason: str = ""
    epoch: int = 0
    reported: int = 0
    role: Role = Role.TRAINER

    def lived_s(self, now_s: float) -> float:
        """From its launch to its end, or until now."""
        if self.launched_s is None:
            return 0.0
        return max((now_s if self.ended_s is None else self.ended_s) - self.launched_s, 0.0)

    def lived_between(self, from_s: float, to_s: float) -> float:
        """The part of it in a time."""
        if self.launched_s is None:
            return 0.0
        return _overlap_s(self.launched_s, self.ended_s, from_s, to_s)

    def usd(self, now_s: float) -> float:
        return self.pool.usd_per_hour * self.lived_s(now_s) / 3600


@dataclass(frozen=True)
class Head:
    """A machine that runs only the job's controller, and is not in :class:`JobState`."""

    name: str
    usd_per_hour: float
    launched_s: float
    ended_s: float | None = None

    def usd(self, now_s: float) -> float:
        return self.usd_between(self.launched_s, now_s)

    def usd_between(self, from_s: float, to_s: float) -> float:
        return self.usd_per_hour * _overlap_s(self.launched_s, self.ended_s, from_s, to_s) / 3600


def _overlap_s(launched_s: float, ended_s: float | None, from_s: float, to_s: float) -> float:
    """The part of a machine's life that is in a time; without an end it lives on."""
    end_s = to_s if ended_s is None else min(ended_s, to_s)
    return max(end_s - max(launched_s, from_s), 0.0)


@dataclass(frozen=True)
class StepRate:
    """Step rate of a generation: from step ``first`` at ``first_s`` (< 0: not yet) to ``last``.

    ``step_s``: seconds of one with all that stalls it; of the generation before until this one
    knows; 0: unknown.
    """

    generation: int = 0
    first: int = 0
    first_s: float = -1.0
    step_s: float = 0.0
    last: int = 0


@dataclass(frozen=True)
class StepGap:
    """Seconds between steps, out of ``of_s`` of training; ``seen_*``: of this generation."""

    s: float = 0.0
    of_s: float = 0.0
    generation: int = 0
    seen_s: float = 0.0
    seen_of_s: float = 0.0


@dataclass(frozen=True)
class GenerationProgress:
    """The signs of life of a generation (:mod:`deepvm.jobs.decisions.hangs`).

    Attributes:
        formed_s: when the generation was formed. since_s: when the newest was. Both None before the
        first generation. restored, stepped: whether it has reported from which version it
        continues, and made a step.
        longest_s: the longest time between two steps of the job, with all that came between them.
        hangs, version: how often training restarted because it hung, and since which safe version.
        hung_s, why: when it last did, and what was seen.
    """

    since_s: float | None = None
    restored: bool = False
    stepped: bool = False
    longest_s: float = 0.0
    hangs: int = 0
    version: int = -1
    hung_s: float | None = None
    why: str = ""
    formed_s: float | None = None


@dataclass(frozen=True)
class JobLimits:
    """What the job may have, and how long the controller waits for what.

    Attributes:
        least, most: machines of a generation. total_usd: what may be paid in all. end_s: when it
        must stop.
        silent_s: without a heartbeat a machine is SUSPECT. lost_s: so long silent it is LOST.
        start_s: a machine that gets no further for so long before it is a member is released.
        absent_s: until the cloud's list counts.
        gather_s: how long the first generation waits for more machines than the fewest.
        save_s: how long a version may take that no notice limits. cool_s: how long a pool that
            refused is left alone; twice as long each time. hold_s: how long machines wait for
            others that do not come, or for a version.
        give_up_s: if nothing can be trained for so long, no more machines are to be had.
        start_timeout_s, step_timeout_s: how long a generation may take to its first step, and
        between steps, without a sign of life; None: without end.
        policy: decides on emergency saves. anchor, anchors: where the machines that keep versions
        come from, the best pool first, and how many there are. steady, steadies: the same of
        machines of a generation that must be bought on demand.
        usd_per_hour: what a generation and its anchors may cost; those that leave besides those
            that come do not count.
        max_price: what they may cost when prices have risen, None if unknown.
        steps: of all the work, None if unknown. begun_s, begun: from when and which step
        the deadline counts. deadline_policy, bought: what decides between spot and on demand, and
        where the latter come from; empty: nothing does. restart_s, version_s: until they are
        measured, from the request for a machine until it trains, and from the end of a step until
        its version is safe. mttp_s: mean time to preemption of a machine, before any is seen.
    """

    least: int
    most: int
    total_usd: float | None = None
    end_s: float | None = None
    silent_s: float = 15.0
    lost_s: float = 45.0
    start_s: float = 900.0
    absent_s: float = 60.0
    gather_s: float = 10.0
    save_s: float = 600.0
    cool_s: float = 30.0
    hold_s: float = 600.0
    give_up_s: float = 3600.0
    start_timeout_s: float | None = 1800.0
    step_timeout_s: float | None = 1800.0
    policy: SavePolicy = field(default_factory=Adaptive)
    anchor: Pools = ()
    anchors: int = 0
    steady: Pools = ()
    steadies: int = 0
    usd_per_hour: float | None = None
    max_price: float | None = None
    steps: int | None = None
    begun_s: float = 0.0
    begun: int = 0
    deadline_policy: str = ""
    bought: Pools = ()
    restart_s: float = 300.0
    version_s: float = 60.0
    mttp_s: float = 3600.0


@dataclass(frozen=True)
class Save:
    """A version that something waits for: why, and until when."""

    reason: Reason
    asked_s: float
    limit_s: float
    safe: bool = False


@dataclass(frozen=True)
class StartupFailures:
    """Machines of a role that failed in a row before training: count, last time, and why.

    ``failed_s``: when the first of them failed in a way that may be the job's fault.
    """

    count: int = 0
    last_s: float = 0.0
    why: str = ""
    failed_s: float | None = None


@dataclass(frozen=True)
class FailedSaves:
    """Saves that failed: in all, since the newest safe checkpoint, and why the last one did."""

    total: int = 0
    in_a_row: int = 0
    why: str = ""


@dataclass(frozen=True)
class Counts:
    """What the report says."""

    lost_steps: int = 0
    saves: Mapping[Reason, int] = field(default_factory=dict)
    failed: FailedSaves = field(default_factory=FailedSaves)

    def saved(self, reason: Reason) -> Counts:
        saves = {**self.saves, reason: self.saves.get(reason, 0) + 1}
        return replace(self, saves=saves, failed=replace(self.failed, in_a_row=0, why=""))

    def unsaved(self, reason: str) -> Counts:
        return replace(
            self, failed=FailedSaves(self.failed.total + 1, self.failed.in_a_row + 1, reason)
        )

    def explained(self, reason: str) -> Counts:
        """The reason why the last one did not come, unless another has since."""
        if self.failed.in_a_row:
            return replace(self, failed=replace(self.failed, why=reason))
        return self


@dataclass(frozen=True)
class JobState:
    """All of it.

    Attributes:
        machines: by id, in the order of their requests.
        generation: the newest; 0 before the first. members: its machines, in the order of their
            ranks. anchors: those that keep its versions, in the order of their parts.
        formed: whether its trainers were ordered to start, and not to stop since. started: where
            they run.
        exits: the worst exit code of the trainers on each machine where all have ended.
        suspected_s: since when an exit is looked into. crashed_at, crashes: the last step before
            trainers failed for no reason that is known, and how often they have without getting
            further.
        unsaved_s: when a version did not come that something waited for; None: one has since.
            given_up: why versions of this generation were wanted that are counted as failed, and of
            which trainers may still say so.
        version: the newest that is safe. reached: the last step of this generation that is known,
            reached_s: when it was, None where training stands still, or if unknown. peak: that of
            those before it, until it is known from which version this one continues.
        lasts: the newest version that is known to survive the loss of the anchors, too. lasting_s:
            how long it took from the end of its step until then, 0 if unknown. pending: the newest
            that is on its way to where it does, 0 if none is. alone: why the newest will not get
            there, else empty.
        pools: where machines are asked for, the best first when the job was submitted. priors: what
            the history knew of them then. blocked: until when a pool is left alone, and how often
            it refused in a row. idle_s, idled_s: since when machines wait, None if none does or one
            prepares; and for how long they had before (:mod:`deepvm.jobs.decisions.waiting`).
        facts: what is known of steps, versions and lives.
        ending: why the job is to stop, empty if it is not; ending_s: since when. failure: why
            nothing can be trained, else empty; no_data: that is so because the job's data cannot be
            had.
        requests: how many machines were ever asked for. saving_s: for how long saves have stalled
            training.
        on_demand: whether the deadline wants machines on demand. losses: spot machines that were
            lost or refused when it last decided. pace: how fast steps are.
        preparing: by machine, what it does before it can train, if that is known, and when it last
            got further.
        heads: where its controllers have run, if on machines that were rented for that.
        unready: by role, machines in a row that never could train. pulse: whether training
        continues.
        cold: machines whose next trainers still load while others run; heartbeats say it, nobody
            writes it down.
        between: what passed between steps, of the first trainer.
        reports: whether trainers of an earlier generation have reported a step, or the checkpoint
            they continued from.
        unplaced: whether an earlier generation reported steps after a restart, but not from which
            step it continued.
    """

    terms: JobLimits
    now_s: float
    job: Job = Job.PENDING
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)
    generation: int = 0
    members: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    formed: bool = False
    started: frozenset[str] = frozenset()
    exits: Mapping[str, int] = field(default_factory=dict)
    suspected_s: float | None = None
    crashed_at: int = -1
    crashes: int = 0
    save: Save | None = None
    unsaved_s: float | None = None
    given_up: frozenset[Reason] = frozenset()
    version: int = 0
    lasts: int = 0
    lasting_s: float = 0.0
    pending: int = 0
    alone: str = ""
    reached: int = 0
    reached_s: float | None = None
    peak: int | None = None
    pools: Pools = ()
    priors: Mapping[Pool, PoolRecord] = field(default_factory=dict)
    blocked: Mapping[Pool, tuple[float, int]] = field(default_factory=dict)
    idle_s: float | None = None
    idled_s: float = 0.0
    facts: SaveFacts = field(default_factory=SaveFacts)
    ending: str = ""
    ending_s: float = 0.0
    failure: str = ""
    no_data: bool = False
    requests: int = 0
    saving_s: float = 0.0
    counts: Counts = field(default_factory=Counts)
    on_demand: bool = False
    losses: int = 0
    pace: StepRate = field(default_factory=StepRate)
    preparing: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    heads: tuple[Head, ...] = ()
    unready: Mapping[Role, StartupFailures] = field(default_factory=dict)
    pulse: GenerationProgress = field(default_factory=GenerationProgress)
    cold: frozenset[str] = frozenset()
    between: StepGap = field(default_factory=StepGap)
    reports: bool = False
    unplaced: bool = False

    @property
    def notices(self) -> int:
        return sum(m.noticed_s is not None for m in self.machines.values())

    @property
    def preemptions(self) -> int:
        """Machines that the cloud preempted, or that were lost."""
        return sum(m.noticed_s is not None or m.end_reason == LOST for m in self.machines.values())

    @property
    def steps(self) -> int:
        return max(self.reached, self.version if self.peak is None else self.peak)

    @property
    def has_reported(self) -> bool:
        return bool(self.reports or self.pulse.restored or self.pulse.stepped or self.steps)

    @property
    def is_unplaced(self) -> bool:
        """Whether steps are reported whose first number is not known."""
        return self.unplaced or bool(self.peak and self.pulse.stepped)

    @property
    def progress_unknown(self) -> str:
        """Why the number of steps is not known; empty if it is (0 before any trainer starts)."""
        if self.is_unplaced:
            return "this script does not report from which step it continues"
        if self.has_reported or all(m.trained_s is None for m in self.machines.values()):
            return ""
        if self.job.over:
            return "this script reports no steps"
        return "no steps reported yet"

    @property
    def usd(self) -> float:
        return sum(m.usd(self.now_s) for m in self.machines.values()) + self.head_usd

    @property
    def head_usd(self) -> float:
        return sum(head.usd(self.now_s) for head in self.heads)

    @property
    def usd_per_second(self) -> float:
        machines = sum(m.pool.usd_per_hour for m in self.machines.values() if m.state.costs)
        return (
            machines + sum(head.usd_per_hour for head in self.heads if head.ended_s is None)
        ) / 3600

    @property
    def alive(self) -> list[MachineRecord]:
        """The machines that are not known to have ended."""
        return [machine for machine in self.machines.values() if not machine.state.over]

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: the job has ended, and all of its machines."""
        return self.job.over and not self.alive

    def to_end(self, reason: str) -> JobState:
        """With the reason why the job is to stop; the first one counts."""
        if self.ending:
            return self
        return replace(self, ending=reason, ending_s=self.now_s)

    def has_waited(self, pause_s: float) -> bool:
        """Whether a version may be asked for: after a pause where the last one did not come."""
        return self.unsaved_s is None or self.now_s - self.unsaved_s >= pause_s

    def of(self, role: Role, *states: Machine) -> Iterator[MachineRecord]:
        return (m for m in self.machines.values() if m.role is role and m.state in states)

    def with_spare(self, machine: str, *, spare: bool) -> JobState:
        if (machine in self.cold) != spare:
            return self
        return replace(self, cold=self.cold - {machine} if spare else self.cold | {machine})

    def with_machine(self, machine: MachineRecord) -> JobState:
        return replace(self, machines={**self.machines, machine.id: machine})
