"""Simulate the ranked clusters, and rank them again where the closed form does not hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from deepvm.core.cluster.cluster import BindingConstraint, JobEstimate, Recommendation, Spread
from deepvm.core.options import whole
from deepvm.core.units import format_seconds
from deepvm.errors import OptionMismatchError, SimulationError
from deepvm.planner.describe import counted_once_usd
from deepvm.planner.infeasible import Infeasible
from deepvm.planner.recommend import Recommendations, TracedLifetimes, ranking
from deepvm.planner.search.enumeration import SolveStatus
from deepvm.records import dataclass, field, replace

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import InstanceType
    from deepvm.core.preemption.job import Job
    from deepvm.core.progress import Say
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.job_forecast import Work
    from deepvm.planner.request import PlanRequest
    from deepvm.planner.sweep import SweepRow
    from deepvm.simulator.results import Results

# A cluster, and the limit that it breaks
LeftOut: TypeAlias = tuple[Recommendation, BindingConstraint]
# By the job and the number of runs; None: that takes too long
Seen: TypeAlias = "dict[object, Results | SimulationError | None]"
RUNS = 400  # where the closed form does not hold: the mean is then known to a few per mille
MAX_RUNS = 100_000  # of --simulate; more add no information
# Lifetimes and saves of one run:
MAX_EVENTS = 5_000  # takes some ten seconds
MAX_EVENTS_IN_ALL = 20_000  # of all clusters together
MAX_CLUSTERS = 100  # to consider where the closed form fails
# A cluster whose closed form is this much above another's is not expected to be better when
# simulated
MARGIN = 1.1


def read_runs(value: Any, *, job: bool) -> int | None:
    """The value of ``--simulate``, if given; ``job``: whether there is one to simulate."""
    if value is None:
        return None
    if not job:
        reason = "needs --job, --work, --tokens, --samples or --epochs"
        raise OptionMismatchError("simulate", value, reason)
    runs: int = whole(MAX_RUNS)(value, "simulate")
    return runs


def simulate_ranking(answer: Recommendations, runs: int | None, say: Say) -> Recommendations:
    """Simulate all clusters when ``runs`` is given, else those where the closed form fails."""
    # Where it fails, the simulation decides: clusters that break the job's limits are replaced by
    # the next ones, and ``makespan`` and ``total-cost`` order by the simulated means. Where it
    # holds, a cluster next to a limit stays, with a warning: chance would decide.
    request = answer.request
    if request.work is None or answer.reference is None:
        return answer
    simulator = _Simulator(request, request.work, answer.reference, runs, say)
    doubtful = sum(map(_doubtful, answer.configurations))
    if doubtful and runs is None:
        say(
            f"{doubtful} of the ranked clusters are outside of the range of the closed form: their"
            f" expected time and cost are means of {RUNS} simulated runs"
        )
    plans: Iterable[Recommendation] = answer.configurations
    if doubtful and (request.work.constrained or _ordered(request)):
        plans = ranking(answer.catalog, request, MAX_CLUSTERS)
    kept, left_out = _walk(plans, simulator)
    if _ordered(request) and not request.weighs_doubt:
        kept.sort(key=lambda r: _figure(request, r))
    ranked = enumerate(kept[: request.top], start=1)
    kept = [_limited(replace(r, rank=i), left_out) for i, r in ranked]
    if left_out:
        say(f"left out: {left_out[0][1].reason}")
        if not kept:
            return _nothing_left(answer, left_out[0][1])
    return replace(_with_others(answer, simulator), configurations=tuple(kept))


def with_traced_lifetimes(answer: Recommendations) -> Recommendations:
    """The answer with lifetimes of public traces, where a job in eFLOPS relies on AWS's band."""
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
    why = Infeasible(limit.constraint, reason, advice)
    answer = replace(answer, configurations=(), alternatives=(), nearly=None)
    return replace(answer, status=SolveStatus.INFEASIBLE, infeasible=why)


def _with_others(answer: Recommendations, simulator: _Simulator) -> Recommendations:
    alternatives = [
        replace(a, recommendation=simulator.simulate(a.recommendation)) for a in answer.alternatives
    ]
    nearly = answer.nearly and simulator.simulate(answer.nearly)
    if nearly and simulator.refusal(nearly):
        nearly = None
    # Only where the closed form fails: these are not in the ranking, and simulating takes time.
    doubtful = replace(simulator, runs=None)
    change = answer.next_change
    if change is not None:
        change = replace(change, recommendation=doubtful.simulate(change.recommendation))
    return replace(
        answer,
        alternatives=tuple(a for a in alternatives if not simulator.refusal(a.recommendation)),
        nearly=nearly,
        next_change=change,
        cheapest=answer.cheapest and doubtful.simulate(answer.cheapest),
    )


def _doubtful(r: Recommendation) -> bool:
    return r.outlook is not None and not r.outlook.sound


def _ordered(request: PlanRequest) -> bool:
    return request.needs_work and request.policy.value == "deepvm"


def _figure(request: PlanRequest, r: Recommendation) -> float:
    assert r.outlook is not None
    if request.objective.value == "makespan":
        return r.outlook.total_s
    return r.outlook.cost_usd


def _walk(
    plans: Iterable[Recommendation], simulator: _Simulator
) -> tuple[list[Recommendation], list[LeftOut]]:
    request = simulator.request
    kept = list[Recommendation]()
    left_out = list[LeftOut]()
    events = dict[object, float]()
    for r in plans:
        if len(kept) >= request.top:
            last = sorted(_figure(request, k) for k in kept)[request.top - 1]
            if not (_ordered(request) and _figure(request, r) <= last * MARGIN):
                break
        cluster = r.cluster
        training = (cluster.gpu.name, cluster.spot_count, cluster.on_demand_count)
        events.setdefault(training, r.outlook.preemptions if r.outlook else 0.0)
        if sum(events.values()) > MAX_EVENTS_IN_ALL and len(events) > request.top:
            break
        new = simulator.simulate(r)
        if refusal := simulator.refusal(new):
            left_out.append((new, refusal))
        else:
            kept.append(new)
    return kept, left_out


def _limited(r: Recommendation, left_out: Sequence[LeftOut]) -> Recommendation:
    mine = r.cluster
    known = {limit.constraint for limit in r.binding}
    for other, limit in left_out:
        its = other.cluster
        same = (mine.architecture, mine.gpu.name) == (its.architecture, its.gpu.name)
        if same and its.gpu_count > mine.gpu_count and limit.constraint not in known:
            return replace(r, binding=(*r.binding, limit))
    return r


def simulate_why(why: WhyNot, request: PlanRequest, say: Say) -> WhyNot:
    """Simulate the cluster of an answer to "why not?" where the closed form fails."""
    best = why.best
    if request.work is None or why.reference is None or best is None or not _doubtful(best):
        return why
    say(
        f"{best.cluster} is outside of the range of the closed form: its expected time and cost are"
        f" means of {RUNS} simulated runs, and the verdict is by the closed form"
    )
    simulator = _Simulator(request, request.work, why.reference, None, say)
    return replace(why, best=simulator.simulate(best))


def simulate_rows(
    rows: Iterable[SweepRow], request: PlanRequest, runs: int, say: Say
) -> tuple[SweepRow, ...]:
    """Simulate the clusters of a sweep."""
    seen: Seen = {}
    simulated: list[SweepRow] = []
    broken: list[BindingConstraint] = []
    for row in rows:
        best = row.recommendation
        if best is not None and row.reference is not None and request.work is not None:
            simulator = _Simulator(request, request.work, row.reference, runs, say, seen)
            best = simulator.simulate(best)
            broken += simulator.broken(best)[:1]
        simulated.append(replace(row, recommendation=best))
    if broken:
        say(broken[0].reason)
    return tuple(simulated)


@dataclass(frozen=True)
class _Simulator:
    request: PlanRequest
    work: Work
    reference: InstanceType
    runs: int | None
    say: Say
    seen: Seen = field(default_factory=dict)  # shared by clusters that differ in memory nodes only

    def simulate(self, r: Recommendation) -> Recommendation:
        outlook = r.outlook
        if outlook is None or not r.throughput or (outlook.sound and self.runs is None):
            return r
        job = self._job(r)
        if (job, self.runs) not in self.seen:
            self.seen[job, self.runs] = self._results(job, r, outlook)
        results = self.seen[job, self.runs]
        if results is None:
            return r
        if isinstance(results, SimulationError):
            return replace(r, outlook=replace(outlook, total_s=math.inf, cost_usd=math.inf))
        new = replace(r, outlook=self._mean(results, r, outlook))
        return replace(new, warnings=(*r.warnings, *(b.reason for b in self.broken(new))))

    def refusal(self, r: Recommendation) -> BindingConstraint | None:
        if _doubtful(r):
            return next(iter(self.broken(r)), None)
        return None

    def broken(self, r: Recommendation) -> list[BindingConstraint]:
        outlook = r.outlook
        work = self.work
        broken = []
        assert outlook is not None
        if work.deadline_s is not None and outlook.total_s > work.deadline_s:
            time = format_seconds(outlook.total_s, up=True)
            reason = f"{r.cluster} takes {time} when simulated, more than the deadline"
            broken.append(BindingConstraint("deadline", reason))
        if work.total_budget is not None and outlook.cost_usd > work.total_budget:
            bill = f"${outlook.cost_usd:.2f} when simulated, more than the total budget"
            broken.append(BindingConstraint("total-budget", f"{r.cluster} costs {bill}"))
        return broken

    def _job(self, r: Recommendation) -> Job:
        job = self.work.job_on(r.cluster, r.throughput, self.reference)
        if self.request.training is not None:
            from deepvm.planner.recovery import as_counted

            job = as_counted(job, r.cluster, self.request)
        return replace(job, spot_usd_per_hour=1 / job.vms)  # a cluster of $1/h

    def _results(
        self, job: Job, r: Recommendation, outlook: JobEstimate
    ) -> Results | SimulationError | None:
        from deepvm.simulator.monte_carlo import simulate

        # Saves at even times cost the simulator nothing: it skips over them.
        events = outlook.preemptions
        if self.work.policy.fixed_steps:
            events += job.steps / self.work.policy.fixed_steps
        if not events <= MAX_EVENTS:  # takes too long
            but = ", though it is out of its range and may be far off"
            if outlook.sound:
                but = ""
            many = f"{events:.3g} lifetimes and saves take too long to simulate"
            self.say(f"{r.cluster}: {many}; shown is the closed form{but}")
            return None
        try:
            return simulate(job, self.work.policy, runs=self.runs or RUNS, seed=0)
        except SimulationError as error:  # the job makes no progress
            self.say(f"{r.cluster}: {error}")
            return error

    def _mean(self, results: Results, r: Recommendation, outlook: JobEstimate) -> JobEstimate:
        """Means and spread of runs that were simulated at $1/h, at the cluster's own price."""
        from deepvm.simulator.results import Spread as Quantiles

        late = None
        if self.work.deadline_s is not None:
            late = float((results.total_s > self.work.deadline_s).mean())
        usd_per_hour = float(r.counted_usd_per_hour)
        time = Quantiles.of(results.total_s)
        bill = Quantiles.of(results.cost_usd * usd_per_hour + counted_once_usd(r.bill))
        ends = (time.p5, time.p50, time.p95, bill.p5, bill.p50, bill.p95)
        return replace(
            outlook,
            total_s=time.mean,
            cost_usd=bill.mean,
            preemptions=float(results.preemptions.mean()),
            spread=Spread(results.runs, *ends, late),
        )
