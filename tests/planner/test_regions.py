"""Several regions ranked together: the oracle is the brute force over all of them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import oracle
from support.builders import catalog, cpu_type, gpu_type
from support.effort import examples
from support.planner.strategies import cases, repriced
from support.planner.trained_cases import catalog_of, plain_gpu, plain_shop, request_of
from support.planning import recommend

from deepvm.core.cluster.instances import Catalog
from deepvm.planner.recommend import solve
from deepvm.planner.regions import compare
from deepvm.planner.request import PolicyName


def region(name: str, spot: str, **changes: object) -> Catalog:
    return replace(catalog(gpu_type(spot_usd_per_hour=spot), cpu_type(), **changes), region=name)


def test_the_best_regions_clusters_come_first_and_ranks_run_through() -> None:
    found = compare(
        [
            recommend(region(n, p), 3)
            for n, p in (("dear-1", "0.4"), ("cheap-1", "0.2"), ("mid-1", "0.3"))
        ]
    )
    assert [a.catalog.region for a in found.answers] == ["cheap-1", "mid-1", "dear-1"]
    assert [p.recommendation.rank for p in found.ranked] == [1, 2, 3]
    assert found.ranked[0].answer.catalog.region == "cheap-1"


def test_a_region_with_nothing_feasible_stands_last() -> None:
    found = compare([recommend(region("poor-1", "9"), 3), recommend(region("rich-1", "0.2"), 3)])
    assert [a.catalog.region for a in found.answers] == ["rich-1", "poor-1"]
    assert all(p.answer.catalog.region == "rich-1" for p in found.ranked)


def test_nothing_anywhere() -> None:
    found = compare([recommend(region(n, "9"), 0.1) for n in ("b-1", "a-1")])
    assert not found.ranked
    assert [a.catalog.region for a in found.answers] == ["a-1", "b-1"]


def test_equal_clusters_are_ordered_by_region() -> None:
    found = compare([recommend(region(n, "0.2"), 3, top=1) for n in ("b-1", "a-1")])
    assert [p.answer.catalog.region for p in found.ranked] == ["a-1"]


class TestWhatPerhapsCannotBeHad:
    """A cloud that lists every type everywhere says nothing of whether there is one."""

    def first(self, unsure_price: str, **options: object) -> str:
        places = [region("sure-1", "0.3"), region("listed-1", unsure_price, unsure="X lists all")]
        found = compare([recommend(place, 3, **options) for place in places])  # type: ignore[arg-type]
        return found.ranked[0].answer.catalog.region

    def test_it_comes_after_what_can_be_had_unless_it_is_a_quarter_better(self) -> None:
        assert self.first("0.28") == "sure-1"
        assert self.first("0.1") == "listed-1"
        assert (
            self.first("0.28", objective="flopp") == "sure-1"
            and self.first("0.1", objective="flopp") == "listed-1"
        )
        assert self.first("0.28", objective="cost-per-work") == "sure-1"

    def test_alone_it_is_ranked_as_ever_and_the_doubt_is_said(self) -> None:
        best = recommend(region("listed-1", "0.2", unsure="X lists all"), 3)[0]
        assert best.cluster == recommend(region("listed-1", "0.2"), 3)[0].cluster
        assert "X lists all: check before you rely on it" in best.warnings


@settings(max_examples=examples(60))
@given(case=cases(), cheaper=st.sampled_from([1, 2, 3]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_it_is_the_brute_force_over_all_regions(case: object, cheaper: int) -> None:
    here, request = case.catalog, case.request  # type: ignore[attr-defined]

    there = replace(
        here,
        region="there-1",
        instances=tuple(repriced(i, lambda price: price + Decimal(cheaper) / 100) for i in here),
    )
    here = replace(here, region="here-1")
    answers = [solve(c, request) for c in (there, here)]
    assume(all(not a.doubt for a in answers))
    found = compare(answers)
    plans = [
        (p, c.region)
        for c in (here, there)
        for p in oracle.ranking(oracle.plans(c, request), request.budget, 10**6)
    ]
    assert bool(found.ranked) == bool(plans)
    if not plans or request.policy is PolicyName.PERFORMANCE_FIRST:
        return
    best = max(p.value for p, _ in plans)
    tied = [
        (p.micro_usd, p.memory_count, p.architecture, p.gpu, p.count, p.memory, r)
        for p, r in plans
        if oracle.as_good_as(p.value, best)
    ]
    first = found.ranked[0]
    cluster = first.recommendation.cluster
    assert (
        cluster.micro_usd_per_hour,
        cluster.gpu.name,
        cluster.gpu_count,
        first.answer.catalog.region,
    ) == (min(tied)[0], min(tied)[3], min(tied)[4], min(tied)[6])


def test_what_is_not_believed_comes_first_in_no_comparison() -> None:
    """Two regions, alike but for their names: the faster cluster is beyond what its network was
    checked with.
    """
    shop = plain_shop(
        {
            "g2.x": plain_gpu([20.0 * n for n in range(1, 13)], fitted=2),
            "a1.x": plain_gpu([30.0] * 12),
        },
        budget=10**7,
    )
    one, other = (replace(catalog_of(shop), region=name) for name in ("one-1", "other-1"))
    alone = solve(one, request_of(shop, rank=None))
    both = compare([solve(found, request_of(shop, rank=None)) for found in (one, other)])
    assert alone[0].prediction is not None and alone[0].prediction.trusted
    assert [p.recommendation.cluster.gpu.name for p in both.ranked][0] == alone[0].cluster.gpu.name
    assert all(p.recommendation.prediction.trusted for p in both.ranked[:2])  # type: ignore[union-attr]
