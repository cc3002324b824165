"""Write complete checkpoints to the store, oldest first, and delete what retention drops.

While none waits, a large one is written as it arrives, unless anything needs disk or memory more.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from deepvm.checkpoint.format.checksums import PieceSums, seal
from deepvm.checkpoint.format.manifest import NewVersion
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import State, Version
from deepvm.checkpoint.tiers.base import Store
from deepvm.errors import CheckpointError

_LOG = logging.getLogger(__name__)
_FIRST_RETRY_S, _LAST_RETRY_S, _DOUBLINGS = 0.5, 30.0, 16  # more doublings would overflow one day
_MOST_JOBS = 10_000
# Failures in a row after which a job's senders need not wait for the disk
_STUCK = 3
LEAST_BYTES = 32 * 2**20  # smaller checkpoints are not written early: it would save too little
_SILENCE_S = 1.0
_POLL_S = 0.004  # settling a piece wakes no thread: that would cost more than the piece


class Flusher(threading.Thread):
    """One thread. A checkpoint that cannot be written stays in memory and is retried later."""

    def __init__(self, memory: VersionRegistry, store: Store, *, keep: int, every: int = 0) -> None:
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
        failures, since = self._failed[job]
        most = _LAST_RETRY_S
        if self._memory.stopping:
            most = _FIRST_RETRY_S
        return since + min(_FIRST_RETRY_S * 2.0 ** min(failures - 1, _DOUBLINGS), most)

    def _note(self, job: str, done: bool) -> None:
        failures, _ = self._failed.pop(job, (0, 0.0))
        if not done:
            self._failed[job] = failures + 1, time.monotonic()
            if failures + 1 == _STUCK:
                self._memory.disk_fails(job, self.times["last_error"][:300])
        elif failures >= _STUCK:
            self._memory.disk_fails(job, "")

    def _write(self, version: Version) -> bool | None:
        """Whether that worked; None: put off until the checkpoint is complete."""
        begin = time.monotonic()
        label = f"version {version.number} of {version.job}"
        partial = None
        try:
            if version.state is State.COMPLETE:
                self._put(version, [version.index.layout.size])
            else:
                partial = PartialVersion(self._memory, version)
                self._put(version, partial.final())
                begin = partial.complete_s
        except Exception as error:
            # Of any kind: the next checkpoint may work, and nothing else would report it
            if partial is not None and (isinstance(error, GivenUpError) or not partial.complete_s):
                _LOG.info("%s is written when it is complete: %s", label, error)
                return None
            self.times["failed"] += 1
            self.times["last_error"] = str(error)
            trace = not isinstance(error, CheckpointError)
            _LOG.error("%s stays in memory: %s", label, error, exc_info=trace)
            return False
        took = time.monotonic() - begin
        self.times["flushed"] += 1
        self.times["last_s"] = took
        self.times["longest_s"] = max(took, self.times["longest_s"])
        self.times["total_s"] += took
        self._memory.flushed(version)
        _LOG.info("%s is on disk, %.3f s", label, took)
        self._retain(version)
        return True

    def _put(self, version: Version, final: Iterable[int]) -> None:
        self._store.write(
            NewVersion(version.image, version.job, version.number, final, lambda: version.manifest)
        )

    def _retain(self, version: Version) -> None:
        # The last written are not the newest when a run starts again from an earlier checkpoint.
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
            # Of any kind: the checkpoints that wait must be written all the same
            trace = not isinstance(error, CheckpointError)
            _LOG.warning("old checkpoints of %s stay: %s", version.job, error, exc_info=trace)


class GivenUpError(CheckpointError):
    """The checkpoint will not be written now."""


class PartialVersion:
    """The bytes of a checkpoint, from the first on, as they become final."""

    def __init__(self, memory: VersionRegistry, version: Version) -> None:
        self._memory = memory
        self._version = version
        self._renewed = version.renewed
        self._verified = 0
        self._pieces_read = 0
        self._sums = PieceSums(version.image)
        self.complete_s = 0.0  # monotonic: when all bytes were final

    def final(self) -> Iterator[int]:
        """Yield how many bytes are final. Raises GivenUpError: others need the disk more."""
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
        # Most of a thousand records; whether the bytes still count is asked at the end
        if end <= self._verified:
            return
        version = self._version
        last = time.monotonic()
        with self._memory.changed:
            self._check()
            while self._verified < end:
                verified = version.reach(self._verified)
                if version.state is State.COMPLETE:
                    verified = version.index.layout.size
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
            raise GivenUpError("complete checkpoints go first")
