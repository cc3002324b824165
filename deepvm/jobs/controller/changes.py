"""What an event has changed: for the history, and for the points at which campaigns kill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TypeAlias

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.failpoints import point
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.markets import market_facts
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobState, Reason
from deepvm.jobs.history.history import MACHINE, MARKET, STATE, EventRow

Reported: TypeAlias = tuple[d.Event, JsonObject]
"""An event, and further facts."""
_ENDS = (Machine.SUSPECT, Machine.LOST, Machine.ENDED)


_REPEATED = (
    "now_s",
    "reached",
    "reached_s",
    "facts",
    "pace",
    "pulse",
    "between",
    "machines",
    "cold",
)
"""Fields that the next heartbeats say again; machines are compared one by one."""


def has_changed(before: JobState, world: JobState) -> bool:
    """Whether anything has but what the next heartbeats say again."""
    names = [one.name for one in fields(JobState) if one.name not in _REPEATED]
    if any(getattr(before, name) != getattr(world, name) for name in names):
        return True
    if before.machines.keys() != world.machines.keys():
        return True
    changed = [
        (m, world.machines[key])
        for key, m in before.machines.items()
        if m is not world.machines[key]
    ]
    return any(replace(a, heard_s=b.heard_s, silent_s=b.silent_s) != b for a, b in changed)


def changed_states(before: JobState, world: JobState) -> list[str]:
    """The states that are new, by the names of their points."""
    if before.job is world.job:
        found = []
    else:
        found = [f"job.{world.job.value}"]
    known = {key: m.state for key, m in before.machines.items()}
    return [
        *found,
        *(
            f"machine.{m.state.value}"
            for k, m in world.machines.items()
            if known.get(k) is not m.state
        ),
    ]


def pass_points(changed: list[str], where: str) -> None:
    """Pass the points of new states."""
    for label in changed:
        point(f"{label}.{where}")


_RECORDED: dict[type[d.Event], str] = {
    d.Heartbeat: "heard",
    d.InstancesListed: "listed",
    d.MetadataUnavailable: "deaf",
    d.CheckpointDurable: "lasts",
    d.CheckpointOnAnchorOnly: "alone",
    d.FaultInjected: "struck",
}
"""What histories of earlier releases call these events."""


def _name(event: type[d.Event]) -> str:
    return _RECORDED.get(event, event.__name__.lower())


def _facts(event: d.Event) -> JsonDict:
    assert is_dataclass(event)
    found = asdict(event)
    return {
        k: v.value if isinstance(v, Reason) else v
        for k, v in found.items()
        if k not in ("alive", "ended")
    }


def rows_of(before: JobState, world: JobState, inbox: Iterable[Reported]) -> list[EventRow]:
    """What is written down of events and of what follows from them."""
    rows = [(_name(type(e)), {**_facts(e), **facts}) for e, facts in inbox]
    for key, machine in world.machines.items():
        known = before.machines.get(key)
        if machine.state in _ENDS and (known is None or known.state is not machine.state):
            ends = {"id": key, "state": machine.state.value, "why": machine.end_reason}
            rows.append((MACHINE, ends))
    news = world.preparing.items() - before.preparing.items()
    rows += [
        ("preparing", {"id": key, "doing": doing}) for key, (doing, _) in sorted(news) if doing
    ]
    if before.pulse.hung_s != world.pulse.hung_s:
        hung = {"why": world.pulse.why, "version": world.version, "again": not world.job.over}
        rows.append(
            ("hung", {**hung, "since_s": before.pulse.since_s, "generation": before.generation})
        )
    failed = world.counts.failed
    if failed.total != before.counts.failed.total and not any(
        kind == _name(d.Unsaved) for kind, _ in rows
    ):
        if before.save is not None:
            asked = {"reason": before.save.reason.value}
        else:
            asked = {}
        rows.append((_name(d.Unsaved), {**asked, "why": failed.why}))
    if before.on_demand != world.on_demand:
        rows.append((MARKET, market_facts(world)))
    if before.job is not world.job and not rows:
        rows.append((STATE, {}))
    state = world.job.value
    now = {"generation": world.generation, "steps": world.steps}
    if rows:
        paid = {"step_s": float(world.facts.step_s), "usd": round(world.usd, 8)}
    else:
        paid = {}
    return [EventRow(world.now_s, kind, state, {**now, **paid, **facts}) for kind, facts in rows]
