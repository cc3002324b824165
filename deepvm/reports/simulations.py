"""Simulated trainings as tables, JSON and CSV; the pictures are in :mod:`deepvm.reports.simulation_pictures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.core.deadlines import deadline_policy_name
from deepvm.core.instances import Market
from deepvm.core.job import Job
from deepvm.reports.documents import to_csv
from deepvm.reports.tables import Column, print_lines, print_table
from deepvm.simulator.results import Spread
from deepvm.simulator.state import PARTS
from deepvm.simulator.sweeps import Answer

COMPARISON = "deepvm.simulate-comparison/1"


def undisturbed_s(job: Job) -> float:
    """Seconds of the job on VMs that nobody takes away: allocation, preparation, steps and the user's own saves."""
    saves = job.steps // job.save_every_steps if job.save_every_steps else 0
    work = job.steps * job.step_s.mean + saves * job.blocked_s.mean
    return job.allocation_s.mean + job.preparation_s.mean + work


def comparison(answers: Sequence[Answer]) -> dict[str, Any]:
    """Several answers as plain data: ``rows`` of ``deepvm.simulate/1`` with the values of the sweep beside them."""
    rows = [{**({"sweep": dict(a.values)} if a.values else {}), **a.results.document()} for a in answers]
    return {"schema_version": COMPARISON, "rows": rows}


def csv_text(answers: Sequence[Answer]) -> str:
    """One row for each answer; seconds, dollars and counts."""
    keys = [name for name, _ in answers[0].values]
    figures = ("total_s", "cost_usd", "preemptions")
    spreads = [f"{f}_{s}" for f in figures for s in ("mean", "sem", "p5", "p50", "p95")]
    rows = []
    for answer in answers:
        found = answer.results
        numbers = [v for f in figures for v in Spread.of(getattr(found, f)).document().values()]
        parts = [found.breakdown_s[p] for p in PARTS]
        rows.append([*(v for _, v in answer.values), found.policy, found.runs, found.seed, *numbers, *parts])
    return to_csv([*keys, "policy", "runs", "seed", *spreads, *(f"{p}_s" for p in PARTS)], rows)


def print_answers(answers: Sequence[Answer]) -> None:
    """What was simulated, a row for each answer, and what the figures mean."""
    first = answers[0].results
    job = first.job
    vms = f"{job.vms} VMs" if job.vms > 1 else "1 VM"
    print_lines(
        [f"{job.name}: {job.steps} steps on {vms}, {job.market.value}; {first.runs} runs, seed {first.seed}", ""]
    )
    keys = [name for name, _ in answers[0].values]
    columns = [Column(key, "right") for key in keys]
    columns += [Column("policy"), *(Column(c, "right") for c in ("time", "5-95 %", "cost $", "5-95 %", "lost VMs"))]
    columns += [Column(c, "right") for c in ("overhead", "recompute", "save", "allocation", "preparation")]
    if first.deadline is not None:
        columns += [Column("late", "right"), Column("on demand", "right")]
    print_table(columns, [_row(answer) for answer in answers])
    print_lines(["", *_remarks(answers)])


def _row(answer: Answer) -> list[str]:
    found = answer.results
    time, cost, lost = (Spread.of(v) for v in (found.total_s, found.cost_usd, found.preemptions))
    work = found.breakdown_s["compute"]
    return [
        *(value(name, v) for name, v in answer.values),
        found.policy,
        duration(time.mean),
        f"{duration(time.p5)} - {duration(time.p95)}",
        f"{cost.mean:.2f}",
        f"{cost.p5:.2f} - {cost.p95:.2f}",
        f"{lost.mean:.1f}",
        f"{100 * (time.mean / work - 1):.2f} %",
        *(f"{100 * max(found.breakdown_s[p], 0.0) / work:.2f} %" for p in PARTS[1:]),  # rounding may give -0
        *([] if found.deadline is None else [f"{100 * s:.1f} %" for s in (found.late_share, found.on_demand_share)]),
    ]


def _remarks(answers: Sequence[Answer]) -> list[str]:
    job = answers[0].results.job
    lines = ["Overhead and its parts: shares of the time for the steps alone, each done once. Time and cost: means."]
    deadline = answers[0].results.deadline
    if deadline is not None:
        policy = deadline_policy_name(deadline.policy)
        lines.append(f"Deadline: {duration(deadline.seconds)}, {policy}; on demand is a share of the machine time.")
    if job.market is Market.SPOT and job.on_demand_usd_per_hour:
        base = undisturbed_s(job)
        usd = base / 3600 * job.on_demand_usd_per_hour * job.vms
        best = min(answers, key=lambda a: float(a.results.cost_usd.mean())).results
        mean = float(best.cost_usd.mean())
        saved = f"{best.policy} costs {100 * (1 - mean / usd):.0f} % less" if mean < usd else "none of these is cheaper"
        lines.append(f"On demand: {duration(base)}, ${usd:.2f}; {saved}.")
    return lines


def duration(seconds: float) -> str:
    """Days, hours and minutes, in as few words as tell the length: ``5d 12h``, ``7h 03m``, ``2m 05s``."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, last = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02d}h {minutes:02d}m"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {last:02d}s"


def value(key: str, number: float) -> str:
    """A value of a sweep as people write it."""
    if key == "vms":
        return f"{number:.0f}"
    return f"{number:g}" if key == "missed" else duration(number)
