"""The engine against the step-by-step oracle, and what must hold in every run."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import THOROUGH, examples
from support.simulator import naive
from support.simulator.engine_runs import WITHOUT_SHRINKING, Lives, Pools, compare, jobs, simulated

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import POLICIES, Formula, SaveFacts, parse_policy
from deepvm.errors import SimulationError
from deepvm.simulator.engine.engine import run
from deepvm.simulator.engine.lifetimes import ListedLifetimes, ObservedLifetimes
from deepvm.simulator.engine.policy_adapter import PolicyAdapter
from deepvm.simulator.jobfile import preset

NAMES = [*(n for n in POLICIES if n != "auto"), "static:7", "static:40", "every:120"]


@settings(deadline=None, max_examples=examples(120))
@given(jobs(), st.sampled_from(NAMES), st.booleans(), st.integers(0, 2**32))
def test_in_every_run_the_parts_add_up_and_each_step_is_done(
    job: Job, name: str, elastic: bool, seed: int
) -> None:
    job = replace(job, elastic=elastic)
    try:
        found = simulated(job, name, 40, seed)
    except SimulationError:
        return  # said so; a policy such as none may never get to the end
    assert found.parts_s.sum(axis=0) == pytest.approx(found.total_s, rel=1e-9, abs=1e-6)
    assert (found.parts_s >= -1e-6).all()
    least = job.steps * job.step_s.low
    assert (found.parts_s[0] >= least * (1 - 1e-9)).all()
    assert (found.vm_s >= found.total_s * job.vms * (1 - 1e-9)).all()
    if not elastic:
        assert (found.parts_s[0] <= job.steps * job.step_s.high * (1 + 1e-9)).all()


def agrees(job: Job, name: str, pools: Pools | None = None) -> None:
    """0.2 %, and five standard errors (eight figures of up to 60 jobs)."""
    if name == "none" and job.save_every_steps is None:
        job = replace(job, save_every_steps=25)
    try:
        found = compare(job, name, 160 if THOROUGH else 60, 3000, pools=pools)
    except (SimulationError, RuntimeError):
        return
    for what, oracle, difference, error in found:
        assert abs(difference) <= 5 * error + 0.002, (what, oracle, difference, error)


@WITHOUT_SHRINKING
@given(jobs(), st.sampled_from(NAMES))
def test_random_jobs_agree_with_the_oracle(job: Job, name: str) -> None:
    agrees(job, name)


@WITHOUT_SHRINKING
@given(
    jobs(),
    st.sampled_from(NAMES),
    st.lists(st.lists(st.floats(200, 4000), min_size=1, max_size=9), min_size=1, max_size=4),
)
def test_random_jobs_on_lives_that_were_seen_agree_with_the_oracle(
    job: Job, name: str, pools: Pools
) -> None:
    agrees(job, name, pools)


@WITHOUT_SHRINKING
@given(jobs(), st.sampled_from(NAMES))
def test_random_jobs_on_demand_agree_with_the_oracle(job: Job, name: str) -> None:
    agrees(replace(job, market=Market.ON_DEMAND), name)


@pytest.mark.slow
@WITHOUT_SHRINKING
@given(jobs(), st.sampled_from(NAMES), st.integers(2, 6))
def test_random_elastic_clusters_agree_with_the_oracle(job: Job, name: str, vms: int) -> None:
    # Whether a machine comes right before or right behind the end of a step is left to chance.
    allocation = Span(job.allocation_s.low, 1.1 * job.allocation_s.high)
    # The engine acts only on the notice of the machine that goes first; where one goes each few
    # steps, that shows.
    mttp_s = tuple(mean * vms for mean in job.mttp_s)
    agrees(replace(job, elastic=True, vms=vms, allocation_s=allocation, mttp_s=mttp_s), name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_long_random_jobs_agree_within_two_thousandths(seed: int) -> None:
    """Jobs like real ones, thousands of steps long; 0.2 % and what chance can do."""
    draw = random.Random(seed)
    job = Job(
        steps=draw.randint(20_000, 60_000),
        step_s=Span(2.0, draw.choice([2.0, 3.0, 20.0]) + draw.random()),
        save_s=Span(1, 1 + 10 * draw.random()),
        backup_s=Span(5, 5 + 60 * draw.random()),
        allocation_s=Span(20, 200),
        preparation_s=Span(50, 150),
        grace_s=draw.choice([Span(30, 30), Span(120, 120), Span(10, 200)]),
        mttp_s=(draw.uniform(3000, 20000),),
        save_every_steps=draw.choice([None, 2000]),
        spot_usd_per_hour=1.0,
        missed_notice_rate=draw.choice([0.0, 0.2]),
        stall_s=draw.choice([None, Span(0.1, 0.3)]),
        proactive_replacement=draw.random() < 0.5,
        vms=draw.choice([1, 1, 3]),
        lifetime=draw.choice(["exponential", "weibull:0.7", "lomax:2.5"]),
    )
    for name in ("static:60", "thesis", "adaptive"):
        for what, oracle, difference, error in compare(job, name, 250, 10_000, seed):
            assert abs(difference) <= 0.002 + 3.5 * error, (name, what, oracle, difference, error)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-117m", "gpt-1.3b"])
@pytest.mark.parametrize("policy", ["static:51", "thesis", "adaptive", "hazard"])
def test_the_thesiss_jobs_agree_with_the_oracle(name: str, policy: str) -> None:
    for what, oracle, difference, error in compare(
        preset(name), policy, 60 if THOROUGH else 20, 2000
    ):
        assert abs(difference) <= 0.002 + 3 * error, (what, oracle, difference, error)


def test_without_preemptions_the_time_is_what_the_job_says() -> None:
    at = Span.of
    job = Job(
        100,
        at(2.0),
        save_s=at(3.0),
        allocation_s=at(10.0),
        preparation_s=at(20.0),
        save_every_steps=30,
    )
    job = replace(job, market=Market.ON_DEMAND, on_demand_usd_per_hour=3.6)
    found = simulated(job, "none", 3)
    assert found.total_s == pytest.approx([10 + 20 + 200 + 3 * 3.0] * 3)
    assert found.parts_s[:, 0] == pytest.approx([200, 0, 9, 10, 20]) and not found.preemptions.any()
    # With a save at the very end, which a restart would need.
    assert simulated(replace(job, steps=90), "none", 1).total_s == pytest.approx([30 + 180 + 9])
    # 25 30 50 60 75 90 100
    assert simulated(job, "static:25", 1).total_s == pytest.approx([10 + 20 + 200 + 7 * 3.0])
    # What would insure against preemptions saves nothing where there are none
    for name in NAMES[:7]:
        assert simulated(job, name, 1).total_s == pytest.approx([239.0])
    alone = replace(job, save_every_steps=None)
    # Steps: 8 8 7 1
    for name, saves in (("every:16", 12), ("every:15", 12), ("every:14", 14), ("every:1", 100)):
        assert simulated(alone, name, 1).total_s == pytest.approx([230.0 + 3 * saves])
    spot = replace(job, market=Market.SPOT, mttp_s=(float("inf"),))
    assert simulated(spot, "adaptive", 1).total_s == pytest.approx([239.0])


def test_an_emergency_save_loses_nothing_and_a_missed_notice_does() -> None:
    at = Span.of
    job = Job(
        1000,
        at(1.0),
        save_s=at(2.0),
        backup_s=at(3.0),
        allocation_s=at(5.0),
        preparation_s=at(5.0),
        mttp_s=(500.0,),
    )
    told = simulated(replace(job, grace_s=at(30.0)), "thesis", 300)
    assert told.preemptions.sum() > 300 and told.parts_s[1].max() < 1e-6
    # 5 s of save and backup for each preemption that met a training.
    assert told.parts_s[2].max() <= 5 * told.preemptions.max() + 1e-6
    missed = simulated(replace(job, grace_s=at(30.0), missed_notice_rate=0.2), "thesis", 300)
    assert missed.parts_s[1].mean() > 20


def test_asking_at_the_notice_hides_the_allocation_and_pays_for_two() -> None:
    job = replace(preset("gpt-117m"), steps=5000, grace_s=Span.of(120.0), save_every_steps=None)
    before, after = (
        simulated(replace(job, proactive_replacement=p), "thesis", 2000) for p in (False, True)
    )
    assert after.total_s.mean() < before.total_s.mean()
    assert after.vm_s.mean() > after.total_s.mean() and np.array_equal(before.vm_s, before.total_s)


def test_a_job_that_loses_more_than_it_gains_says_so() -> None:
    job = Job(1000, Span.of(10.0), allocation_s=Span.of(100.0), mttp_s=(300.0,))
    with pytest.raises(
        SimulationError, match="makes no progress.* 0 of 1000 steps are safe; save more often"
    ):
        simulated(job, "none", 5)


def test_machines_that_never_come_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deepvm.simulator.engine.engine.HOPELESS_LIVES", 500)
    for vms, elastic in [(1, False), (2, False), (2, True)]:
        job = Job(
            1000,
            Span.of(10.0),
            allocation_s=Span.of(100.0),
            mttp_s=(2.0,),
            vms=vms,
            elastic=elastic,
        )
        then = "take machines that live longer than 2 s on average: one takes 100 s until it trains"
        with pytest.raises(
            SimulationError, match=f"makes no progress.* 0 of 1000 steps are safe; {then}"
        ):
            simulated(job, "static:1", 5)


def test_saves_that_take_longer_than_a_life_are_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deepvm.simulator.engine.engine.HOPELESS_LIVES", 500)
    job = Job(
        1000, Span.of(10.0), allocation_s=Span.of(1.0), backup_s=Span.of(500.0), mttp_s=(40.0,)
    )
    with pytest.raises(
        SimulationError,
        match="longer than 40 s on average: one takes 8.333 min until a save is safe",
    ):
        simulated(job, "static:1", 5)


def test_a_cluster_of_n_is_hit_n_times_as_often() -> None:
    job = replace(preset("gpt-117m"), steps=2000, save_every_steps=None)
    one, four = (simulated(replace(job, vms=n), "young", 4000) for n in (1, 4))
    rate = [f.preemptions.mean() / f.total_s.mean() for f in (one, four)]
    assert rate[1] / rate[0] == pytest.approx(4, rel=0.05)
    assert four.vm_s == pytest.approx(4 * four.total_s)


def test_an_elastic_cluster_goes_on_with_the_rest() -> None:
    """Waiting for an hour costs more than training with fewer.

    If nobody has to wait it makes no difference.
    """
    job = replace(preset("gpt-117m"), steps=3000, save_every_steps=None, vms=8, mttp_s=(40_000.0,))
    slow = replace(job, allocation_s=Span(3000, 4000))
    rigid, elastic = (simulated(replace(slow, elastic=e), "young", 1000) for e in (False, True))
    assert elastic.total_s.mean() < 0.9 * rigid.total_s.mean()
    at_once = replace(job, allocation_s=Span.of(0.0))
    rigid, elastic = (simulated(replace(at_once, elastic=e), "young", 3000) for e in (False, True))
    assert elastic.total_s.mean() == pytest.approx(rigid.total_s.mean(), rel=0.01)


def test_the_hazard_policy_gains_where_the_hazard_falls() -> None:
    job = replace(preset("gpt-1.3b"), steps=10_000, lifetime="lomax:1.3", mttp_s=(30_000.0,))
    lost = {
        p: simulated(job, p, 6000).parts_s[1:3].sum(axis=0).mean() for p in ("thesis", "hazard")
    }
    assert lost["hazard"] < 0.95 * lost["thesis"]


def test_a_machine_that_comes_while_the_others_are_prepared_loses_none() -> None:
    """One loss only; the replacement comes within the preparation, which begins anew with it."""
    at = Span.of
    job = Job(
        100,
        at(1.0),
        allocation_s=at(10.0),
        preparation_s=at(30.0),
        mttp_s=(1.0,),
        vms=2,
        elastic=True,
    )

    found = run(job, parse_policy("static:5"), Lives(60.0), 2, np.random.default_rng(0))
    assert found.preemptions.tolist() == [1, 1]
    # 20 steps until the loss; 10 s are prepared without the new machine, 30 s with it; the other 80
    # steps.
    assert found.total_s == pytest.approx([60 + 10 + 30 + 80] * 2)
    assert found.parts_s[:, 0] == pytest.approx([100, 0, 0, 10, 70])
    # If that takes less, 3 of the 55 steps behind the loss (at 60 s) take twice as long, from 65 s
    # on.
    found = run(
        replace(job, preparation_s=at(5.0)),
        parse_policy("static:5"),
        Lives(60.0),
        1,
        np.random.default_rng(0),
    )
    assert found.parts_s[:, 0] == pytest.approx(
        [103, 0, 0, 10, 15]
    ) and found.total_s == pytest.approx([128])


def test_a_replacement_that_is_lost_before_it_comes_harms_nobody() -> None:
    at = Span.of
    job = Job(
        100,
        at(1.0),
        allocation_s=at(41.5),
        preparation_s=at(8.5),
        mttp_s=(1.0,),
        vms=2,
        elastic=True,
    )

    found = run(
        job, parse_policy("static:5"), Lives(60.0, np.inf, 20.0), 1, np.random.default_rng(0)
    )
    # 10 steps until 60 s, 27 at half the speed from 68.5 to 122.5 s, then all are prepared again;
    # 63 steps.
    assert found.preemptions.tolist() == [2]
    assert found.total_s == pytest.approx([194]) and found.parts_s[:, 0] == pytest.approx(
        [127, 0, 0, 41.5, 25.5]
    )


def test_a_machine_that_comes_at_the_very_end_of_a_save_joins_there() -> None:
    """Latencies without a spread: what falls together must not count as a loss."""
    at = Span.of
    job = Job(
        100,
        at(1.0),
        allocation_s=at(10.0),
        preparation_s=at(6.0),
        mttp_s=(1.0,),
        vms=2,
        elastic=True,
    )

    # 44 steps, all safe; 2 at half the speed from 66 to 70 s, when the machine comes; the others
    # from 76 s on.
    for changes, name in (({"save_every_steps": 2}, "none"), ({}, "static:2")):
        found = run(
            replace(job, **changes), parse_policy(name), Lives(60.0), 1, np.random.default_rng(0)
        )  # type: ignore[arg-type]
        assert found.preemptions.tolist() == [1] and found.total_s == pytest.approx([130])


def test_the_machine_that_gave_notice_is_the_one_that_is_let_go() -> None:
    """Another one, which is still to come, is lost earlier than that one would be."""
    at = Span.of
    job = Job(
        200,
        at(1.0),
        save_s=at(2.0),
        allocation_s=at(40.0),
        preparation_s=at(5.0),
        mttp_s=(1.0,),
        vms=2,
    )
    job = replace(job, elastic=True, grace_s=at(60.0), missed_notice_rate=0.0)

    # Both train from 45 s on. The first is told of at 50.5 s and let go at 53 s with 6 steps. The
    # second is prepared again and does steps of 2 s from 58 s on; it is told of at 80.5 s and let
    # go at 84 s with 12 steps more. The third comes at 93 s, and would be lost at 130 s: it is let
    # go as soon as it is prepared, at 98 s. The fourth, asked for at 84 s, trains from 129 s on, 5
    # steps and a save until 141 s; the fifth has come by then, 146 s when both train.
    found = run(job, parse_policy("thesis"), Lives(110.5, 140.5, 77.0), 1, np.random.default_rng(0))
    assert found.preemptions.tolist() == [3]
    assert found.total_s == pytest.approx([146 + 200 - 6 - 12 - 5])


TWO = Job(
    200, Span.of(1.0), preparation_s=Span.of(5.0), mttp_s=(1.0,), vms=2, grace_s=Span.of(60.0)
)


@pytest.mark.parametrize(("proactive", "overlap_s"), [(False, 0.0), (True, 60.0 + 30.0)])
def test_a_machine_that_is_noticed_when_another_is_lost_goes_with_it(
    proactive: bool, overlap_s: float
) -> None:
    """With notices at 40 s and 70 s and losses at 100 s and 130 s: one interruption."""
    job = replace(TWO, proactive_replacement=proactive)
    lives = Lives(100.0, 130.0)
    found = run(job, parse_policy("static:5"), lives, 1, np.random.default_rng(0))
    # 95 steps from 5 s on; the other 105 from 105 s on.
    assert found.preemptions.tolist() == [2] and found.total_s == pytest.approx([210])
    assert found.parts_s[:, 0] == pytest.approx([200, 0, 0, 0, 10]) and sorted(lives.numbers) == [
        0,
        1,
        2,
        3,
    ]
    assert found.vm_s - 2 * found.total_s == pytest.approx([overlap_s])


def test_replacements_of_those_that_go_together_are_asked_for_in_the_order_of_their_notices() -> (
    None
):
    """The first is lost without a notice at 100 s, the second was told of at 70 s: the third life
    replaces it.
    """

    class Listed(ListedLifetimes):
        asked: list[float] = []

        def draw(
            self, random: np.random.Generator, starts: np.ndarray, numbers: np.ndarray
        ) -> np.ndarray:
            self.asked += numbers.tolist()
            return super().draw(random, starts, numbers)

    job, lives = (
        replace(TWO, proactive_replacement=True),
        Listed([100.0, 130.0, 60.0], [0.0, 60.0, 0.0]),
    )
    found = run(job, parse_policy("static:5"), lives, 1, np.random.default_rng(0))
    # The third, asked for at 70 s, is lost at 130 s, in its 25 s of training from 105 s on.
    assert lives.asked[:4] == [0, 1, 2, 3] and found.preemptions.tolist() == [3]
    assert found.total_s == pytest.approx([130 + 5 + 200 - 95 - 25])


def test_a_machine_that_is_noticed_while_all_wait_goes_at_its_notice() -> None:
    """The second would be lost at 180 s.

    No training begins with it, and its replacement comes 50 s after that.
    """
    job, lives = (
        replace(TWO, allocation_s=Span.of(50.0)),
        ListedLifetimes([100.0, 180.0], [0.0, 60.0]),
    )
    found = run(job, parse_policy("static:5"), lives, 1, np.random.default_rng(0))
    # 45 steps from 55 s on; from 100 s on the first is replaced, from 120 s on the second, until
    # 170 s; then 155 steps.
    assert found.preemptions.tolist() == [2] and found.total_s == pytest.approx([170 + 5 + 155])
    assert found.parts_s[:, 0] == pytest.approx([200, 0, 0, 50 + 70, 10])


def test_behind_an_emergency_save_all_go_that_are_noticed() -> None:
    job = replace(TWO, save_s=Span.of(2.0), missed_notice_rate=0.0)
    found = run(job, parse_policy("thesis"), Lives(100.5, 101.0), 1, np.random.default_rng(0))
    # Told of at 40.5 s and 41 s: the step ends at 41 s, 36 are safe at 43 s; the others from 48 s
    # on.
    assert found.preemptions.tolist() == [2] and found.total_s == pytest.approx([48 + 164])


@pytest.mark.parametrize("policy", ["none", "static:50"])
def test_machines_that_are_lost_at_one_moment_are_paid_like_one_each(policy: str) -> None:
    job = Job(
        steps=1000,
        step_s=Span.of(1.0),
        save_s=Span.of(2.0),
        allocation_s=Span.of(20.0),
        preparation_s=Span.of(15.0),
        grace_s=Span.of(60.0),
        save_every_steps=45,
        proactive_replacement=True,
    )
    one, three = (
        run(
            replace(job, vms=vms),
            parse_policy(policy),
            ObservedLifetimes([[342.0]]),
            1,
            np.random.default_rng(1),
        )
        for vms in (1, 3)
    )
    assert three.total_s == pytest.approx(one.total_s)
    assert three.vm_s == pytest.approx(3 * one.vm_s)


def test_machines_that_are_lost_at_one_moment_have_lived_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else policies learn lives of 0 s from all but one of them, and save too often."""
    lives: list[float] = []
    learn = PolicyAdapter.learn

    def record(*words: Any) -> None:
        lives.extend(words[3].tolist())
        learn(*words)

    monkeypatch.setattr(PolicyAdapter, "learn", record)
    job = Job(steps=1000, step_s=Span.of(1.0), save_s=Span.of(2.0), vms=3)
    run(job, parse_policy("static:50"), ObservedLifetimes([[342.0]]), 1, np.random.default_rng(1))
    assert lives and set(lives) == {342.0}


def test_two_machines_are_paid_only_while_there_are_two() -> None:
    """Asked for at the notice, 100 s before the first is lost at 150 s, the second one is itself
    lost 30 s later.
    """
    at = Span.of
    job = Job(
        200,
        at(1.0),
        allocation_s=at(10.0),
        mttp_s=(1.0,),
        grace_s=at(100.0),
        proactive_replacement=True,
    )
    found = run(job, parse_policy("none"), Lives(150.0, 30.0), 1, np.random.default_rng(0))
    # The third is asked for at once at the second's notice, which comes with its request, and is
    # there before 150 s.
    assert found.preemptions.tolist() == [2] and found.total_s == pytest.approx([150 + 200])
    assert found.vm_s - found.total_s == pytest.approx([30 + 100])


@pytest.mark.parametrize("elastic", [False, True])
def test_replacements_of_machines_that_outlive_the_job_are_paid_until_it_ends(
    elastic: bool,
) -> None:
    """The 200 steps end at 205 s.

    Two machines, lost at 250 s and 230 s, were told of at 190 s and 170 s.
    """
    lives = ListedLifetimes([250.0, 230.0], [60.0, 60.0])
    job = replace(TWO, proactive_replacement=True, elastic=elastic)
    found = run(job, parse_policy("none"), lives, 1, np.random.default_rng(0))
    assert found.preemptions.tolist() == [0] and found.total_s == pytest.approx([205])
    assert found.vm_s == pytest.approx([2 * 205 + 15 + 35])
    late = run(
        replace(job, proactive_replacement=False),
        parse_policy("none"),
        lives,
        1,
        np.random.default_rng(0),
    )
    assert late.vm_s == pytest.approx([2 * 205])


def test_a_cluster_learns_the_time_from_the_newest_request_to_a_loss() -> None:
    """By hand: lost at 100 s and at 1000 s, when the replacement of the first is 900 s old."""
    told: list[float] = []

    class Listens(Formula):
        def interval_s(self, facts: SaveFacts) -> float:
            told.append(float(np.max(facts.mttp_s)))
            return np.inf

    job = Job(2000, Span.of(1.0), mttp_s=(600.0,), vms=2, save_every_steps=50)
    run(job, Listens("young"), Lives(100.0, 1000.0), 1, np.random.default_rng(0))
    assert list(dict.fromkeys(told)) == pytest.approx([300, (300 + 100) / 2, (300 + 100 + 900) / 3])


def test_a_job_that_is_done_before_its_machine_is_lost_needs_no_emergency_save() -> None:
    at = Span.of
    job = Job(100, at(1.0), save_s=at(2.0), backup_s=at(3.0), mttp_s=(1.0,), grace_s=at(50.5))
    # Told at 99.5 s
    found = run(job, parse_policy("thesis"), Lives(150.0), 1, np.random.default_rng(0))
    assert found.total_s == pytest.approx([100]) and not found.preemptions.any()


def test_several_means_are_those_of_the_first_machines_and_of_each_replacement() -> None:
    job = Job(50, Span.of(1.0), allocation_s=Span.of(1.0), mttp_s=(1e9, 1e-9), vms=4)
    assert not simulated(job, "none", 50).preemptions.any()
    job = replace(job, mttp_s=(30.0, 1e9))
    assert simulated(job, "none", 200).preemptions.max() == 4


@pytest.mark.parametrize("market", Market)
def test_the_longest_jobs_are_done(market: Market) -> None:
    """As long as a job file may say.

    Saves that come again and again cost no time, and nothing is lost after all.
    """
    job = Job(
        10**12,
        Span.of(1e10),
        save_s=Span.of(1e10),
        save_every_steps=1,
        mttp_s=(1e300,),
        market=market,
    )
    found = simulated(job, "young", 2)
    assert found.total_s == pytest.approx([2e22] * 2) and not found.preemptions.any()


def test_the_last_step_is_no_exception() -> None:
    """A save that is due then is made, as the training job does it."""
    for steps in [299, 300, 301]:
        for name in ["every:60", "static:30"]:
            job = Job(steps, Span.of(2.0), save_s=Span.of(4.0), spot_usd_per_hour=1.0)
            assert simulated(job, name, 1).total_s == pytest.approx([2 * steps + 4 * (steps // 30)])
            assert naive.simulate(
                job, parse_policy(name), random.Random(1)
            ).total_s == pytest.approx(2 * steps + 4 * (steps // 30))


def test_an_emergency_save_that_takes_too_long_saves_nothing() -> None:
    """By its mean of 10 s it fits into the 12 s; two of five do not."""
    job = Job(
        300, Span(0.9, 1.1), save_s=Span(0, 20), allocation_s=Span(5, 9), preparation_s=Span(5, 9)
    )
    job = replace(
        job, mttp_s=(400.0,), grace_s=Span.of(12.0), save_every_steps=50, spot_usd_per_hour=1.0
    )
    assert simulated(job, "thesis", 2000).parts_s[1].mean() > 2
    agrees(job, "thesis")


def test_policies_know_what_to_do_when_saves_are_free_and_no_machine_is_lost() -> None:
    for name in NAMES:
        job = Job(50, Span.of(2.0), grace_s=Span.of(30.0))
        assert simulated(job, name, 2).total_s == pytest.approx([100.0] * 2)


def test_a_version_counts_from_when_it_is_durable_and_an_emergency_save_ends_then() -> None:
    """One loss at 50 s, by hand: saves after each 10 s, backed up 3 s after the 4 s of writing."""
    at = Span.of

    def total(policy: str, **changes: object) -> float:
        job = Job(100, at(1.0), save_s=at(4.0), backup_s=at(3.0), mttp_s=(1000.0,))
        found = run(
            replace(job, **changes), parse_policy(policy), Lives(50.0), 1, np.random.default_rng(0)
        )  # type: ignore[arg-type]
        assert found.preemptions.tolist() == [1]
        return float(found.total_s[0])

    # The third version is written at 42 s and durable at 45 s; at 46 s the fourth segment has 4
    # steps.
    assert total("static:10") == pytest.approx(50 + 70 + 7 * 4)
    # 51 s is too late
    assert total("static:10", backup_s=at(9.0)) == pytest.approx(50 + 80 + 8 * 4)
    # The training stands still for 1 s of each save: at 43 s a fourth one begins, written at 47 s.
    assert total("static:10", stall_s=at(1.0), backup_s=at(2.5)) == pytest.approx(50 + 60 + 6 * 1)
    assert total("static:10", stall_s=at(1.0), backup_s=at(5.0)) == pytest.approx(50 + 70 + 7 * 1)
    # The notice comes at 30.5 s: the step ends at 31 s, save and backup at 38 s, when another
    # machine is asked for.
    assert total("thesis", grace_s=at(19.5)) == pytest.approx(38 + 69)
    assert total("thesis", grace_s=at(19.5), backup_s=at(3.5)) == pytest.approx(38.5 + 69)


def test_adaptive_learns_that_notices_do_not_come() -> None:
    job = Job(
        3000, Span(0.9, 1.1), save_s=Span(1, 2), allocation_s=Span(5, 9), preparation_s=Span(5, 9)
    )
    job = replace(
        job, mttp_s=(300.0,), grace_s=Span.of(60.0), missed_notice_rate=1.0, spot_usd_per_hour=1.0
    )
    agrees(job, "adaptive")


def test_machines_that_are_asked_for_before_others_are_lost() -> None:
    """Several losses during one preparation: what a policy learns from is never less than no time
    at all.
    """
    job = Job(
        102, Span.of(3.5), save_s=Span.of(3.5), backup_s=Span(19, 21), allocation_s=Span(27, 38)
    )
    job = replace(
        job,
        preparation_s=Span.of(14.4),
        grace_s=Span(5, 90),
        mttp_s=(200.0,),
        proactive_replacement=True,
    )
    found = simulated(replace(job, vms=5), "hazard", 2000)
    assert np.isfinite(found.total_s).all()


def test_what_a_notice_says_counts_not_what_notices_usually_say() -> None:
    """A save needs 8 s; a notice of less is not heeded, so no save is cut off."""
    at = Span.of
    job = Job(
        300, at(1.0), save_s=at(4.0), backup_s=at(3.0), preparation_s=at(5.0), mttp_s=(400.0,)
    )
    found = simulated(replace(job, grace_s=Span(2, 20)), "thesis", 1000)
    saves = found.parts_s[2] / 7
    assert (
        saves == pytest.approx(np.round(saves), abs=1e-6)
        and 0 < saves.sum() < found.preemptions.sum()
    )
