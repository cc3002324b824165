"""Recommendations as documents for programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from deepvm.catalog.signals.signal import HISTORY, ON_DEMAND, SPOT, base
from deepvm.core.bill.extras import Extras
from deepvm.core.cluster.cluster import Cluster, Prediction, Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.io.times import format_time
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, cloud_name
from deepvm.planner.request import Range
from deepvm.reports.plans.bills import bill_document
from deepvm.reports.plans.outlooks import expected_document, risk_document, risk_of
from deepvm.reports.plans.sources import doubts, quota_needs

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.core.bill.bill import Bill
    from deepvm.core.training.speed import Training
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.job_forecast import Work
    from deepvm.planner.workload.measurement import NextMeasurement

SCHEMA_VERSION = "deepvm.recommend/1"
EXPLAIN_VERSION = "deepvm.explain/1"
FIGURES = ("speedup", "scaling_factor", "throughput", "flopp_spot", "z", "usd_per_work")
"""Figures of a recommendation, in documents and CSV by the names of its attributes."""


def document(answer: Recommendations, why: WhyNot | None = None) -> dict[str, Any]:
    """The pinned JSON object of ``recommend -o json``; money in $/h, sizes in bytes."""
    request, catalog, change = answer.request, _effective(answer), answer.next_change
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
            "rank": "machines" if request.ranks_machines else "plans",
            "extrapolate": request.extrapolate,
            "mttp_s": None if request.life_s in (None, math.inf) else request.life_s,
            "architectures": list(request.architectures),
            "gpus": list(request.gpus),
            "instance_types": list(request.instance_types),
            "exclude": list(request.exclude),
            "memory_nodes": list(request.memory_nodes),
            "max_nodes": request.max_nodes,
            "quotas": [
                {
                    "family": q.family,
                    "market": q.market.value,
                    "vcpus": q.vcpus,
                    "in_use": q.in_use,
                    "code": q.code,
                }
                for q in catalog.quotas
            ],
            "estimates": request.estimates,
            "burstable": request.burstable,
            "cpu_architecture": request.cpu_architecture and request.cpu_architecture.value,
            "generation": request.generation.value,
            "extras": _extras(request.extras),
            "gpus_per_vm": _bounds(request.gpus_per_vm),
            "gpu_memory_bytes": _bounds(request.gpu_memory_bytes),
            "gpu_total_memory_bytes": _bounds(request.gpu_total_memory_bytes),
        },
        "source": source(catalog),
        "solution": {"status": answer.status.value, "solver": answer.solver, "doubt": answer.doubt},
        "doubts": doubts(answer),
        "configurations": [_configuration(r, catalog) for r in answer.configurations],
        "alternatives": [
            {"objective": a.objective.value, **(_configuration(a.recommendation, catalog) or {})}
            for a in answer.alternatives
        ],
        "next_change": (
            change
            and {
                "pw_usd_per_hour": float(change.budget),
                "gain": change.gain,
                "configuration": _configuration(change.recommendation, catalog),
            }
        ),
        "nearly_as_good": _configuration(answer.nearly, catalog),
        "rejected": [asdict(r) for r in answer.rejections],
    }
    if request.training is not None:
        found["request"]["training"] = _trained(request.training)
        found["on_demand"] = _configuration(answer.on_demand, catalog)
    if request.work is not None:
        found["request"]["work"] = _work(request.work, answer.reference)
        found["on_demand"] = _configuration(answer.on_demand, catalog)
    if answer.infeasible is not None:
        found["reason"] = answer.infeasible.reason
        found["relax"] = {
            "constraint": answer.infeasible.constraint,
            "advice": answer.infeasible.advice,
        }
        found["cheapest"] = _configuration(answer.cheapest, catalog)
    if request.training is not None and answer:
        # Slow to import, and only models need it
        from deepvm.planner.workload.measurement import measure_next

        found["next_measurement"] = _next_measurement(
            measure_next(answer.catalog, request), request.training
        )
    if why is not None:
        found["explanation"] = explanation(why, catalog)
    return found


def _work(work: Work, reference: InstanceType | None) -> dict[str, Any]:
    """What is to be trained."""
    from deepvm.core.preemption.interruption_bands import share_over

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
    return answer.catalog if quotas is None else replace(answer.catalog, quotas=quotas)


def _extras(extras: Extras) -> dict[str, Any]:
    """What the bill was asked to count besides VMs."""
    sizes = {
        "disk_gb": extras.disk_gb,
        "egress_gb": extras.egress_gb,
        "bucket_gb": extras.bucket_gb,
    }
    return {
        **{name: None if size is None else float(size) for name, size in sizes.items()},
        "disk_type": extras.disk_kind or None,
        "nat": extras.nat,
        "excluded": sorted(extras.excluded),
    }


def _bounds(bounds: Range) -> dict[str, int | None]:
    return {"min": bounds.least, "max": bounds.most}


def explanation(why: WhyNot, catalog: Catalog) -> dict[str, Any]:
    """The answer to "why not this type?" as a document; money in $/h."""
    return {
        "instance_type": why.instance_type,
        "verdict": why.verdict,
        "configuration": _configuration(why.best, catalog),
        "gap": why.gap,
        "matches_at_usd_per_hour": None if why.matches_at is None else float(why.matches_at),
        "rejection": (
            why.rejection and {"reason": why.rejection.reason, "detail": why.rejection.detail}
        ),
    }


def why_document(why: WhyNot) -> dict[str, Any]:
    """The JSON object of ``explain -o json``."""
    return {
        "schema_version": EXPLAIN_VERSION,
        **explanation(why, why.catalog),
        "source": source(why.catalog) | ({"eflops_unit": why.units} if why.units else {}),
    }


def why_rows(why: WhyNot) -> tuple[list[str], list[list[Any]]]:
    """Header, and one row: the type that was asked about, its best cluster, and how far that is from the winner."""
    best = [why.best and value(why.best) for value in CSV.values()]
    matches_at = None if why.matches_at is None else float(why.matches_at)
    trained = CSV_TRAINED if why.units else {}
    predicted = why.best and why.best.prediction
    doubt = [predicted and value(predicted) for value in trained.values()]
    outlook = why.best and why.best.outlook
    expected, more = expected_document(outlook) if outlook else {}, CSV_EXPECTED if outlook else []
    header = [
        "asked_instance_type",
        "verdict",
        *CSV,
        "gap",
        "matches_at_usd_per_hour",
        "reason",
        *more,
        *trained,
    ]
    reason = why.rejection and why.rejection.reason
    figures = [why.gap, matches_at, reason, *map(expected.get, more)]
    return header, [[why.instance_type, why.verdict, *best, *figures, *doubt]]


def source(catalog: Catalog) -> dict[str, Any]:
    """Where a catalog's figures come from, each kind of figure with when it was true (ISO 8601, UTC)."""
    about = catalog.provenance
    found: dict[str, Any] = {
        "catalog": catalog.name,
        "region": catalog.region,
        "prices_as_of": about.prices_as_of and about.prices_as_of.isoformat(),
        "kind": about.kind,
        "source": about.source,
        "eflops_unit": catalog.eflops_unit,
        "price_basis": about.basis or "current",
        "signals": [
            {
                "signal": o.signal,
                "kind": o.kind,
                "observed_at": format_time(o.observed_at),
                "source": o.source,
                "refused": dict(o.refused),
                **({} if o.dated else {"dated": False}),
            }
            for o in about.origins
        ],
        "notes": list(about.notes),
    }
    if about.measured:
        found["measured"] = [
            {
                "kind": m.kind,
                "subject": m.subject,
                "workload": m.workload or None,
                "measured_at": format_time(m.measured_at),
                "value": m.value,
                **({"runs": m.runs} if m.kind == "steps" else {}),
            }
            for m in about.measured
        ]
        found["measured_file"] = about.measured_file or None
        found["measured_doubts"] = list(about.doubts)
    return found


def comparison(found: Comparison, why: WhyNot | None = None) -> dict[str, Any]:
    """Several regions: the object of the best one, with the clusters of all of them, and what each region has."""
    best = found.answers[0]
    if len(found.answers) == 1:
        return document(best, why)
    several = found.of_several_clouds

    def cloud(catalog: Catalog) -> dict[str, Any]:
        return {"cloud": cloud_name(catalog)} if several else {}

    def told(r: Recommendation | None, catalog: Catalog) -> dict[str, Any] | None:
        row = _configuration(r, catalog)
        return row if row is None else cloud(catalog) | row

    return document(best, why) | {
        "configurations": [told(p.recommendation, _effective(p.answer)) for p in found.ranked],
        "regions": [
            cloud(a.catalog)
            | {
                "region": a.catalog.region,
                "source": source(a.catalog),
                "best": told(a[0], _effective(a)) if a else None,
                "reason": a.infeasible and a.infeasible.reason,
            }
            for a in found.answers
        ],
    }


def placement(found: Placement) -> dict[str, Any]:
    """AWS's placement scores as a document."""
    return {
        "region": found.region,
        "instance_types": list(found.instance_types),
        "vm_count": found.count,
        "scores": [{"zone": zone, "score": score} for zone, score in found.scores.items()],
        "observed_at": format_time(found.observed_at),
    }


def _configuration(r: Recommendation | None, catalog: Catalog) -> dict[str, Any] | None:
    if r is None:
        return None
    cluster, gpu, memory, risk = r.cluster, r.cluster.gpu, r.cluster.memory, risk_of(r.cluster)
    return {
        "rank": r.rank,
        "architecture": cluster.architecture,
        "region": catalog.region,
        "zone": cluster.zone and cluster.zone.zone,
        "next_zone": _next_zone(r.next_zone),
        "gpu": {
            "instance_type": gpu.type_name,
            "count": cluster.gpu_count,
            "vm_count": cluster.gpu_count,
            "spot_count": cluster.spot_count,
            "on_demand_count": cluster.on_demand_count,
            # Only where somebody other than the catalog's own source measured it.
            **({"eflops_source": gpu.eflops_source} if gpu.eflops_source else {}),
            **_committed(gpu),
            # Only with '--mttp history', where it says enough.
            **({"known_life": asdict(gpu.known_life)} if gpu.known_life else {}),
            "gpu_name": gpu.gpu and gpu.gpu.name,
            "gpus_per_vm": gpu.gpu and gpu.gpu.count,
            "cpu_architecture": gpu.cpu_architecture or None,
            "eflops": gpu.eflops,
            "eflops_basis": gpu.eflops_basis,
            "interruption_band": gpu.interruption_band,
            **_price(gpu, Market.SPOT, catalog),
            **_price(gpu, Market.ON_DEMAND, catalog),
            "zones": [
                {
                    "zone": z.zone,
                    "zone_name": z.name or None,
                    "usd_per_hour": float(z.usd_per_hour),
                    "since": z.since or None,
                }
                for z in gpu.spot_zones
            ],
        },
        "memory": (
            memory
            and {
                "instance_type": memory.instance.type_name,
                "count": memory.count,
                "vm_count": memory.count,
                "cpu_architecture": memory.instance.cpu_architecture or None,
                **_committed(memory.instance),
                **_price(memory.instance, Market.ON_DEMAND, catalog),
                "zones": list(memory.instance.zones),
            }
        ),
        "usd_per_hour": float(r.usd_per_hour),
        **{name: getattr(r, name) for name in FIGURES},
        "speedup_kind": r.speedup_kind,
        "estimated": r.estimated,
        "quotas": quota_needs(cluster, catalog),
        "interruptions": risk and risk_document(risk),
        "binding": [b.constraint for b in r.binding],
        "binding_reasons": [b.reason for b in r.binding],
        "warnings": list(r.warnings),
        **({"training": _prediction(r.prediction)} if r.prediction else {}),
        **({"expected": expected_document(r.outlook)} if r.outlook else {}),
        **({"bill": bill_document(r.bill, r.whole_usd)} if r.bill else {}),
    }


def _committed(instance: InstanceType) -> dict[str, Any]:
    """Only with '--reserved', where VMs are such, and with '--savings-plan', where it counts."""
    reserved = {"reserved": asdict(instance.reserved)} if instance.reserved else {}
    return {
        **reserved,
        **({"on_demand_discount": float(instance.discount)} if instance.discount else {}),
    }


def _prediction(found: Prediction) -> dict[str, Any]:
    """How fast a cluster trains the model."""
    return {
        "throughput": found.throughput.as_document(),
        "step_s": found.step_s.as_document(),
        "mfu": found.mfu,
        "source": found.source,
        "precision": found.precision,
        "batch_per_gpu": found.batch_per_gpu,
        "micro_batch": found.micro_batch,
        "activation_checkpointing": found.checkpointing,
        "checked_up_to_vms": found.fitted_vms,
        "state_bytes_per_gpu": found.state_bytes,
        "kept_share": found.kept.as_document(),
        "faster_than_first": found.faster_than_first,
    }


def _trained(training: Training) -> dict[str, Any]:
    """What is trained."""
    workload = training.workload
    return {
        "model": workload.model.name,
        "parameters": workload.model.parameters,
        "unit": workload.units,
        "method": workload.method.value,
        "precision": workload.precision.value,
        "sequence": workload.model.sequence,
        "scaling": workload.scaling.value,
        "batch": workload.batch,
        "samples": workload.samples,
        "activation_checkpointing": workload.checkpointing,
        "software": getattr(training.speeds, "software", None),
        "placement_group": getattr(training.speeds, "placement_group", None),
    }


def _next_measurement(found: NextMeasurement | None, training: Training) -> dict[str, Any] | None:
    """What to measure next, and the command that does."""
    from deepvm.reports.plans.measuring import measure_command

    if found is None:
        return None
    return {
        "instance_type": found.cluster.gpu.name,
        "vm_count": found.count,
        "minutes": found.minutes,
        "cost_usd": float(found.usd),
        "expected_gain": found.gain,
        "changes_the_choice": found.changes,
        "command": measure_command(found, training),
    }


def _next_zone(other: Cluster | None) -> dict[str, Any] | None:
    """The next-best zone for a cluster, and what it costs there; None where none is known."""
    if other is None or other.zone is None:
        return None
    memory = other.memory
    return {
        "zone": other.zone.zone,
        "zone_name": other.zone.name or None,
        "spot_usd_per_hour": float(other.zone.usd_per_hour),
        "memory": memory and {"instance_type": memory.instance.name, "vm_count": memory.count},
        "usd_per_hour": float(other.usd_per_hour),
    }


def _price(instance: InstanceType, market: Market, catalog: Catalog) -> dict[str, Any]:
    """A price, where it comes from, and when it was true."""
    usd, about = instance.usd_per_hour(market), catalog.provenance
    source = {
        "kind": about.kind,
        "observed_at": about.prices_as_of and about.prices_as_of.isoformat(),
    }
    names = (SPOT, HISTORY) if market is Market.SPOT else (ON_DEMAND,)
    for origin in about.origins:
        if base(origin.signal) in names:
            source = {"kind": origin.kind, "observed_at": format_time(origin.observed_at)}
            break
    name = market.value.replace("-", "_")
    return {f"{name}_usd_per_hour": None if usd is None else float(usd), f"{name}_price": source}


CSV: dict[str, Callable[[Recommendation], Any]] = {
    "rank": lambda r: r.rank,
    "architecture": lambda r: r.cluster.architecture,
    "instance_type": lambda r: r.cluster.gpu.name,
    "vm_count": lambda r: r.cluster.gpu_count,
    "spot_count": lambda r: r.cluster.spot_count,
    "on_demand_count": lambda r: r.cluster.on_demand_count,
    "memory_instance_type": lambda r: r.cluster.memory and r.cluster.memory.instance.name,
    "memory_vm_count": lambda r: r.cluster.memory.count if r.cluster.memory else 0,
    "usd_per_hour": lambda r: float(r.usd_per_hour),
    **{name: attrgetter(name) for name in FIGURES},
    "binding": lambda r: " ".join(b.constraint for b in r.binding),
}
"""Columns of the CSV that say what a cluster is."""
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
CSV_TRAINED: dict[str, Callable[[Prediction], Any]] = {
    "throughput_low": lambda p: p.throughput.low,
    "throughput_high": lambda p: p.throughput.high,
    "source": lambda p: p.source,
}
"""Appended where a model is trained: the ends of the 80 % interval of its throughput, and where that comes from."""
CSV_BILL: dict[str, Callable[[Bill], Any]] = {
    "besides_usd_per_hour": lambda b: float(b.usd_per_hour),
    "besides_usd_once": lambda b: float(b.usd_once),
    "in_all_usd_per_hour": lambda b: float(b.total_usd_per_hour),
}
"""Appended where rates of what comes besides VMs are known; the items are in the other formats."""


def csv_rows(found: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each configuration, of all regions together."""
    request, rows = found.answers[0].request, []
    more = CSV_EXPECTED if request.work is not None else []
    trained = {} if request.training is None else CSV_TRAINED
    clouds = ["cloud"] if found.of_several_clouds else []
    billed = CSV_BILL if any(p.recommendation.bill for p in found.ranked) else {}
    for placed in found.ranked:
        r = placed.recommendation
        zone, expected = r.cluster.zone and r.cluster.zone.zone, expected_document(r.outlook)
        where = [placed.answer.catalog.region, zone, r.estimated]
        doubt = [value(r.prediction) if r.prediction else None for value in trained.values()]
        cloud = [cloud_name(placed.answer.catalog) for _ in clouds]
        bill = [value(r.bill) if r.bill else None for value in billed.values()]
        rows.append(
            [
                *(value(r) for value in CSV.values()),
                *where,
                *map(expected.get, more),
                *doubt,
                *cloud,
                *bill,
            ]
        )
    return [*CSV, "region", "zone", "estimated", *more, *trained, *clouds, *billed], rows
