"""Where the time and the money of a job went: what trained, and what was wasted, by cause.

A job trains, or it waits: for machines, while fewer live than it needs (allocation), or for what
they load (preparation), trainers included: a generation trains from its first step until its
trainers fail or hang; where no steps are reported, from the start of its trainers. From the last
sign of life until a hang was noticed is hang. Of the time in which a job trains, saves stalled a
part (save), and the share of the steps that were done twice is recompute, if it is known. Money
follows the machines that the cloud counted meanwhile; what it counted after the last step, until
shutdown, is release; that time belongs to preparation. While a job is stopped, until it is resumed,
its time stands still. What happened while there was no controller counts as nothing but that
(downtime).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from types import MappingProxyType
from typing import TypeAlias

from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import LOST, PREEMPTED, JobState, MachineRecord, Role
from deepvm.jobs.history.downtime import DOWNTIME, Downtimes, Phase, cut
from deepvm.jobs.history.history import MACHINE, EventRow, Events

CAUSES = ("allocation", "preparation", "compute", "recompute", "save", "hang")
RELEASE = "release"
_TRAINS = (Job.RUNNING.value, Job.SAVING.value)


Prices: TypeAlias = Mapping[str, float]
"""On demand, $/h, by type, as far as they are known."""


@dataclass(frozen=True)
class CostBreakdown:
    """Seconds and dollars by cause, and what the training machines cost on demand.

    ``first_s``: when training started, infinite if it has not. ``restarted``: seconds and dollars
    of waiting, loading and hangs since then. ``before_restart``: of training before the last
    restart.
    """

    seconds: Mapping[str, float]
    usd: Mapping[str, float]
    on_demand_usd: Mapping[str, float]
    first_s: float
    restarted: tuple[float, float]
    before_restart: tuple[float, float]


def spent(
    created_s: float,
    world: JobState,
    events: Events,
    without: Downtimes = (),
    prices: Prices = MappingProxyType({}),
) -> CostBreakdown:
    """A job's costs until now; ``without``: controller downtimes; ``prices``: on demand, $/h."""
    causes = (*CAUSES, DOWNTIME) if without else CAUSES
    seconds = dict.fromkeys(causes, 0.0)
    usd = dict(seconds)
    on_demand_usd = dict(seconds)
    first_s = math.inf
    restarted = (0.0, 0.0)
    before_restart = (0.0, 0.0)
    last_restart_s = max((restart.at_s for restart in restarts(events)), default=-math.inf)
    for cause, from_s, to_s in cut(_stretches(created_s, world, events), without):
        span_s = to_s - from_s
        lived_h = [(m, m.lived_between(from_s, to_s) / 3600) for m in world.machines.values()]
        cost = sum(m.pool.usd_per_hour * hours for m, hours in lived_h)
        cost += sum(head.usd_between(from_s, to_s) for head in world.heads)
        if cause == "compute" and span_s > 0:
            first_s = min(first_s, from_s)
            if to_s <= last_restart_s:
                before_restart = before_restart[0] + span_s, before_restart[1] + cost
        elif cause != DOWNTIME and from_s >= first_s:
            restarted = restarted[0] + span_s, restarted[1] + cost
        seconds[cause] += span_s
        usd[cause] += cost
        on_demand_usd[cause] += sum(_on_demand(m, prices) * hours for m, hours in lived_h)
    trained_s = seconds["compute"]
    save_s = min(world.saving_s, trained_s)
    lost = world.counts.lost_steps
    again_s = (trained_s - save_s) * lost / max(world.steps + lost, 1)
    for part in (seconds, usd, on_demand_usd):
        each = part["compute"] / trained_s if trained_s else 0.0
        part["recompute"] = again_s * each
        part["save"] = save_s * each
        part["compute"] -= part["recompute"] + part["save"]
    seconds["preparation"] += max(world.now_s - _over_s(world, events), 0.0)
    usd[RELEASE] = max(world.usd - sum(usd.values()), 0.0)
    return CostBreakdown(seconds, usd, on_demand_usd, first_s, restarted, before_restart)


def _stretches(created_s: float, world: JobState, events: Events) -> Iterator[Phase]:
    """(cause, from, to) from start to last event; training counts as compute."""
    since_s = created_s
    state = Job.PENDING.value
    generation = 0
    last_s = _over_s(world, events)
    firsts = _first_steps(world, events)
    ends = _ends(events)
    blind = not firsts and bool(world.steps or world.counts.lost_steps or world.progress_unknown)
    for event in [
        *(e for e in events if e.at_s <= last_s),
        EventRow(last_s, "", world.job.value, {}),
    ]:
        at_s = max(event.at_s, since_s)
        if state in _TRAINS:
            end_s, after = ends.get(generation, (math.inf, ""))
            end_s = min(max(end_s, since_s), at_s)
            first_s = firsts.get(generation, since_s if blind else math.inf)
            first_s = min(max(first_s, since_s), end_s)
            yield from (("preparation", since_s, first_s), ("compute", first_s, end_s))
            yield from [(after, end_s, at_s)] if end_s < at_s else []
        elif not Job(state).over:
            yield from _waits(world, since_s, at_s)
        since_s = at_s
        state = event.state
        generation = max(event.generation, generation)


def _first_steps(world: JobState, events: Events) -> dict[int, float]:
    """When each generation did its first step; one left out did none, if steps are known."""
    step_s = float(world.facts.step_s)
    started = dict[int, float]()
    first_steps = dict[int, float]()
    for event in events:
        generation = event.generation
        if event.kind == "started":
            started.setdefault(generation, event.at_s)
        elif event.kind == "stepped":  # the report of it may have been late
            took_s = float(event.facts["took_s"])
            ended_s = min(event.at_s, started.get(generation, event.at_s) + took_s)
            first_steps[generation] = ended_s - min(step_s, took_s)
    return first_steps


def _ends(events: Events) -> dict[int, tuple[float, str]]:
    """When a generation's trainers failed or hung, and the cause of the time after that."""
    ends = dict[int, tuple[float, str]]()
    for event in events:
        generation = event.generation
        if event.kind == "hung" and event.facts.get("since_s") is not None:
            ends[generation] = float(event.facts["since_s"]), "hang"
        elif event.kind == "ended" and event.facts.get("code"):
            ends.setdefault(generation, (event.at_s, "preparation"))
    return ends


def _over_s(world: JobState, events: Events) -> float:
    """When training was over; now if the job is not over, as when it was resumed."""
    if not world.job.over:
        return world.now_s
    last = list(takewhile(lambda e: Job(e.state).over, reversed(events)))
    if last:
        return last[-1].at_s
    return world.now_s


def stood_s(world: JobState, events: Events) -> float:
    """For how long a job was stopped before it was resumed."""
    last_s = _over_s(world, events)
    seen = [(e.at_s, e.state) for e in events if e.at_s <= last_s] + [(last_s, "")]
    return sum(max(then[0] - now[0], 0.0) for now, then in pairwise(seen) if Job(now[1]).over)


def _waits(world: JobState, since_s: float, until_s: float) -> Iterator[Phase]:
    """For machines while fewer live than a generation needs, else for what they load."""
    lives = [
        (m.launched_s, until_s if m.ended_s is None else m.ended_s)
        for m in world.machines.values()
        if m.launched_s is not None and m.role is Role.TRAINER
    ]
    times = sorted(
        {since_s, until_s, *(t for life in lives for t in life if since_s < t < until_s)}
    )
    for begin, end in zip(times, times[1:], strict=False):
        alive = sum(launched <= begin < ended for launched, ended in lives)
        yield "allocation" if alive < world.terms.least else "preparation", begin, end


def unpriced(world: JobState, prices: Prices) -> list[str]:
    """The types that have trained whose on-demand price is unknown."""
    trained = (
        m for m in world.machines.values() if m.role is Role.TRAINER and m.launched_s is not None
    )
    return sorted({m.pool.instance_type for m in trained} - prices.keys())


def on_demand_usd(world: JobState, prices: Prices) -> float:
    """What the same machines would have cost on demand; anchors and controllers already are."""
    trained = sum(
        m.lived_s(world.now_s) * _on_demand(m, prices) / 3600 for m in world.machines.values()
    )
    kept = sum(m.usd(world.now_s) for m in world.machines.values() if m.role is not Role.TRAINER)
    return trained + kept + world.head_usd


def same_work_usd(
    breakdown: CostBreakdown,
    world: JobState,
    prices: Prices,
    without: Downtimes = (),
) -> float | None:
    """What the same steps would have cost on demand: steps, and one load per machine.

    Those that were done without a controller count as long as the others; None if there are no
    others, or if it is not known which were done twice.
    """
    if world.progress_unknown:
        return None
    seen = world.steps - sum(one.steps for one in without)
    if not breakdown.seconds["compute"] or (without and seen <= 0):
        return None
    loads_usd = [
        (max(m.trained_s, min(breakdown.first_s, m.ended_s or math.inf)) - m.launched_s)
        * _on_demand(m, prices)
        / 3600
        for m in world.machines.values()
        if m.role is Role.TRAINER and m.launched_s is not None and m.trained_s is not None
    ]
    steps_usd = breakdown.on_demand_usd["compute"] * (world.steps / seen if without else 1.0)
    return steps_usd + sum(loads_usd[: world.terms.most])


def _on_demand(machine: MachineRecord, prices: Prices) -> float:
    if machine.role is Role.TRAINER:
        return prices.get(machine.pool.instance_type, 0.0)
    return 0.0


# --- restarts ---------------------------------------------------------------------------------

RESTART_CAUSES = ("resume", "preemption", "hang", "crash", "resize")
"""Causes by priority: an ended job restarts only because the user resumes it."""


@dataclass(frozen=True)
class Restart:
    """When trainers were started again, and why."""

    at_s: float
    cause: str


def restarts(events: Events) -> Iterator[Restart]:
    """All restarts of a job, in order; the first start does not count."""
    newest = 0
    causes = {"resize"}
    for event in events:
        generation = event.generation
        if event.kind != "started":
            causes |= _causes(event)
        elif generation > newest:
            if newest:
                yield Restart(
                    event.at_s, next(cause for cause in RESTART_CAUSES if cause in causes)
                )
            newest = generation
            causes = {"resize"}


def _causes(event: EventRow) -> set[str]:
    """The causes of a restart that an event stands for."""
    if Job(event.state).over:
        return {"resume"}
    gone = event.kind == MACHINE and event.facts.get("why") in (LOST, PREEMPTED)
    if gone or event.kind == "noticed":
        return {"preemption"}
    if event.kind == "hung":
        return {"hang"}
    if event.kind == "ended" and event.facts.get("code"):
        return {"crash"}
    return set()
