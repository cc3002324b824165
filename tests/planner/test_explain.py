"""Reasons: what binds, why nothing is feasible, why not this type, what the next dollar buys."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import oracle
from support.builders import PAPER_CPUS, catalog, cpu_type, gpu_type, paper
from support.effort import examples
from support.planner.strategies import Case, cases, usd
from support.planning import recommend

from deepvm.core.cluster.instances import Catalog, Market, Quota
from deepvm.core.cluster.memory_nodes import REAL_NODES, SaturationTable
from deepvm.core.cluster.speedup import HybridSpeedup, RingSpeedup
from deepvm.errors import RequestError
from deepvm.planner.explain import WhyNot, why_not
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import PlanRequest, PolicyName, SolverName
from deepvm.planner.search.enumeration import SolveStatus

SCALING = (RingSpeedup(0.0, 0.0),)
CPUS = set(PAPER_CPUS)
FEW_SENDERS = SaturationTable((1.0,), (4,))


def shop(
    *, quotas: tuple[Quota, ...] = (), gpu: dict[str, Any] | None = None, **cpu: Any
) -> Catalog:
    """One GPU type at $0.1/h spot that scales perfectly, one memory node at $0.2/h, n_sat = 4."""
    fields = {"spot_usd_per_hour": "0.1", "speedups": SCALING} | (gpu or {})
    return catalog(
        gpu_type(**fields),
        cpu_type(**cpu),
        quotas=quotas,
        n_sat=FEW_SENDERS,
        default_speedup="ring",
    )


def ask(found: Catalog, budget: Any = 3, **changes: Any) -> Recommendations:
    return recommend(found, budget, **({"solver": "frontier", "top": 1} | changes))


def binding(found: Catalog, budget: Any = 3, **changes: Any) -> list[str]:
    return [
        b.constraint
        for b in ask(found, budget, **({"architecture": "tiering"} | changes))[0].binding
    ]


def why(found: Catalog, name: str, budget: Any = 3, **changes: Any) -> WhyNot:
    return why_not(found, PlanRequest.parse(budget, **changes), name)


SPOT_12 = Quota("G and VT", Market.SPOT, 12)  # three GPU VMs of 4 vCPUs


class TestBinding:
    def test_budget(self) -> None:
        wide = replace(shop(), n_sat=SaturationTable((1.0,), (100,)))
        found = ask(wide, "0.55", architecture="tiering")[0].binding
        assert [b.constraint for b in found] == ["budget"]
        assert (
            found[0].reason
            == "4 x gpu.xlarge with 1 x cpu.xlarge would cost $0.6000/h, $0.0500 over the budget"
        )

    def test_quota_of_the_gpus(self) -> None:
        wide = replace(shop(quotas=(SPOT_12,)), n_sat=SaturationTable((1.0,), (100,)))
        found = ask(wide, architecture="tiering")[0].binding
        assert [b.constraint for b in found] == ["quota"]
        assert (
            found[0].reason
            == "4 x gpu.xlarge would need 16 spot vCPUs of G and VT; the quota is 12"
        )

    def test_max_nodes(self) -> None:
        wide = replace(shop(), n_sat=SaturationTable((1.0,), (100,)))
        found = ask(wide, architecture="tiering", max_nodes=5)[0].binding
        assert [b.constraint for b in found] == ["max-nodes"]
        assert found[0].reason == "6 VMs would train; the limit is 5"

    def test_saturation_asks_for_a_memory_node_that_the_budget_does_not_cover(self) -> None:
        found = ask(shop(), "0.65", architecture="tiering")[0].binding
        assert [b.constraint for b in found] == ["budget", "saturation"]
        assert found[1].reason == "4 senders need 2 memory nodes, not 1 (n/m < 4)"

    def test_saturation_asks_for_a_memory_node_that_the_quota_does_not_cover(self) -> None:
        one_node = Quota("Standard", Market.ON_DEMAND, 7)
        found = ask(shop(quotas=(one_node,)), architecture="tiering")[0].binding
        assert [b.constraint for b in found] == ["quota", "saturation"]
        assert (
            found[0].reason
            == "2 x cpu.xlarge would need 8 on-demand vCPUs of Standard; the quota is 7"
        )

    def test_saturation_does_not_bind_when_the_budget_is_too_small_without_it(self) -> None:
        assert binding(shop(), "0.55") == ["budget"]

    def test_all_of_them(self) -> None:
        quotas = (SPOT_12, Quota("Standard", Market.ON_DEMAND, 4))
        found = binding(shop(quotas=quotas), "0.65", max_nodes=3)
        assert found == ["budget", "quota", "quota", "saturation", "max-nodes"]

    def test_the_anchor_does_not_count_against_the_spot_quota(self) -> None:
        found = ask(paper(), "6.5")[0].binding
        assert [b.reason for b in found] == [
            "33 x g4dn.xlarge would need 132 spot vCPUs of G and VT; the quota is 128"
        ]

    def test_nothing_binds_when_the_larger_cluster_is_allowed(self) -> None:
        second = ask(paper(), "6.5", architecture="single-anchor", top=2)[1]
        assert second.binding == ()

    def test_nothing_binds_when_no_larger_cluster_is_better(self) -> None:
        flat = catalog(
            gpu_type(speedups=(RingSpeedup(0.0, 1.0),)), cpu_type(), default_speedup="ring"
        )
        assert binding(flat, 100) == []

    @pytest.mark.parametrize("policy", [PolicyName.COST_FIRST, PolicyName.PERFORMANCE_FIRST])
    def test_baselines_are_bound_too(self, policy: PolicyName) -> None:
        found = ask(paper(), 3, policy=policy.value)[0].binding
        assert [b.constraint for b in found] == ["budget"]

    @settings(max_examples=examples(60))
    @given(case=cases())
    def test_it_names_every_limit_that_the_next_larger_and_better_cluster_breaks(
        self, case: Case
    ) -> None:
        answer = solve(case.catalog, replace(case.request, top=1, solver=SolverName.FRONTIER))
        assume(len(answer) > 0)
        cluster = answer[0].cluster
        memory = cluster.memory.instance.name if cluster.memory else ""
        free = replace(case.request, quotas=(), max_nodes=60)
        same = [
            p
            for p in oracle.plans(case.catalog, free)
            if (p.architecture, p.gpu, p.memory) == (cluster.architecture, cluster.gpu.name, memory)
        ]
        now = next(p for p in same if p.count == cluster.gpu_count)
        larger = [
            p for p in same if p.count > now.count and not oracle.as_good_as(now.value, p.value)
        ]
        names = [b.constraint for b in answer[0].binding]
        assume(larger)  # the planner looks further than 60 VMs
        following = min(larger, key=lambda p: p.count)
        expected = set()
        if following.micro_usd > case.request.budget * 10**6:
            expected.add("budget")
        if following.count > case.request.max_nodes:
            expected.add("max-nodes")
        quotas = case.catalog.quotas if case.request.quotas is None else case.request.quotas
        on_demand = (
            following.count if cluster.architecture == "on-demand" else cluster.on_demand_count
        )
        used = [
            (cluster.gpu, Market.SPOT, following.count - on_demand),
            (cluster.gpu, Market.ON_DEMAND, on_demand),
        ]
        if cluster.memory:
            used.append((cluster.memory.instance, Market.ON_DEMAND, following.memory_count))
        if not oracle.within_quotas(quotas, used):
            expected.add("quota")
        assert set(names) - {"saturation", "memory"} == expected
        if "memory" in names:
            assert following.memory_count > 1
        if "saturation" in names:
            assert following.memory_count > now.memory_count
        assert expected, "the best cluster would not be the best"


class TestInfeasible:
    def relax(self, found: Catalog, budget: Any = 3, **changes: Any) -> tuple[str, str]:
        for solver in SolverName:
            answer = ask(found, budget, **(changes | {"solver": solver.value}))
            assert not answer
            assert answer.status is SolveStatus.INFEASIBLE
        assert answer.infeasible is not None
        assert answer.infeasible.advice
        assert answer.doubt == ""
        return answer.infeasible.constraint, answer.infeasible.reason

    def test_budget(self) -> None:
        assert self.relax(paper(), "0.3") == (
            "budget",
            (
                "nothing is feasible within $0.3/h: the cheapest feasible cluster costs $0.3242/h"
                " (1 x g4dn.xlarge (spot) + 1 x t3.xlarge (on-demand))"
            ),
        )

    def test_memory(self) -> None:
        relax, reason = self.relax(paper(), checkpoint_size="20GB", architecture="tiering")
        assert relax == "memory"
        assert (
            reason
            == "no memory node holds 2 x 20 GB (eq. 6): the largest, d3.xlarge, has 32 GiB, enough"
            " for checkpoints up to 17.17 GB"
        )

    def test_memory_when_the_gpu_type_cannot_be_an_anchor(self) -> None:
        spot_only = shop(gpu={"on_demand_usd_per_hour": None}, memory_gib=1)
        assert self.relax(spot_only, checkpoint_size="100GB")[0] == "memory"

    def test_memory_nodes_left_out(self) -> None:
        relax, reason = self.relax(shop(network_gbps=None), architecture="tiering")
        assert relax == "memory"
        assert reason.startswith("no type can be a memory node: ")
        assert "network" in reason
        assert reason.endswith("cpu.xlarge")
        assert self.relax(shop(on_demand_usd_per_hour=None), architecture="tiering")[0] == "memory"
        assert self.relax(catalog(gpu_type()), architecture="tiering")[0] == "memory"

    def test_quota_of_every_type(self) -> None:
        relax, reason = self.relax(shop(quotas=(Quota("G and VT", Market.SPOT, 3),)))
        assert relax == "quota"
        assert "1 x gpu.xlarge would need 4 spot vCPUs of G and VT; the quota is 3" in reason

    def test_quota_of_the_pieces_together(self) -> None:
        quotas = (Quota("G and VT", Market.ON_DEMAND, 0), Quota("Standard", Market.ON_DEMAND, 7))
        needs_two = replace(shop(quotas=quotas), n_sat=SaturationTable((1.0,), (1,)))
        relax, reason = self.relax(needs_two)
        assert relax == "quota"
        assert (
            "4 spot vCPUs of G and VT and 4 on-demand vCPUs of G and VT for single-anchor" in reason
        )
        assert "4 spot vCPUs of G and VT and 8 on-demand vCPUs of Standard for tiering" in reason

    def test_quota_is_asked_only_for_what_it_would_help(self) -> None:
        quotas = (Quota("G and VT", Market.ON_DEMAND, 0),)
        relax, reason = self.relax(shop(quotas=quotas, memory_gib=1), checkpoint_size="100GB")
        assert relax == "quota"
        assert "single-anchor" in reason
        assert "tiering" not in reason

    def test_max_nodes(self) -> None:
        relax, reason = self.relax(paper(), architecture="single-anchor", max_nodes=1)
        assert relax == "max-nodes"
        assert "2" in reason

    def test_no_gpu_type(self) -> None:
        assert self.relax(catalog(cpu_type())) == (
            "types",
            "no GPU type can be used: the catalog has none",
        )

    def test_unprofiled_only(self) -> None:
        relax, reason = self.relax(catalog(gpu_type(eflops=None), cpu_type()))
        assert relax == "types"
        assert "eFLOPS" in reason
        assert reason.endswith("gpu.xlarge")

    def test_globs(self) -> None:
        relax, reason = self.relax(paper(), exclude=["g*"])
        assert relax == "types"
        assert reason.startswith("no GPU type can be used: ")
        assert reason.endswith(": g3s.xlarge, g4dn.xlarge, g5.xlarge")

    def test_long_lists_are_cut(self) -> None:
        many = catalog(*(gpu_type(f"g{i}", eflops=None) for i in range(7)))
        assert self.relax(many)[1].endswith(": g0, g1, g2, g3, g4 and 2 more")

    @pytest.mark.parametrize("policy", ["cost-first", "performance-first"])
    def test_a_baseline_with_tiering_only(self, policy: str) -> None:
        relax, reason = self.relax(paper(), policy=policy, architecture="tiering")
        assert relax == "architecture"
        assert reason == f"policy {policy} considers only single-anchor clusters"


class TestWhyNot:
    def test_the_winner(self) -> None:
        found = why(paper(), "g4dn.xlarge")
        assert found.verdict == "g4dn.xlarge is in the best cluster"
        assert (found.gap, found.matches_at) == (0.0, Decimal("2.8526"))

    def test_a_slower_gpu(self) -> None:
        found = why(paper(), "g5.xlarge")
        assert found.best is not None
        assert found.gap == pytest.approx(0.383, abs=5e-4)
        assert found.matches_at == Decimal("5.3006")
        assert (
            found.verdict
            == "The best cluster with g5.xlarge, 9 x g5.xlarge (spot) + 1 x t3.xlarge (on-demand)"
            " at $2.8826/h, has 38.3% less throughput; it would equal the winner's $2.8526/h"
            " cluster at $5.3006/h"
        )

    def test_a_gpu_that_never_matches(self) -> None:
        found = why(paper(), "g3s.xlarge", 5)
        assert found.matches_at is None
        assert (
            "no cluster with it that the quotas and the number of nodes allow equals the winner"
            in found.verdict
        )

    def test_other_objectives_have_other_words(self) -> None:
        assert "lower Z" in why(paper(), "g5.xlarge", objective="flopp").verdict
        assert (
            "higher cost per work" in why(paper(), "g5.xlarge", objective="cost-per-work").verdict
        )

    def test_a_slower_job_takes_longer(self) -> None:
        job = {"work": "100h", "mttp": "12h"}
        winner = ask(paper(), objective="makespan", **job)[0].outlook
        found = why(paper(), "g5.xlarge", objective="makespan", **job)
        assert winner is not None and found.best is not None and found.best.outlook is not None
        assert (
            f"{found.best.outlook.total_s / winner.total_s - 1:.1%} longer expected time"
            in found.verdict
        )

    def test_a_dearer_memory_node(self) -> None:
        found = why(paper(), "m6i.xlarge")
        assert found.gap == 0
        assert found.verdict.endswith("is as good as the winner and costs $0.0220/h more")

    def test_a_twin_that_loses_by_its_name(self) -> None:
        found = why(catalog(gpu_type("a"), gpu_type("b"), cpu_type()), "b")
        assert (found.gap, found.best is None) == (0, False)
        assert found.verdict.endswith("and costs the same; fewer memory nodes, then names decide")

    def test_a_winner_that_trains_nothing(self) -> None:
        flat = (HybridSpeedup(0.5, 30, 5),)  # K = 0 up to 26 VMs; Cost-First does not look
        two = catalog(
            gpu_type("a", speedups=flat), gpu_type("b", spot_usd_per_hour="0.31", speedups=flat)
        )
        found = why(two, "b", "1.9", policy="cost-first")
        assert found.gap is None
        assert "no measured throughput to compare" in found.verdict

    def test_a_memory_node_that_loses(self) -> None:
        found = why(paper(), "d3.xlarge")
        assert found.gap is not None and found.gap > 0

    def test_a_rejected_type(self) -> None:
        found = why(paper(), "c5.xlarge", checkpoint_size="5GB")
        assert found.rejection is not None
        assert found.rejection.reason == "memory"
        assert found.verdict.startswith(
            "c5.xlarge is not considered: memory 8 GiB, needed 2 x 5 GB"
        )

    def test_beyond_the_budget(self) -> None:
        found = why(paper(), "g5.xlarge", "0.4")
        assert found.rejection is not None
        assert found.rejection.reason == "budget"
        assert "$0.4682/h" in found.verdict
        assert why(paper(), "c6in.xlarge", "0.3").verdict.startswith(
            "c6in.xlarge is beyond the budget"
        )

    @pytest.mark.parametrize(("more", "reason"), [(1.003, "memory"), (0.997, "budget")])
    def test_a_little_too_little_memory_is_not_the_budget(self, more: float, reason: str) -> None:
        """Two nodes hold together what one does not, and cost more than the budget."""
        room = REAL_NODES.room_bytes(8 * 2**30)
        found = replace(shop(memory_gib=8.0), memory_nodes=REAL_NODES)
        budget = "0.3" if reason == "memory" else "0.29"
        asked = why(
            found, "cpu.xlarge", budget, checkpoint_size=int(room * more), buffers=1, max_nodes=1
        )
        assert asked.rejection is not None and asked.rejection.reason == reason
        assert ("has too little memory: memory 8 GiB" in asked.verdict) == (reason == "memory")
        assert "costs $0.5000/h" in asked.verdict or reason == "budget"

    def test_beyond_the_quotas(self) -> None:
        one_node = Quota("Standard", Market.ON_DEMAND, 4)
        needs_two = replace(shop(quotas=(one_node,)), n_sat=SaturationTable((1.0,), (1,)))
        found = why(needs_two, "cpu.xlarge")
        assert found.best is None
        assert "quota" in found.verdict

    @pytest.mark.parametrize("budget", [3, "0.4"])
    def test_a_memory_node_where_no_architecture_has_any(self, budget: Any) -> None:
        for changes in ({"architecture": "single-anchor"}, {"policy": "cost-first"}):
            found = why(paper(), "c5.xlarge", budget, **changes)
            assert found.best is None
            assert (
                found.verdict
                == "c5.xlarge is not considered: single-anchor clusters have no memory nodes"
            )

    def test_the_baselines_compare_by_their_own_measure(self) -> None:
        # By throughput: 16 x g4dn.xlarge are faster than the 7 x g5.xlarge that Performance-First
        # takes.
        found = why(paper(), "g4dn.xlarge", policy="performance-first")
        assert found.matches_at is None
        assert found.gap == pytest.approx(1 - 1404.4249 / 764.1011, abs=1e-6)
        assert "83.8% more throughput, which this policy does not rank by" in found.verdict
        found = why(paper(), "g5.xlarge", policy="cost-first")
        assert found.gap == pytest.approx(1 - 764.1011 / 1404.4249, abs=1e-6)
        assert "45.6% less throughput, which this policy does not rank by" in found.verdict
        assert found.matches_at == Decimal("5.5330")

    def test_an_unknown_type(self) -> None:
        with pytest.raises(RequestError, match="explain: 'g4dn.xlarg' .*g4dn.xlarge"):
            why(paper(), "g4dn.xlarg")
        with pytest.raises(RequestError, match="such as g3s.xlarge, g"):
            why(paper(), "???")

    def test_a_name_with_glob_characters_means_itself(self) -> None:
        odd = catalog(gpu_type("g[1]"), gpu_type("g1", spot_usd_per_hour="0.2"), cpu_type())
        found = why(odd, "g[1]")
        assert found.best is not None
        assert found.best.cluster.gpu.name == "g[1]"

    @settings(max_examples=examples(100))
    @given(case=cases(), data=st.data())
    def test_it_answers_for_every_type(self, case: Case, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([i.name for i in case.catalog]))
        found = why_not(case.catalog, case.request, name)
        plans = oracle.plans(case.catalog, case.request)
        having = [p for p in plans if name in (p.gpu, p.memory)]
        winner = oracle.ranking(plans, case.request.budget, 1)
        best = oracle.ranking(having, case.request.budget, 1)
        assert (found.rejection is None) or not best
        if not best:
            assert found.best is None
            return
        assert found.best is not None
        cluster = found.best.cluster
        memory = (cluster.memory.instance.name, cluster.memory.count) if cluster.memory else ("", 0)
        assert (cluster.architecture, cluster.gpu.name, cluster.gpu_count, *memory) == best[
            0
        ].cluster
        assert ("is in the best cluster" in found.verdict) == (best == winner)
        matching = [p for p in having if oracle.as_good_as(p.value, winner[0].value)]
        assert found.matches_at == (usd(min(p.micro_usd for p in matching)) if matching else None)
        if case.request.policy is PolicyName.DEEPVM:
            expected = (winner[0].value[0] - best[0].value[0]) / abs(winner[0].value[0])
            assert found.gap == pytest.approx(float(expected), abs=1e-9)
            return
        fastest = solve(case.catalog, replace(case.request, top=1, solver=SolverName.FRONTIER))[
            0
        ].throughput
        if best == winner:
            assert found.gap == 0
        elif fastest:
            assert found.gap == pytest.approx(1 - found.best.throughput / fastest, abs=1e-9)
        else:
            assert found.gap is None


class TestNextChange:
    @settings(max_examples=examples(100))
    @given(case=cases())
    def test_it_is_the_next_budget_that_buys_something_better(self, case: Case) -> None:
        change = solve(case.catalog, replace(case.request, solver=SolverName.FRONTIER)).next_change
        plans = oracle.plans(case.catalog, case.request)
        now = oracle.ranking(plans, case.request.budget, 1)
        if change is None:
            best = oracle.ranking(plans, Decimal(10**9), 1)
            assert not best or (now and oracle.as_good_as(now[0].value, best[0].value))
            return
        assert change.budget > case.request.budget
        then = oracle.ranking(plans, change.budget, 1)[0]
        cluster = change.recommendation.cluster
        memory = (cluster.memory.instance.name, cluster.memory.count) if cluster.memory else ("", 0)
        assert (cluster.architecture, cluster.gpu.name, cluster.gpu_count, *memory) == then.cluster
        assert usd(then.micro_usd) == change.budget
        before = oracle.ranking(plans, change.budget - usd(1), 1)
        assert [p.cluster for p in before] == [p.cluster for p in now]
        if now:
            assert not oracle.as_good_as(now[0].value, then.value)
        if not now:
            assert change.gain is None
        elif case.request.policy is PolicyName.DEEPVM:
            assert change.gain is not None
            assert change.gain > 0

    def test_the_paper(self) -> None:
        change = ask(paper(), 3).next_change
        assert change is not None
        assert change.budget == Decimal("3.0104")
        assert (
            str(change.recommendation.cluster)
            == "18 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand)"
        )
        assert change.gain == pytest.approx(0.04797, abs=1e-5)

    def test_from_nothing(self) -> None:
        change = ask(paper(), 0).next_change
        assert change is not None
        assert (change.budget, change.gain) == (Decimal("0.3242"), None)

    def test_none_at_the_top(self) -> None:
        assert ask(paper(), 1000).next_change is None


class TestAlternatives:
    def test_they_are_the_best_by_the_other_objectives(self) -> None:
        answer = ask(paper(), "6.5")
        found = {a.objective.value: str(a.recommendation.cluster) for a in answer.alternatives}
        assert found["flopp"] == "32 x g4dn.xlarge (spot) + 2 x c5.xlarge (on-demand)"
        assert set(found) == {"flopp", "cost-per-work"}

    def test_only_where_they_differ(self) -> None:
        assert "flopp" not in {a.objective.value for a in ask(paper(), 3).alternatives}

    def test_baselines_have_none(self) -> None:
        assert ask(paper(), 3, policy="cost-first").alternatives == ()

    def test_none_where_nothing_is_feasible(self) -> None:
        assert ask(paper(), 0).alternatives == ()

    @settings(max_examples=examples(100))
    @given(case=cases())
    def test_the_oracle_agrees(self, case: Case) -> None:
        request = replace(case.request, top=1, solver=SolverName.FRONTIER)
        answer = solve(case.catalog, request)
        for alternative in answer.alternatives:
            other = replace(request, objective=alternative.objective)
            assert alternative.objective is not request.objective
            best = oracle.answer(case.catalog, other)[0]
            assert alternative.recommendation.cluster.micro_usd_per_hour == best.micro_usd
            assert alternative.recommendation.cluster.gpu.name == best.gpu


class TestRejections:
    def reasons(self, found: Catalog, budget: Any = 3, **changes: Any) -> dict[str, str]:
        return {r.instance_type: r.reason for r in ask(found, budget, **changes).rejections}

    def test_none_without_a_reason(self) -> None:
        assert self.reasons(paper()) == {}

    def test_unprofiled(self) -> None:
        assert (
            self.reasons(catalog(gpu_type(), gpu_type("p2.xlarge", eflops=None)))["p2.xlarge"]
            == "unprofiled"
        )

    def test_excluded(self) -> None:
        for changes, left_out in [
            ({"exclude": "g5.*"}, {"g5.xlarge"}),
            ({"instance_type": ["g4dn.xlarge", "g3s.*"]}, {"g5.xlarge"}),
            ({"memory_node": "c[0-4]*.xlarge"}, CPUS - {"c3.xlarge", "c4.xlarge"}),
            ({"exclude": ["t3*", "*3.xlarge"]}, {"t3.xlarge", "c3.xlarge", "d3.xlarge"}),
        ]:
            found = self.reasons(paper(), **changes)
            assert {n for n, reason in found.items() if reason == "excluded"} == left_out

    def test_excluded_by_model(self) -> None:
        two = catalog(
            gpu_type("a"),
            gpu_type("b", gpu=replace(paper()["g5.xlarge"].gpu, name="A10G")),
            cpu_type(),
        )
        assert self.reasons(two, gpu="A10*") == {"a": "excluded"}

    def test_memory(self) -> None:
        found = ask(
            catalog(gpu_type(), cpu_type(memory_gib=None), cpu_type("small", memory_gib=0.5)), 3
        ).rejections
        assert {r.instance_type: r.reason for r in found} == {
            "cpu.xlarge": "memory",
            "small": "memory",
        }
        assert {r.detail for r in found} == {
            "memory unknown, needed 2 x 300 MB = 0.559 GiB (eq. 6)",
            "memory 0.5 GiB, needed 2 x 300 MB = 0.559 GiB (eq. 6)",
        }

    def test_network_unknown(self) -> None:
        two = catalog(gpu_type(network_gbps=None), cpu_type(network_gbps=None))
        assert self.reasons(two, architecture="tiering") == {
            "gpu.xlarge": "network-unknown",
            "cpu.xlarge": "network-unknown",
        }
        # It still is an anchor's type
        assert self.reasons(two) == {"cpu.xlarge": "network-unknown"}

    def test_no_spot_price(self) -> None:
        assert (
            self.reasons(catalog(gpu_type(spot_usd_per_hour=None), cpu_type()))["gpu.xlarge"]
            == "no-spot-price"
        )

    def test_no_on_demand_price(self) -> None:
        two = catalog(gpu_type(on_demand_usd_per_hour=None), cpu_type(on_demand_usd_per_hour=None))
        assert self.reasons(two, architecture="single-anchor") == {
            "gpu.xlarge": "no-on-demand-price"
        }
        assert self.reasons(two)["cpu.xlarge"] == "no-on-demand-price"

    def test_no_curve(self) -> None:
        two = catalog(gpu_type(), gpu_type("bare", speedups=()), cpu_type())
        assert self.reasons(two) == {"bare": "no-curve"}

    def test_not_scaling(self) -> None:
        late = HybridSpeedup(0.5, 30, 5)  # its tangent is negative up to n = 26
        two = catalog(gpu_type(), gpu_type("late", speedups=(late,)), cpu_type())
        assert self.reasons(two, max_nodes=20) == {"late": "not-scaling"}
        assert self.reasons(two, budget=100, max_nodes=30) == {}

    def test_quota(self) -> None:
        none = (Quota("G and VT", Market.SPOT, 3), Quota("Standard", Market.ON_DEMAND, 3))
        assert self.reasons(shop(quotas=none)) == {"gpu.xlarge": "quota", "cpu.xlarge": "quota"}

    def test_quota_of_the_pieces_together(self) -> None:
        quotas = (Quota("G and VT", Market.ON_DEMAND, 0), Quota("Standard", Market.ON_DEMAND, 4))
        needs_two = replace(shop(quotas=quotas), n_sat=SaturationTable((1.0,), (1,)))
        assert self.reasons(needs_two)["gpu.xlarge"] == "quota"

    def test_a_gpu_type_without_memory_nodes_is_not_blamed_on_quotas(self) -> None:
        found = self.reasons(paper(), checkpoint_size="100GB", architecture="tiering")
        assert set(found.values()) == {"memory"}

    def test_a_gpu_type_is_not_blamed_on_quotas_where_max_nodes_is_too_small(self) -> None:
        found = self.reasons(paper(), architecture="single-anchor", max_nodes=1)
        assert set(found.values()) == {"max-nodes"}

    def test_budget(self) -> None:
        found = ask(paper(), "0.4").rejections
        assert {r.instance_type: r.reason for r in found} == {"g5.xlarge": "budget"}
        assert found[0].detail == "its cheapest cluster costs $0.4682/h"

    @settings(max_examples=examples(100))
    @given(case=cases())
    def test_every_gpu_type_is_in_a_feasible_cluster_or_rejected(self, case: Case) -> None:
        answer = solve(case.catalog, replace(case.request, solver=SolverName.FRONTIER))
        rejected = {r.instance_type: r.reason for r in answer.rejections}
        assert len(rejected) == len(answer.rejections)
        assert all(r.detail for r in answer.rejections)
        plans = oracle.plans(case.catalog, case.request)
        feasible = oracle.ranking(plans, case.request.budget, len(plans) and 1)
        used = {p.gpu for p in plans if usd(p.micro_usd) <= case.request.budget}
        assert {i.name for i in case.catalog if i.gpu} == used | {
            n for n in rejected if case.catalog[n].gpu
        }
        assert not used & set(rejected)
        assert not {p.memory for p in plans} & set(rejected)
        for name, reason in rejected.items():
            if case.catalog[name].gpu:
                assert (reason == "budget") == any(p.gpu == name for p in plans)
        assert bool(feasible) == bool(answer)
