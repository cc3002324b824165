"""Simulated training runs as tables, CSV and pictures: overhead, and how a sweep changes it."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from deepvm.core.json_types import JsonDict
from deepvm.core.preemption.job import Job
from deepvm.core.units import format_seconds
from deepvm.documents.build import document_of
from deepvm.reports.pictures import STYLES, Figure, drawing, legend, short
from deepvm.reports.text import print_text
from deepvm.services.schemas import Table
from deepvm.simulator.engine.state import PARTS
from deepvm.simulator.results import FIGURES, Results, Spread


def by_job(results: Sequence[Results]) -> dict[str, list[Results]]:
    """The results of each job, by its name."""
    groups = defaultdict(list)
    for result in results:
        groups[result.job.name].append(result)
    return groups


def csv_rows(results: Sequence[Results]) -> Table:
    """Header and one row for each result; seconds, dollars and counts."""
    several = len(by_job(results)) > 1
    rows = []
    for result in results:
        row: JsonDict = {"job": result.job.name} if several else {}
        row |= result.sweep
        # Values of a sweep are floats
        if "vms" in row:
            row["vms"] = int(row["vms"])
        row |= {"policy": result.policy, "runs": result.runs, "seed": result.seed}
        values = document_of("simulation.SimulationRow", result)
        for figure in FIGURES:
            row |= {f"{figure}_{name}": value for name, value in values[figure].items()}
        rows.append(row | {f"{part}_s": value for part, value in result.breakdown_s.items()})
    return list(rows[0]), [list(row.values()) for row in rows]


def print_results(results: Sequence[Results]) -> None:
    """What was simulated, a row for each result, and what the figures mean."""
    print_text(
        "simulate",
        also="-o csv",
        results=results,
        first=results[0],
        by_job=by_job(results),
        parts=list(dict.fromkeys(part for result in results for part in shares(result))),
        shares=shares,
        swept=_sweep_value,
        cheapest=_cheapest,
        infinity=math.inf,
    )


def shares(result: Results) -> dict[str, float]:
    """What the overhead is made of, over the time for the steps alone; they add up to it."""
    work = compute = result.breakdown_s["compute"]
    slower = {}
    if result.job.elastic and result.job.vms > 1:
        # Its steps take longer while VMs are missing: compared is with all of them
        work = result.job.steps * result.job.step_s.mean
        slower = {"fewer VMs": compute / work - 1}
    return slower | {part: result.breakdown_s[part] / work for part in PARTS[1:]}


def _cheapest(results: Sequence[Results]) -> tuple[Results, float, float]:
    """Of the results of a job, with seconds and dollars on demand."""
    best = min(results, key=lambda r: float(r.cost_usd.mean()) / _on_demand(r.job)[1])
    return best, *_on_demand(best.job)


def _on_demand(job: Job) -> tuple[float, float]:
    # Nothing is preempted on demand: only the user's own saves are made
    saves = 0
    if job.save_every_steps:
        saves = job.steps // job.save_every_steps
    seconds = job.allocation_s.mean + job.preparation_s.mean
    seconds += job.steps * job.step_s.mean + saves * job.blocked_s.mean
    return seconds, job.on_demand_usd_per_hour / 3600 * job.vms * seconds


def _sweep_value(key: str, number: float) -> str:
    if key == "vms":
        return f"{number:.0f}"
    if key == "missed":
        return f"{number:g}"
    return format_seconds(number)


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
    if len(results[0].sweep) == 1 and len(by_job(results)) == 1:
        return lines_figure(results)
    return bars_figure(results)


def bars_figure(results: Sequence[Results]) -> Figure:
    """Stacked bars of the overhead over the steps alone (Spotify thesis, Figures 6.1 and 6.2)."""
    jobs = by_job(results)
    count = len(results)
    steps = ""
    if len(jobs) == 1:
        steps = f"{results[0].job.steps} steps, "
    names = []
    for result in results:
        lines = [f"{key} {_sweep_value(key, value)}" for key, value in result.sweep.items()]
        lines.append(result.policy)
        if len(jobs) > 1:
            lines.append(short(result.job.name, 12))
        names.append("\n".join(lines))
    with drawing(max(6.0, 2.2 + 1.1 * count), 4.6) as (figure, axes):
        base = np.zeros(count)
        parts = [shares(result) for result in results]
        for part in (p for p in _COLORS if any(p in own for own in parts)):
            share = np.array([100 * own.get(part, 0.0) for own in parts])
            bars = axes.bar(range(count), share, 0.6, bottom=base, label=part, color=_COLORS[part])
            base += share
        axes.bar_label(bars, [f"{total:.1f} %" for total in base], padding=3)
        axes.set_xticks(range(count), names)
        axes.margins(y=0.12)
        axes.set(
            title=f"{steps}means of {results[0].runs} runs",
            ylabel="overhead over the steps alone (%)",
            xlim=(min(-0.5, count / 2 - 2.0), max(count - 0.5, count / 2 + 1.0)),
        )
        figure.suptitle(f"What preemptions and saves cost: {short(', '.join(jobs), 30)}")
        legend(figure, 4, handlelength=2)
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
    scale = 1.0
    if key == "mttp":
        scale = 3600.0
    job = results[0].job
    with drawing(7.0, 4.4) as (figure, axes):
        for style, policy in zip(STYLES * len(policies), policies, strict=False):
            own = [result for result in results if result.policy == policy]
            x = [result.sweep[key] / scale for result in own]
            spreads = []
            for result in own:
                # 1 and all shares are the total over the steps alone
                alone = result.total_s.mean() / (1 + sum(shares(result).values()))
                spreads.append(Spread.of(100 * (result.total_s / alone - 1)))
            mean, low, high = zip(*((s.mean, s.p5, s.p95) for s in spreads), strict=True)
            axes.plot(x, mean, label=policy, **style.marked)
            axes.fill_between(x, low, high, color=style.color, alpha=0.15, lw=0)
        if key == "vms":
            axes.locator_params(axis="x", integer=True)
        axes.set(
            title=f"{job.steps} steps; means and 5 to 95 % of {results[0].runs} runs",
            xlabel=_SWEPT.get(key, f"{key} (s)"),
            ylabel="overhead over the steps alone (%)",
            ylim=(0, None),
        )
        figure.suptitle(f"What preemptions cost: {short(job.name)}")
        legend(figure, len(policies), handlelength=2)
    return figure
