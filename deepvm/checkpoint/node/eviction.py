"""Memory for versions, and the policy by which they are evicted from it."""

from __future__ import annotations

import mmap
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterator
from itertools import chain

from deepvm.checkpoint.network.protocol import RequestRefused
from deepvm.checkpoint.node.versions import Job, State, Version

_LEAST_SLOTS = 2  # the newest complete version stays while the next one arrives
_PLENTY = 2  # complete versions of a job that stay while there is memory
_COUNTS = ("complete", "dropped", "busy", "duplicates", "damaged_pieces", "received_bytes")


class Pool:
    """Slots: page-aligned memory for a version each, allocated on demand and reused.

    The registry locks it.

    ``limit``, ``allocated``: bytes of all slots together. ``free``: unused slots.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.allocated = 0
        self.free: list[memoryview] = []

    def check(self, size: int) -> None:
        """Refuse an image of which fewer than two fit. Raises Refused."""
        count = self.limit // _pages(size)
        if count < _LEAST_SLOTS:
            raise RequestRefused(
                "layout",
                f"a version has {size} bytes and the node's memory of {self.limit} bytes holds"
                f" {count} of that size; it needs room for {_LEAST_SLOTS}: start it with --memory"
                f" {-(-_LEAST_SLOTS * _pages(size) // 2**20)}MiB or more",
            )

    def reuse(self, size: int) -> memoryview | None:
        return next(
            (self.free.pop(n) for n, slot in enumerate(self.free) if len(slot) == _pages(size)),
            None,
        )

    def take(self, size: int) -> memoryview | None:
        """A free or new slot for ``size`` bytes, None while there is no room."""
        if (slot := self.reuse(size)) is not None:
            return slot
        size = _pages(size)
        while self.allocated + size > self.limit and self.free:  # slots of an earlier layout
            self.allocated -= len(self.free.pop())
        if self.allocated + size > self.limit:
            return None
        self.allocated += size
        # No huge pages: where memory is fragmented, finding them takes ten times as long as small
        # ones do.
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class VersionMemory:
    """Versions in slots, and which of them may be evicted.

    Attributes:
        changed: the one lock; notified with every change. reading: held to read a layout.
        epochs: the newest generation of each job that has one.
        queue: complete versions that are not on disk yet, oldest first. counts: since the start.
        stopping: no new versions are accepted. closed: none becomes complete any more.
        persists: complete versions are flushed. lacks: why they are not durable then, and what to
            do about it.
        lease_s: how long a silent sender's session and unfinished versions are kept.
        identity: of this memory, whose names and addresses may be several.
    """

    def __init__(
        self,
        limit: int,
        *,
        persists: bool,
        lacks: str = "",
        lease_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty; ``limit``: bytes of all slots together, ``clock``: for tests."""
        self.identity = secrets.token_hex(8)
        self.changed = threading.Condition()
        self.jobs: dict[str, Job] = {}
        self.pool = Pool(limit)
        self.queue: list[Version] = []
        self.epochs: dict[str, int] = {}
        self.closed = self.stopping = False
        self._blocked = 0
        self.reading = threading.Lock()
        self.persists = persists
        self.lacks = lacks
        self.lease_s = lease_s
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._clock = clock

    def complete(self, job: str) -> dict[int, Version]:
        """The complete versions in memory, by number; for their bytes see :meth:`copy`."""
        with self.changed:
            if job in self.jobs:
                return dict(self.jobs[job].complete)
            return {}

    def complete_jobs(self) -> set[str]:
        with self.changed:
            return {name for name, job in self.jobs.items() if job.complete}

    def copy(self, version: Version, start: int, into: memoryview) -> bool:
        """Fill ``into`` with a version's bytes from ``start`` on.

        Returns whether they are still here.
        """
        with self.changed:
            if version.state is State.DROPPED:
                return False
            version.pins += 1
        try:
            into[:] = version.image[start : start + len(into)]
        finally:
            self.unpin(version)
        return True

    def unpin(self, version: Version) -> None:
        with self.changed:
            version.pins -= 1
            if version.state is State.DROPPED:
                self._reuse(version)

    def next_flush(
        self, limit_s: float, resting: Container[str], early_bytes: int | None
    ) -> Version | None:
        """The oldest checkpoint to flush, pinned, without ``resting`` jobs; None on timeout.

        While none waits, one of at least ``early_bytes`` that is still being received will do,
        once.
        """

        def find() -> Version | None:
            found = next((v for v in self.queue if v.job not in resting), None)
            if found is not None or early_bytes is None or self.queue or self.stopping:
                return found
            # Where others have parts of the versions, the first bytes are sent last: there is
            # nothing to write early.
            for job in (j for j in self.jobs.values() if j.name not in resting and j.hold is None):
                for version in job.partial.values():
                    large = version.index.layout.size >= early_bytes
                    if large and version.state is State.RECEIVING and not version.early:
                        version.early = True
                        return version
            return None

        with self.changed:
            version = find()
            if version is None and not self.closed:
                self.changed.wait(limit_s)
                version = find()
            if version is not None:
                version.pins += 1
            return version

    def flushed(self, version: Version) -> None:
        with self.changed:
            version.flushed = True
            here = self.jobs.get(version.job)
            if here is not None:
                if (
                    here.session.name == version.session
                    and not version.superseded
                    and not self.lacks
                ):
                    here.session.durable.append(version.number)
                here.sequence += 1
            if version in self.queue:
                self.queue.remove(version)
            self.changed.notify_all()

    def disk_fails(self, job: str, reason: str) -> None:
        """Tell waiting senders why the disk fails for a job; empty: it works again."""
        with self.changed:
            here = self.jobs.get(job)
            if here is not None:
                here.trouble = reason
                here.sequence += 1
                self.changed.notify_all()

    def drained(self, limit_s: float, hurry: Callable[[], bool] = lambda: False) -> int:
        """Wait until all complete versions are on disk or ``hurry`` is true, and close.

        Returns how many are not.
        """
        deadline = time.monotonic() + limit_s

        def waiting() -> bool:
            partial = (v for job in self.jobs.values() for v in job.partial.values())
            return bool(self.queue) or any(v.state is State.FINISHING for v in partial)

        with self.changed:
            while waiting() and time.monotonic() < deadline and not hurry():
                self.changed.wait(min(0.2, max(deadline - time.monotonic(), 0.001)))
            self.closed = True
            self.changed.notify_all()
            return len(self.queue)

    def given_up(self, version: Version) -> bool:
        """Whether no sender will send the rest of a version; the caller has the lock."""
        job = self.jobs.get(version.job)
        if job is None or job.session.name != version.session:
            return True
        if self._clock() - version.heard >= self.lease_s:
            return True
        late = set(range(version.index.layout.world)) - version.committed
        moved_on = all(job.session.reserved.get(rank, -1) > version.number for rank in late)
        return moved_on and all(sender.gone() for sender in version.senders)

    def _drop(self, version: Version) -> None:
        """Give a version up; its slot is free once it is unused."""
        here = self.jobs.get(version.job)
        if here is not None:
            for versions in (here.partial, here.complete):
                if versions.get(version.number) is version:
                    del versions[version.number]
            here.sequence += 1
        if version.state is not State.COMPLETE:
            self.counts["dropped"] += 1
        version.state = State.DROPPED
        if version in self.queue:
            self.queue.remove(version)
        self._reuse(version)
        self.changed.notify_all()

    def _reuse(self, version: Version) -> None:
        if not version.used and version.slot is not None:
            self.pool.free.append(version.slot)
            version.slot = None

    def _slot(self, here: Job, size: int) -> memoryview | None:
        if (slot := self.pool.reuse(size)) is not None:
            return slot
        # Used memory takes half the time of fresh memory, and no one with newer versions wants
        # an older one.
        plenty = next(
            (v for v in self._victims() if len(self.jobs[v.job].complete) > _PLENTY), None
        )
        if plenty is not None:
            self._drop(plenty)
        while (slot := self.pool.take(size)) is None:
            victim = next(chain(self._victims(), self._last_resort(here)), None)
            if victim is None:
                return None
            self._drop(victim)
        return slot

    def _victims(self) -> Iterator[Version]:
        """Versions that may be evicted, least useful first; older before newer ones."""
        for job in self.jobs.values():
            for version in job.partial.values():
                if version.state is State.RECEIVING and not version.used and self.given_up(version):
                    yield version
        for job in self.jobs.values():
            for version in job.complete.values():
                if (
                    not version.used
                    and (version.flushed or not self.persists)
                    and not job.keeps(version)
                ):
                    yield version

    def _last_resort(self, here: Job) -> Iterator[Version]:
        """Versions that may be evicted before a job gets no slot at all."""
        # Its run went back to before this one, and has completed another since
        if not self.persists:
            yield from (v for v in here.complete.values() if not v.used and v is not here.last)
        # Versions on disk may go: first those of idle jobs, then this job's own.
        now = self._clock()
        for job in sorted(
            self.jobs.values(), key=lambda j: (j.session.alive(now, self.lease_s), j is not here)
        ):
            yield from (v for v in job.complete.values() if v.flushed and not v.used)
        # Then all but the newest that the disk does not take; their senders know that.
        for job in self.jobs.values():
            if job.trouble:
                yield from (v for v in job.complete.values() if not v.used and not job.keeps(v))
