"""The node's rules: who may send what, and when a checkpoint is complete.

One lock protects everything here; bytes move and checksums are made outside it.
"""

import mmap
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain

from deepvm.checkpoint.format.checksums import CrcPiece, seal_by_parts
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.network.protocol import MOST_DOCUMENT, Body, RequestRefused
from deepvm.checkpoint.node.versions import (
    Claim,
    Job,
    LayoutIndex,
    Reservation,
    Sender,
    Session,
    State,
    Version,
)
from deepvm.records import KW_ONLY, InitVar, dataclass, replace

_LEAST_SLOTS = 2  # the newest complete checkpoint stays while the next one arrives
_PLENTY = 2  # complete checkpoints of a job that stay while there is memory
_MOST_LAYOUTS = 4  # of a job
_LEAST_DOCUMENT = 2**20
_MOST_DOCUMENTS = 2  # layouts of the largest size that are kept at a time; most are much smaller
_MOST_JOBS = 1000
# Bytes, unless it ends a run: each piece is remembered until its version is complete
LEAST_PIECE = 4096
# Ranges in one answer; a sender that misses a range here sends it again, and it is discarded
MOST_MISSING = 1000
_ABORT_S = 5.0
_COMPLETING = "this checkpoint is being completed from an earlier attempt"
_COUNTS = ("complete", "dropped", "busy", "duplicates", "damaged_pieces", "received_bytes")


class Pool:
    """Page-aligned memory for a checkpoint each, reused; the registry locks it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.allocated = 0
        self.free: list[memoryview] = []

    def check(self, size: int) -> None:
        """Raise RequestRefused for an image of which fewer than two fit."""
        count = self.limit // _pages(size)
        if count < _LEAST_SLOTS:
            raise RequestRefused(
                "layout",
                f"a checkpoint has {size} bytes and the node's memory of {self.limit} bytes holds"
                f" {count} of that size; it needs space for {_LEAST_SLOTS}: start it with --memory"
                f" {-(-_LEAST_SLOTS * _pages(size) // 2**20)}MiB or more",
            )

    def reuse(self, size: int) -> memoryview | None:
        return next(
            (self.free.pop(n) for n, slot in enumerate(self.free) if len(slot) == _pages(size)),
            None,
        )

    def take(self, size: int) -> memoryview | None:
        if (slot := self.reuse(size)) is not None:
            return slot
        size = _pages(size)
        while self.allocated + size > self.limit and self.free:  # slots of an earlier layout
            self.allocated -= len(self.free.pop())
        if self.allocated + size > self.limit:
            return None
        self.allocated += size
        # No huge pages: where memory is fragmented, finding them takes ten times as long
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(eq=False, repr=False)
class VersionRegistry:
    """All checkpoints in memory, which of them may be evicted, and what senders may do."""

    limit: InitVar[int]  # bytes
    _: KW_ONLY
    persists: bool  # complete checkpoints are flushed
    lacks: str = ""  # why complete checkpoints are not durable
    lease_s: float = 30.0  # how long a silent sender's session and unfinished checkpoints stay
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self, limit: int) -> None:
        self.identity = secrets.token_hex(8)  # of this memory; names and addresses may be several
        self.changed = threading.Condition()  # the one lock, notified with every change
        self.jobs: dict[str, Job] = {}
        self.pool = Pool(limit)
        self.queue: list[Version] = []  # complete versions that are not on disk yet, oldest first
        self.epochs: dict[str, int] = {}  # newest generation of each job that has one
        # No checkpoint becomes complete any more; before that, no new ones are accepted
        self.closed = self.stopping = False
        self._blocked = 0
        self.reading = threading.Lock()  # held to read a layout
        self.counts = dict.fromkeys(_COUNTS, 0)

    def complete(self, job: str) -> dict[int, Version]:
        with self.changed:
            if job in self.jobs:
                return dict(self.jobs[job].complete)
            return {}

    def complete_jobs(self) -> set[str]:
        with self.changed:
            return {name for name, job in self.jobs.items() if job.complete}

    def copy(self, version: Version, start: int, into: memoryview) -> bool:
        """Fill ``into`` with bytes from ``start`` on; returns whether they are still here."""
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
        """The oldest, or one of ``early_bytes`` that still arrives, pinned; None on timeout."""

        def find() -> Version | None:
            found = next((v for v in self.queue if v.job not in resting), None)
            if found is not None or early_bytes is None or self.queue or self.stopping:
                return found
            # Where others have parts of the checkpoints, the first bytes are sent last
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
                own = here.session.name == version.session
                if own and not version.superseded and not self.lacks:
                    here.session.durable.append(version.number)
                here.sequence += 1
            if version in self.queue:
                self.queue.remove(version)
            self.changed.notify_all()

    def disk_fails(self, job: str, reason: str) -> None:
        with self.changed:
            here = self.jobs.get(job)
            if here is not None:
                here.trouble = reason
                here.sequence += 1
                self.changed.notify_all()

    def drained(self, limit_s: float, hurry: Callable[[], bool] = lambda: False) -> int:
        """Wait until all is on disk or ``hurry`` is true, and close; returns how many are not."""
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
        """Whether no sender will send the rest of a checkpoint; the caller has the lock."""
        job = self.jobs.get(version.job)
        if job is None or job.session.name != version.session:
            return True
        if self.clock() - version.heard >= self.lease_s:
            return True
        late = set(range(version.index.layout.world)) - version.committed
        moved_on = all(job.session.reserved.get(rank, -1) > version.number for rank in late)
        return moved_on and all(sender.gone() for sender in version.senders)

    def _drop(self, version: Version) -> None:
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
        # Used memory takes half the time of fresh memory, and so many newer checkpoints make an
        # older one useless
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
        """Checkpoints that may be evicted, least useful first; older before newer ones."""
        for job in self.jobs.values():
            for version in job.partial.values():
                if version.state is State.RECEIVING and not version.used and self.given_up(version):
                    yield version
        for job in self.jobs.values():
            for version in job.complete.values():
                safe = version.flushed or not self.persists
                if safe and not version.used and not job.keeps(version):
                    yield version

    def _last_resort(self, here: Job) -> Iterator[Version]:
        # Its run went back to before this one, and has completed another since
        if not self.persists:
            yield from (v for v in here.complete.values() if not v.used and v is not here.last)
        # Checkpoints on disk may go: first those of idle jobs, then this job's own.
        now = self.clock()
        for job in sorted(
            self.jobs.values(), key=lambda j: (j.session.alive(now, self.lease_s), j is not here)
        ):
            yield from (v for v in job.complete.values() if v.flushed and not v.used)
        # Then all but the newest that the disk does not take; their senders know that.
        for job in self.jobs.values():
            if job.trouble:
                yield from (v for v in job.complete.values() if not v.used and not job.keeps(v))

    def begin(self, job: str, epoch: int, stored: int = 0) -> None:
        """A generation of a job starts, or speaks again; ``stored``: the newest known on disk.

        What older ones have not completed is dropped. Raises RequestRefused: it is old.
        """
        with self.changed:
            known = max(self.epochs.get(job, 0), stored)
            self._refuse_older(job, epoch, known)
            self.epochs[job] = epoch
            here = self.jobs.get(job)
            if here is None or epoch == known:
                return
            self._end(here)
            here.session = Session("", self.clock() - self.lease_s)
            # What is being completed is complete before the new generation looks for checkpoints.
            self.changed.wait_for(
                lambda: not any(v.state is State.FINISHING for v in here.partial.values()), _ABORT_S
            )

    def _refuse_older(self, job: str, epoch: int, known: int) -> None:
        if epoch < known:
            raise RequestRefused(
                "stale", f"generation {epoch} of {job!r} is over: {known} has started"
            )

    def enter(self, sender: Sender) -> bool:
        """Whether a sender's layout is known. Raises RequestRefused: another run is alive."""
        job = sender.job
        with self.changed:
            # A newer one may have started since this one spoke: it would wait for this one's lease
            if sender.epoch:
                self._refuse_older(job, sender.epoch, self.epochs.get(job, 0))
            now = self.clock()
            if job not in self.jobs and len(self.jobs) >= _MOST_JOBS and not self._forget(now):
                raise RequestRefused(
                    "full", f"the node knows {_MOST_JOBS} jobs already, none of which it may forget"
                )
            if job not in self.jobs:
                self.jobs[job] = Job(job, Session(sender.session, now))
            here = self.jobs[job]
            if here.session.name != sender.session:
                if here.session.alive(now, self.lease_s):
                    raise RequestRefused(
                        "session",
                        f"another training run of the name {job!r} is sending to this node; give"
                        " this one another name, or stop the other: it is forgotten"
                        f" {self.lease_s:.0f} s after its last sign of life",
                    )
                self._end(here)
                here.session = Session(sender.session, now)
            here.session.senders.add(sender)
            here.session.heard = now
            index = here.layouts.get(sender.digest)
            if index is not None:
                here.layouts.move_to_end(sender.digest)
                if index.layout.world != sender.world:
                    misfit = (
                        f"rank {sender.rank} of {sender.world} does not fit a layout for"
                        f" {index.layout.world}"
                    )
                    raise RequestRefused("layout", misfit)
            return index is not None

    @property
    def most_document(self) -> int:
        # Bytes of the largest layout document: reading takes 25 times as many, keeping 8
        return min(MOST_DOCUMENT, max(_LEAST_DOCUMENT, self.pool.limit // 256))

    def learn(self, sender: Sender, layout: Layout, document: int = 0) -> None:
        """Raises RequestRefused: no memory for the layout, or its session is over."""
        with self.reading:
            index = LayoutIndex(layout, document)
        with self.changed:
            here, _ = self._current(sender.job, sender.session)
            self.pool.check(layout.size)
            here.layouts.pop(layout.digest, None)
            while len(here.layouts) >= _MOST_LAYOUTS:
                here.layouts.popitem(last=False)
            self._make_room(here, document)
            here.layouts[layout.digest] = index

    def _make_room(self, here: Job, document: int) -> None:
        """Forget layouts, of dead runs first, until one more fits; senders send them again."""

        def full() -> bool:
            known = sum(
                index.document for job in self.jobs.values() for index in job.layouts.values()
            )
            return known + document > _MOST_DOCUMENTS * self.most_document

        now = self.clock()
        dead = [job for job in self.jobs.values() if not job.session.alive(now, self.lease_s)]
        for job in (*dead, here):
            while job.layouts and full():
                job.layouts.popitem(last=False)
        if full():
            raise RequestRefused(
                "full",
                "the layouts of other jobs fill the node's memory for layouts; give it more"
                " --memory",
            )

    def leave(self, sender: Sender) -> None:
        with self.changed:
            for job in list(self.jobs.values()):
                for version in job.partial.values():
                    version.senders.discard(sender)
                job.session.senders.discard(sender)
                if not (job.session.senders or job.partial or job.complete):
                    del self.jobs[job.name]
            self.changed.notify_all()

    def reserve(
        self,
        sender: Sender,
        number: int,
        attempt_id: str,
        *,
        attempt_number: int = 0,
        hold: int | None = None,
        best: bool = False,
    ) -> Reservation | str:
        """Reserve a slot, or join another rank's; returns why there is no space.

        ``attempt_id``: random for each attempt of a rank; an earlier one may have sent others.
        ``attempt_number``: the same on all ranks; a later one replaces an earlier one. ``hold``:
        the oldest version that must stay on disk; None: as before. Raises RequestRefused.
        """
        job = sender.job
        session = sender.session
        rank = sender.rank
        with self.changed:
            here, run = self._current(job, session)
            here.hold = here.hold if hold is None else hold
            for version in here.partial.values():
                version.senders.discard(sender)
            run.reserved[rank] = max(number, run.reserved.get(rank, 0))
            index = here.layouts.get(sender.digest)
            if index is None:
                raise RequestRefused("layout", "its layout is not known here; say HELLO again")
            for known in (here.partial.get(number), here.complete.get(number)):
                if known is None or known.session != session:
                    continue
                if known.attempt_ids.get(rank) == attempt_id:
                    return Reservation(known, rank, attempt_id)  # an answer was lost
                if known.attempt_number > attempt_number:
                    raise RequestRefused(
                        "stale", f"version {number} of {job!r} is being saved again"
                    )
            found = here.partial.get(number)
            if found is not None:
                if found.session != session or found.state is State.FINISHING:
                    return _COMPLETING
                if found.attempt_number == attempt_number and rank in found.attempt_ids:
                    for claim in [c for c in found.claims if c.rank == rank]:
                        if not self._ended(claim):
                            raise RequestRefused("request", f"version {number} is being received")
                    # It continued while the old connections ended
                    if found.state is not State.RECEIVING:
                        return _COMPLETING
                # An earlier save, or only this rank's own earlier attempt
                if found.attempt_number < attempt_number or set(found.attempt_ids) <= {rank}:
                    self._drop(found)
                    found = None
            if found is None:
                if run.skips(number, rank):
                    return "there was no space for this checkpoint"
                found = self._begin(here, run, index, number, attempt_number)
                if found is None:
                    run.skipped[number] = {rank}
                    if self.stopping:
                        return "the node is stopping"
                    used = f"all {self.pool.allocated} bytes of {self.pool.limit} are in use"
                    waiting = f"{len(self.queue)} complete checkpoints wait for the disk"
                    return f"{used}; {waiting}; if it stays so, give the node more --memory"
            elif found.index.layout.digest != sender.digest:
                raise RequestRefused(
                    "layout", f"the ranks hold different layouts of version {number}"
                )
            found.forget(rank)
            found.attempt_ids[rank] = attempt_id
            found.best = found.best or best
            found.heard = run.heard = self.clock()
            found.senders.add(sender)
            return Reservation(found, rank, attempt_id)

    def _begin(
        self, here: Job, run: Session, index: LayoutIndex, number: int, attempt_number: int
    ) -> Version | None:
        slot = None
        if not self.stopping:
            slot = self._slot(here, index.layout.size)
        if slot is None:
            self.counts["busy"] += 1
            return None
        version = Version(
            here.name, number, run.name, index, slot, self.clock(), attempt_number=attempt_number
        )
        here.partial[number] = version
        run.save_again(number)
        if number in here.complete:
            here.complete[number].superseded = True
        here.sequence += 1
        self.changed.notify_all()
        return version

    def claim(self, sender: Sender, reservation: Reservation, start: int, end: int) -> Claim | None:
        """Memory for a piece to receive; None: it is here, discard it. Raises RequestRefused."""
        version = reservation.version
        rank = reservation.rank
        with self.changed:
            while True:
                run = self._valid(reservation)
                if end > version.index.run_end(rank, start):
                    raise RequestRefused(
                        "request", f"bytes {start} to {end - 1} are not in the part of rank {rank}"
                    )
                version.heard = run.heard = self.clock()
                arrived = version.received[rank]
                if arrived.covers(start, end):
                    self.counts["duplicates"] += 1
                    return None
                size = end - start
                if size < LEAST_PIECE and end != version.index.run_end(rank, end - 1):
                    raise RequestRefused(
                        "request",
                        f"{size} bytes at {start}; pieces have {LEAST_PIECE} or end their run",
                    )
                if version.state is not State.RECEIVING or arrived.touches(start, end):
                    raise RequestRefused(
                        "request",
                        f"bytes {start} to {end - 1} are here in part; ask what is missing",
                    )
                other = next((c for c in version.claims if c.start < end and start < c.end), None)
                if other is None:
                    break
                # No two connections write the same bytes: the older one is dead
                if not self._ended(other):
                    raise RequestRefused(
                        "request", f"bytes {start} to {end - 1} are being received"
                    )
            claim = Claim(version, rank, start, end, sender, version.image[start:end])
            version.claims.append(claim)
            return claim

    def settle(self, claim: Claim, verified: Sequence[CrcPiece] | None) -> None:
        """End a claim; ``verified``: the checksums of its pieces, None: they do not count."""
        with self.changed:
            version = claim.version
            version.claims.remove(claim)
            if verified is not None and not claim.ended and version.state is State.RECEIVING:
                version.received[claim.rank].add(claim.start, claim.end)
                version.pieces += verified
                self.counts["received_bytes"] += claim.end - claim.start
            if version.state is State.DROPPED:
                self._reuse(version)
            # Else no thread waits for this, and waking all pollers costs more than the piece
            if self._blocked:
                self.changed.notify_all()

    def _ended(self, claim: Claim) -> bool:
        """Close the connection of a claim; returns whether the claim ended in time."""
        claim.ended = True
        claim.sender.abort()
        self._blocked += 1
        try:
            return self.changed.wait_for(lambda: claim not in claim.version.claims, _ABORT_S)
        finally:
            self._blocked -= 1

    def commit(self, reservation: Reservation) -> Body:
        """The ``ACK`` for a rank's part; the last verified one completes the checkpoint."""
        version = reservation.version
        with self.changed:
            version.heard = self._valid(reservation).heard = self.clock()
            missing = list(version.missing(reservation.rank))
            if not missing:
                version.committed.add(reservation.rank)
            whole = len(version.committed) == version.index.layout.world
            last = not missing and whole and version.state is State.RECEIVING
            if last:
                version.state = State.FINISHING
        if last:
            self._finish(self.jobs[version.job], version)
        with self.changed:
            return {
                "version": version.number,
                "missing": missing[:MOST_MISSING],
                "complete": version.state is State.COMPLETE,
                "durable": version.flushed and not self.lacks,
            }

    def _valid(self, reservation: Reservation) -> Session:
        version = reservation.version
        _, run = self._current(version.job, version.session)
        if (
            version.state is State.DROPPED
            or version.attempt_ids.get(reservation.rank) != reservation.attempt_id
        ):
            raise RequestRefused(
                "stale",
                f"version {version.number} of {version.job!r} is not being received any more",
            )
        return run

    def _finish(self, here: Job, version: Version) -> None:
        layout = version.index.layout
        try:
            crcs = seal_by_parts(version.image, layout, version.pieces)
            version.pieces = []
            record = CommitRecord.of(version.job, version.number, layout, crcs, best=version.best)
            version.manifest = replace(record, epoch=self.epochs.get(version.job, 0))
        except BaseException:
            with self.changed:
                self._drop(version)
            raise
        with self.changed:
            if self.closed:
                self._drop(version)
                raise RequestRefused("stopping", "the node is stopping")
            here.partial.pop(version.number, None)
            earlier = here.complete.pop(version.number, None)
            if earlier is not None:  # of an earlier run, which this one has done again
                self._drop(earlier)
            here.complete[version.number] = version
            version.state = State.COMPLETE
            if here.session.name == version.session:
                here.session.complete.append(version.number)
            if self.persists:
                self.queue.append(version)
            self.counts["complete"] += 1
            here.sequence += 1
            self.changed.notify_all()

    def wait(self, sender: Sender, sequence: int, limit_s: float) -> Body:
        """The ``STATE``, once something changed since ``sequence`` or after ``limit_s``."""
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                here, run = self._current(sender.job, sender.session)
                run.heard = self.clock()
                left = deadline - time.monotonic()
                if here.sequence != sequence or left <= 0 or self.closed:
                    own = [
                        v.number
                        for v in self.queue
                        if (v.job, v.session) == (sender.job, sender.session)
                    ]
                    return {
                        "sequence": here.sequence,
                        "receiving": list(here.partial),
                        "complete": list(run.complete),
                        "durable": list(run.durable),
                        "stuck": [(number, here.trouble) for number in own if here.trouble],
                    }
                self.changed.wait(left)

    def _current(self, job: str, session: str) -> tuple[Job, Session]:
        here = self.jobs.get(job)
        if here is None or here.session.name != session:
            raise RequestRefused(
                "stale",
                f"this training run of {job!r} is over here: another one has taken its name",
            )
        return here, here.session

    def _forget(self, now: float) -> bool:
        for here in self.jobs.values():
            held = [*here.partial.values(), *here.complete.values()]
            kept = all(v.flushed for v in here.complete.values()) and not any(v.used for v in held)
            if kept and not here.session.alive(now, self.lease_s):
                self._end(here)
                for version in list(here.complete.values()):
                    self._drop(version)
                del self.jobs[here.name]
                return True
        return False

    def _end(self, here: Job) -> None:
        for version in list(here.partial.values()):
            if version.state is State.RECEIVING:
                self._drop(version)
        for sender in here.session.senders:
            sender.abort()
        here.sequence += 1
        self.changed.notify_all()
