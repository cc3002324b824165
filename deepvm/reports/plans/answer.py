"""The answer on one screen: what to rent, how fast that is, what it costs, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from deepvm.catalog.clouds import REGISTRY, cloud_of
from deepvm.catalog.signals.signal import PRICES, age, base
from deepvm.core.cluster.cluster import Recommendation
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, cloud_name
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import sentences
from deepvm.reports.plans.words import (
    bill_cell,
    cluster_words,
    format_work,
    in_cents,
    lost_words,
    time_and_bill,
)
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.reports.text import in_short

Cells = dict[Column, str]


def print_answer(view: PlanView) -> None:
    """At most 16 lines on stdout for one region, where a model is trained."""
    found = view.found
    several_clouds = view.found.of_several_clouds
    place = f"; {found.place(view.catalog)}" if len(found.answers) > 1 else ""
    print_lines([f"{view.title}{place}", ""])
    print_items([_cells(label, r, view) for label, r in view.rows], also="-o json")
    print_lines(["", *map(str, view.notes)])
    if view.placement is not None:
        print_lines(sentences(view, "placement"))
    if several_clouds:
        print_lines([""])
        print_items([_cloud_cells(answer, view.now) for answer in found.answers], also="-o json")
        print_lines([*_for_a_little_more(found), ""])
    elif len(found.answers) > 1:
        print_lines(sentences(view, "regions"))
    print_lines(_next_steps(view))


def _cells(label: str, r: Recommendation, view: PlanView) -> Cells:
    assert view.workload is not None and r.prediction is not None
    cells = {
        Column(""): label,
        Column("cluster", wrap=False): cluster_words(r.cluster),
        Column("$/h", "right"): f"{r.usd_per_hour:.2f}",
        Column(view.workload.units, "right"): in_short(r.prediction.throughput),
    }
    if r.outlook is not None:
        time, bill = time_and_bill(r.outlook)
        cells |= {Column("time", "right"): time, Column("bill", "right"): bill}
    cells[Column("lost to preemption", "right", drop=2)] = lost_words(r)
    cells[Column("source", drop=1)] = r.prediction.source
    return cells


def _cloud_cells(answer: Recommendations, now: datetime) -> Cells:
    """The best that a cloud has for the request."""
    catalog = answer.catalog
    best = answer[0] if answer else None
    prices = [o for o in catalog.provenance.origins if base(o.signal) in PRICES]
    oldest = min(prices, key=lambda o: o.observed_at, default=None)
    cells = {
        Column("cloud"): _title(answer),
        Column("region", drop=2): catalog.region or "-",
        Column("best cluster", wrap=False): str(best.cluster) if best else _reason(answer),
        Column("$/h", "right"): f"{best.usd_per_hour:.2f}" if best else "-",
        Column("besides VMs", "right", drop=4): bill_cell(best.bill) if best else "-",
        Column(_units(answer), "right", drop=1): _speed(best) if best else "-",
        Column("prices", "right", drop=3): "-",
    }
    if oldest is not None:
        how_old = age(oldest.observed_at, now, oldest.dated)
        cells[Column("prices", "right", drop=3)] = f"{how_old} old"
    return cells


def _for_a_little_more(found: Comparison) -> Iterator[str]:
    """The cloud that comes first for a little more money."""
    if found.first_for_more is not None:
        budget, placed = found.first_for_more
        best = placed.recommendation
        answer = placed.answer
        plan = f"{best.cluster}, {_speed(best)} {_units(answer)}"
        yield f"for {in_cents(budget)} $/h {_title(answer)} comes first: {plan}"


def _title(answer: Recommendations) -> str:
    name = cloud_name(answer.catalog)
    return REGISTRY[name].title if name in REGISTRY else name


def _units(answer: Recommendations) -> str:
    training = answer.request.training
    return training.workload.units if training else "throughput"


def _speed(r: Recommendation) -> str:
    return in_short(r.prediction.throughput) if r.prediction else format_work(r.throughput)


def _reason(answer: Recommendations) -> str:
    return answer.infeasible.reason if answer.infeasible else "nothing is feasible"


def _next_steps(view: PlanView) -> list[str]:
    """What to do with the plan; ``run`` and most exports do not rent reserved VMs."""
    cloud = cloud_of(view.catalog.name)
    export = "Next: add -o json > plan.json; deepvm export plan.json --to"
    more = "Reasons, doubts, rejected types: --why"
    if any(group.instance.reserved for group in view.first.cluster.groups):
        trains = "It trains on the reserved VMs as they are."
        return [f"{export} torchrun --output-dir launch", f"{trains} {more}"]
    if not cloud.has_api:
        starts = f"SkyPilot starts it: deepvm rents nothing of {cloud.title}."
        return [f"{export} skypilot --output-dir launch", f"{starts} {more}"]
    return [
        "Next: add -o json > plan.json, then train on it: deepvm run plan.json -- python train.py",
        f"For SkyPilot, EC2 Fleet, Terraform: deepvm export. {more}",
    ]
