"""Events in any order, lost, repeated, late by minutes: what must hold of the world holds after
each of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.jobs.simulation import Faults, Simulation, finished

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.jobs.controller.injector import FaultKind
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.markets import (
    is_refusing,
    least_usd_per_hour,
    record_of,
    wait_until_s,
    within_budget,
)
from deepvm.jobs.decisions.reconcile import UNREPORTED_S, orders_of, react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason, Role
from deepvm.jobs.decisions.world_document import from_document, from_row, to_document, to_row

SPOT, STEADY, ANCHOR = (
    Pool("a", "z", "spot", 3.6),
    Pool("a", "z", "on-demand", 7.2),
    Pool("m", "z", "on-demand", 1.0),
)
DEARER, LARGER = Pool("b", "z", "on-demand", 9.0), Pool("n", "z", "on-demand", 2.0)
SPOTS = (SPOT, replace(SPOT, zone="y"), Pool("b", "z", "spot", 3.0), Pool("b", "y", "spot", 3.1))
GONE = (Machine.RELEASING, Machine.LOST, Machine.ENDED, Machine.FAILED)


@st.composite
def terms(draw: st.DrawFn) -> JobLimits:
    least = draw(st.integers(1, 3))
    most = draw(st.integers(least, 4))
    steadies, anchors = draw(st.integers(0, most)), draw(st.integers(0, 2))
    return JobLimits(
        least,
        most,
        total_usd=draw(st.sampled_from([None, None, 0.05, 1.0])),
        end_s=draw(st.sampled_from([None, None, 300.0])),
        policy=parse_policy(draw(st.sampled_from(["adaptive", "static:5"]))),
        anchor=draw(st.sampled_from([(ANCHOR,), (ANCHOR, LARGER)])) if anchors else (),
        anchors=anchors,
        steady=draw(st.sampled_from([(STEADY,), (STEADY, DEARER)])) if steadies else (),
        steadies=steadies,
        usd_per_hour=draw(st.sampled_from([None, None, 20.0, 40.0])),
        version_s=2.0,
        start_timeout_s=draw(st.sampled_from([None, 50.0, 1800.0])),
        step_timeout_s=draw(st.sampled_from([None, 5.0, 1800.0])),
    )


IDS = st.sampled_from([f"m{n}" for n in range(1, 9)] + ["stranger"])
NEWEST = 6
"""Stands for the newest generation, and what it says of a save is of the one that is waited for."""
NUMBERS = st.integers(0, NEWEST)
TIMES = st.floats(0, 2000)
KINDS: list[st.SearchStrategy[Any]] = [
    st.just(d.Tick()),
    st.builds(d.Launched, IDS, TIMES),
    st.builds(d.Refused, IDS, st.just("capacity")),
    st.builds(d.Heartbeat, IDS, NUMBERS, st.integers(0, 99), st.booleans(), st.floats(0, 2)),
    st.builds(d.Heartbeat, IDS, st.just(0), st.just(0), st.just(True)),
    st.builds(
        d.Heartbeat,
        IDS,
        NUMBERS,
        st.integers(0, 99),
        st.booleans(),
        spare=st.booleans(),
        preparing=st.sampled_from(["", "fetches data"]),
        idle_s=TIMES,
        printed_s=st.none() | TIMES,
        longest_s=st.none() | st.floats(0, 9),
        between_s=st.floats(0, 9),
        of_s=st.floats(0, 9),
    ),
    st.builds(d.Silent, IDS),
    st.builds(d.Noticed, IDS, TIMES),
    st.builds(d.Started, IDS, NUMBERS, st.none() | st.integers(0, 99)),
    st.builds(d.Ended, IDS, NUMBERS, st.sampled_from([0, 0, 1, 137]), st.integers(0, 99)),
    st.builds(
        d.Safe,
        NUMBERS,
        st.integers(0, 99),
        st.sampled_from(Reason),
        lasts=st.booleans(),
        pending=st.booleans(),
    ),
    st.builds(d.CheckpointDurable, NUMBERS, st.integers(0, 99), st.floats(0, 9)),
    st.builds(d.CheckpointOnAnchorOnly, NUMBERS, st.integers(0, 99), st.just("no bucket")),
    st.builds(d.Unsaved, NUMBERS, st.just("why"), st.sampled_from(Reason)),
    st.builds(d.MetadataUnavailable, IDS, st.just("why")),
    st.builds(d.Prepared, IDS, *[st.floats(0, 9)] * 4),
    st.builds(d.Stepped, IDS, NUMBERS, st.floats(0, 9)),
    st.builds(d.Stop, st.just("the user")),
    st.just(d.SaveNow()),
    st.builds(d.Rebalanced, IDS),
    st.builds(d.Failed, IDS, st.just("why"), st.booleans()),
    st.builds(d.Downtime, TIMES),
    st.builds(
        d.OutputsLooked, IDS, st.integers(0, 9), NUMBERS, why=st.sampled_from(["", "no disk"])
    ),
    st.builds(
        d.FaultInjected, IDS, st.sampled_from([blow.value for blow in FaultKind]), st.none() | TIMES
    ),
    st.builds(
        d.Injected,
        st.none() | TIMES,
        st.just(()),
        st.integers(0, 9),
        st.none(),
        TIMES,
        *[st.floats(0, 1)] * 4,
    ),
    st.builds(
        d.InstancesListed,
        st.dictionaries(IDS, TIMES),
        st.dictionaries(IDS, st.tuples(TIMES, TIMES), max_size=2),
        st.dictionaries(IDS, st.sampled_from(["z", "y"]), max_size=2),
        st.frozensets(IDS, max_size=2),
    ),
]
EVENTS = st.one_of(KINDS)


@settings(max_examples=1, deadline=None, database=None)
@given(st.tuples(*KINDS))
def test_all_events_there_are(events: tuple[Any, ...]) -> None:
    assert {type(event) for event in events} == set(get_args(d.Event))


def holds(
    before: JobState, events: Sequence[Any], world: JobState, acts: tuple[d.Act, ...]
) -> None:
    terms, machines = world.terms, world.machines
    assert world.generation in (before.generation, before.generation + 1)
    assert len(set(world.members)) == len(world.members) <= terms.most
    assert not world.formed or len(world.members) >= terms.least
    # At most one generation lives: whoever is told to train is told the newest, and is a member of
    # it.
    told = {m: orders_of(world, m) for m in machines}
    training = {m for m, order in told.items() if order.generation}
    assert training <= set(world.members)
    assert {told[m].generation for m in training} <= {world.generation}
    assert all(machines[m].role is Role.TRAINER for m in world.members)
    # Trainers that run are ended behind a version that is safe, or where no version helps any more.
    if (
        before.formed
        and not before.job.over
        and not (world.formed and world.generation == before.generation)
    ):
        number, now_s, formed_s = before.generation, world.now_s, world.pulse.formed_s
        safe = before.save is not None and before.save.safe
        safe |= any(
            isinstance(e, d.Safe) and (e.generation, e.reason.holds) == (number, True)
            for e in events
        )
        ended = any(isinstance(e, d.Ended | d.Failed) for e in events) or before.exits
        states = {machines[m].state for m in before.members}
        gone = not states <= {Machine.MEMBER, Machine.NOTICED, Machine.RELEASING}
        gone |= any(machines[m].silent_s is not None for m in before.members)
        taken = any((machines[m].taken_s or math.inf) <= now_s for m in before.members)
        # What is left may grow afterwards, as when the cloud counts a machine from a later time on.
        asked_s = math.inf if before.save is None else before.save.limit_s
        late = bool(world.ending) and now_s >= min(wait_until_s(world), asked_s)
        # What has done nothing yet is waited for as long again as it has run.
        has_none = not world.pulse.stepped and max(world.reached, world.version) <= world.lasts
        late |= (
            bool(world.ending)
            and has_none
            and now_s - world.ending_s >= world.ending_s - (formed_s or 0.0)
        )
        late |= (
            bool(world.ending)
            and not before.has_reported
            and now_s - world.ending_s >= UNREPORTED_S
        )
        hung = world.pulse.hung_s == now_s
        assert safe or ended or gone or taken or late or hung, "steps are lost, and nothing was"
    # No machine without an owner: it is recorded before it is asked for, once, and asked for only
    # while it is wanted.
    requests = [act.id for act in acts if isinstance(act, d.Request)]
    assert len(set(requests)) == len(requests)
    assert all(machines[m].state is Machine.INTENT and m not in before.machines for m in requests)
    assert not any(is_refusing(world, machines[m].pool) for m in requests), (
        "a pool that has just refused"
    )
    # Of one type where it is expected to cost least, by all that has happened there; not more than
    # an hour may cost.
    asked = {machines[m].pool for m in requests} & set(SPOTS) if len(world.pools) > 1 else set()
    rows = [to_row(m) for m in machines.values()] if asked else []
    for pool in asked:
        alike = [
            p
            for p in world.pools
            if p.instance_type == pool.instance_type and p not in world.blocked
        ]
        costs = [
            record_of(p, rows, world.now_s).usd_per_useful_hour(p.usd_per_hour)
            for p in (pool, *alike)
        ]
        assert costs[0] <= min(costs) + 1e-9, "another zone of its type costs less"
    if requests and terms.usd_per_hour is not None:
        paid = [
            m.pool.usd_per_hour
            for m in machines.values()
            if m.state not in (*GONE, Machine.NOTICED)
        ]
        assert sum(paid) <= terms.usd_per_hour + 1e-9, "more than an hour may cost"
    assert before.machines.keys() <= machines.keys()
    assert set(machines) == {f"m{n + 1}" for n in range(world.requests)}
    live = [m for m in machines.values() if m.state not in (*GONE, Machine.NOTICED)]
    assert sum(m.role is Role.TRAINER for m in live) <= terms.most
    assert sum(m.role is Role.ANCHOR for m in live) <= terms.anchors
    # What is given up is released, when it is and not later.
    released = {act.id for act in acts if isinstance(act, d.Release)}
    for key, machine in machines.items():
        was = before.machines.get(key)
        if (
            machine.state in (Machine.RELEASING, Machine.LOST)
            and was is not None
            and was.state not in GONE
        ):
            assert key in released
        if was is not None and was.state.over:
            assert machine.state is was.state
    assert not (released & {m.id for m in live}), "a machine that is wanted"
    # Money is counted once: only the cloud says from when to when a machine is paid, and in which
    # zone.
    assert world.usd >= 0 and world.usd_per_second >= 0
    if not any(isinstance(e, d.InstancesListed | d.Launched) for e in events):
        assert math.isclose(world.usd, replace(before, now_s=world.now_s).usd, rel_tol=1e-12)
    assert not world.job.over or all(m.state in GONE for m in machines.values())
    assert before.job is world.job or not before.job.over
    assert world.save is None or world.formed
    # Trainers that hang are not paid for without end, nor begun anew again and again where that
    # saves nothing.
    pulse, formed = world.pulse, world.formed and not (world.ending or any(world.exits.values()))
    since_s, limit_s = (
        pulse.since_s,
        terms.step_timeout_s if pulse.stepped else terms.start_timeout_s,
    )
    limit_s = max(limit_s or math.inf, 10 * pulse.longest_s * pulse.stepped)
    assert not formed or (since_s is not None and world.now_s - since_s < limit_s)
    if pulse.hung_s != before.pulse.hung_s:
        alive = [e for e in events if isinstance(e, d.Safe | d.Started | d.Ended)]
        assert before.generation not in {e.generation for e in alive}
        assert pulse.hangs <= 2 or (
            pulse.hangs == 3 and world.job is Job.FAILED and world.failure == pulse.why
        )
    assert pulse.hangs >= before.pulse.hangs or world.version > before.pulse.version
    # Nobody waits for a machine that is silent, noticed or not.
    heard = [machines[m].heard_s for m in world.members if world.formed]
    assert all(at_s is None or world.now_s - at_s < terms.silent_s for at_s in heard)


def stored(world: JobState) -> JobState:
    rows = {key: from_row(to_row(machine)) for key, machine in world.machines.items()}
    return from_document(to_document(world), rows)


@settings(max_examples=examples(1000), deadline=None)
@given(
    terms=terms(),
    zones=st.sampled_from([SPOTS[:1], SPOTS[:2], SPOTS]),
    events=st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.5, 3.0, 20.0, 400.0])), max_size=60),
    trains=st.booleans(),
    ends=st.integers(0, 10**6),
)
def test_any_events_in_any_order(
    terms: JobLimits,
    zones: tuple[Pool, ...],
    events: list[tuple[Any, float]],
    trains: bool,
    ends: int,
) -> None:
    """``trains``: the fewest machines are there before.

    Else hardly any of these orders forms a generation.
    """
    world, now = JobState(terms, 0.0, pools=zones), 0.0
    assume(least_usd_per_hour(world) <= (terms.usd_per_hour or math.inf))
    world = within_budget(world, terms.usd_per_hour)
    terms = world.terms
    if trains:
        world, now = training(world), 20.0
    for event, after_s in events:
        now += after_s
        # Under the job's names the cloud has only what was asked for
        if isinstance(event, d.InstancesListed):
            able = {*world.machines, "stranger"}
            alive, ended = (
                {k: v for k, v in found.items() if k in able}
                for found in (event.alive, event.ended)
            )
            ended = {k: v for k, v in ended.items() if k not in alive}
            zones = {k: v for k, v in event.zones.items() if k in alive | ended}
            event = d.InstancesListed(alive, ended, zones, event.taken & ended.keys())
        if isinstance(event, d.Noticed):
            event = replace(event, taken_s=now + event.taken_s)
        if isinstance(event, d.Downtime):
            event = replace(event, since_s=max(now - event.since_s, 0.0))
        if isinstance(event, d.Heartbeat) and event.generation == NEWEST:
            event = replace(event, generation=world.generation)
        if getattr(event, "generation", 0) == NEWEST:
            event = replace(event, generation=world.generation)
            if isinstance(event, d.Safe | d.Unsaved) and world.save is not None:
                event = replace(event, reason=world.save.reason)
        before = world
        world, acts = react(world, event, now)
        holds(before, [event], world, acts)
        assert stored(world) == replace(world, cold=frozenset())
    starved(world, now)
    assert the_end(world, now, random.Random(ends)).job.over


def training(world: JobState) -> JobState:
    """With the fewest machines that can train: others still come."""
    world, _ = react(world, d.Tick(), 0.0)
    least = [m.id for m in world.of(Role.TRAINER, Machine.INTENT)][: world.terms.least]
    beats = [
        d.Heartbeat(m, warm=True)
        for m in [*least, *(m.id for m in world.of(Role.ANCHOR, Machine.INTENT))]
    ]
    world, _ = react(world, beats, 10.0)
    world, _ = react(world, beats, 20.0)
    world, _ = react(world, [d.Started(m, 1, 0) for m in world.members], 20.0)
    return world


def starved(world: JobState, now: float) -> None:
    """From here on no machine is to be had, and agents do as they are told: what waits in vain is
    not paid for long.
    """
    alive = {m.id for m in world.machines.values() if m.state.costs and m.taken_s is None}
    idle_s: dict[str, float] = dict.fromkeys(alive, 0.0)
    world, acts = react(world, d.Tick(), now)
    for _ in range(_STARVED):
        events: list[Any] = [
            d.Refused(act.id, "no capacity") for act in acts if isinstance(act, d.Request)
        ]
        now += _EACH_S
        orders = {machine: orders_of(world, machine) for machine in sorted(alive)}
        alive -= {machine for machine, order in orders.items() if order.shutdown}
        known = {m: world.machines[m].launched_s or 0.0 for m in alive}
        gone = {
            m.id: (0.0, now)
            for m in world.machines.values()
            if m.id not in alive and not m.state.over
        }
        events.append(d.InstancesListed(known, gone))
        for machine in sorted(alive):
            order = orders[machine]
            events.append(d.Heartbeat(machine, order.generation, 0, True))
            if order.generation and machine not in world.started:
                events.append(d.Started(machine, order.generation, world.version))
            idle_s[machine] += 0.0 if order.generation or order.serve else _EACH_S
        if world.formed and world.save is not None and not world.save.safe:
            events.append(d.Safe(world.generation, world.steps, world.save.reason))
        before = world
        world, acts = react(world, events, now)
        holds(before, events, world, acts)
    assert all(idle <= world.terms.hold_s + 3 * _EACH_S for idle in idle_s.values()), idle_s
    assert world.job.over or world.formed, "it waits for nothing"


_EACH_S, _STARVED = 100.0, 60


def the_end(world: JobState, now: float, rng: random.Random) -> JobState:
    """From here on the cloud and the agents do what they are asked: every wait ends, and so does
    the job.
    """
    alive = {m.id for m in world.machines.values() if m.state.costs}
    step = 0
    world, acts = react(world, d.Tick(), now)
    for _ in range(4000):
        for act in acts:
            (alive.add if isinstance(act, d.Request) else alive.discard)(act.id)
        if world.job.over and not alive:
            return world
        now += 1.0
        events: list[Any] = [d.Tick()]
        ended = {
            m.id: (m.launched_s or m.requested_s, now)
            for m in world.machines.values()
            if m.id not in alive
        }
        known = {
            m.id: m.launched_s or m.requested_s for m in world.machines.values() if m.id in alive
        }
        events.append(
            d.InstancesListed(
                known, {k: v for k, v in ended.items() if not world.machines[k].state.over}
            )
        )
        for machine in sorted(alive):
            order = orders_of(world, machine)
            if order.shutdown:
                alive.discard(machine)
                continue
            taken_s = world.machines[machine].taken_s if machine in world.machines else None
            if taken_s is not None and now >= taken_s + 60:
                alive.discard(machine)
                continue
            events.append(
                d.Heartbeat(machine, order.generation, step if order.generation else 0, True)
            )
        if world.formed and set(world.members) <= alive:
            first = world.members[0]
            if not world.started:
                events += [
                    d.Started(m, world.generation, world.version if m == first else None)
                    for m in world.members
                ]
            elif world.save is not None and not world.save.safe:
                events.append(d.Safe(world.generation, step, world.save.reason))
            step += 1
            if step > 30 and not world.save:
                events += [d.Ended(m, world.generation, 0, step) for m in world.members]
        rng.shuffle(events)
        before = world
        world, acts = react(world, events, now)
        holds(before, events, world, acts)
    raise AssertionError(f"it does not end: {replace(world, machines={})}, {alive}")


@pytest.mark.system
@settings(max_examples=examples(1500), deadline=None)
@given(
    seed=st.integers(0, 10**9),
    size=st.sampled_from([(1, 1), (2, 2), (1, 3), (2, 4)]),
    late=st.floats(0, 0.4),
)
def test_messages_that_are_lost_repeated_and_late(
    seed: int, size: tuple[int, int], late: float
) -> None:
    faults = Faults(notices=2, losses=2, cuts=1, crashes=1, refusals=0.2, lost_replies=0.2)
    world = finished(Unreliable(random.Random(seed), JobLimits(*size), faults, late=late))
    assert world.job is Job.DONE


class Unreliable(Simulation):
    """What an agent or the cloud says also comes twice, or again minutes later, behind what came
    after it.
    """

    def __init__(
        self, rng: random.Random, terms: JobLimits, faults: Faults, *, late: float
    ) -> None:
        self.late = late
        super().__init__(rng, terms, faults)

    def feed(self, event: Any) -> bool:
        heard = super().feed(event)
        # A list is what the cloud says at one moment; the others are told by agents, or by replies.
        if (
            heard
            and not isinstance(event, d.Tick | d.InstancesListed)
            and self.rng.random() < self.late
        ):
            if self.rng.random() < 0.5:
                super().feed(event)
            # The wire drops what is older than the last message of its kind; what several kinds say
            # may cross.
            elif not isinstance(event, d.Heartbeat | d.Refused | d.Launched):
                self.at(
                    self.rng.uniform(1, 300), lambda: super(Unreliable, self).feed(event) and None
                )
        return heard
