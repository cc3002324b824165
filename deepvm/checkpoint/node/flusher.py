"""Write complete versions to the store, oldest first, and delete what retention lets go.

While none waits, a large one is written as it arrives, so that the disk has most of it when its
last byte comes. This is given up for anything that needs the disk or the memory more; the version
is then written once it is complete.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from deepvm.checkpoint.format.checksums import seal
from deepvm.checkpoint.format.crc_combine import PieceSums
from deepvm.checkpoint.node.eviction import VersionMemory
from deepvm.checkpoint.node.versions import State, Version
from deepvm.checkpoint.tiers.base import Store
from deepvm.errors import CheckpointError

_LOG = logging.getLogger(__name__)
_FIRST_RETRY_S, _LAST_RETRY_S, _DOUBLINGS = 0.5, 30.0, 16  # more doublings would overflow one day
_MOST_JOBS = 10_000
# Failures in a row after which a job's senders need not wait for the disk; one may be an
# accident
_STUCK = 3
LEAST_BYTES = 32 * 2**20  # smaller versions are not written early: it would save too little
_SILENCE_S = 1.0
_POLL_S = 0.004  # settling a piece wakes no thread: that would cost more than the piece


class Flusher(threading.Thread):
    """One thread.

    A version that cannot be written stays in memory and is retried, after those of other jobs.
    """

    def __init__(self, memory: VersionMemory, store: Store, *, keep: int, every: int = 0) -> None:
        """For ``keep`` and ``every`` see :func:`deepvm.checkpoint.files.retention.kept`."""
        super().__init__(name="deepvm-flusher", daemon=True)
        self._memory = memory
        self._store = store
        self._keep = keep
        self._every = every
        self._recent: dict[str, list[int]] = {}
        # Of a job: failures in a row, and when the last was, monotonic
        self._failed: dict[str, tuple[int, float]] = {}
        self.times: dict[str, Any] = {"flushed": 0, "failed": 0, "last_error": ""}
        self.times |= {"last_s": 0.0, "total_s": 0.0, "longest_s": 0.0}

    def run(self) -> None:
        while True:
            now = time.monotonic()
            resting = {
                job: left_s for job in self._failed if (left_s := self._retry_at(job) - now) > 0
            }
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

    def _retry_at(self, job: str) -> float:
        """When a job is retried (monotonic): exponential backoff, shorter while the node stops."""
        failures, since = self._failed[job]
        if self._memory.stopping:
            most = _FIRST_RETRY_S
        else:
            most = _LAST_RETRY_S
        return since + min(_FIRST_RETRY_S * 2.0 ** min(failures - 1, _DOUBLINGS), most)

    def _note(self, job: str, done: bool) -> None:
        """Note whether a job's version could be written, and tell waiting senders."""
        failures, _ = self._failed.pop(job, (0, 0.0))
        if not done:
            self._failed[job] = failures + 1, time.monotonic()
            if failures + 1 == _STUCK:
                self._memory.disk_fails(job, self.times["last_error"][:300])
        elif failures >= _STUCK:
            self._memory.disk_fails(job, "")

    def _write(self, version: Version) -> bool | None:
        """Write a version.

        Returns whether that worked, None if it was put off until it is complete.
        """
        begin = time.monotonic()
        partial = None
        try:
            if version.state is State.COMPLETE:
                self._put(version, [version.index.layout.size])
            else:
                partial = PartialVersion(self._memory, version)
                self._put(version, partial.final())
                begin = partial.complete_s
        except Exception as error:
            # Of any kind: the next version may work, and nothing else would report it
            if partial is not None and (isinstance(error, GivenUpError) or not partial.complete_s):
                _LOG.info(
                    "version %d of %s is written when it is complete: %s",
                    version.number,
                    version.job,
                    error,
                )
                return None
            self.times["failed"] += 1
            self.times["last_error"] = str(error)
            trace = not isinstance(error, CheckpointError)
            _LOG.error(
                "version %d of %s stays in memory: %s",
                version.number,
                version.job,
                error,
                exc_info=trace,
            )
            return False
        took = time.monotonic() - begin
        self.times["flushed"] += 1
        self.times["last_s"] = took
        self.times["longest_s"] = max(took, self.times["longest_s"])
        self.times["total_s"] += took
        self._memory.flushed(version)
        _LOG.info("version %d of %s is on disk, %.3f s", version.number, version.job, took)
        self._retain(version)
        return True

    def _put(self, version: Version, final: Iterable[int]) -> None:
        self._store.write(
            version.image, version.job, version.number, final, lambda: version.manifest
        )

    def _retain(self, version: Version) -> None:
        """Delete a job's checkpoints that policy, peers and the latest writes do not need.

        The last written are not the newest when a run starts again from an earlier version; they
        were acknowledged a moment ago. Nodes with other parts of the same versions need what the
        slowest of them has on its disk.
        """
        recent = self._recent.setdefault(version.job, [])
        if len(self._recent) > _MOST_JOBS:  # the first of them is long done
            del self._recent[next(iter(self._recent))]
        if version.number in recent:
            recent.remove(version.number)
        recent.append(version.number)
        del recent[: -self._keep]
        try:
            old = self._store.expired(
                version.job, self._store.versions(version.job), self._keep, self._every
            )
            with self._memory.changed:
                job = self._memory.jobs.get(version.job)
                hold = job.hold if job is not None else None
            for number in old - set(recent):
                if hold is None or number < hold:
                    self._store.delete(version.job, number)
        except Exception as error:
            # Of any kind: the versions that wait must be written all the same
            trace = not isinstance(error, CheckpointError)
            _LOG.warning("old versions of %s stay: %s", version.job, error, exc_info=trace)


class GivenUpError(CheckpointError):
    """The version will not be written now."""


class PartialVersion:
    """The bytes of a version, from the first on, as they become final."""

    def __init__(self, memory: VersionMemory, version: Version) -> None:
        self._memory = memory
        self._version = version
        self._renewed = version.renewed
        self._verified = 0
        self._pieces_read = 0
        self._sums = PieceSums(version.image)
        self.complete_s = 0.0

    def final(self) -> Iterator[int]:
        """Yield how many bytes from the start are final.

        Once all are, ``complete_s`` is when that was, monotonic.

        Raises GivenUpError: nothing arrives, it will not become complete, or a complete version
        waits for the disk.
        """
        size = self._version.index.layout.size
        for end in seal(
            self._version.image, self._version.index.layout, ready=self._wait, summed=self._sums.of
        ):
            if end < size:
                yield end
        with self._memory.changed:
            self._check()
            while self._version.state is not State.COMPLETE:
                self._memory.changed.wait(_SILENCE_S)
                self._check()
        self.complete_s = time.monotonic()
        yield size

    def _wait(self, end: int) -> None:
        """Wait until the bytes below ``end`` are verified."""
        # Most of a thousand records; whether the bytes still count is asked at the end
        if end <= self._verified:
            return
        version = self._version
        last = time.monotonic()
        with self._memory.changed:
            self._check()
            while self._verified < end:
                complete = version.state is State.COMPLETE
                if complete:
                    verified = version.index.layout.size
                else:
                    verified = version.reach(self._verified)
                if verified > self._verified:
                    self._verified = verified
                    last = time.monotonic()
                elif time.monotonic() > last + _SILENCE_S:
                    raise GivenUpError(f"no more of version {version.number} arrives")
                else:
                    self._memory.changed.wait(_POLL_S)
                    self._check()
            self._sums.add(version.pieces[self._pieces_read :])
            self._pieces_read = max(self._pieces_read, len(version.pieces))

    def _check(self) -> None:
        """Raise GivenUpError if it is time to give up; the caller has the lock."""
        version = self._version
        if version.renewed != self._renewed:
            raise GivenUpError(f"parts of version {version.number} were sent again")
        if version.state is State.COMPLETE:
            return
        if version.state is State.DROPPED or self._memory.closed or self._memory.given_up(version):
            raise GivenUpError(f"version {version.number} will not be complete")
        if self._memory.queue:
            raise GivenUpError("complete versions go first")
