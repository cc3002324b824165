"""The node's rules: who may send what, and when a version is complete.

One lock protects everything here; bytes move and checksums are made outside it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.crc_combine import Atom, seal_by_parts
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.network.protocol import MOST_DOCUMENT, Refused
from deepvm.checkpoint.node.eviction import VersionMemory
from deepvm.checkpoint.node.versions import (
    Busy,
    Claim,
    CommitReply,
    Job,
    Owner,
    Plan,
    Reservation,
    Session,
    State,
    Version,
    VersionStates,
)

_MOST_PLANS = 4
_LEAST_DOCUMENT = 2**20
_MOST_DOCUMENTS = 2
"""Layouts of the most bytes that are kept at a time; most are much smaller."""
_MOST_JOBS = 1000
LEAST_PIECE = 4096
"""Bytes of a piece that does not end a run: each is remembered until its version is complete."""
_ABORT_S = 5.0


class VersionRegistry(VersionMemory):
    """All versions in memory, and what senders may do."""

    def enter(self, owner: Owner, job: str, session: str, world: int, rank: int, digest: str) -> bool:
        """Register a sender.

        Returns:
            Whether the layout of this digest is known.

        Raises:
            Refused: another run of this name is alive. RequestError: the job's name.
        """
        check_job(job)
        with self.changed:
            now = self._clock()
            if job not in self.jobs and len(self.jobs) >= _MOST_JOBS and not self._forget(now):
                raise Refused("full", f"the node knows {_MOST_JOBS} jobs already, none of which it may forget")
            here = self.jobs.setdefault(job, Job(job))
            current = here.session
            if current is not None and current.name != session:
                if current.alive(now, self.lease_s):
                    raise Refused(
                        "session",
                        f"another training run of the name {job!r} is sending to this node; give this one another "
                        f"name, or stop the other: it is forgotten {self.lease_s:.0f} s after its last sign of life",
                    )
                self._end(here)
            if here.session is None:
                here.session = Session(session, now)
            here.session.owners.add(owner)
            here.session.heard = now
            plan = here.plans.get(digest)
            if plan is not None:
                here.plans.move_to_end(digest)
                if not (plan.layout.world == world and 0 <= rank < world):
                    raise Refused("layout", f"rank {rank} of {world} does not fit a layout for {plan.layout.world}")
            return plan is not None

    @property
    def most_document(self) -> int:
        """Bytes that a layout may have as it comes; reading one takes up to 25 times as many, and keeping it 8."""
        return min(MOST_DOCUMENT, max(_LEAST_DOCUMENT, self.pool.limit // 256))

    def read_layout(self, raw: bytes) -> Layout:
        """Read a layout, one at a time: what that takes must stay small beside the memory for versions.

        Raises:
            RequestError: it is none.
        """
        with self._reading:
            return Layout.from_json(raw)

    def learn(self, job: str, session: str, layout: Layout, document: int = 0) -> None:
        """Register a layout of ``document`` bytes.

        Raises:
            Refused: two versions of it do not fit into the memory, or there are too many large layouts; or the session
                is over.
        """
        with self._reading:
            plan = Plan.of(layout, document)
        with self.changed:
            here, _ = self._current(job, session)
            self.pool.check(layout.size)
            here.plans.pop(layout.digest, None)
            while len(here.plans) >= _MOST_PLANS:
                here.plans.popitem(last=False)
            self._make_room(here, document)
            here.plans[layout.digest] = plan

    def _make_room(self, here: Job, document: int) -> None:
        """Forget layouts, those of runs that are over first, until one more fits; who needs one again says it again."""
        now = self._clock()
        over = [j for j in self.jobs.values() if not j.alive(now, self.lease_s)]
        for job in (*over, here):
            while job.plans and self._documents() + document > _MOST_DOCUMENTS * self.most_document:
                job.plans.popitem(last=False)
        if self._documents() + document > _MOST_DOCUMENTS * self.most_document:
            raise Refused("full", "the layouts of other jobs fill the node's memory for layouts; give it more --memory")

    def _documents(self) -> int:
        return sum(plan.document for job in self.jobs.values() for plan in job.plans.values())

    def leave(self, owner: Owner) -> None:
        """Forget a connection that ended."""
        with self.changed:
            for job in list(self.jobs.values()):
                self._leave_versions(owner, job)
                if job.session is not None:
                    job.session.owners.discard(owner)
                    if not (job.session.owners or job.partial or job.complete):
                        del self.jobs[job.name]
            self.changed.notify_all()

    @staticmethod
    def _leave_versions(owner: Owner, here: Job) -> None:
        for version in here.partial.values():
            version.senders.discard(owner)

    def reserve(
        self,
        owner: Owner,
        job: str,
        session: str,
        digest: str,
        rank: int,
        number: int,
        put: str,
        *,
        hold: int | None = None,
        best: bool = False,
        attempt: int = 0,
    ) -> Reservation | Busy:
        """Reserve a slot for a version, or join the one that another rank reserved.

        Args:
            owner: who asks.
            job: the version's job.
            session: its training run.
            digest: its layout.
            rank: whose part is to come.
            number: the version.
            put: random for each attempt of the trainer to save it; what came of an earlier one may be other bytes.
            hold: the oldest version that must stay on disk: another node may have no newer one. None: as before.
            best: the training calls it the best so far.
            attempt: which save of this run it is, the same for all ranks; a later one takes the place of an earlier.

        Raises:
            Refused: the session or the attempt is over, or the layout another one than the other ranks'.
        """
        with self.changed:
            here, run = self._current(job, session)
            here.hold = here.hold if hold is None else hold
            self._leave_versions(owner, here)
            run.reserved[rank] = max(number, run.reserved.get(rank, 0))
            plan = here.plans.get(digest)
            if plan is None:
                raise Refused("layout", "its layout is not known here; say HELLO again")
            for known in (here.partial.get(number), here.complete.get(number)):
                if known is not None and known.session == session and known.puts.get(rank) == put:
                    return Reservation(known, rank, put)  # an answer was lost
                if known is not None and known.session == session and known.attempt > attempt:
                    raise Refused("stale", f"version {number} of {job!r} is being saved anew")
            version = here.partial.get(number)
            if version is not None and (version.session != session or version.state is State.FINISHING):
                return Busy(1.0, "this version is being completed from an earlier attempt")
            if version is not None and version.attempt < attempt:
                self._drop(version)  # also what other ranks still send of it
                version = None
            if version is not None and rank in version.puts:
                self._end_claims(version, rank)
                if version.state is not State.RECEIVING:  # it went on while the old connections ended
                    return Busy(1.0, "this version is being completed from an earlier attempt")
            if version is not None and set(version.puts) <= {rank}:
                self._drop(version)  # only this rank's own earlier attempt
                version = None
            if version is None:
                if run.skips(number, rank):
                    return Busy(1.0, "there was no room for this version")
                found = None if self.stopping else self._slot(here, plan.layout.size)
                if found is None:
                    self.counts["busy"] += 1
                    run.skipped[number] = {rank}
                    return Busy(1.0, "the node is stopping" if self.stopping else self._why())
                version = Version(job, number, session, plan, found, self._clock(), attempt=attempt)
                here.partial[number] = version
                run.complete.discard(number)
                run.durable.discard(number)
                if number in here.complete:
                    here.complete[number].superseded = True
                here.sequence += 1
                self.changed.notify_all()
            elif version.plan.layout.digest != digest:
                raise Refused("layout", f"the ranks hold different layouts of version {number}")
            version.forget(rank)
            version.puts[rank] = put
            version.best = version.best or best
            version.heard = run.heard = self._clock()
            version.senders.add(owner)
            return Reservation(version, rank, put)

    def claim(self, owner: Owner, reservation: Reservation, start: int, end: int) -> Claim | None:
        """Get the memory for a piece that is about to be received; None when it is here already and must be discarded.

        Verified bytes are never written again, and no two connections write the same bytes: a connection that does so
        still is a dead one whose peer has come back, and is ended.

        Raises:
            Refused: the session or the version is over, or the range not this rank's.
        """
        version, rank = reservation.version, reservation.rank
        with self.changed:
            while True:
                run = self._valid(reservation)
                if not version.plan.allows(rank, start, end):
                    raise Refused("request", f"bytes {start} to {end - 1} are not in the part of rank {rank}")
                version.heard = run.heard = self._clock()
                arrived = version.arrived(rank)
                if arrived.covers(start, end):
                    self.counts["duplicates"] += 1
                    return None
                if end - start < LEAST_PIECE and not version.plan.ends(rank, end):
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
        """End a claim; only verified bytes count, of which the checksums are kept. None: they are not."""
        with self.changed:
            version = claim.version
            version.claims.remove(claim)
            if verified is not None and not claim.ended and version.state is State.RECEIVING:
                version.arrived(claim.rank).add(claim.start, claim.end)
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

    def _end_claims(self, version: Version, rank: int) -> None:
        for claim in [c for c in version.claims if c.rank == rank]:
            if not self._ended(claim):
                raise Refused("request", f"version {version.number} is being received")

    def damaged(self) -> None:
        """Count a piece whose checksum was wrong."""
        with self.changed:
            self.counts["damaged_pieces"] += 1

    def commit(self, reservation: Reservation) -> CommitReply:
        """Commit a rank's part when all of it is verified; the last one completes the version.

        Raises:
            Refused: the session or the version is over.
        """
        version = reservation.version
        with self.changed:
            version.heard = self._valid(reservation).heard = self._clock()
            missing = tuple(version.missing(reservation.rank))
            if missing:
                return CommitReply(missing)
            version.committed.add(reservation.rank)
            last = version.state is State.RECEIVING and len(version.committed) == version.plan.layout.world
            if last:
                version.state = State.FINISHING
        if last:
            self._finish(self.jobs[version.job], version)
        with self.changed:
            return CommitReply((), version.state is State.COMPLETE, self.durable(version))

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
            version.manifest = Manifest.of(version.job, version.number, layout, crcs, best=version.best)
        except BaseException:
            with self.changed:
                self._drop(version)
                self._reuse(version)
            raise
        with self.changed:
            if self.closed:
                self._drop(version)
                self._reuse(version)
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

    def wait(self, job: str, session: str, sequence: int, limit_s: float) -> VersionStates:
        """Wait until something changed since ``sequence``, at most ``limit_s``.

        Raises:
            Refused: the session is over.
        """
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                here, run = self._current(job, session)
                run.heard = self._clock()
                left = deadline - time.monotonic()
                if here.sequence != sequence or left <= 0 or self.closed:
                    stuck = [v for v in self.queue if v.job == job and v.session == session] if here.trouble else []
                    return VersionStates(
                        here.sequence,
                        tuple(here.partial),
                        tuple(run.complete),
                        tuple(run.durable),
                        tuple((v.number, here.trouble) for v in stuck),
                    )
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
                self._reuse(version)
        if here.session is not None:
            for owner in here.session.owners:
                owner.abort()
        here.session = None
        here.sequence += 1
        self.changed.notify_all()
