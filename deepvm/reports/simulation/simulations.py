"""Simulated trainings as tables, JSON and CSV; the pictures are in :mod:`.simulation_pictures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job
from deepvm.core.units import format_seconds
from deepvm.reports.documents import to_csv
from deepvm.reports.tables import Column, print_lines, print_table
from deepvm.simulator.engine.state import PARTS
from deepvm.simulator.results import Results, Spread
from deepvm.simulator.sweeps import Answer

COMPARISON = "deepvm.simulate-comparison/1"


def undisturbed_s(job: Job) -> float:
    """Seconds of the job on demand: allocation, preparation, steps and the user's own saves."""
    saves = job.steps // job.save_every_steps if job.save_every_steps else 0
    work = job.steps * job.step_s.mean + saves * job.blocked_s.mean
    return job.allocation_s.mean + job.preparation_s.mean + work


def by_job(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """The answers of each job, by its name."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.results.job.name, []).append(answer)
    return groups


def comparison(answers: Sequence[Answer]) -> dict[str, Any]:
    """Several answers as plain data: ``rows`` of ``deepvm.simulate/1`` with the values of the sweep beside them."""
    rows = [{**({"sweep": dict(a.values)} if a.values else {}), **a.results.document()} for a in answers]
    return {"schema_version": COMPARISON, "rows": rows}


def csv_text(answers: Sequence[Answer]) -> str:
    """One row for each answer; seconds, dollars and counts."""
    keys = [name for name, _ in answers[0].values]
    figures = ("total_s", "cost_usd", "preemptions")
    spreads = [f"{f}_{s}" for f in figures for s in ("mean", "sem", "p5", "p50", "p95")]
    several = len(by_job(answers)) > 1
    rows = []
    for answer in answers:
        found = answer.results
        numbers = [v for f in figures for v in Spread.of(getattr(found, f)).document().values()]
        parts = [found.breakdown_s[p] for p in PARTS]
        where = [*([found.job.name] if several else []), *(int(v) if key == "vms" else v for key, v in answer.values)]
        rows.append([*where, found.policy, found.runs, found.seed, *numbers, *parts])
    keys = [*(["job"] if several else []), *keys]
    return to_csv([*keys, "policy", "runs", "seed", *spreads, *(f"{p}_s" for p in PARTS)], rows)


def print_answers(answers: Sequence[Answer]) -> None:
    """What was simulated, a row for each answer, and what the figures mean."""
    first = answers[0].results
    jobs = by_job(answers)
    keys = [name for name, _ in answers[0].values]
    for group in jobs.values():
        job = group[0].results.job
        vms = "" if "vms" in keys else f" on {job.vms} VMs" if job.vms > 1 else " on 1 VM"
        runs = f"{first.runs} runs" if first.runs > 1 else "1 run"
        print_lines([f"{job.name}: {job.steps} steps{vms}, {job.market.value}; {runs}, seed {first.seed}"])
    print_lines([""])
    columns = [*([Column("job")] if len(jobs) > 1 else []), *(Column(key, "right") for key in keys)]
    figures = {"time": 0, "time 5-95 %": 6, "cost $": 1, "cost 5-95 %": 7, "lost VMs": 5, "overhead": 3}
    columns += [Column("policy"), *(Column(c, "right", drop) for c, drop in figures.items())]
    columns += [Column(c, "right", drop=8) for c in shares(first)]
    if first.deadline is not None:
        columns += [Column("late", "right", drop=2), Column("on demand", "right", drop=4)]
    rows = [[*([a.results.job.name] if len(jobs) > 1 else []), *_row(a)] for a in answers]
    print_table(columns, rows, also="-o csv")
    print_lines(["", *_remarks(answers)])


def _row(answer: Answer) -> list[str]:
    found = answer.results
    time, cost, lost = (Spread.of(v) for v in (found.total_s, found.cost_usd, found.preemptions))
    parts = shares(found)
    return [
        *(value(name, v) for name, v in answer.values),
        found.policy,
        format_seconds(time.mean),
        f"{format_seconds(time.p5)} - {format_seconds(time.p95)}",
        f"{cost.mean:.2f}",
        f"{cost.p5:.2f} - {cost.p95:.2f}",
        f"{lost.mean:.1f}",
        *(f"{100 * max(share, 0.0):.2f} %" for share in (sum(parts.values()), *parts.values())),  # rounding may give -0
        *([] if found.deadline is None else [f"{100 * s:.1f} %" for s in (found.late_share, found.on_demand_share)]),
    ]


def shares(found: Results) -> dict[str, float]:
    """What the overhead is made of, over the time for the steps alone; they add up to it.

    ``fewer VMs``: steps that took longer while a VM of an elastic cluster was missing.
    """
    compute = found.breakdown_s["compute"]
    slower = {}
    work = compute
    if found.job.elastic and found.job.vms > 1:
        work = found.job.steps * found.job.step_s.mean
        slower = {"fewer VMs": compute / work - 1}
    return {**slower, **{part: found.breakdown_s[part] / work for part in PARTS[1:]}}


def _remarks(answers: Sequence[Answer]) -> list[str]:
    lines = ["Overhead and its parts: shares of the time for the steps alone, each done once. Time and cost: means."]
    deadline = answers[0].results.deadline
    if deadline is not None:
        policy = deadline.policy.name
        lines.append(
            f"Deadline: {format_seconds(deadline.seconds)}, {policy}; on demand is a share of the machine time."
        )
    jobs = by_job(answers)
    for name, group in jobs.items():
        whose = f", {name}" if len(jobs) > 1 else ""
        lines += [
            f"{head}{whose}{tail}"
            for head, tail in (*_on_demand(group), *_nothing(group[0].results.job, deadline is not None))
        ]
    return lines


def _on_demand(answers: Sequence[Answer]) -> list[tuple[str, str]]:
    """What the job costs on demand, compared with the cheapest answer."""
    job = answers[0].results.job
    if job.market is not Market.SPOT or not job.on_demand_usd_per_hour:
        return []

    def share(answer: Answer) -> float:
        own = answer.results.job
        return float(answer.results.cost_usd.mean()) / (_on_demand_usd_per_second(own) * undisturbed_s(own))

    best = min(answers, key=share)
    job = best.results.job
    base = undisturbed_s(job)
    at = "".join(f" at {name} {value(name, v)}" for name, v in best.values)
    dearer = sum(share(answer) >= 1 for answer in answers)
    saved = f"{best.results.policy}{at} costs {100 * (1 - share(best)):.0f} % less" if dearer < len(answers) else ""
    others = f", {dearer} of the rows no less" if 0 < dearer < len(answers) else ""
    text = f"{format_seconds(base)}, ${_on_demand_usd_per_second(job) * base:.2f}"
    return [("On demand", f": {text}; {saved}{others}." if saved else f": {text}; none of these is cheaper.")]


def _on_demand_usd_per_second(job: Job) -> float:
    return job.on_demand_usd_per_hour / 3600 * job.vms


def _nothing(job: Job, deadline: bool) -> list[tuple[str, str]]:
    """Parameters that were not given, which makes the job look better than it is."""
    spot = job.market is Market.SPOT
    times = {"save_s": job.save_s, "allocation_s": job.allocation_s, "preparation_s": job.preparation_s}
    missing = [key for key, span in times.items() if spot and not span.high]
    missing += ["backup_s"] if spot and not job.durable_s.high else []
    missing += ["spot_usd_per_hour"] if spot and not job.spot_usd_per_hour else []
    missing += ["on_demand_usd_per_hour"] if (deadline or not spot) and not job.on_demand_usd_per_hour else []
    lines = [("Counted as 0", f": {', '.join(missing)}.")] if missing else []
    if spot and job.mttp_s[0] == math.inf:
        lines.append(("No preemptions", ": mttp_s is not given."))
    return lines


def value(key: str, number: float) -> str:
    """A value of a sweep as people write it."""
    if key == "vms":
        return f"{number:.0f}"
    return f"{number:g}" if key == "missed" else format_seconds(number)
