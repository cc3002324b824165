"""The final document of a job: what was trained, what was lost, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from deepvm.errors import DataError, DeepVMError
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import MachineRecord, Reason, World
from deepvm.jobs.history.downtime import DOWNTIME, Downtime
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.history.spent import CAUSES, same_work_usd, spent, stood_s
from deepvm.jobs.history.spent import on_demand_usd as of_machines

SCHEMA = "deepvm.run/1"
STOPPED = 3
_STATES = {Job.DONE: "done", Job.STOPPED: "stopped", Job.FAILED: "failed"}


def final_document(
    name: str,
    created_s: float,
    world: World,
    events: Sequence[EventRow],
    on_demand_usd: float | None,
    without: Sequence[Downtime] = (),
) -> dict[str, Any]:
    """The document ``deepvm.run/1``; times in seconds, money in dollars.

    ``on_demand_usd``: of one machine, an hour. ``without``: when there was no controller.

    Its ``forecast`` and ``validation`` are those of others: they simulate the job.
    """
    end_s = max([world.now_s, *(m.ended_s for m in world.machines.values() if m.ended_s is not None)])
    saves = world.counts.saves
    where = spent(created_s, world, events, without)
    same, work = None, None
    if on_demand_usd is not None:
        same = of_machines(world, on_demand_usd)
        work = same_work_usd(where, world, on_demand_usd, without)
    return {
        "schema_version": SCHEMA,
        "name": name,
        "state": _STATES.get(world.job, world.job.value),
        "why": world.failure or world.ending,
        "exit_code": exit_code(world),
        "steps": world.steps,
        "generations": world.generation,
        "preemptions": world.preemptions,
        "notices": world.notices,
        "lost_steps": world.counts.lost_steps,
        "saves": {reason.value: saves.get(reason, 0) for reason in Reason},
        "failed_saves": asdict(world.counts.failed),
        "version": world.version,
        "total_s": round(end_s - created_s - stood_s(world, events), 3),
        "breakdown_s": {cause: round(where.seconds[cause], 3) for cause in CAUSES},
        "downtime_s": round(where.seconds.get(DOWNTIME, 0.0), 3),
        "cost_usd": round(world.usd, 8),
        "head_usd": round(world.head_usd, 8),
        "on_demand_cost_usd": None if same is None else round(same, 8),
        "same_work_on_demand_usd": None if work is None else round(work, 8),
        "spent_usd": {cause: round(usd, 8) for cause, usd in {DOWNTIME: 0.0, **where.usd}.items()},
        "forecast": None,
        "validation": None,
        "machines": [_machine(m, world.now_s) for m in world.machines.values()],
    }


def exit_code(world: World) -> int | None:
    """With which ``deepvm run`` ends; None before the end."""
    if world.job is Job.FAILED:
        return DataError.exit_code if world.no_data else DeepVMError.exit_code
    return {Job.DONE: 0, Job.STOPPED: STOPPED}.get(world.job)


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
