"""Simulations of the user's job on the clusters that were ranked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.cli.options import note
from deepvm.core.savepolicy import EverySteps
from deepvm.core.units import format_seconds

if TYPE_CHECKING:
    from deepvm.core.cluster import Outlook, Recommendation
    from deepvm.core.instances import InstanceType
    from deepvm.core.job import Job
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.recommend import Recommendations
    from deepvm.planner.work import Work
    from deepvm.simulator.results import Results

RUNS = 400
"""Runs where the closed form does not hold: the mean is then known to a few per mille."""

SEED = 0
"""So that the same question has the same answer."""

MOST_EVENTS = 5_000
"""Lives and saves of one run, beyond which a simulation takes more than some ten seconds."""


def runs_of(text: str | None) -> int | None:
    """``--simulate``, None when it was not given.

    Raises:
        RequestError: no whole number from 1.
    """
    from deepvm.errors import RequestError

    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) > 0):
        raise RequestError("simulate", text, "a whole number of runs from 1 to 99999999")
    return int(text)


def simulated(answer: Recommendations, runs: int | None) -> Recommendations:
    """An answer with simulated outlooks: of all clusters when ``runs`` is given, else where the closed form fails.

    A cluster that breaks the job's limits when simulated is not dropped, because it would be, or not, by chance; it
    carries a warning.
    """
    work, reference = answer.request.work, answer.reference
    if work is None or reference is None:
        return answer
    renew = _renewer(work, reference, runs)
    needed = [r for r in answer.configurations if r.outlook is not None and not r.outlook.sound]
    if needed and runs is None:
        note(
            f"{len(needed)} of the ranked clusters are outside of the range of the closed form: their expected time "
            f"and cost are means of {RUNS} simulated runs, and the ranking is by the closed form"
        )
    kept = tuple(renew(r) for r in answer.configurations)
    alternatives = tuple(replace(a, recommendation=renew(a.recommendation)) for a in answer.alternatives)
    return replace(answer, configurations=kept, alternatives=alternatives)


def simulated_why(why: WhyNot, work: Work | None) -> WhyNot:
    """An answer to "why not?" whose cluster is simulated where the closed form fails."""
    best = why.best
    if work is None or why.reference is None or best is None or best.outlook is None or best.outlook.sound:
        return why
    note(
        f"{best.cluster} is outside of the range of the closed form: its expected time and cost are means of {RUNS} "
        "simulated runs, and the verdict is by the closed form"
    )
    return replace(why, best=_renewer(work, why.reference, None)(best))


def _renewer(work: Work, reference: InstanceType, runs: int | None) -> Callable[[Recommendation], Recommendation]:
    """Simulates clusters; those that differ in their memory nodes only are the same training, at another price."""
    seen: dict[object, Results | None] = {}

    def renew(r: Recommendation) -> Recommendation:
        if r.outlook is None or not r.throughput or (r.outlook.sound and runs is None):
            return r
        job = work.job_on(r.cluster, r.throughput, reference)
        priced = replace(job, spot_usd_per_hour=1 / job.vms)  # a cluster of 1 $/h
        if priced not in seen:
            seen[priced] = _simulate(work, priced, r, runs or RUNS)
        found = seen[priced]
        if found is None:
            return r
        outlook = _outlook(found, r.outlook.sound, float(r.usd_per_hour))
        return replace(r, outlook=outlook, warnings=(*r.warnings, *_broken(work, r, outlook)))

    return renew


def _simulate(work: Work, job: Job, r: Recommendation, runs: int) -> Results | None:
    """None, and a note, where that takes too long or the job does not get ahead."""
    from deepvm.errors import SimulationError
    from deepvm.simulator.runs import simulate

    assert r.outlook is not None
    saves = job.steps / work.policy.steps if isinstance(work.policy, EverySteps) else 0.0
    events = r.outlook.preemptions + saves
    if not events <= MOST_EVENTS:
        but = "" if r.outlook.sound else ", though it is out of its range and may be far off"
        note(f"{r.cluster}: {events:.3g} lives and saves take too long to simulate; shown is the closed form{but}")
        return None
    try:
        return simulate(job, work.policy, runs=runs, seed=SEED)
    except SimulationError as error:
        note(f"{r.cluster}: {error}")
        return None


def _outlook(found: Results, sound: bool, usd_per_hour: float) -> Outlook:
    """The means and the spread of runs on a cluster of 1 $/h, at its own price."""
    from deepvm.core.cluster import Outlook, Spread
    from deepvm.simulator.results import Spread as Quantiles

    time, bill = Quantiles.of(found.total_s), Quantiles.of(found.cost_usd * usd_per_hour)
    return Outlook(
        total_s=time.mean,
        cost_usd=bill.mean,
        preemptions=float(found.preemptions.mean()),
        sound=sound,
        spread=Spread(found.runs, time.p50, time.p95, bill.p50, bill.p95),
    )


def _broken(work: Work, r: Recommendation, outlook: Outlook) -> list[str]:
    """Which of the job's limits the simulated means break."""
    found = []
    if work.deadline_s is not None and outlook.total_s > work.deadline_s:
        took = format_seconds(outlook.total_s, up=True)
        found.append(f"{r.cluster} takes {took} when simulated, more than the deadline")
    if work.total_budget is not None and outlook.cost_usd > work.total_budget:
        found.append(f"{r.cluster} costs {outlook.cost_usd:.2f} $ when simulated, more than the total budget")
    return found
