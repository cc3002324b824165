"""An answer as all renderings show it: its plans, notes about the first, and what else is shown.

Screen, report and page render a :class:`PlanView`; sentences are in plan_report.txt.j2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from deepvm.catalog.clouds import cloud_of
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.provenance import PLAIN, UNPUBLISHED
from deepvm.core.units import counted, format_bytes, format_seconds, format_short
from deepvm.planner.ranking import MIN_WORTHWHILE_GAIN
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.search.enumeration import SolveStatus
from deepvm.reports.plans.sources import (
    quota_needs,
    refresh_command,
    source_lines,
)
from deepvm.reports.plans.words import (
    about,
    amount,
    cluster_words,
    dollars,
    exact_usd,
    gain_words,
    gpus_of,
    in_cents,
    plain_usd,
)

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.core.training.workload import Workload

FASTEST = "fastest"
FIRST_CHOICE = "first choice"
BEST_VALUE = "best value"
NO_SPOT = "no spot"
Row = tuple[str, Recommendation]
"""A plan of the screen with its label."""

_LIMITS = {
    "extrapolation": "what such clusters were checked with (--extrapolate)",
    "batch-size": "the batch that is known to train well (--global-batch)",
    "worth": "what is worth its price",
}
_OLD_DAYS = 7
_MIN_GAIN = 0.005
"""Smaller gains of a higher budget are not worth a sentence."""
_USELESS_SPEED = 0.05
"""A share of the first plan's speed below which a plan is no alternative."""
_LATE = 0.1
"""A probability of missing the deadline from which on a note says so."""
_FEW_STEPS = 100
"""Of an optimizer: fewer are a mistake in the amount, or a batch that is too large for it."""
_EVEN, _MAX_EVEN = 0.2, 0.99
"""Probabilities of being faster from where on, and up to where, two plans are about equal."""


@dataclass(frozen=True)
class Note:
    """A fact about an answer.

    Attributes:
        kind: what it is about, one word. mark: ``!`` for a warning, ``~`` for a tie.
        action: what to do about it.
    """

    kind: str
    text: str
    mark: str = ""
    action: str = ""

    @property
    def advice(self) -> str:
        """The text, with what to do."""
        if self.action:
            return f"{self.text}  -> {self.action}"
        return self.text

    def __str__(self) -> str:
        """As on the screen."""
        return f"{self.mark} {self.advice}".lstrip()


@dataclass(frozen=True)
class PlanView:
    """What there is to show of the best region's answer, and of the others.

    Attributes:
        placement: the cloud's scores, if asked for. assumed: the model is the default.
    """

    found: Comparison
    now: datetime
    placement: Placement | None = None
    assumed: bool = False

    @cached_property
    def rows(self) -> list[Row]:
        """Plans of the screen with their labels; none where nothing is feasible."""
        return rows_of(self.answer)

    @cached_property
    def notes(self) -> list[Note]:
        """Facts about the first plan."""
        return [*notes_of(self.answer, self.rows, self.now)] if self.rows else []

    @property
    def answer(self) -> Recommendations:
        """The answer of the best region."""
        return self.found.answers[0]

    @property
    def workload(self) -> Workload | None:
        """What is trained; None where eFLOPS are counted."""
        training = self.answer.request.training
        if training:
            return training.workload
        return None

    def about(self, *kinds: str) -> list[Note]:
        """The notes of some kinds."""
        return [note for note in self.notes if note.kind in kinds]

    @property
    def title(self) -> str:
        """What is trained, in a line."""
        workload = self.workload
        assert workload is not None
        predictions = [r.prediction for _, r in self.rows if r.prediction]
        text = workload.in_words(
            " or ".join(dict.fromkeys(p.precision for p in predictions)),
            " (assumed; --model names yours)" if self.assumed else "",
        )
        model = workload.model
        if workload.samples is not None:
            amount = format_short(workload.samples * model.units_per_sample).replace("G", "B")
            text += f", {amount} {model.unit}"
        if predictions and workload.method.value != "ddp":
            sizes = (workload.state_bytes, predictions[0].state_bytes)
            state, each = (format_bytes(round(float(f"{size:.3g}"))) for size in sizes)
            text += f"; state {state}" + (f", {each} a GPU" if each != state else "")
        return text

    @property
    def steps(self) -> int | None:
        """Steps of the whole job."""
        return steps_of(self.answer.configurations[0], self.answer.request)

    @property
    def has_estimates(self) -> bool:
        """Whether eFLOPS of types that are left out are estimated."""
        types = (self.answer.catalog[r.instance_type] for r in self.answer.rejections)
        return any(instance.eflops_basis for instance in types)

    @property
    def knows_lifetime(self) -> bool:
        """Whether the user has given a lifetime of spot VMs."""
        request = self.answer.request
        return request.life_s is not None or bool(request.work and request.work.mttp_s is not None)

    @property
    def source_lines(self) -> list[str]:
        """Where the prices of all regions come from, and what was measured."""
        sources = [source_lines(answer.catalog, self.now) for answer in self.found.answers]
        return list(dict.fromkeys(line for lines in sources for line in lines))


def by_gpu(names: Sequence[str], catalog: Catalog) -> list[str]:
    """``L4 (10 types)``, the GPUs with most types first."""
    gpus = [catalog[name].gpu for name in names]
    names = sorted("?" if g is None else f"{g.name}{' x n' if g.count > 1 else ''}" for g in gpus)
    return [f"{gpu} ({counted(number, 'type')})" for gpu, number in Counter(names).most_common()]


def rows_of(answer: Recommendations) -> list[Row]:
    """What is compared: the first, what costs least for its work, and the best without spot VMs."""
    if not answer.configurations:
        return []
    first = answer.configurations[0]
    labelled = [(_first_by(answer), answer.configurations[0])]
    if answer.request.has_objective:
        by_cost = (
            a.recommendation for a in answer.alternatives if a.objective is Objective.COST_PER_WORK
        )
        labelled.append((BEST_VALUE, next(by_cost, first)))
    steady = answer.on_demand
    # A plan that would take twenty times as long is no answer, however safe it is.
    if steady is not None and steady.throughput >= _USELESS_SPEED * first.throughput:
        labelled.append((NO_SPOT, steady))
    rows: dict[str, tuple[list[str], Recommendation]] = {}
    for label, r in labelled:
        labels, _ = rows.setdefault(f"{r.cluster.architecture} {r.cluster}", ([], r))
        labels.append(label)
    return [(", ".join(labels), r) for labels, r in rows.values()]


def _first_by(answer: Recommendations) -> str:
    request = answer.request
    fastest = (Objective.THROUGHPUT, Objective.MAKESPAN)
    if request.policy is PolicyName.DEEPVM and request.objective in fastest:
        if answer.fastest:
            return FASTEST
        return FIRST_CHOICE
    return f"first by {request.objective.value if request.has_objective else request.policy.value}"


def notes_of(answer: Recommendations, rows: Sequence[Row], now: datetime) -> Iterator[Note]:
    """The notes about the first plan, in the order of the screen."""
    first = answer.configurations[0]
    request = answer.request
    yield limits_note(answer, rows)
    yield from _simulated(first)
    yield from rival_note(answer)
    yield from bad_time_note(rows)
    yield from _job_notes(first, request)
    yield from _besides_vms(first, request)
    for rejection in answer.rejections:
        if rejection.reason == "reserved":
            text = f"{rejection.instance_type} is left out: {rejection.detail}"
            yield Note("reserved", text, "!")
    yield from _few_steps(first, request)
    if answer.doubt:
        action = "a higher --time-limit" if answer.status is SolveStatus.TIME_LIMIT else ""
        yield Note("proof", f"not proven: {answer.doubt}", "!", action)
    as_of = answer.catalog.provenance.prices_as_of
    if as_of is not None and (now.date() - as_of).days > _OLD_DAYS:
        text = f"prices {(now.date() - as_of).days} days old ({answer.catalog.region})"
        yield Note("prices", text, "!", refresh_command(answer.catalog))
    if request.quotas is None:
        yield from _quota_notes(first, answer.catalog)
    yield from _warnings(first)


def limits_note(answer: Recommendations, rows: Sequence[Row]) -> Note:
    """What keeps the first row from being better, and what more money buys."""
    label, first = rows[0]
    limits = ", ".join(_LIMITS.get(b.constraint, b.constraint) for b in first.binding)
    text = "no larger cluster of it is better"
    if limits:
        text = f"limited by {limits}"
    change = answer.next_change
    if change is not None and change.gain is not None and change.gain >= _MIN_GAIN:
        gain = gain_words(change.gain, answer.request.objective)
        plan = cluster_words(change.recommendation.cluster)
        text += f"; {in_cents(change.budget)} $/h {gain}: {plan}"
    return Note("limits", f"{label.split(',')[0]}: {text}.")


def _simulated(first: Recommendation) -> Iterator[Note]:
    spread = first.outlook.spread if first.outlook else None
    if spread is not None:
        times = " to ".join(format_seconds(s, digits=3) for s in (spread.p5_s, spread.p95_s))
        bills = f"{dollars(spread.p5_usd)} to {dollars(spread.p95_usd)} $"
        runs = counted(spread.runs, "time")
        text = f"simulated {runs} at this speed: nine runs in ten take {times} and cost {bills}"
        yield Note("simulated", text)


def rival_note(answer: Recommendations) -> Iterator[Note]:
    """The fastest plan with other GPUs that may as well be faster than the first."""
    if _first_by(answer) not in (FASTEST, FIRST_CHOICE):
        return
    rivals = []
    for other in answer.configurations[1:]:
        odds = other.prediction.faster_than_first if other.prediction else None
        other_gpu = other.cluster.gpu.gpu != answer.configurations[0].cluster.gpu.gpu
        if odds is not None and _EVEN <= odds < _MAX_EVEN and other_gpu:
            rivals.append((odds, other))
    if rivals:
        odds, other = max(rivals, key=lambda rival: rival[1].kept_throughput.value)
        plan = f"{cluster_words(other.cluster)} at {other.usd_per_hour:.2f} $/h"
        text = f"{plan} is faster in {odds:.0%} of cases"
        yield Note("rival", text, "~", "what to measure: --why")


def bad_time_note(rows: Sequence[Row]) -> Iterator[Note]:
    """Where a plan of spot VMs loses to the one without, if spot VMs live for hours."""
    steady = next((r for label, r in rows if NO_SPOT in label), None)
    first = rows[0][1]
    if steady is None or first.prediction is None or not first.cluster.spot_count:
        return
    gpus, steady_gpus = ((c.gpu, c.gpu_count) for c in (first.cluster, steady.cluster))
    if gpus == steady_gpus:
        return  # the same VMs without preemptions are always faster
    bad = first.throughput * first.prediction.kept.low
    better = []
    if bad * MIN_WORTHWHILE_GAIN < steady.throughput:
        better.append("faster")
    # Dollars per work, multiplied out: nothing may be left at a bad time
    steady_price, price = float(steady.usd_per_hour), float(first.usd_per_hour)
    if price * steady.throughput > MIN_WORTHWHILE_GAIN * steady_price * bad:
        better.append("cheaper")
    if better:
        text = f"at a bad time, when spot VMs live for hours, 'no spot' is {' and '.join(better)}"
        yield Note("bad-time", text, "!")


def _job_notes(first: Recommendation, request: PlanRequest) -> Iterator[Note]:
    """That the job may end too late, or cost too much."""
    outlook = first.outlook
    work = request.work
    if work is None or outlook is None:
        return
    late = outlook.late_probability or 0.0
    if work.deadline_s is not None and late >= _LATE:
        text = (
            f"misses the deadline of {format_seconds(work.deadline_s)} in {late:.0%} of cases,"
            " because its speed is uncertain"
        )
        yield Note("deadline", text, "!")
    highest = outlook.costs_usd[1] if outlook.costs_usd else 0.0
    if work.total_budget is not None and highest > float(work.total_budget):
        text = (
            f"expected bill {dollars(outlook.cost_usd)} $; it may be {dollars(highest)} $ and more"
            f" than {plain_usd(work.total_budget)} $, because speed and preemptions are uncertain"
        )
        yield Note("total-budget", text, "!")


def _besides_vms(r: Recommendation, request: PlanRequest) -> Iterator[Note]:
    """What comes besides VMs, and what all of it costs: a warning where that is over a limit."""
    bill = r.bill
    if bill is None:
        return
    left = ", ".join(part.name for part in bill.not_counted if not part.included)
    if not bill.items:
        if left:
            yield Note("bill", f"not counted besides VMs: {left}")
        return
    total = f"{bill.total_usd_per_hour:.2f} $/h"
    limits = []
    if bill.total_usd_per_hour > request.budget:
        total = exact_usd(bill.total_usd_per_hour)
        limits.append(f"{plain_usd(request.budget)} $/h")
    if r.whole_usd is not None:
        total += f" and {dollars(r.whole_usd)} $"
        budget = request.work.total_budget if request.work else None
        if budget is not None and r.whole_usd > budget:
            limits.append(f"{plain_usd(budget)} $")
    names = ", ".join(item.name for item in bill.items)
    text = f"besides VMs: {about(bill)}{amount(bill, '')} ({names}), {total} in all"
    if limits:
        text += f", more than {' and '.join(limits)}"
    if left:
        text += f"; without {left}"
    yield Note("bill", text, "!" if limits else "")


def steps_of(first: Recommendation, request: PlanRequest) -> int | None:
    """Steps of the whole job, the last one in part; None where the amount is not known."""
    workload = request.training and request.training.workload
    if not workload or workload.samples is None:
        return None
    return math.ceil(workload.samples / workload.batch_in_all(gpus_of(first)))


def _few_steps(first: Recommendation, request: PlanRequest) -> Iterator[Note]:
    steps = steps_of(first, request)
    if steps is not None and steps < _FEW_STEPS:
        text = (
            f"that is {counted(steps, 'step')} in all: is the amount right? Else a smaller batch or"
            " cluster trains better"
        )
        yield Note("steps", text, "!")


def _quota_notes(first: Recommendation, catalog: Catalog) -> Iterator[Note]:
    """Quotas that a plan needs and of which nothing is known."""
    needed = [
        f"{need.vcpus} vCPUs of {need.family} {need.market.value}"
        for need in quota_needs(first.cluster, catalog)
        if need.quota is None and need.code
    ]
    if needed:
        yield Note("quota", f"quota needed: {', '.join(needed)}", "!", "deepvm doctor")
    cloud = cloud_of(catalog.name)
    groups = first.cluster.groups
    words = list(filter(None, (cloud.quota_words(g.instance, g.count, g.market) for g in groups)))
    if words:
        text = f"quota needed: {'; '.join(words)}; you may have none"
        yield Note("quota", text, "!")


def _warnings(first: Recommendation) -> Iterator[Note]:
    warnings = [w for w in first.warnings if not w.startswith(("network:", UNPUBLISHED, PLAIN))]
    if warnings:
        yield Note("warning", warnings[0], "!")
    if len(warnings) > 1:
        yield Note("more", counted(len(warnings) - 1, "more doubt"), "!", "--why")
