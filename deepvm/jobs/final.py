"""The final document of a job: what was trained, what was lost, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from deepvm.jobs.history import EventRow
from deepvm.jobs.states import Job
from deepvm.jobs.world import MachineRecord, Reason, Role, World

SCHEMA = "deepvm.run/1"
_STATES = {Job.DONE: "done", Job.STOPPED: "stopped", Job.FAILED: "failed"}


def final_document(
    name: str, created_s: float, world: World, events: Sequence[EventRow], on_demand_usd: float | None
) -> dict[str, Any]:
    """The document ``deepvm.run/1``; times in seconds, money in dollars. ``on_demand_usd``: of one machine, an hour."""
    end_s = max([world.now_s, *(m.ended_s for m in world.machines.values() if m.ended_s is not None)])
    saves = world.counts.saves
    hours = sum(_lived_s(m, world.now_s) for m in world.machines.values()) / 3600
    return {
        "schema_version": SCHEMA,
        "name": name,
        "state": _STATES.get(world.job, world.job.value),
        "why": world.failure or world.ending,
        "steps": world.steps,
        "generations": world.generation,
        "preemptions": world.preemptions,
        "notices": world.notices,
        "lost_steps": world.counts.lost_steps,
        "saves": {reason.value: saves.get(reason, 0) for reason in Reason},
        "total_s": round(end_s - created_s, 3),
        "breakdown_s": breakdown(created_s, world, events),
        "cost_usd": round(world.usd, 8),
        "on_demand_cost_usd": None if on_demand_usd is None else round(hours * on_demand_usd, 8),
        "machines": [_machine(m, world.now_s) for m in world.machines.values()],
    }


def _lived_s(machine: MachineRecord, now_s: float) -> float:
    if machine.launched_s is None:
        return 0.0
    return max((now_s if machine.ended_s is None else machine.ended_s) - machine.launched_s, 0.0)


def breakdown(created_s: float, world: World, events: Sequence[EventRow]) -> Mapping[str, float]:
    """Where the time went.

    A job trains, or it waits: for machines, while fewer live than it needs (allocation), or for what they load and, at
    the end, for their release (preparation). Of the time in which it trains, saves stalled a part, and the share of the
    steps that were done twice is recompute.
    """
    spent = {"allocation": 0.0, "preparation": 0.0, "compute": 0.0, "recompute": 0.0, "save": 0.0}
    since_s, state = created_s, Job.PENDING
    for at_s, then in [*((e.at_s, e.state) for e in events), (world.now_s, world.job.value)]:
        if state in (Job.RUNNING, Job.SAVING):
            spent["compute"] += at_s - since_s
        else:
            waits_s = 0.0 if state.over else _short_s(world, since_s, at_s)
            spent["allocation"] += waits_s
            spent["preparation"] += at_s - since_s - waits_s
        since_s, state = at_s, Job(then)
    spent["save"] = min(world.saving_s, spent["compute"])
    spent["compute"] -= spent["save"]
    lost = world.counts.lost_steps
    spent["recompute"] = spent["compute"] * lost / max(world.steps + lost, 1)
    spent["compute"] -= spent["recompute"]
    return {cause: round(seconds, 3) for cause, seconds in spent.items()}


def _short_s(world: World, since_s: float, until_s: float) -> float:
    """For how long between two times fewer machines lived than a generation needs."""
    lives = [
        (m.launched_s, until_s if m.ended_s is None else m.ended_s)
        for m in world.machines.values()
        if m.launched_s is not None and m.role is Role.TRAINER
    ]
    times = sorted({since_s, until_s, *(t for life in lives for t in life if since_s < t < until_s)})
    return sum(
        end - begin
        for begin, end in zip(times, times[1:], strict=False)
        if sum(launched <= begin < ended for launched, ended in lives) < world.terms.least
    )


def _machine(machine: MachineRecord, now_s: float) -> dict[str, Any]:
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
    return datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
