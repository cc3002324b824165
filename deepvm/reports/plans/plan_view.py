"""An answer as all renderings show it: screen, report, page. Sentences: plan_report.txt.j2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from deepvm.catalog.clouds import cloud_of
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType, Quota
from deepvm.core.cluster.known_lives import history_words
from deepvm.core.cluster.provenance import Origin
from deepvm.core.training.workload import Method, Scaling, Workload
from deepvm.core.units import counted, format_bytes, format_seconds
from deepvm.planner.infeasible import ALLOWED_BY, BY_NAME
from deepvm.planner.recommend import NextChange, Recommendations
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective, PolicyName
from deepvm.reports.plans import words
from deepvm.reports.plans.notes import Note, Row, notes_of, rows_of, steps_of
from deepvm.reports.plans.sources import (
    doubts,
    known_age,
    placement_lines,
    source_lines,
    vcpus_of,
)
from deepvm.reports.text import short

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement

_HOW = {Method.DDP: "data parallel", Method.FSDP: "sharded", Method.LORA: "LoRA"}
_BEST_BY = {
    Objective.THROUGHPUT: "fastest training",
    Objective.FLOPP: "most operations per dollar (Z)",
    Objective.COST_PER_WORK: "cheapest work",
    Objective.MAKESPAN: "shortest expected time",
    Objective.TOTAL_COST: "lowest expected bill",
}
_NAMED = 6
"""Types named for one reason, at most."""


@dataclass(frozen=True)
class PlanView:
    """What there is to show of the best region's answer, and of the others.

    Attributes:
        rows: plans of the screen with their labels. notes: facts about the first plan.
        placement: the cloud's scores, if asked for. assumed: the model is the default.
    """

    found: Comparison
    now: datetime
    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
    placement: Placement | None = None
    assumed: bool = False

    @classmethod
    def of(
        cls,
        found: Comparison,
        now: datetime,
        placement: Placement | None = None,
        *,
        assumed: bool = False,
    ) -> PlanView:
        """The view of an answer; an infeasible one has no rows and notes."""
        answer = found.answers[0]
        rows = rows_of(answer)
        notes = notes_of(answer, rows, now) if rows else ()
        return cls(found, now, tuple(rows), tuple(notes), placement, assumed)

    @property
    def answer(self) -> Recommendations:
        """The answer of the best region."""
        return self.found.answers[0]

    @property
    def first(self) -> Recommendation:
        """The first plan."""
        return self.answer[0]

    @property
    def catalog(self) -> Catalog:
        """The best region's."""
        return self.answer.catalog

    @property
    def workload(self) -> Workload | None:
        """What is trained; None where eFLOPS are counted."""
        training = self.answer.request.training
        return training.workload if training else None

    def about(self, *kinds: str) -> list[Note]:
        """The notes of some kinds."""
        return [note for note in self.notes if note.kind in kinds]

    @property
    def title(self) -> str:
        """What is trained, in a line."""
        workload = self.workload
        assert workload is not None
        model = workload.model
        parts = [f"{model.name}{' (assumed; --model names yours)' if self.assumed else ''}"]
        parts.append(_HOW[workload.method])
        predictions = [r.prediction for _, r in self.rows if r.prediction]
        if predictions:
            parts.append(" or ".join(dict.fromkeys(p.precision for p in predictions)))
        if model.sequence > 1 and model.unit != "images":
            parts.append(f"{model.sequence} tokens")
        whole = workload.scaling is Scaling.STRONG
        parts.append(f"batch {workload.batch:.10g} {'in all' if whole else 'a GPU'}")
        if workload.samples is not None:
            amount = short(workload.samples * model.units_per_sample).replace("G", "B")
            parts.append(f"{amount} {model.unit}")
        text = ", ".join(parts)
        if not predictions or workload.method is Method.DDP:
            return text
        sizes = (workload.state_bytes, predictions[0].state_bytes)
        state, each = (format_bytes(round(float(f"{size:.3g}"))) for size in sizes)
        return f"{text}; state {state}" + (f", {each} a GPU" if each != state else "")

    @property
    def request(self) -> str:
        """What was asked for, in a sentence without its full stop."""
        request, work = self.answer.request, self.answer.request.work
        limits = [f"at most {words.plain_usd(request.budget)} $/h"]
        if work is not None and work.deadline_s is not None:
            limits.append(f"expected within {format_seconds(work.deadline_s)}")
        if work is not None and work.total_budget is not None:
            limits.append(f"expected to cost at most {words.plain_usd(work.total_budget)} $")
        policy = f"policy {request.policy.value}"
        best_by = _BEST_BY[request.objective] if request.has_objective else policy
        if request.has_objective and request.policy is not PolicyName.DEEPVM:
            best_by += f", {policy}"
        size = format_bytes(request.checkpoint_bytes)
        needs = f"memory nodes for {request.buffers} x {size}"
        if self.workload is not None:
            needs = f"a checkpoint is {size}"
        return f"Clusters for {', '.join(limits)}: {best_by}; {needs}"

    def regions(self) -> Iterator[str]:
        """What the other regions have, one line for each."""
        for answer in self.found.answers[1:]:
            region = f"Region {self.found.place(answer.catalog)}"
            if not answer:
                reason = answer.infeasible.reason if answer.infeasible else "nothing is feasible"
                yield f"{region}: {reason}."
                continue
            r, best = answer[0], self.first.throughput
            less = f", {1 - r.throughput / best:.1%} less throughput" if best > r.throughput else ""
            yield f"{region}: {r.cluster} at {words.exact_usd(r.usd_per_hour)}{less}."

    def speed_of(self, r: Recommendation) -> str:
        """``1270 images/s``, ``throughput 238.8``."""
        if self.workload is not None:
            return f"{short(r.throughput)} {self.workload.units}"
        return f"throughput {words.format_work(r.throughput)}"

    def cost_of_work(self, r: Recommendation) -> str:
        """``0.575 $ per 1M images``."""
        if self.workload is not None:
            return f"{words.usd_per_million(r)} $ per 1M {self.workload.model.unit}"
        return f"{words.usd_per_work(r.usd_per_work)} $/h per eFLOPS"

    def gain(self, change: NextChange) -> str:
        """What more money does."""
        if change.gain is None:
            return "buys"
        if self.answer.request.policy is not PolicyName.DEEPVM:
            return f"changes the throughput by {change.gain:+.1%}"
        return words.gain_words(change.gain, self.answer.request.objective)

    def history(self, gpu: InstanceType) -> str:
        """How long such VMs lived by the user's history."""
        return history_words(gpu.name, gpu.known_life) if gpu.known_life else ""

    @property
    def speedup_of_one(self) -> float:
        """S(1) of the first plan's VMs: 0 where one does not hold the model."""
        curve = self.first.cluster.gpu.curve(self.first.speedup_kind)
        return float(curve.speedup(np.array([1.0]))[0]) if curve else 1.0

    @property
    def steps(self) -> int | None:
        """Steps of the whole job."""
        return steps_of(self.first, self.answer.request)

    @property
    def left_out(self) -> dict[str, list[str]]:
        """Types that were not considered by reason; many without eFLOPS as their GPUs."""
        reasons: dict[str, list[str]] = {}
        for rejection in self.answer.rejections:
            reasons.setdefault(rejection.reason, []).append(rejection.instance_type)
        unprofiled = reasons.get("unprofiled", [])
        if len(unprofiled) > _NAMED:
            reasons["unprofiled"] = _by_gpu(unprofiled, self.catalog)
        return reasons

    @property
    def cures(self) -> dict[str, str]:
        """How types that are left out for a reason are considered."""
        cures = dict.fromkeys(self.left_out, "")
        for reason, option in ALLOWED_BY.items():
            cures[reason] = ", or ".join(dict.fromkeys((f"'{option}'", f"'{BY_NAME}'")))
        types = {r.reason: self.catalog[r.instance_type] for r in self.answer.rejections}
        if (gpu := types.get("no-wheels")) is not None and gpu.gpu is not None:
            built = "with a PyTorch that you have built for it"
            cures["no-wheels"] = f"'--gpu {gpu.gpu.name}', {built}"
        cures["unprofiled"] = "'deepvm profile eflops --save' on such a VM measures it"
        if any(self.catalog[r.instance_type].eflops_basis for r in self.answer.rejections):
            cures["unprofiled"] += ", or '--estimates' allows estimates"
        return cures

    @property
    def doubts(self) -> list[str]:
        """What should make a reader careful with the figures."""
        return doubts(self.answer)

    @property
    def knows_lifetime(self) -> bool:
        """Whether the user has said how long a spot VM lives."""
        request = self.answer.request
        return request.life_s is not None or bool(request.work and request.work.mttp_s is not None)

    @property
    def known_quotas(self) -> dict[str, list[Quota]]:
        """The catalog's quotas of the first plan's families; empty if its GPUs have none."""
        groups, quotas = self.first.cluster.groups, self.catalog.quotas
        families = dict.fromkeys(group.instance.quota_family for group in groups)
        known = {family: [q for q in quotas if q.family == family] for family in families}
        return known if known[self.first.cluster.gpu.quota_family] else {}

    @property
    def quota_needs(self) -> list[tuple[int, str, str]]:
        """VCPUs that the first plan needs of each quota, its title and code."""
        names = cloud_of(self.catalog.name).quota_names
        needed = vcpus_of(self.first.cluster).items()
        return [(vcpus, names[q].title, names[q].code) for q, vcpus in needed if q in names]

    @property
    def placement_lines(self) -> list[str]:
        """The cloud's scores."""
        return placement_lines(self.placement)

    @property
    def source_lines(self) -> list[str]:
        """Where the prices of all regions come from, and what was measured."""
        sources = [source_lines(answer.catalog, self.now) for answer in self.found.answers]
        return list(dict.fromkeys(line for lines in sources for line in lines))

    def age_of(self, origin: Origin) -> str:
        """How old figures are."""
        return known_age(origin, self.now)

    @property
    def measure_command(self) -> str:
        """What makes the next measurement."""
        from deepvm.reports.plans.measuring import measure_command  # only then

        found, training = self.answer.next_measurement, self.answer.request.training
        return measure_command(found, training) if found and training else ""


def _by_gpu(names: Sequence[str], catalog: Catalog) -> list[str]:
    """``L4 (10 types)``, the GPUs with most types first."""
    gpus = [catalog[name].gpu for name in names]
    counts = Counter("?" if g is None else f"{g.name}{' x n' if g.count > 1 else ''}" for g in gpus)
    ordered = sorted(counts.items(), key=lambda count: (-count[1], count[0]))
    return [f"{gpu} ({counted(number, 'type')})" for gpu, number in ordered]
