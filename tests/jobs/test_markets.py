"""Deadlines of jobs that run: whatever happens to spot machines, on-demand ones come in time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.jobs.markets import BOUGHT, meets_the_deadline, terms
from support.jobs.simulation import Faults, Simulation, finished

from deepvm.core.preemption.deadlines import ON_DEMAND
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.markets import is_on_demand, market_facts, most_of, standing
from deepvm.jobs.decisions.reconcile import orders_of, react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason, Role, StepRate


def on_demand_s(world: JobState) -> float:
    """How long on-demand machines were paid for."""
    return sum(
        m.usd(world.now_s) / BOUGHT.usd_per_hour * 3600
        for m in world.machines.values()
        if m.pool == BOUGHT
    )


@settings(max_examples=examples(300), deadline=None)
@given(
    seed=st.integers(0, 10**9),
    policy=st.sampled_from(["greedy", "uniform-progress"]),
    count=st.sampled_from([1, 2]),
    slack=st.floats(0.2, 0.8),
    losses=st.sampled_from([0, 1, 2, 60]),
    notices=st.sampled_from([0, 1, 60]),
    mean_s=st.sampled_from([5.0, 100.0, 150.0]),
    refusals=st.sampled_from([0.0, 0.5]),
    gone_s=st.sampled_from([0.0, 100.0, 1e9]),
)
def test_the_deadline_is_met_whatever_happens_to_spot_machines(
    seed: int,
    policy: str,
    count: int,
    slack: float,
    losses: int,
    notices: int,
    mean_s: float,
    refusals: float,
    gone_s: float,
) -> None:
    """Where on-demand alone would have met it: the first steps need a machine, and the last version
    a moment.
    """
    meets_the_deadline(seed, policy, count, slack, losses, notices, mean_s, refusals, gone_s)


@pytest.mark.parametrize("policy", ["greedy", "uniform-progress"])
def test_without_preemptions_nothing_is_bought_on_demand(policy: str) -> None:
    world = finished(Simulation(random.Random(1), terms(2, 400.0, policy), Faults(), 200))
    assert world.job is Job.DONE and on_demand_s(world) == 0 and world.generation == 1


def test_greedy_waits_to_the_last_and_uniform_progress_does_not() -> None:
    """When there are no spot machines any more, one waits for them, the other buys as it falls
    behind.
    """
    bought = {}
    for policy in ("greedy", "uniform-progress"):
        found = Simulation(
            random.Random(3), terms(1, 700.0, policy), Faults(losses=5, mean_s=30.0), 200
        )
        found.refused = lambda pool, found=found: not is_on_demand(pool) and found.now > 60  # type: ignore[misc]
        moves: list[float] = []

        def seen(
            event: object,
            feed: object = found.feed,
            found: Simulation = found,
            moves: list[float] = moves,
        ) -> bool:
            before = found.world.on_demand
            heard = feed(event)  # type: ignore[operator]
            if found.world.on_demand and not before:
                moves.append(found.now)
            return bool(heard)

        found.feed = seen  # type: ignore[method-assign]
        assert finished(found).job is Job.DONE
        bought[policy] = moves
    assert bought["uniform-progress"][0] < 200 < 400 < bought["greedy"][0]
    assert len(bought["greedy"]) == 1


def running(
    policy: str, version: int, reached: int, now_s: float, *, on_demand: bool = False
) -> JobState:
    """One machine that trains 500 steps of a second until 1000 s."""
    pool = BOUGHT if on_demand else Pool("a", "z", "spot", 3.6)
    first = JobState(
        terms(1, 1000.0, policy, 500),
        0.0,
        pools=(Pool("a", "z", "spot", 3.6),),
        on_demand=on_demand,
    )
    world, _ = react(first, d.Tick(), 0.0)
    world, _ = react(world, [d.Launched("m1", 1.0), d.Heartbeat("m1", warm=True)], 2.0)
    world, _ = react(world, d.Started("m1", 1, 0), 3.0)
    assert world.machines["m1"].pool == pool
    world = world.with_machine(replace(world.machines["m1"], heard_s=now_s, trained_s=21.0))
    pace = StepRate(world.generation, 0, now_s - reached, 1.0, reached)
    return replace(world, pace=pace, version=version, reached=reached, now_s=now_s)


def test_a_job_on_spot_asks_for_on_demand_first_and_releases_spot_last() -> None:
    late_s = 1000 - (500 - 100) * 1.03 - 25
    world = running("greedy", 100, 100, late_s)
    world, acts = react(world, d.Heartbeat("m1", 1, 100, warm=True), late_s)
    assert world.on_demand and acts == (d.Request("m2"),) and world.machines["m2"].pool == BOUGHT
    assert world.machines["m1"].state is Machine.MEMBER and world.job is Job.RUNNING
    world, acts = react(
        world, [d.Launched("m2", late_s + 1), d.Heartbeat("m2", warm=True)], late_s + 5
    )
    assert world.save is not None and world.save.reason is Reason.RESIZE and not acts
    world, acts = react(world, d.Safe(1, 105, Reason.RESIZE), late_s + 6)
    assert world.members == ("m2",) and world.generation == 2 and acts == (d.Release("m1"),)


def test_a_version_is_made_while_it_still_counts_as_time() -> None:
    """Work that no version has is no time to spare: before the move it is made safe, and the move
    is put off.
    """
    last_s = 1.0 + 1.5 * 2.0 + 2.0  # a step, its version, the release
    late_s = 1000 - 400 * 1.03 - 21 - 2 - last_s
    world = running("greedy", 100, 200, late_s)
    world, acts = react(world, d.Heartbeat("m1", 1, 200, warm=True), late_s)
    assert not world.on_demand and not acts
    assert world.save is not None and world.save.reason is Reason.INSURANCE
    assert orders_of(world, "m1").save == world.save
    world, _ = react(world, d.Safe(1, 201, Reason.INSURANCE), late_s + 2)
    assert world.save is None and not world.on_demand and world.job is Job.RUNNING


def test_a_notice_is_not_kept_waiting_by_a_version_that_nobody_holds_for() -> None:
    world = running("greedy", 100, 150, 400.0)
    world, _ = react(world, d.SaveNow(), 401.0)
    world, _ = react(world, d.Noticed("m1", 520.0), 402.0)
    assert world.save is not None and world.save.reason is Reason.EMERGENCY


def test_uniform_progress_goes_back_to_spot_when_it_is_ahead() -> None:
    world = running("uniform-progress", 50, 50, 120.0, on_demand=True)
    world, acts = react(world, d.Heartbeat("m1", 1, 50, warm=True), 121.0)
    assert world.on_demand and not acts  # behind the line
    world = running("uniform-progress", 150, 150, 150.0, on_demand=True)
    world, acts = react(world, d.Heartbeat("m1", 1, 150, warm=True), 150.0)
    assert not world.on_demand and acts == (d.Request("m2"),)
    assert world.machines["m2"].pool.market == "spot" and "ahead of" in market_facts(world)["why"]
    # Spot is not to be had: what is bought trains on, and it is bought again when the line has
    # caught up.
    world, _ = react(world, d.Refused("m2", "capacity"), 151.0)
    assert not world.on_demand and world.job is Job.RUNNING and standing(world).on == ON_DEMAND  # type: ignore[union-attr]
    world, _ = react(world, d.Heartbeat("m1", 1, 151, warm=True), 400.0)
    assert world.on_demand


def test_greedy_stays_on_demand() -> None:
    world = running("greedy", 400, 400, 500.0, on_demand=True)
    world, acts = react(world, d.Heartbeat("m1", 1, 400, warm=True), 501.0)
    assert world.on_demand and not acts


def test_a_pool_without_capacity_does_not_use_up_the_time() -> None:
    world = JobState(terms(1, 1000.0, "greedy", 500), 0.0, pools=(Pool("a", "z", "spot", 3.6),))
    world, acts = react(world, d.Tick(), 0.0)
    world, _ = react(world, d.Refused("m1", "capacity"), 1.0)
    world, acts = react(world, d.Tick(), 20.0)
    assert not acts and not world.on_demand
    world, acts = react(world, d.Tick(), 101.0)
    assert world.on_demand and acts == (d.Request("m2"),) and world.machines["m2"].pool == BOUGHT


def test_while_there_is_none_on_demand_spot_trains() -> None:
    world = replace(running("greedy", 100, 100, 500.0), on_demand=True)
    world, acts = react(world, d.Tick(), 501.0)
    assert acts == (d.Request("m2"),) and world.machines["m2"].pool == BOUGHT
    world, acts = react(world, d.Refused("m2", "quota"), 502.0)
    assert not acts and world.members == ("m1",) and world.job is Job.RUNNING
    world, acts = react(world, d.InstancesListed({}, {"m1": (1.0, 503.0)}), 503.0)
    assert [world.machines[a.id].pool.market for a in acts] == ["spot"]


def test_an_hourly_budget_buys_so_many_machines() -> None:
    for usd, bought in [(3.6, 1), (7.3, 2), (100.0, 4)]:
        limits = JobLimits(1, 4, usd_per_hour=usd)
        world = JobState(limits, 0.0, pools=(Pool("a", "z", "spot", 3.6),))
        assert most_of(world) == bought
        world, acts = react(world, d.Tick(), 0.0)
        assert len(acts) == bought
        world, acts = react(
            world, [d.Heartbeat(f"m{n}", warm=True) for n in range(1, bought + 1)], 20.0
        )
        assert len(world.members) == bought and not acts
        assert sum(m.pool.usd_per_hour for m in world.of(Role.TRAINER, Machine.MEMBER)) <= usd
