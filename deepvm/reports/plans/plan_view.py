"""An answer as all renderings show it: screen, report, page. Sentences: plan_report.txt.j2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.units import counted, format_bytes
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison
from deepvm.reports.plans.notes import Note, Row, notes_of, rows_of, steps_of
from deepvm.reports.plans.sources import (
    QuotaNeed,
    doubts,
    quota_needs,
    source_lines,
    speedup_of_one,
)
from deepvm.reports.text import short

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.core.training.workload import Workload

_HOW = {"ddp": "data parallel", "fsdp": "sharded", "lora": "LoRA"}
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
        model = workload.model
        parts = [f"{model.name}{' (assumed; --model names yours)' if self.assumed else ''}"]
        parts.append(_HOW[workload.method.value])
        predictions = [r.prediction for _, r in self.rows if r.prediction]
        if predictions:
            parts.append(" or ".join(dict.fromkeys(p.precision for p in predictions)))
        if model.sequence > 1 and model.unit != "images":
            parts.append(f"{model.sequence} tokens")
        whole = workload.scaling.value == "strong"
        parts.append(f"batch {workload.batch:.10g} {'in all' if whole else 'a GPU'}")
        if workload.samples is not None:
            amount = short(workload.samples * model.units_per_sample).replace("G", "B")
            parts.append(f"{amount} {model.unit}")
        text = ", ".join(parts)
        if not predictions or workload.method.value == "ddp":
            return text
        sizes = (workload.state_bytes, predictions[0].state_bytes)
        state, each = (format_bytes(round(float(f"{size:.3g}"))) for size in sizes)
        return f"{text}; state {state}" + (f", {each} a GPU" if each != state else "")

    @property
    def speedup_of_one(self) -> float:
        return speedup_of_one(self.first)

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
    def has_estimates(self) -> bool:
        """Whether eFLOPS of types that are left out are estimated."""
        types = (self.catalog[r.instance_type] for r in self.answer.rejections)
        return any(instance.eflops_basis for instance in types)

    @property
    def quota_needs(self) -> list[QuotaNeed]:
        """Quotas that the first plan counts against."""
        return quota_needs(self.first.cluster, self.catalog)

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
    def source_lines(self) -> list[str]:
        """Where the prices of all regions come from, and what was measured."""
        sources = [source_lines(answer.catalog, self.now) for answer in self.found.answers]
        return list(dict.fromkeys(line for lines in sources for line in lines))

    @property
    def measure_command(self) -> str:
        """What makes the next measurement."""
        from deepvm.reports.plans.measuring import measure_command  # only then

        found = self.answer.next_measurement
        training = self.answer.request.training
        if found and training:
            return measure_command(found, training)
        return ""


def _by_gpu(names: Sequence[str], catalog: Catalog) -> list[str]:
    """``L4 (10 types)``, the GPUs with most types first."""
    gpus = [catalog[name].gpu for name in names]
    counts = Counter("?" if g is None else f"{g.name}{' x n' if g.count > 1 else ''}" for g in gpus)
    ordered = sorted(counts.items(), key=lambda count: (-count[1], count[0]))
    return [f"{gpu} ({counted(number, 'type')})" for gpu, number in ordered]
