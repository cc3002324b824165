"""``deepvm run --validate``: simulate a job with the lifetimes and latencies it had.

The engine of the simulator gets the machines' lives in their order, with their notices, and the
mean of each latency that was measured; what it says is compared with what happened. So what differs
is what the model leaves out. Times are those of the events: a generation trains from the event in
which it resumes until the version that it holds for is safe, until a machine is gone, or until its
trainers have ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from deepvm.core.json_types import JsonDict
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import SavePolicy
from deepvm.errors import RequestError, SimulationError
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    JobLimits,
    JobState,
    MachineRecord,
    Reason,
    Role,
)
from deepvm.jobs.history.downtime import Downtimes
from deepvm.jobs.history.history import EventRow, Events

HOLDING = (Reason.EMERGENCY.value, Reason.RESIZE.value, Reason.STOP.value)
PARTS = ("compute", "recompute", "save", "allocation", "preparation")


def refuse_unlike(terms: JobLimits) -> None:
    """Raise RequestError for jobs that the simulator has no like of."""
    if terms.least != terms.most or terms.bought:
        what = "machines.count is a number and no deadline moves it on demand"
        raise RequestError("validate", True, f"a job of which {what}")


@dataclass
class _Generation:
    """When it trained, between which steps, and what it spent on versions.

    ``known``: the last step whose end is known, and when that was; ``stalls_s``: by versions until
    then, and in all.
    """

    start_s: float
    first: int
    members: set[str] = field(default_factory=set)
    end_s: float = math.inf
    known: tuple[int, float] = (0, 0.0)
    known_stalls_s: float = 0.0
    stalls_s: float = 0.0
    held_s: float = 0.0


@dataclass(frozen=True)
class ObservedRun:
    """What happened, seconds and dollars.

    ``parts_s``: where the time went, as the simulator counts.

    ``lives_s``: of each machine in the order of their requests, from the moment that made it
    needed; infinite: it was not preempted. ``graces_s``: from each notice to the end, 0 without
    one.
    """

    steps: int
    step_s: float
    stall_s: float
    took_s: float
    allocation_s: float
    preparation_s: float
    lives_s: tuple[float, ...]
    graces_s: tuple[float, ...]
    total_s: float
    cost_usd: float
    lost_steps: int
    preemptions: int
    parts_s: Mapping[str, float]


def observed(created_s: float, world: JobState, events: Events) -> ObservedRun | None:
    """What happened to a job that has trained to its end; None if too little of it is known."""
    generations = _generations(world, events)
    # When the last trainers had ended
    ends_s = [e.at_s for e in events if e.kind == "ended" and not e.facts["code"]]
    if not generations or not ends_s:
        return None
    end_s = ends_s[-1]
    trainers = [
        m for m in world.machines.values() if m.role is Role.TRAINER and m.launched_s is not None
    ]
    deaths = {m.id: _death_s(m) for m in trainers}
    needed = _needed_s(created_s, world, trainers, deaths)
    waits = list[float]()
    prepared = list[float]()
    trained_s = 0.0
    before_s = created_s
    before = set[str]()
    for one in generations:
        launched = [
            m.launched_s
            for m in trainers
            if m.id in one.members - before and m.launched_s is not None
        ]
        there_s = min(max([before_s, *launched]), one.start_s)
        waits.append(there_s - before_s)
        prepared.append(one.start_s - there_s)
        trained_s += min(one.end_s, end_s) - one.start_s
        before_s = min(one.end_s, end_s)
        before = one.members
    saved = [e.facts for e in events if e.kind == "safe"]
    unhurried = [float(f["stall_s"]) for f in saved if f["reason"] not in HOLDING]
    took = [float(f["took_s"]) for f in saved]
    step_s = step_time(world, events)
    save_s = sum(g.stalls_s + g.held_s for g in generations)
    lost_steps = _lost_steps(generations, step_s)
    recompute_s = min(lost_steps * step_s, trained_s - save_s)
    parts = (trained_s - save_s - recompute_s, recompute_s, save_s, sum(waits), sum(prepared))
    return ObservedRun(
        steps=world.steps,
        step_s=step_s,
        stall_s=fmean(unhurried) if unhurried else 0.0,
        took_s=fmean(took) if took else 0.0,
        allocation_s=fmean([max((m.launched_s or 0.0) - needed[m.id], 0.0) for m in trainers]),
        preparation_s=fmean(prepared),
        lives_s=tuple(deaths[m.id] - needed[m.id] for m in trainers),
        graces_s=tuple(
            deaths[m.id] - m.noticed_s if m.noticed_s is not None else 0.0 for m in trainers
        ),
        total_s=end_s - created_s,
        cost_usd=sum(
            m.pool.usd_per_hour * m.lived_between(-math.inf, end_s) / 3600 for m in trainers
        ),
        lost_steps=lost_steps,
        preemptions=sum(at_s < math.inf for at_s in deaths.values()),
        parts_s=dict(zip(PARTS, parts, strict=True)),
    )


def _generations(world: JobState, events: Events) -> list[_Generation]:
    found: dict[int, _Generation] = {}
    members: dict[int, set[str]] = {}
    for event in events:
        facts = event.facts
        number = event.generation
        if event.kind == "started":
            members.setdefault(number, set()).add(facts["id"])
            if facts.get("version") is not None:
                found.setdefault(number, _Generation(event.at_s, facts["version"], members[number]))
        elif event.kind == "safe" and number in found and found[number].end_s == math.inf:
            _add_version(found[number], event)
        elif event.kind == "ended" and number in found and not facts["code"]:
            one = found[number]
            one.end_s = event.at_s
            one.known = (int(facts["step"]), event.at_s)
            one.known_stalls_s = one.stalls_s
    for one in found.values():
        ends = [
            m.ended_s
            for m in world.machines.values()
            if m.id in one.members and m.ended_s is not None
        ]
        one.end_s = min([one.end_s, *(e for e in ends if e > one.start_s)])
    return [found[number] for number in sorted(found)]


def step_time(world: JobState, events: Events, without: Downtimes = ()) -> float:
    """Mean time of a step without what versions cost, seconds; 0 if it is not known.

    ``without``: when there was no controller; what was done then does not count.
    """
    return _step_s(_generations(world, events), without) or float(world.facts.step_s)


def _add_version(one: _Generation, event: EventRow) -> None:
    """A version is safe; where training waits for it, the generation has ended with it."""
    took_s = float(event.facts["took_s"])
    holds = event.facts["reason"] in HOLDING
    one.known = int(event.facts["version"]), event.at_s - took_s
    one.known_stalls_s = one.stalls_s
    if holds:
        one.end_s = event.at_s
        one.held_s = took_s
    else:
        one.stalls_s += float(event.facts["stall_s"])


def _step_s(generations: Sequence[_Generation], without: Downtimes = ()) -> float:
    """Mean time of a step without what versions cost, 0 if none is known."""
    known = [g for g in generations if g.known[0] > g.first]
    unseen = [
        one
        for one in without
        if any(g.start_s <= one.since_s and one.until_s <= g.known[1] for g in known)
    ]
    steps = sum(g.known[0] - g.first for g in known) - sum(one.steps for one in unseen)
    took_s = sum(g.known[1] - g.start_s - g.known_stalls_s for g in known) - sum(
        one.span_s for one in unseen
    )
    if steps > 0 and took_s > 0:
        return took_s / steps
    return 0.0


def _lost_steps(generations: Sequence[_Generation], step_s: float) -> int:
    """Steps done twice; those since a machine's last checkpoint are estimated by time."""
    lost = 0
    for one, later in zip(generations, generations[1:], strict=False):
        if one.known[1]:
            step, at_s = one.known
        else:
            step, at_s = (one.first, one.start_s)
        if one.held_s:
            since_s = 0.0
        else:
            since_s = one.end_s - at_s - (one.stalls_s - one.known_stalls_s)
        lost += max(step + round(since_s / step_s) - later.first, 0) if step_s else 0
    return lost


def _death_s(machine: MachineRecord) -> float:
    """When it was, or would have been, preempted."""
    if machine.noticed_s is not None and machine.taken_s is not None:
        return machine.taken_s
    if machine.end_reason in (LOST, PREEMPTED):
        return machine.ended_s or math.inf
    return math.inf


def _needed_s(
    created_s: float,
    world: JobState,
    trainers: Sequence[MachineRecord],
    deaths: Mapping[str, float],
) -> dict[str, float]:
    """Since when each machine was needed: the start, or the loss or notice it makes up for."""
    lost = sorted(
        min(m.noticed_s or math.inf, deaths[m.id]) for m in trainers if deaths[m.id] < math.inf
    )
    since = [created_s] * world.terms.most + lost
    return {
        m.id: min(since[place], m.requested_s) if place < len(since) else m.requested_s
        for place, m in enumerate(trainers)
    }


def validation(
    seen: ObservedRun, terms: JobLimits, policy: SavePolicy, usd_per_hour: float
) -> JsonDict:
    """Forecast, fact and deviation as a document: dollars, seconds, shares of the fact."""
    from deepvm.simulator.engine.lifetimes import ListedLifetimes
    from deepvm.simulator.monte_carlo import simulate

    job = Job(  # each latency at its mean
        name="validation",
        steps=max(seen.steps, 1),
        step_s=Span.of(max(seen.step_s, 1e-6)),
        save_s=Span.of(max(seen.took_s, seen.stall_s)),
        stall_s=Span.of(seen.stall_s),
        allocation_s=Span.of(seen.allocation_s),
        preparation_s=Span.of(seen.preparation_s),
        grace_s=Span.of(max(seen.graces_s, default=0.0)),
        mttp_s=(terms.mttp_s,),
        spot_usd_per_hour=usd_per_hour,
        proactive_replacement=True,
        vms=terms.most,
    )
    fact = _figures(
        seen.total_s, seen.cost_usd, float(seen.lost_steps), float(seen.preemptions), seen.parts_s
    )
    measured = {name: round(getattr(seen, name), 6) for name in _LATENCIES}
    try:
        found = simulate(job, policy, runs=1, lives=ListedLifetimes(seen.lives_s, seen.graces_s))
    except SimulationError as error:
        none = {"forecast": None, "deviation": None}
        return {"fact": fact, **none, "measured": measured, "why": str(error)}
    lost = float(found.preemptions[0])
    # The simulator pays from the request on, as the thesis counts; here as the cloud does, from the
    # launch.
    unpaid_s = seen.allocation_s * (job.vms + lost)
    usd = float(found.cost_usd[0]) - unpaid_s * usd_per_hour / 3600
    again = found.breakdown_s["recompute"] / job.step_s.mean
    forecast = _figures(float(found.total_s[0]), usd, again, lost, found.breakdown_s)
    deviation = {
        name: round(forecast[name] / fact[name] - 1, 4) if fact[name] else None
        for name in ("total_s", "cost_usd")
    }
    return {"fact": fact, "forecast": forecast, "deviation": deviation, "measured": measured}


_LATENCIES = ("step_s", "stall_s", "took_s", "allocation_s", "preparation_s")


def _figures(
    total_s: float, usd: float, lost_steps: float, preemptions: float, parts_s: Mapping[str, float]
) -> JsonDict:
    return {
        "total_s": round(total_s, 3),
        "cost_usd": round(usd, 8),
        "lost_steps": round(lost_steps),
        "preemptions": round(preemptions),
        "breakdown_s": {name: round(parts_s[name], 3) for name in PARTS},
    }
