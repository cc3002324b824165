"""Simulated training runs as tables, CSV and pictures: overhead, and how a sweep changes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job
from deepvm.core.units import counted, format_seconds
from deepvm.documents.build import document_of
from deepvm.documents.outputs.simulation import SimulationComparison, SimulationRow
from deepvm.reports.pictures import STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.simulator.engine.state import PARTS
from deepvm.simulator.results import FIGURES, Results, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_job(results: Sequence[Results]) -> dict[str, list[Results]]:
    """The results of each job, by its name."""
    groups: dict[str, list[Results]] = {}
    for result in results:
        groups.setdefault(result.job.name, []).append(result)
    return groups


def document(results: Sequence[Results], *, compared: bool) -> dict[str, Any]:
    """The only result, or ``compared`` ones."""
    if compared:
        return document_of(SimulationComparison, {"rows": results})
    return document_of(SimulationRow, results[0])


def csv_rows(results: Sequence[Results]) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each result; seconds, dollars and counts."""
    several, rows = len(by_job(results)) > 1, []
    for result in results:
        row: dict[str, Any] = {"job": result.job.name} if several else {}
        row |= result.sweep
        if "vms" in row:
            row["vms"] = int(row["vms"])
        row |= {"policy": result.policy, "runs": result.runs, "seed": result.seed}
        values = document_of(SimulationRow, result)
        for figure in FIGURES:
            row |= {f"{figure}_{name}": value for name, value in values[figure].items()}
        rows.append(row | {f"{part}_s": value for part, value in result.breakdown_s.items()})
    return list(rows[0]), [list(row.values()) for row in rows]


def print_results(results: Sequence[Results]) -> None:
    """What was simulated, a row for each result, and what the figures mean."""
    jobs = by_job(results)
    first = results[0]
    for own in jobs.values():
        job = own[0].job
        vms = "" if "vms" in first.sweep else f" on {counted(job.vms, 'VM')}"
        runs = f"{counted(first.runs, 'run')}, seed {first.seed}"
        print_lines([f"{job.name}: {job.steps} steps{vms}, {job.market.value}; {runs}"])
    print_lines([""])
    print_items([_cells(result, several=len(jobs) > 1) for result in results], also="-o csv")
    print_lines(["", *_notes(first)])
    for name, own in jobs.items():
        print_lines([f"{name}: {note}" for note in _notes_of_job(own)])


def _cells(result: Results, *, several: bool) -> dict[Column, str]:
    time, cost, lost = result.spreads.values()
    parts = shares(result)
    cells = {Column("job"): result.job.name} if several else {}
    for key, number in result.sweep.items():
        cells[Column(key, "right")] = sweep_value(key, number)
    times = f"{format_seconds(time.p5)} - {format_seconds(time.p95)}"
    cells |= {
        Column("policy"): result.policy,
        Column("time", "right"): format_seconds(time.mean),
        Column("time 5-95 %", "right", drop=6): times,
        Column("cost $", "right", drop=1): f"{cost.mean:.2f}",
        Column("cost 5-95 %", "right", drop=7): f"{cost.p5:.2f} - {cost.p95:.2f}",
        Column("lost VMs", "right", drop=5): f"{lost.mean:.1f}",
        Column("overhead", "right", drop=3): _percent(sum(parts.values())),
    }
    for part, share in parts.items():
        cells[Column(part, "right", drop=8)] = _percent(share)
    if result.deadline is not None:
        cells[Column("late", "right", drop=2)] = f"{100 * result.late_share:.1f} %"
        cells[Column("on demand", "right", drop=4)] = f"{100 * result.on_demand_share:.1f} %"
    return cells


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.2f} %"  # rounding may give -0


def shares(result: Results) -> dict[str, float]:
    """What the overhead is made of, over the time for the steps alone; they add up to it.

    ``fewer VMs``: steps that took longer while a VM of an elastic cluster was missing.
    """
    work = compute = result.breakdown_s["compute"]
    slower = {}
    if result.job.elastic and result.job.vms > 1:
        work = result.job.steps * result.job.step_s.mean
        slower = {"fewer VMs": compute / work - 1}
    return {**slower, **{part: result.breakdown_s[part] / work for part in PARTS[1:]}}


def _notes(result: Results) -> Iterator[str]:
    yield (
        "Overhead and its parts: shares of the time for the steps alone, each done once. Time and"
        " cost: means."
    )
    deadline = result.deadline
    if deadline is not None:
        yield (
            f"Deadline: {format_seconds(deadline.seconds)}, {deadline.policy.name}; on demand is a"
            " share of the machine time."
        )


def _notes_of_job(results: Sequence[Results]) -> Iterator[str]:
    job, deadline = results[0].job, results[0].deadline
    if job.market is Market.SPOT and job.on_demand_usd_per_hour:
        best = min(results, key=lambda r: float(r.cost_usd.mean()) / _on_demand(r.job)[1])
        seconds, usd = _on_demand(best.job)
        share = float(best.cost_usd.mean()) / usd
        yield (
            f"on demand it takes {format_seconds(seconds)} and costs ${usd:.2f}; the cheapest row"
            f" ({best.policy}) costs {100 * share:.0f} % of that."
        )
    if missing := _missing(job, deadline=deadline is not None):
        yield f"counted as 0: {', '.join(missing)}."
    if job.market is Market.SPOT and job.mttp_s[0] == math.inf:
        yield "no preemptions: mttp_s is not given."


def _on_demand(job: Job) -> tuple[float, float]:
    """Seconds and dollars on demand: allocation, preparation, steps and the user's own saves."""
    saves = job.steps // job.save_every_steps if job.save_every_steps else 0
    seconds = job.allocation_s.mean + job.preparation_s.mean
    seconds += job.steps * job.step_s.mean + saves * job.blocked_s.mean
    return seconds, job.on_demand_usd_per_hour / 3600 * job.vms * seconds


def _missing(job: Job, *, deadline: bool) -> list[str]:
    """Parameters that were left out and count as 0, which flatters the job."""
    needs = {"on_demand_usd_per_hour": job.on_demand_usd_per_hour}
    if job.market is Market.SPOT:
        needs = {
            "save_s": job.save_s.high,
            "allocation_s": job.allocation_s.high,
            "preparation_s": job.preparation_s.high,
            "backup_s": job.durable_s.high,
            "spot_usd_per_hour": job.spot_usd_per_hour,
            **(needs if deadline else {}),
        }
    return [name for name, value in needs.items() if not value]


def sweep_value(key: str, number: float) -> str:
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


def results_figure(results: Sequence[Results]) -> Figure:
    """Lines for a sweep of one key of one job, else bars."""
    lines = len(results[0].sweep) == 1 and len(by_job(results)) == 1
    return lines_figure(results) if lines else bars_figure(results)


def _bar_name(result: Results, *, several: bool) -> str:
    parts = [f"{key} {sweep_value(key, value)}" for key, value in result.sweep.items()]
    parts.append(result.policy)
    if several:
        parts.append(short(result.job.name, 12))
    return "\n".join(parts)


def bars_figure(results: Sequence[Results]) -> Figure:
    """Stacked bars of the overhead over the steps alone (Spotify thesis, Figures 6.1 and 6.2)."""
    jobs, count = by_job(results), len(results)
    names = [_bar_name(result, several=len(jobs) > 1) for result in results]
    steps = "" if len(jobs) > 1 else f"{results[0].job.steps} steps, "
    with drawing(max(6.0, 2.2 + 1.1 * count), 4.6) as (figure, axes):
        base = np.zeros(count)
        parts = [shares(result) for result in results]
        for part in (p for p in _COLORS if any(p in own for own in parts)):
            share = np.array([100 * own.get(part, 0.0) for own in parts])
            axes.bar(range(count), share, 0.6, bottom=base, label=part, color=_COLORS[part])
            base += share
        for place, total in enumerate(base):
            at = (place, total)
            axes.annotate(f"{total:.1f} %", at, (0, 3), textcoords="offset points", ha="center")
        axes.set_xticks(range(count), names)
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.margins(y=0.12)
        axes.set_xlim(min(-0.5, count / 2 - 2.0), max(count - 0.5, count / 2 + 1.0))
        figure.suptitle(f"What preemptions and saves cost: {short(', '.join(jobs), 30)}")
        axes.set_title(f"{steps}means of {results[0].runs} runs", fontsize="small")
        legend(figure, 4, handlelength=None)
    return figure


_SWEPT = {
    "mttp": "mean time to preemption of a VM (h)",
    "missed": "share of notices that do not come",
    "vms": "VMs",
}


def lines_figure(results: Sequence[Results]) -> Figure:
    """Overhead over one key of a sweep (Figure 6.3): a line for each policy, 5 to 95 % of runs."""
    ((key, _),) = results[0].sweep.items()
    policies = list(dict.fromkeys(result.policy for result in results))
    scale = 3600.0 if key == "mttp" else 1.0
    job = results[0].job
    with drawing(7.0, 4.4) as (figure, axes):
        for style, policy in zip(STYLES * len(policies), policies, strict=False):
            own = [result for result in results if result.policy == policy]
            x = [result.sweep[key] / scale for result in own]
            spreads = [_overhead(result) for result in own]
            axes.plot(x, [s.mean for s in spreads], label=policy, **style.marked)
            low, high = [s.p5 for s in spreads], [s.p95 for s in spreads]
            axes.fill_between(x, low, high, color=style.color, alpha=0.15, lw=0)
        axes.set_xlabel(_SWEPT.get(key, f"{key} (s)"))
        axes.set_ylabel("overhead over the steps alone (%)")
        axes.set_ylim(bottom=0)
        if key == "vms":
            axes.locator_params(axis="x", integer=True)
        figure.suptitle(f"What preemptions cost: {short(job.name)}")
        runs = f"means and 5 to 95 % of {results[0].runs} runs"
        axes.set_title(f"{job.steps} steps; {runs}", fontsize="small")
        legend(figure, len(policies), handlelength=None)
    return figure


def _overhead(result: Results) -> Spread:
    """Per cent over the steps alone: 1 and all shares are the total over these."""
    alone = result.total_s.mean() / (1 + sum(shares(result).values()))
    return Spread.of(100 * (result.total_s / alone - 1))
