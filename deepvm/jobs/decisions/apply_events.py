"""What an event says: what is known after it, before anything is decided."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions import hangs
from deepvm.jobs.decisions.markets import refused
from deepvm.jobs.decisions.states import JobEvent, Machine, MachineEvent, machine_after, replace
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    REFUSED,
    RELEASED,
    UNREADY,
    JobState,
    KeptOutputs,
    MachineRecord,
    Reason,
    Save,
    StartupFailures,
)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_SELDOM_S = 10.0


def known(world: JobState, event: d.Event) -> JobState:
    """The world after an event, before anything is decided; what comes too late says nothing."""
    now = world.now_s
    if isinstance(event, d.RecordedOnly):
        return world
    if isinstance(event, d.GenerationEvent):
        return _of_generation(world, event)
    match event:
        case d.InstancesListed():
            return _listed(world, event)
        case d.Stop():
            world = world.to_end(event.why)
            if event.at_once:
                return world.after(JobEvent.STOP)
            return world
        case d.SaveNow():
            return _asked(world, Reason.PERIODIC)
        case d.Rebalanced():
            if event.id in world.members and world.terms.policy.saves:
                world = _asked(world, Reason.INSURANCE)
            return world
        case d.Downtime():  # how long steps take is to be seen again
            return replace(world, pace=replace(world.pace, generation=0))
    machine = world.machines.get(event.id)
    if machine is None:
        return world
    match event:
        case d.OutputsLooked():
            return _looked(world, event)
        case d.Launched():
            launched = replace(machine, launched_s=event.launched_s)
            world = with_event(world, launched, MachineEvent.LAUNCHED)
            return _placed(world, machine.id, event.zone, event.usd_per_hour)
        case d.Refused():
            return refused(with_event(world, machine, MachineEvent.REFUSED), machine.pool)
        case d.Silent():
            if machine.state not in (Machine.WARMING, Machine.MEMBER):
                return world
            return with_event(world, replace(machine, silent_s=now), MachineEvent.SILENT)
        case d.Failed():
            return _failed(world, machine, event)
        case d.Noticed():
            ending = machine.state.over or machine.state is Machine.RELEASING
            if machine.noticed_s is None and not ending:
                machine = replace(machine, noticed_s=now, taken_s=event.taken_s)
            return with_event(world, machine, MachineEvent.NOTICE)
    if machine.state.over:
        return world
    world = world.with_spare(event.id, spare=event.spare)
    world = with_event(world, replace(machine, heard_s=now, silent_s=None), MachineEvent.BEAT)
    world = _prepared(world, event)
    if event.warm or event.generation:
        world = with_event(world, world.machines[machine.id], MachineEvent.WARM)
    return heard(world, [(event, now)])


def _looked(world: JobState, event: d.OutputsLooked) -> JobState:
    before = world.outputs.get(event.id, KeptOutputs())
    facts = (event.unmatched, event.others, event.why)
    if event.why:
        since_s = world.now_s if before.failing_s is None else before.failing_s
        now = KeptOutputs(event.files, event.bytes, before.kept_s, *facts, since_s)
    else:
        now = KeptOutputs(event.files, event.bytes, world.now_s, *facts)
    return replace(world, outputs={**world.outputs, event.id: now})


def heard(world: JobState, beats: Sequence[tuple[d.Heartbeat, float]]) -> JobState:
    """With what heartbeats of members, each at a time, say of their generation."""
    own = [
        (beat, at_s)
        for beat, at_s in beats
        if beat.generation == world.generation and beat.id in world.members
    ]
    if not own:
        return world
    step_s = next((beat.step_s for beat, _ in own if beat.step_s), world.facts.step_s)
    world = hangs.heard(replace(world, facts=replace(world.facts, step_s=step_s)), own)
    for beat, _ in own:
        world = between_steps(world, beat)
    step, at_s = max((beat.step, at_s) for beat, at_s in own)
    # One that holds is where it was
    if step < world.reached or (step == world.reached and world.reached_s is None):
        return world
    return replace(world, reached=step, reached_s=at_s)


def _asked(world: JobState, reason: Reason) -> JobState:
    if why_not_saved(world):
        return world
    return replace(world, save=Save(reason, world.now_s, world.now_s + world.terms.save_s))


def between_steps(world: JobState, event: d.Heartbeat) -> JobState:
    """With what passed between steps, if it is the first trainer's machine that says it."""
    if not event.of_s or event.id != world.members[0]:
        return world
    known = world.between
    if known.generation != world.generation:
        known = replace(known, generation=world.generation, seen_s=0.0, seen_of_s=0.0)
    more_s = event.between_s - known.seen_s
    more_of_s = event.of_s - known.seen_of_s
    if more_of_s <= 0:
        return world
    known = replace(known, s=known.s + max(more_s, 0.0), of_s=known.of_s + more_of_s)
    return replace(world, between=replace(known, seen_s=event.between_s, seen_of_s=event.of_s))


def _prepared(world: JobState, event: d.Heartbeat) -> JobState:
    known_as, since_s = world.preparing.get(event.id, ("", -_SELDOM_S))
    if event.preparing == known_as:
        return world
    if event.preparing and known_as and world.now_s - since_s < _SELDOM_S:
        return world
    preparing = {k: v for k, v in world.preparing.items() if world.machines[k].state.coming}
    preparing.pop(event.id, None)
    if event.preparing:
        preparing[event.id] = event.preparing, world.now_s
    return replace(world, preparing=preparing)


def why_not_saved(world: JobState) -> str:
    """Why no checkpoint can be asked for now; empty if one can."""
    if world.job.over or world.ending:
        return "the job is ending"
    if not world.formed:
        return "nothing is being trained now"
    if world.save is None:
        return ""
    return "a checkpoint is being saved already"


def _failed(world: JobState, machine: MachineRecord, event: d.Failed) -> JobState:
    gone = machine.state.over or machine.state in (Machine.RELEASING, Machine.LOST)
    known_as = world.unready.get(machine.role, StartupFailures())
    alike = list(world.of(machine.role))
    first_s = known_as.failed_s if known_as.failed_s is not None else math.inf
    # If others have succeeded, or may, it is this machine's fault, or its preemption's
    succeeded = any(m.ready_s is not None for m in alike)
    may_succeed = any(
        m.id != machine.id
        and (m.state.coming or m.state is Machine.SUSPECT)
        and m.requested_s < first_s
        for m in alike
    )
    if not (event.own or gone or succeeded or may_succeed):
        return replace(world.after(JobEvent.CRASHED), failure=event.why, no_data=event.data)
    known_as = replace(known_as, why=f"{machine.id}: {event.why}")
    if not (event.own or gone):
        known_as = replace(known_as, failed_s=min(first_s, world.now_s))
    world = replace(world, unready={**world.unready, machine.role: known_as})
    if gone:
        return world
    return with_event(world, replace(machine, end_reason=UNREADY), MachineEvent.RELEASE)


def _placed(
    world: JobState, machine: str, zone: str, usd_per_hour: float | None = None
) -> JobState:
    record = world.machines[machine]
    pool = replace(record.pool, zone=zone or record.pool.zone)
    if usd_per_hour is not None:
        pool = replace(pool, usd_per_hour=usd_per_hour)
    return world.with_machine(replace(record, pool=pool))


def _listed(world: JobState, event: d.InstancesListed) -> JobState:
    for machine in list(world.machines.values()):
        leaves = machine.state.over or machine.state is Machine.RELEASING
        if machine.id in event.taken and not leaves:
            machine = replace(machine, end_reason="" if machine.noticed_s is not None else LOST)
        if machine.id in event.ended:
            world = with_event(world, machine, MachineEvent.GONE)
            # The bill is by the cloud's times, not by when they were looked up.
            launched_s, ended_s = event.ended[machine.id]
            machine = world.machines[machine.id]
            machine = replace(machine, launched_s=launched_s, ended_s=ended_s)
            world = world.with_machine(machine)
        elif machine.id in event.alive:
            machine = replace(machine, launched_s=event.alive[machine.id])
            world = with_event(world, machine, MachineEvent.LAUNCHED)
        elif world.now_s - machine.requested_s >= world.terms.absent_s:
            world = with_event(world, machine, MachineEvent.ABSENT)
        if event.zones.get(machine.id, machine.pool.zone) != machine.pool.zone:
            world = _placed(world, machine.id, event.zones[machine.id])
    return world


def _of_generation(world: JobState, event: d.GenerationEvent) -> JobState:
    """What trainers say; of an older generation it says nothing any more."""
    if event.generation != world.generation or world.job.over:
        return world
    # Training may have continued long ago, and hang by now
    if isinstance(event, d.CheckpointDurable):
        world = _durable(_settled(world, event.version), event)
        return replace(world, version=max(world.version, event.version))
    if isinstance(event, d.CheckpointOnAnchorOnly):
        return replace(_settled(world, event.version), alone=event.why)
    if not isinstance(event, d.Unsaved):
        world = hangs.alive(world, world.now_s)
    if isinstance(event, d.Safe):
        return _safe(world, event)
    if isinstance(event, d.Unsaved):
        ends = world.save is not None and world.save.reason is event.reason
        # It is counted already; now it is known why
        if not ends and event.reason in world.given_up:
            world = replace(world, given_up=world.given_up - {event.reason})
            if not world.failed_saves.in_a_row:  # another has come since
                return world
            return replace(world, failed_saves=replace(world.failed_saves, why=event.why))
        world = replace(world, failed_saves=world.failed_saves.more(event.why))
        if ends:
            return unsaved(world)
        return world
    if event.id not in world.members or not world.formed:
        return world
    if isinstance(event, d.Ended):
        return replace(
            world,
            exits={**world.exits, event.id: event.code},
            reached=max(world.reached, event.step),
            reached_s=None,
        )
    if world.peak is not None:
        world = replace(world, peak=max(world.peak, event.done))
    if event.version is not None and event.id == world.members[0]:
        world = hangs.restored(world)
        # The newest that there is, no matter which was reported: all tiers were looked into
        if world.peak is not None:
            lasts = event.version
            if world.anchors:
                lasts = min(world.lasts, lasts)
            world = replace(world, version=event.version, lasts=lasts)
        lost = world.lost_steps + max((world.peak or 0) - event.version, 0)
        world = replace(
            world,
            lost_steps=lost,
            peak=None,
            # A heartbeat with its first steps may have been faster.
            reached=max(world.reached, event.version),
            reached_s=world.reached_s or world.now_s,
        )
    started = world.started | {event.id}
    machine = world.machines[event.id]
    if machine.trained_s is None:
        world = world.with_machine(replace(machine, trained_s=world.now_s))
    if started == set(world.members):
        world = world.after(JobEvent.STARTED)
    return replace(world, started=started)


def _safe(world: JobState, event: d.Safe) -> JobState:
    save = world.save
    # Else one that was under way: more was done since
    if save is not None and save.reason is event.reason:
        save = replace(save, safe=True)
    stood_s = event.stall_s
    if event.reason.holds:
        stood_s = max(event.stall_s, event.took_s)
        world = replace(world, reached=max(world.reached, event.version), reached_s=None)
    elif event.version > world.reached:
        world = replace(world, reached=event.version, reached_s=world.now_s - event.took_s)
    if event.lasts:
        world = _durable(world, event)
    elif event.pending:
        world = replace(world, pending=max(world.pending, event.version))
    took_s = event.took_s
    return replace(
        world,
        version=max(world.version, event.version),
        facts=replace(world.facts, save_s=event.stall_s, backup_s=took_s, emergency_s=took_s),
        saves={**world.saves, event.reason: world.saves.get(event.reason, 0) + 1},
        failed_saves=replace(world.failed_saves, in_a_row=0, why=""),
        given_up=world.given_up - {event.reason},
        save=save,
        unsaved_s=None,
        saving_s=world.saving_s + stood_s,
    )


def _durable(world: JobState, event: d.Safe | d.CheckpointDurable) -> JobState:
    return replace(world, lasts=max(world.lasts, event.version), lasting_s=event.took_s, alone="")


def _settled(world: JobState, version: int) -> JobState:
    if version >= world.pending:
        return replace(world, pending=0)
    return world


def unsaved(world: JobState) -> JobState:
    """Give up the save that something waits for: trainers continue, and it may be retried."""
    return replace(world.after(JobEvent.GO_ON), save=None, unsaved_s=world.now_s)


def with_event(world: JobState, machine: MachineRecord, event: MachineEvent) -> JobState:
    """A machine in its next state, with the times that it brings."""
    was = machine.state
    state = machine_after(machine.state, event)
    now = world.now_s
    if state is was:
        return world.with_machine(machine)
    machine = replace(machine, state=state)
    if state.coming:  # it has got further, or comes back
        world = replace(world, preparing={**world.preparing, machine.id: ("", now)})
    if was is Machine.INTENT and state not in (Machine.FAILED, Machine.RELEASING):
        if machine.launched_s is None:
            machine = replace(machine, launched_s=now)
        world = replace(world, blocked=_without(world.blocked, machine.pool))
    if state is Machine.MEMBER and machine.ready_s is None:
        machine = replace(machine, ready_s=now)
        world = replace(world, unready=_without(world.unready, machine.role))
    if state is Machine.LOST or (event is MachineEvent.OVERDUE and machine.launched_s is not None):
        machine = replace(machine, end_reason=UNREADY if machine.ready_s is None else LOST)
    if state.over:
        ended_s = now if machine.launched_s is not None else None
        reason = machine.end_reason or _end_reason(machine, was)
        machine = replace(machine, ended_s=ended_s, end_reason=reason)
    # Released ones count before others are requested; of lost ones the cloud may say more
    if machine.end_reason == UNREADY and (
        state is Machine.RELEASING or (state.over and was is not Machine.RELEASING)
    ):
        known = world.unready.get(machine.role, StartupFailures())
        known = replace(known, count=known.count + 1, last_s=now)
        world = replace(world, unready={**world.unready, machine.role: known})
    is_gone = state.over or state in (Machine.LOST, Machine.RELEASING)
    if machine.id in world.anchors and is_gone and world.lasts < world.version:
        # It had a part of each checkpoint; the next comes at once
        world = replace(world, version=world.lasts)
        if world.terms.policy.saves:
            world = _asked(world, Reason.INSURANCE)
    return world.with_machine(machine)


def _without(known: Mapping[_Key, _Value], key: _Key) -> dict[_Key, _Value]:
    return {other: value for other, value in known.items() if other != key}


def _end_reason(machine: MachineRecord, was: Machine) -> str:
    if machine.state is Machine.FAILED:
        return REFUSED
    if machine.noticed_s is not None:
        return PREEMPTED
    if was is Machine.RELEASING:
        return RELEASED
    if machine.ready_s is None:
        return UNREADY
    return LOST
