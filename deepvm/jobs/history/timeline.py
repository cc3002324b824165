"""What the machines of a job did when, what was paid by when, and where steps were lost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import LOST, REFUSED, JobState, MachineRecord, Role
from deepvm.jobs.history.history import EventRow, Sample
from deepvm.records import dataclass, field, replace

# The kind of event for controller downtime, and the cause it is counted under
DOWNTIME = "downtime"
# Shorter ones do not count: another controller was started at once, or the computer was busy
LEAST_S = 5.0
TRAINS = (Job.RUNNING.value, Job.SAVING.value)


@dataclass(frozen=True)
class Downtime:
    """A time without a controller."""

    since_s: float
    until_s: float
    steps: int = 0  # done in it, as far as is known

    @property
    def span_s(self) -> float:
        return self.until_s - self.since_s

    def idle_s(self, step_s: float) -> float:
        return max(self.span_s - self.steps * step_s, 0.0)


Downtimes: TypeAlias = Sequence[Downtime]
Phase: TypeAlias = tuple[str, float, float]  # A cause, or what a machine did, from when to when


def downtimes(events: Iterable[EventRow], samples: Sequence[Sample]) -> list[Downtime]:
    """All of a job, in order."""
    found = [(float(e.facts["since_s"]), e.at_s) for e in events if e.kind == DOWNTIME]
    return [Downtime(*times, _steps(samples, *times)) for times in found]


def _steps(samples: Sequence[Sample], since_s: float, until_s: float) -> int:
    """Steps done in a downtime, interpolated: samples of a long job are minutes apart."""
    before = next((s for s in reversed(samples) if s.at_s <= since_s), Sample(since_s, 0, 0))
    # Heartbeats come a moment after the controller: until then its samples repeat what it knew.
    after = next((s for s in samples if s.at_s >= until_s and s.step != before.step), None)
    if after is None or after.at_s <= before.at_s:
        return 0
    steps = (after.step - before.step) * (until_s - since_s) / (after.at_s - before.at_s)
    return max(round(steps), 0)


def last_seen_s(world: JobState, samples: Sequence[Sample]) -> float:
    """When the controller that wrote this was there last."""
    return max([world.now_s, *(s.at_s for s in samples[-1:])])


def caught_up(world: JobState, samples: Sequence[Sample]) -> JobState:
    """Add the steps that the controller did not record, as nothing followed from them."""
    last = samples[-1] if samples else None
    if last is None or last.generation != world.generation or last.step <= world.reached:
        return world
    if world.peak is not None:
        return world
    world = replace(world, reached=last.step)
    if world.reached_s is None:  # trainers had stood still
        return world
    return replace(world, reached_s=last.at_s)


def cut(stretches: Iterable[Phase], without: Downtimes) -> Iterator[Phase]:
    """Split stretches so that the parts within a downtime count as downtime."""
    for cause, from_s, to_s in stretches:
        for one in without:
            since_s = max(one.since_s, from_s)
            until_s = min(one.until_s, to_s)
            if since_s < until_s:
                yield cause, from_s, since_s
                yield DOWNTIME, since_s, until_s
                from_s = until_s
        yield cause, from_s, to_s


@dataclass(frozen=True)
class TrainingTimeline:
    """When which machines trained: (generation, from, to), and the machines of each generation."""

    runs: Sequence[tuple[int, float, float]] = ()
    members: Mapping[int, set[str]] = field(default_factory=dict)
    without: Downtimes = ()

    @classmethod
    def of(
        cls, events: Sequence[EventRow], end_s: float, without: Downtimes = ()
    ) -> "TrainingTimeline":
        runs = []
        members = dict[int, set[str]]()
        generation = 0
        since_s = None
        for event in [*events, EventRow(end_s, "", "", {})]:
            now = int(event.facts.get("generation", generation))
            if event.kind == "started":
                members.setdefault(now, set()).add(str(event.facts["id"]))
            trains = event.state in TRAINS
            if since_s is not None and (not trains or now > generation):
                runs.append((generation, since_s, event.at_s))
                since_s = None
            if trains and since_s is None:
                since_s = event.at_s
            generation = max(now, generation)
        return cls(runs, members, without)

    def split(self, machine: str, from_s: float, to_s: float) -> Iterator[Phase]:
        """A time in which a machine was ready: it trained, waited, or was without a controller."""
        at_s = from_s
        for generation, since_s, until_s in self.runs:
            since_s = max(since_s, at_s)
            until_s = min(until_s, to_s)
            if since_s < until_s and machine in self.members.get(generation, ()):
                parts = [("idle", at_s, since_s), ("member", since_s, until_s)]
                yield from cut(parts, self.without)
                at_s = until_s
        yield from cut([("idle", at_s, to_s)], self.without)


def phases(machine: MachineRecord, now_s: float, trained: TrainingTimeline) -> Iterator[Phase]:
    """What a machine did from when to when, as far as it is known."""
    end_s = now_s
    if machine.ended_s is not None:
        end_s = machine.ended_s
    elif machine.end_reason == REFUSED and machine.launched_s is None:
        end_s = machine.requested_s  # how long the cloud took to refuse is unknown
    last_s = end_s
    last = "silent"
    if machine.noticed_s is not None:
        last_s = min(machine.noticed_s, end_s)
        last = "noticed"
    elif machine.silent_s is not None and (
        machine.end_reason == LOST or machine.state is Machine.SUSPECT
    ):
        last_s = min(machine.silent_s, end_s)
    launched_s = min(last_s if machine.launched_s is None else machine.launched_s, last_s)
    ready_s = min(last_s if machine.ready_s is None else machine.ready_s, last_s)
    starts = [("waits", machine.requested_s), ("warms", launched_s)]
    starts += [("member", max(ready_s, launched_s)), (last, max(last_s, launched_s)), ("", end_s)]
    for (kind, start_s), (_, until_s) in pairwise(starts):
        parts: list[Phase] = [(kind, start_s, min(until_s, end_s))]
        if kind == "warms":
            parts = list(cut(parts, trained.without))
        elif kind == "member" and machine.role is Role.ANCHOR:
            parts = [("keeps", *parts[0][1:])]
        elif kind == "member":
            parts = list(trained.split(machine.id, *parts[0][1:]))
        yield from (part for part in parts if part[2] > part[1])


class CostPoint(NamedTuple):
    """Where the line of money bends."""

    x_s: float  # after the start
    usd: float  # paid by then
    head_usd: float  # of that for remote controllers
    hours: float  # of machines that train or keep checkpoints


def paid(world: JobState, start_s: float, end_s: float) -> list[CostPoint]:
    """What was paid over time; at its end what the job has cost."""
    changes: dict[float, list[float]] = {start_s: [0.0] * 3, end_s: [0.0] * 3}
    now_s = world.now_s
    rows = [
        (m.launched_s, m.ended_s or now_s, (m.pool.usd_per_hour, 0.0, 1.0))
        for m in world.machines.values()
        if m.launched_s is not None
    ]
    for head in world.heads:
        rates = head.usd_per_hour, head.usd_per_hour, 0.0
        rows.append((head.launched_s, min(head.ended_s or now_s, now_s), rates))
    for since_s, until_s, rates in rows:
        for at_s, sign in ((since_s, 1), (until_s, -1)) if since_s < until_s else ():
            at_once = changes.setdefault(at_s, [0.0] * 3)
            for i, rate in enumerate(rates):
                at_once[i] += sign * rate
    points = []
    totals = [0.0] * 3
    running = [0.0] * 3
    before_s = min(changes)
    for at_s in sorted(changes):
        for i, change in enumerate(changes[at_s]):
            totals[i] += running[i] * (at_s - before_s) / 3600
            running[i] += change
        points.append(CostPoint(at_s - start_s, *totals))
        before_s = at_s
    return points


class Loss(NamedTuple):
    """Steps that were done, and had to be done again."""

    at_s: float
    step: int
    lost: int


def losses(samples: Sequence[Sample]) -> list[Loss]:
    """Where a job fell back."""
    return [Loss(b.at_s, b.step, a.step - b.step) for a, b in pairwise(samples) if b.step < a.step]
