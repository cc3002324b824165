"""Values of documents that objects do not hold as such, by the names in ``data/documents``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from deepvm.core.units import utc_text
from deepvm.documents.values import ABSENT, With, value_at

MEANS = (
    "restarts",
    "wall_s",
    "compute_s",
    "repeated_s",
    "snapshot_s",
    "write_s",
    "background_s",
    "drain_s",
    "stall_s",
    "checkpoints",
    "skipped",
    "detect_s",
    "restart_s",
    "restore_s",
    "replay_s",
    "loss_difference",
)
"""What a variant of the lab has means of, over its runs that pass all gates."""
_NO_RUNS = {"mean": None, "low": None, "high": None, "n": 0}


def _variants(suite: Any) -> dict[str, With]:
    """The variants of a suite of the lab with their means."""
    return {
        name: With(variant, **{mean: variant.mean(mean) for mean in MEANS})
        for name, variant in suite.variants.items()
    }


def _cost_range(job: Any) -> Any:
    """The bill at a good and at a bad time."""
    if job.costs_usd is None or not math.isfinite(job.total_s):
        return None
    low, high = job.costs_usd
    return {"low": low, "high": high}


def _if_it_ends(job: Any, value: float) -> float | None:
    return value if math.isfinite(job.total_s) else None


def percent(change: Any) -> float | None:
    """The change of a price in per cent, to four digits."""
    return None if change.percent is None else float(round(change.percent, 4))


def _offer(instance: Any, usd_per_hour: Any) -> dict[str, Any] | None:
    """A type in a market, None where it is not sold there."""
    if usd_per_hour is None:
        return None
    return {"instance_type": instance.name, "usd_per_hour": usd_per_hour}


def _if_measured(about: Any, name: str) -> Any:
    return value_at(about, name) if about.measured else ABSENT


def _memory_nodes(plan: Any) -> With | None:
    nodes = plan.cluster.memory
    return nodes and With(nodes, on_demand_price=plan.on_demand_price)


COMPUTED: dict[str, Callable[[Any], Any]] = {
    # jobs
    "bill_of_machines": lambda plan: plan.bill and With(plan.bill, total_usd=None),
    "created": lambda job: utc_text(job.created_s),
    "since": lambda machine: utc_text(machine.since_s),
    # lab
    "goodput": lambda variant: variant.estimate("goodput") or _NO_RUNS,
    "variants": _variants,
    # performance
    "per_gpu": lambda speed: speed.interval.scaled(1 / speed.gpu_count),
    "batch_per_gpu": lambda speed: speed.workload.batch_on(speed.gpu_count),
    "spot_offer": lambda row: _offer(row.instance, row.instance.spot_usd_per_hour),
    "on_demand_offer": lambda row: _offer(row.instance, row.instance.on_demand_usd_per_hour),
    # plans
    "runs": lambda figure: figure.runs or None,
    "measured": lambda catalog: catalog.provenance.measured or None,
    "measured_file": lambda catalog: _if_measured(catalog.provenance, "measured_file"),
    "measured_doubts": lambda catalog: _if_measured(catalog.provenance, "doubts"),
    "memory_nodes": _memory_nodes,
    "late_share": lambda job: ABSENT if job.spread is None else job.spread.late,
    "software": lambda training: getattr(training.speeds, "software", None),
    "placement_group": lambda training: getattr(training.speeds, "placement_group", None),
    "excluded": lambda extras: sorted(extras.excluded),
    "undated": lambda origin: None if origin.dated else False,
    "price_basis": lambda about: about.basis or "current",
    "discount": lambda instance: instance.discount or None,
    "eflops_source": lambda instance: instance.eflops_source or None,
    "independent": lambda risk: True,
    "time_between": lambda risk: (risk.between_s[0] or None, risk.between_s[1]),
    "cost_range": _cost_range,
    "total_cost": lambda job: _if_it_ends(job, job.cost_usd),
    "preemptions": lambda job: _if_it_ends(job, job.preemptions),
    "by": lambda job: "closed form" if job.spread is None else "simulation",
    "binding": lambda plan: [limit.constraint for limit in plan.binding],
    "binding_reasons": lambda plan: [limit.reason for limit in plan.binding],
    # prices
    "gpu_types": lambda catalog: sum(one.gpu is not None for one in catalog),
    "cpu_types": lambda catalog: sum(one.gpu is None for one in catalog),
    "percent": percent,
    "changed": lambda diff: not diff.empty,
    # profiling
    "times": lambda pushes: [{"n": n, "seconds": own} for n, own in sorted(pushes.times.items())],
    "interval_of_knee": lambda pushes: [pushes.knee.low, pushes.knee.high],
    # simulation
    "deadline": lambda run: run if run.deadline else None,
    "sweep": lambda run: run.sweep or None,
    "machine_time": lambda own: sum(life.seconds for life in own.lives),
    "means": lambda replay: [row for row in replay["rows"] if not row.trace],
    "of_traces": lambda replay: [row for row in replay["rows"] if row.trace],
}
