"""What differs between two worlds, and what of it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from deepvm.io.failpoints import point
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import Reason, World

_ENDS = (Machine.SUSPECT, Machine.LOST, Machine.ENDED)


def has_changed(before: World, world: World) -> bool:
    """Whether anything has but what the next heartbeats say again."""
    one, other = (
        replace(w, now_s=0.0, reached=0, facts=world.facts, pace=world.pace, machines={}, cold=frozenset())
        for w in (before, world)
    )
    if one != other or before.machines.keys() != world.machines.keys():
        return True
    changed = [(m, world.machines[key]) for key, m in before.machines.items() if m is not world.machines[key]]
    return any(replace(a, heard_s=b.heard_s, silent_s=b.silent_s) != b for a, b in changed)


def new_states(before: World, world: World) -> list[str]:
    """The states that are new, by the names of their points."""
    found = [] if before.job is world.job else [f"job.{world.job.value}"]
    known = {key: m.state for key, m in before.machines.items()}
    return [*found, *(f"machine.{m.state.value}" for k, m in world.machines.items() if known.get(k) is not m.state)]


def passes(changed: list[str], where: str) -> None:
    """Points of campaigns that kill."""
    for label in changed:
        point(f"{label}.{where}")


def ends(before: World, world: World) -> Iterator[dict[str, Any]]:
    """The machines that are silent, given up or gone now, and were not before."""
    for key, machine in world.machines.items():
        known = before.machines.get(key)
        if known is not machine and (known is None or known.state is not machine.state) and machine.state in _ENDS:
            yield {"id": key, "state": machine.state.value, "why": machine.end_reason}


def name_of(event: d.Event) -> str:
    """What the history calls an event."""
    return type(event).__name__.lower()


def facts_of(event: d.Event) -> dict[str, Any]:
    """What the history keeps of it."""
    assert is_dataclass(event)
    found = asdict(event)
    return {k: v.value if isinstance(v, Reason) else v for k, v in found.items() if k not in ("alive", "ended")}
