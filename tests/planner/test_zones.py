"""Zones: a cluster stands in one zone, and the cheapest spot price may be where its memory nodes
are not sold.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import oracle
from support.builders import catalog, cpu_type, gpu_type
from support.effort import examples
from support.planner.agreement import assert_agree, blocks_for, by_ilp, enumerated
from support.planner.strategies import usd
from support.planning import explain, recommend

from deepvm.catalog.catalog_files import JSON_CATALOG
from deepvm.catalog.serialization import document_of
from deepvm.core.cluster.instances import Catalog, InstanceType, Quota, ZonePrice
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.planner.candidates import gather
from deepvm.planner.infeasible import Infeasible
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import Objective, PlanRequest, PolicyName, SolverName

PERFECT = (RingSpeedup(0.0, 0.0),)


def prices(**zones: str) -> dict[str, object]:
    """Spot prices by zone, as a type's attributes."""
    rows = sorted((Decimal(price), zone) for zone, price in zones.items())
    return {
        "spot_usd_per_hour": rows[0][0],
        "spot_zones": tuple(ZonePrice(zone, price) for price, zone in rows),
    }


def zoned(*more: InstanceType) -> Catalog:
    """A GPU type that is cheapest in z1, where only a dear memory node is sold."""
    return catalog(
        gpu_type("g", speedups=PERFECT, network_gbps=10.0, **prices(z1="0.30", z2="0.31")),
        cpu_type("m1", on_demand_usd_per_hour="2.0", zones=("z1",)),
        cpu_type("m2", on_demand_usd_per_hour="0.1", zones=("z2",)),
        *more,
        default_speedup="ring",
    )


@given(st.permutations([("z1", "0.30"), ("z2", "0.20"), ("z3", "0.25"), ("z4", "0.25")]))
@settings(max_examples=examples(24), deadline=None)
def test_the_order_in_which_zones_are_given_says_nothing(rows: list[tuple[str, str]]) -> None:
    zones = tuple(ZonePrice(zone, Decimal(price)) for zone, price in rows)
    gpu = gpu_type("g", speedups=PERFECT, spot_usd_per_hour=rows[0][1], spot_zones=zones)
    shop = catalog(gpu, cpu_type("m", on_demand_usd_per_hour="0.1"), default_speedup="ring")
    found = recommend(shop, 3)[0]
    assert (found.cluster.gpu_count, found.usd_per_hour) == (14, Decimal("2.9"))
    assert found.cluster.zone == ZonePrice("z2", Decimal("0.20"))
    assert found.next_zone is not None and found.next_zone.zone is not None
    assert (found.next_zone.zone.usd_per_hour, found.next_zone.usd_per_hour) == (
        Decimal("0.25"),
        Decimal("3.6"),
    )
    JSON_CATALOG.parse(json.dumps(document_of(shop)), "shop.json")


def best(answer: Recommendations) -> tuple[str, int, str, str]:
    cluster = answer[0].cluster
    assert cluster.memory is not None
    assert cluster.zone is not None
    return (cluster.gpu.name, cluster.gpu_count, cluster.memory.instance.name, cluster.zone.zone)


@pytest.mark.parametrize("solver", ["ilp", "frontier"])
class TestDearerZone:
    def test_it_is_taken_when_the_memory_nodes_there_are_cheaper(self, solver: str) -> None:
        answer = recommend(zoned(), 3, solver=solver, architecture="tiering")
        assert best(answer) == ("g", 9, "m2", "z2")
        assert answer[0].usd_per_hour == Decimal("2.89")
        assert not answer.doubt

    def test_it_is_taken_when_the_cheapest_zone_has_no_memory_node(self, solver: str) -> None:
        answer = recommend(zoned(), 3, solver=solver, architecture="tiering", memory_node="m2")
        assert best(answer) == ("g", 9, "m2", "z2")

    def test_each_cluster_stands_in_one_zone_and_is_named_once(self, solver: str) -> None:
        anywhere = cpu_type("m0", on_demand_usd_per_hour="0.1", zones=("z1", "z2"))
        answer = recommend(zoned(anywhere), 3, solver=solver, architecture="tiering", top=4)
        assert [
            (r.cluster.gpu_count, r.cluster.memory.instance.name, r.cluster.zone.zone)
            for r in answer
        ] == [  # type: ignore[union-attr]
            (9, "m0", "z1"),
            (9, "m2", "z2"),
            (8, "m0", "z1"),
            (8, "m2", "z2"),
        ]

    def test_an_anchor_stands_in_the_cheapest_zone(self, solver: str) -> None:
        answer = recommend(zoned(), 3, solver=solver, architecture="single-anchor", top=2)
        assert [r.cluster.zone and r.cluster.zone.zone for r in answer] == ["z1", "z1"]
        assert answer[0].usd_per_hour == Decimal("2.8")

    def test_offers_count_where_prices_are_not_told_by_zone(self, solver: str) -> None:
        """Offers that are live beside prices that are not: the region has both types, and no zone
        has them together.
        """
        shop = catalog(
            gpu_type("g", speedups=PERFECT, zones=("z1",)),
            cpu_type("apart", on_demand_usd_per_hour="0.01", zones=("z2",)),
            cpu_type("near", on_demand_usd_per_hour="0.1", zones=("z1", "z2")),
            default_speedup="ring",
        )
        answer = recommend(shop, 3, solver=solver, architecture="tiering")
        assert {r.cluster.memory.instance.name for r in answer} == {"near"}  # type: ignore[union-attr]
        assert answer[0].cluster.gpu.zones == ("z1",) and not answer[0].warnings


class TestWhy:
    def test_no_zone_has_both(self) -> None:
        answer = recommend(zoned(), 3, architecture="tiering", memory_node="m1")
        assert best(answer)[2:] == ("m1", "z1")
        nowhere = recommend(
            zoned(cpu_type("m3", zones=("z3",))), 3, architecture="tiering", memory_node="m3"
        )
        why = nowhere.infeasible
        assert isinstance(why, Infeasible)
        assert why.constraint == "zone"
        assert "z1, z2" in why.reason

    def test_the_next_size_is_priced_in_the_same_zone(self) -> None:
        answer = recommend(zoned(), "2.9", architecture="tiering")
        assert best(answer)[3] == "z2"
        assert "10 x g with 1 x m2 would cost $3.2000/h" in answer[0].binding[0].reason

    def test_explain_plans_in_every_zone(self) -> None:
        why = explain(zoned(), 3, "m2", architecture="tiering")
        assert why.verdict == "m2 is in the best cluster"
        beaten = explain(zoned(), 3, "m1", architecture="tiering")
        assert beaten.best is not None
        assert beaten.best.cluster.zone is not None
        assert beaten.best.cluster.zone.zone == "z1"

    def test_a_type_stands_once_among_the_rejections(self) -> None:
        answer = recommend(zoned(), "0.2", architecture="tiering")
        assert [r.instance_type for r in answer.rejections if r.instance_type == "g"] == ["g"]
        assert "costs $0.4100/h" in next(
            r.detail for r in answer.rejections if r.instance_type == "g"
        )


class TestNextZone:
    def test_it_has_the_same_memory_nodes_where_they_are_sold_there(self) -> None:
        shop = catalog(
            gpu_type("g", speedups=PERFECT, **prices(z1="0.30", z2="0.31", z3="0.35")),
            cpu_type("m", on_demand_usd_per_hour="0.1", zones=("z3", "z2")),
            default_speedup="ring",
        )
        first = recommend(shop, 3, architecture="tiering")[0]
        assert (first.cluster.zone and first.cluster.zone.zone, first.usd_per_hour) == (
            "z2",
            Decimal("2.89"),
        )
        assert first.next_zone is not None and first.next_zone.zone is not None
        assert (first.next_zone.zone.zone, first.next_zone.usd_per_hour) == ("z3", Decimal("3.25"))

    def test_it_may_have_others(self) -> None:
        first = recommend(zoned(), 3, architecture="tiering")[0]
        other = first.next_zone
        assert other is not None and other.memory is not None and other.zone is not None
        assert (other.gpu_count, other.memory.instance.name, other.zone.zone) == (9, "m1", "z1")
        assert other.usd_per_hour == Decimal("4.70")

    def test_an_anchor_has_one_too(self) -> None:
        other = recommend(zoned(), 3, architecture="single-anchor")[0].next_zone
        assert other is not None and other.zone is not None
        assert (other.zone.zone, other.usd_per_hour) == ("z2", Decimal("2.86"))

    def test_memory_nodes_beyond_the_quota_are_no_help(self) -> None:
        few = Quota("Standard", "on-demand", 3)  # type: ignore[arg-type]
        here = replace(cpu_type("m2", on_demand_usd_per_hour="0.1", zones=("z2",)), vcpus=2)
        shop = replace(
            zoned(), instances=(*(i for i in zoned() if i.name != "m2"), here), quotas=(few,)
        )
        assert recommend(shop, 3, architecture="tiering")[0].next_zone is None

    def test_on_demand_vms_have_no_spot_zone(self) -> None:
        shop = zoned()
        answer = recommend(shop, 3, work=10, mttp="12h", architecture="tiering")
        assert answer.on_demand is not None
        assert answer.on_demand.cluster.zone is None


def test_zones_that_offer_the_same_make_the_search_no_larger() -> None:
    everywhere = cpu_type("m", zones=("z1", "z2", "z3"))
    one = gpu_type("g", **prices(z1="0.30", z2="0.31", z3="0.40"))
    request = PlanRequest(budget=Decimal(3))
    found = gather(catalog(one, everywhere), request)
    assert [g.instance.spot_zones[0].zone for g in found.gpus] == ["z1"]
    some = gather(catalog(one, everywhere, cpu_type("n", zones=("z3",))), request)
    assert [g.instance.spot_zones[0].zone for g in some.gpus] == ["z1", "z3"]


# --- an oracle that knows zones -------------------------------------------------------------------

ZONES = ("a", "b", "c")


def random_shop(rng: random.Random) -> Catalog:
    """Few types, and prices, offers and networks that make the zone decide."""
    gpus, nodes = [], []
    for name in rng.sample(("g1", "g2", "g10"), rng.randint(1, 3)):
        spot = [usd(rng.choice((100_000, 300_000, rng.randint(50_000, 500_000)))) for _ in ZONES]
        sold = rng.sample(ZONES, rng.randint(1, 3))
        by_zone = {z: str(p) for z, p in zip(ZONES, spot, strict=True) if z in sold}
        known = rng.choice(("prices", "prices", "prices", "prices and offers", "offers", "nothing"))
        gpus.append(
            gpu_type(
                name,
                speedups=(RingSpeedup(rng.choice((0.0, 0.5, 2.0)), rng.choice((0.0, 0.03))),),
                eflops=rng.choice((100.0, 100.0, 150.0)),
                network_gbps=rng.choice((5.0, 10.0)),
                on_demand_usd_per_hour=usd(rng.randint(300_000, 1_500_000)),
                **(prices(**by_zone) if "prices" in known else {"spot_usd_per_hour": min(spot)}),
                zones=tuple(sorted(sold)) if "offers" in known else (),
            )
        )
    for name in rng.sample(("m1", "m2", "m3", "m10"), rng.randint(1, 4)):
        nodes.append(
            cpu_type(
                name,
                on_demand_usd_per_hour=usd(
                    rng.choice((100_000, rng.randint(10_000, 900_000), 2_000_000))
                ),
                network_gbps=rng.choice((0.3, 5.0, 10.0)),
                zones=(
                    tuple(sorted(rng.sample(ZONES, rng.randint(1, 3))))
                    if rng.random() < 0.9
                    else ()
                ),
            )
        )
    quotas = (Quota("Standard", "on-demand", rng.choice((4, 8, 64))),) if rng.random() < 0.3 else ()
    return catalog(*gpus, *nodes, default_speedup="ring", quotas=quotas)


def random_request(rng: random.Random) -> PlanRequest:
    return PlanRequest(
        budget=usd(rng.randint(100_000, 5_000_000)),
        objective=rng.choice(
            (Objective.THROUGHPUT, Objective.THROUGHPUT, Objective.FLOPP, Objective.COST_PER_WORK)
        ),
        policy=rng.choice((PolicyName.DEEPVM, PolicyName.DEEPVM, *PolicyName)),
        architectures=rng.choice(((), ("tiering",))),
        max_nodes=rng.choice((3, 8, 12)),
        top=rng.choice((1, 3, 5)),
    )


def assert_right(seed: int) -> None:
    """Enumeration, integer program and the whole answer against the brute-force oracle."""
    rng = random.Random(seed)
    shop, request = random_shop(rng), random_request(rng)
    expected, blocks = oracle.answer(shop, request), blocks_for(shop, request)
    assert_agree(enumerated(blocks, request), expected, request)
    assert_agree(by_ilp(blocks, request), expected[:1], request)
    answer = solve(shop, replace(request, solver=SolverName.FRONTIER))
    assert (answer.infeasible is None) == bool(expected)


def in_one_zone(shop: Catalog, zone: str) -> Catalog:
    """What is left of a catalog for whoever may use one zone only."""
    kept = []
    for i in shop:
        spot = tuple(z for z in i.spot_zones if z.zone == zone)
        here = bool(spot) or (not i.spot_zones and (not i.zones or zone in i.zones))
        price = spot[0].usd_per_hour if spot else i.spot_usd_per_hour
        if here or i.gpu:  # the job's step may be measured on a type that is not sold here
            kept.append(
                replace(i, spot_zones=spot, zones=(), spot_usd_per_hour=price if here else None)
            )
    return replace(shop, instances=tuple(kept))


@settings(max_examples=examples(400, share=32))
@given(seed=st.integers(0, 10**9))
def test_the_best_of_all_zones_is_the_best_of_each_zone(seed: int) -> None:
    """Holds for every objective and limit on a job, for which the oracle has no figures."""
    rng = random.Random(seed)
    shop, options = random_shop(rng), dict[str, Any](solver="frontier", max_nodes=8, top=1)
    options["objective"] = rng.choice([o.value for o in Objective])
    options |= {
        "work": 20,
        "mttp": rng.choice(("2h", "12h")),
        "measured_on": next(i.name for i in shop if i.gpu),
    }
    options |= rng.choice(
        ({}, {"deadline": f"{rng.randint(2, 30)}h"}, {"total_budget": rng.randint(1, 20)})
    )
    budget = usd(rng.randint(100_000, 5_000_000))
    whole = recommend(shop, budget, **options)
    apart = [
        found for zone in ZONES for found in recommend(in_one_zone(shop, zone), budget, **options)
    ]
    assert bool(whole) == bool(apart)
    if not whole:
        return
    ahead = whole[0]
    assert ahead.outlook is not None
    outlooks = [r.outlook for r in apart if r.outlook is not None]
    reached = {
        "makespan": (ahead.outlook.total_s, min(o.total_s for o in outlooks)),
        "total-cost": (ahead.outlook.cost_usd, min(o.cost_usd for o in outlooks)),
        "throughput": (-ahead.throughput, -max(r.throughput for r in apart)),
        "flopp": (-ahead.z, -max(r.z for r in apart)),
        "cost-per-work": (
            ahead.usd_per_work,
            min(r.usd_per_work for r in apart if r.usd_per_work is not None),
        ),
    }[options["objective"]]
    assert reached[0] == pytest.approx(reached[1], rel=1e-8)


@settings(max_examples=examples(2400, share=32))
@given(seed=st.integers(0, 10**9))
@example(seed=0)
def test_zoned_catalogs_agree_with_the_oracle(seed: int) -> None:
    assert_right(seed)
