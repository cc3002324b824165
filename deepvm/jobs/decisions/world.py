"""What the controller knows: machines, generation, saves, costs. Plain data, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeAlias

from deepvm.core.preemption.savepolicy import Adaptive, SaveFacts, SavePolicy
from deepvm.jobs.decisions.states import Job, JobEvent, Machine, job_after, replace
from deepvm.records import dataclass, field

# Why a machine ended; unready: before it could train, without a preemption by the cloud
RELEASED, PREEMPTED, LOST, REFUSED, UNREADY = "released", "preempted", "lost", "refused", "unready"


class Role(Enum):
    """What a machine is for."""

    TRAINER = "trainer"
    ANCHOR = "anchor"  # it keeps checkpoints in its memory


class Reason(Enum):
    """Why a checkpoint is wanted."""

    EMERGENCY = "emergency"  # a machine goes
    INSURANCE = "insurance"  # by the policy
    PERIODIC = "periodic"  # by the training itself
    RESIZE = "resize"  # a machine comes
    STOP = "stop"  # money, time or the user end the job

    @property
    def holds(self) -> bool:
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
        return self.instance_type, self.zone, self.market


Pools: TypeAlias = tuple[Pool, ...]


@dataclass(frozen=True)
class MachineRecord:
    """A machine; times in seconds since the epoch, None until they are known."""

    id: str  # its tag in the cloud
    pool: Pool
    requested_s: float
    state: Machine = Machine.INTENT
    launched_s: float | None = None
    ready_s: float | None = None
    trained_s: float | None = None  # when its first trainers were ready
    heard_s: float | None = None
    silent_s: float | None = None
    noticed_s: float | None = None
    taken_s: float | None = None  # when the cloud preempts it, by its notice
    ended_s: float | None = None
    end_reason: str = ""
    epoch: int = 0  # the newest generation that it was ordered to run
    reported: int = 0  # the newest report of its agent
    role: Role = Role.TRAINER

    @property
    def was_preempted(self) -> bool:
        return self.noticed_s is not None or self.end_reason in (PREEMPTED, LOST)

    def lived_s(self, now_s: float) -> float:
        if self.launched_s is None:
            return 0.0
        return max((now_s if self.ended_s is None else self.ended_s) - self.launched_s, 0.0)

    def lived_between(self, from_s: float, to_s: float) -> float:
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
    end_s = to_s if ended_s is None else min(ended_s, to_s)
    return max(end_s - max(launched_s, from_s), 0.0)


@dataclass(frozen=True)
class StepRate:
    """Step rate of a generation, with all that stalls it, from step ``first`` to ``last``."""

    generation: int = 0
    first: int = 0
    first_s: float = -1.0  # < 0: not yet
    step_s: float = 0.0  # of the generation before until this one knows; 0: unknown
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
    """The signs of life of a generation (:mod:`deepvm.jobs.decisions.hangs`)."""

    since_s: float | None = None  # of the newest
    restored: bool = False  # whether it has reported from which checkpoint it continues
    stepped: bool = False
    longest_s: float = 0.0  # between two steps of the job
    hangs: int = 0  # how often training restarted because it hung, since the safe ``version``
    version: int = -1
    hung_s: float | None = None  # the last time
    why: str = ""
    formed_s: float | None = None


@dataclass(frozen=True)
class JobLimits:
    """What the job may have, and how long the controller waits for what."""

    least: int  # machines of a generation
    most: int
    total_usd: float | None = None
    end_s: float | None = None  # when it must stop
    silent_s: float = 15.0  # without a heartbeat a machine is SUSPECT, after ``lost_s`` LOST
    lost_s: float = 45.0
    start_s: float = 900.0  # a machine that gets no further for so long, and is no member, goes
    absent_s: float = 60.0  # until the cloud's list counts
    gather_s: float = 10.0  # how long the first generation waits for more than the fewest
    save_s: float = 600.0  # how long a checkpoint may take that no notice limits
    cool_s: float = 30.0  # how long a pool that refused is left alone; twice as long each time
    hold_s: float = 600.0  # how long machines wait for others, or for a checkpoint
    give_up_s: float = 3600.0  # if nothing can be trained for so long, no machines are to be had
    # Without a sign of life, to a generation's first step and between steps; None: without end
    start_timeout_s: float | None = 1800.0
    step_timeout_s: float | None = 1800.0
    policy: SavePolicy = field(default_factory=Adaptive)  # decides on emergency saves
    anchor: Pools = ()  # of the machines that keep checkpoints, the best first
    anchors: int = 0
    steady: Pools = ()  # of the machines that must be bought on demand
    steadies: int = 0
    usd_per_hour: float | None = None  # for a generation and its anchors, without those that leave
    max_price: float | None = None  # $/h, when prices have risen
    steps: int | None = None  # of all the work
    begun_s: float = 0.0  # from when and which step the deadline counts
    begun: int = 0
    deadline_policy: str = ""  # decides between spot and on demand
    bought: Pools = ()  # on demand, for the deadline; empty: nothing decides on the market
    # Until measured: from a request to training, and from a step's end to its safe version
    restart_s: float = 300.0
    version_s: float = 60.0
    mttp_s: float = 3600.0  # mean time to preemption of a machine, before any is seen


@dataclass(frozen=True)
class Save:
    """A checkpoint that something waits for: why, and until when."""

    reason: Reason
    asked_s: float
    limit_s: float
    safe: bool = False


@dataclass(frozen=True)
class StartupFailures:
    """Machines of a role that failed in a row before training: count, last time, and why."""

    count: int = 0
    last_s: float = 0.0
    why: str = ""
    failed_s: float | None = None  # when the first failed in a way that may be the job's fault


@dataclass(frozen=True)
class FailedSaves:
    """Saves that failed: in all, since the newest safe checkpoint, and why the last one did."""

    total: int = 0
    in_a_row: int = 0
    why: str = ""

    def more(self, why: str) -> FailedSaves:
        return FailedSaves(self.total + 1, self.in_a_row + 1, why)


@dataclass(frozen=True)
class KeptOutputs:
    """A machine's outputs in the job's storage."""

    files: int = 0
    bytes: int = 0
    kept_s: float | None = None  # when they were last the same as on the machine
    unmatched: tuple[str, ...] = ()  # patterns that matched nothing
    others: tuple[str, ...] = ()  # some files that the training wrote, and that no pattern means
    why: str = ""  # why the newest are not kept, since failing_s
    failing_s: float | None = None


@dataclass(frozen=True)
class JobState:
    """All of it; machines by id."""

    terms: JobLimits
    now_s: float
    job: Job = Job.PENDING
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)  # as requested
    generation: int = 0  # the newest; 0 before the first
    members: tuple[str, ...] = ()  # its machines, in the order of their ranks
    anchors: tuple[str, ...] = ()  # those that keep its checkpoints, in the order of their parts
    formed: bool = False  # whether its trainers were ordered to start, and not to stop since
    started: frozenset[str] = frozenset()  # where they run
    exits: Mapping[str, int] = field(default_factory=dict)  # worst code, where all have ended
    suspected_s: float | None = None  # since when an exit is looked into
    crashed_at: int = -1  # the last step before trainers failed for no known reason
    crashes: int = 0  # how often they have without getting further
    save: Save | None = None
    unsaved_s: float | None = None  # when an awaited version did not come; None: one has since
    # Reasons of checkpoints that count as failed, of which trainers may still report why
    given_up: frozenset[Reason] = frozenset()
    version: int = 0  # the newest that is safe
    lasts: int = 0  # the newest that is known to survive the loss of the anchors, too
    lasting_s: float = 0.0  # from the end of its step until then, 0 if unknown
    pending: int = 0  # the newest on its way there, 0 if none is
    alone: str = ""  # why the newest will not get there
    reached: int = 0  # the last known step of this generation
    reached_s: float | None = None  # when it was; None where training stands still, or if unknown
    # The last step before this generation, until it is known from which checkpoint that continues
    peak: int | None = None
    pools: Pools = ()  # where machines are asked for, the best first at submission
    priors: Mapping[Pool, PoolRecord] = field(default_factory=dict)  # what was known of them then
    # Until when a pool is left alone, and how often it refused in a row
    blocked: Mapping[Pool, tuple[float, int]] = field(default_factory=dict)
    # Since when machines wait, None if none does or one prepares; and for how long they had before
    idle_s: float | None = None
    idled_s: float = 0.0
    facts: SaveFacts = field(default_factory=SaveFacts)
    ending: str = ""  # why the job is to stop
    ending_s: float = 0.0
    failure: str = ""  # why nothing can be trained
    no_data: bool = False  # because the job's data cannot be had
    requests: int = 0  # how many machines were ever asked for
    saving_s: float = 0.0  # for how long saves have stalled training
    lost_steps: int = 0  # done again
    saves: Mapping[Reason, int] = field(default_factory=dict)  # how many are safe
    failed_saves: FailedSaves = field(default_factory=FailedSaves)
    on_demand: bool = False  # whether the deadline wants machines on demand
    losses: int = 0  # spot machines lost or refused when it last decided
    pace: StepRate = field(default_factory=StepRate)
    # By machine, what it does before it can train, if known, and when it last got further
    preparing: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    heads: tuple[Head, ...] = ()  # rented machines on which its controllers have run
    unready: Mapping[Role, StartupFailures] = field(default_factory=dict)
    pulse: GenerationProgress = field(default_factory=GenerationProgress)
    cold: frozenset[str] = frozenset()  # whose next trainers still load; not written down
    between: StepGap = field(default_factory=StepGap)
    # Whether earlier generations have reported a step or the checkpoint they continued from, and
    # whether they reported steps after a restart, but not from which one it continued
    reports: bool = False
    unplaced: bool = False
    outputs: Mapping[str, KeptOutputs] = field(default_factory=dict)  # by machine

    @property
    def crew(self) -> list[MachineRecord]:
        return [self.machines[member] for member in self.members]

    @property
    def trained(self) -> list[MachineRecord]:
        return [m for m in self.of(Role.TRAINER) if m.launched_s is not None]

    @property
    def notices(self) -> int:
        return sum(m.noticed_s is not None for m in self.machines.values())

    @property
    def preemptions(self) -> int:
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
        usd = sum(m.pool.usd_per_hour for m in self.machines.values() if m.state.costs)
        usd += sum(head.usd_per_hour for head in self.heads if head.ended_s is None)
        return usd / 3600

    @property
    def alive(self) -> list[MachineRecord]:
        return [machine for machine in self.machines.values() if not machine.state.over]

    @property
    def over(self) -> bool:
        return self.job.over and not self.alive

    def after(self, event: JobEvent) -> JobState:
        return replace(self, job=job_after(self.job, event))

    def to_end(self, reason: str) -> JobState:
        if self.ending:  # the first reason counts
            return self
        return replace(self, ending=reason, ending_s=self.now_s)

    def has_waited(self, pause_s: float) -> bool:
        """Whether a checkpoint may be asked for: after a pause where the last one did not come."""
        return self.unsaved_s is None or self.now_s - self.unsaved_s >= pause_s

    def of(self, role: Role, *states: Machine) -> Iterator[MachineRecord]:
        machines = (m for m in self.machines.values() if m.role is role)
        return (m for m in machines if not states or m.state in states)

    def with_spare(self, machine: str, *, spare: bool) -> JobState:
        if (machine in self.cold) != spare:
            return self
        return replace(self, cold=self.cold - {machine} if spare else self.cold | {machine})

    def with_machine(self, machine: MachineRecord) -> JobState:
        return replace(self, machines={**self.machines, machine.id: machine})


# Lifetimes stay informative for weeks; capacity changes within hours
_RECENT_S, _FRESH_S = 30 * 86_400.0, 86_400.0
# Gamma prior: one preemption in 10 hours, pessimistic, outweighed by a day of lifetimes
_RATE_PRIOR = 1.0, 10.0
_REFUSAL_PRIOR = 0.5, 3.0  # Beta: as if of 3.5 requests half a one had been refused
# Hours until a replacement trains after a preemption, and hours that each refusal adds
_LOST_H, _WAIT_H = 0.1, 0.05


@dataclass(frozen=True)
class PoolRecord:
    """A pool's hours lived, preemptions, and requests by outcome, as looked up at ``at_s``."""

    lived_h: float = 0.0
    taken: int = 0
    granted: int = 0
    refused: int = 0
    at_s: float = 0.0

    @property
    def preemptions_per_hour(self) -> float:
        prior, hours = _RATE_PRIOR
        return (prior + self.taken) / (hours + self.lived_h)

    @property
    def refusals(self) -> float:
        """Expected refusals before a machine: posterior mean of q / (1 - q), beta-Bernoulli."""
        no, yes = _REFUSAL_PRIOR
        return (no + self.refused) / (yes + self.granted - 1.0)

    def usd_per_useful_hour(self, usd_per_hour: float) -> float:
        return usd_per_hour * (
            1.0 + self.preemptions_per_hour * (_LOST_H + self.refusals * _WAIT_H)
        )

    def with_earlier(self, earlier: PoolRecord) -> PoolRecord:
        """Add what was looked up earlier, of other machines, as far as it is not stale."""
        found = replace(
            self, lived_h=self.lived_h + earlier.lived_h, taken=self.taken + earlier.taken
        )
        if self.at_s - earlier.at_s > _FRESH_S:
            return found
        return replace(
            found, granted=self.granted + earlier.granted, refused=self.refused + earlier.refused
        )

    def seen(
        self,
        requested_s: float,
        launched_s: float | None,
        ended_s: float | None,
        *,
        taken: bool,
        refused: bool,
    ) -> PoolRecord:
        """With one machine more, as it is at ``at_s``; what is too long ago says nothing."""
        age_s = self.at_s - requested_s
        found = self
        if launched_s is not None and age_s <= _RECENT_S:
            lived_s = (self.at_s if ended_s is None else ended_s) - launched_s
            lived_h = self.lived_h + max(lived_s, 0.0) / 3600
            found = replace(found, lived_h=lived_h, taken=self.taken + taken)
        if age_s <= _FRESH_S:
            granted = self.granted + (launched_s is not None)
            found = replace(found, granted=granted, refused=self.refused + refused)
        return found
