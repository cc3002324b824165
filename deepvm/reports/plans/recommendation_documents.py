"""Recommendations as documents for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deepvm.catalog.signals.signal import HISTORY, ON_DEMAND, SPOT, base
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.units import format_time
from deepvm.documents.build import ABSENT, With, document_of
from deepvm.documents.declared import properties
from deepvm.io.user_dirs import read_data
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, RankedPlan, cloud_name
from deepvm.reports.plans.sources import doubts, quota_needs
from deepvm.reports.plans.words import measure_command, risk_of
from deepvm.services.schemas import cell

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.job_forecast import Work

# Columns of a CSV in groups, and where the document of a plan has them
_COLUMNS = read_data("csv/plans.json")
_COLUMNS["figures"] = {
    key: key for key, about in properties("plans.Configuration").items() if "column" in about
}
_PLAN = ["cluster", "figures", "limits"]
_OPTIONAL = (
    "on_demand",
    "cheapest",
    "next_measurement",
    "explanation",
    "regions",
    "left_out",
    "new_account",
)


def document(
    found: Comparison,
    why: WhyNot | None = None,
    placement: Placement | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The pinned JSON object of ``recommend -o json``; money in $/h, sizes in bytes.

    ``warnings``: on how the request was read.
    """
    answer = found.answers[0]
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
        more["explanation"] = With(why, configuration=values(why.best))
    if change is not None:
        more["next_change"] = With(change, configuration=values(change.recommendation))
    if len(found.answers) > 1:
        more["regions"] = [_region(found, answer) for answer in found.answers]
    if found.left_out:
        more["left_out"] = found.left_out
    if (account := found.new_account) is not None:
        plan = account.plan and _plan(found, account.plan)
        more["new_account"] = With(account, configuration=plan)
    asked = With(
        request,
        catalog=catalog,
        speedup=answer.speedup_kind,
        rank="machines" if request.ranks_machines else "plans",
        derives_budget=request.derives_budget or ABSENT,
        work=ABSENT if request.work is None else _work(request.work, answer.reference),
    )
    parts = With(
        answer,
        request=asked,
        doubts=[*filter(None, warnings), *doubts(answer)],
        configurations=[_plan(found, plan) for plan in found.ranked],
        alternatives=[
            With(values(a.recommendation), objective=a.objective) for a in answer.alternatives
        ],
        nearly_as_good=values(answer.nearly),
        placement=placement or ABSENT,
        **more,
    )
    return document_of("plans.Recommendation", parts)


def _work(work: Work, reference: InstanceType | None) -> With:
    from deepvm.core.lifetimes import share_over

    own = None
    if work.unit is None:  # with a model times differ from cluster to cluster
        own = work
    # None: by the bands of the types.
    rate = None if work.mttp_s is None else share_over(work.mttp_s)
    return With(work, own=own, reference=own and reference, interruption_rate=rate)


def _effective(answer: Recommendations) -> Catalog:
    if answer.request.quotas is None:
        return answer.catalog
    return replace(answer.catalog, quotas=answer.request.quotas)


def why_document(why: WhyNot) -> dict[str, Any]:
    """The JSON object of ``explain -o json``."""
    catalog = With(why.catalog, eflops_unit=why.units or why.catalog.eflops_unit)
    parts = With(why, configuration=_configuration(why.best, why.catalog), catalog=catalog)
    return document_of("plans.ExplanationDocument", parts)


def why_rows(why: WhyNot) -> tuple[list[str], list[list[Any]]]:
    """Header, and a row: the type that was asked about, its best cluster, and its gap."""
    written = why_document(why)
    best = written["configuration"]
    groups = []
    if best and "expected" in best:
        groups.append("expected")
    if why.units:
        groups.append("trained")
    row = {
        "asked_instance_type": written["instance_type"],
        "verdict": written["verdict"],
        **_row(best, _PLAN),
        "gap": written["gap"],
        "matches_at_usd_per_hour": written["matches_at_usd_per_hour"],
        "reason": cell(written, ("rejection", "reason")),
        **_row(best, groups),
    }
    return list(row), [list(row.values())]


def _plan(found: Comparison, plan: RankedPlan) -> With | None:
    catalog = _effective(plan.answer)
    return _configuration(plan.recommendation, catalog, _cloud(found, catalog))


def _region(found: Comparison, answer: Recommendations) -> With:
    best = _plan(found, RankedPlan(answer, answer[0])) if answer else None
    return With(answer, best=best, cloud=_cloud(found, answer.catalog))


def _cloud(found: Comparison, catalog: Catalog) -> Any:
    if found.of_several_clouds:
        return cloud_name(catalog)
    return ABSENT


def _configuration(r: Recommendation | None, catalog: Catalog, cloud: Any = ABSENT) -> With | None:
    if r is None:
        return None
    return With(
        r,
        catalog=catalog,
        cloud=cloud,
        spot_price=_price(Market.SPOT, catalog),
        on_demand_price=_price(Market.ON_DEMAND, catalog),
        quotas=quota_needs(r.cluster, catalog),
        interruptions=risk_of(r.cluster),
        bill=With(r.bill, total_usd=r.whole_usd) if r.bill else ABSENT,
    )


def _price(market: Market, catalog: Catalog) -> dict[str, Any]:
    about = catalog.provenance
    names = (SPOT, HISTORY) if market is Market.SPOT else (ON_DEMAND,)
    for origin in about.origins:
        if base(origin.signal) in names:
            return {"kind": origin.kind, "observed_at": format_time(origin.observed_at)}
    return {"kind": about.kind, "observed_at": about.prices_as_of}


def csv_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each configuration, of all regions together."""
    request = found.answers[0].request
    plans = [document_of("plans.Configuration", _plan(found, plan)) for plan in found.ranked]
    known = {
        "place": True,
        "expected": request.work is not None,
        "trained": request.training is not None,
        "cloud": found.of_several_clouds,
        # Where rates of what comes besides VMs are known; the items are in the other formats
        "bill": any("bill" in plan for plan in plans),
    }
    groups = [*_PLAN, *(group for group in known if known[group])]
    return list(_row(None, groups)), [list(_row(plan, groups).values()) for plan in plans]


def _row(plan: dict[str, Any] | None, groups: list[str]) -> dict[str, Any]:
    if plan is not None:
        # No list, and no memory nodes are none
        plan = plan | {
            "binding": " ".join(plan["binding"]),
            "memory": plan["memory"] or {"vm_count": 0},
        }
    return {
        column: cell(plan, path.split("."))
        for group in groups
        for column, path in _COLUMNS[group].items()
    }
