"""The node's rules: who may send what, and when a version is complete.

One lock protects everything here; bytes move and checksums are made outside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.crc_combine import Atom, seal_by_parts
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.network.protocol import MOST_DOCUMENT, Refused
from deepvm.checkpoint.node.eviction import VersionMemory
from deepvm.checkpoint.node.versions import Claim, Job, Owner, Plan, Reservation, Session, State, Version

_MOST_PLANS = 4
_LEAST_DOCUMENT = 2**20
_MOST_DOCUMENTS = 2
"""Layouts of the largest size that are kept at a time; most are much smaller."""
_MOST_JOBS = 1000
LEAST_PIECE = 4096
"""Bytes of a piece that does not end a run: each is remembered until its version is complete."""
MOST_MISSING = 1000
"""Ranges in one answer. A sender that is not told of a range sends it again, and it is discarded."""
_ABORT_S = 5.0


class VersionRegistry(VersionMemory):
    """All versions in memory, and what senders may do."""

    def enter(self, owner: Owner) -> bool:
        """Register a sender; returns whether its layout is known.

        Raises:
            Refused: another run of this name is alive. RequestError: the job's name.
        """
        job = check_job(owner.job)
        with self.changed:
            now = self._clock()
            if job not in self.jobs and len(self.jobs) >= _MOST_JOBS and not self._forget(now):
                raise Refused("full", f"the node knows {_MOST_JOBS} jobs already, none of which it may forget")
            here = self.jobs.setdefault(job, Job(job))
            if here.session is not None and here.session.name != owner.session:
                if here.session.alive(now, self.lease_s):
                    raise Refused(
                        "session",
                        f"another training run of the name {job!r} is sending to this node; give this one another "
                        f"name, or stop the other: it is forgotten {self.lease_s:.0f} s after its last sign of life",
                    )
                self._end(here)
            if here.session is None:
                here.session = Session(owner.session, now)
            here.session.owners.add(owner)
            here.session.heard = now
            plan = here.plans.get(owner.digest)
            if plan is not None:
                here.plans.move_to_end(owner.digest)
                if not (plan.layout.world == owner.world and 0 <= owner.rank < owner.world):
                    raise Refused(
                        "layout", f"rank {owner.rank} of {owner.world} does not fit a layout for {plan.layout.world}"
                    )
            return plan is not None

    @property
    def most_document(self) -> int:
        """Bytes that a layout may have as it comes; reading one takes up to 25 times as many, and keeping it 8."""
        return min(MOST_DOCUMENT, max(_LEAST_DOCUMENT, self.pool.limit // 256))

    def learn(self, owner: Owner, layout: Layout, document: int = 0) -> None:
        """Register a layout of ``document`` bytes.

        Raises:
            Refused: two versions do not fit into memory, there are too many large layouts, or the session is over.
        """
        with self.reading:
            plan = Plan(layout, document)
        with self.changed:
            here, _ = self._current(owner.job, owner.session)
            self.pool.check(layout.size)
            here.plans.pop(layout.digest, None)
            while len(here.plans) >= _MOST_PLANS:
                here.plans.popitem(last=False)
            self._make_room(here, document)
            here.plans[layout.digest] = plan

    def _make_room(self, here: Job, document: int) -> None:
        """Forget layouts, those of dead runs first, until one more fits; a sender that needs one again sends it."""

        def full() -> bool:
            known = sum(plan.document for job in self.jobs.values() for plan in job.plans.values())
            return known + document > _MOST_DOCUMENTS * self.most_document

        now = self._clock()
        for job in (*(j for j in self.jobs.values() if not j.alive(now, self.lease_s)), here):
            while job.plans and full():
                job.plans.popitem(last=False)
        if full():
            raise Refused("full", "the layouts of other jobs fill the node's memory for layouts; give it more --memory")

    def leave(self, owner: Owner) -> None:
        """Forget a connection that ended."""
        with self.changed:
            for job in list(self.jobs.values()):
                for version in job.partial.values():
                    version.senders.discard(owner)
                if job.session is not None:
                    job.session.owners.discard(owner)
                    if not (job.session.owners or job.partial or job.complete):
                        del self.jobs[job.name]
            self.changed.notify_all()

    def reserve(
        self, owner: Owner, number: int, put: str, *, hold: int | None = None, best: bool = False, attempt: int = 0
    ) -> Reservation | str:
        """Reserve a slot for a version, or join the one that another rank reserved; returns why there is no room.

        Args:
            owner: who asks.
            number: the version.
            put: random for each attempt of the trainer to save it; an earlier one may have sent other bytes.
            hold: the oldest version that must stay on disk: another node may have no newer one. None: as before.
            best: the training calls it the best so far.
            attempt: which save of this run it is, the same for all ranks; a later one takes the place of an earlier.

        Raises:
            Refused: the session or the attempt is over, or the layout differs from that of the other ranks.
        """
        job, session, rank = owner.job, owner.session, owner.rank
        with self.changed:
            here, run = self._current(job, session)
            here.hold = here.hold if hold is None else hold
            for version in here.partial.values():
                version.senders.discard(owner)
            run.reserved[rank] = max(number, run.reserved.get(rank, 0))
            plan = here.plans.get(owner.digest)
            if plan is None:
                raise Refused("layout", "its layout is not known here; say HELLO again")
            for known in (here.partial.get(number), here.complete.get(number)):
                if known is not None and known.session == session and known.puts.get(rank) == put:
                    return Reservation(known, rank, put)  # an answer was lost
                if known is not None and known.session == session and known.attempt > attempt:
                    raise Refused("stale", f"version {number} of {job!r} is being saved anew")
            found = here.partial.get(number)
            if found is not None and (found.session != session or found.state is State.FINISHING):
                return "this version is being completed from an earlier attempt"
            if found is not None and found.attempt < attempt:
                self._drop(found)  # also what other ranks still send of it
                found = None
            if found is not None and rank in found.puts:
                for claim in [c for c in found.claims if c.rank == rank]:
                    if not self._ended(claim):
                        raise Refused("request", f"version {number} is being received")
                if found.state is not State.RECEIVING:  # it went on while the old connections ended
                    return "this version is being completed from an earlier attempt"
            if found is not None and set(found.puts) <= {rank}:
                self._drop(found)  # only this rank's own earlier attempt
                found = None
            if found is None:
                if run.skips(number, rank):
                    return "there was no room for this version"
                found = self._begin(here, run, plan, number, attempt)
                if found is None:
                    run.skipped[number] = {rank}
                    if self.stopping:
                        return "the node is stopping"
                    return (
                        f"all {self.pool.allocated} bytes of {self.pool.limit} are in use; {len(self.queue)} complete "
                        "versions wait for the disk; if it stays so, give the node more --memory"
                    )
            elif found.plan.layout.digest != owner.digest:
                raise Refused("layout", f"the ranks hold different layouts of version {number}")
            found.forget(rank)
            found.puts[rank] = put
            found.best = found.best or best
            found.heard = run.heard = self._clock()
            found.senders.add(owner)
            return Reservation(found, rank, put)

    def _begin(self, here: Job, run: Session, plan: Plan, number: int, attempt: int) -> Version | None:
        """A new version of a run, None if there is no room."""
        slot = None if self.stopping else self._slot(here, plan.layout.size)
        if slot is None:
            self.counts["busy"] += 1
            return None
        version = Version(here.name, number, run.name, plan, slot, self._clock(), attempt=attempt)
        here.partial[number] = version
        run.complete.discard(number)
        run.durable.discard(number)
        if number in here.complete:
            here.complete[number].superseded = True
        here.sequence += 1
        self.changed.notify_all()
        return version

    def claim(self, owner: Owner, reservation: Reservation, start: int, end: int) -> Claim | None:
        """Get the memory for a piece that is about to be received; None if it is here already and must be discarded.

        Verified bytes are never written again, and no two connections write the same bytes: one that still does is a
        dead one whose peer has come back, and is closed.

        Raises:
            Refused: the session or the version is over, or the range is not this rank's.
        """
        version, rank = reservation.version, reservation.rank
        with self.changed:
            while True:
                run = self._valid(reservation)
                if end > version.plan.run_end(rank, start):
                    raise Refused("request", f"bytes {start} to {end - 1} are not in the part of rank {rank}")
                version.heard = run.heard = self._clock()
                arrived = version.received[rank]
                if arrived.covers(start, end):
                    self.counts["duplicates"] += 1
                    return None
                if end - start < LEAST_PIECE and end != version.plan.run_end(rank, end - 1):
                    raise Refused(
                        "request", f"{end - start} bytes at {start}; pieces have {LEAST_PIECE} or end their run"
                    )
                if version.state is not State.RECEIVING or arrived.touches(start, end):
                    raise Refused("request", f"bytes {start} to {end - 1} are here in part; ask what is missing")
                other = next((c for c in version.claims if c.start < end and start < c.end), None)
                if other is None:
                    break
                if not self._ended(other):
                    raise Refused("request", f"bytes {start} to {end - 1} are being received")
            claim = Claim(version, rank, start, end, owner, version.image[start:end])
            version.claims.append(claim)
            return claim

    def settle(self, claim: Claim, verified: Sequence[Atom] | None) -> None:
        """End a claim; keeps the checksums of verified bytes. None: they do not count."""
        with self.changed:
            version = claim.version
            version.claims.remove(claim)
            if verified is not None and not claim.ended and version.state is State.RECEIVING:
                version.received[claim.rank].add(claim.start, claim.end)
                version.atoms += verified
                self.counts["received_bytes"] += claim.end - claim.start
            if version.state is State.DROPPED:
                self._reuse(version)
            if self._blocked:  # else nobody waits for this, and waking all the watchers costs more than the piece
                self.changed.notify_all()

    def _ended(self, claim: Claim) -> bool:
        """End another connection's claim; returns whether it went in time."""
        claim.ended = True
        claim.owner.abort()
        self._blocked += 1
        try:
            return self.changed.wait_for(lambda: claim not in claim.version.claims, _ABORT_S)
        finally:
            self._blocked -= 1

    def commit(self, reservation: Reservation) -> Mapping[str, Any]:
        """Commit a rank's part if all of it is verified; the last one completes the version.

        Returns the body of ``ACK``: without missing ranges the part is safe in this memory. Raises Refused.
        """
        version = reservation.version
        with self.changed:
            version.heard = self._valid(reservation).heard = self._clock()
            missing = list(version.missing(reservation.rank))
            if not missing:
                version.committed.add(reservation.rank)
            last = (
                not missing and version.state is State.RECEIVING and len(version.committed) == version.plan.layout.world
            )
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
        if version.state is State.DROPPED or version.puts.get(reservation.rank) != reservation.put:
            raise Refused("stale", f"version {version.number} of {version.job!r} is not being received any more")
        return run

    def _finish(self, here: Job, version: Version) -> None:
        layout = version.plan.layout
        try:
            crcs = seal_by_parts(version.image, layout, version.plan.cuts, version.atoms)
            version.atoms = []
            version.manifest = CommitRecord.of(version.job, version.number, layout, crcs, best=version.best)
        except BaseException:
            with self.changed:
                self._drop(version)
            raise
        with self.changed:
            if self.closed:
                self._drop(version)
                raise Refused("stopping", "the node is stopping")
            here.partial.pop(version.number, None)
            earlier = here.complete.pop(version.number, None)
            if earlier is not None:  # of an earlier run, which this one has done again
                self._drop(earlier)
            here.complete[version.number] = version
            version.state = State.COMPLETE
            if here.session is not None and here.session.name == version.session:
                here.session.complete.add(version.number)
            if self.persists:
                self.queue.append(version)
            self.counts["complete"] += 1
            here.sequence += 1
            self.changed.notify_all()

    def wait(self, owner: Owner, sequence: int, limit_s: float) -> Mapping[str, Any]:
        """Wait until something changed since ``sequence``, at most ``limit_s``; raises Refused.

        Returns the body of ``STATE``: the session's versions, and those for which the disk fails again and again.
        """
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                here, run = self._current(owner.job, owner.session)
                run.heard = self._clock()
                left = deadline - time.monotonic()
                if here.sequence != sequence or left <= 0 or self.closed:
                    own = [v.number for v in self.queue if (v.job, v.session) == (owner.job, owner.session)]
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
        if here is None or here.session is None or here.session.name != session:
            raise Refused("stale", f"this training run of {job!r} is over here: another one has taken its name")
        return here, here.session

    def _forget(self, now: float) -> bool:
        """Forget a job that nobody sends to any more and that is all on the disk; returns whether there is one."""
        for here in self.jobs.values():
            held = [*here.partial.values(), *here.complete.values()]
            kept = all(v.flushed for v in here.complete.values()) and not any(v.used for v in held)
            if kept and not here.alive(now, self.lease_s):
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
        if here.session is not None:
            for owner in here.session.owners:
                owner.abort()
        here.session = None
        here.sequence += 1
        self.changed.notify_all()
