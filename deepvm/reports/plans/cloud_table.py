"""Several clouds in one table: the best that each of them has for the request, the best of all first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.signals.signal import PRICES, age, base
from deepvm.core.cluster.cluster import Recommendation
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, cloud_name, first_for_more
from deepvm.reports.plans.bills import bill_cell
from deepvm.reports.plans.recommendations import format_work
from deepvm.reports.tables import Column, print_items, print_lines

_LITTLE_MORE = Decimal("1.1")
"""Times the budget, up to which another cloud is named that would come first."""


def print_clouds(found: Comparison, now: datetime) -> None:
    """One row for each cloud and region on stdout, and which of them would come first for a little more."""
    print_items([_cells(answer, now) for answer in found.answers], also="-o json")
    print_lines([*_for_a_little_more(found)])


def _for_a_little_more(found: Comparison) -> Iterator[str]:
    """A row of the table hides what lies just above the budget, which only the first cloud's own report would show."""
    more = first_for_more(found, found.answers[0].request.budget * _LITTLE_MORE)
    if more is not None:
        budget, placed = more
        usd, best = budget.quantize(Decimal("0.01"), ROUND_CEILING), placed.recommendation
        what = f"{best.cluster}, {_speed(best)} {_units(placed.answer)}"
        yield f"for {usd:f} $/h {_title(placed.answer)} comes first: {what}"


def _cells(answer: Recommendations, now: datetime) -> dict[Column, str]:
    catalog, best = answer.catalog, answer[0] if answer else None
    cells = {
        Column("cloud"): _title(answer),
        Column("region", drop=2): catalog.region or "-",
        Column("best cluster", wrap=False): str(best.cluster) if best else _reason(answer),
        Column("$/h", "right"): f"{best.usd_per_hour:.2f}" if best else "-",
        Column("besides VMs", "right", drop=4): bill_cell(best.bill) if best else "-",
    }
    cells[Column(_units(answer), "right", drop=1)] = _speed(best) if best else "-"
    prices = (o for o in catalog.provenance.origins if base(o.signal) in PRICES)
    oldest = min(prices, key=lambda o: o.observed_at, default=None)
    cells[Column("prices", "right", drop=3)] = (
        "-" if oldest is None else f"{age(oldest.observed_at, now, oldest.dated)} old"
    )
    return cells


def _title(answer: Recommendations) -> str:
    name = cloud_name(answer.catalog)
    return REGISTRY[name].title if name in REGISTRY else name


def _units(answer: Recommendations) -> str:
    training = answer.request.training
    return training.workload.units if training else "throughput"


def _speed(recommendation: Recommendation) -> str:
    if recommendation.prediction is None:
        return format_work(recommendation.throughput)
    # Other catalogs need no speeds of models
    from deepvm.reports.text import in_short

    return in_short(recommendation.prediction.throughput)


def _reason(answer: Recommendations) -> str:
    return answer.infeasible.reason if answer.infeasible else "nothing is feasible"
