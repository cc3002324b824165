"""Simulate the job on the ranked clusters, and rank them again where the closed form does not hold.

The planner, which ranks, is below the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from deepvm.core.cluster.cluster import BindingConstraint, JobEstimate, Recommendation, Spread
from deepvm.core.options import whole
from deepvm.core.units import format_seconds
from deepvm.errors import RequestError, SimulationError
from deepvm.planner.describe import counted_once_usd
from deepvm.planner.infeasible import Infeasible
from deepvm.planner.recommend import (
    Recommendations,
    TracedLifetimes,
    ranking,
)
from deepvm.planner.search.enumeration import SolveStatus

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import InstanceType
    from deepvm.core.preemption.job import Job
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.job_forecast import Work
    from deepvm.planner.request import PlanRequest
    from deepvm.planner.sweep import SweepRow
    from deepvm.simulator.results import Results

Say: TypeAlias = Callable[[str], None]
LeftOut: TypeAlias = tuple[
    Recommendation, BindingConstraint
]  # a cluster, and the limit that it breaks

RUNS = 400  # where the closed form does not hold: the mean is then known to a few per mille
MAX_RUNS = 100_000  # of --simulate; more add no information

# Lifetimes and saves of one run:
MAX_EVENTS = 5_000  # takes some ten seconds
MAX_EVENTS_IN_ALL = 20_000  # of all clusters together

LONGER = 100  # clusters to consider where the closed form fails
# A cluster whose closed form is this much above another's is not expected to be better when
# simulated
MARGIN = 1.1


def read_runs(value: Any, *, job: bool) -> int | None:
    """The value of ``--simulate``, if given; ``job``: whether there is one to simulate.

    Raises RequestError.
    """
    if value is None:
        return None
    if not job:
        raise RequestError(
            "simulate", value, "only together with --job, --work, --tokens, --samples or --epochs"
        )
    runs: int = whole(MAX_RUNS)(value, "simulate")
    return runs


def simulate_ranking(answer: Recommendations, runs: int | None, say: Say) -> Recommendations:
    """Simulate all clusters when ``runs`` is given, else those where the closed form fails.

    Where the closed form fails, the simulation decides: clusters that break the job's limits are
    replaced by the next ones, and objectives ``makespan`` and ``total-cost`` order by the simulated
    means. Where it holds, a cluster next to a limit stays, with a warning: chance would decide.
    """
    work = answer.request.work
    reference = answer.reference
    if work is None or reference is None:
        return answer
    all_runs = _Simulator(answer.request, reference, runs, say)
    doubtful = sum(map(_doubtful, answer.configurations))
    if doubtful and runs is None:
        say(
            f"{doubtful} of the ranked clusters are outside of the range of the closed form: their"
            f" expected time and cost are means of {RUNS} simulated runs"
        )
    if doubtful:
        kept, left_out = _walk(answer, all_runs.simulate)
    else:
        kept = [all_runs.simulate(r) for r in answer.configurations]
        left_out = []
    if _ordered(answer) and not answer.request.weighs_doubt:
        kept.sort(key=lambda r: _figure(answer, r))
    kept = [
        _limited(replace(r, rank=i), left_out)
        for i, r in enumerate(kept[: answer.request.top], start=1)
    ]
    if left_out:
        say(f"left out: {left_out[0][1].reason}")
        if not kept:
            return _nothing_left(answer, left_out[0][1])
    return replace(_with_others(answer, work, all_runs), configurations=tuple(kept))


def with_traced_lifetimes(answer: Recommendations) -> Recommendations:
    """With what public traces say, where a job in eFLOPS counts on AWS's band."""
    from deepvm.core.preemption.gang_survival import MOST_VMS
    from deepvm.simulator.survival.evidence import by_public_traces

    work = answer.request.work
    first = answer.configurations[0]
    gpu = first.cluster.gpu
    count = first.cluster.spot_count
    outlook = first.outlook
    if work is None or outlook is None or answer.request.training is not None:
        return answer
    by_band = work.mttp_s is None and gpu.known_life is None and gpu.interruption_band is not None
    if not by_band or not math.isfinite(outlook.total_s) or not 0 < count <= MOST_VMS:
        return answer
    lasts, life = by_public_traces(gpu, count, outlook.total_s)
    factor = life.value / work.life_s(gpu)
    request = replace(answer.request, work=replace(work, band_factor=factor))
    first_then = next(ranking(answer.catalog, request, 1), None)
    traced = TracedLifetimes(lasts, life.value, factor, first_then)
    return replace(answer, traced_lifetimes=traced)


def _nothing_left(answer: Recommendations, limit: BindingConstraint) -> Recommendations:
    advice = "raise the total budget"
    if limit.constraint == "deadline":
        advice = "allow more time"
    reason = f"no cluster keeps to the job's limits: {limit.reason}"
    infeasible = Infeasible(limit.constraint, reason, advice)
    answer = replace(answer, status=SolveStatus.INFEASIBLE, infeasible=infeasible)
    return replace(answer, configurations=(), alternatives=(), nearly=None)


def _with_others(answer: Recommendations, work: Work, simulator: _Simulator) -> Recommendations:
    """What is not ranked: alternatives, what is nearly as good, what more money buys."""
    others = (
        replace(a, recommendation=simulator.simulate(a.recommendation)) for a in answer.alternatives
    )
    change = answer.next_change
    cheapest = answer.cheapest
    nearly = answer.nearly and simulator.simulate(answer.nearly)
    doubtful = replace(simulator, runs=None)
    if change is not None:
        change = replace(change, recommendation=doubtful.simulate(change.recommendation))
    return replace(
        answer,
        alternatives=tuple(a for a in others if _kept(work, a.recommendation)),
        nearly=nearly if nearly and _kept(work, nearly) else None,
        next_change=change,
        cheapest=cheapest and doubtful.simulate(cheapest),
    )


def _doubtful(r: Recommendation) -> bool:
    return r.outlook is not None and not r.outlook.sound


def _ordered(answer: Recommendations) -> bool:
    """Whether clusters are ranked by the job's time or cost."""
    return answer.request.needs_work and answer.request.policy.value == "deepvm"


def _figure(answer: Recommendations, r: Recommendation) -> float:
    assert r.outlook is not None
    if answer.request.objective.value == "makespan":
        return r.outlook.total_s
    return r.outlook.cost_usd


def _walk(
    answer: Recommendations, renew: Callable[[Recommendation], Recommendation]
) -> tuple[list[Recommendation], list[LeftOut]]:
    """Go down the closed form's ranking.

    Stop when enough clusters keep to the limits and no better one is expected.
    """
    work = answer.request.work
    top = answer.request.top
    ordered = _ordered(answer)
    assert work is not None
    kept = list[Recommendation]()
    left_out = list[LeftOut]()
    spent = 0.0
    seen = set()
    for r in (
        ranking(answer.catalog, answer.request, LONGER)
        if work.constrained or ordered
        else answer.configurations
    ):
        assert r.outlook is not None
        if len(kept) >= top:
            last = -1.0
            if ordered:
                last = sorted(_figure(answer, k) for k in kept)[top - 1]
            if not _figure(answer, r) <= last * MARGIN:
                break
        training = (r.cluster.gpu.name, r.cluster.spot_count, r.cluster.on_demand_count)
        if training not in seen:
            seen.add(training)
            spent += r.outlook.preemptions
            if spent > MAX_EVENTS_IN_ALL and len(seen) > top:
                break
        new = renew(r)
        if _kept(work, new):
            kept.append(new)
        else:
            left_out.append((new, _broken(work, new)[0]))
    return kept, left_out


def _kept(work: Work, r: Recommendation) -> bool:
    return not (_doubtful(r) and _broken(work, r))


def _limited(r: Recommendation, left_out: Sequence[LeftOut]) -> Recommendation:
    """Add the limit that a larger cluster of the same types broke when simulated."""
    for other, why in left_out:
        mine = r.cluster
        its = other.cluster
        same = (mine.architecture, mine.gpu.name) == (its.architecture, its.gpu.name)
        if (
            same
            and its.gpu_count > mine.gpu_count
            and why.constraint not in {b.constraint for b in r.binding}
        ):
            return replace(r, binding=(*r.binding, why))
    return r


def simulate_why(why: WhyNot, request: PlanRequest, say: Say) -> WhyNot:
    """Simulate the cluster of an answer to "why not?" where the closed form fails."""
    best = why.best
    if why.reference is None or best is None or best.outlook is None or best.outlook.sound:
        return why
    say(
        f"{best.cluster} is outside of the range of the closed form: its expected time and cost are"
        f" means of {RUNS} simulated runs, and the verdict is by the closed form"
    )
    return replace(why, best=_Simulator(request, why.reference, None, say).simulate(best))


def simulate_rows(
    rows: Iterable[SweepRow], request: PlanRequest, runs: int, say: Say
) -> tuple[SweepRow, ...]:
    """Simulate the clusters of a sweep.

    The closed form still decides which is best for a budget.
    """
    simulators: dict[str, _Simulator] = {}
    simulated: list[SweepRow] = []
    broken: list[BindingConstraint] = []
    for row in rows:
        if row.recommendation is not None and row.reference is not None:
            simulator = simulators.setdefault(
                row.reference.name, _Simulator(request, row.reference, runs, say)
            )
            best = simulator.simulate(row.recommendation)
            if request.work is not None:
                broken += _broken(request.work, best)[:1]
            row = replace(row, recommendation=best)
        simulated.append(row)
    if broken:
        say(broken[0].reason)
    return tuple(simulated)


@dataclass(frozen=True)
class _Simulator:
    """Simulates clusters; those that differ in their memory nodes only share one simulation."""

    request: PlanRequest
    reference: InstanceType
    runs: int | None
    say: Say
    seen: dict[object, Results | SimulationError | None] = field(default_factory=dict)

    def simulate(self, r: Recommendation) -> Recommendation:
        work = self.request.work
        assert work is not None
        if r.outlook is None or not r.throughput or (r.outlook.sound and self.runs is None):
            return r
        job = self._job(r, work)
        if (job, self.runs) not in self.seen:
            self.seen[job, self.runs] = self._results(work, job, r)
        results = self.seen[job, self.runs]
        if results is None:
            return r
        if isinstance(results, SimulationError):
            return replace(r, outlook=replace(r.outlook, total_s=math.inf, cost_usd=math.inf))
        new = replace(r, outlook=_outlook(results, r, work.deadline_s))
        return replace(new, warnings=(*r.warnings, *(b.reason for b in _broken(work, new))))

    def _job(self, r: Recommendation, work: Work) -> Job:
        job = work.job_on(r.cluster, r.throughput, self.reference)
        if self.request.training is not None:
            from deepvm.planner.recovery import as_counted

            job = as_counted(job, r.cluster, self.request)
        return replace(job, spot_usd_per_hour=1 / job.vms)  # a cluster of 1 $/h

    def _results(self, work: Work, job: Job, r: Recommendation) -> Results | SimulationError | None:
        """None where that takes too long, or the error where the job makes no progress."""
        from deepvm.simulator.monte_carlo import simulate

        assert r.outlook is not None
        # Saves at even times cost the simulator nothing: it skips over them.
        saves = 0.0
        if work.policy.fixed_steps:
            saves = job.steps / work.policy.fixed_steps
        events = r.outlook.preemptions + saves
        if not events <= MAX_EVENTS:
            but = ", though it is out of its range and may be far off"
            if r.outlook.sound:
                but = ""
            self.say(
                f"{r.cluster}: {events:.3g} lifetimes and saves take too long to simulate; shown is"
                f" the closed form{but}"
            )
            return None
        runs = self.runs or RUNS
        try:
            return simulate(job, work.policy, runs=runs, seed=0)
        except SimulationError as error:
            self.say(f"{r.cluster}: {error}")
            return error


def _outlook(found: Results, r: Recommendation, deadline_s: float | None) -> JobEstimate:
    """Means and spread of runs that were simulated at 1 $/h, at the cluster's own price."""
    assert r.outlook is not None
    old = r.outlook
    usd_per_hour = float(r.counted_usd_per_hour)
    from deepvm.simulator.results import Spread as Quantiles

    late = None
    if deadline_s is not None:
        late = float((found.total_s > deadline_s).mean())
    time = Quantiles.of(found.total_s)
    bill = Quantiles.of(found.cost_usd * usd_per_hour + counted_once_usd(r.bill))
    return replace(
        old,
        total_s=time.mean,
        cost_usd=bill.mean,
        preemptions=float(found.preemptions.mean()),
        spread=Spread(found.runs, time.p5, time.p50, time.p95, bill.p5, bill.p50, bill.p95, late),
    )


def _broken(work: Work, r: Recommendation) -> list[BindingConstraint]:
    """The job's limits that the simulated means break."""
    outlook = r.outlook
    found = []
    assert outlook is not None
    if work.deadline_s is not None and outlook.total_s > work.deadline_s:
        took = format_seconds(outlook.total_s, up=True)
        found.append(
            BindingConstraint(
                "deadline", f"{r.cluster} takes {took} when simulated, more than the deadline"
            )
        )
    if work.total_budget is not None and outlook.cost_usd > work.total_budget:
        bill = f"{outlook.cost_usd:.2f} $ when simulated, more than the total budget"
        found.append(BindingConstraint("total-budget", f"{r.cluster} costs {bill}"))
    return found
