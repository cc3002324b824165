"""Jobs in the planner: expected time and bill of every cluster, deadlines, total budgets, and where
they come from.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import oracle
from support.builders import catalog, cpu_type, gpu_type, paper
from support.closed_form import expected
from support.effort import THOROUGH, examples
from support.oracle import Plan
from support.planner.agreement import blocks_for, by_ilp, enumerated, summary
from support.planner.strategies import Case, cases
from support.planning import explain, recommend

from deepvm.core.cluster.instances import Catalog, Market
from deepvm.core.cluster.memory_nodes import SaturationTable
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.core.lifetimes import BAND_SHARES, MONTH_S, mean_life_s
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.errors import RequestError
from deepvm.planner.job_forecast import Work
from deepvm.planner.recommend import solve
from deepvm.planner.request import Objective, PlanRequest, PolicyName, known_life_s
from deepvm.reports.documents import to_json
from deepvm.simulator.monte_carlo import simulate

JOB = Job(
    steps=20_000,
    step_s=Span(2.0, 2.2),
    save_s=Span(2, 3),
    backup_s=Span(10, 14),
    allocation_s=Span(60, 200),
    preparation_s=Span(40, 60),
    grace_s=Span.of(120),
    missed_notice_rate=0.05,
)


@dataclass(frozen=True)
class Asked:
    """A case with a job."""

    case: Case
    work: Work


def work(
    mttp: str | float | None = None, interruption_rate: str | float | None = None, **options: object
) -> Work:
    life_s = known_life_s(mttp, interruption_rate)
    found = Work.parse(job=JOB, life_s=life_s, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def clusters(shop: Catalog, request: PlanRequest, asked: Work) -> list[tuple[Plan, float, float]]:
    """All plans with their expected seconds and dollars, one by one, by the oracle's own
    throughput.
    """
    plain = replace(request, work=None, objective=Objective.THROUGHPUT)
    reference = shop[asked.measured_on]
    assert reference.eflops is not None
    found = []
    for each in oracle.plans(shop, plain):
        throughput = float(each.value[0])
        spot = {"on-demand": 0, "single-anchor": each.count - 1}.get(each.architecture, each.count)
        factor = reference.eflops / throughput
        band = shop[each.gpu].interruption_band
        share = (0.025, 0.075, 0.125, 0.175, 0.25)[4 if band is None else band]
        month_s = 365.25 / 12 * 24 * 3600
        life = asked.mttp_s or -month_s / math.log(1 - share)
        life = life if spot else math.inf  # VMs on demand are not preempted
        step = Span(JOB.step_s.low * factor, JOB.step_s.high * factor)
        total = expected(
            replace(JOB, vms=max(spot, 1), mttp_s=(life,), step_s=step), asked.policy
        ).total_s
        if total < math.inf:
            found.append((each, total, total / 3600 * each.micro_usd / 10**6))
    return found


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """A case with a job; half of the limits lie next to what some cluster takes."""
    case = draw(cases())
    known = sorted(i.name for i in case.catalog if i.gpu is not None and i.eflops)
    assume(known)
    bands = st.sampled_from([None, 0, 2, 4])
    shop = replace(
        case.catalog,
        instances=tuple(replace(i, interruption_band=draw(bands)) for i in case.catalog),
    )
    mine = work(
        measured_on=draw(st.sampled_from(known)),
        mttp=draw(st.sampled_from([None, "2h", "12h", "30d"])),
        save_policy=draw(st.sampled_from(["adaptive", "thesis", "young", "static:50"])),
    )
    # Limits on the job under other objectives, too: then more throughput is not always less time.
    objective = draw(st.sampled_from([Objective.MAKESPAN, Objective.TOTAL_COST, *Objective]))
    request = replace(case.request, policy=PolicyName.DEEPVM, objective=objective)
    assume(objective is not Objective.FLOPP)
    found = clusters(shop, request, mine)
    assume(found)
    _, total, bill = found[draw(st.integers(0, 10**6)) % len(found)]
    near = st.sampled_from([1.00001, 0.99999, 1.3])
    if draw(st.booleans()):
        mine = replace(mine, deadline_s=total * draw(near))
    if draw(st.booleans()):
        mine = replace(mine, total_budget=Decimal(repr(bill * draw(near))))
    return Asked(Case(shop, replace(request, work=mine)), mine)


def by_oracle(a: Asked) -> list[Plan]:
    request, valued = a.case.request, []
    for each, total, bill in clusters(a.case.catalog, request, a.work):
        if a.work.deadline_s is not None and total > a.work.deadline_s:
            continue
        if a.work.total_budget is not None and bill > a.work.total_budget:
            continue
        value = {
            Objective.MAKESPAN: Fraction(3600 / total),
            Objective.TOTAL_COST: -Fraction(bill),
            Objective.THROUGHPUT: each.value[0],
            Objective.COST_PER_WORK: -each.micro_usd / each.value[0],
        }[request.objective]
        valued.append(replace(each, value=(value,)))
    return oracle.ranking(valued, request.budget, request.top)


@settings(max_examples=examples(120))
@given(asked())
def test_enumeration_and_integer_program_agree_with_the_oracle(a: Asked) -> None:
    expected_plans = [(*p.cluster, p.micro_usd, p.zone) for p in by_oracle(a)]
    blocks = blocks_for(a.case.catalog, a.case.request)
    assert [summary(c) for c in enumerated(blocks, a.case.request)] == expected_plans
    assert [summary(c) for c in by_ilp(blocks, a.case.request)] == expected_plans[:1]


def fast_and_slow() -> Catalog:
    """Two GPU types with rings, a memory node, and bands."""
    ring = (RingSpeedup(0.5, 0.02),)
    return catalog(
        gpu_type("fast", eflops=400.0, spot_usd_per_hour="1.2", speedups=ring, interruption_band=4),
        gpu_type(
            "slow", eflops=100.0, spot_usd_per_hour="0.25", speedups=ring, interruption_band=0
        ),
        cpu_type("node"),
        default_speedup="ring",
    )


def test_figures_of_a_recommendation() -> None:
    """One VM of the reference type: the job itself, and the price of the whole cluster for all of
    its time.
    """
    found = recommend(
        fast_and_slow(), 0.45, job=JOB, measured_on="slow", mttp="3h", architecture="tiering"
    )
    best = found[0]
    assert (
        best.cluster.spot_count == 1
        and best.cluster.gpu.name == "slow"
        and best.outlook is not None
    )
    alone = expected(replace(JOB, mttp_s=(10_800.0,)), found.request.work.policy)  # type: ignore[union-attr]
    assert best.outlook.total_s == pytest.approx(alone.total_s)
    assert best.outlook.cost_usd == pytest.approx(alone.total_s / 3600 * 0.45)
    assert best.outlook.preemptions == pytest.approx(alone.preemptions)
    # Measured on the fast type, the same job is four times as much work.
    slow = recommend(
        fast_and_slow(), 0.45, job=JOB, measured_on="fast", mttp="3h", architecture="tiering"
    )[0]
    assert slow.outlook is not None and slow.outlook.total_s > 4 * 20_000 * 2.1


def test_an_anchor_is_not_taken_away() -> None:
    shop = fast_and_slow()
    both = {
        a: next(
            r
            for r in recommend(
                shop,
                20,
                job=JOB,
                measured_on="slow",
                mttp="1h",
                architecture=a,
                gpus_max=1,
                top=100,
            )
            if r.cluster.gpu.name == "slow" and r.cluster.gpu_count == 5
        )
        for a in ("single-anchor", "tiering")
    }
    anchored, tiered = both["single-anchor"].outlook, both["tiering"].outlook
    assert anchored is not None and tiered is not None and anchored.total_s < tiered.total_s
    assert anchored.preemptions / anchored.total_s == pytest.approx(4 / 3600, rel=0.1)
    assert tiered.preemptions / tiered.total_s == pytest.approx(5 / 3600, rel=0.1)


def test_how_often_machines_are_taken_away() -> None:
    """What the user says beats the job, the job beats the bands.

    After a month the share of a band is gone.
    """
    assert 1 - math.exp(-MONTH_S / mean_life_s(0.1)) == pytest.approx(0.1)
    assert list(BAND_SHARES) == sorted(BAND_SHARES)
    slow, fast = fast_and_slow()["slow"], fast_and_slow()["fast"]
    assert work().life_s(slow) == mean_life_s(0.025) and work().life_s(fast) == mean_life_s(0.25)
    assert work().life_s(replace(slow, interruption_band=None)) == mean_life_s(0.25)  # as the worst
    assert work(mttp="3h").life_s(slow) == 10_800
    assert (
        work(interruption_rate="10%").life_s(fast)
        == work(interruption_rate=0.1).life_s(slow)
        == mean_life_s(0.1)
    )
    known = Work.parse(job=replace(JOB, mttp_s=(7200.0,)))
    assert known is not None and known.life_s(slow) == 7200
    # A list of lives is the job's own; what is said beside it is said of all of them.
    many = replace(JOB, mttp_s=(3600.0, 7200.0))
    listed, told = Work.parse(job=many), Work.parse(job=many, life_s=3600.0)
    assert listed is not None and listed.job.mttp_s == (3600.0, 7200.0)
    assert told is not None and told.job.mttp_s == (3600.0,)


def test_machines_that_nobody_takes_away() -> None:
    """0 % a month: the job's own time on each cluster, and a figure for JSON that is one."""
    found = recommend(
        fast_and_slow(), 3, job=JOB, measured_on="slow", interruption_rate="0%", save_policy="none"
    )
    outlook, work = found[0].outlook, found.request.work
    assert (
        outlook is not None and work is not None and found.reference is not None and outlook.sound
    )
    job = work.job_on(found[0].cluster, found[0].throughput, found.reference)
    runs = simulate(job, work.policy, runs=300, seed=1)
    assert (
        outlook.total_s == pytest.approx(runs.total_s.mean(), rel=1e-3)
        and not runs.preemptions.any()
    )
    assert outlook.preemptions == pytest.approx(0, abs=1e-6)
    plain = json.loads(to_json(found.to_dict()))["request"]["work"]
    assert plain["mttp_s"] is None and plain["interruption_rate"] == 0.0
    told = recommend(fast_and_slow(), 3, job=JOB, measured_on="slow", mttp="3h").to_dict()[
        "request"
    ]["work"]
    assert told["mttp_s"] == 10_800 and told["interruption_rate"] == pytest.approx(
        1 - math.exp(-MONTH_S / 10_800)
    )
    banded = recommend(fast_and_slow(), 3, job=JOB, measured_on="slow").to_dict()["request"]["work"]
    assert banded["mttp_s"] is None and banded["interruption_rate"] is None


def test_the_closed_form_knows_no_cluster_that_trains_on() -> None:
    """An elastic job is one on a single VM, and on any more it is for the simulator."""
    found = recommend(
        fast_and_slow(), 3, job=replace(JOB, elastic=True), measured_on="slow", mttp="12h", top=100
    )
    assert {r.cluster.spot_count > 1 for r in found} == {True, False}
    for r in found:
        assert r.outlook is not None and r.outlook.sound == (r.cluster.spot_count == 1)


def test_a_limit_of_exactly_what_a_cluster_takes_keeps_it() -> None:
    """Bills and prices are floats and whole micro-dollars: none may fall out by rounding."""
    for minutes in range(30, 200, 7 if THOROUGH else 35):
        options: dict[str, Any] = {
            "job": JOB,
            "measured_on": "slow",
            "mttp": f"{minutes}min",
            "solver": "frontier",
        }
        best = recommend(fast_and_slow(), 6, top=1, **options)[0]
        assert best.outlook is not None
        for limit in ({"total_budget": best.outlook.cost_usd}, {"deadline": best.outlook.total_s}):
            assert (
                recommend(fast_and_slow(), 6, top=1, **options, **limit)[0].cluster == best.cluster
            )


def test_unknown_bands_count_as_the_worst_and_say_so() -> None:
    found = recommend(paper(), 3, work=100)
    assert any("preemption rate of g4dn.xlarge unknown" in w for w in found[0].warnings)
    assert not any(
        "preemption rate" in w for w in recommend(paper(), 3, work=100, mttp="3h")[0].warnings
    )


def test_limits_that_nothing_keeps() -> None:
    for limits, constraint, words in [
        ({"deadline": "60s"}, "deadline", ["60 s", "the fastest cluster for at most $3/h"]),
        ({"total_budget": "0.01"}, "total-budget", ["$0.01", "costs"]),
        ({"deadline": "3h", "total_budget": "2"}, "total-budget", ["that ends in time"]),
    ]:
        found = recommend(fast_and_slow(), 3, job=JOB, measured_on="slow", mttp="12h", **limits)  # type: ignore[arg-type]
        assert (
            not found and found.infeasible is not None and found.infeasible.constraint == constraint
        )
        assert all(word in found.infeasible.reason for word in words)


def test_a_deadline_that_more_money_meets() -> None:
    """The advice is a budget that works."""
    found = recommend(fast_and_slow(), 0.5, job=JOB, measured_on="slow", mttp="12h", deadline="5h")
    assert found.infeasible is not None and found.cheapest is not None
    price = found.cheapest.usd_per_hour
    assert str(price).rstrip("0") in found.infeasible.advice
    answer = recommend(
        fast_and_slow(), price, job=JOB, measured_on="slow", mttp="12h", deadline="5h"
    )
    assert answer and answer[0].outlook is not None and answer[0].outlook.total_s <= 5 * 3600


def test_a_bill_that_is_named_is_enough() -> None:
    """Whoever asks for the time or the bill that an answer names gets a cluster, however it was
    rounded.
    """
    for mttp in ("7h", "8h", "9h", "11h", "13h", "17h", "19h"):
        options: dict[str, Any] = {"job": JOB, "measured_on": "slow", "mttp": mttp}
        dear = recommend(fast_and_slow(), 3, **options, total_budget="0.01").infeasible
        late = recommend(fast_and_slow(), 3, **options, deadline="60s").infeasible
        assert dear is not None and late is not None
        bill = dear.reason.rpartition("costs $")[2].removesuffix(" in all")
        assert recommend(fast_and_slow(), 3, **options, total_budget=bill)
        assert recommend(
            fast_and_slow(), 3, **options, deadline=late.reason.rpartition("takes ")[2]
        )


def test_neither_more_money_nor_quotas_would_help() -> None:
    """A budget and a deadline that are out of reach, and VMs too short-lived for any job."""
    found = recommend(
        fast_and_slow(), 0.1, job=JOB, measured_on="slow", mttp="12h", deadline="1s"
    ).infeasible
    assert found is not None and found.constraint == "deadline" and "at any price" in found.reason
    for options in ({}, {"objective": "makespan"}, {"deadline": "1d"}):
        found = recommend(
            fast_and_slow(), 3, job=JOB, measured_on="slow", mttp="30s", **options
        ).infeasible  # type: ignore[arg-type]
        assert found is not None and found.constraint == "preemptions" and "30 s" in found.reason
    poor = recommend(
        fast_and_slow(), 0.1, job=JOB, measured_on="slow", mttp="12h", deadline="100d"
    ).infeasible
    assert poor is not None and poor.constraint == "budget"


def test_a_baseline_that_knows_no_scaling_knows_no_preemptions_either() -> None:
    """It takes as many VMs as it can where DeepVM's own policy sees that a smaller cluster is done
    sooner.
    """
    options: dict[str, Any] = {
        "job": JOB,
        "measured_on": "slow",
        "mttp": "15min",
        "architecture": "tiering",
    }
    wise, naive = (
        recommend(
            fast_and_slow(),
            30,
            objective="makespan",
            policy=policy,
            instance_type="slow",
            **options,
        )[0]
        for policy in ("deepvm", "noscale")
    )
    assert naive.cluster.gpu_count > wise.cluster.gpu_count
    assert (
        naive.outlook is not None
        and wise.outlook is not None
        and naive.outlook.total_s > wise.outlook.total_s
    )


def test_replacements_that_come_early_are_paid_for() -> None:
    """The bill is that of the simulator, and the total budget covers it."""
    early = replace(JOB, proactive_replacement=True, grace_s=Span.of(600))
    asked: dict[str, Any] = {
        "job": early,
        "measured_on": "slow",
        "mttp": "3h",
        "save_policy": "exact",
    }
    found = recommend(fast_and_slow(), 0.45, architecture="tiering", **asked)[0]
    priced = replace(early, mttp_s=(10_800.0,), spot_usd_per_hour=0.45)
    alone = expected(priced, parse_policy("exact"))
    assert found.outlook is not None and found.outlook.cost_usd == pytest.approx(alone.cost_usd)
    assert alone.cost_usd > 1.02 * alone.total_s / 3600 * 0.45
    # On several VMs only one of them is there twice. Those that are noticed together go together,
    # of which the closed form knows nothing: the longer notices are, the more.
    asked |= {"top": 100, "job": replace(early, grace_s=Span.of(300))}
    answer = recommend(fast_and_slow(), 2, architecture="tiering", **asked)
    many = next(r for r in answer if r.cluster.spot_count > 4)
    assert (
        answer.request.work is not None
        and answer.reference is not None
        and many.outlook is not None
    )
    job = answer.request.work.job_on(many.cluster, many.throughput, answer.reference)
    runs = simulate(job, parse_policy("exact"), runs=2000, seed=1)
    assert many.outlook.cost_usd == pytest.approx(runs.cost_usd.mean(), rel=0.012)
    assert (
        1.02 < runs.cost_usd.mean() / (runs.total_s.mean() / 3600 * float(many.usd_per_hour)) < 1.1
    )


def test_why_not_names_the_deadline() -> None:
    why = explain(
        fast_and_slow(),
        6,
        "slow",
        job=JOB,
        measured_on="slow",
        mttp="12h",
        deadline="90min",
        max_nodes=10,
    )
    assert (
        why.rejection is not None and why.rejection.reason == "deadline" and "slow" in why.verdict
    )


def test_what_limits_the_next_larger_cluster() -> None:
    found = recommend(
        fast_and_slow(),
        50,
        job=JOB,
        measured_on="slow",
        mttp="12h",
        objective="makespan",
        total_budget="8",
    )
    assert [b.constraint for b in found[0].binding] == ["total-budget"]
    assert found[0].outlook is not None and found[0].outlook.cost_usd <= 8


def test_a_deadline_keeps_from_a_smaller_cluster() -> None:
    """The cheapest bill would be a smaller cluster's, which is late."""
    options: dict[str, Any] = {
        "job": JOB,
        "measured_on": "slow",
        "mttp": "12h",
        "objective": "total-cost",
    }
    options |= {"architecture": "single-anchor", "instance_type": "slow"}
    free = recommend(fast_and_slow(), 50, **options)[0]
    assert free.outlook is not None and free.binding == ()
    found = recommend(fast_and_slow(), 50, **options, deadline=free.outlook.total_s / 2)[0]
    (bound,) = found.binding
    assert bound.constraint == "deadline" and found.cluster.gpu_count > free.cluster.gpu_count
    assert bound.reason.startswith(
        f"{found.cluster.gpu_count - 1} x slow would be better, but expected to take "
    )


def test_preemptions_limit_what_would_train_faster() -> None:
    """More VMs would have more throughput, and never get the job done."""
    options: dict[str, Any] = {
        "job": JOB,
        "measured_on": "slow",
        "architecture": "tiering",
        "instance_type": "slow",
    }
    options["objective"] = "throughput"
    found = recommend(fast_and_slow(), 30, mttp="10min", **options)[0]
    (why,) = found.binding
    assert why.constraint == "preemptions" and "the job would never end" in why.reason
    larger = found.cluster.spot_count + 1
    assert why.reason.startswith(f"{larger} x slow would be stopped every ")
    assert recommend(fast_and_slow(), 30, mttp="12h", **options)[0].cluster.spot_count > larger


def test_what_a_job_wants_is_to_be_done_soon() -> None:
    """Unless told otherwise: the cluster with the most throughput may be the one that is
    interrupted most.
    """
    soon, most = (
        recommend(fast_and_slow(), 30, job=JOB, measured_on="slow", mttp="20min", objective=name)
        for name in (None, "throughput")
    )
    assert soon.request.objective is Objective.MAKESPAN and soon[0].outlook and most[0].outlook
    assert (
        soon[0].outlook.total_s < most[0].outlook.total_s
        and soon[0].throughput < most[0].throughput
    )
    assert recommend(fast_and_slow(), 30).request.objective is Objective.THROUGHPUT


def test_alternatives_know_the_job() -> None:
    found = recommend(fast_and_slow(), 6, job=JOB, measured_on="slow", mttp="2h")
    by = {a.objective: a.recommendation for a in found.alternatives}
    assert Objective.TOTAL_COST in by
    cheapest = recommend(
        fast_and_slow(), 6, job=JOB, measured_on="slow", mttp="2h", objective="total-cost"
    )[0]
    assert by[Objective.TOTAL_COST].cluster == cheapest.cluster
    assert not {a.objective for a in recommend(fast_and_slow(), 6).alternatives} & {
        Objective.MAKESPAN,
        Objective.TOTAL_COST,
    }


def test_what_cannot_be() -> None:
    for options, name in [
        ({"objective": "makespan"}, "objective"),
        ({"deadline": "12h"}, "deadline"),
        ({"mttp": "12h"}, "mttp"),
        ({"work": "many"}, "work"),
        ({"work": 0}, "work"),
        ({"work": 10, "job": JOB}, "work"),
        ({"work": 10, "deadline": "12"}, "deadline"),
        ({"work": 10, "mttp": "-3h"}, "mttp"),
        ({"work": 10, "mttp": "3h", "interruption_rate": "10%"}, "interruption_rate"),
        ({"work": 10, "interruption_rate": "100%"}, "interruption_rate"),
        ({"work": 10, "interruption_rate": "-1%"}, "interruption_rate"),
        ({"work": 10, "save_policy": "sometimes"}, "save_policy"),
        ({"work": 10, "total_budget": "-1"}, "total_budget"),
        ({"work": 10, "measured_on": "g4dn"}, "measured_on"),
        ({"work": 1e9}, "work"),
        ({"job": replace(JOB, vms=4)}, "job"),
        ({"job": replace(JOB, market=Market.ON_DEMAND)}, "job"),
    ]:
        with pytest.raises(RequestError) as error:
            recommend(paper(), 3, **options)  # type: ignore[arg-type]
        assert error.value.option == name


def test_hours_alone() -> None:
    """100 hours on one VM of the type are 100 hours there, but for preemptions, saves and the
    start.
    """
    found = recommend(fast_and_slow(), 0.45, work=100, measured_on="slow", interruption_rate="1%")
    assert found[0].outlook is not None
    assert found[0].outlook.total_s == pytest.approx(360_000, rel=0.003)
    assert (
        found.status.value == "optimal"
        and solve(found.catalog, found.request).configurations == found.configurations
    )


def test_notices_come_as_early_as_the_cloud_gives_them_unless_a_job_file_says() -> None:
    """30 s on Google Cloud, 120 on AWS: less time means less saved, and a longer way to the end."""
    shop, asked = (
        catalog(gpu_type(interruption_band=4), cpu_type()),
        {"checkpoint_size": "10GB", "mttp": "2h"},
    )
    graces, times = [], []
    for grace_s in (None, 120.0, 30.0, 0.0):
        found = recommend(replace(shop, grace_s=grace_s), 3, work=10, **asked)  # type: ignore[arg-type]
        assert found.request.work is not None and found[0].outlook is not None
        graces.append(found.request.work.job.grace_s.mean)
        times.append(found[0].outlook.total_s)
    assert graces == [120, 120, 30, 0]
    assert times[0] == times[1] < times[2] <= times[3]
    own = recommend(replace(shop, grace_s=30.0), 3, job=JOB)
    assert own.request.work is not None and own.request.work.job.grace_s == JOB.grace_s


def test_a_total_budget_counts_all_memory_nodes() -> None:
    """One type, one size and two nodes for it: the integer program must not take one of them for
    the whole plan.
    """
    shop = catalog(
        gpu_type(
            "only",
            eflops=100.0,
            spot_usd_per_hour="0.1",
            speedups=(RingSpeedup(0.0, 0.0),),
            network_gbps=1.0,
        ),
        cpu_type("node", network_gbps=100.0),
        n_sat=SaturationTable((1.0,), (1,)),
        default_speedup="ring",
    )
    options: dict[str, Any] = {
        "work": 10,
        "mttp": "12h",
        "architecture": "tiering",
        "max_nodes": 1,
        "top": 1,
    }
    free = recommend(shop, 9, **options)[0]
    assert (
        free.cluster.memory is not None
        and free.cluster.memory.count == 2
        and free.outlook is not None
    )
    found = recommend(shop, 9, **options, total_budget=free.outlook.cost_usd * 0.9999)
    assert not found and not found.doubt


def test_faster_and_cheaper_by_the_hour_may_still_cost_more_in_all() -> None:
    """One type beats the other by a hair in both, and is taken away more often: neither solver may
    drop the other.

    The total budget covers its VMs without their memory node, so that only the whole plan breaks
    it.
    """
    ring = (RingSpeedup(0.0, 0.0),)
    shop = catalog(
        gpu_type(
            "flighty", eflops=100.0, spot_usd_per_hour="0.1", speedups=ring, interruption_band=4
        ),
        gpu_type(
            "steady",
            eflops=99.9999,
            spot_usd_per_hour="0.100001",
            speedups=ring,
            interruption_band=0,
        ),
        cpu_type("node", network_gbps=100.0),
        n_sat=SaturationTable((1.0,), (100,)),
        default_speedup="ring",
    )
    options = {"work": 3000, "measured_on": "flighty", "architecture": "tiering", "max_nodes": 5}
    flighty = recommend(shop, 1, **options, objective="throughput")[0]  # type: ignore[arg-type]
    steady = recommend(shop, 1, **options, objective="makespan")[0]  # type: ignore[arg-type]
    assert [(r.cluster.gpu.name, r.cluster.spot_count) for r in (flighty, steady)] == [
        ("flighty", 5),
        ("steady", 5),
    ]
    assert flighty.outlook is not None and steady.outlook is not None
    budget = round((steady.outlook.cost_usd + flighty.outlook.cost_usd) / 2, 4)
    assert steady.outlook.cost_usd < budget < flighty.outlook.cost_usd
    frugal = recommend(shop, 1, **options, objective="throughput", total_budget=budget, top=1)  # type: ignore[arg-type]
    assert frugal[0].cluster == steady.cluster and not frugal.doubt
