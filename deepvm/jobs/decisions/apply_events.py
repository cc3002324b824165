"""What an event says: what is known after it, before anything is decided."""

from __future__ import annotations

import math
from dataclasses import replace

from deepvm.jobs.decisions import hangs
from deepvm.jobs.decisions.events import (
    CheckpointDurable,
    CheckpointOnAnchorOnly,
    Downtime,
    Ended,
    Event,
    Failed,
    FaultInjected,
    Heartbeat,
    Injected,
    InstancesListed,
    Launched,
    MetadataUnavailable,
    Noticed,
    Prepared,
    Rebalanced,
    Refused,
    Safe,
    SaveNow,
    Silent,
    Started,
    Stepped,
    Stop,
    Tick,
    Unsaved,
)
from deepvm.jobs.decisions.pool_choice import refused
from deepvm.jobs.decisions.states import JobEvent, Machine, MachineEvent, job_after, machine_after
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    REFUSED,
    RELEASED,
    UNREADY,
    JobState,
    MachineRecord,
    Reason,
    Save,
    StartupFailures,
)


def known(world: JobState, event: Event) -> JobState:
    """The world after an event, before anything is decided; what comes too late says nothing."""
    now = world.now_s
    match event:
        case InstancesListed():
            return _listed(world, event)
        case Stop():
            world = world.to_end(event.why)
            if event.at_once:
                world = replace(world, job=job_after(world.job, JobEvent.STOP))
            return world
        case SaveNow():
            return _asked(world, Reason.PERIODIC)
        case Rebalanced():
            if event.id in world.members and world.terms.policy.saves:
                world = _asked(world, Reason.INSURANCE)
            return world
        case Safe() | CheckpointDurable() | CheckpointOnAnchorOnly() | Unsaved():
            return _of_generation(world, event)
        case Started() | Ended():
            return _of_generation(world, event)
        case Downtime():  # how long steps take is to be seen again
            return replace(world, pace=replace(world.pace, generation=0))
        case Tick() | Injected() | FaultInjected() | MetadataUnavailable() | Prepared() | Stepped():
            return world
    machine = world.machines.get(event.id)
    if machine is None:
        return world
    match event:
        case Launched():
            launched = replace(machine, launched_s=event.launched_s)
            world = with_event(world, launched, MachineEvent.LAUNCHED)
            return _placed(world, machine.id, event.zone, event.usd_per_hour)
        case Refused():
            return refused(with_event(world, machine, MachineEvent.REFUSED), machine.pool)
        case Silent():
            if machine.state not in (Machine.WARMING, Machine.MEMBER):
                return world
            return with_event(world, replace(machine, silent_s=now), MachineEvent.SILENT)
        case Failed():
            return _failed(world, machine, event)
        case Noticed():
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
    if event.generation == world.generation and event.id in world.members:
        facts = replace(world.facts, step_s=event.step_s or world.facts.step_s)
        world = hangs.heard(replace(world, facts=facts), [(event, now)])
        world = between_steps(world, event)
        world = further(world, event.step, now)
    return world


def _asked(world: JobState, reason: Reason) -> JobState:
    """With a version that is wanted, unless none can be asked for now."""
    if why_not_saved(world):
        return world
    return replace(world, save=Save(reason, world.now_s, world.now_s + world.terms.save_s))


def further(world: JobState, step: int, at_s: float) -> JobState:
    """With how far the generation was at a time; one that holds is where it was."""
    if step < world.reached or (step == world.reached and world.reached_s is None):
        return world
    return replace(world, reached=step, reached_s=at_s)


def between_steps(world: JobState, event: Heartbeat) -> JobState:
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


def _prepared(world: JobState, event: Heartbeat) -> JobState:
    """With how far a machine's preparation is; seldom, because it is written down each time."""
    known_as, since_s = world.preparing.get(event.id, ("", -_SELDOM_S))
    if event.preparing == known_as or (
        event.preparing and known_as and world.now_s - since_s < _SELDOM_S
    ):
        return world
    preparing = {k: v for k, v in world.preparing.items() if world.machines[k].state.coming}
    preparing.pop(event.id, None)
    if event.preparing:
        preparing[event.id] = event.preparing, world.now_s
    return replace(world, preparing=preparing)


_SELDOM_S = 10.0


def why_not_saved(world: JobState) -> str:
    """Why no version can be asked for now; empty if one can."""
    if world.job.over or world.ending:
        return "the job is ending"
    if not world.formed:
        return "nothing is being trained now"
    if world.save is None:
        return ""
    return "a version is being saved already"


def _failed(world: JobState, machine: MachineRecord, event: Failed) -> JobState:
    """Apply a machine's failure to train: its own fault, or the job's, which then ends."""
    gone = machine.state.over or machine.state in (Machine.RELEASING, Machine.LOST)
    known_as = world.unready.get(machine.role, StartupFailures())
    alike = list(world.of(machine.role, *Machine))
    if known_as.failed_s is None:
        first_s = math.inf
    else:
        first_s = known_as.failed_s
    # If others have succeeded, or still may, it is this machine's fault; a preempted one may fail
    # because of that.
    succeeded = any(m.ready_s is not None for m in alike)
    may_succeed = any(
        m.id != machine.id
        and (m.state.coming or m.state is Machine.SUSPECT)
        and m.requested_s < first_s
        for m in alike
    )
    if not (event.own or gone or succeeded or may_succeed):
        crashed = job_after(world.job, JobEvent.CRASHED)
        return replace(world, job=crashed, failure=event.why, no_data=event.data)
    if event.own or gone:
        failed_s = known_as.failed_s
    else:
        failed_s = min(first_s, world.now_s)
    known_as = replace(known_as, why=f"{machine.id}: {event.why}", failed_s=failed_s)
    world = replace(world, unready={**world.unready, machine.role: known_as})
    if gone:
        return world
    return with_event(world, replace(machine, end_reason=UNREADY), MachineEvent.RELEASE)


def _placed(
    world: JobState, machine: str, zone: str, usd_per_hour: float | None = None
) -> JobState:
    """With what the cloud has chosen for a machine."""
    record = world.machines[machine]
    if usd_per_hour is None:
        usd = record.pool.usd_per_hour
    else:
        usd = usd_per_hour
    pool = replace(record.pool, zone=zone or record.pool.zone, usd_per_hour=usd)
    return world.with_machine(replace(record, pool=pool))


def _listed(world: JobState, event: InstancesListed) -> JobState:
    for machine in list(world.machines.values()):
        if (
            machine.id in event.taken
            and not machine.state.over
            and machine.state is not Machine.RELEASING
        ):
            machine = replace(machine, end_reason="" if machine.noticed_s is not None else LOST)
        if machine.id in event.ended:
            world = with_event(world, machine, MachineEvent.GONE)
            # The bill is by the cloud's times, not by when they were looked up.
            launched_s, ended_s = event.ended[machine.id]
            world = world.with_machine(
                replace(world.machines[machine.id], launched_s=launched_s, ended_s=ended_s)
            )
        elif machine.id in event.alive:
            machine = replace(machine, launched_s=event.alive[machine.id])
            world = with_event(world, machine, MachineEvent.LAUNCHED)
        elif world.now_s - machine.requested_s >= world.terms.absent_s:
            world = with_event(world, machine, MachineEvent.ABSENT)
        if event.zones.get(machine.id, machine.pool.zone) != machine.pool.zone:
            world = _placed(world, machine.id, event.zones[machine.id])
    return world


def _of_generation(
    world: JobState,
    event: Safe | CheckpointDurable | CheckpointOnAnchorOnly | Unsaved | Started | Ended,
) -> JobState:
    """What trainers say; of an older generation it says nothing any more."""
    if event.generation != world.generation or world.job.over:
        return world
    if isinstance(event, CheckpointDurable):  # training may have gone on long ago, and hang by now
        world = _durable(_settled(world, event.version), event)
        return replace(world, version=max(world.version, event.version))
    if isinstance(event, CheckpointOnAnchorOnly):
        return replace(_settled(world, event.version), alone=event.why)
    if not isinstance(event, Unsaved):
        world = hangs.alive(world, world.now_s)
    if isinstance(event, Safe):
        return _safe(world, event)
    if isinstance(event, Unsaved):
        ends = world.save is not None and world.save.reason is event.reason
        # It is counted already; now it is known why
        if not ends and event.reason in world.given_up:
            world = replace(world, given_up=world.given_up - {event.reason})
            return replace(world, counts=world.counts.explained(event.why))
        world = replace(world, counts=world.counts.unsaved(event.why))
        if ends:
            return unsaved(world)
        return world
    if event.id not in world.members or not world.formed:
        return world
    if isinstance(event, Ended):
        exits = {**world.exits, event.id: event.code}
        return replace(world, exits=exits, reached=max(world.reached, event.step), reached_s=None)
    if world.peak is not None:
        world = replace(world, peak=max(world.peak, event.done))
    if event.version is not None and event.id == world.members[0]:
        world = hangs.restored(world)
        # The newest that there is, no matter which was reported: all tiers were looked into
        if world.peak is not None:
            if world.anchors:
                lasts = min(world.lasts, event.version)
            else:
                lasts = event.version
            world = replace(world, version=event.version, lasts=lasts)
        lost = max((world.peak or 0) - event.version, 0)
        world = replace(
            world,
            counts=replace(world.counts, lost_steps=world.counts.lost_steps + lost),
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
        job = job_after(world.job, JobEvent.STARTED)
    else:
        job = world.job
    return replace(world, started=started, job=job)


def _safe(world: JobState, event: Safe) -> JobState:
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
        counts=world.counts.saved(event.reason),
        given_up=world.given_up - {event.reason},
        save=save,
        unsaved_s=None,
        saving_s=world.saving_s + stood_s,
    )


def _durable(world: JobState, event: Safe | CheckpointDurable) -> JobState:
    lasts = max(world.lasts, event.version)
    return replace(world, lasts=lasts, lasting_s=event.took_s, alone="")


def _settled(world: JobState, version: int) -> JobState:
    """With a version that is not on its way any more."""
    if version >= world.pending:
        return replace(world, pending=0)
    return world


def unsaved(world: JobState) -> JobState:
    """Give up the save that something waits for: trainers continue, and it may be retried."""
    return replace(
        world, save=None, unsaved_s=world.now_s, job=job_after(world.job, JobEvent.GO_ON)
    )


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
        machine = replace(
            machine, launched_s=now if machine.launched_s is None else machine.launched_s
        )
        world = replace(
            world, blocked={p: times for p, times in world.blocked.items() if p != machine.pool}
        )
    if state is Machine.MEMBER and machine.ready_s is None:
        machine = replace(machine, ready_s=now)
        world = replace(
            world,
            unready={role: known for role, known in world.unready.items() if role != machine.role},
        )
    if state is Machine.LOST or (event is MachineEvent.OVERDUE and machine.launched_s is not None):
        machine = replace(machine, end_reason=UNREADY if machine.ready_s is None else LOST)
    if state.over:
        ended_s = now if machine.launched_s is not None else None
        machine = replace(
            machine, ended_s=ended_s, end_reason=machine.end_reason or _end_reason(machine, was)
        )
    # Those that are released count before others are asked for; of those that are lost the cloud
    # may say more.
    if machine.end_reason == UNREADY and (
        state is Machine.RELEASING or (state.over and was is not Machine.RELEASING)
    ):
        known = world.unready.get(machine.role, StartupFailures())
        known = replace(known, count=known.count + 1, last_s=now)
        world = replace(world, unready={**world.unready, machine.role: known})
    if machine.id in world.anchors and (state.over or state in (Machine.LOST, Machine.RELEASING)):
        world = _without_anchors(world)
    return world.with_machine(machine)


def _without_anchors(world: JobState) -> JobState:
    """Apply an anchor's loss, which had a part of each checkpoint; the next comes at once."""
    if world.lasts >= world.version:
        return world
    world = replace(world, version=world.lasts)
    if world.terms.policy.saves:
        return _asked(world, Reason.INSURANCE)
    return world


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
