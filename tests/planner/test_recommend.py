"""The Python API: what it accepts, what it refuses, and the answers around the ranking."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support.builders import catalog, cpu_type, gpu_type, hybrid, paper

from deepvm import explain, recommend, sweep
from deepvm.core.cluster.instances import Quota
from deepvm.core.cluster.speedup import MeasuredSpeedup, RingSpeedup
from deepvm.errors import MissingDataError, RequestError
from deepvm.planner.request import PolicyName
from deepvm.planner.search.enumeration import SolveStatus
from deepvm.planner.sweep import parse_budgets


def test_markets_may_be_named() -> None:
    answer = recommend(paper(), 10, quotas=[Quota("G and VT", "spot", 16)], instance_type="g4dn*")  # type: ignore[arg-type]
    assert answer[0].cluster.spot_count == 4


def test_quotas_that_stand_twice_are_refused() -> None:
    with pytest.raises(RequestError, match="every name once"):
        recommend(paper(), 3, quotas=[Quota("x", "spot", 1), Quota("x", "spot", 2)])  # type: ignore[arg-type]


def test_sweep_takes_names_and_numbers() -> None:
    rows = sweep(paper(), [3, 3.0, "3", Decimal(3)], ["performance-first"])
    assert {str(r.recommendation.cluster) for r in rows if r.recommendation} == {
        "6 x g5.xlarge (spot) + 1 x g5.xlarge (on-demand)"
    }
    assert [r.policy for r in sweep(paper(), [1])] == list(PolicyName)
    with pytest.raises(RequestError, match="noscale"):
        sweep(paper(), [1], ["fastest"])


def test_sweep_gives_what_recommend_gives() -> None:
    for policy in [p.value for p in PolicyName]:
        for objective in ["throughput", "flopp", "cost-per-work"]:
            # Has no objective, unlike other policies
            rule = policy in ("cost-first", "performance-first")
            for row in sweep(paper(), ["0.3", "3", "6.5"], [policy], objective=objective):
                one = recommend(
                    paper(), row.budget, policy=policy, objective=None if rule else objective, top=1
                )
                assert [r.cluster for r in one] == (
                    [row.recommendation.cluster] if row.recommendation else []
                )


def test_budgets() -> None:
    for text, budgets in [
        ("1", ["1"]),
        ("1,2.5", ["1", "2.5"]),
        ("0:1:0.25", ["0", "0.25", "0.5", "0.75", "1"]),
        ("0:1:0.4", ["0", "0.4", "0.8"]),
    ]:
        assert parse_budgets(text) == tuple(Decimal(b) for b in budgets)


def test_what_is_no_range_of_budgets() -> None:
    for text in [
        "",
        "1,",
        "1,,2",
        "1:2",
        "1:2:3:4",
        "2:1:1",
        "0:1:0",
        "0:1:-1",
        "a:b:c",
        "0:1e6:1e-3",
    ]:
        with pytest.raises(RequestError) as caught:
            parse_budgets(text)
        assert caught.value.option == "pw"


def test_the_name_of_a_catalog_is_not_a_catalog() -> None:
    with pytest.raises(RequestError, match="load_catalog"):
        explain("paper", 3, "g5.xlarge")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="load_catalog"):
        recommend(3, 3)  # type: ignore[arg-type]
    assert str(recommend("paper", 3)[0].cluster).startswith("17 x g4dn.xlarge")


def test_an_answer_shows_its_clusters_and_not_its_catalog() -> None:
    shown = repr(recommend(paper(), 3, top=1))
    assert (
        shown
        == "<Recommendations: 1: 17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand), $2.8526/h>"
    )
    assert "$0.3242/h" in repr(recommend(paper(), 0.3))


def test_an_answer_is_a_sequence() -> None:
    answer = recommend(paper(), 3)
    assert (len(answer), bool(answer), [r.rank for r in answer]) == (3, True, [1, 2, 3])
    assert answer[-1] is answer.configurations[2]
    assert list(answer[:2]) == list(answer.configurations[:2])
    assert not recommend(paper(), 0)


NO_SCALING = catalog(gpu_type(speedups=hybrid(0.5, 20, 10)), cpu_type())
"""Its curve is below 0 up to n = 16."""


@pytest.mark.parametrize("solver", ["ilp", "frontier"])
def test_the_baselines_do_not_look_at_the_scaling_factor(solver: str) -> None:
    """NoScale is DeepVM with K = 1, Cost-First takes the most VMs: what the curve says is not
    theirs to know.
    """
    noscale = recommend(NO_SCALING, 2, policy="noscale", solver=solver, top=1)[0]
    assert (noscale.cluster.gpu_count, noscale.throughput, noscale.usd_per_work) == (6, 0.0, None)
    first = recommend(NO_SCALING, 3, policy="cost-first", solver=solver, top=1)[0]
    assert first.cluster.gpu_count == 7
    assert recommend(NO_SCALING, 2, solver=solver).infeasible is not None


def test_a_type_that_does_not_scale_is_rejected_with_the_reason() -> None:
    answer = recommend(NO_SCALING, 100, max_nodes=5)
    assert [(r.instance_type, r.reason) for r in answer.rejections] == [
        ("gpu.xlarge", "not-scaling")
    ]
    assert answer.infeasible is not None
    assert answer.infeasible.constraint == "max-nodes"
    assert "allow more nodes" in answer.infeasible.advice


def test_nothing_larger_is_better_is_said_only_where_it_is_true() -> None:
    """Two VMs are slower than one here, and eight are faster: the limit on nodes is what stops
    them.
    """
    dip = gpu_type(speedups=(MeasuredSpeedup(((1.0, 1.0), (2.0, 0.5), (8.0, 3.0), (16.0, 5.0))),))
    first, *_ = recommend(catalog(dip, cpu_type(), default_speedup="measured"), 100, max_nodes=2)
    assert first.cluster.gpu_count == 1
    assert [b.constraint for b in first.binding] == ["max-nodes"]
    cheap = recommend(catalog(dip, cpu_type(), default_speedup="measured"), "0.6", max_nodes=100)[0]
    assert "the next number that is better" in cheap.binding[0].reason


def test_nearly_as_fast_for_less() -> None:
    flat = catalog(gpu_type(speedups=(RingSpeedup(0.0, 0.5),)), cpu_type(), default_speedup="ring")
    answer = recommend(flat, 10)
    assert answer.nearly is not None
    best = answer[0]
    assert answer.nearly.throughput >= 0.95 * best.throughput
    assert answer.nearly.usd_per_hour <= Decimal("0.9") * best.usd_per_hour
    cheaper = answer.nearly.usd_per_hour - Decimal("0.000001")
    assert recommend(flat, cheaper)[0].throughput < 0.95 * best.throughput
    assert recommend(paper(), 3).nearly is None  # saves 5 %, not worth a line
    assert recommend(flat, 10, objective="cost-per-work").nearly is None


def test_use_of_a_curve_beyond_its_fit_is_a_warning() -> None:
    fitted = catalog(
        gpu_type(speedups=(RingSpeedup(0.5, 0.03, fitted_to=4),)),
        cpu_type(),
        default_speedup="ring",
    )
    assert recommend(fitted, 1)[0].warnings == ()
    assert "beyond its measurements" in recommend(fitted, 3)[0].warnings[0]


def test_missing_curves_name_the_cure() -> None:
    only_ring = catalog(gpu_type(speedups=(RingSpeedup(1, 0.1),)), cpu_type())
    with pytest.raises(MissingDataError, match="default_speedup: ring"):
        recommend(only_ring, 3)
    only_workload = catalog(
        gpu_type(speedups=(RingSpeedup(1, 0.1, workload="resnet18"),)), cpu_type()
    )
    with pytest.raises(MissingDataError, match="tied to a workload"):
        recommend(only_workload, 3)


def test_what_is_in_the_way_and_what_to_change() -> None:
    for instances, options, constraint, advice in [
        ([cpu_type()], {}, "types", "catalog that has GPU types"),
        ([gpu_type(), cpu_type()], {"exclude": "gpu*"}, "types", "allow more types"),
        ([gpu_type(eflops=None), cpu_type()], {}, "types", "measure their eFLOPS on such VMs"),
        ([gpu_type(spot_usd_per_hour=None), cpu_type()], {}, "types", "spot price"),
        (
            [gpu_type(on_demand_usd_per_hour=None), cpu_type()],
            {"architecture": "single-anchor"},
            "types",
            "another architecture",
        ),
        (
            [gpu_type()],
            {"architecture": "tiering"},
            "memory",
            "allow the architecture on-demand, single-anchor",
        ),
        (
            [gpu_type(), cpu_type()],
            {"architecture": "tiering", "exclude": "cpu*"},
            "memory",
            "allow other memory nodes",
        ),
        (
            [gpu_type(), cpu_type()],
            {"architecture": "tiering", "checkpoint_size": "1TB"},
            "memory",
            "lower the checkpoint size",
        ),
        (
            [gpu_type(), cpu_type()],
            {"architecture": "single-anchor", "max_nodes": 1},
            "max-nodes",
            "at least 2",
        ),
        (
            [gpu_type(), cpu_type()],
            {"policy": "cost-first", "architecture": "tiering"},
            "architecture",
            "single-anchor",
        ),
        (
            [gpu_type(), cpu_type()],
            {"quotas": [Quota("G and VT", "spot", 3)]},
            "quota",
            "higher quota",
        ),  # type: ignore[arg-type]
    ]:
        answer = recommend(catalog(*instances), 100, **options)
        assert (answer.status, len(answer)) == (SolveStatus.INFEASIBLE, 0)
        assert answer.infeasible is not None
        assert answer.infeasible.constraint == constraint
        assert advice in answer.infeasible.advice
        assert ": ." not in answer.infeasible.reason and not answer.infeasible.reason.endswith(": ")


def test_names_that_look_like_globs_and_models_in_any_case() -> None:
    odd = catalog(gpu_type("g[1]"), gpu_type("g1"), cpu_type())
    assert {r.cluster.gpu.name for r in recommend(odd, 3, instance_type="g[1]", top=50)} == {
        "g[1]",
        "g1",
    }
    assert {r.cluster.gpu.name for r in recommend(odd, 3, exclude="g1", top=50)} == {"g[1]"}
    assert len(recommend(odd, 3, gpu="t4")) == 3


def test_explain_is_public() -> None:
    assert explain(paper(), 3, "g4dn.xlarge").gap == 0
    found = explain(paper(), 3, "g5.xlarge", policy="noscale")
    assert found.best is not None and found.gap is not None
    winner = recommend(paper(), 3, policy="noscale")[0]
    assert found.gap == pytest.approx(1 - found.best.throughput / winner.throughput)


def test_twins_cost_the_same() -> None:
    twins = catalog(gpu_type("a"), gpu_type("b"), cpu_type())
    assert "costs the same" in explain(twins, 3, "b").verdict
