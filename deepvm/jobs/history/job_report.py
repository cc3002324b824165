"""The final document of a job, and where its time and money went, by cause.

A job waits for machines while fewer live than it needs (allocation), then for what they load until
a generation's first step (preparation). Hang: from the last sign of life until it was noticed. Of
training, save and recompute are the parts that saves stalled, and of steps done twice. Money
follows the machines that lived meanwhile; after the last step it is release.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from statistics import fmean
from types import MappingProxyType
from typing import TypeAlias

from deepvm.core.json_types import JsonDict
from deepvm.core.units import utc_text
from deepvm.errors import DataError, DeepVMError
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    JobState,
    KeptOutputs,
    MachineRecord,
    Reason,
    Role,
)
from deepvm.jobs.history.history import MACHINE, EventRow, Events
from deepvm.jobs.history.timeline import DOWNTIME, TRAINS, Downtimes, Phase, cut
from deepvm.records import asdict, dataclass

SCHEMA = "deepvm.run/1"
STOPPED = 3
# By phase, the kind of event that says how long it took, and which of its facts
_PHASES = {
    **{part: ("prepared", f"{part}_s") for part in ("code", "setup", "data", "load")},
    "first_step": ("stepped", "took_s"),
}
CAUSES = ("allocation", "preparation", "compute", "recompute", "save", "hang")
RELEASE = "release"
_OTHERS = 3  # Files that no pattern of outputs means, to name
Prices: TypeAlias = Mapping[str, float]  # On demand, $/h, by type, as far as they are known
# Causes by priority: an ended job restarts only because the user resumes it
RESTART_CAUSES = ("resume", "preemption", "hang", "crash", "resize")


def final_document(
    name: str,
    created_s: float,
    world: JobState,
    events: Events,
    prices: Prices,
    without: Downtimes = (),
    patterns: Sequence[str] = (),
) -> JsonDict:
    """The document ``deepvm.run/1``, whose ``forecast`` and ``validation`` others fill in.

    ``patterns``: of the job's outputs.
    """
    end_s = max(
        [world.now_s, *(m.ended_s for m in world.machines.values() if m.ended_s is not None)]
    )
    where = spent(created_s, world, events, without, prices)
    unknown = sorted({m.pool.instance_type for m in world.trained} - prices.keys())
    same = None
    work = None
    # With a type of unknown price a sum would look like the whole, and be too low.
    if not unknown:
        same = round(on_demand_usd(world, prices), 8)
        work = same_work_usd(where, world, prices, without)
    causes = [restart.cause for restart in restarts(events)]
    restart_s, restart_usd = where.restarted
    again = {}
    # Where progress is known, repeated work is counted as such, not as uncertain.
    before_s, before_usd = 0.0, 0.0
    unknown_reason = world.progress_unknown
    if unknown_reason:
        again = {"recompute": None}
        before_s, before_usd = where.before_restart
    between = world.between
    # What a preemption has cost is counted once training continues: until then it is not 0
    lost = world.lost_steps
    unsure = world.preemptions and world.steps and not (lost or world.version or world.job.over)
    outputs = _outputs(world, patterns)
    reason, code = world.failure or world.ending, exit_code(world)
    # The default has several patterns: it is enough that one matches
    if code == 0 and outputs["unmatched"] and (patterns[0] != "outputs/" or len(patterns) == 1):
        reason, code = f"outputs: nothing matched {', '.join(outputs['unmatched'])}", 1
    return {
        "schema_version": SCHEMA,
        "name": name,
        "state": world.job.value,
        "why": reason,
        "exit_code": code,
        "steps": None if unknown_reason else world.steps,
        "progress_unknown": unknown_reason,
        "generations": world.generation,
        "restarts": {
            "count": len(causes),
            "causes": {cause: causes.count(cause) for cause in RESTART_CAUSES},
            "waiting_s": round(restart_s, 3),
            "waiting_usd": round(restart_usd, 8),
            "uncertain_s": round(before_s, 3),
            "uncertain_usd": round(before_usd, 8),
        },
        "preemptions": world.preemptions,
        "notices": world.notices,
        "lost_steps": None if unknown_reason or unsure else lost,
        "unsaved_steps": None if unknown_reason else max(world.steps - world.version, 0),
        "saves": {reason.value: world.saves.get(reason, 0) for reason in Reason},
        "failed_saves": asdict(world.failed_saves),
        "version": world.version,
        "total_s": round(end_s - created_s - stood_s(world, events), 3),
        "breakdown_s": {cause: round(where.seconds[cause], 3) for cause in CAUSES} | again,
        "phases_s": phases_s(events),
        "between_steps": round(between.s / between.of_s, 4) if between.of_s else None,
        "downtime_s": round(where.seconds.get(DOWNTIME, 0.0), 3),
        "cost_usd": round(world.usd, 8),
        "head_usd": round(world.head_usd, 8),
        "on_demand_cost_usd": same,
        "same_work_on_demand_usd": None if work is None else round(work, 8),
        "unpriced_types": unknown,
        "spent_usd": {cause: round(usd, 8) for cause, usd in {DOWNTIME: 0.0, **where.usd}.items()}
        | again,
        "forecast": None,
        "unforeseen": "",
        "validation": None,
        "outputs": outputs,
        "machines": [_machine(m, world.now_s) for m in world.machines.values()],
    }


def unkept(world: JobState) -> dict[str, KeptOutputs]:
    """Those of machines that trained last whose newest are not in the job's storage."""
    newest = {m.id for m in world.machines.values() if m.epoch == world.generation}
    return {
        m: kept for m, kept in world.outputs.items() if m in newest and kept.failing_s is not None
    }


def _outputs(world: JobState, patterns: Sequence[str]) -> JsonDict:
    known = world.outputs.values()
    failing = list(unkept(world).values())
    others = dict.fromkeys(name for kept in known for name in kept.others)
    return {
        "patterns": list(patterns),
        "files": sum(kept.files for kept in known),
        "machines": sum(bool(kept.files) for kept in known),
        "bytes": sum(kept.bytes for kept in known),
        "kept": _time(max((k.kept_s for k in known if k.kept_s and k.files), default=None)),
        "unmatched": [p for p in patterns if known and all(p in k.unmatched for k in known)],
        "others": list(others)[:_OTHERS],
        "problem": failing[0].why if failing else "",
        "unkept_since": _time(min((k.failing_s for k in failing if k.failing_s), default=None)),
    }


def phases_s(events: Events) -> dict[str, float | None]:
    """Mean time of each startup phase: preparation, and a generation's first step."""
    seconds = {
        phase: [float(event.facts[fact]) for event in events if event.kind == kind]
        for phase, (kind, fact) in _PHASES.items()
    }
    return {phase: round(fmean(found), 3) if found else None for phase, found in seconds.items()}


def exit_code(world: JobState) -> int | None:
    """With which ``deepvm run`` ends; None before the end."""
    if world.job is Job.FAILED and world.no_data:
        return DataError.exit_code
    return {Job.DONE: 0, Job.STOPPED: STOPPED, Job.FAILED: DeepVMError.exit_code}.get(world.job)


def _machine(machine: MachineRecord, now_s: float) -> JsonDict:
    return {
        "id": machine.id,
        "type": machine.pool.instance_type,
        "zone": machine.pool.zone,
        "market": machine.pool.market,
        "requested": _time(machine.requested_s),
        "ready": _time(machine.ready_s),
        "notice": _time(machine.noticed_s),
        "end": _time(machine.ended_s),
        "end_reason": machine.end_reason,
        "usd": round(machine.usd(now_s), 8),
    }


def _time(at_s: float | None) -> str | None:
    if at_s is None:
        return None
    return utc_text(at_s, "milliseconds")


@dataclass(frozen=True)
class CostBreakdown:
    """Seconds and dollars by cause, and what the training machines cost on demand."""

    seconds: Mapping[str, float]
    usd: Mapping[str, float]
    on_demand_usd: Mapping[str, float]
    first_s: float  # when training started, else infinite
    restarted: tuple[float, float]  # (s, $) of waiting, loading and hangs since then
    before_restart: tuple[float, float]  # (s, $) of training before the last restart


def spent(
    created_s: float,
    world: JobState,
    events: Events,
    without: Downtimes = (),
    prices: Prices = MappingProxyType({}),
) -> CostBreakdown:
    """A job's costs until now; ``without``: controller downtimes; ``prices``: on demand, $/h."""
    seconds = dict.fromkeys((*CAUSES, DOWNTIME) if without else CAUSES, 0.0)
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
    lost = world.lost_steps
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
    blind = not firsts and bool(world.steps or world.lost_steps or world.progress_unknown)
    seen = [e for e in events if e.at_s <= last_s]
    for event in [*seen, EventRow(last_s, "", world.job.value, {})]:
        at_s = max(event.at_s, since_s)
        if state in TRAINS:
            end_s, after = ends.get(generation, (math.inf, ""))
            end_s = min(max(end_s, since_s), at_s)
            first_s = firsts.get(generation, since_s if blind else math.inf)
            first_s = min(max(first_s, since_s), end_s)
            yield "preparation", since_s, first_s
            yield "compute", first_s, end_s
            if end_s < at_s:
                yield after, end_s, at_s
        elif not Job(state).over:
            yield from _waits(world, since_s, at_s)
        since_s = at_s
        state = event.state
        generation = max(event.generation, generation)


def _first_steps(world: JobState, events: Events) -> dict[int, float]:
    """When each generation did its first step; one left out did none, if steps are known."""
    step_s = float(world.facts.step_s)
    started = dict[int, float]()
    first_steps = {}
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
    ends = {}
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
    last_s = world.now_s
    for event in takewhile(lambda e: Job(e.state).over, reversed(events)):
        last_s = event.at_s
    return last_s


def stood_s(world: JobState, events: Events) -> float:
    """For how long a job was stopped before it was resumed."""
    last_s = _over_s(world, events)
    seen = [(e.at_s, e.state) for e in events if e.at_s <= last_s] + [(last_s, "")]
    return sum(max(then[0] - now[0], 0.0) for now, then in pairwise(seen) if Job(now[1]).over)


def _waits(world: JobState, since_s: float, until_s: float) -> Iterator[Phase]:
    """For machines while fewer live than a generation needs, else for what they load."""
    lives = [
        (m.launched_s or 0.0, until_s if m.ended_s is None else m.ended_s) for m in world.trained
    ]
    inside = {t for life in lives for t in life if since_s < t < until_s}
    for begin, end in pairwise(sorted({since_s, until_s, *inside})):
        alive = sum(launched <= begin < ended for launched, ended in lives)
        yield "allocation" if alive < world.terms.least else "preparation", begin, end


def on_demand_usd(world: JobState, prices: Prices) -> float:
    """What the same machines would have cost on demand; anchors and controllers already are."""
    now_s = world.now_s
    trained = sum(m.lived_s(now_s) * _on_demand(m, prices) / 3600 for m in world.of(Role.TRAINER))
    return trained + sum(m.usd(now_s) for m in world.of(Role.ANCHOR)) + world.head_usd


def same_work_usd(
    breakdown: CostBreakdown, world: JobState, prices: Prices, without: Downtimes = ()
) -> float | None:
    """What the same steps would have cost on demand, and one load per machine; None: unknown."""
    seen = world.steps - sum(one.steps for one in without)
    if world.progress_unknown or not breakdown.seconds["compute"] or (without and seen <= 0):
        return None
    loads_usd = []
    for m in world.trained:
        if m.launched_s is not None and m.trained_s is not None:
            loaded_s = max(m.trained_s, min(breakdown.first_s, m.ended_s or math.inf))
            loads_usd.append((loaded_s - m.launched_s) * _on_demand(m, prices) / 3600)
    # Steps without a controller count as long as the others
    steps_usd = breakdown.on_demand_usd["compute"] * (world.steps / seen if without else 1.0)
    return steps_usd + sum(loads_usd[: world.terms.most])


def _on_demand(machine: MachineRecord, prices: Prices) -> float:
    if machine.role is Role.TRAINER:
        return prices.get(machine.pool.instance_type, 0.0)
    return 0.0


def resumed_from(events: Events) -> int | None:
    """The checkpoint after which training continued after its first preemption; None: unknown."""
    since_s = next((r.at_s for r in restarts(events) if r.cause == "preemption"), math.inf)
    starts = (e for e in events if e.kind == "started" and e.at_s >= since_s)
    return next((version for e in starts if (version := e.facts["version"]) is not None), None)


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
                yield Restart(event.at_s, min(causes, key=RESTART_CAUSES.index))
            newest = generation
            causes = {"resize"}


def _causes(event: EventRow) -> set[str]:
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
