"""Several clouds in one table: the best that each of them has for the request, the best of all first."""

from __future__ import annotations

from datetime import datetime

from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.signals.signal import PRICES, age, base
from deepvm.core.units import format_usd
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, cloud_name
from deepvm.reports.plans.bills import bill_cell
from deepvm.reports.plans.recommendations import format_work
from deepvm.reports.tables import Column, print_items


def print_clouds(found: Comparison, now: datetime) -> None:
    """One row for each cloud and region on stdout."""
    print_items([_cells(answer, now) for answer in found.answers], also="-o json")


def _cells(answer: Recommendations, now: datetime) -> dict[Column, str]:
    catalog, best = answer.catalog, answer[0] if answer else None
    name = cloud_name(catalog)
    cells = {
        Column("cloud"): REGISTRY[name].title if name in REGISTRY else name,
        Column("region", drop=2): catalog.region or "-",
        Column("best cluster", wrap=False): str(best.cluster) if best else _reason(answer),
        Column("$/h", "right"): format_usd(best.usd_per_hour) if best else "-",
        Column("besides VMs", "right", drop=4): bill_cell(best.bill) if best else "-",
    }
    speed = "-"
    if best is not None and best.prediction is not None:
        from deepvm.reports.performance.predictions import in_short  # other catalogs need no speeds of models

        speed = in_short(best.prediction.throughput)
    elif best is not None:
        speed = format_work(best.throughput)
    training = answer.request.training
    cells[Column(training.workload.units if training else "throughput", "right", drop=1)] = speed
    prices = (o for o in catalog.provenance.origins if base(o.signal) in PRICES)
    oldest = min(prices, key=lambda o: o.observed_at, default=None)
    cells[Column("prices", "right", drop=3)] = (
        "-" if oldest is None else f"{age(oldest.observed_at, now, oldest.dated)} old"
    )
    return cells


def _reason(answer: Recommendations) -> str:
    return answer.infeasible.reason if answer.infeasible else "nothing is feasible"
