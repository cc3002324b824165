"""Jobs as pages for a browser: one of them, and all."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, UNREADY, MachineRecord
from deepvm.jobs.history import timeline
from deepvm.jobs.history.history import Sample
from deepvm.jobs.standing import JobLine, JobStatus
from deepvm.records import dataclass
from deepvm.reports.documents import to_yaml
from deepvm.reports.jobs.live import words
from deepvm.reports.pages import Scale, Times, render, render_blocks

TEMPLATE = "run_page.html.j2"
_JOBS_TEMPLATE = "jobs_page.html.j2"
# Blocks of the template that may change while the job runs. :meth:`RunPage.event_rows` may, too
PARTS = [
    "head",
    "time",
    "machines",
    "machine_table",
    "steps",
    "step_table",
    "money",
    "money_table",
    "file",
    "foot",
]
MAX_EVENTS = 4000  # The newest, which a page shows; ``deepvm jobs show -o json`` has all
_MAX_BARS = 1000  # Machines that are drawn; the table has more
_ROWS = 24  # Of a table with the figures of a line
_SAVE_POSITIONS = 400  # For marks of checkpoints in the picture of steps
_MAX_BUDGET_RATIO = 3.0  # A budget that is further above the other lines is not drawn
_ENDS = {REFUSED: "refused", PREEMPTED: "taken", LOST: "gone", UNREADY: "gone"}
T = TypeVar("T")

# A machine over time, and the style of the shape at its end; empty for none
Bar = tuple[MachineRecord, list[timeline.Phase], str]


@dataclass(frozen=True)
class RunPage:
    """The page of a job."""

    job: JobStatus

    def render(self, *, nonce: str = "") -> str:
        return render(TEMPLATE, nonce=nonce, **self._data, **self._events(0))

    @cached_property
    def parts(self) -> dict[str, str]:
        parts = render_blocks(TEMPLATE, PARTS, times=self.times, **self._data)
        return {name.replace("_", "-"): text for name, text in parts.items()}

    def event_rows(self, after: int) -> str:
        return render_blocks(TEMPLATE, ["events"], **self._events(after))["events"]

    def _events(self, after: int) -> dict[str, Any]:
        newest = [e for e in self.job.events[-MAX_EVENTS:] if e.number > after]
        return {"events": newest[::-1], "times": self.times}

    @property
    def last_event(self) -> int:
        if self.job.events:
            return self.job.events[-1].number
        return 0

    @property
    def times(self) -> Times:
        world = self.job.world
        ends = [m.ended_s for m in world.machines.values() if m.ended_s is not None]
        return Times(self.job.row.created_s, max([world.now_s, *ends]))

    @cached_property
    def _data(self) -> dict[str, Any]:
        job = self.job
        document = job.document
        times = self.times
        bars = list(self._bars())
        costs = timeline.paid(job.world, times.start_s, times.end_s)
        marks = {
            (round(times.share(e.at_s) * _SAVE_POSITIONS), e.facts["reason"]): e
            for e in job.events
            if e.kind == "safe"
        }
        terms = job.world.terms
        # Documents of an older deepvm have no downtime
        spent_s = {**document["breakdown_s"], timeline.DOWNTIME: document.get("downtime_s", 0.0)}
        return {
            "job": job,
            "document": document,
            "last_event": self.last_event,
            "total": terms.steps,
            "spent_s": {cause: spent_s[cause] for cause in words().causes if cause in spent_s},
            "bars": bars,
            "kinds": {kind for _, all, end in bars for kind in (end, *(phase[0] for phase in all))},
            "step_points": [(s.at_s - times.start_s, s.step) for s in job.samples],
            "save_ticks": list(marks.values()),
            "lost": timeline.losses(job.samples),
            "Scale": Scale,
            "samples": list(self._samples()),
            "budget": terms.total_usd,
            "cost_lines": _cost_lines(costs, document["on_demand_cost_usd"], terms.total_usd),
            "costs": _thinned(costs),
            "max_events": MAX_EVENTS,
            "job_file": to_yaml(without_secrets(job.row.spec)),
        }

    def _bars(self) -> Iterator[Bar]:
        end_s = self.times.end_s
        trained = timeline.TrainingTimeline.of(self.job.events, end_s, self.job.without)
        for machine in list(self.job.world.machines.values())[-_MAX_BARS:]:
            end = _ENDS.get(machine.end_reason, "")
            if end == "taken" and machine.ended_s is None:  # it has its notice, and still lives
                end = ""
            yield machine, list(timeline.phases(machine, end_s, trained)), end

    def _samples(self) -> Iterator[tuple[Sample, int]]:
        samples = self.job.samples
        lost = {loss.at_s: loss.lost for loss in timeline.losses(samples)}
        drawn = {id(sample) for sample in _thinned(samples)}
        for sample in samples:
            if id(sample) in drawn or sample.at_s in list(lost)[-_ROWS:]:
                yield sample, lost.get(sample.at_s, 0)


def _cost_lines(
    costs: Sequence[timeline.CostPoint], on_demand_usd: float | None, budget: float | None
) -> dict[str, list[tuple[float, float]]]:
    last = costs[-1]
    lines = {"paid": [(p.x_s, p.usd) for p in costs]}
    if on_demand_usd and last.hours:
        # The report's figure, shared out by machine hours
        rate = (on_demand_usd - last.head_usd) / last.hours
        lines["demand"] = [(p.x_s, p.head_usd + p.hours * rate) for p in costs]
    # A budget that is far above the rest would make the other lines flat
    if budget is not None and budget <= _MAX_BUDGET_RATIO * max(last.usd, on_demand_usd or 0.0):
        lines["budget"] = [(0.0, budget), (last.x_s, budget)]
    return lines


def _thinned(rows: Sequence[T]) -> list[T]:
    every = max(len(rows) // _ROWS, 1)
    return [row for i, row in enumerate(rows) if i % every == 0 or i == len(rows) - 1]


def without_secrets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A job file without what is not set, and without secrets: a page is sent to others."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None and v not in ({}, [])}
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, str):
            return re.sub(r"(?<=://)[^/@\s]+@", "...@", value)
        return value

    job_file: dict[str, Any] = plain({**spec, "env": dict.fromkeys(spec.get("env") or {}, "...")})
    return job_file


@dataclass(frozen=True)
class JobsPage:
    """The page of all jobs, the newest first."""

    jobs: Sequence[JobLine]
    last_event: int = 0  # This page shows no events

    def render(self, *, nonce: str) -> str:
        return render(_JOBS_TEMPLATE, nonce=nonce, jobs=self.jobs)

    @cached_property
    def parts(self) -> dict[str, str]:
        return render_blocks(_JOBS_TEMPLATE, ["jobs"], jobs=self.jobs)

    def event_rows(self, after: int) -> str:
        return ""
