"""The controller's reaction to events: a pure function from state and event to actions.

Every event is written to the history before the acts that follow from it, so a controller that was
killed knows as much as the one before. Rules (``Rules that keep the promise``,
docs/explain/orchestrator.md):

- one generation at a time: a change of membership makes a new one, and what bears an older number
  is refused;
- a machine that is noticed, or one that comes, waits for a version, so that no step is lost; one
  that is gone does not;
- replacements are asked for at a notice, and after a loss when the cloud or a second deadline
  confirms it;
- what is not needed is released, and what is requested has its record first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from deepvm.core.units import format_seconds
from deepvm.jobs.decisions import markets
from deepvm.jobs.decisions.apply_events import known, unsaved, with_event
from deepvm.jobs.decisions.events import Act, Event, Failed, InstancesListed, Release, Request
from deepvm.jobs.decisions.hangs import generation_formed, is_hung, noted
from deepvm.jobs.decisions.pool_choice import rested_after_losses
from deepvm.jobs.decisions.states import Job, JobEvent, Machine, MachineEvent, job_after
from deepvm.jobs.decisions.waiting import further_s, idlers, is_in_vain, let_go, timed, waited_s
from deepvm.jobs.decisions.world import JobState, MachineRecord, Pool, Reason, Role, Save


@dataclass(frozen=True)
class Decisions:
    """An agent's desired state: the answer to each heartbeat, so none is lost with a controller.

    Attributes:
        shutdown: the machine is not needed any more. serve: keep versions in its memory.
        generation, members: what to run there, 0 for nothing, and where its ranks are; anything
        older is killed.
        save: a version is wanted of that generation: save the same step on all ranks, and hold
            until the next orders, or until ``save.limit_s``.
    """

    shutdown: bool = False
    serve: bool = False
    generation: int = 0
    members: tuple[str, ...] = ()
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


_UNWANTED = (Machine.RELEASING, Machine.LOST, Machine.ENDED, Machine.FAILED)


def with_generation_broken(world: JobState) -> JobState:
    """A world whose generation is none: its members cannot meet. The next one is formed at once."""
    return _unformed(replace(world, job=job_after(world.job, JobEvent.BROKEN)))


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
            was = before.machines[event.id].state
            now = world.machines[event.id].state
            if now is Machine.RELEASING and was is not now:
                acts.append(Release(event.id))
    heard = world
    world, late = _watched(world)
    world = rested_after_losses(start, world)
    acts = acts + late
    for judge in (_judged, _hung, _limited, markets.decided, _saved_first):
        world = judge(world)
    for rule in (_formed, _ended, _wanted):
        world, more = rule(world)
        acts += more
    return _missed(heard, world), tuple(acts)


# --- what follows from it -------------------------------------------------------------------------

_Step: TypeAlias = tuple[JobState, list[Act]]


def _watched(world: JobState) -> _Step:
    """Agents that are silent, machines that take too long."""
    terms = world.terms
    now = world.now_s
    acts = list[Act]()
    for machine in list(world.machines.values()):
        state = machine.state
        heard = machine.heard_s
        silent = heard is not None and now - heard >= terms.silent_s
        if silent and state in (Machine.WARMING, Machine.MEMBER):
            world = with_event(world, replace(machine, silent_s=now), MachineEvent.SILENT)
        elif silent and state is Machine.NOTICED and machine.silent_s is None:
            world = world.with_machine(replace(machine, silent_s=now))
        late = state.coming and now - further_s(world, machine) >= terms.start_s
        if late or (state is Machine.SUSPECT and heard is not None and now - heard >= terms.lost_s):
            world = with_event(world, machine, MachineEvent.OVERDUE)
            acts.append(Release(machine.id))
    return world, acts


def _judged(world: JobState) -> JobState:
    """What the exits of trainers mean: the end, a failure, or that a machine is gone."""
    if not world.formed or not world.exits or world.job.over:
        return world
    if set(world.exits) == set(world.members) and not any(world.exits.values()):
        missing = _missing_steps(world)
        end = JobEvent.TRAINED
        if missing:
            end = JobEvent.STOP if world.ending else JobEvent.CRASHED
        failure = missing if end is JobEvent.CRASHED else ""
        return replace(world, job=job_after(world.job, end), failure=failure, save=None)
    if not any(world.exits.values()) or _broken(world):
        return world
    if world.suspected_s is None:
        return replace(world, suspected_s=world.now_s)
    # A trainer fails when a peer is gone, or a memory node: all machines must have been heard
    # since.
    anchors = [m for a in world.anchors if (m := world.machines[a]).state is Machine.MEMBER]
    heard = [m.heard_s or 0.0 for m in (*map(world.machines.__getitem__, world.members), *anchors)]
    if min(heard) <= world.suspected_s:
        return world
    if len(anchors) < len(world.anchors):
        return with_generation_broken(world)
    # A network that was cut for a moment breaks a collective, too, and a user may kill a trainer;
    # a bug breaks it twice at the same step, and a script that fails by itself at once does so
    # again.
    further = world.reached > world.crashed_at
    killed = _KILLED in world.exits.values()
    crashes = 1 if further else world.crashes + 1
    by_itself_at_once = len(world.members) == 1 and not killed and not world.steps
    if crashes <= (_MOST_KILLED if killed else 1) and not by_itself_at_once:
        world = replace(world, crashes=crashes, crashed_at=max(world.reached, world.crashed_at))
        again = job_after(world.job, JobEvent.BROKEN)
        return replace(world, job=again, formed=False, exits={}, suspected_s=None)
    return replace(world, job=job_after(world.job, JobEvent.CRASHED), save=None)


_KILLED = 137
_MOST_KILLED = 3


def _missing_steps(world: JobState) -> str:
    """Why trainers ended well before the job's last step; empty if unknown."""
    steps = world.terms.steps
    if steps is None or world.steps >= steps or world.progress_unknown:
        return ""
    done = f"the script ended with exit code 0 after {world.steps} of {steps} steps"
    return f"{done}; if that is all, leave out 'steps'"


def _hung(world: JobState) -> JobState:
    """Restart hung trainers from the newest safe checkpoint, or fail the job."""
    if not is_hung(world) or _broken(world):
        return world
    world, again = noted(world)
    if again:
        return with_generation_broken(world)
    crashed = job_after(world.job, JobEvent.CRASHED)
    return replace(world, job=crashed, failure=world.pulse.why, save=None)


def _limited(world: JobState) -> JobState:
    """Money and time: stop at the last moment at which a version still fits."""
    terms = world.terms
    if world.ending or world.job.over:
        return world
    last_s = markets.last_s(world)
    if terms.total_usd is not None and world.usd + world.usd_per_second * last_s >= terms.total_usd:
        return world.to_end(f"{BUDGET} of {terms.total_usd:g} $ is used up")
    if terms.end_s is not None and world.now_s + last_s >= terms.end_s:
        if all(machine.requested_s < terms.begun_s for machine in world.machines.values()):
            return world.to_end(f"{DEADLINE} leaves no time to start a machine (none was rented)")
        return world.to_end(f"{DEADLINE} has come")
    # A deadline for which machines may be bought decides itself how long spot is waited for.
    if not world.formed and not terms.bought and waited_s(world) >= terms.give_up_s:
        return world.to_end("no machine is available")
    failing = [
        r
        for r in Role
        if _never_ready(world, r) and not any(m.state.coming for m in world.of(r, *Machine))
    ]
    if failing and not world.formed:
        known = world.unready[failing[0]]
        why = f"{NEVER_READY}: the last {known.count} ended before they could train"
        return world.to_end(f"{why}; {known.why}" if known.why else why)
    return world


def _never_ready(world: JobState, role: Role) -> bool:
    """Whether machines repeatedly end before they can train: more requests waste money."""
    if role is Role.TRAINER:
        places = world.terms.most
    else:
        places = world.terms.anchors
    known = world.unready.get(role)
    return known is not None and known.count >= places + _MORE_TRIES


_MORE_TRIES = 2
"""Machines that may fail in a row, besides as many as are started at once."""


BUDGET, DEADLINE, NEVER_READY = "the budget", "the deadline", "machines keep failing"
"""How the reasons begin for which money, time and broken machines end a job."""


def _broken(world: JobState) -> bool:
    """Whether a member of the generation is gone, or may be.

    One that is noticed may be silent, or gone, for a while: others can make its version safe
    without it.
    """
    save = world.save
    members = [world.machines[m] for m in world.members]
    saves = (
        save is not None
        and save.reason is Reason.EMERGENCY
        and not save.safe
        and world.now_s < save.limit_s
    )
    saves = saves and (bool(world.anchors) or any(not m.state.over for m in members))
    for machine in members:
        if (
            machine.state is Machine.ENDED
            and machine.noticed_s is not None
            and machine.ended_s is not None
        ):
            if not saves or world.now_s - machine.ended_s >= world.terms.silent_s:
                return True
        elif machine.state is not Machine.MEMBER and (
            machine.state is not Machine.NOTICED or machine.silent_s is not None
        ):
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
    saving = job_after(world.job, JobEvent.SAVE)
    return replace(world, save=Save(reason, world.now_s, limit_s), job=saving)


def _wanted_save(world: JobState) -> tuple[Reason, float] | None:
    """Why training is to hold behind a version, and until when that is of use; None: it is not."""
    taken = [
        m.taken_s
        for m in map(world.machines.__getitem__, world.members)
        if m.state is Machine.NOTICED
    ]
    taken_s = min((t for t in taken if t is not None), default=math.inf)
    if _is_too_little(world):
        return Reason.STOP, min(markets.wait_until_s(world), taken_s)
    complete = not world.exits  # of those that have trained to the end no part would come
    if (
        taken
        and complete
        and world.terms.policy.emergency(replace(world.facts, grace_s=taken_s - world.now_s))
    ):
        return Reason.EMERGENCY, taken_s
    if world.ending:
        return Reason.STOP, min(markets.wait_until_s(world), taken_s)
    if (
        (taken and world.now_s < taken_s + world.terms.lost_s)
        or world.job is not Job.RUNNING
        or not world.has_waited(_RESIZE_AGAIN_S)
        or world.exits  # some have trained to the end: they save no more
    ):
        return None
    changes = (_next_members(world), _next_anchors(world)) != (world.members, world.anchors)
    can = _next_members(world) and _has_anchors(world) and _has_spares(world)
    if changes and can:
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


_RESIZE_AGAIN_S = 60.0
"""Training loses steps by each try, and no machine is about to go."""


def _given_up(world: JobState) -> JobState:
    """Without a save that has come, or that comes too late to be of use."""
    save = world.save
    if save is None:
        return world
    late = world.now_s >= save.limit_s
    if not save.reason.holds:
        if save.safe or late:
            return replace(world, save=None)
        return world
    # A machine that is preempted goes at the limit of its save; any other change can do without,
    # later or never.
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
        if not world.version and not world.counts.saves:
            why += (
                "; one that uses neither Checkpointer nor dt.check_save saves nothing, and restarts"
                " at its beginning"
            )
    elif asked.reason.holds:
        why = "trainers ended before it was safe"
    else:  # another that is more urgent has taken its place
        return world
    same = world.generation == before.generation  # of an older one nothing is heard any more
    if same:
        given_up = world.given_up | {asked.reason}
    else:
        given_up = world.given_up
    return replace(world, counts=world.counts.unsaved(why), given_up=given_up)


def _has_spares(world: JobState) -> bool:
    """Whether all members can start the next generation without first loading torch."""
    ready_s = max(
        (world.machines[m].ready_s or world.now_s for m in _next_members(world)),
        default=world.now_s,
    )
    return world.cold.isdisjoint(world.members) or world.now_s - ready_s >= _SPARE_S


_SPARE_S = 60.0


def _next_members(world: JobState) -> tuple[str, ...]:
    """The machines of the next generation: those of this one in their order, then the newcomers.

    Where the market changes, those of the other one take over when there are as many of them.
    """
    able = {m.id: None for m in world.of(Role.TRAINER, Machine.MEMBER)}
    most = markets.most_of(world)
    fit = {m: None for m in able if markets.fits(world, world.machines[m])}
    if len(fit) >= min(max(world.terms.least, len(world.members)), most):
        able = fit
    stay = {m: None for m in world.members if m in able}
    return tuple({**stay, **able})[: world.terms.most]


def _next_anchors(world: JobState) -> tuple[str, ...]:
    """The anchors of the next generation, each part where it was; None if one is missing."""
    able = [m.id for m in world.of(Role.ANCHOR, Machine.MEMBER)]
    fresh = (m for m in able if m not in world.anchors)
    places = [*world.anchors, *[""] * world.terms.anchors][: world.terms.anchors]
    found = [m if m in able else next(fresh, "") for m in places]
    if all(found):
        return tuple(found)
    return ()


def _has_anchors(world: JobState) -> bool:
    return len(_next_anchors(world)) == world.terms.anchors


def _formed(world: JobState) -> _Step:
    """Form the next generation if this one is broken, or once a checkpoint is safe."""
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
        trained = [world.machines[m] for m in world.members]
        world, acts = _released(world, [m for m in trained if m.state is Machine.NOTICED])
    members = _next_members(world)
    anchors = _next_anchors(world)
    if world.formed and (members, anchors) == (world.members, world.anchors):
        return replace(world, save=None, job=job_after(world.job, JobEvent.GO_ON)), acts
    if len(members) < terms.least or not _gathered(world, members) or not _has_anchors(world):
        if world.formed:
            world = with_generation_broken(replace(_held(world), idle_s=None, idled_s=0.0))
        return _unformed(world), acts
    number = world.generation + 1
    for name in members:
        world = world.with_machine(replace(world.machines[name], epoch=number))
    if any(m in members for m in world.members):
        done = world.reached
    else:
        done = _done_unheard(world)
    changed = world.anchors not in ((), anchors)
    world = replace(
        _unformed(world),
        job=job_after(world.job, JobEvent.FORM),
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
    if (
        save is None
        or not save.safe
        or world.pending < world.version
        or world.lasts >= world.version
    ):
        return False
    able = len(_next_members(world)) >= world.terms.least and _has_anchors(world)
    return save.reason is Reason.EMERGENCY and world.now_s < save.limit_s and not able


def _done_unheard(world: JobState) -> int:
    """The last step of a generation whose machines are gone: extrapolated from its last report."""
    step_s = markets.step_s_of(world)
    ends = [
        min(t for t in (m.silent_s, m.ended_s, m.taken_s, world.now_s) if t is not None)
        for m in map(world.machines.get, world.members)
        if m
    ]
    if not ends or not step_s or world.reached_s is None:
        return world.reached
    done = world.reached + int(max(min(ends) - world.reached_s, 0.0) / step_s)
    if world.terms.steps is None:
        return done
    return min(done, max(world.terms.steps, world.reached))


def _held(world: JobState) -> JobState:
    """Apply the step behind which trainers held for a save: it may be safe but unreported."""
    save = world.save
    step_s = markets.step_s_of(world)
    if (
        save is None
        or not save.reason.holds
        or world.now_s >= save.limit_s
        or world.reached_s is None
        or not step_s
    ):
        return world
    held = world.reached + 1 + int(max(save.asked_s - world.reached_s, 0.0) / step_s)
    return replace(world, reached=min(held, _done_unheard(world)), reached_s=None)


def _gathered(world: JobState, members: tuple[str, ...]) -> bool:
    """Whether the first generation need not wait for more machines; later ones grow."""
    if (
        world.generation
        or len(members) >= world.terms.most
        or not any(m.state.coming for m in world.machines.values())
    ):
        return True
    first = min(world.machines[m].ready_s or world.now_s for m in members)
    return world.now_s - first >= world.terms.gather_s


def _ended(world: JobState) -> _Step:
    """The end: with a version, if one can be had; then nothing is left running."""
    if world.ending and not world.job.over:
        save = world.save
        limit_s = markets.wait_until_s(world)
        if save is not None and save.reason.holds:
            if save.safe:
                limit_s = -math.inf
            else:
                limit_s = min(save.limit_s, limit_s)
        if _adds_nothing(world):  # to wait longer than it has run costs more than it can have done
            limit_s = min(limit_s, 2 * world.ending_s - (world.pulse.formed_s or 0.0))
        if not world.formed or _broken(world) or world.now_s >= limit_s:
            world = replace(world, job=job_after(world.job, JobEvent.STOP))
    if not world.job.over:
        return world, []
    left = [m for m in world.machines.values() if m.state not in _UNWANTED]
    world, acts = _released(world, left)
    return replace(world, formed=False, save=None), acts


def _adds_nothing(world: JobState) -> bool:
    """Whether the generation has no known step, and its starting checkpoint is durable.

    It is unknown what scripts do that report no steps: they may react to a save all the same.
    """
    return not world.pulse.stepped and world.reached <= world.version <= world.lasts


def _wanted(world: JobState) -> _Step:
    """Request what is missing if a pool may have it; release surplus and given-up machines."""
    if world.job.over or world.ending:
        return world, []
    # Anchors keep versions, also while nothing is trained; others that go have nothing to give
    needed = {*world.anchors, *(world.members if world.formed else ())}
    noticed = [*world.of(Role.TRAINER, Machine.NOTICED), *world.of(Role.ANCHOR, Machine.NOTICED)]
    world, acts = _released(world, [m for m in noticed if m.id not in needed])
    if waiting := idlers(world):
        world, more = _released(let_go(world), waiting)
        acts += more
    alive = [
        m
        for m in world.machines.values()
        if m.state.coming or m.state in (Machine.MEMBER, Machine.SUSPECT)
    ]
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
    steadies = 0
    if terms.steady:
        steadies = sum(markets.is_on_demand(m.pool) for m in live)
    if world.on_demand:
        steady = 0
    else:
        steady = terms.steadies - steadies
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
            # The record comes before the request
            number = world.requests + 1
            machine = MachineRecord(f"m{number}", pool, world.now_s, role=role)
            world = replace(world, requests=number).with_machine(machine)
            acts.append(Request(machine.id))
    return timed(world), acts


def _released(world: JobState, machines: Iterable[MachineRecord]) -> _Step:
    """With machines that are not needed any more."""
    acts: list[Act] = []
    for machine in machines:
        world = with_event(world, machine, MachineEvent.RELEASE)
        acts.append(Release(machine.id))
    return world, acts
