"""What reports say about the zone of a cluster, and about the next-best one."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

from support.builders import catalog, cpu_type, gpu_type

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import compare
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import sentences
from deepvm.services.keywords import recommend

ZONES = {"a1": "0.30", "b2": "0.31", "c3": "0.35"}


def answer(
    offered: tuple[str, ...], spot: dict[str, str] | None = None, **changes: Any
) -> Recommendations:
    rows = [
        ZonePrice(z, Decimal(p), f"here-{z[0]}")
        for z, p in (ZONES if spot is None else spot).items()
    ]
    shop = catalog(
        gpu_type("g", speedups=(RingSpeedup(0.0, 0.0),), spot_zones=tuple(rows), **changes),
        cpu_type("m", on_demand_usd_per_hour="0.1", zones=offered),
        default_speedup="ring",
    )
    return recommend(shop, 3, architecture="tiering")


def configuration(found: Recommendations) -> dict[str, Any]:
    first: dict[str, Any] = found.to_dict()["configurations"][0]
    return first


def zone_lines(found: Recommendations) -> list[str]:
    return sentences(PlanView(compare([found]), datetime.now(timezone.utc)), "zone")


def test_the_line_names_the_zone_and_the_next_best() -> None:
    for offered, line in [
        (
            (),
            (
                "Zone: a1 (here-a), where g costs $0.3000/h on the spot market; next best: b2"
                " (here-b) with 0.3100, $2.8900/h for the cluster."
            ),
        ),
        (
            ("c3", "b2"),
            (
                "Zone: b2 (here-b), where g costs $0.3100/h on the spot market (it is cheapest in"
                " a1 (here-a) with 0.3000, which does not offer m); next best: c3 (here-c) with"
                " 0.3500, $3.2500/h for the cluster."
            ),
        ),
        (
            ("b2",),
            (
                "Zone: b2 (here-b), where g costs $0.3100/h on the spot market (it is cheapest in"
                " a1 (here-a) with 0.3000, which does not offer m); no other zone has g on the spot"
                " market and memory nodes for it."
            ),
        ),
    ]:
        found = answer(offered)
        assert zone_lines(found) == [line]


def test_json_has_the_zone_and_the_next_best() -> None:
    found = configuration(answer(("c3", "b2")))
    assert found["zone"] == "b2"
    assert found["next_zone"] == {
        "zone": "c3",
        "zone_name": "here-c",
        "spot_usd_per_hour": 0.35,
        "memory": {"instance_type": "m", "vm_count": 1},
        "usd_per_hour": 3.25,
    }
    assert found["gpu"]["spot_usd_per_hour"] == 0.31
    assert [z["zone"] for z in found["gpu"]["zones"]] == ["b2", "a1", "c3"]
    assert configuration(answer(("b2",)))["next_zone"] is None


def test_without_prices_by_zone_the_report_says_where_both_are_offered() -> None:
    found = answer(("a1", "b2"), {}, zones=("b2", "c3"))
    assert zone_lines(found) == []
    assert "only b2 offers both g and m: start the cluster there" in found[0].warnings
    assert configuration(found)["zone"] is None
    assert not any("start the cluster" in w for w in answer((), {}, zones=("b2",))[0].warnings)
