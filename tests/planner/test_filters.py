"""What a request leaves out, and what it says about that."""

from __future__ import annotations

import pytest
from support.builders import catalog, cpu_type, gpu_type
from support.planning import explain, recommend

from deepvm.core.cluster.instances import Catalog, Gpu, Market, Quota
from deepvm.errors import RequestError


def shop(**changes: object) -> Catalog:
    return catalog(
        gpu_type("one", gpu=Gpu("T4", 1, 16), cpu_architecture="x86_64"),
        gpu_type(
            "four",
            gpu=Gpu("T4", 4, 16),
            cpu_architecture="x86_64",
            eflops_basis="4 x one T4's",
            eflops=400.0,
        ),
        gpu_type("big", gpu=Gpu("A100", 1, 80), cpu_architecture="arm64", current_generation=False),
        gpu_type("vague", gpu=Gpu("A10G", 1, None)),
        cpu_type("plain", cpu_architecture="x86_64"),
        cpu_type("credits", burstable=True, on_demand_usd_per_hour="0.01"),
        cpu_type("part", unusable="an eighth of a GPU", on_demand_usd_per_hour="0.02"),
        **changes,
    )


def usable(**options: object) -> set[str]:
    answer = recommend(shop(), 10_000, **options)  # type: ignore[arg-type]
    return {i.name for i in shop()} - {r.instance_type for r in answer.rejections}


def why(name: str, **options: object) -> tuple[str, str]:
    answer = recommend(shop(), 10_000, **options)  # type: ignore[arg-type]
    return next((r.reason, r.detail) for r in answer.rejections if r.instance_type == name)


def test_what_is_left() -> None:
    for options, left in [
        ({}, {"one", "big", "vague", "plain"}),
        ({"estimates": True}, {"one", "four", "big", "vague", "plain"}),
        ({"burstable": True}, {"one", "big", "vague", "plain", "credits"}),
        ({"memory_node": "credits"}, {"one", "big", "vague", "credits"}),
        ({"gpu_memory_min": "40GiB"}, {"big", "plain"}),
        ({"gpu_memory_max": "16GiB"}, {"one", "plain"}),
        ({"gpu_total_memory_min": "64GiB", "estimates": True}, {"four", "big", "plain"}),
        ({"gpu_total_memory_min": "65GiB", "estimates": True}, {"big", "plain"}),
        ({"gpus_min": 2, "estimates": True}, {"four", "plain"}),
        ({"gpus_max": "1", "estimates": True}, {"one", "big", "vague", "plain"}),
        ({"generation": "current"}, {"one", "vague", "plain"}),
        ({"cpu_architecture": "x86_64"}, {"one", "plain"}),
        (
            {"cpu_architecture": "arm64", "architecture": "single-anchor"},
            {"big", "plain", "credits", "part"},
        ),
    ]:
        assert usable(**options) == left


def test_reasons_say_the_figures_and_the_next_step() -> None:
    assert why("one", gpu_memory_min="40GiB") == (
        "excluded",
        "each GPU has 16 GiB, wanted at least 40 GiB",
    )
    assert why("vague", gpu_total_memory_max="1TiB") == (
        "excluded",
        "its GPUs together have an unknown amount, wanted at most 1024 GiB",
    )
    assert (
        why("four", gpus_min=1, gpus_max=2, estimates=True)[1]
        == "it has 4 GPUs, wanted at least 1 and at most 2"
    )
    assert (
        why("big", generation="current")[1]
        == "it is of a previous generation, and --generation is current"
    )
    assert (
        why("vague", cpu_architecture="arm64")[1]
        == "its processors are unknown, not those of --cpu-arch arm64"
    )
    assert why("part") == ("unusable", "an eighth of a GPU")
    assert why("credits")[0] == "burstable"
    reason, detail = why("four")
    assert reason == "unprofiled"
    assert "'deepvm profile eflops --save'" in detail
    assert "the estimate of 400 (4 x one T4's) with --estimates" in detail


def test_estimated_figures_are_marked_wherever_they_appear() -> None:
    answer = recommend(shop(), 3, estimates=True, instance_type="four")
    assert answer[0].estimated
    assert answer[0].warnings[0] == "the eFLOPS of four are estimated: 4 x one T4's"
    assert not recommend(shop(), 3, instance_type="one")[0].estimated


def test_a_spot_price_above_the_on_demand_price_is_legal_and_pointed_out() -> None:
    odd = catalog(gpu_type(spot_usd_per_hour="1.5"), cpu_type())
    answer = recommend(odd, 100)
    assert answer[0].cluster.usd_per_hour <= 100
    assert answer[0].warnings == (
        (
            "gpu.xlarge costs more on the spot market, $1.5000/h, than on demand, $1.0000/h,"
            " where it is not preempted"
        ),
    )


def test_bad_values_are_named() -> None:
    for options, named in [
        ({"gpus_min": 0}, "gpus_min: 0"),
        ({"gpus_max": "many"}, "gpus_max: 'many'"),
        ({"gpus_min": 4, "gpus_max": 2}, "gpus_max: 2 (expected at least the minimum, 4"),
        ({"gpu_memory_min": "16"}, "gpu_memory_min: '16'"),
        ({"generation": "next"}, "generation: 'next' (expected current or any"),
        ({"cpu_architecture": "sparc"}, "cpu_architecture: 'sparc' (expected x86_64 or arm64"),
    ]:
        with pytest.raises(RequestError, match="^invalid value for " + named.replace("(", r"\(")):
            recommend(shop(), 3, **options)  # type: ignore[arg-type]


class TestAbsentTypes:
    gone = {
        "p2.*": "AWS no longer lists P2 types",
        "x.big": "x.big is not offered in zone use1-az3",
    }

    def test_a_glob_that_means_one_says_why(self) -> None:
        for options, reason in [
            ({"instance_type": "p2.xlarge"}, "AWS no longer lists P2 types"),
            ({"instance_type": "p2.*"}, "AWS no longer lists P2 types"),
            ({"memory_node": "x.big"}, "not offered in zone use1-az3"),
            ({"instance_type": "part"}, "part: an eighth of a GPU"),
            ({"instance_type": "plain"}, "plain: it has no GPU"),
        ]:
            with pytest.raises(RequestError) as error:
                recommend(shop(absent=self.gone), 3, **options)  # type: ignore[arg-type]
            assert f"({reason}" in error.value.allowed or reason in error.value.allowed

    def test_explain_says_why(self) -> None:
        with pytest.raises(RequestError, match="AWS no longer lists P2 types"):
            explain(shop(absent=self.gone), 3, "p2.8xlarge")

    def test_a_typing_error_is_not_explained_away(self) -> None:
        with pytest.raises(RequestError) as error:
            explain(shop(absent=self.gone), 3, "on")
        assert "lists" not in error.value.allowed


class TestQuotaMessages:
    def test_a_quota_in_use_counts_and_names_code_and_value(self) -> None:
        quota = Quota(
            "G and VT", Market.SPOT, 64, 40, "L-3819A6DF", "All G and VT Spot Instance Requests"
        )
        answer = recommend(
            catalog(gpu_type(), cpu_type(), quotas=(quota,)), 100, architecture="tiering"
        )
        assert answer[0].cluster.spot_count == 6  # 24 vCPUs are left
        assert answer[0].binding[0].constraint == "quota"
        assert (
            answer[0].binding[0].reason
            == "7 x gpu.xlarge would need 28 spot vCPUs of G and VT; the quota is 64, of which 40"
            " are in use; ask for at least 68 of All G and VT Spot Instance Requests"
            " (L-3819A6DF)"
        )

    def test_a_quota_of_zero_says_what_one_vm_needs(self) -> None:
        quota = Quota(
            "G and VT", Market.SPOT, 0, 0, "L-3819A6DF", "All G and VT Spot Instance Requests"
        )
        answer = recommend(catalog(gpu_type(), cpu_type(), quotas=(quota,)), 100)
        assert answer.infeasible is not None
        assert (
            "ask for at least 4 of All G and VT Spot Instance Requests (L-3819A6DF)"
            in answer.infeasible.reason
        )

    def test_more_in_use_than_allowed_leaves_nothing(self) -> None:
        assert Quota("P", Market.SPOT, 8, 12).left == 0
