"""Eviction policy for version memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain

from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.node.slots import Pool, Slot
from deepvm.checkpoint.node.versions import Job, State, Version

_PLENTY = 2
"""Complete versions of a job that stay while there is memory."""
_COUNTS = ("complete", "dropped", "busy", "duplicates", "damaged_pieces", "received_bytes")


class VersionMemory:
    """Versions in slots, and which of them may be evicted.

    Attributes:
        changed: the one lock; notified with every change. jobs: by name. pool: the memory.
        queue: complete versions that are not on disk yet, oldest first. stopping: no new versions are taken.
        closed: no version becomes complete any more. counts: since the start.
        lacks: why what was flushed is not durable, and what to do about it; empty: it is.
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
        """Start empty.

        Args:
            limit: bytes of all slots together.
            persists: complete versions are to be flushed.
            lacks: see the attributes.
            lease_s: how long a silent sender's session and unfinished versions are kept.
            clock: for tests.
        """
        self.changed = threading.Condition()
        self.jobs: dict[str, Job] = {}
        self.pool = Pool(limit)
        self.queue: list[Version] = []
        self.closed = self.stopping = False
        self._blocked = 0
        self._reading = threading.Lock()
        self.persists, self.lacks, self.lease_s = persists, lacks, lease_s
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._clock = clock

    def manifests(self, job: str) -> Sequence[Manifest]:
        """The complete versions in memory."""
        with self.changed:
            here = self.jobs.get(job)
            return [v.manifest for v in here.complete.values() if v.manifest is not None] if here is not None else []

    def borrow(self, job: str, number: int) -> Version | None:
        """A complete version to read, pinned until ``unpin``; None when it is not in memory."""
        with self.changed:
            here = self.jobs.get(job)
            version = here.complete.get(number) if here is not None else None
            if version is not None:
                version.pins += 1
            return version

    def unpin(self, version: Version) -> None:
        """Let go of a version's slot."""
        with self.changed:
            version.pins -= 1
            if version.state is State.DROPPED:
                self._reuse(version)

    def copy(self, version: Version, start: int, into: memoryview) -> bool:
        """Fill ``into`` with a version's bytes from ``start`` on; returns whether they are still here."""
        with self.changed:
            if version.state is State.DROPPED:
                return False
            version.pins += 1
        try:
            into[:] = version.image[start : start + len(into)]
        finally:
            self.unpin(version)
        return True

    def next_flush(
        self, limit_s: float, resting: Container[str] = (), early_bytes: int | None = None
    ) -> Version | None:
        """The version that waits longest for the disk, pinned; None when there is none within the time.

        Args:
            limit_s: the time.
            resting: jobs whose versions are not tried now.
            early_bytes: while none waits, one that is still being received will do, once, if it has as many bytes.
        """

        def find() -> Version | None:
            found = next((v for v in self.queue if v.job not in resting), None)
            if found is None and early_bytes is not None and not (self.queue or self.stopping):
                found = next((v for v in self._coming(resting) if v.plan.layout.size >= early_bytes), None)
                if found is not None:
                    found.early = True
            return found

        with self.changed:
            version = find()
            if version is None and not self.closed:
                self.changed.wait(limit_s)
                version = find()
            if version is not None:
                version.pins += 1
            return version

    def _coming(self, resting: Container[str]) -> Iterator[Version]:
        for job in self.jobs.values():
            # Where others have parts of the versions, the first bytes are sent last: there is nothing to write early.
            for version in job.partial.values() if job.name not in resting and job.hold is None else ():
                if version.state is State.RECEIVING and not version.early:
                    yield version

    def flushed(self, version: Version) -> None:
        """Note that a version is on disk, and take it off the queue."""
        with self.changed:
            version.flushed = True
            here = self.jobs.get(version.job)
            if here is not None:
                run = here.session
                if run is not None and run.name == version.session and not version.superseded and not self.lacks:
                    run.durable.add(version.number)
                here.sequence += 1
            if version in self.queue:
                self.queue.remove(version)
            self.changed.notify_all()

    def durable(self, version: Version) -> bool:
        """Whether a version survives the loss of this machine."""
        return version.flushed and not self.lacks

    def disk_fails(self, job: str, why: str) -> None:
        """Let those who wait for the disk know that it takes nothing of a job; empty: it does again."""
        with self.changed:
            here = self.jobs.get(job)
            if here is not None:
                here.trouble = why
                here.sequence += 1
                self.changed.notify_all()

    def held(self, job: str) -> int | None:
        """The oldest version of a job that its trainer wants to stay on disk, None when it leaves that to the node."""
        with self.changed:
            here = self.jobs.get(job)
            return None if here is None else here.hold

    def drained(self, limit_s: float, hurry: Callable[[], bool] = lambda: False) -> int:
        """Wait until all complete versions are on disk, then let no other become complete.

        Args:
            limit_s: the longest wait.
            hurry: asked every now and then; True ends the wait.

        Returns:
            How many are not on disk.
        """
        deadline = time.monotonic() + limit_s
        with self.changed:
            while (self.queue or self._finishing()) and time.monotonic() < deadline and not hurry():
                self.changed.wait(min(0.2, max(deadline - time.monotonic(), 0.001)))
            self.closed = True
            self.changed.notify_all()
            return len(self.queue)

    def _finishing(self) -> bool:
        return any(v.state is State.FINISHING for j in self.jobs.values() for v in j.partial.values())

    def _drop(self, version: Version) -> None:
        """Give a version up; its slot is free once ``_reuse`` finds nobody in it."""
        here = self.jobs.get(version.job)
        if here is not None:
            for registry in (here.partial, here.complete):
                if registry.get(version.number) is version:
                    del registry[version.number]
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
            self.pool.give(version.slot)
            version.slot = None

    def _slot(self, here: Job, size: int) -> Slot | None:
        slot = self.pool.used(size)
        if slot is not None:
            return slot
        # Memory that was used before takes half the time of fresh one, and who has newer versions wants no older one.
        plenty = next((v for v in self._victims() if len(self.jobs[v.job].complete) > _PLENTY), None)
        if plenty is not None:
            self._drop(plenty)
        while (slot := self.pool.take(size)) is None:
            victim = next(chain(self._victims(), self._last_resort(here)), None)
            if victim is None:
                return None
            self._drop(victim)
        return slot

    def _victims(self) -> Iterator[Version]:
        """Versions whose slots may be used again, the least useful first; the oldest before newer ones."""
        now = self._clock()
        for job in self.jobs.values():
            for version in job.partial.values():
                if version.state is State.RECEIVING and not version.used and self._given_up(job, version, now):
                    yield version
        for job in self.jobs.values():
            for version in job.complete.values():
                if not version.used and (version.flushed or not self.persists) and not job.keeps(version):
                    yield version

    def _last_resort(self, here: Job) -> Iterator[Version]:
        """Versions of which a job may have the slots before it gets none."""
        if not self.persists:  # its run went back to before this one, and has completed another since
            yield from (v for v in here.complete.values() if not v.used and v is not here.last)
        # What the disk has need not keep anybody out; what nobody sends to any more goes first, then the job's own.
        now = self._clock()
        for job in sorted(self.jobs.values(), key=lambda j: (j.alive(now, self.lease_s), j is not here)):
            yield from (v for v in job.complete.values() if v.flushed and not v.used)
        # And what the disk does not take, of which whoever waits has been told, beside the newest.
        for job in self.jobs.values():
            if job.trouble:
                yield from (v for v in job.complete.values() if not v.used and not job.keeps(v))

    def given_up(self, version: Version) -> bool:
        """Whether nobody will send the rest of a version; the caller has the lock."""
        job = self.jobs.get(version.job)
        return job is None or self._given_up(job, version, self._clock())

    def _given_up(self, job: Job, version: Version, now: float) -> bool:
        """Whether nobody will send the rest of a version."""
        if now - version.heard >= self.lease_s or job.session is None or job.session.name != version.session:
            return True
        reserved = job.session.reserved
        ranks = set(range(version.plan.layout.world)) - version.committed
        left = all(reserved.get(rank, -1) > version.number for rank in ranks)
        return left and all(sender.gone() for sender in version.senders)

    def _why(self) -> str:
        """Why there is no slot, in words."""
        return (
            f"all {self.pool.allocated} bytes of {self.pool.limit} are in use; {len(self.queue)} complete versions "
            "wait for the disk; if it stays so, give the node more --memory"
        )
