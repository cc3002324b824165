"""What controllers write down: what events have changed, and how far the job is at which time."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields, replace
from itertools import pairwise

from deepvm.core.json_types import JsonDict
from deepvm.core.units import format_seconds
from deepvm.errors import DataError
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.markets import market_facts
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobState, KeptOutputs, MachineRecord
from deepvm.jobs.history.history import MACHINE, MARKET, STATE, EventRow, History, Sample
from deepvm.jobs.loggers import jobs_log as log

_ENDS = (Machine.SUSPECT, Machine.LOST, Machine.ENDED)
# Fields that the next heartbeats say again; machines are compared one by one
_REPEATED = frozenset(
    ("now_s", "reached", "reached_s", "facts", "pace", "pulse", "between", "machines", "cold")
)
# What histories of earlier releases call these events
_RECORDED: dict[type[d.Event], str] = {
    d.MetadataUnavailable: "deaf",
    d.CheckpointDurable: "lasts",
    d.CheckpointOnAnchorOnly: "alone",
    d.FaultInjected: "struck",
}


def has_changed(before: JobState, world: JobState) -> bool:
    """Whether anything has but what the next heartbeats say again."""
    names = [one.name for one in fields(JobState) if one.name not in _REPEATED]
    if any(getattr(before, name) != getattr(world, name) for name in names):
        return True
    if before.machines.keys() != world.machines.keys():
        return True
    changed = [
        (m, world.machines[key])
        for key, m in before.machines.items()
        if m is not world.machines[key]
    ]
    return any(replace(a, heard_s=b.heard_s, silent_s=b.silent_s) != b for a, b in changed)


def changed_states(before: JobState, world: JobState) -> list[str]:
    """The states that are new, by the names of their points."""
    found = [f"machine.{m.state.value}" for m in _in_new_state(before, world)]
    if before.job is not world.job:
        found.insert(0, f"job.{world.job.value}")
    return found


def _in_new_state(before: JobState, world: JobState) -> Iterator[MachineRecord]:
    for key, machine in world.machines.items():
        known = before.machines.get(key)
        if known is None or known.state is not machine.state:
            yield machine


def _facts(event: d.Event, before: JobState) -> JsonDict:
    found = asdict(event)
    terms = before.terms
    if isinstance(event, d.Refused) and not (before.blocked or before.formed or terms.bought):
        found["why"] += f"; gives up after {format_seconds(terms.give_up_s)} without a machine"
    if "reason" in found:
        found["reason"] = found["reason"].value
    if isinstance(event, d.Failed) and event.lines is None:
        del found["lines"]
    return found


def rows_of(before: JobState, world: JobState, events: Iterable[d.Event]) -> list[EventRow]:
    """What is written down of events and of what follows from them."""
    rows = [(_RECORDED.get(type(e), type(e).__name__.lower()), _facts(e, before)) for e in events]
    for m in _in_new_state(before, world):
        if m.state in _ENDS:
            rows.append((MACHINE, {"id": m.id, "state": m.state.value, "why": m.end_reason}))
    rows += [
        ("preparing", {"id": key, "doing": doing})
        for key, (doing, _) in sorted(world.preparing.items() - before.preparing.items())
        if doing
    ]
    if before.pulse.hung_s != world.pulse.hung_s:
        hung = {"why": world.pulse.why, "version": world.version, "again": not world.job.over}
        hung |= {"since_s": before.pulse.since_s, "generation": before.generation}
        rows.append(("hung", hung))
    failed = world.failed_saves
    if failed.total != before.failed_saves.total and "unsaved" not in dict(rows):
        asked = {"reason": before.save.reason.value} if before.save else {}
        rows.append(("unsaved", {**asked, "why": failed.why}))
    for key, kept in world.outputs.items():
        if kept.why and before.outputs.get(key, KeptOutputs()).why != kept.why:
            rows.append(("unkept", {"id": key, "why": kept.why}))
    if before.on_demand != world.on_demand:
        rows.append((MARKET, market_facts(world)))
    if before.job is not world.job and not rows:
        rows.append((STATE, {}))
    state = world.job.value
    if not rows:
        return []
    now: JsonDict = {"generation": world.generation, "steps": world.steps}
    now |= {"step_s": float(world.facts.step_s), "usd": round(world.usd, 8)}
    return [EventRow(world.now_s, kind, state, {**now, **facts}) for kind, facts in rows]


FIRST_S = 0.25  # Between samples of a job that has just started
# Samples of a job, about; up to three times as many where steps are lost again and again
MOST = 1200
# Samples of so long are written together; a controller that is killed loses no more of them
FLUSH_S = 2.0


def spacing_s(span_s: float) -> float:
    """Seconds between samples after ``span_s``: doubled until there are at most ``MOST``."""
    spacing = FIRST_S
    while span_s > MOST * spacing:
        spacing *= 2
    return spacing


def edges(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The last sample before steps were lost and the next one, so that plots show a drop."""
    for one, other in pairwise(samples):
        if other.step < one.step:
            yield from (one, other)


def thinned(samples: list[Sample], spacing: float) -> list[Sample]:
    """Those that are to stay, at least ``spacing`` seconds apart but for the edges and the last."""
    kept = set(edges(samples))
    if len(kept) > MOST:
        kept = set()
    found = []
    last_s = float("-inf")
    for sample in samples:
        if sample.at_s - last_s >= spacing:
            last_s = sample.at_s
        elif sample not in kept and sample is not samples[-1]:
            continue
        found.append(sample)
    return found


class Sampler:
    """Takes the samples of one job, and writes them down now and then."""

    def __init__(self, history: History, job: str) -> None:
        self._history = history
        self._job = job
        self._samples = history.samples(job)
        self._written = len(self._samples)
        self._spacing = spacing_s(self._span_s)
        self._seen: Sample | None = None
        self._flushed_s = float("-inf")

    @property
    def _span_s(self) -> float:
        if self._samples:
            return self._samples[-1].at_s - self._samples[0].at_s
        return 0.0

    def take(self, world: JobState) -> None:
        before = self._seen
        now = self._seen = Sample(world.now_s, world.generation, world.steps)
        last = self._samples[-1] if self._samples else None
        fallen = False
        if before is not None and now.step < before.step:
            fallen = True
            if before is not last:
                self._samples.append(before)
        if last is None or fallen or now.at_s - last.at_s >= self._spacing:
            self._samples.append(now)
        if now.at_s - self._flushed_s >= FLUSH_S:
            self._flush(now.at_s)

    def close(self) -> None:
        if self._seen is not None and self._samples[-1] is not self._seen:
            self._samples.append(self._seen)
        self._flush(self._samples[-1].at_s if self._samples else 0.0)

    def _flush(self, now_s: float) -> None:
        self._flushed_s = now_s
        spacing = spacing_s(self._span_s)
        if spacing > self._spacing or len(self._samples) > 3 * MOST:
            self._spacing = spacing
            self._written = 0
            self._samples = thinned(self._samples, spacing)
        new = self._samples[self._written :]
        if not new:
            return
        try:
            self._history.add_samples(self._job, new, instead=not self._written)
        except DataError as error:
            # A disk that is full, a lock: they are written with the next ones
            log.debug("%s", error)
            return
        self._written = len(self._samples)
