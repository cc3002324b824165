"""The controller's reaction to events: a pure function from state and event to actions.

Every event is written to the history before the acts that follow from it, so a controller that was
killed knows as much as the one before. Rules:

- one generation at a time: a change of membership makes a new one, older numbers are refused;
- a machine that is noticed, or one that comes, waits for a checkpoint; one that is gone does not;
- replacements are asked for at a notice, and after a confirmed loss;
- what is not needed is released, and what is requested has its record first.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from deepvm.core.units import format_seconds
from deepvm.jobs.decisions import markets
from deepvm.jobs.decisions.apply_events import known, unsaved, with_event
from deepvm.jobs.decisions.events import Act, Event, Failed, InstancesListed, Release, Request
from deepvm.jobs.decisions.hangs import (
    further_s,
    generation_formed,
    idlers,
    is_hung,
    is_in_vain,
    let_go,
    noted,
    timed,
    waited_s,
)
from deepvm.jobs.decisions.markets import rested_after_losses
from deepvm.jobs.decisions.states import Job, JobEvent, Machine, MachineEvent, replace
from deepvm.jobs.decisions.world import JobState, MachineRecord, Pool, Reason, Role, Save
from deepvm.records import dataclass

_UNWANTED = (Machine.RELEASING, Machine.LOST, Machine.ENDED, Machine.FAILED)
_KILLED = 137
_MOST_KILLED = 3
UNREPORTED_S = 20.0  # For so long, a job that stops waits for a first report of its trainers
_MORE_TRIES = 2  # Machines that may fail in a row, besides as many as are started at once
# How the reasons start for which money, time and broken machines end a job
BUDGET, DEADLINE, NEVER_READY = "the budget", "the deadline", "machines keep failing"
_RESIZE_AGAIN_S = 60.0  # Training loses steps by each try, and no machine is about to go
_SPARE_S = 60.0


@dataclass(frozen=True)
class Decisions:
    """An agent's desired state: the answer to each heartbeat, so none is lost with a controller."""

    shutdown: bool = False
    serve: bool = False  # keep checkpoints in memory
    generation: int = 0  # what to run there, 0 for nothing; anything older is killed
    members: tuple[str, ...] = ()
    # Save the same step on all ranks, and hold until the next orders, or until its limit
    save: Save | None = None


def orders_of(world: JobState, machine: str) -> Decisions:
    """The orders for a machine; one that is not known is not needed."""
    known = world.machines.get(machine)
    if known is None or known.state in _UNWANTED:
        return Decisions(shutdown=True)
    if known.role is Role.ANCHOR:
        return Decisions(serve=True)
    if not world.formed or machine not in world.members:
        return Decisions()
    return Decisions(generation=world.generation, members=world.members, save=world.save)


def with_generation_broken(world: JobState) -> JobState:
    """Its members cannot meet: the next one is formed at once."""
    return _unformed(world.after(JobEvent.BROKEN))


def _unformed(world: JobState) -> JobState:
    return replace(world, formed=False, save=None, suspected_s=None, exits={}, started=frozenset())


def react(
    world: JobState, events: Event | Sequence[Event], now_s: float
) -> tuple[JobState, tuple[Act, ...]]:
    """What is known after an event, or several at once, and what is to be done about it."""
    start = world = replace(world, now_s=max(now_s, world.now_s))
    acts: list[Act] = []
    for event in events if isinstance(events, Sequence) else (events,):
        before = world
        world = known(world, event)
        if isinstance(event, InstancesListed):  # released again, or unknown
            alive = {key: world.machines.get(key) for key in sorted(event.alive)}
            acts += [Release(k) for k, m in alive.items() if m is None or m.state in _UNWANTED]
        if isinstance(event, Failed) and event.id in world.machines:
            now = world.machines[event.id].state
            if now is Machine.RELEASING and before.machines[event.id].state is not now:
                acts.append(Release(event.id))
    heard = world
    world, late = _watched(world)
    world = rested_after_losses(start, world)
    acts += late
    for judge in (_judged, _hung, _limited, markets.decided, _saved_first):
        world = judge(world)
    for rule in (_formed, _ended, _wanted):
        world, more = rule(world)
        acts += more
    return _missed(heard, world), tuple(acts)


_Step: TypeAlias = tuple[JobState, list[Act]]


def _watched(world: JobState) -> _Step:
    terms = world.terms
    now = world.now_s
    acts = list[Act]()
    for machine in list(world.machines.values()):
        state = machine.state
        silent_s = -math.inf if machine.heard_s is None else now - machine.heard_s
        silent = silent_s >= terms.silent_s
        if silent and state in (Machine.WARMING, Machine.MEMBER):
            world = with_event(world, replace(machine, silent_s=now), MachineEvent.SILENT)
        elif silent and state is Machine.NOTICED and machine.silent_s is None:
            world = world.with_machine(replace(machine, silent_s=now))
        late = state.coming and now - further_s(world, machine) >= terms.start_s
        if late or (state is Machine.SUSPECT and silent_s >= terms.lost_s):
            world = with_event(world, machine, MachineEvent.OVERDUE)
            acts.append(Release(machine.id))
    return world, acts


def _judged(world: JobState) -> JobState:
    """What the exits of trainers mean: the end, a failure, or that a machine is gone."""
    if not world.formed or not world.exits or world.job.over:
        return world
    if set(world.exits) == set(world.members) and not any(world.exits.values()):
        missing = _missing_steps(world)
        if not missing:
            return replace(world.after(JobEvent.TRAINED), failure="", save=None)
        if world.ending:
            return replace(world.after(JobEvent.STOP), failure="", save=None)
        return replace(world.after(JobEvent.CRASHED), failure=missing, save=None)
    if not any(world.exits.values()) or _broken(world):
        return world
    if world.suspected_s is None:
        return replace(world, suspected_s=world.now_s)
    # A trainer fails when a peer or memory node is gone: all must have reported since
    anchors = [m for a in world.anchors if (m := world.machines[a]).state is Machine.MEMBER]
    if min(m.heard_s or 0.0 for m in (*world.crew, *anchors)) <= world.suspected_s:
        return world
    if len(anchors) < len(world.anchors):
        return with_generation_broken(world)
    # A network that was cut for a moment breaks a collective, too, and a user may kill a trainer;
    # a bug breaks it twice at the same step, and a script that fails at once does so again.
    further = world.reached > world.crashed_at
    killed = _KILLED in world.exits.values()
    crashes = 1 if further else world.crashes + 1
    by_itself_at_once = len(world.members) == 1 and not killed and not world.steps
    if crashes <= (_MOST_KILLED if killed else 1) and not by_itself_at_once:
        world = replace(world, crashes=crashes, crashed_at=max(world.reached, world.crashed_at))
        return replace(world.after(JobEvent.BROKEN), formed=False, exits={}, suspected_s=None)
    return replace(world.after(JobEvent.CRASHED), save=None)


def _missing_steps(world: JobState) -> str:
    steps = world.terms.steps
    if steps is None or world.steps >= steps or world.progress_unknown:
        return ""
    return (
        f"the script ended with exit code 0 after {world.steps} of {steps} steps; if that is all,"
        " leave out 'steps'"
    )


def _hung(world: JobState) -> JobState:
    if not is_hung(world) or _broken(world):
        return world
    world, again = noted(world)
    if again:
        return with_generation_broken(world)
    return replace(world.after(JobEvent.CRASHED), failure=world.pulse.why, save=None)


def _limited(world: JobState) -> JobState:
    """Money and time: stop at the last moment at which a checkpoint still fits."""
    terms = world.terms
    if world.ending or world.job.over:
        return world
    last_s = markets.last_s(world)
    if terms.total_usd is not None and world.usd + world.usd_per_second * last_s >= terms.total_usd:
        return world.to_end(
            f"{BUDGET} of ${terms.total_usd:g} does not last for another checkpoint and the release"
            f" of the machines ({format_seconds(last_s, digits=2)})"
        )
    if terms.end_s is not None and world.now_s + last_s >= terms.end_s:
        if all(machine.requested_s < terms.begun_s for machine in world.machines.values()):
            return world.to_end(f"{DEADLINE} leaves no time to start a machine (none was rented)")
        return world.to_end(f"{DEADLINE} has come")
    # A deadline for which machines may be bought decides itself how long spot is waited for.
    if not world.formed and not terms.bought and waited_s(world) >= terms.give_up_s:
        return world.to_end("no machine is available")
    for role in () if world.formed else Role:
        if _never_ready(world, role) and not any(m.state.coming for m in world.of(role)):
            known = world.unready[role]
            why = f"{NEVER_READY}: the last {known.count} ended before they could train"
            return world.to_end(f"{why}; {known.why}" if known.why else why)
    return world


def _never_ready(world: JobState, role: Role) -> bool:
    places = {Role.TRAINER: world.terms.most, Role.ANCHOR: world.terms.anchors}[role]
    known = world.unready.get(role)
    return known is not None and known.count >= places + _MORE_TRIES


def _broken(world: JobState) -> bool:
    save = world.save
    members = world.crew
    saves = False  # a noticed member may be gone for a while: others can make its version safe
    if save is not None and save.reason is Reason.EMERGENCY and not save.safe:
        can_save = bool(world.anchors) or any(not m.state.over for m in members)
        saves = can_save and world.now_s < save.limit_s
    for machine in members:
        ended_s = machine.ended_s
        if machine.state is Machine.NOTICED:
            broken = machine.silent_s is not None
        elif machine.state is Machine.ENDED and None not in (machine.noticed_s, ended_s):
            broken = not saves or world.now_s - (ended_s or 0.0) >= world.terms.silent_s
        else:
            broken = machine.state is not Machine.MEMBER
        if broken:
            return True
    return False


def _saved_first(world: JobState) -> JobState:
    """Request a checkpoint if one is wanted before the next change; give it up at its limit."""
    if world.job.over or not world.formed:
        return replace(world, save=None)
    world = _given_up(world)
    waits = world.save is not None and world.save.reason.holds and not _is_too_little(world)
    if _broken(world) or waits or not world.has_waited(markets.AGAIN_S):
        return world
    found = _wanted_save(world)
    if found is None:
        return world
    reason, limit_s = found
    return replace(world.after(JobEvent.SAVE), save=Save(reason, world.now_s, limit_s))


def _wanted_save(world: JobState) -> tuple[Reason, float] | None:
    """Why training is to hold for a checkpoint, and until when that is of use; None: it is not."""
    taken = [m.taken_s for m in world.crew if m.state is Machine.NOTICED]
    taken_s = min((t for t in taken if t is not None), default=math.inf)
    if _is_too_little(world):
        return Reason.STOP, min(markets.wait_until_s(world), taken_s)
    facts = replace(world.facts, grace_s=taken_s - world.now_s)
    # Of those that have trained to the end no part would come
    if taken and not world.exits and world.terms.policy.emergency(facts):
        return Reason.EMERGENCY, taken_s
    if world.ending:
        return Reason.STOP, min(markets.wait_until_s(world), taken_s)
    # Those that have trained to the end save no more
    if world.job is not Job.RUNNING or world.exits or not world.has_waited(_RESIZE_AGAIN_S):
        return None
    if taken and world.now_s < taken_s + world.terms.lost_s:
        return None
    members = _next_members(world)
    changes = (members, _next_anchors(world)) != (world.members, world.anchors)
    if changes and members and _has_anchors(world) and _has_spares(world):
        return (Reason.RESIZE, world.now_s + world.terms.save_s)
    return None


def _is_too_little(world: JobState) -> bool:
    """Whether a stopping job holds for a checkpoint that outlives a machine, not the anchors."""
    save = world.save
    if not world.ending or save is None or save.reason is Reason.STOP:
        return False
    return save.reason.holds and save.safe and world.lasts < world.version


def _has_come(world: JobState, save: Save) -> bool:
    """Whether the awaited checkpoint outlives what is released next, such as an anchor."""
    keeps = not save.reason.holds or not world.anchors or world.anchors == _next_anchors(world)
    return save.safe and (keeps or world.lasts >= world.version)


def _given_up(world: JobState) -> JobState:
    save = world.save
    if save is None:
        return world
    late = world.now_s >= save.limit_s
    if not save.reason.holds:
        if save.safe or late:
            return replace(world, save=None)
        return world
    # A preempted machine goes at the limit of its save; another change can do without
    missed = (late or bool(world.exits)) and not _has_come(world, save)
    if missed and save.reason is Reason.RESIZE:
        return unsaved(world)
    return world


def _missed(before: JobState, world: JobState) -> JobState:
    """Count a requested checkpoint that is no longer awaited although it is not safe."""
    asked = before.save
    if asked is None or world.save == asked or world.job is Job.DONE or _has_come(before, asked):
        return world
    if world.now_s >= asked.limit_s:
        took = format_seconds(world.now_s - asked.asked_s, digits=2)
        why = f"the script did not answer the request to save in {took}"
        if not world.version and not world.saves:
            why += (
                "; one that uses neither Checkpointer nor dt.check_save saves nothing, and restarts"
                " at its beginning"
            )
    elif asked.reason.holds:
        why = "trainers ended before it was safe"
    else:  # another that is more urgent has taken its place
        return world
    given_up = world.given_up
    if world.generation == before.generation:  # an older one reports nothing any more
        given_up |= {asked.reason}
    return replace(world, failed_saves=world.failed_saves.more(why), given_up=given_up)


def _has_spares(world: JobState) -> bool:
    if world.cold.isdisjoint(world.members):
        return True
    ready_s = [world.machines[m].ready_s or world.now_s for m in _next_members(world)]
    return world.now_s - max(ready_s, default=world.now_s) >= _SPARE_S


def _next_members(world: JobState) -> tuple[str, ...]:
    """This generation's machines in their order, then new machines; or as many of a new market."""
    able = list(world.of(Role.TRAINER, Machine.MEMBER))
    fit = [m for m in able if markets.fits(world, m)]
    least = max(world.terms.least, len(world.members))
    if len(fit) >= min(least, markets.most_of(world)):
        able = fit
    ids = {m.id for m in able}
    stay = [m for m in world.members if m in ids]
    return tuple(dict.fromkeys([*stay, *(m.id for m in able)]))[: world.terms.most]


def _next_anchors(world: JobState) -> tuple[str, ...]:
    """The anchors of the next generation, each part where it was; none if one is missing."""
    able = [m.id for m in world.of(Role.ANCHOR, Machine.MEMBER)]
    fresh = (m for m in able if m not in world.anchors)
    places = [*world.anchors, *[""] * world.terms.anchors][: world.terms.anchors]
    found = tuple(m if m in able else next(fresh, "") for m in places)
    return found if all(found) else ()


def _has_anchors(world: JobState) -> bool:
    return len(_next_anchors(world)) == world.terms.anchors


def _formed(world: JobState) -> _Step:
    terms = world.terms
    now = world.now_s
    save = world.save
    if world.job.over or world.ending:
        return world, []
    broken = world.formed and _broken(world)
    saved = (
        save is not None and save.reason.holds and (_has_come(world, save) or now >= save.limit_s)
    )
    if world.formed and not broken and not saved:
        return world, []
    if saved and not broken and _may_last(world):
        return world, []
    acts: list[Act] = []
    if saved:  # what was noticed has nothing left to give
        world, acts = _released(world, [m for m in world.crew if m.state is Machine.NOTICED])
    members = _next_members(world)
    anchors = _next_anchors(world)
    if world.formed and (members, anchors) == (world.members, world.anchors):
        return replace(world.after(JobEvent.GO_ON), save=None), acts
    if len(members) < terms.least or not _gathered(world, members) or not _has_anchors(world):
        if world.formed:
            world = with_generation_broken(replace(_held(world), idle_s=None, idled_s=0.0))
        return _unformed(world), acts
    number = world.generation + 1
    for name in members:
        world = world.with_machine(replace(world.machines[name], epoch=number))
    stays = any(m in members for m in world.members)
    done = world.reached if stays else _done_unheard(world)
    changed = world.anchors not in ((), anchors)
    world = replace(
        _unformed(world.after(JobEvent.FORM)),
        reports=world.has_reported,
        unplaced=world.is_unplaced,
        peak=max(done, world.peak or 0),
        reached=0,
        reached_s=None,
        given_up=frozenset(),
        pending=0,
        version=world.lasts if changed else world.version,
        generation=number,
        members=members,
        anchors=anchors,
        formed=True,
        idle_s=None,
        idled_s=0.0,
    )
    return generation_formed(world), acts


def _may_last(world: JobState) -> bool:
    """Whether an anchor-only checkpoint can become durable while nothing can train anyway."""
    save = world.save
    if save is None or not save.safe or not world.lasts < world.version <= world.pending:
        return False
    able = len(_next_members(world)) >= world.terms.least and _has_anchors(world)
    return save.reason is Reason.EMERGENCY and world.now_s < save.limit_s and not able


def _done_unheard(world: JobState) -> int:
    """The last step of a generation whose machines are gone: extrapolated from its last report."""
    step_s = markets.step_s_of(world)
    ends = [
        min(t for t in (m.silent_s, m.ended_s, m.taken_s, world.now_s) if t is not None)
        for m in world.crew
    ]
    if not ends or not step_s or world.reached_s is None:
        return world.reached
    done = world.reached + int(max(min(ends) - world.reached_s, 0.0) / step_s)
    if world.terms.steps is None:
        return done
    return min(done, max(world.terms.steps, world.reached))


def _held(world: JobState) -> JobState:
    """Apply the step after which trainers held for a save: it may be safe but unreported."""
    save = world.save
    step_s = markets.step_s_of(world)
    if save is None or not save.reason.holds or world.now_s >= save.limit_s:
        return world
    if world.reached_s is None or not step_s:
        return world
    held = world.reached + 1 + int(max(save.asked_s - world.reached_s, 0.0) / step_s)
    return replace(world, reached=min(held, _done_unheard(world)), reached_s=None)


def _gathered(world: JobState, members: tuple[str, ...]) -> bool:
    """Whether the first generation need not wait for more machines; later ones grow."""
    if world.generation or len(members) >= world.terms.most:
        return True
    if not any(m.state.coming for m in world.machines.values()):
        return True
    first = min(world.machines[m].ready_s or world.now_s for m in members)
    return world.now_s - first >= world.terms.gather_s


def _ended(world: JobState) -> _Step:
    """The end: with a checkpoint, if one can be had; then nothing is left running."""
    if world.ending and not world.job.over:
        save = world.save
        limit_s = markets.wait_until_s(world)
        if save is not None and save.reason.holds:
            limit_s = -math.inf if save.safe else min(save.limit_s, limit_s)
        # To wait longer than it has run costs more than it can have done
        if not world.pulse.stepped and world.reached <= world.version <= world.lasts:
            limit_s = min(limit_s, 2 * world.ending_s - (world.pulse.formed_s or 0.0))
        if not world.has_reported:  # a script that saves nothing through deepvm, as far as is known
            limit_s = min(limit_s, world.ending_s + UNREPORTED_S)
        if not world.formed or _broken(world) or world.now_s >= limit_s:
            world = world.after(JobEvent.STOP)
    if not world.job.over:
        return world, []
    world, acts = _released(world, [m for m in world.machines.values() if m.state not in _UNWANTED])
    return replace(world, formed=False, save=None), acts


def _wanted(world: JobState) -> _Step:
    """Request what is missing if a pool may have it; release surplus and given-up machines."""
    if world.job.over or world.ending:
        return world, []
    # Anchors keep checkpoints, also while nothing is trained; others that go have nothing to give
    needed = {*world.anchors, *(world.members if world.formed else ())}
    world, acts = _released(
        world, (m for role in Role for m in world.of(role, Machine.NOTICED) if m.id not in needed)
    )
    if waiting := idlers(world):
        world, more = _released(let_go(world), waiting)
        acts += more
    alive = [m for m in world.machines.values() if m.state in markets.STAYING]
    trainers = [m for m in alive if m.role is Role.TRAINER]
    live = [m for m in trainers if markets.fits(world, m)]
    members = set(world.members)
    fit = {m.id for m in live}
    spare = [m for m in live if m.id not in members or not world.formed]
    spare = list(reversed(spare))[: max(len(live) - world.terms.most, 0)]
    # Those of the other market train until the others take over.
    spare += [m for m in trainers if m.id not in fit and m.id not in members]
    world, more = _released(world, spare)
    acts += more
    terms = world.terms
    # By market, not by pool: the cloud may have chosen the zone.
    steady = 0
    if not world.on_demand:
        steadies = [m for m in live if terms.steady and markets.is_on_demand(m.pool)]
        steady = terms.steadies - len(steadies)
    wanted: list[tuple[Callable[[JobState], Pool | None], Role, int]] = [
        (markets.anchor_of, Role.ANCHOR, terms.anchors - (len(alive) - len(trainers))),
        (markets.steady_of, Role.TRAINER, min(steady, terms.most - len(live))),
        (markets.pool_of, Role.TRAINER, terms.most - len(live) - max(steady, 0)),
    ]
    for pool_of, role, count in wanted:
        pool = pool_of(world) if count > 0 else None
        if pool is None or is_in_vain(world, role):
            continue
        # Training continues without; when it cannot any more, there is one more try
        if _never_ready(world, role):
            soon = world.formed and world.now_s - world.unready[role].last_s < terms.give_up_s
            if soon or any(m.state.coming for m in alive if m.role is role):
                continue
        for _ in range(count):
            if role is Role.TRAINER and not markets.is_affordable(world, pool):
                break
            number = world.requests + 1
            machine = MachineRecord(f"m{number}", pool, world.now_s, role=role)
            world = replace(world, requests=number).with_machine(machine)
            acts.append(Request(machine.id))
    return timed(world), acts


def _released(world: JobState, machines: Iterable[MachineRecord]) -> _Step:
    acts = list[Act]()
    for machine in machines:
        world = with_event(world, machine, MachineEvent.RELEASE)
        acts.append(Release(machine.id))
    return world, acts
