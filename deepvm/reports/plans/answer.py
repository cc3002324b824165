"""The answer on one screen: what to rent, how fast that is, what it costs, and what to do next."""

from dataclasses import replace

from deepvm.catalog.clouds import cloud_of
from deepvm.catalog.signals.signal import age
from deepvm.core.cluster.cluster import Recommendation
from deepvm.reports.plans import words
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.sources import price_origins
from deepvm.reports.plans.words import cluster_words, lost_words, time_and_bill
from deepvm.reports.terminal import Column, print_lines, print_table

Cells = dict[Column, str]


def print_answer(view: PlanView) -> None:
    """At most 16 lines on stdout for one region, where a model is trained."""
    found = view.found
    several = len(found.answers) > 1
    title = view.title
    if several:
        title = f"{title}; {found.place(view.answer.catalog)}"
    print_lines([title, ""])
    rows = [_cells(label, r, view) for label, r in view.rows]
    columns = dict.fromkeys(column for row in rows for column in row)
    table = [replace(c, cells=[row.get(c, "-") for row in rows]) for c in columns]
    print_table(table, also="-o json")
    print_lines(["", *map(str, view.notes)])
    if several or view.placement is not None:
        _print_places(view)
    print_lines(_left_out(view))
    print_lines(_next_steps(view))


def _cells(label: str, r: Recommendation, view: PlanView) -> Cells:
    assert view.workload is not None and r.prediction is not None
    cells = {
        Column(""): label,
        Column("cluster", wrap=False): cluster_words(r.cluster),
        Column("$/h", "right"): f"{r.usd_per_hour:.2f}",
        Column(view.workload.units, "right"): r.prediction.throughput.in_short,
    }
    if r.outlook is not None:
        time, bill = time_and_bill(r.outlook)
        cells |= {Column("time", "right"): time, Column("bill", "right"): bill}
    cells[Column("lost to preemption", "right", drop=2)] = lost_words(r)
    cells[Column("source", drop=1)] = r.prediction.source
    return cells


def _print_places(view: PlanView) -> None:
    from deepvm.reports.plans.report import sentences  # jinja2 is slow to load
    from deepvm.reports.text import print_text

    print_lines(sentences(view, "placement"))
    if not view.found.of_several_clouds:
        print_lines(sentences(view, "regions"))
        return
    assert view.workload is not None
    print_text(
        "plan_clouds",
        found=view.found,
        units=view.workload.units,
        cloud_of=cloud_of,
        age=age,
        now=view.now,
        price_origins=price_origins,
        w=words,
    )


def _left_out(view: PlanView) -> list[str]:
    places = [(cloud_of(gone.cloud).title, gone) for gone in view.found.left_out]
    return [
        f"left out: {' '.join((name, gone.region)).strip()}: {gone.reason}" for name, gone in places
    ]


def _next_steps(view: PlanView) -> list[str]:
    """What to do with the plan; ``run`` and most exports do not rent reserved VMs."""
    cloud = cloud_of(view.answer.catalog.name)
    export = "Next: add -o json > plan.json; deepvm export plan.json --to"
    more = "Reasons, doubts, rejected types: --why"
    if any(group.instance.reserved for group in view.answer.configurations[0].cluster.groups):
        trains = "It trains on the reserved VMs as they are."
        return [f"{export} torchrun --output-dir launch", f"{trains} {more}"]
    if not cloud.has_api:
        starts = f"SkyPilot starts it: deepvm rents nothing of {cloud.title}."
        return [f"{export} skypilot --output-dir launch", f"{starts} {more}"]
    return [
        "Next: add -o json > plan.json, then train on it: deepvm run plan.json -- python train.py",
        f"For SkyPilot, EC2 Fleet, Terraform: deepvm export. {more}",
    ]
