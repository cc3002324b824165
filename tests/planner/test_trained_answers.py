"""Answers where a model is trained: what was once wrong, and why there is no answer."""

from __future__ import annotations

from typing import Any

import pytest
from support.planner.trained_cases import catalog_of, plain_gpu, plain_node, plain_shop, request_of
from support.planning import recommend

from deepvm import gpus, load_catalog
from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import Catalog
from deepvm.core.training.speed import Training
from deepvm.planner.explain import why_not
from deepvm.planner.infeasible import Infeasible
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import PlanRequest

LINEAR = [10.0 * n for n in range(1, 13)]


def answer(shop: dict[str, Any], **options: Any) -> Recommendations:
    return solve(catalog_of(shop), request_of(shop, **({"rank": None} | options)))


def reason(shop: dict[str, Any], **options: Any) -> Infeasible:
    found = answer(shop, **options).infeasible
    assert found is not None
    return found


def rejection(found: Recommendations, name: str) -> Rejection:
    return next(r for r in found.rejections if r.instance_type == name)


class TestSpeeds:
    def test_a_speed_is_what_its_source_says(self) -> None:
        """Also where each VM is fastest at a number between those that curves are sampled at, such
        as where it fits.
        """
        for first in [1, 2, 5, 7, 11]:
            table = [None if n < first else 10 * n / (1 + 0.2 * (n - first)) for n in range(1, 13)]
            found = answer(plain_shop({"g.x": plain_gpu(table)}), top=100, rank="plans")
            assert {r.cluster.gpu_count for r in found} == set(range(first, 13))
            for r in found:
                assert r.throughput == pytest.approx(table[r.cluster.gpu_count - 1])

    def test_what_is_not_known_or_does_not_fit_is_said(self) -> None:
        unknown, small = plain_gpu("nobody published it"), plain_gpu([None] * 12)
        gpus = {"known.x": plain_gpu(LINEAR), "small.x": small, "odd.x": unknown}
        found = answer(plain_shop(gpus))
        assert {r.cluster.gpu.name for r in found} == {"known.x"}
        assert (rejection(found, "odd.x").reason, rejection(found, "odd.x").detail) == (
            "speed-unknown",
            "nobody published it",
        )
        assert rejection(found, "small.x").reason == "gpu-memory"

    @pytest.mark.parametrize("name", ["g5.48xlarge", "g6.48xlarge"])
    def test_gpus_that_lack_a_little_memory_are_not_beyond_the_budget(self, name: str) -> None:
        """One VM lacks 0.8 % of its memory, and two, which hold the model, cost too much."""
        prices = load_catalog("aws-us-east-1")
        training = Training(read_workload(model="llama-8b", method="fsdp"), PublishedPerformance())
        budget = float(prices[name].spot_usd_per_hour or 0) * 1.5
        request = PlanRequest.parse(budget, training=training, architecture="spot-storage")
        for found in (
            why_not(prices, request, name).rejection,
            rejection(solve(prices, request), name),
        ):
            assert found is not None and found.reason == "gpu-memory"
            assert "has 23.12 GB for a program, llama-8b needs 23.32 GB of each" in found.detail
            assert "costs" in found.detail

    def test_a_new_account_and_a_step_of_one_sample(self) -> None:
        """One VM alone trains, so that no cluster with an anchor could with any quota."""
        none = {
            (family, market): 0 for family in ("G", "Standard") for market in ("spot", "on-demand")
        }
        found = reason(plain_shop({"g.x": plain_gpu([10.0])}, quotas=none))
        assert found.constraint == "quota"
        assert (
            found.reason
            == "the quotas allow no cluster: they must cover 4 on-demand vCPUs of G for on-demand,"
            " or 4 spot vCPUs of G for spot-storage"
        )

    def test_nothing_fits(self) -> None:
        found = reason(plain_shop({"small.x": plain_gpu([None] * 12)}))
        assert found.constraint == "gpu-memory"
        assert "small.x" in found.reason and "of 16 GiB has " in found.reason
        assert "--method fsdp" in found.advice

    def test_it_would_fit_on_more_vms(self) -> None:
        found = reason(plain_shop({"g.x": plain_gpu([None] * 12 + [10.0] * 12)}, method="fsdp"))
        assert found.constraint == "gpu-memory" and "more than 12 nodes" in found.advice

    def test_nothing_is_known(self) -> None:
        found = reason(plain_shop({"odd.x": plain_gpu("nobody published it")}))
        assert (found.constraint, found.reason) == (
            "types",
            "no GPU type can be used: nobody published it: odd.x",
        )
        assert "another --precision" in found.advice


class TestWheels:
    """A T4g is a T4 beside an Arm processor, for which PyTorch's wheels have no kernels: it would
    train nothing.
    """

    @staticmethod
    def catalog() -> Catalog:
        return load_catalog("aws-us-east-1", prices="snapshot")

    @staticmethod
    def asked(**options: Any) -> Recommendations:
        training = Training(read_workload(model="resnet50"), PublishedPerformance())
        return recommend(TestWheels.catalog(), "0.5", training=training, **options)

    def test_it_is_left_out_and_the_reason_is_said(self) -> None:
        found = self.asked()
        assert "T4g" not in {r.cluster.gpu.gpu.name for r in found if r.cluster.gpu.gpu}
        why = rejection(found, "g5g.xlarge")
        assert why.reason == "no-wheels" and why.detail.endswith("allow it with --gpu T4g")

    @pytest.mark.parametrize("named", [{"gpu": "T4g"}, {"instance_type": "g5g.xlarge"}], ids=str)
    def test_who_has_built_pytorch_names_it(self, named: dict[str, str]) -> None:
        first = self.asked(**named)[0]
        assert first.cluster.gpu.name.startswith("g5g.")
        assert any("it takes one that you have built" in warning for warning in first.warnings)

    def test_a_pattern_names_nothing(self) -> None:
        for glob in [{"gpu": "T4*"}, {"instance_type": "g5*"}, {"cpu_architecture": "arm64"}]:
            assert "no-wheels" in {r.reason for r in self.asked(**glob).rejections}

    def test_catalogs_that_know_their_own_speeds_keep_it(self) -> None:
        found = recommend(self.catalog(), "0.5", estimates=True)
        assert "no-wheels" not in {r.reason for r in found.rejections}

    def test_gpus_does_not_list_it_first(self) -> None:
        listed = gpus(self.catalog(), model="resnet50")
        assert all(
            row.speed is None and "wheels" in row.why
            for row in listed.rows
            if row.gpu.name == "T4g"
        )
        assert gpus(self.catalog(), "T4g", model="resnet50").rows[0].speed is not None


class TestWhyNot:
    def test_what_is_as_good_is_not_said_to_be_worse(self) -> None:
        """Two types are equally fast: the dearer one has half the vCPUs, so it is first."""
        gpus = {"few.x": plain_gpu(LINEAR, vcpus=4), "many.x": plain_gpu(LINEAR, vcpus=8)}
        gpus["many.x"]["spot"] = {zone: price - 1 for zone, price in gpus["many.x"]["spot"].items()}
        shop = plain_shop(gpus, architectures=("spot-storage",))
        request = request_of(shop, rank=None)
        assert solve(catalog_of(shop), request)[0].cluster.gpu.name == "few.x"
        verdict = why_not(catalog_of(shop), request, "many.x").verdict
        assert "is within 1 % of the winner" in verdict and "lower quota needs" in verdict


class TestLosses:
    SHORT = {"life_s": 60.0, "architectures": ("spot-storage",)}

    def test_no_cluster_that_is_never_trained_on(self) -> None:
        """With a restart of five minutes and VMs that live for one, one twentieth of the time is
        not left.
        """
        shop = plain_shop({"g.x": plain_gpu(LINEAR)}, **self.SHORT)
        found = reason(shop)
        assert found.constraint == "preemptions"
        assert (
            found.reason
            == "no cluster ever trains tiny: a spot VM lasts 60 s on average, and restarts, saves"
            " and lost work take nearly all of that"
        )
        both = answer(shop)
        assert both.on_demand is not None and both.on_demand.cluster.on_demand_count == 12
        assert rejection(both, "g.x").reason == "preemptions"

    def test_a_budget_is_not_to_blame_where_preemptions_are(self) -> None:
        assert (
            reason(plain_shop({"g.x": plain_gpu(LINEAR)}, budget=1, **self.SHORT)).constraint
            == "preemptions"
        )

    def test_small_clusters_are_trained_on_where_large_ones_never_are(self) -> None:
        shop = plain_shop({"g.x": plain_gpu(LINEAR)}, life_s=900.0, architectures=("spot-storage",))
        found = answer(shop, rank="plans", top=30)
        assert 0 < len(found) < 12
        assert all(r.prediction is not None and r.prediction.kept.value >= 0.05 for r in found)


class TestMemoryNodes:
    def test_a_model_whose_state_no_node_holds_alone(self) -> None:
        shop = plain_shop(
            {"g.x": plain_gpu(LINEAR)}, checkpoint=96 * 10**9, architectures=("tiering",)
        )
        first, *_ = answer(shop, rank="plans")
        # 13.7 GB each for 192 GB
        assert first.cluster.memory is not None and first.cluster.memory.count == 15
        assert first.cluster.gpu_count == 12

    def test_larger_nodes_where_they_cost_less_together(self) -> None:
        nodes = {"a.x": plain_node(gib=16.0), "b.x": plain_node(gib=256.0, on_demand=2_000_000)}
        shop = plain_shop(
            {"g.x": plain_gpu(LINEAR)},
            checkpoint=96 * 10**9,
            architectures=("tiering",),
            nodes=nodes,
        )
        assert str(answer(shop)[0].cluster) == "12 x g.x (spot) + 1 x b.x (on-demand)"


class TestRanking:
    def test_half_of_the_speed_is_not_given_away_step_by_step(self) -> None:
        """Each costs more than 1.5 times the next one for less than 5 %: only the first step is
        taken.
        """
        speeds = (100.0, 96.0, 92.0, 88.0)
        gpus = {
            f"{name}.x": plain_gpu([speed], spot={"": price}, sd=0.001)
            for name, speed, price in zip(
                "abcd", speeds, (9_000_000, 5_000_000, 3_000_000, 1_000_000), strict=True
            )
        }
        found = answer(plain_shop(gpus, nodes={}, architectures=("spot-storage",), max_nodes=1))
        assert found[0].cluster.gpu.name == "b.x"

    @pytest.mark.parametrize(("vcpus", "first"), [(4, "good.x"), (8, "slow.x")])
    def test_what_is_kept_before_a_dear_plan_is_shown_by_its_quota_need(
        self, vcpus: int, first: str
    ) -> None:
        gpus = {
            "dear.x": plain_gpu([100.0], spot={"": 9_000_000}),
            "good.x": plain_gpu([95.5], spot={"": 3_000_000}, vcpus=vcpus),
            # Within 1 % of the former, with 4 vCPUs
            "slow.x": plain_gpu([94.9], spot={"": 3_000_001}),
        }
        found = answer(plain_shop(gpus, architectures=("spot-storage",), max_nodes=1))
        assert found[0].cluster.gpu.name == first
