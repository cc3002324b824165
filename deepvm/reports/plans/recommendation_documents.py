"""Recommendations as documents for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from deepvm.catalog.signals.signal import HISTORY, ON_DEMAND, SPOT, base
from deepvm.core.cluster.cluster import JobEstimate, Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.documents.build import document_of
from deepvm.documents.declared import properties
from deepvm.documents.values import ABSENT, With, value_at
from deepvm.io.times import format_time
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, cloud_name
from deepvm.reports.plans.measuring import measure_command
from deepvm.reports.plans.sources import doubts, quota_needs
from deepvm.reports.plans.words import risk_of

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.job_forecast import Work

EXPLAIN_VERSION = "deepvm.explain/1"


def document(answer: Recommendations, why: WhyNot | None = None) -> dict[str, Any]:
    """The pinned JSON object of ``recommend -o json``; money in $/h, sizes in bytes."""
    request = answer.request
    catalog = _effective(answer)
    change = answer.next_change
    values = partial(_configuration, catalog=catalog)

    more: dict[str, Any] = dict.fromkeys(_OPTIONAL, ABSENT)
    if request.training is not None or request.work is not None:
        more["on_demand"] = values(answer.on_demand)
    if answer.infeasible is not None:
        more["cheapest"] = values(answer.cheapest)
    if request.training is not None and answer:
        measurement = answer.next_measurement
        more["next_measurement"] = measurement and With(
            measurement, command=measure_command(measurement, request.training)
        )
    if why is not None:
        more["explanation"] = _explanation(why, catalog)
    if change is not None:
        more["next_change"] = With(change, configuration=values(change.recommendation))
    parts = With(
        answer,
        request=_request(answer, catalog),
        source=source(catalog),
        doubts=doubts(answer),
        configurations=[values(r) for r in answer.configurations],
        alternatives=[
            With(values(a.recommendation), objective=a.objective) for a in answer.alternatives
        ],
        nearly_as_good=values(answer.nearly),
        **more,
    )
    written = document_of("plans.Recommendation", parts)
    _add_runs(written["source"], catalog)
    return written


def _add_runs(written: dict[str, Any], catalog: Catalog) -> None:
    """How many training runs are behind measured step times, which the schema does not name."""
    for row, figure in zip(written.get("measured", ()), catalog.provenance.measured, strict=False):
        if figure.kind == "steps":
            row["runs"] = figure.runs


_OPTIONAL = (
    "on_demand",
    "cheapest",
    "next_measurement",
    "explanation",
    "placement",
    "regions",
)


def _request(answer: Recommendations, catalog: Catalog) -> With:
    request = answer.request
    return With(
        request,
        catalog=catalog.name,
        speedup=answer.speedup_kind,
        quotas=catalog.quotas,
        rank="machines" if request.ranks_machines else "plans",
        work=ABSENT if request.work is None else _work(request.work, answer.reference),
        training=ABSENT if request.training is None else request.training,
    )


def _work(work: Work, reference: InstanceType | None) -> dict[str, Any]:
    """What is to be trained."""
    from deepvm.core.lifetimes import share_over

    spans = ("step_s", "save_s", "durable_s", "allocation_s", "preparation_s", "grace_s")
    known = work.unit is None  # with a model they differ from cluster to cluster
    return {
        "job": work.job.name,
        "steps": work.job.steps,
        **{name: getattr(work.job, name).mean if known else None for name in spans},
        "measured_on": reference.name if reference and known else None,
        # Both null: by the bands of the types.
        "mttp_s": None if work.mttp_s in (None, math.inf) else work.mttp_s,
        "interruption_rate": None if work.mttp_s is None else share_over(work.mttp_s),
        "save_policy": work.policy_name if known else None,
        "deadline_s": work.deadline_s,
        "total_budget_usd": None if work.total_budget is None else float(work.total_budget),
    }


def _effective(answer: Recommendations) -> Catalog:
    """The catalog with the quotas that were applied."""
    quotas = answer.request.quotas
    if quotas is None:
        return answer.catalog
    return replace(answer.catalog, quotas=quotas)


def _explanation(why: WhyNot, catalog: Catalog) -> With:
    return With(why, configuration=_configuration(why.best, catalog))


def why_document(why: WhyNot) -> dict[str, Any]:
    """The JSON object of ``explain -o json``."""
    written = document_of("plans.Source", source(why.catalog))
    _add_runs(written, why.catalog)
    if why.units:
        written["eflops_unit"] = why.units
    return {
        "schema_version": EXPLAIN_VERSION,
        **document_of("plans.Explanation", _explanation(why, why.catalog)),
        "source": written,
    }


def why_rows(why: WhyNot) -> tuple[list[str], list[list[Any]]]:
    """Header, and a row: the type that was asked about, its best cluster, and its gap."""
    best = why.best
    more = dict(CSV_TRAINED) if why.units else {}
    if best and best.outlook:
        more = dict.fromkeys(CSV_EXPECTED, _EXPECTED) | more
    row: dict[str, Any] = {
        "asked_instance_type": why.instance_type,
        "verdict": why.verdict,
        **dict.fromkeys(CSV),
        "gap": why.gap,
        "matches_at_usd_per_hour": None if why.matches_at is None else float(why.matches_at),
        "reason": why.rejection.reason if why.rejection else None,
        **dict.fromkeys(more),
    }
    if best:
        row |= row_of(CSV | more, best)
    return list(row), [list(row.values())]


def source(catalog: Catalog) -> With:
    """Where a catalog's figures come from, each kind of figure with when it was true."""
    about = catalog.provenance
    known = bool(about.measured)
    return With(
        about,
        catalog=catalog.name,
        region=catalog.region,
        eflops_unit=catalog.eflops_unit,
        measured=about.measured if known else ABSENT,
        measured_file=about.measured_file if known else ABSENT,
        measured_doubts=about.doubts if known else ABSENT,
    )


def comparison(
    found: Comparison, why: WhyNot | None = None, placement: Placement | None = None
) -> dict[str, Any]:
    """Several regions: the object of the best one, with the clusters and what each region has."""
    written = document(found.answers[0], why)
    if len(found.answers) > 1:
        plans = [_plan_of(found, p.recommendation, p.answer) for p in found.ranked]
        regions = [_region_of(found, answer) for answer in found.answers]
        written |= {"configurations": plans, "regions": regions}
    if placement is not None:
        written["placement"] = document_of("plans.Placement", placement)
    return written


def _plan_of(found: Comparison, r: Recommendation, answer: Recommendations) -> dict[str, Any]:
    values = _configuration(r, _effective(answer))
    return _cloud(found, answer) | document_of("plans.Configuration", values)


def _region_of(found: Comparison, answer: Recommendations) -> dict[str, Any]:
    """What one region has."""
    region = With(
        answer,
        region=answer.catalog.region,
        source=source(answer.catalog),
        best=None,
        reason=answer.infeasible and answer.infeasible.reason,
        cloud=ABSENT,
    )
    row = _cloud(found, answer) | document_of("plans.RegionAnswer", region)
    _add_runs(row["source"], answer.catalog)
    # With its cloud, which a document inside another would not have
    if answer:
        row["best"] = _plan_of(found, answer[0], answer)
    return row


def _cloud(found: Comparison, answer: Recommendations) -> dict[str, Any]:
    """The cloud of an answer, where several are compared."""
    if found.of_several_clouds:
        return {"cloud": cloud_name(answer.catalog)}
    return {}


def _configuration(r: Recommendation | None, catalog: Catalog) -> With | None:
    """A recommendation with what its document says besides."""
    if r is None:
        return None
    cluster = r.cluster
    memory = cluster.memory
    on_demand = _price(Market.ON_DEMAND, catalog)
    trainers = With(
        cluster.gpu,
        count=cluster.gpu_count,
        vm_count=cluster.gpu_count,
        spot_count=cluster.spot_count,
        on_demand_count=cluster.on_demand_count,
        spot_price=_price(Market.SPOT, catalog),
        on_demand_price=on_demand,
    )
    nodes = None
    if memory is not None:
        nodes = With(
            memory.instance,
            count=memory.count,
            vm_count=memory.count,
            on_demand_price=on_demand,
        )
    return With(
        r,
        region=catalog.region,
        next_zone=r.next_zone if r.next_zone and r.next_zone.zone else None,
        gpu=trainers,
        memory=nodes,
        quotas=quota_needs(cluster, catalog),
        interruptions=risk_of(cluster),
        outlook=expected_values(r.outlook) or ABSENT,
        bill=With(r.bill, total_usd=r.whole_usd) if r.bill else ABSENT,
        cloud=ABSENT,
    )


def _price(market: Market, catalog: Catalog) -> dict[str, Any]:
    """Where a price comes from, and when it was true."""
    about = catalog.provenance
    names = (SPOT, HISTORY) if market is Market.SPOT else (ON_DEMAND,)
    for origin in about.origins:
        if base(origin.signal) in names:
            return {"kind": origin.kind, "observed_at": format_time(origin.observed_at)}
    return {"kind": about.kind, "observed_at": about.prices_as_of}


def expected_values(outlook: JobEstimate | None) -> Any:
    """Expected time and bill of the job, for its document; None without an outlook."""
    if outlook is None or outlook.spread is None:
        return outlook
    return With(outlook, late_share=outlook.spread.late)


def expected_document(outlook: JobEstimate | None) -> dict[str, Any]:
    """Expected time and bill of the job, null where it never ends; empty without an outlook."""
    if outlook is None:
        return {}
    return document_of("plans.Expected", expected_values(outlook))


Source = str | Callable[[Any], Any]
CSV: dict[str, Source] = {
    "rank": "rank",
    "architecture": "cluster.architecture",
    "instance_type": "cluster.gpu.name",
    "vm_count": "cluster.gpu_count",
    "spot_count": "cluster.spot_count",
    "on_demand_count": "cluster.on_demand_count",
    "memory_instance_type": "cluster.memory.instance.name",
    "memory_vm_count": lambda r: r.cluster.memory.count if r.cluster.memory else 0,
    **{key: key for key, about in properties("plans.Configuration").items() if "column" in about},
    "binding": lambda r: " ".join(limit.constraint for limit in r.binding),
}
"""Columns of the CSV that say what a cluster is, and where a recommendation has them."""
_PLACE = {"region": "region", "zone": "cluster.zone.zone", "estimated": "estimated"}
CSV_EXPECTED = [
    "makespan_s",
    "total_cost_usd",
    "preemptions",
    "makespan_p50_s",
    "makespan_p95_s",
    "total_cost_p50_usd",
    "total_cost_p95_usd",
]
"""Appended where there is a job."""
CSV_TRAINED = {
    "throughput_low": "prediction.throughput.low",
    "throughput_high": "prediction.throughput.high",
    "source": "prediction.source",
}
"""Appended where a model is trained: the 80 % interval of its throughput, and its source."""
_CSV_BILL = {
    "besides_usd_per_hour": "bill.usd_per_hour",
    "besides_usd_once": "bill.usd_once",
    "in_all_usd_per_hour": "bill.total_usd_per_hour",
}
"""Appended where rates of what comes besides VMs are known; the items are in the other formats."""


def csv_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each configuration, of all regions together."""
    request = found.answers[0].request
    ranked = found.ranked
    sources = CSV | _PLACE
    if request.work is not None:
        sources |= dict.fromkeys(CSV_EXPECTED, _EXPECTED)
    if request.training is not None:
        sources |= CSV_TRAINED
    if found.of_several_clouds:
        sources |= {"cloud": "cloud"}
    if any(placed.recommendation.bill for placed in ranked):
        sources |= _CSV_BILL
    rows = []
    for placed in ranked:
        catalog = placed.answer.catalog
        r = With(placed.recommendation, region=catalog.region, cloud=cloud_name(catalog))
        rows.append(list(row_of(sources, r).values()))
    return list(sources), rows


_EXPECTED = "outlook"


def row_of(sources: Mapping[str, Source], r: Any) -> dict[str, Any]:
    """The values of a recommendation for some columns of a CSV; None for what it lacks."""
    expected = expected_document(r.outlook)
    row = {}
    for name, source in sources.items():
        if source == _EXPECTED:
            value = expected.get(name)
        else:
            value = source(r) if callable(source) else value_at(r, source)
        row[name] = float(value) if isinstance(value, Decimal) else value
    return row
