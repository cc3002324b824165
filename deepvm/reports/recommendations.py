"""Recommendations as a document for programs and as a report for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np

from deepvm.core.cluster import Recommendation
from deepvm.core.instances import Catalog, Market
from deepvm.core.units import format_bytes, format_usd
from deepvm.planner.explain import WhyNot
from deepvm.planner.infeasible import Infeasible
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PolicyName
from deepvm.reports.tables import Column, print_lines, print_table

SCHEMA_VERSION = "deepvm.recommend/1"
EXPLAIN_VERSION = "deepvm.explain/1"
_ODD_START = 0.1
"""A curve whose S(1) is further from 1 than this is not to be trusted for few VMs."""
STALE_DAYS = 30
"""Spot prices older than this are history rather than prices."""


def document(answer: Recommendations, why: WhyNot | None = None) -> dict[str, Any]:
    """The pinned JSON object of ``recommend -o json``; money in $/h, sizes in bytes."""
    request, catalog = answer.request, answer.catalog
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "request": {
            "pw_usd_per_hour": float(request.budget),
            "catalog": catalog.name,
            "objective": request.objective.value,
            "policy": request.policy.value,
            "speedup": answer.speedup_kind,
            "checkpoint_bytes": request.checkpoint_bytes,
            "buffers": request.buffers,
            "top": request.top,
            "solver": request.solver.value,
            "architectures": list(request.architectures),
            "gpus": list(request.gpus),
            "instance_types": list(request.instance_types),
            "exclude": list(request.exclude),
            "memory_nodes": list(request.memory_nodes),
            "max_nodes": request.max_nodes,
            "quotas": [
                {"family": q.family, "market": q.market.value, "vcpus": q.vcpus}
                for q in (catalog.quotas if request.quotas is None else request.quotas)
            ],
        },
        "source": {
            "catalog": catalog.name,
            "region": catalog.region,
            "prices_as_of": catalog.provenance.prices_as_of and catalog.provenance.prices_as_of.isoformat(),
            "kind": catalog.provenance.kind,
            "source": catalog.provenance.source,
            "eflops_unit": catalog.eflops_unit,
        },
        "solution": {"status": answer.status.value, "solver": answer.solver, "doubt": answer.doubt},
        "doubts": _doubts(answer),
        "configurations": [_configuration(r) for r in answer.configurations],
        "alternatives": [
            {"objective": a.objective.value, **_configuration(a.recommendation)} for a in answer.alternatives
        ],
        "next_change": None,
        "nearly_as_good": None if answer.nearly is None else _configuration(answer.nearly),
        "rejected": [
            {"instance_type": r.instance_type, "reason": r.reason, "detail": r.detail} for r in answer.rejections
        ],
    }
    if answer.next_change:
        change = answer.next_change
        found["next_change"] = {
            "pw_usd_per_hour": float(change.budget),
            "gain": change.gain,
            "configuration": _configuration(change.recommendation),
        }
    if answer.infeasible is not None:
        found["reason"] = answer.infeasible.reason
        found["relax"] = {"constraint": answer.infeasible.constraint, "advice": answer.infeasible.advice}
        found["cheapest"] = None if answer.cheapest is None else _configuration(answer.cheapest)
    if why is not None:
        found["explanation"] = explanation(why)
    return found


def explanation(why: WhyNot) -> dict[str, Any]:
    """The answer to "why not this type?" as a document; money in $/h."""
    rejection = why.rejection and {"reason": why.rejection.reason, "detail": why.rejection.detail}
    return {
        "instance_type": why.instance_type,
        "verdict": why.verdict,
        "configuration": None if why.best is None else _configuration(why.best),
        "gap": why.gap,
        "matches_at_usd_per_hour": None if why.matches_at is None else float(why.matches_at),
        "rejection": rejection,
    }


def _configuration(r: Recommendation) -> dict[str, Any]:
    cluster = r.cluster
    return {
        "rank": r.rank,
        "architecture": cluster.architecture,
        "gpu": {
            "instance_type": cluster.gpu.name,
            "count": cluster.gpu_count,
            "spot_count": cluster.spot_count,
            "on_demand_count": cluster.on_demand_count,
        },
        "memory": cluster.memory and {"instance_type": cluster.memory.instance.name, "count": cluster.memory.count},
        "usd_per_hour": float(r.usd_per_hour),
        "speedup": r.speedup,
        "scaling_factor": r.scaling_factor,
        "throughput": r.throughput,
        "flopp_spot": r.flopp_spot,
        "z": r.z,
        "usd_per_work": r.usd_per_work,
        "speedup_kind": r.speedup_kind,
        "binding": [b.constraint for b in r.binding],
        "binding_reasons": [b.reason for b in r.binding],
        "warnings": list(r.warnings),
    }


CSV_HEADER = [
    "rank",
    "architecture",
    "gpu_type",
    "gpu_count",
    "spot_count",
    "on_demand_count",
    "memory_type",
    "memory_count",
    "usd_per_hour",
    "speedup",
    "scaling_factor",
    "throughput",
    "flopp_spot",
    "z",
    "usd_per_work",
    "binding",
]


def csv_rows(answer: Recommendations) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each configuration."""
    rows = []
    for r in answer.configurations:
        memory = r.cluster.memory
        rows.append(
            [
                r.rank,
                r.cluster.architecture,
                r.cluster.gpu.name,
                r.cluster.gpu_count,
                r.cluster.spot_count,
                r.cluster.on_demand_count,
                memory.instance.name if memory else None,
                memory.count if memory else 0,
                float(r.usd_per_hour),
                r.speedup,
                r.scaling_factor,
                r.throughput,
                r.flopp_spot,
                r.z,
                r.usd_per_work,
                " ".join(b.constraint for b in r.binding),
            ]
        )
    return CSV_HEADER, rows


def print_report(answer: Recommendations, why: WhyNot | None, today: date, *, wide: bool) -> None:
    """Table, reasons, alternatives and sources on stdout, for a person."""
    request = answer.request
    needs = f"memory nodes for {request.buffers} x {format_bytes(request.checkpoint_bytes)}"
    best_by = {
        Objective.THROUGHPUT: "fastest training",
        Objective.FLOPP: "most operations per dollar (Z)",
        Objective.COST_PER_WORK: "cheapest work",
    }[request.objective]
    if request.policy in (PolicyName.COST_FIRST, PolicyName.PERFORMANCE_FIRST):
        best_by = f"policy {request.policy.value}"
    elif request.policy is not PolicyName.DEEPVM:
        best_by += f", policy {request.policy.value}"
    print_lines([f"Clusters for at most {request.budget.normalize():f} $/h: {best_by}; {needs}", ""])
    print_table(*_table(answer.configurations, wide=wide))
    not_counted = "Not counted: disks, data transfer, and the time lost when spot VMs are taken away."
    print_lines(["", *_reasons(answer), *_quota_line(answer), not_counted, source_line(answer.catalog, today)])
    if why is not None:
        print_lines([""])
        print_why(why)


def _table(configurations: Sequence[Recommendation], *, wide: bool) -> tuple[list[Column], list[list[str]]]:
    """The default columns fit a terminal of 80 characters."""
    columns = [
        Column("#", "right"),
        Column("architecture"),
        Column("spot VMs"),
        Column("on-demand VMs"),
        Column("$/h", "right"),
        Column("throughput", "right"),
        Column("limited by"),
    ]
    if wide:
        columns[6:6] = [
            Column("speed-up", "right"),
            Column("K(n)", "right"),
            Column("FLOPP spot (op/$)", "right"),
            Column("Z", "right"),
            Column("$/h per eFLOPS", "right"),
            Column("curve"),
        ]
    rows = []
    for r in configurations:
        groups = {
            market: " + ".join(f"{g.count} {g.instance.name}" for g in r.cluster.groups if g.market is market) or "-"
            for market in Market
        }
        cells = [
            str(r.rank),
            r.cluster.architecture,
            groups[Market.SPOT],
            groups[Market.ON_DEMAND],
            format_usd(r.usd_per_hour),
            f"{r.throughput:.1f}",
            ", ".join(b.constraint for b in r.binding) or "-",
        ]
        if wide:
            cells[6:6] = [
                f"{r.speedup:.2f}",
                f"{r.scaling_factor:.4f}",
                f"{r.flopp_spot:.4g}",
                f"{r.z:.1f}",
                "-" if r.usd_per_work is None else f"{r.usd_per_work:.6f}",
                r.speedup_kind,
            ]
        rows.append(cells)
    return columns, rows


def _reasons(answer: Recommendations) -> list[str]:
    first = answer.configurations[0]
    count, gpu = first.cluster.gpu_count, first.cluster.gpu
    lines = [
        f"Throughput is eFLOPS x S(n): {gpu.eflops:g} x {first.speedup:.4g}, "
        f"where the {first.speedup_kind} curve of {gpu.name} gives S({count}) = {first.speedup:.4g}."
    ]
    lines += [f"Limited by {b.constraint}: {b.reason}." for b in first.binding]
    if not first.binding:
        lines.append("Limited by nothing: no larger cluster of these types is better.")
    change = answer.next_change
    if change is None:
        lines.append("More money: no budget buys a better cluster of these types under these limits.")
    else:
        gain = ""
        if change.gain is not None and answer.request.policy is PolicyName.DEEPVM:
            gain = f", {change.gain:.1%} better"
        elif change.gain is not None:
            gain = f", throughput {change.gain:+.1%}"
        lines.append(f"More money: {format_usd(change.budget)} $/h buys {change.recommendation.cluster}{gain}.")
    if answer.nearly is not None:
        less, worth = answer.nearly.usd_per_hour, answer.nearly.throughput / first.throughput
        saved = 1 - float(less) / float(first.usd_per_hour)
        lines.append(
            f"Less money: {format_usd(less)} $/h, {saved:.0%} less, buys {answer.nearly.cluster} "
            f"with {worth:.1%} of the throughput."
        )
    for alternative in answer.alternatives:
        r = alternative.recommendation
        work = "" if r.usd_per_work is None else f", {r.usd_per_work:.6f} $/h per eFLOPS"
        lines.append(
            f"By {alternative.objective.value}: {r.cluster} at {format_usd(r.usd_per_hour)} $/h, "
            f"throughput {r.throughput:.1f}{work}."
        )
    groups: dict[str, list[str]] = {}
    for rejection in answer.rejections:
        groups.setdefault(rejection.reason, []).append(rejection.instance_type)
    for reason, names in groups.items():
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        lines.append(f"Not considered ({reason}): {shown}.")
    lines += [f"Doubt: {doubt}." for doubt in _doubts(answer)]
    if answer.doubt:
        lines.append(f"Not proven ({answer.status.value}): {answer.doubt}.")
    return lines


def _doubts(answer: Recommendations) -> list[str]:
    """What should make a reader careful with the figures."""
    doubts = list(dict.fromkeys(w for r in answer.configurations for w in r.warnings))
    named = [*answer.configurations, *(a.recommendation for a in answer.alternatives)]
    for gpu in dict.fromkeys(r.cluster.gpu for r in named):
        curve = gpu.curve(answer.speedup_kind)
        alone = 1.0 if curve is None else float(curve.speedup(np.array([1.0]))[0])
        if abs(alone - 1) > _ODD_START:
            better = [k for k in ("ring", "measured") if gpu.curve(k)]
            hint = f"; '--speedup {better[0]}' does not" if better else ""
            doubts.append(
                f"the {answer.speedup_kind} curve of {gpu.name} gives S(1) = {alone:.2f} in place of 1, "
                f"so it misjudges small clusters{hint}"
            )
    return doubts


def _quota_line(answer: Recommendations) -> list[str]:
    """Which limits were used without having been asked for."""
    family = answer.configurations[0].cluster.gpu.quota_family
    quotas = [q for q in answer.catalog.quotas if q.family == family]
    if answer.request.quotas is not None or not quotas:
        return []
    limits = " and ".join(f"{q.vcpus} {q.market.value}" for q in quotas)
    return [f"Quotas: those of the catalogue ({family}: {limits} vCPUs); yours may be lower, see --quota."]


def source_line(catalog: Catalog, today: date) -> str:
    """Where the prices come from, how old they are, and what to do about it."""
    source = catalog.provenance
    where = f"{source.kind} catalogue {catalog.name}" + (f", {catalog.region}" if catalog.region else "")
    if source.prices_as_of is None:
        return f"Prices: {where}, undated."
    days = (today - source.prices_as_of).days
    age = f"{days} days old" if days < 365 else f"{days / 365.25:.1f} years old"
    line = f"Prices: {where}, as of {source.prices_as_of}, {age if days >= 0 else 'which is in the future'}."
    if days <= STALE_DAYS:
        return line
    if source.kind != "embedded":
        return f"{line} Bring the prices and prices_as_of of that file up to date."
    return (
        f"{line} For today's: 'deepvm catalog show {catalog.name} -o json > my.json', edit the prices, "
        "and use '--catalog my.json'."
    )


def sentence(why: Infeasible) -> str:
    """Why there is no configuration and what to change, as two sentences."""
    return f"{why.reason[:1].upper()}{why.reason[1:]}. To change that: {why.advice}."


def print_why(why: WhyNot) -> None:
    """The answer to "why not this type?" on stdout."""
    print_lines([f"Why not {why.instance_type}? {why.verdict}."])
    if why.best is not None:
        print_lines([""])
        print_table(*_table([why.best], wide=False))
        print_lines(["", *(f"Limited by {b.constraint}: {b.reason}." for b in why.best.binding)])
