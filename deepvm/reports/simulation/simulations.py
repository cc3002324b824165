"""Simulated training runs as tables, JSON, CSV and pictures: what the overhead consists of, how a sweep changes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job
from deepvm.core.units import counted, format_seconds
from deepvm.reports.pictures import STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.simulator.engine.state import PARTS
from deepvm.simulator.results import FIGURES, Results, Spread
from deepvm.simulator.sweeps import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARISON = "deepvm.simulate-comparison/1"


def by_job(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """The answers of each job, by its name."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.results.job.name, []).append(answer)
    return groups


def comparison(answers: Sequence[Answer]) -> dict[str, Any]:
    """Several answers as plain data: ``rows`` of ``deepvm.simulate/1`` with the values of the sweep beside them."""
    rows = [
        {**({"sweep": dict(a.values)} if a.values else {}), **a.results.document()} for a in answers
    ]
    return {"schema_version": COMPARISON, "rows": rows}


def csv_rows(answers: Sequence[Answer]) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each answer; seconds, dollars and counts."""
    several, rows = len(by_job(answers)) > 1, []
    for answer in answers:
        found = answer.results
        row: dict[str, Any] = {"job": found.job.name} if several else {}
        row |= {key: int(v) if key == "vms" else v for key, v in answer.values}
        row |= {"policy": found.policy, "runs": found.runs, "seed": found.seed}
        for figure in FIGURES:
            spread = asdict(Spread.of(getattr(found, figure)))
            row |= {f"{figure}_{name}": v for name, v in spread.items()}
        rows.append(row | {f"{part}_s": seconds for part, seconds in found.breakdown_s.items()})
    return list(rows[0]), [list(row.values()) for row in rows]


def print_answers(answers: Sequence[Answer]) -> None:
    """What was simulated, a row for each answer, and what the figures mean."""
    first = answers[0].results
    jobs = by_job(answers)
    keys = [name for name, _ in answers[0].values]
    for group in jobs.values():
        job = group[0].results.job
        vms = "" if "vms" in keys else f" on {counted(job.vms, 'VM')}"
        runs = f"{counted(first.runs, 'run')}, seed {first.seed}"
        print_lines([f"{job.name}: {job.steps} steps{vms}, {job.market.value}; {runs}"])
    print_lines([""])
    print_items([_row(a, several=len(jobs) > 1) for a in answers], also="-o csv")
    print_lines(["", *_remarks(answers)])


def _row(answer: Answer, *, several: bool) -> dict[Column, str]:
    found, parts = answer.results, shares(answer.results)
    time, cost, lost = (Spread.of(v) for v in (found.total_s, found.cost_usd, found.preemptions))
    row = {
        **({Column("job"): found.job.name} if several else {}),
        **{Column(name, "right"): value(name, v) for name, v in answer.values},
        Column("policy"): found.policy,
        Column("time", "right"): format_seconds(time.mean),
        Column(
            "time 5-95 %", "right", drop=6
        ): f"{format_seconds(time.p5)} - {format_seconds(time.p95)}",
        Column("cost $", "right", drop=1): f"{cost.mean:.2f}",
        Column("cost 5-95 %", "right", drop=7): f"{cost.p5:.2f} - {cost.p95:.2f}",
        Column("lost VMs", "right", drop=5): f"{lost.mean:.1f}",
        Column("overhead", "right", drop=3): _percent(sum(parts.values())),
        **{Column(part, "right", drop=8): _percent(share) for part, share in parts.items()},
    }
    if found.deadline is not None:
        row[Column("late", "right", drop=2)] = f"{100 * found.late_share:.1f} %"
        row[Column("on demand", "right", drop=4)] = f"{100 * found.on_demand_share:.1f} %"
    return row


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.2f} %"  # rounding may give -0


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
    lines = [
        "Overhead and its parts: shares of the time for the steps alone, each done once. Time and"
        " cost: means."
    ]
    deadline = answers[0].results.deadline
    if deadline is not None:
        policy = deadline.policy.name
        lines.append(
            f"Deadline: {format_seconds(deadline.seconds)}, {policy}; on demand is a share of the"
            " machine time."
        )
    jobs = by_job(answers)
    for name, group in jobs.items():
        whose = f", {name}" if len(jobs) > 1 else ""
        lines += [
            f"{head}{whose}{tail}"
            for head, tail in (
                *_on_demand(group),
                *_counted_as_zero(group[0].results.job, deadline is not None),
            )
        ]
    return lines


def _on_demand(answers: Sequence[Answer]) -> list[tuple[str, str]]:
    """What the job costs on demand, compared with the cheapest answer."""
    job = answers[0].results.job
    if job.market is not Market.SPOT or not job.on_demand_usd_per_hour:
        return []

    def share(answer: Answer) -> float:
        return float(answer.results.cost_usd.mean()) / _on_demand_bill(answer.results.job)[1]

    best = min(answers, key=share)
    seconds, usd = _on_demand_bill(best.results.job)
    at = "".join(f" at {name} {value(name, v)}" for name, v in best.values)
    dearer = sum(share(answer) >= 1 for answer in answers)
    saved = (
        f"{best.results.policy}{at} costs {100 * (1 - share(best)):.0f} % less"
        if dearer < len(answers)
        else ""
    )
    others = f", {dearer} of the rows no less" if 0 < dearer < len(answers) else ""
    text = f"{format_seconds(seconds)}, ${usd:.2f}"
    return [
        (
            "On demand",
            f": {text}; {saved}{others}." if saved else f": {text}; none of these is cheaper.",
        )
    ]


def _on_demand_bill(job: Job) -> tuple[float, float]:
    """Seconds and dollars of the job on demand: allocation, preparation, steps and the user's own saves."""
    saves = job.steps // job.save_every_steps if job.save_every_steps else 0
    seconds = job.allocation_s.mean + job.preparation_s.mean
    seconds += job.steps * job.step_s.mean + saves * job.blocked_s.mean
    return seconds, job.on_demand_usd_per_hour / 3600 * job.vms * seconds


def _counted_as_zero(job: Job, deadline: bool) -> list[tuple[str, str]]:
    """Parameters that were left out and count as 0, which makes the job look better than it is."""
    spot = job.market is Market.SPOT
    times = {
        "save_s": job.save_s,
        "allocation_s": job.allocation_s,
        "preparation_s": job.preparation_s,
    }
    missing = [key for key, span in times.items() if spot and not span.high]
    missing += ["backup_s"] if spot and not job.durable_s.high else []
    missing += ["spot_usd_per_hour"] if spot and not job.spot_usd_per_hour else []
    missing += (
        ["on_demand_usd_per_hour"]
        if (deadline or not spot) and not job.on_demand_usd_per_hour
        else []
    )
    lines = [("Counted as 0", f": {', '.join(missing)}.")] if missing else []
    if spot and job.mttp_s[0] == math.inf:
        lines.append(("No preemptions", ": mttp_s is not given."))
    return lines


def value(key: str, number: float) -> str:
    """A value of a sweep, for people."""
    if key == "vms":
        return f"{number:.0f}"
    return f"{number:g}" if key == "missed" else format_seconds(number)


# The palette of the other pictures, in the roles of the thesis's figures: red, green, blue, purple;
# and grey.
_COLORS = {
    "fewer VMs": "#666666",
    "recompute": "#D55E00",
    "save": "#009E73",
    "allocation": "#0072B2",
    "preparation": "#A8336F",
}


def answers_figure(answers: Sequence[Answer]) -> Figure:
    """Lines for a sweep of one key of one job, else bars."""
    lines = len(answers[0].values) == 1 and len(by_job(answers)) == 1
    return lines_figure(answers) if lines else bars_figure(answers)


def bars_figure(answers: Sequence[Answer]) -> Figure:
    """Stacked bars of the overhead over the steps alone (Spotify thesis, Figures 6.1 and 6.2), one for each answer."""
    names = [a.results.policy for a in answers]
    if answers[0].values:
        names = [
            "\n".join([*(f"{k} {value(k, v)}" for k, v in a.values), a.results.policy])
            for a in answers
        ]
    jobs = by_job(answers)
    if len(jobs) > 1:
        names = [
            f"{name}\n{short(a.results.job.name, 12)}"
            for name, a in zip(names, answers, strict=True)
        ]
    steps = "" if len(jobs) > 1 else f"{answers[0].results.job.steps} steps, "
    with drawing(max(6.0, 2.2 + 1.1 * len(answers)), 4.6) as (figure, axes):
        base = np.zeros(len(answers))
        parts = [shares(a.results) for a in answers]
        for part in (p for p in _COLORS if any(p in own for own in parts)):
            share = np.array([100 * own.get(part, 0.0) for own in parts])
            axes.bar(range(len(answers)), share, 0.6, bottom=base, label=part, color=_COLORS[part])
            base += share
        for place, total in enumerate(base):
            axes.annotate(
                f"{total:.1f} %", (place, total), (0, 3), textcoords="offset points", ha="center"
            )
        axes.set_xticks(range(len(answers)), names)
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.margins(y=0.12)
        axes.set_xlim(
            min(-0.5, len(answers) / 2 - 2.0), max(len(answers) - 0.5, len(answers) / 2 + 1.0)
        )
        figure.suptitle(f"What preemptions and saves cost: {short(', '.join(jobs), 30)}")
        axes.set_title(f"{steps}means of {answers[0].results.runs} runs", fontsize="small")
        legend(figure, 4, handlelength=None)
    return figure


def lines_figure(answers: Sequence[Answer]) -> Figure:
    """Overhead over one key of a sweep (Figure 6.3), a line for each policy, with the 5 to 95 % of the runs."""
    key = answers[0].values[0][0]
    policies = list(dict.fromkeys(a.results.policy for a in answers))
    labels = {
        "mttp": "mean time to preemption of a VM (h)",
        "missed": "share of notices that do not come",
        "vms": "VMs",
    }
    scale = 3600.0 if key == "mttp" else 1.0
    job = answers[0].results.job
    with drawing(7.0, 4.4) as (figure, axes):
        for index, policy in enumerate(policies):
            own = [a for a in answers if a.results.policy == policy]
            x = [a.values[0][1] / scale for a in own]
            # One and all shares over it are the total over the steps alone.
            alone = [a.results.total_s.mean() / (1 + sum(shares(a.results).values())) for a in own]
            spreads = [
                Spread.of(100 * (a.results.total_s / s - 1))
                for a, s in zip(own, alone, strict=True)
            ]
            style = STYLES[index % len(STYLES)]
            axes.plot(x, [s.mean for s in spreads], label=policy, **style.marked)
            axes.fill_between(
                x,
                [s.p5 for s in spreads],
                [s.p95 for s in spreads],
                color=style.color,
                alpha=0.15,
                lw=0,
            )
        axes.set_xlabel(labels.get(key, f"{key} (s)"))
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.set_ylim(bottom=0)
        if key == "vms":
            axes.locator_params(axis="x", integer=True)
        figure.suptitle(f"What preemptions cost: {short(job.name)}")
        axes.set_title(
            f"{job.steps} steps; means and 5 to 95 % of {answers[0].results.runs} runs",
            fontsize="small",
        )
        legend(figure, len(policies), handlelength=None)
    return figure
