from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from support.builders import catalog, cpu_type, gpu_type, hybrid, paper
from support.planning import explain, recommend

from deepvm.core.cluster.instances import Gpu, Market, Quota, Reservation
from deepvm.core.cluster.speedup import HybridSpeedup, RingSpeedup
from deepvm.errors import MissingDataError, RequestError
from deepvm.planner.candidates import architectures_of
from deepvm.planner.request import Objective, PlanRequest, PolicyName, SolverName, SpeedupKind
from deepvm.services.recommend import sweep


def test_the_defaults_are_those_of_the_dataclass() -> None:
    assert PlanRequest.parse(3) == PlanRequest(budget=Decimal(3))


def test_everything_at_once() -> None:
    quota = Quota("G", Market.SPOT, 8)
    found = PlanRequest.parse(
        "2.5",
        checkpoint_size="512MiB",
        buffers="3",
        objective="cost-per-work",
        policy="noscale",
        architecture="tiering",
        speedup="ring",
        gpu="T4",
        instance_type=["g4dn.*", "g5.*"],
        exclude="c3.*",
        memory_node="c*",
        max_nodes=" 12 ",
        quotas=[quota],
        top="5",
        solver="frontier",
        time_limit_s="1.5",
    )
    assert found == PlanRequest(
        budget=Decimal("2.5"),
        checkpoint_bytes=512 * 2**20,
        buffers=3,
        objective=Objective.COST_PER_WORK,
        policy=PolicyName.NOSCALE,
        architectures=("tiering",),
        speedup=SpeedupKind.RING,
        gpus=("T4",),
        instance_types=("g4dn.*", "g5.*"),
        exclude=("c3.*",),
        memory_nodes=("c*",),
        max_nodes=12,
        quotas=(quota,),
        top=5,
        solver=SolverName.FRONTIER,
        time_limit_s=1.5,
    )
    assert found.budget_micro_usd == 2_500_000
    assert found.memory_needed_bytes == 3 * 512 * 2**20


def test_no_quotas_are_not_the_catalog_s() -> None:
    assert PlanRequest.parse(3, quotas=[]).quotas == ()
    assert PlanRequest.parse(3).quotas is None


def test_a_catalog_s_list_of_quotas_stays_as_it_is() -> None:
    pool = gpu_type("mine", reserved=Reservation("mine", "gpu.xlarge", 2, "reservation"))
    quotas: Any = [Quota("G", Market.SPOT, 8)]
    own = catalog(gpu_type(), pool, quotas=quotas)
    request = PlanRequest.parse(3)
    assert request.quotas_of(own) == request.quotas_of(own) == (quotas[0], *own.pool_quotas)
    assert quotas == [Quota("G", Market.SPOT, 8)] and own.pool_quotas


def test_what_cannot_be_used_is_named() -> None:
    for option, value in [
        ("budget", -1),
        ("budget", "three"),
        ("budget", None),
        ("budget", float("nan")),
        ("budget", float("inf")),
        ("budget", 1e10),
        ("checkpoint_size", "300 bananas"),
        ("checkpoint_size", "0MB"),
        ("buffers", 0),
        ("buffers", 1001),
        ("buffers", 1.5),
        ("buffers", True),
        ("buffers", "two"),
        ("objective", "speed"),
        ("policy", "DeepVM"),
        ("architecture", "ring"),
        ("speedup", "logistic"),
        ("training", "llama-8b"),
        ("max_nodes", 0),
        ("max_nodes", 4097),
        ("max_nodes", "1e3"),
        ("top", 0),
        ("top", 101),
        ("solver", "simplex"),
        ("time_limit_s", 0),
        ("time_limit_s", -1),
        ("time_limit_s", "soon"),
        ("time_limit_s", float("inf")),
    ]:
        arguments = {"budget": 3} | {option: value}
        with pytest.raises(RequestError) as caught:
            architectures_of(PlanRequest.parse(**arguments))
        assert caught.value.option == option
        assert caught.value.value == value or value != value
        assert caught.value.allowed
        assert option in str(caught.value)
        assert "expected" in str(caught.value)


def test_one_wrong_architecture_among_several() -> None:
    allowed = "on-demand or single-anchor or spot-storage or tiering"
    with pytest.raises(RequestError, match=rf"architecture: 'ring' \(expected {allowed}"):
        architectures_of(PlanRequest.parse(3, architecture=["tiering", "ring"]))


def test_every_way_in_refuses_an_unknown_architecture() -> None:
    for ask in (
        lambda: recommend(paper(), 3, architecture="ring"),
        lambda: sweep(paper(), [3], architecture="ring"),
        lambda: explain(paper(), 3, "g5.xlarge", architecture="ring"),
    ):
        with pytest.raises(RequestError, match="architecture: 'ring'"):
            ask()


def test_a_quota_stands_once() -> None:
    with pytest.raises(RequestError, match="quotas: 'G spot'"):
        PlanRequest.parse(3, quotas=[Quota("G", Market.SPOT, 1), Quota("G", Market.SPOT, 2)])


def test_a_glob_that_matches_nothing_is_a_mistake() -> None:
    for option, value, near in [
        ("gpu", "T5", "T4"),
        ("instance_type", "g4dn.xlarg", "g4dn.xlarge"),
        ("instance_type", "c5.xlarge", "g"),  # a CPU type does not train
        ("exclude", "p5.*", "g3s.xlarge"),
        ("memory_node", "g5.xlarge", "c5.xlarge"),  # a GPU type holds no checkpoints
        ("memory_node", "", "c3.xlarge"),
    ]:
        with pytest.raises(RequestError) as caught:
            recommend(paper(), 3, **{option: value})  # type: ignore[arg-type]
        assert (caught.value.option, caught.value.value) == (option, value)
        assert near in caught.value.allowed


def test_models_are_read_in_any_case() -> None:
    shop = catalog(
        gpu_type("a", gpu=Gpu("A10G")), gpu_type("b", spot_usd_per_hour="0.2"), cpu_type()
    )
    for word in ("A10G", "a10g", "A10*", "a1*"):
        assert {r.cluster.gpu.name for r in recommend(shop, 3, gpu=word)} == {"a"}


def test_a_kind_of_curve_that_no_type_has() -> None:
    with pytest.raises(
        MissingDataError, match="no type of catalog test has a general ring speed-up curve.*hybrid"
    ):
        recommend(paper(), 3, speedup="ring")
    special = catalog(gpu_type(speedups=(HybridSpeedup(0.1, 9, 5, workload="resnet"),)))
    with pytest.raises(MissingDataError, match="all tied to a workload"):
        recommend(special, 3)


def test_the_kind_of_curve() -> None:
    shop = catalog(gpu_type(speedups=(*hybrid(), RingSpeedup(1.0, 0.1))), cpu_type())
    assert recommend(shop, 3)[0].speedup_kind == "hybrid"
    assert recommend(shop, 3, speedup="ring")[0].speedup_kind == "ring"
    fixed = catalog(
        gpu_type(speedups=(*hybrid(), RingSpeedup(1.0, 0.1))), cpu_type(), default_speedup="ring"
    )
    assert recommend(fixed, 3).speedup_kind == "ring"


def test_the_baselines_take_no_objective() -> None:
    with pytest.raises(RequestError, match=r"^objective does not go with the policy cost-first"):
        PlanRequest.parse(3, policy="cost-first", objective="flopp")
    assert PlanRequest.parse(3, policy="noscale", objective="flopp").objective is Objective.FLOPP
