"""An answer as all renderings show it: its plans, notes about the first, and what else is shown."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.signals.cloud import Cloud
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.provenance import PLAIN, UNPUBLISHED
from deepvm.core.units import as_budget, counted, format_bytes, format_seconds, format_short
from deepvm.planner.ranking import MIN_WORTHWHILE_GAIN
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison, cloud_name
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.search.enumeration import SolveStatus
from deepvm.records import dataclass
from deepvm.reports.plans import words
from deepvm.reports.plans.sources import quota_needs, source_lines

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.core.training.workload import Workload

FASTEST = "fastest"
RECOMMENDED = "recommended"
BEST_VALUE = "best value"
CHEAPEST = "cheapest"
LOW_COST = "low cost"
NO_SPOT = "no spot"
ONE_GPU = "one GPU"
NEW_ACCOUNT = "new account"
# Of the best plan by an objective, and of one that is up to 5 % worse and much better otherwise
_LABELS = {
    Objective.COST_PER_WORK: (BEST_VALUE, BEST_VALUE),
    Objective.TOTAL_COST: (CHEAPEST, LOW_COST),
    Objective.MAKESPAN: (FASTEST, "faster"),
}
Row = tuple[str, Recommendation]  # A plan of the screen with its label

A_GRANT_TAKES_DAYS = ", a grant can take days"
_LAST_WORDS = re.compile(" (Instance Requests|instances)$")  # of the names of AWS's quotas
_OLD_DAYS = 7
_USELESS_SPEED = 0.05  # A share of the first plan's speed below which a plan is no alternative
_LATE = 0.1  # A probability of missing the deadline from which on a note says so
_FOR = "for $"  # of the label of a plan for a higher budget
_MAX_TIMES_THE_BUDGET = 2
_LONG_S = 180 * 86_400  # of a job that no one would start
# Of an optimizer: fewer are a mistake in the amount, or a batch that is too large for it
_FEW_STEPS = 100
# Probabilities of being faster from where on, and up to where, two plans are about equal
_EVEN, _MAX_EVEN = 0.2, 0.99


@dataclass(frozen=True)
class Note:
    """A fact about an answer. ``mark``: ``!`` for a warning, ``~`` for a tie."""

    kind: str
    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.mark} {self.text}".lstrip()


@dataclass(frozen=True)
class PlanView:
    """What there is to show of the best region's answer, and of the others."""

    found: Comparison
    now: datetime
    placement: "Placement | None" = None
    assumed: bool = False
    epochs: str | None = None  # as the user gave them

    @property
    def rows(self) -> list[Row]:
        """The first, what costs least for its work, and the best without spot VMs."""
        return [row for row in self._labeled if not _is_extra(row[0])]

    @property
    def more_rows(self) -> list[Row]:
        """One that a new account may rent, the best with one GPU, and what more money buys.

        What more money buys comes earlier where it at least doubles the speed.
        """
        rows = [row for row in self._labeled if _is_extra(row[0])]
        if self.much_for_more_money:
            rows.reverse()
        account = self.found.new_account
        if account is not None and account.plan is not None:
            rows.insert(0, (NEW_ACCOUNT, account.plan.recommendation))
        return rows

    @property
    def much_for_more_money(self) -> bool:
        """Whether the next budget at least doubles the speed."""
        more = self.answer.next_change
        return more is not None and more.gain is not None and more.gain >= 1

    @cached_property
    def _labeled(self) -> list[Row]:
        """Each plan once, with all of its labels."""
        answer = self.answer
        if not answer.configurations:
            return []
        first = answer.configurations[0]
        labeled = [(_first_by(answer), first)]
        if answer.request.has_objective:
            others = {a.objective: a for a in answer.alternatives}
            objective = Objective.COST_PER_WORK
            if answer.request.derives_budget:
                objective = Objective.TOTAL_COST
                if answer.request.objective is objective:
                    objective = Objective.MAKESPAN
            best, nearly = _LABELS[objective]
            other = others.get(objective)
            if other is not None:
                labeled.append((best if other.best else nearly, other.recommendation))
            elif objective is not Objective.MAKESPAN:
                labeled.append((best, first))
        steady = answer.on_demand
        # A plan that would take twenty times as long is no answer, however safe it is.
        if steady is not None and steady.throughput >= _USELESS_SPEED * first.throughput:
            labeled.append((NO_SPOT, steady))
        if answer.single_gpu is not None:
            labeled.append((ONE_GPU, answer.single_gpu))
        more, most = answer.next_change, _MAX_TIMES_THE_BUDGET * answer.request.budget
        if answer.request.weighs_doubt and more is not None and more.budget <= most:
            labeled.append((f"{_FOR}{as_budget(more.budget)}/h", more.recommendation))
        rows: dict[str, tuple[list[str], Recommendation]] = {}
        for label, r in labeled:
            labels, _ = rows.setdefault(f"{r.cluster.architecture} {r.cluster}", ([], r))
            if label not in labels:
                labels.append(label)
        return [(", ".join(labels), r) for labels, r in rows.values()]

    @cached_property
    def cautions(self) -> list[Note]:
        """What may go wrong with the first plan, the gravest first; and costs asked for."""
        answer = self.answer
        first = answer.configurations[0]
        by_cost = answer.request.objective in (Objective.TOTAL_COST, Objective.COST_PER_WORK)
        notes = [*_job_notes(first, answer.request), *bad_time_note(self.rows, cheap=by_cost)]
        notes += _besides_vms(first, answer.request)
        steps = self.steps
        if steps is not None and steps < _FEW_STEPS:
            advice = "Else a smaller batch or cluster trains better"
            text = f"that is {counted(steps, 'step')} in all: is the amount right? {advice}"
            notes.append(Note("steps", text, "!"))
        if answer.doubt:
            text = f"not proven: {answer.doubt}"
            if answer.status is SolveStatus.TIME_LIMIT:
                text += "; try a higher --time-limit"
            notes.append(Note("proof", text, "!"))
        for rejection in answer.rejections:
            if rejection.reason == "reserved":
                text = f"{rejection.instance_type} is left out: {rejection.detail}"
                notes.append(Note("reserved", text, "!"))
        for text in first.warnings:
            if not text.startswith(("network:", UNPUBLISHED, PLAIN)):
                notes.append(Note("warning", text, "!"))
        return notes

    @cached_property
    def notes(self) -> list[Note]:
        """The notes about the first plan."""
        if not self.rows:
            return []
        return [*simulated_note(self.answer[0]), *rival_note(self.answer), *self.cautions]

    @property
    def quota_sentence(self) -> str:
        """What an account must be allowed for the first plan, where the limits are not known."""
        answer, account, cloud = self.answer, self.found.new_account, self.cloud
        if answer.request.quotas is not None or cloud is None:
            return ""
        cluster = answer.configurations[0].cluster
        needs = quota_needs(cluster, answer.catalog)
        asked = [
            f'{need.vcpus:,} vCPUs "{_LAST_WORDS.sub("", need.title)}"'
            for need in needs
            if need.quota is None and need.code
        ]
        grant = A_GRANT_TAKES_DAYS if asked else ""
        asked = asked or [cloud.quota_words(g.instance, g.count, g.market) for g in cluster.groups]
        parts = []
        if any(asked):
            parts.append(f"ask {cloud.title} for {' and '.join(filter(None, asked))}")
        if account is not None:
            reason = account.reason
            if grant:
                first, *others = reason.split(" vCPUs")[:-1]
                reason = first  # what is asked for is named before
                if len(asked) > 1:
                    reason += " of both" if others else " of the first"
            limit = account.usd_per_hour or math.inf
            instead = f"--cloud {account.cloud} needs {'none' if grant else 'no grant'}"
            if cluster.usd_per_hour > limit:
                instead += f" up to ${limit:g}/h"
            if account.plan is not None:
                instead = f'"{NEW_ACCOUNT}", on {REGISTRY[account.cloud].title}, needs no grant'
            parts.append(reason + grant)
            if account.cloud:
                if not REGISTRY[account.cloud].has_api:
                    instead += " (export only)"
                parts.append(instead)
        elif parts:
            parts.append("you may have none")
        return "; ".join(parts)

    @property
    def answer(self) -> Recommendations:
        return self.found.answers[0]

    @property
    def cloud(self) -> Cloud | None:
        """Where the first plan is; None where a catalog is of no cloud that is known."""
        return REGISTRY.get(cloud_name(self.answer.catalog))

    @property
    def workload(self) -> "Workload | None":
        """What is trained; None where eFLOPS are counted."""
        training = self.answer.request.training
        if training:
            return training.workload
        return None

    @property
    def price_age(self) -> int | None:
        """Days; None for prices of this week, and for undated ones."""
        as_of = self.answer.catalog.provenance.prices_as_of
        if as_of is None:
            return None
        days = (self.now.date() - as_of).days
        return days if days > _OLD_DAYS else None

    @property
    def amount(self) -> str:
        """How much is trained in all, ``90 epochs`` or ``2B tokens``; empty if unknown."""
        workload = self.workload
        if workload is None or workload.samples is None:
            return ""
        if self.epochs:
            return f"{self.epochs} epochs"
        units = workload.samples * workload.model.units_per_sample
        return f"{format_short(units).replace('G', 'B')} {workload.model.unit}"

    def about(self, *kinds: str) -> list[Note]:
        return [note for note in self.notes if note.kind in kinds]

    @property
    def title(self) -> str:
        workload = self.workload
        assert workload is not None
        predictions = [r.prediction for _, r in self.rows if r.prediction]
        text = workload.in_words(
            " or ".join(dict.fromkeys(p.precision for p in predictions)),
            " (assumed; --model names yours)" if self.assumed else "",
        )
        if self.amount:
            text += f", {self.amount}"
        if predictions and workload.method.value != "ddp":
            sizes = (workload.state_bytes, predictions[0].state_bytes)
            state, each = (format_bytes(round(float(f"{size:.3g}"))) for size in sizes)
            text += f"; state {state}" + (f", {each} a GPU" if each != state else "")
        return text

    @property
    def steps(self) -> int | None:
        """Of the whole job, the last one in part; None where the amount is not known."""
        workload = self.workload
        if workload is None or workload.samples is None:
            return None
        gpus = self.answer.configurations[0].cluster.gpus
        return math.ceil(workload.samples / workload.batch_in_all(gpus))

    @property
    def has_estimates(self) -> bool:
        catalog = self.answer.catalog
        return any(catalog[r.instance_type].eflops_basis for r in self.answer.rejections)

    @property
    def knows_lifetime(self) -> bool:
        request = self.answer.request
        return request.life_s is not None or bool(request.work and request.work.mttp_s is not None)

    @property
    def source_lines(self) -> list[str]:
        lines = (
            line for answer in self.found.answers for line in source_lines(answer.catalog, self.now)
        )
        return list(dict.fromkeys(lines))


def short_label(label: str) -> str:
    """``fastest`` of ``fastest, best value``."""
    return label.split(",")[0]


def _is_extra(label: str) -> bool:
    return label == ONE_GPU or label.startswith(_FOR)


def by_gpu(names: Sequence[str], catalog: Catalog) -> list[str]:
    """``L4 (10 types)``, the GPUs with most types first."""
    gpus = [catalog[name].gpu for name in names]
    names = sorted("?" if g is None else f"{g.name}{' x n' if g.count > 1 else ''}" for g in gpus)
    return [f"{gpu} ({counted(number, 'type')})" for gpu, number in Counter(names).most_common()]


def _first_by(answer: Recommendations) -> str:
    request = answer.request
    fastest = (Objective.THROUGHPUT, Objective.MAKESPAN)
    if request.derives_budget and request.objective is Objective.TOTAL_COST:
        return CHEAPEST if answer.fastest else LOW_COST
    if request.policy is PolicyName.DEEPVM and request.objective in fastest:
        if answer.fastest:
            return FASTEST
        return RECOMMENDED
    return f"first by {request.objective.value if request.has_objective else request.policy.value}"


def simulated_note(first: Recommendation) -> Iterator[Note]:
    """Times and bills of a plan's simulated runs, if any."""
    if first.outlook is None or first.outlook.spread is None:
        return
    spread = first.outlook.spread
    times = " to ".join(format_seconds(s, digits=3) for s in (spread.p5_s, spread.p95_s))
    bills = f"${words.dollars(spread.p5_usd)}-{words.dollars(spread.p95_usd)}"
    runs = counted(spread.runs, "simulation")
    yield Note("simulated", f"in {runs} at this speed, 9 of 10 take {times}, {bills}")


def rival_note(answer: Recommendations) -> Iterator[Note]:
    """The fastest plan with other GPUs that may as well be faster than the first."""
    if _first_by(answer) not in (FASTEST, RECOMMENDED):
        return
    rivals = []
    for other in answer.configurations[1:]:
        odds = None
        if other.prediction:
            odds = other.prediction.faster_than_first
        other_gpu = other.cluster.gpu.gpu != answer.configurations[0].cluster.gpu.gpu
        if odds is not None and _EVEN <= odds < _MAX_EVEN and other_gpu:
            rivals.append((odds, other))
    if rivals:
        odds, other = max(rivals, key=lambda rival: rival[1].kept_throughput.value)
        plan = f"{words.cluster_words(other.cluster)} at ${other.usd_per_hour:.2f}/h"
        text = f"{plan} is faster in {odds:.0%} of cases"
        yield Note("rival", text, "~")


def bad_time_note(rows: Sequence[Row], *, cheap: bool = False) -> Iterator[Note]:
    """Where a plan of spot VMs loses to the one without, if spot VMs live for hours.

    ``cheap``: a low cost is asked for, and speed does not count.
    """
    steady = next((r for label, r in rows if NO_SPOT in label), None)
    first = rows[0][1]
    if steady is None or first.prediction is None or not first.cluster.spot_count:
        return
    gpus, steady_gpus = ((c.gpu, c.gpu_count) for c in (first.cluster, steady.cluster))
    if gpus == steady_gpus:
        return  # the same VMs without preemptions are always faster
    if steady.prediction is None or not steady.prediction.trusted:
        return
    bad = first.throughput * first.prediction.kept.low
    better = []
    if bad * MIN_WORTHWHILE_GAIN < steady.throughput and not cheap:
        better.append("faster")
    # Dollars per work, multiplied out: nothing may be left at a bad time
    steady_price, price = float(steady.usd_per_hour), float(first.usd_per_hour)
    if price * steady.throughput > MIN_WORTHWHILE_GAIN * steady_price * bad:
        better.append("cheaper")
    if better:
        plan = f"{words.cluster_words(steady.cluster)} on demand is {' and '.join(better)}"
        yield Note("bad-time", f"at a bad time, when spot VMs live for hours, {plan}", "!")


def _job_notes(first: Recommendation, request: PlanRequest) -> Iterator[Note]:
    outlook = first.outlook
    work = request.work
    if work is None or outlook is None:
        return
    late = outlook.late_probability or 0.0
    if work.deadline_s is None and outlook.total_s > _LONG_S:
        text = f"takes {format_seconds(outlook.total_s, digits=2)}: a higher budget is needed"
        yield Note("time", text, "!")
    if work.deadline_s is not None and late >= _LATE:
        cases = f"in {late:.0%} of cases, because its speed is uncertain"
        text = f"misses the deadline of {format_seconds(work.deadline_s)} {cases}"
        yield Note("deadline", text, "!")
    highest = 0.0
    if outlook.costs_usd:
        highest = outlook.costs_usd[1]
    if work.total_budget is not None and highest > float(work.total_budget):
        text = (
            f"expected bill ${words.dollars(outlook.cost_usd)}; it may be"
            f" ${words.dollars(highest)} and more than ${words.plain_usd(work.total_budget)},"
            " because speed and preemptions are uncertain"
        )
        yield Note("total-budget", text, "!")


def _besides_vms(r: Recommendation, request: PlanRequest) -> Iterator[Note]:
    bill = r.bill
    if bill is None:
        return
    limits = []
    if bill.total_usd_per_hour > request.budget and not request.derives_budget:
        limits.append(f"${words.plain_usd(request.budget)}/h")
    budget = request.work.total_budget if request.work else None
    if budget is not None and r.whole_usd is not None and r.whole_usd > budget:
        limits.append(f"${words.plain_usd(budget)}")
    if not bill.items or not (limits or request.extras.given):
        return
    left = ", ".join(part.name for part in bill.not_counted if not part.included)
    total = words.rate(bill.total_usd_per_hour)
    if r.whole_usd is not None:
        total += f" and ${words.dollars(r.whole_usd)}"
    names = ", ".join(item.name for item in bill.items)
    text = f"besides VMs: {words.about(bill)}{words.amount(bill, '')} ({names}), {total} in all"
    if limits:
        text += f", more than {' and '.join(limits)}"
    if left:
        text += f"; without {left}"
    yield Note("bill", text, "!" if limits else "")
