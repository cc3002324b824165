"""How far a job was at which time: a series for its page, coarser the longer the job takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import pairwise

from deepvm.errors import DataError
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import History, Sample

FIRST_S = 0.25
"""Between samples of a job that has just started."""
MOST = 1200
"""Samples of a job, about; up to three times as many where steps are lost again and again."""
FLUSH_S = 2.0
"""Samples of so long are written together; a controller that is killed loses no more of them."""

log = logging.getLogger("deepvm.jobs")


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
    found: list[Sample] = []
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
        """Go on with what an earlier controller has written."""
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
        """Look at a job; more often than a sample is wanted is harmless."""
        before = self._seen
        now = Sample(world.now_s, world.generation, world.steps)
        self._seen = now
        last = self._samples[-1] if self._samples else None
        fallen = before is not None and now.step < before.step
        if fallen and before is not None and before is not last:
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
