"""The answer on one screen: what to rent, how fast that is, what it costs, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING

from deepvm.catalog.clouds import cloud_of
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.signal import PRICES, base
from deepvm.core.cluster.cluster import Cluster, JobEstimate, Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.training.doubts import PLAIN, UNPUBLISHED
from deepvm.core.training.workload import Method, Scaling, Workload
from deepvm.core.units import counted, format_bytes, format_seconds
from deepvm.planner.ranking import LITTLE
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.search.formulation import SolveStatus
from deepvm.planner.workload.measurement import measure_next
from deepvm.reports.plans.bills import bill_in_short
from deepvm.reports.plans.recommendations import other_regions
from deepvm.reports.plans.sources import placement_lines, quota_needs, refresh_command
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.reports.text import in_short, short

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.core.training.speed import Training

FASTEST, CHOICE, VALUE, NO_SPOT = "fastest", "first choice", "best value", "no spot"
OLD_DAYS = 7
"""Spot prices that are older are called out."""
_HOW = {Method.DDP: "data parallel", Method.FSDP: "sharded", Method.LORA: "LoRA"}
_LIMITS = {
    "extrapolation": "what such clusters were checked with (--extrapolate)",
    "batch-size": "the batch that is known to train well (--global-batch)",
    "worth": "what is worth its price",
}
_LITTLE = 0.005
_NONSENSE = 0.05
"""A share of the first plan's speed below which nobody would rent a plan instead."""
_LATE = 0.1
"""A probability of missing the deadline that is called out."""
_FEW_STEPS = 100
"""Of an optimizer: fewer are a mistake in the amount, or a batch that is too large for it."""
EVEN, MOST_EVEN = 0.2, 0.99
"""Probabilities of being faster from where on, and up to where, two plans cannot be told apart."""


def print_answer(
    found: Comparison, now: datetime, placement: Placement | None = None, *, assumed: bool = False
) -> None:
    """At most 16 lines on stdout; ``assumed``: the model is not the user's own choice."""
    best = found.answers[0]
    training = best.request.training
    assert training is not None
    rows = rows_of(best)
    where = f"; {found.place(best.catalog)}" if len(found.answers) > 1 else ""
    print_lines([f"{title(training, [r for _, r in rows], assumed=assumed)}{where}", ""])
    print_items([_cells(label, r, training) for label, r in rows], also="-o json")
    print_lines(
        [
            "",
            *limits(best, rows),
            *simulated_line(best[0]),
            *apart(best),
            *bad_time(rows),
            *deadline_line(best),
            *bill_line(best),
            *bill_in_short(best[0], best.request),
            *ended_pools(best),
            *few_steps(best),
            *warnings_of(best, now),
            *placement_lines(placement),
            *(
                other_regions(found)
                if len(found.answers) > 1 and not found.of_several_clouds
                else ()
            ),
        ]
    )
    if found.of_several_clouds:
        from deepvm.reports.plans.cloud_table import print_clouds

        print_lines([""])
        print_clouds(found, now)
        print_lines([""])
    print_lines(next_steps(best[0], cloud_of(best.catalog.name)))


def rows_of(answer: Recommendations) -> list[tuple[str, Recommendation]]:
    """What is compared: the first, what costs least for its work, and the best without spot VMs."""
    first = answer[0]
    value = next(
        (a.recommendation for a in answer.alternatives if a.objective is Objective.COST_PER_WORK),
        first,
    )
    rows: list[tuple[list[str], Recommendation]] = []
    steady = answer.on_demand
    if steady is not None and steady.throughput < _NONSENSE * first.throughput:
        steady = None
    compared = [
        (_first_by(answer), first),
        *([(VALUE, value)] if answer.request.has_objective else []),
    ]
    for label, r in (*compared, (NO_SPOT, steady)):
        same = next(
            (labels for labels, other in rows if r is not None and other.cluster == r.cluster), None
        )
        if same is not None:
            same.append(label)
        elif r is not None:
            rows.append(([label], r))
    return [(", ".join(labels), r) for labels, r in rows]


def _first_by(answer: Recommendations) -> str:
    request = answer.request
    if request.policy is PolicyName.DEEPVM and request.objective in (
        Objective.THROUGHPUT,
        Objective.MAKESPAN,
    ):
        return FASTEST if answer.fastest else CHOICE
    return f"first by {request.objective.value if request.has_objective else request.policy.value}"


def title(training: Training, plans: Sequence[Recommendation], *, assumed: bool) -> str:
    """What is trained, in a line."""
    workload, predicted = training.workload, plans[0].prediction
    model = workload.model
    parts = [
        f"{model.name}{' (assumed; --model names yours)' if assumed else ''}",
        _HOW[workload.method],
    ]
    if predicted is not None:
        parts.append(
            " or ".join(dict.fromkeys(r.prediction.precision for r in plans if r.prediction))
        )
    if model.sequence > 1 and model.unit != "images":
        parts.append(f"{model.sequence} tokens")
    parts.append(_batch(workload))
    if workload.samples is not None:
        parts.append(
            f"{short(workload.samples * model.units_per_sample).replace('G', 'B')} {model.unit}"
        )
    text = ", ".join(parts)
    if predicted is None or workload.method is Method.DDP:
        return text
    whole, each = (
        format_bytes(round(float(f"{b:.3g}")))
        for b in (workload.state_bytes, predicted.state_bytes)
    )
    return f"{text}; state {whole}" + (f", {each} a GPU" if each != whole else "")


def _batch(workload: Workload) -> str:
    return (
        f"batch {workload.batch:.10g} {'in all' if workload.scaling is Scaling.STRONG else 'a GPU'}"
    )


def cluster_words(cluster: Cluster) -> str:
    """``17 x g4dn.xlarge spot + c5.xlarge``: the shortest form that can still be rented."""
    spot, on_demand, name = cluster.spot_count, cluster.on_demand_count, cluster.gpu.name
    text = f"{spot or on_demand} x {name}{' spot' if spot else ''}"
    if spot and on_demand:
        text += f" + {on_demand} on demand"
    if cluster.memory is not None:
        many = f"{cluster.memory.count} x " if cluster.memory.count > 1 else ""
        text += f" + {many}{cluster.memory.instance.name}"
    return text


def _cells(label: str, r: Recommendation, training: Training) -> dict[Column, str]:
    predicted, outlook = r.prediction, r.outlook
    assert predicted is not None
    cells = {
        Column(""): label,
        Column("cluster", wrap=False): cluster_words(r.cluster),
        Column("$/h", "right"): f"{r.usd_per_hour:.2f}",
        Column(training.workload.units, "right"): in_short(predicted.throughput),
    }
    if outlook is not None:
        cells[Column("time", "right")] = format_seconds(outlook.total_s, digits=3)
        cells[Column("bill", "right")] = bill_words(outlook)
    cells[Column("lost to preemption", "right", drop=2)] = lost_words(r)
    cells[Column("source", drop=1)] = predicted.source
    return cells


def bill_words(outlook: JobEstimate) -> str:
    """``193-202 $``: at a good and at a bad time for spot VMs."""
    low, high = (_dollars(usd) for usd in outlook.costs_usd or (outlook.cost_usd, outlook.cost_usd))
    return f"{low} $" if low == high else f"{low}-{high} $"


def _dollars(usd: float) -> str:
    return f"{usd:.2f}" if usd < 9.995 else f"{usd:.0f}"


def lost_words(r: Recommendation) -> str:
    """The share that preemptions cost at a good and at a bad time."""
    if r.prediction is None or not r.cluster.spot_count:
        return "-"
    kept = r.prediction.kept
    good, bad = _percent(1 - kept.high), _percent(1 - kept.low)
    return f"{good} %" if good == bad else f"{good} to {bad} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"


def limits(answer: Recommendations, rows: list[tuple[str, Recommendation]]) -> Iterator[str]:
    """What keeps the first row from being better, and what more money buys."""
    first, change = rows[0][1], answer.next_change
    limited = ", ".join(_LIMITS.get(b.constraint, b.constraint) for b in first.binding)
    limited = f"limited by {limited}" if limited else "no larger cluster of it is better"
    line = f"{rows[0][0].split(',')[0]}: {limited}"
    if change is not None and change.gain is not None and change.gain >= _LITTLE:
        gain = gain_words(change.gain, answer.request.objective)
        line += (
            f"; {_up_to_cents(change.budget)} $/h {gain}:"
            f" {cluster_words(change.recommendation.cluster)}"
        )
    yield f"{line}."


def gain_words(gain: float, objective: Objective) -> str:
    """``buys 57% more speed``, ``buys 39 times the speed``, ``lowers the bill by 8%``."""
    if objective is Objective.TOTAL_COST:
        return f"lowers the bill by {gain:.0%}"
    if objective is Objective.COST_PER_WORK:
        return f"lowers the cost of the work by {gain:.0%}"
    if objective is Objective.FLOPP:
        return f"buys {gain:.0%} more operations per dollar"
    return f"buys {1 + gain:.3g} times the speed" if gain >= 2 else f"buys {gain:.0%} more speed"


def _up_to_cents(usd: Decimal) -> str:
    """Rounded up, because people will use it as a budget."""
    return f"{usd.quantize(Decimal('0.01'), ROUND_CEILING):f}"


def simulated_line(first: Recommendation) -> Iterator[str]:
    """What simulated runs of the first plan say, if it was simulated."""
    spread = first.outlook.spread if first.outlook else None
    if spread is not None:
        times = (
            f"{format_seconds(spread.p5_s, digits=3)} to {format_seconds(spread.p95_s, digits=3)}"
        )
        bills = f"{_dollars(spread.p5_usd)} to {_dollars(spread.p95_usd)} $"
        runs = counted(spread.runs, "time")
        yield f"simulated {runs} at this speed: nine runs in ten take {times} and cost {bills}."


def apart(answer: Recommendations) -> Iterator[str]:
    """The fastest plan with other GPUs of which nobody can say whether it is faster."""
    if _first_by(answer) not in (FASTEST, CHOICE):
        return
    gpu, rivals = answer[0].cluster.gpu.gpu, list[tuple[float, float, Recommendation]]()
    for other in answer.configurations[1:]:
        odds = other.prediction.faster_than_first if other.prediction else None
        if odds is not None and EVEN <= odds < MOST_EVEN and other.cluster.gpu.gpu != gpu:
            rivals.append((other.kept_throughput.value, odds, other))
    if rivals:
        _, odds, other = max(rivals, key=lambda rival: rival[0])
        what = f"{cluster_words(other.cluster)} at {other.usd_per_hour:.2f} $/h"
        yield f"~ {what} is faster in {odds:.0%} of cases; what is worth measuring: --why"


def measurement_lines(answer: Recommendations) -> list[str]:
    """What to measure next, for ``--why``."""
    from deepvm.reports.plans.measuring import measuring_lines  # only then

    found = measure_next(answer.catalog, answer.request)
    if found is None:
        return [
            "Measure next: nothing; no run of up to three hours is likely to lead to a better"
            " choice."
        ]
    what = f"{found.count} x {found.cluster.gpu.name}"
    return [
        (
            f"Measure next: {what}, about {found.minutes:.0f} minutes and {found.usd} $: on average"
            f" it leads to a choice that is {found.gain:.1%} faster, and changes the choice in"
            f" {found.changes:.0%} of cases."
        ),
        *measuring_lines(found, answer.request),
    ]


def bad_time(rows: list[tuple[str, Recommendation]]) -> Iterator[str]:
    """Where a plan of spot VMs loses to the one without, if spot VMs live for hours."""
    steady = next((r for label, r in rows if NO_SPOT in label), None)
    first = rows[0][1]
    if steady is None or first.prediction is None or not first.cluster.spot_count:
        return
    if (
        steady.cluster.gpu == first.cluster.gpu
        and steady.cluster.gpu_count == first.cluster.gpu_count
    ):
        return  # the same VMs, without preemptions: of course they are faster
    bad = first.throughput * first.prediction.kept.low
    slower = bad * LITTLE < steady.throughput
    dearer = (
        not bad
        or float(first.usd_per_hour) / bad > LITTLE * float(steady.usd_per_hour) / steady.throughput
    )
    if slower or dearer:
        what = " and ".join([*(["faster"] if slower else []), *(["cheaper"] if dearer else [])])
        yield f"! at a bad time, when spot VMs live for hours, 'no spot' is {what}"


def deadline_line(answer: Recommendations) -> Iterator[str]:
    """How likely the first plan is to be late, where that is likely."""
    outlook, work = answer[0].outlook, answer.request.work
    if work is not None and work.deadline_s is not None and outlook is not None:
        late = outlook.late_probability
        if late is not None and late >= _LATE:
            due = format_seconds(work.deadline_s)
            yield (
                f"! misses the deadline of {due} in {late:.0%} of cases, because its speed is"
                " uncertain"
            )


def bill_line(answer: Recommendations) -> Iterator[str]:
    """That the first plan may cost more than the job's limit."""
    outlook, work = answer[0].outlook, answer.request.work
    if (
        work is not None
        and work.total_budget is not None
        and outlook is not None
        and outlook.costs_usd is not None
    ):
        most = outlook.costs_usd[1]
        if most > float(work.total_budget):
            yield (
                f"! expected bill {_dollars(outlook.cost_usd)} $; it may be {_dollars(most)} $ and"
                f" more than {work.total_budget.normalize():f} $, because speed and preemptions are"
                " uncertain"
            )


def gpus_of(r: Recommendation) -> int:
    """GPUs of a plan."""
    return r.cluster.gpu_count * (r.cluster.gpu.gpu.count if r.cluster.gpu.gpu else 1)


def steps_of(first: Recommendation, workload: Workload) -> int | None:
    """Steps of the whole job, the last one in part.

    None where it is not said how much is trained.
    """
    return (
        None
        if workload.samples is None
        else math.ceil(workload.samples / workload.batch_in_all(gpus_of(first)))
    )


def few_steps(answer: Recommendations) -> Iterator[str]:
    """That the job has so few steps that nobody would train so."""
    training = answer.request.training
    steps = steps_of(answer[0], training.workload) if training else None
    if steps is not None and steps < _FEW_STEPS:
        many = counted(steps, "step")
        yield (
            f"! that is {many} in all: is the amount right? Else a smaller batch or cluster trains"
            " better"
        )


def warnings_of(answer: Recommendations, now: datetime) -> Iterator[str]:
    """What is not proven, old prices, unknown quotas, doubtful figures, each after ``!``.

    After ``->`` what to do.
    """
    catalog, first = answer.catalog, answer[0]
    if answer.doubt:
        cure = "  -> a higher --time-limit" if answer.status is SolveStatus.TIME_LIMIT else ""
        yield f"! not proven: {answer.doubt}{cure}"
    days = _age_days(catalog, now)
    if days is not None and days > OLD_DAYS:
        yield f"! prices {days} days old ({catalog.region})  -> {refresh_command(catalog)}"
    if answer.request.quotas is None:
        needed = [
            n for n in quota_needs(first.cluster, catalog) if n["limit"] is None and n["code"]
        ]
        if needed:
            what = ", ".join(f"{n['vcpus']} vCPUs of {n['family']} {n['market']}" for n in needed)
            yield f"! quota needed: {what}  -> deepvm doctor"
        cloud = cloud_of(catalog.name)
        said = [
            cloud.quota_words(g.instance, g.count, g.market)
            for g in first.cluster.groups
            if g.count
        ]
        if words := "; ".join(filter(None, said)):
            yield f"! quota needed: {words}; you may have none"
    doubtful = [w for w in first.warnings if not w.startswith(("network:", UNPUBLISHED, PLAIN))]
    if doubtful:
        yield f"! {doubtful[0]}"
        if len(doubtful) > 1:
            yield f"! {counted(len(doubtful) - 1, 'more doubt')}  -> --why"


def _age_days(catalog: Catalog, now: datetime) -> int | None:
    about = catalog.provenance
    ages = [(now - o.observed_at).days for o in about.origins if base(o.signal) in PRICES]
    if not ages and about.prices_as_of is not None:
        ages = [(now.date() - about.prices_as_of).days]
    return max(ages, default=None)


def ended_pools(answer: Recommendations) -> Iterator[str]:
    """The user's reserved pools that end before the job would."""
    for rejection in answer.rejections:
        if rejection.reason == "reserved":
            yield f"! {rejection.instance_type} is left out: {rejection.detail}"


def next_steps(first: Recommendation, cloud: Cloud) -> list[str]:
    """What to do with the plan; ``run`` and most exports do not rent reserved VMs."""
    groups = first.cluster.groups
    if any(group.instance.reserved for group in groups):
        return [
            (
                "Next: add -o json > plan.json; deepvm export plan.json --to torchrun --output-dir"
                " launch"
            ),
            "It trains on the reserved VMs as they are. Reasons, doubts, rejected types: --why",
        ]
    if not cloud.has_api:
        return [
            (
                "Next: add -o json > plan.json; deepvm export plan.json --to skypilot --output-dir"
                " launch"
            ),
            (
                f"SkyPilot starts it: deepvm rents nothing of {cloud.title}. Reasons, doubts,"
                " rejected types: --why"
            ),
        ]
    return [
        "Next: add -o json > plan.json, then train on it: deepvm run plan.json -- python train.py",
        "For SkyPilot, EC2 Fleet, Terraform: deepvm export. Reasons, doubts, rejected types: --why",
    ]
