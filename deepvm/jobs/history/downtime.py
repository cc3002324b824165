"""Downtime of the controller: the computer slept, or it was gone until ``deepvm jobs resume``.

Machines may have trained on, saved and ended meanwhile, or have slept, too; no controller saw
it. The next one records for how long; how many steps were done in that time follows
from the job's samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import EventRow, Sample

DOWNTIME = "downtime"
"""The kind of event for controller downtime, and the cause it is counted under."""
LEAST_S = 5.0
"""Shorter ones do not count: another controller was started at once, or the computer was busy."""


@dataclass(frozen=True)
class Downtime:
    """A time without a controller; ``steps``: how many were done in it, as far as is known."""

    since_s: float
    until_s: float
    steps: int = 0

    @property
    def span_s(self) -> float:
        return self.until_s - self.since_s

    def idle_s(self, step_s: float) -> float:
        """How much of it nothing was trained in, if a step takes so long."""
        return max(self.span_s - self.steps * step_s, 0.0)


Downtimes: TypeAlias = Sequence[Downtime]
Phase: TypeAlias = tuple[str, float, float]
"""A cause, or what a machine did, from when to when."""


def downtimes(events: Iterable[EventRow], samples: Sequence[Sample]) -> list[Downtime]:
    """All of a job, in order."""
    found = [(float(e.facts["since_s"]), e.at_s) for e in events if e.kind == DOWNTIME]
    return [
        Downtime(since_s, until_s, _steps(samples, since_s, until_s)) for since_s, until_s in found
    ]


def _steps(samples: Sequence[Sample], since_s: float, until_s: float) -> int:
    """Steps done in a downtime, interpolated from the samples before and after it.

    Samples of a long job are minutes apart.
    """
    before = next((s for s in reversed(samples) if s.at_s <= since_s), Sample(since_s, 0, 0))
    # Heartbeats come a moment after the controller: until then its samples repeat what it knew.
    after = next((s for s in samples if s.at_s >= until_s and s.step != before.step), None)
    if after is None or after.at_s <= before.at_s:
        return 0
    return max(
        round((after.step - before.step) * (until_s - since_s) / (after.at_s - before.at_s)), 0
    )


def last_seen_s(world: JobState, samples: Sequence[Sample]) -> float:
    """When the controller that wrote this was there last."""
    return max([world.now_s, *(s.at_s for s in samples[-1:])])


def caught_up(world: JobState, samples: Sequence[Sample]) -> JobState:
    """Add the steps that the controller did not record, as nothing followed from them."""
    last = samples[-1] if samples else None
    if (
        last is None
        or last.generation != world.generation
        or world.peak is not None
        or last.step <= world.reached
    ):
        return world
    # Where it was unknown when a step was reached, trainers had stood still.
    return replace(
        world, reached=last.step, reached_s=None if world.reached_s is None else last.at_s
    )


def cut(stretches: Iterable[Phase], without: Downtimes) -> Iterator[Phase]:
    """Split stretches so that the parts within a downtime count as downtime."""
    for cause, from_s, to_s in stretches:
        for one in without:
            since_s = max(one.since_s, from_s)
            until_s = min(one.until_s, to_s)
            if since_s < until_s:
                yield cause, from_s, since_s
                yield DOWNTIME, since_s, until_s
                from_s = until_s
        yield cause, from_s, to_s
