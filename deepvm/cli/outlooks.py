"""Simulations of the user's job on the clusters that were ranked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.cli.options import note

if TYPE_CHECKING:
    from deepvm.core.cluster import Outlook, Recommendation
    from deepvm.planner.recommend import Recommendations

RUNS = 400
"""Runs where the closed form does not hold: the mean is then known to a few per mille."""

SEED = 0
"""So that the same question has the same answer."""


def simulated(answer: Recommendations, runs: str | None) -> Recommendations:
    """An answer with simulated outlooks: of all ranked clusters when ``runs`` is given, else where they are needed.

    Raises:
        RequestError: ``runs`` is no whole number from 1.
    """
    from deepvm.errors import RequestError

    if runs is not None and not (runs.isascii() and runs.isdigit() and len(runs) < 9 and int(runs) > 0):
        raise RequestError("simulate", runs, "a whole number of runs from 1 to 99999999")
    needed = [r for r in answer.configurations if r.outlook is not None and not r.outlook.sound]
    if needed and runs is None:
        note(
            f"{len(needed)} of the ranked clusters are outside of the range of the closed form: their expected time "
            f"and cost are means of {RUNS} simulated runs, and the ranking is by the closed form"
        )
    kept = tuple(
        replace(r, outlook=_outlook(answer, r, RUNS if runs is None else int(runs))) if runs or r in needed else r
        for r in answer.configurations
    )
    return replace(answer, configurations=kept)


def _outlook(answer: Recommendations, r: Recommendation, runs: int) -> Outlook:
    """The means and the spread of a job on one cluster; as it was expected where the job does not get ahead there."""
    from deepvm.core.cluster import Outlook, Spread
    from deepvm.errors import SimulationError
    from deepvm.simulator.results import Spread as Quantiles
    from deepvm.simulator.runs import simulate

    work, reference = answer.request.work, answer.reference
    assert work is not None and reference is not None and r.outlook is not None  # or nothing would have been ranked
    if not r.throughput:
        return r.outlook
    try:
        found = simulate(work.job_on(r.cluster, r.throughput, reference), work.policy, runs=runs, seed=SEED)
    except SimulationError as error:
        note(f"{r.cluster}: {error}")
        return r.outlook
    time, bill = Quantiles.of(found.total_s), Quantiles.of(found.cost_usd)
    return Outlook(
        total_s=time.mean,
        cost_usd=bill.mean,
        preemptions=float(found.preemptions.mean()),
        sound=r.outlook.sound,
        spread=Spread(runs, time.p50, time.p95, bill.p50, bill.p95),
    )
