"""Deadlines in the simulator: always met, with on-demand VMs only where needed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.simulator.engine_runs import Lives, jobs, simulated
from support.simulator.longest_latencies import longest

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.deadlines import (
    DEADLINE_POLICIES,
    Greedy,
    OnDemandOnly,
    UniformProgress,
    parse_deadline_policy,
)
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.errors import RequestError, SimulationError
from deepvm.simulator.engine.engine import run
from deepvm.simulator.engine.lifetimes import ObservedLifetimes
from deepvm.simulator.engine.markets import Deadline, Markets
from deepvm.simulator.jobfile import preset
from deepvm.simulator.monte_carlo import simulate


@settings(deadline=None, max_examples=examples(40))
@given(
    jobs(),
    st.sampled_from(["static:7", "young", "thesis", "adaptive", "hazard", "none", "every:60"]),
    st.sampled_from(sorted(DEADLINE_POLICIES)),
    st.floats(0.0, 1.5),
    st.floats(0.05, 10.0),
    st.integers(0, 2**32),
)
def test_no_deadline_is_missed(
    job: Job, name: str, who: str, slack: float, mttp: float, seed: int
) -> None:
    """Also where machines hardly live long enough to be prepared; and what is paid adds up."""
    job = replace(job, mttp_s=(job.mttp_s[0] * mttp,), on_demand_usd_per_hour=3.0)
    seconds = longest(job, name) * (1 + slack) + 1e-6
    found = simulated(job, name, 30, seed, Deadline(seconds, parse_deadline_policy(who)))
    assert (found.total_s <= seconds).all()
    assert (
        found.parts_s.sum(axis=0) == pytest.approx(found.total_s) and (found.parts_s >= -1e-6).all()
    )
    assert (found.on_demand_s >= 0).all() and (found.on_demand_s <= found.vm_s * (1 + 1e-9)).all()
    if who == "on-demand":
        assert (
            found.on_demand_s == pytest.approx(found.total_s * job.vms)
            and not found.preemptions.any()
        )


def test_with_all_the_time_there_is_it_is_spot_and_with_none_on_demand() -> None:
    job = replace(preset("gpt-117m"), steps=5000)
    lazy, hurried = Deadline(30 * 86400, Greedy()), Deadline(longest(job, "adaptive") + 1, Greedy())
    assert not simulated(job, "adaptive", 30, deadline=lazy).on_demand_s.any()
    assert simulated(job, "adaptive", 30, deadline=hurried).on_demand_s.min() > 0.99 * 5000 * 4.5


def test_less_slack_costs_more_and_never_more_than_on_demand_alone() -> None:
    job, saves = replace(preset("gpt-1.3b"), steps=10_000), parse_policy("adaptive")
    alone = simulate(replace(job, market=Market.ON_DEMAND), saves, runs=20, seed=1).cost_usd.mean()
    for policy in (Greedy(), UniformProgress()):
        deadlines = [Deadline(h * 360, policy) for h in (560, 580, 610, 700)]
        cost = [
            simulate(job, saves, runs=200, seed=1, deadline=d).cost_usd.mean() for d in deadlines
        ]
        assert cost[0] > cost[1] > cost[2] > 0.98 * cost[3] and alone > cost[0]
    only = simulate(job, saves, runs=20, seed=1, deadline=Deadline(2.5e6, OnDemandOnly()))
    assert only.cost_usd.mean() == pytest.approx(alone, rel=1e-3) and only.late_share == 0


def test_a_job_goes_to_on_demand_when_the_net_pulls() -> None:
    """By hand: 100 steps of 10 s with a save of 1 s each; restarts of 20 s.

    Spot machines live 130 s, 10 steps long.

    A life takes 130 s and leaves 110 s less to do, so each costs 20 s of the 110 s that the job has
    to spare. It may start on spot while more than a restart and a version are to spare: 20 s and 11
    + 1 + 1 s. That is so 4 times.
    """
    at = Span.of
    job = Job(
        100, at(10.0), save_s=at(1.0), allocation_s=at(15.0), preparation_s=at(5.0), mttp_s=(130.0,)
    )
    deadline = Deadline(20 + 100 * 11 + 2 + 110, Greedy())
    found = run(
        job,
        parse_policy("static:1"),
        ObservedLifetimes([[130.0]]),
        3,
        np.random.default_rng(0),
        deadline,
    )
    assert found.preemptions.tolist() == [4] * 3
    assert found.on_demand_s == pytest.approx([20 + 60 * 11] * 3)
    assert found.total_s == pytest.approx([4 * 130 + 20 + 60 * 11] * 3)


def test_machines_that_are_given_back_are_paid_until_their_version_is_durable() -> None:
    """By hand: lost at 60 s, then on demand until the job is a restart before its line, then spot
    to the end.
    """
    at = Span.of
    job = Job(
        100,
        at(10.0),
        backup_s=at(7.0),
        allocation_s=at(5.0),
        preparation_s=at(5.0),
        mttp_s=(1e6,),
        vms=2,
    )
    lives = Lives(60.0)
    found = run(
        job,
        parse_policy("none"),
        lives,
        1,
        np.random.default_rng(0),
        Deadline(1500.0, UniformProgress()),
    )
    assert found.vm_s - 2 * found.total_s == pytest.approx([2 * 7.0])
    # Both machines are on demand for a restart of 10 s, some steps of 10 s, and the 7 s.
    assert found.preemptions.tolist() == [1] and 17 < found.on_demand_s[0] / 2 < 500
    assert (found.on_demand_s / 2 - 17) % 10 == pytest.approx([0.0])
    # Nothing is prepared before those 7 s are over
    assert found.total_s == pytest.approx([60 + 10 + 1000 + 7 + 5])


def test_a_job_does_not_foresee_that_its_machine_is_lost_before_a_version_is_durable() -> None:
    """By hand: 300 s to spare, so 25 steps are done until a version is made, at 260 s, durable at
    300 s; lost at 280 s.

    At 260 s there is as much to spare as before if that version becomes durable, and too little for
    another if not.
    """
    at = Span.of
    job = Job(
        100, at(10.0), backup_s=at(40.0), allocation_s=at(5.0), preparation_s=at(5.0), mttp_s=(1.0,)
    )
    found = run(
        job,
        parse_policy("none"),
        Lives(280.0),
        1,
        np.random.default_rng(0),
        Deadline(1310.0, Greedy()),
    )
    assert found.preemptions.tolist() == [1] and found.total_s == pytest.approx([280 + 10 + 1000])
    assert found.vm_s == pytest.approx(found.total_s) and found.on_demand_s == pytest.approx([1010])


def test_machines_that_are_lost_while_their_version_is_under_way_are_paid_no_longer() -> None:
    """By hand: 5 steps, a save until 160 s, and no time for another on spot; durable at 200 s.

    Where the next machines go on is known at 200 s, or when the old one is lost.
    """
    at = Span.of
    job = Job(
        100,
        at(10.0),
        save_s=at(100.0),
        backup_s=at(40.0),
        allocation_s=at(5.0),
        preparation_s=at(5.0),
    )
    job, deadline = replace(job, mttp_s=(1.0,)), Deadline(10 + 1200 + 300, Greedy())
    kept, lost = (
        run(job, parse_policy("none"), Lives(life), 1, np.random.default_rng(0), deadline)
        for life in (1e9, 180.0)
    )
    assert kept.total_s == pytest.approx(
        [200 + 5 + 950]
    ) and kept.vm_s - kept.total_s == pytest.approx([40])
    assert lost.total_s == pytest.approx(
        [180 + 5 + 1000]
    ) and lost.vm_s - lost.total_s == pytest.approx([20])
    assert kept.on_demand_s == pytest.approx([995]) and lost.on_demand_s == pytest.approx([1025])


def test_machines_of_the_other_market_are_replacements() -> None:
    """As above: the job goes to on demand without a preemption, where image and data are there
    already.
    """
    at = Span.of
    job = Job(
        100,
        at(10.0),
        save_s=at(100.0),
        allocation_s=at(5.0),
        preparation_s=at(50.0),
        mttp_s=(math.inf,),
    )
    job, deadline = replace(job, warm_preparation_s=at(20.0)), Deadline(55 + 1200 + 300, Greedy())
    found = run(job, parse_policy("none"), Lives(), 1, np.random.default_rng(0), deadline)
    assert found.on_demand_s[0] > 0 and not found.preemptions.any()
    assert found.parts_s[3:, 0] == pytest.approx([5 + 5, 50 + 20])


def test_machines_on_demand_use_up_no_lives() -> None:
    """Else lives that were seen would be left out, and means that are given for each life come too
    early.
    """
    at = Span.of
    job = Job(100, at(10.0), allocation_s=at(5.0), preparation_s=at(5.0), mttp_s=(1e6,))
    lives = Lives(60.0)
    found = run(
        job,
        parse_policy("none"),
        lives,
        1,
        np.random.default_rng(0),
        Deadline(1500.0, UniformProgress()),
    )
    assert found.on_demand_s[0] > 0 and found.preemptions.tolist() == [1]
    assert lives.numbers == [0, 1, 1]  # on demand a life is drawn as well, but does not count


def test_what_cannot_be() -> None:
    job = preset("gpt-117m")
    with pytest.raises(
        SimulationError, match=r"takes up to 130\.\d+ h on demand, more than the deadline of 10"
    ):
        Markets(job, parse_policy("thesis"), Deadline(36_000, Greedy()))
    for wrong in (replace(job, market=Market.ON_DEMAND), replace(job, elastic=True)):
        with pytest.raises(RequestError, match="deadline"):
            Markets(wrong, parse_policy("thesis"), Deadline(1e7, Greedy()))


def test_the_document_says_how_the_deadline_was_kept() -> None:
    found = simulate(
        preset("gpt-117m"),
        parse_policy("thesis"),
        runs=20,
        seed=1,
        deadline=Deadline(136 * 3600, Greedy()),
    )
    said = found.to_dict()["deadline"]
    assert (
        said["deadline_s"] == 136 * 3600 and said["policy"] == "greedy" and said["late_share"] == 0
    )
    assert 0 <= said["on_demand_share"] == found.on_demand_share < 1
    assert (
        "deadline"
        not in simulate(preset("gpt-117m"), parse_policy("thesis"), runs=2, seed=1).to_dict()
    )
