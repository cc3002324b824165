"""Machines that wait: for others without which nothing can train, or for a checkpoint.

Each is paid for, so none waits without end. The clock runs while nothing is trained, or a newcomer
waits; it stands while a machine says how far its preparation is, which may take hours, and starts
again with each generation.
"""

from __future__ import annotations

from dataclasses import replace

from deepvm.jobs.decisions import hangs
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobState, MachineRecord, Role


def timed(world: JobState) -> JobState:
    """With the clock running, standing, or back at 0."""
    if world.formed and not _newcomers(world):
        return replace(world, idle_s=None, idled_s=0.0)
    if not world.formed and any(_doing(world, m) for m in _coming(world)):
        return replace(world, idle_s=None, idled_s=waited_s(world))
    if world.idle_s is not None:
        return world
    return replace(world, idle_s=world.now_s)


def waited_s(world: JobState) -> float:
    """For how long nothing was trained, or newcomers have waited."""
    return world.idled_s + (0.0 if world.idle_s is None else world.now_s - world.idle_s)


def idlers(world: JobState) -> list[MachineRecord]:
    """Trainers that have waited long enough: nothing comes for which they could wait."""
    if not world.formed and any(
        m.state in (Machine.BOOTING, Machine.WARMING) for m in world.machines.values()
    ):
        return []
    limit_s = world.terms.hold_s
    waited = waited_s(world)
    since_ready = {m.id: world.now_s - (m.ready_s or 0.0) for m in _newcomers(world)}
    return [m for m in _newcomers(world) if min(waited, since_ready[m.id]) >= limit_s]


def _newcomers(world: JobState) -> list[MachineRecord]:
    members = set(world.members if world.formed else ())
    return [m for m in world.of(Role.TRAINER, Machine.MEMBER) if m.id not in members]


def let_go(world: JobState) -> JobState:
    """Leave all pools alone for a while, so that released machines are not requested again."""
    terms = world.terms
    until_s = world.now_s + world.terms.hold_s
    pools = [*world.pools, *terms.steady, *terms.bought]
    times = {p: world.blocked.get(p, (0.0, 0))[1] for p in pools}
    return replace(
        world, blocked={**world.blocked, **{p: (until_s, max(n, 1)) for p, n in times.items()}}
    )


def is_in_vain(world: JobState, role: Role) -> bool:
    """Whether a newcomer could not join: checkpoints fail, and training needs no other."""
    if not world.formed or any(
        world.machines[m].state is not Machine.MEMBER for m in world.members
    ):
        return False
    if world.exits:  # some have trained to the end: they save no more
        return True
    return (
        role is Role.TRAINER and not world.on_demand and not world.has_waited(world.terms.give_up_s)
    )


def further_s(world: JobState, machine: MachineRecord) -> float:
    """When a machine that comes last got further."""
    return max(machine.requested_s, world.preparing.get(machine.id, ("", 0.0))[1])


def _coming(world: JobState) -> list[MachineRecord]:
    return [m for m in world.machines.values() if m.state.coming]


def _doing(world: JobState, machine: MachineRecord) -> str:
    return world.preparing.get(machine.id, ("", 0.0))[0]


# --- a pause of the controller --------------------------------------------------------------------


def adopted(world: JobState, now_s: float) -> JobState:
    """Apply a takeover: without a controller nothing was received, and no wait was counted."""
    machines = {k: replace(m, heard_s=m.heard_s and now_s) for k, m in world.machines.items()}
    preparing = dict(world.preparing)
    for m in _coming(world):
        preparing[m.id] = _doing(world, m), now_s
    world = hangs.alive(world, now_s)
    return replace(world, machines=machines, preparing=preparing, idle_s=None, idled_s=0.0)


def forgiven(world: JobState, stalled_s: float) -> JobState:
    """Ignore a time in which the controller's process was suspended or blocked."""
    machines = {
        k: replace(m, heard_s=m.heard_s and m.heard_s + stalled_s)
        for k, m in world.machines.items()
    }
    preparing = dict(world.preparing)
    for m in _coming(world):
        preparing[m.id] = _doing(world, m), further_s(world, m) + stalled_s
    if world.idle_s is None:
        idle_s = None
    else:
        idle_s = world.idle_s + stalled_s
    return replace(
        hangs.forgiven(world, stalled_s), machines=machines, preparing=preparing, idle_s=idle_s
    )
