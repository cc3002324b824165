"""Write complete versions to the store, oldest first, and delete what retention lets go.

While none waits, a large one is written as it arrives, see :mod:`deepvm.checkpoint.node.partial_version`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from deepvm.checkpoint.files.retention import kept_of, outdated
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.node.eviction import VersionMemory
from deepvm.checkpoint.node.partial_version import LEAST_BYTES, GivenUpError, PartialVersion
from deepvm.checkpoint.node.versions import State, Version
from deepvm.checkpoint.tiers.store import Store
from deepvm.errors import CheckpointError

_LOG = logging.getLogger(__name__)
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0
_MOST_JOBS = 10_000
_STUCK = 3
"""Failures in a row after which nobody of a job is left to wait for the disk."""


@dataclass
class FlushTimes:
    """Flush statistics, in seconds."""

    flushed: int = 0
    failed: int = 0
    last_s: float = 0.0
    total_s: float = 0.0
    longest_s: float = 0.0
    last_error: str = ""


@dataclass
class _Backoff:
    """A job to retry later: ``pause_s`` after ``since`` (monotonic); ``failures`` in a row."""

    since: float
    pause_s: float
    failures: int = 1


class _LaterError(CheckpointError):
    """Writing a version before it was complete came to nothing; that is no failure yet."""


class Flusher:
    """One thread; a version that cannot be written stays in memory, and is tried again, other jobs' before it."""

    def __init__(self, memory: VersionMemory, store: Store, *, keep: int, every: int = 0) -> None:
        """Wait for ``start``.

        Args:
            memory: where versions come from.
            store: where they go.
            keep: newest versions of each job that stay there.
            every: also one for each so many steps; 0 for none.
        """
        self._memory, self._store, self._keep, self._every = memory, store, keep, every
        self._recent: dict[str, list[int]] = {}
        self._backoffs: dict[str, _Backoff] = {}
        self._times = FlushTimes()
        self._thread = threading.Thread(target=self._run, name="deepvm-flusher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, limit_s: float) -> None:
        """Wait for the thread's end, after the memory was closed."""
        self._thread.join(limit_s)

    @property
    def times(self) -> Mapping[str, object]:
        """What flushing took so far."""
        return asdict(self._times)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            left = {job: self._end(rest) - now for job, rest in self._backoffs.items()}
            resting = {job: left_s for job, left_s in left.items() if left_s > 0}
            early = LEAST_BYTES if self._store.fills else None
            version = self._memory.next_flush(min([1.0, *resting.values()]), resting, early)
            if version is None:
                if self._memory.closed:
                    return
                continue
            try:
                done = self._write(version)
            finally:
                self._memory.unpin(version)
            if done is not None:
                self._note(version.job, done)

    def _note(self, job: str, done: bool) -> None:
        """Back off from a job whose version could not be written, longer each time."""
        before = self._backoffs.pop(job, None)
        if done:
            if before is not None and before.failures >= _STUCK:
                self._memory.disk_fails(job, "")
            return
        rest = _Backoff(time.monotonic(), _FIRST_RETRY_S)
        if before is not None:
            rest = replace(rest, pause_s=min(2 * before.pause_s, _LAST_RETRY_S), failures=before.failures + 1)
        self._backoffs[job] = rest
        if rest.failures == _STUCK:  # once may be an accident; what is tried again may work after all
            self._memory.disk_fails(job, self._times.last_error[:300])

    def _end(self, rest: _Backoff) -> float:
        """When a job is tried again; sooner once the node is stopping."""
        return rest.since + (min(rest.pause_s, _FIRST_RETRY_S) if self._memory.stopping else rest.pause_s)

    def _write(self, version: Version) -> bool | None:
        """Write a version; returns whether that was done, None where it was given up for now."""
        begin = time.monotonic()
        try:
            if version.state is not State.COMPLETE:
                begin = self._write_early(version)
            else:
                assert version.manifest is not None
                self._store.write(version.image, version.manifest)
        except _LaterError as error:
            _LOG.info("version %d of %s is written when it is complete: %s", version.number, version.job, error)
            return None
        except Exception as error:  # whatever it is, the next version may work, and nobody else would say it
            self._times.failed += 1
            self._times.last_error = str(error)
            expected = isinstance(error, CheckpointError)
            _LOG.error(
                "version %d of %s stays in memory: %s", version.number, version.job, error, exc_info=not expected
            )
            return False
        took = time.monotonic() - begin
        self._times.flushed += 1
        self._times.last_s, self._times.longest_s = took, max(took, self._times.longest_s)
        self._times.total_s += took
        self._memory.flushed(version)
        _LOG.info("version %d of %s is on disk, %.3f s", version.number, version.job, took)
        self._retain(version)
        return True

    def _write_early(self, version: Version) -> float:
        """Write a version while it comes; returns when it was complete, monotonic.

        Raises:
            _LaterError: that was given up, or failed before it was complete.
        """
        partial = PartialVersion(self._memory, version)

        def manifest() -> Manifest:
            assert version.manifest is not None  # it is complete, or this is not asked
            return version.manifest

        try:
            self._store.write_filling(version.image, version.job, version.number, partial.final(), manifest)
        except Exception as error:
            if isinstance(error, GivenUpError) or not partial.complete_s:
                raise _LaterError(str(error)) from error
            raise
        return partial.complete_s

    def _retain(self, version: Version) -> None:
        """Delete old versions of a job: all but what the policy keeps, and the last that were written.

        The two differ when a run starts again from an earlier version: what was acknowledged a moment ago must not go
        because an earlier run went further. And where other nodes have other parts of the same versions, what the
        slowest of them has on its disk must not go either.
        """
        recent = self._recent.setdefault(version.job, [])
        if len(self._recent) > _MOST_JOBS:  # of the first of them nobody is in the middle any more
            del self._recent[next(iter(self._recent))]
        if version.number in recent:
            recent.remove(version.number)
        recent.append(version.number)
        del recent[: -self._keep]
        try:
            found = self._store.versions(version.job)
            hold = self._memory.held(version.job)
            numbers = {m.version for m in found}
            old = numbers - kept_of(found, self._keep, self._every)
            old |= outdated(numbers, self._store.unrecorded(version.job), self._keep, self._every)
            for number in old - set(recent):
                if hold is None or number < hold:
                    self._store.delete(version.job, number)
        except Exception as error:  # whatever it is, those behind it must be written all the same
            expected = isinstance(error, CheckpointError)
            _LOG.warning("old versions of %s stay: %s", version.job, error, exc_info=not expected)
