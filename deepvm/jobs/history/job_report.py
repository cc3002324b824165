"""The final document of a job: what was trained, what was lost, and what it cost."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean

from deepvm.core.json_types import JsonDict
from deepvm.core.units import utc_text
from deepvm.errors import DataError, DeepVMError
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobState, MachineRecord, Reason
from deepvm.jobs.history.downtime import DOWNTIME, Downtimes
from deepvm.jobs.history.history import Events
from deepvm.jobs.history.spent import (
    CAUSES,
    RESTART_CAUSES,
    Prices,
    on_demand_usd,
    restarts,
    same_work_usd,
    spent,
    stood_s,
    unpriced,
)

SCHEMA = "deepvm.run/1"
STOPPED = 3
_PHASES = {
    **{part: ("prepared", f"{part}_s") for part in ("code", "setup", "data", "load")},
    "first_step": ("stepped", "took_s"),
}
"""By phase, the kind of event that says how long it took, and which of its facts."""


def final_document(
    name: str,
    created_s: float,
    world: JobState,
    events: Events,
    prices: Prices,
    without: Downtimes = (),
) -> JsonDict:
    """The document ``deepvm.run/1``; times in seconds, money in dollars.

    ``prices``: on demand, $/h, by type, as far as they are known. ``without``: when there was no
    controller.

    Its ``forecast`` and ``validation`` are those of others: they simulate the job.
    """
    end_s = max(
        [world.now_s, *(m.ended_s for m in world.machines.values() if m.ended_s is not None)]
    )
    saves = world.counts.saves
    where = spent(created_s, world, events, without, prices)
    unknown = unpriced(world, prices)
    same = None
    work = None
    # With a type of unknown price a sum would look like the whole, and be too low.
    if not unknown:
        same = on_demand_usd(world, prices)
        work = same_work_usd(where, world, prices, without)
    unknown_reason = world.progress_unknown
    if unknown_reason:
        again: dict[str, None] = {"recompute": None}
    else:
        again = {}
    causes = [restart.cause for restart in restarts(events)]
    (restart_s, restart_usd) = where.restarted
    (before_s, before_usd) = where.before_restart
    if not unknown_reason:
        # Where progress is known, repeated work is counted as such, not as uncertain.
        before_s = before_usd = 0.0
    return {
        "schema_version": SCHEMA,
        "name": name,
        "state": world.job.value,
        "why": world.failure or world.ending,
        "exit_code": exit_code(world),
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
        "lost_steps": None if unknown_reason else world.counts.lost_steps,
        "unsaved_steps": None if unknown_reason else max(world.steps - world.version, 0),
        "saves": {reason.value: saves.get(reason, 0) for reason in Reason},
        "failed_saves": asdict(world.counts.failed),
        "version": world.version,
        "total_s": round(end_s - created_s - stood_s(world, events), 3),
        "breakdown_s": {cause: round(where.seconds[cause], 3) for cause in CAUSES} | again,
        "phases_s": phases_s(events),
        "between_steps": (
            round(world.between.s / world.between.of_s, 4) if world.between.of_s else None
        ),
        "downtime_s": round(where.seconds.get(DOWNTIME, 0.0), 3),
        "cost_usd": round(world.usd, 8),
        "head_usd": round(world.head_usd, 8),
        "on_demand_cost_usd": None if same is None else round(same, 8),
        "same_work_on_demand_usd": None if work is None else round(work, 8),
        "unpriced_types": unknown,
        "spent_usd": (
            {cause: round(usd, 8) for cause, usd in {DOWNTIME: 0.0, **where.usd}.items()} | again
        ),
        "forecast": None,
        "unforeseen": "",
        "validation": None,
        "machines": [_machine(m, world.now_s) for m in world.machines.values()],
    }


def phases_s(events: Events) -> dict[str, float | None]:
    """Mean time of each startup phase: preparation, and a generation's first step."""
    seconds: dict[str, list[float]] = {phase: [] for phase in _PHASES}
    for event in events:
        for phase, (kind, fact) in _PHASES.items():
            if event.kind == kind:
                seconds[phase].append(float(event.facts[fact]))
    return {phase: round(fmean(found), 3) if found else None for phase, found in seconds.items()}


def exit_code(world: JobState) -> int | None:
    """With which ``deepvm run`` ends; None before the end."""
    if world.job is Job.FAILED:
        if world.no_data:
            return DataError.exit_code
        return DeepVMError.exit_code
    return {Job.DONE: 0, Job.STOPPED: STOPPED}.get(world.job)


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
