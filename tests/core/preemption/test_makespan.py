"""Expected time, cost and preemptions in closed form, against the simulator, the thesis's tables,
and themselves.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.closed_form import CHOOSING, expected, holds
from support.effort import THOROUGH

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.exponential_life import effective
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.makespan import forecast
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.simulator.monte_carlo import simulate

COMMON: dict[str, Any] = {
    "steps": 100_000,
    "allocation_s": Span(62, 218),
    "grace_s": Span.of(30),
    "mttp_s": (10_800.0,),
    "spot_usd_per_hour": 2.3048,
    "on_demand_usd_per_hour": 6.2049,
}
SMALL = Job(
    step_s=Span(4.5, 4.70002),
    save_s=Span(2.3, 2.8),
    backup_s=Span(11.2, 15.2),
    preparation_s=Span(143.2, 183.2),
    **COMMON,
)
LARGE = Job(
    step_s=Span(19.5, 20.00058),
    save_s=Span(18.5, 20.5),
    backup_s=Span(120, 160),
    preparation_s=Span(305.5, 359.5),
    **COMMON,
)


def test_the_tables_of_the_thesis() -> None:
    """Tables 6.2 and 6.3, which are means of 100 runs.

    The last row is 0.8 % off in every simulation.
    """
    for job, policy, every, total_s, usd in [
        (SMALL, "thesis", 10_000, 473_488, 303.1),
        (SMALL, "static:10", None, 501_539, 321.1),
        (SMALL, "static:51", None, 484_894, 310.3),
        (SMALL, "static:100", None, 488_135, 312.5),
        (LARGE, "thesis", None, 2_219_727, 1421.1),
        (LARGE, "static:10", None, 2_315_454, 1482.4),
        (LARGE, "static:33", None, 2_220_715, 1421.7),
        (LARGE, "static:100", None, 2_334_417, 1494.5),
    ]:
        found = expected(replace(job, save_every_steps=every), parse_policy(policy))
        assert found.total_s == pytest.approx(
            total_s, rel=0.009 if policy == "static:100" else 0.0035
        )
        assert found.cost_usd == pytest.approx(usd, rel=0.009 if policy == "static:100" else 0.004)


@pytest.mark.parametrize(
    ("job", "every", "total_s", "usd"),
    [(SMALL, 10_000, 460_314, 793.4), (LARGE, 1000, 1_977_442, 3408.3)],
)
def test_on_demand(job: Job, every: int, total_s: float, usd: float) -> None:
    found = expected(
        replace(job, save_every_steps=every, market=Market.ON_DEMAND), parse_policy("none")
    )
    assert found.total_s == pytest.approx(total_s, rel=1e-4)
    assert found.cost_usd == pytest.approx(usd, rel=1e-4)
    assert found.preemptions == pytest.approx(0, abs=1e-6)


def test_on_demand_as_simulated() -> None:
    """What insures against preemptions saves nothing there; what the user asks for is done."""
    for policy in [*CHOOSING, "every:600", "every:20"]:
        job = replace(LARGE, steps=5000, save_every_steps=None, market=Market.ON_DEMAND)
        found, runs = (
            expected(job, parse_policy(policy)),
            simulate(job, parse_policy(policy), runs=400, seed=1),
        )
        assert found.total_s == pytest.approx(runs.total_s.mean(), rel=1e-3)
        saves = {"every:600": 161, "every:20": 2500}.get(policy, 0)  # 31 and 2 steps
        assert found.total_s == pytest.approx(5000 * 19.75029 + 19.5 * saves + 472.5, rel=1e-3)


POLICIES = ("static:10", "static:97", *CHOOSING, "every:600", "none")


def some_job(number: int) -> tuple[Job, str]:
    """A job from all over the range that the closed form claims, and beyond it, with a policy."""
    draw = random.Random(number)

    def span(low: float, high: float) -> Span:
        least = draw.uniform(low, high)
        return Span(least, least * draw.choice((1, 1, 1.5, 2.5)))

    step = 10 ** draw.uniform(-0.3, 1.6)
    steps = max(50, int(10 ** draw.uniform(3.5, 5.5) / step))
    job = Job(
        steps=steps,
        step_s=Span(step, step * draw.choice((1, 1.05, 1.5))),
        save_s=span(0.5, 30),
        backup_s=span(0, 100),
        allocation_s=span(10, 150),
        preparation_s=span(10, 200),
        grace_s=draw.choice((Span.of(0), Span.of(30), Span.of(120), Span(20, 120), Span.of(120))),
        mttp_s=(10 ** draw.uniform(3.2, 5.5),),
        missed_notice_rate=draw.choice((0, 0.05, 0.1, 0.3)),
        save_every_steps=draw.choice((None, None, steps // 7 + 1, 97)),
        spot_usd_per_hour=1.0,
        stall_s=draw.choice((None, Span(0.2, 0.5))),
        memory_node_s=draw.choice((None, None, Span(2, 20))),
        warm_preparation_s=draw.choice((None, Span(5, 30))),
        proactive_replacement=draw.choice((False, True)),
        vms=draw.choice((1, 1, 2, 5, 17)),
    )
    return job, draw.choice(POLICIES)


CAMPAIGN = 400 if THOROUGH else 20


@pytest.mark.slow
def test_within_two_percent_of_simulation_in_its_range() -> None:
    """Time and cost of random jobs.

    What is outside of the range must say so, and not all may be.
    """
    inside = 0
    for number in range(CAMPAIGN):
        job, policy = some_job(number)
        if not holds(job, parse_policy(policy)):
            continue
        inside += 1
        found = expected(job, parse_policy(policy))
        runs = simulate(job, parse_policy(policy), runs=400, seed=number)
        for mine, theirs in ((found.total_s, runs.total_s), (found.cost_usd, runs.cost_usd)):
            error = 3 * theirs.std() / len(theirs) ** 0.5
            assert abs(mine - theirs.mean()) <= 0.02 * theirs.mean() + error, (number, policy, job)
        spread = 4 * runs.preemptions.std() / len(runs.preemptions) ** 0.5
        assert (
            abs(found.preemptions - runs.preemptions.mean())
            <= 0.08 * runs.preemptions.mean() + spread + 1e-9
        ), number
    assert inside > CAMPAIGN // 2


ROUGH = Job(
    steps=2000,
    step_s=Span.of(20.0),
    save_s=Span.of(5),
    backup_s=Span.of(10),
    allocation_s=Span(60, 140),
    preparation_s=Span(40, 60),
    grace_s=Span.of(120),
    mttp_s=(3600.0,),
    spot_usd_per_hour=1.0,
)


def test_within_a_few_per_mille_where_each_term_counts() -> None:
    """Long steps, missed notices and early replacements: a wrong term is seen, which 2 % would
    hide.
    """
    for policy, changes in [
        ("thesis", {"steps": 800, "step_s": Span.of(60.0), "mttp_s": (2400.0,)}),
        ("thesis", {"grace_s": Span.of(500), "missed_notice_rate": 0.3, "save_every_steps": 20}),
        ("adaptive", {"missed_notice_rate": 0.3}),
        ("adaptive", {"missed_notice_rate": 0.1, "proactive_replacement": True}),
        (
            "exact",
            {"missed_notice_rate": 0.5, "proactive_replacement": True, "grace_s": Span.of(400)},
        ),
        (
            "exact",
            {"missed_notice_rate": 0.2, "proactive_replacement": True, "grace_s": Span.of(90)},
        ),
        ("adaptive", {"vms": 5, "mttp_s": (18_000.0,)}),
        ("adaptive", {"vms": 5, "mttp_s": (18_000.0,), "proactive_replacement": True}),
        ("exact", {"vms": 5, "mttp_s": (18_000.0,)}),
    ]:
        job = replace(ROUGH, **changes)
        assert holds(job, parse_policy(policy))
        found, runs = (
            expected(job, parse_policy(policy)),
            simulate(job, parse_policy(policy), runs=4000, seed=1),
        )
        assert found.total_s == pytest.approx(runs.total_s.mean(), rel=0.0025)
        assert found.cost_usd == pytest.approx(runs.cost_usd.mean(), rel=0.006)
        assert found.preemptions == pytest.approx(runs.preemptions.mean(), rel=0.07)


def test_a_cluster_has_no_one_age_for_its_hazard() -> None:
    assert holds(ROUGH, parse_policy("hazard"))
    assert not holds(replace(ROUGH, vms=2, mttp_s=(7200.0,)), parse_policy("hazard"))
    assert holds(replace(ROUGH, vms=2, mttp_s=(7200.0,)), parse_policy("adaptive"))


def test_a_short_job() -> None:
    """No saves that would come after its end are counted.

    And it begins when the last of its VMs is there.
    """
    for policy, changes in [
        ("young", {"save_every_steps": 1000}),
        ("static:1000", {}),
        ("every:9000", {"vms": 1}),
        ("adaptive", {"grace_s": Span.of(600)}),
        ("none", {"vms": 16}),
    ]:
        job = Job(
            steps=300,
            step_s=Span.of(1.0),
            save_s=Span.of(30),
            allocation_s=Span(50, 350),
            mttp_s=(1e7,),
            spot_usd_per_hour=1.0,
        )
        job = replace(job, **changes)
        runs = simulate(job, parse_policy(policy), runs=4000, seed=1)
        assert expected(job, parse_policy(policy)).total_s == pytest.approx(
            runs.total_s.mean(), rel=0.01
        )


def test_the_exact_interval_is_the_best_static_one() -> None:
    """Saves of a fixed number of steps cost least next to the minimizer that Lambert's function
    gives.
    """
    from deepvm.core.preemption.save_intervals import exact_s

    job = replace(LARGE, step_s=Span.of(1.0), steps=10**6, backup_s=Span.of(0))
    best = float(exact_s(job.save_s.mean, job.mttp_s[0]))
    times = {
        k: expected(job, parse_policy(f"static:{k}")).total_s
        for k in range(int(best) - 60, int(best) + 60)
    }
    assert abs(min(times, key=lambda k: times[k]) - best) <= 3


def test_many_clusters_at_once_are_the_same_as_one_by_one() -> None:
    vms = np.array([1, 2, 5, 17])
    steps = np.array([4.6, 2.4, 1.3, 0.9])
    for name in ("thesis", "adaptive", "exact", "static:51"):
        policy = parse_policy(name)
        found = forecast(
            SMALL, policy, per_second=vms / 10_800, step_s=steps, vms=vms.astype(float)
        )
        for i, (n, step) in enumerate(zip(vms.tolist(), steps.tolist(), strict=True)):
            wide = SMALL.step_s.high / SMALL.step_s.mean - 1
            alone = replace(SMALL, vms=n, step_s=Span(step * (1 - wide), step * (1 + wide)))
            assert found.total_s[i] == pytest.approx(expected(alone, policy).total_s, rel=1e-9)


def test_more_machines_are_hit_more_often() -> None:
    totals = [
        expected(replace(SMALL, vms=n), parse_policy("adaptive")).total_s for n in (1, 2, 4, 8, 16)
    ]
    assert totals == sorted(totals)
    assert expected(replace(SMALL, vms=4), parse_policy("exact")).preemptions == pytest.approx(
        expected(replace(SMALL, mttp_s=(2700.0,)), parse_policy("exact")).preemptions,
        rel=1e-3,  # but for the first start, which waits for the last of four
    )


def test_effective_length_is_that_of_restarts_until_done() -> None:
    """exp(-rate x) of a uniform latency, by its mean over a fine grid."""
    for low, high, rate in (
        (0.0, 100.0, 0.01),
        (20.0, 21.0, 1e-6),
        (5.0, 5.0, 0.1),
        (0.0, 5000.0, 0.05),
    ):
        grid = low + (high - low) * (np.arange(200_000) + 0.5) / 200_000
        length = -math.log(np.exp(-rate * grid).mean()) / rate
        found = effective(np.asarray((low + high) / 2), np.asarray(high - low), np.asarray(rate))
        assert float(found) == pytest.approx(length, rel=1e-5)


def test_what_it_does_not_know_it_says() -> None:
    for changes in [
        {"lifetime": "weibull:0.65"},
        {"mttp_s": (3600.0, 7200.0)},
        {"vms": 3, "elastic": True},
        {"vms": 60},
        {"grace_s": Span.of(4000)},
    ]:
        assert not holds(replace(SMALL, **changes), parse_policy("adaptive"))
        assert holds(SMALL, parse_policy("adaptive"))


def test_a_job_that_never_ends() -> None:
    hopeless = replace(SMALL, mttp_s=(600.0,), steps=10**6)
    assert not holds(hopeless, parse_policy("none"))
    assert expected(hopeless, parse_policy("none")).total_s == math.inf
