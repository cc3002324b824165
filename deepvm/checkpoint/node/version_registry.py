"""The node's rules: who may send what, and when a version is complete.

One lock protects everything here; bytes move and checksums are made outside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepvm.checkpoint.format.crc_combine import CrcPiece, seal_by_parts
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.network.protocol import MOST_DOCUMENT, RequestRefused
from deepvm.checkpoint.node.eviction import VersionMemory
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

_MOST_LAYOUTS = 4  # of a job
_LEAST_DOCUMENT = 2**20
_MOST_DOCUMENTS = 2  # layouts of the largest size that are kept at a time; most are much smaller
_MOST_JOBS = 1000
# Bytes, unless it ends a run: each piece is remembered until its version is complete
LEAST_PIECE = 4096
# Ranges in one answer; a sender that misses a range here sends it again, and it is discarded
MOST_MISSING = 1000
_ABORT_S = 5.0
_COMPLETING = "this version is being completed from an earlier attempt"


class VersionRegistry(VersionMemory):
    """All versions in memory, and what senders may do."""

    def begin(self, job: str, epoch: int, stored: int = 0) -> None:
        """A generation of a job begins, or speaks again.

        ``stored``: the newest that the disk knows of.

        What older generations have not completed is dropped at once. Raises Refused: a newer one
        has started.
        """
        with self.changed:
            known = max(self.epochs.get(job, 0), stored)
            self._refuse_older(job, epoch, known)
            self.epochs[job] = epoch
            here = self.jobs.get(job)
            if here is None or epoch == known:
                return
            self._end(here)
            here.session = Session("", self._clock() - self.lease_s)
            # What is being completed is complete before the new generation looks for versions.
            self.changed.wait_for(
                lambda: not any(v.state is State.FINISHING for v in here.partial.values()), _ABORT_S
            )

    def _refuse_older(self, job: str, epoch: int, known: int) -> None:
        if epoch < known:
            raise RequestRefused(
                "stale", f"generation {epoch} of {job!r} is over: {known} has started"
            )

    def enter(self, sender: Sender) -> bool:
        """Register a sender; returns whether its layout is known.

        Raises Refused: another run of this name is alive.
        """
        job = sender.job
        with self.changed:
            # A newer one may have started since this one spoke: it would wait for this one's lease
            if sender.epoch:
                self._refuse_older(job, sender.epoch, self.epochs.get(job, 0))
            now = self._clock()
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
        """Bytes of the largest layout document: reading takes 25 times as many, keeping 8."""
        return min(MOST_DOCUMENT, max(_LEAST_DOCUMENT, self.pool.limit // 256))

    def learn(self, sender: Sender, layout: Layout, document: int = 0) -> None:
        """Register a layout of ``document`` bytes.

        Raises Refused: no memory for it, or its session is over.
        """
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

        now = self._clock()
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
        """Reserve a slot for a version, or join the one that another rank reserved.

        Returns why there is no room.

        ``attempt_id``: random for each attempt of the rank to send its part; an earlier one may
        have sent other bytes.
        ``attempt_number``: which save of this run it is, the same for all ranks; a later one
        replaces an earlier one.
        ``hold``: the oldest version that must stay on disk, as another node may have no newer one;
        None: as before.

        Raises Refused: the session or the attempt is over, or the layout differs from that of the
        other ranks.
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
                    # It went on while the old connections ended
                    if found.state is not State.RECEIVING:
                        return _COMPLETING
                # An earlier save, which other ranks may still be sending; or only this rank's own
                # earlier attempt.
                if found.attempt_number < attempt_number or set(found.attempt_ids) <= {rank}:
                    self._drop(found)
                    found = None
            if found is None:
                if run.skips(number, rank):
                    return "there was no room for this version"
                found = self._begin(here, run, index, number, attempt_number)
                if found is None:
                    run.skipped[number] = {rank}
                    if self.stopping:
                        return "the node is stopping"
                    used = f"all {self.pool.allocated} bytes of {self.pool.limit} are in use"
                    waiting = f"{len(self.queue)} complete versions wait for the disk"
                    return f"{used}; {waiting}; if it stays so, give the node more --memory"
            elif found.index.layout.digest != sender.digest:
                raise RequestRefused(
                    "layout", f"the ranks hold different layouts of version {number}"
                )
            found.forget(rank)
            found.attempt_ids[rank] = attempt_id
            found.best = found.best or best
            found.heard = run.heard = self._clock()
            found.senders.add(sender)
            return Reservation(found, rank, attempt_id)

    def _begin(
        self, here: Job, run: Session, index: LayoutIndex, number: int, attempt_number: int
    ) -> Version | None:
        if self.stopping:
            slot = None
        else:
            slot = self._slot(here, index.layout.size)
        if slot is None:
            self.counts["busy"] += 1
            return None
        version = Version(
            here.name, number, run.name, index, slot, self._clock(), attempt_number=attempt_number
        )
        here.partial[number] = version
        run.save_again(number)
        if number in here.complete:
            here.complete[number].superseded = True
        here.sequence += 1
        self.changed.notify_all()
        return version

    def claim(self, sender: Sender, reservation: Reservation, start: int, end: int) -> Claim | None:
        """Get the memory for a piece to receive; None: it is here already, discard it.

        Verified bytes are never written again, and no two connections write the same bytes: one
        that still does is a dead one whose peer has come back, and is closed.

        Raises Refused: the session or the version is over, or the range is not this rank's.
        """
        version = reservation.version
        rank = reservation.rank
        with self.changed:
            while True:
                run = self._valid(reservation)
                if end > version.index.run_end(rank, start):
                    raise RequestRefused(
                        "request", f"bytes {start} to {end - 1} are not in the part of rank {rank}"
                    )
                version.heard = run.heard = self._clock()
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
                if not self._ended(other):
                    raise RequestRefused(
                        "request", f"bytes {start} to {end - 1} are being received"
                    )
            claim = Claim(version, rank, start, end, sender, version.image[start:end])
            version.claims.append(claim)
            return claim

    def settle(self, claim: Claim, verified: Sequence[CrcPiece] | None) -> None:
        """End a claim; keeps the checksums of verified bytes. None: they do not count."""
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

    def commit(self, reservation: Reservation) -> Mapping[str, Any]:
        """Commit a rank's part if all of it is verified; the last one completes the version.

        Returns the body of ``ACK``: without missing ranges the part is safe in this memory. Raises
        Refused.
        """
        version = reservation.version
        with self.changed:
            version.heard = self._valid(reservation).heard = self._clock()
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

    def wait(self, sender: Sender, sequence: int, limit_s: float) -> Mapping[str, Any]:
        """Wait until something changed since ``sequence``, at most ``limit_s``.

        The body of ``STATE``. Raises Refused.

        ``stuck``: versions for which the disk fails again and again, and why.
        """
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                here, run = self._current(sender.job, sender.session)
                run.heard = self._clock()
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
        """Forget a job without senders and that is all on the disk.

        Returns whether there is one.
        """
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
        """End a job's session: its unfinished versions will never be finished."""
        for version in list(here.partial.values()):
            if version.state is State.RECEIVING:
                self._drop(version)
        for sender in here.session.senders:
            sender.abort()
        here.sequence += 1
        self.changed.notify_all()
