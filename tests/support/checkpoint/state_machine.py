"""The commit protocol as a machine of states: whatever ranks, runs, disks and clocks do, in
whatever order.

The model is simple: the bytes that each attempt of each rank has sent, and what was told to be
complete or durable.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import NewVersion
from deepvm.checkpoint.network.protocol import RequestRefused
from deepvm.checkpoint.node.flusher import Flusher
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Claim, Reservation, State, Version
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.errors import CheckpointError
from support.checkpoint.images import chunk_crcs
from support.checkpoint.memory_nodes import finished, make_layout

SIZE, LEASE_S, KEEP = 3000, 30.0, 2
SLOT = 4096
FATES = ["good"] * 4 + ["never", "slow", "damaged", "anew"]
RUNS = ("first", "second", "third")
NUMBERS, ONE = st.integers(1, 6), st.integers(0, 99)


@lru_cache(maxsize=4096)
def sent(run: str, number: int, rank: int, put: int) -> bytes:
    """All bytes of a file as one attempt of one rank would send them."""
    return random.Random(f"{run} {number} {rank} {put}").randbytes(SIZE)


@dataclass(eq=False)
class Sender:
    """A connection, as the registry sees it, and what its peer is about."""

    session: str
    rank: int
    world: int
    digest: str
    job: str = "job"
    epoch: int = 0
    ticket: Reservation | None = None
    put: int = 0
    dead: bool = False
    claims: list[Claim] = field(default_factory=list)

    def abort(self) -> None:
        self.dead = True

    def gone(self) -> bool:
        return self.dead


class Clock:
    """What the early writer takes for the time."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


class EndedError(BaseException):
    """The node was killed."""


class Writing(threading.Thread):
    """The flusher's thread, with one version.

    It and the test take turns, so that the test alone decides what happens
    between what: it runs in ``proceed`` only, until it waits for somebody or has got some bytes
    further.
    """

    def __init__(self, flusher: Flusher, version: Version) -> None:
        super().__init__(daemon=True)
        self._flusher, self.version, self.slot = flusher, version, version.slot
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self._fate: BaseException | None = None
        self._error: BaseException | None = None
        self.broken, self.done, self.result = False, False, None
        self.start()

    def run(self) -> None:
        self._mine.acquire()
        try:
            self.result = self._flusher._write(self.version)
        except EndedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.done = True
            self._others.release()

    def turn(self) -> None:
        """Let the others go on; who is in the midst of something may be disturbed in it."""
        self._others.release()
        self._mine.acquire()
        if self._fate is not None:
            fate, self._fate = self._fate, None
            raise fate

    def proceed(self, fate: BaseException | None = None) -> None:
        """Let it do its next step; or fail in it."""
        self._fate = fate
        self._mine.release()
        assert self._others.acquire(timeout=20), "the writer waits for what nobody will do"
        if self.done:
            self.join()
            if self._error is not None:
                raise self._error


class Turns(threading.Condition):
    """A lock, at which a writer that waits lets the test go on."""

    def wait(self, timeout: float | None = None) -> bool:
        writing = threading.current_thread()
        if not isinstance(writing, Writing):
            return super().wait(timeout)
        self.release()
        try:
            writing.turn()
        finally:
            self.acquire()
        return True


class StepwiseStore(FileTier):
    """A disk that a thread writes to step by step, and that has the bytes of the moment when they
    were written.
    """

    def write(self, new: NewVersion) -> None:
        on_disk = memoryview(bytearray(len(new.image)))

        def ends() -> Iterator[int]:
            done = 0
            for end in new.final:
                on_disk[done:end] = new.image[done:end]
                done = end
                self._step()
                yield end

        super().write(replace(new, image=on_disk, final=ends()))

    @staticmethod
    def _step() -> None:
        writing = threading.current_thread()
        if isinstance(writing, Writing):
            writing.turn()


class Protocol(RuleBasedStateMachine):
    """Several ranks of up to three runs of one job, a disk that may fail, and a node that may start
    anew.
    """

    world, persists, slots = 2, True, 3

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory(prefix="deepvm-states-")
        self.folder = VersionFolder(Path(self.home.name), direct=False)
        self.layouts = [make_layout(SIZE, self.world, seed=seed) for seed in (1, 2)]
        CLOCK.now = 1.0
        self.writing: Writing | None = None
        self.living: list[Sender] = []
        self.puts = 0
        self.begin()

    def begin(self) -> None:
        """The node starts: nothing is in its memory."""
        self.registry = VersionRegistry(
            self.slots * SLOT, persists=self.persists, lease_s=LEASE_S, clock=CLOCK.monotonic
        )
        self.registry.changed = Turns()
        self.store = StepwiseStore(self.folder.path)
        self.store._direct = False
        self.flusher = Flusher(self.registry, self.store, keep=KEEP)
        self.seen: dict[Version, bytes] = {}
        self.committed: dict[tuple[Version, int], int] = {}
        self.borrowed: list[tuple[Version, bytes]] = []
        self.in_use: dict[object, memoryview] = {}
        self.begun: dict[int, Version] = {}
        if not hasattr(self, "acknowledged"):
            self.acknowledged: dict[int, bytes] = {}
            self.durable: dict[int, bytes] = {}
        # What was in memory only is lost with it; that was promised for the loss of the trainer,
        # not of the node.
        self.acknowledged = dict(self.durable)
        self.newest, self.known_run = next(reversed(self.acknowledged), 0), ""

    def teardown(self) -> None:
        self.kill()
        for sender in self.living:
            self.end(sender)
        self.home.cleanup()

    # --- connections ------------------------------------------------------------------------------

    def layout_of(self, run: str) -> Layout:
        return self.layouts[run == "third"]

    def current(self) -> str:
        job = self.registry.jobs.get("job")
        return job.session.name if job is not None else ""

    @rule(run=st.sampled_from(RUNS), rank=st.integers(0, 3))
    def connect(self, run: str, rank: int) -> None:
        self.enter(run, rank % self.world)

    def enter(self, run: str, rank: int) -> Sender | None:
        layout = self.layout_of(run)
        sender = Sender(run, rank, self.world, layout.digest)
        job = self.registry.jobs.get("job")
        rival = job.session if job is not None and job.session.name != run else None
        alive = (
            rival is not None
            and CLOCK.now - rival.heard < LEASE_S
            and any(not s.gone() for s in rival.senders)
        )
        try:
            known = self.registry.enter(sender)
        except RequestRefused as error:
            assert error.code == "session" and alive
            return None
        assert not alive, "a living run was pushed aside"
        if not known:
            self.registry.learn(sender, layout)
        self.living.append(sender)
        return sender

    def end(self, sender: Sender) -> None:
        """As a connection's thread ends: what it was receiving does not count."""
        for claim in sender.claims:
            # What came of it until then
            claim.view[: len(claim.view) // 2] = bytes(len(claim.view) // 2)
            self.registry.settle(claim, None)
        sender.claims.clear()
        sender.ticket, sender.dead = None, True
        self.registry.leave(sender)
        if sender in self.living:
            self.living.remove(sender)

    def pick(self, one: int) -> Sender | None:
        return self.living[one % len(self.living)] if self.living else None

    @rule(one=ONE)
    def disconnect(self, one: int) -> None:
        if (sender := self.pick(one)) is not None:
            self.end(sender)

    @rule(one=ONE)
    def vanish(self, one: int) -> None:
        """Its peer is gone, which its thread has not seen yet."""
        if (sender := self.pick(one)) is not None:
            sender.dead = True

    @rule(seconds=st.sampled_from([1.0, 10.0, LEASE_S + 1]))
    def time_passes(self, seconds: float) -> None:
        CLOCK.now += seconds

    # --- one rank's part --------------------------------------------------------------------------

    @rule(one=ONE, number=NUMBERS, again=st.booleans())
    def reserve(self, one: int, number: int, again: bool) -> None:
        if (sender := self.pick(one)) is not None:
            self.ask(sender, number, again)

    def ask(self, sender: Sender, number: int, again: bool = False) -> None:
        if sender.claims:  # a connection reads one frame after the other
            return
        if not again:
            self.puts += 1
            sender.put = self.puts
        sender.ticket = None
        try:
            answer = self.registry.reserve(sender, number, f"{sender.put}")
        except RequestRefused as error:
            assert error.code in ("request", "layout") or sender.session != self.current()
            self.end(sender)
            return
        assert sender.session == self.current()
        if isinstance(answer, Reservation):
            sender.ticket = answer
            self.begun[number] = answer.version

    def pieces(self, sender: Sender) -> list[tuple[int, int]]:
        return [
            (start, min(start + 700, offset + length))
            for offset, length in self.layout_of(sender.session).shards[sender.rank]
            for start in range(offset, offset + length, 700)
        ]

    @rule(one=ONE, which=st.integers(0, 99), fate=st.sampled_from(["good", "slow", "damaged"]))
    def data(self, one: int, which: int, fate: str) -> None:
        if (sender := self.pick(one)) is not None:
            self.send(sender, which, fate)

    def send(self, sender: Sender, which: int, fate: str = "good") -> None:
        if sender.ticket is None or sender.claims:
            return
        pieces = self.pieces(sender)
        start, end = pieces[which % len(pieces)]
        try:
            claim = self.registry.claim(sender, sender.ticket, start, end)
        except RequestRefused:  # the connection ends
            self.end(sender)
            return
        if claim is None:
            return
        sender.claims.append(claim)
        assert claim.version.slot is not None
        self.in_use[claim] = claim.version.slot
        if fate == "damaged":
            self.receive(sender, claim)
            claim.view[0] ^= 0xFF
            sender.claims.remove(claim)
            self.registry.settle(claim, None)
        elif fate == "good":
            self.arrive(sender)

    @staticmethod
    def receive(sender: Sender, claim: Claim) -> None:
        claim.view[:] = sent(sender.session, claim.version.number, sender.rank, sender.put)[
            claim.start : claim.end
        ]

    def arrive(self, sender: Sender) -> None:
        claim = sender.claims.pop()
        self.receive(sender, claim)
        self.registry.settle(claim, claim.version.index.cuts.pieces(claim.view, claim.start))

    @rule(one=ONE)
    def slow_data_arrives(self, one: int) -> None:
        sender = self.pick(one)
        if sender is not None and sender.claims:
            self.arrive(sender)

    @rule(one=ONE)
    def commit(self, one: int) -> None:
        if (sender := self.pick(one)) is not None:
            self.finish(sender)

    def finish(self, sender: Sender) -> None:
        if sender.ticket is None or sender.claims:
            return
        version = sender.ticket.version
        try:
            receipt = self.registry.commit(sender.ticket)
        except RequestRefused as error:
            assert error.code == "stale"
            self.end(sender)
            return
        assert sender.session == self.current()
        if not receipt["missing"]:
            self.committed[version, sender.rank] = sender.put
        assert not receipt["complete"] or version.state is State.COMPLETE

    @rule(
        number=NUMBERS,
        order=st.randoms(use_true_random=False),
        first=st.sampled_from(FATES),
        stay=st.booleans(),
    )
    def whole_version(self, number: int, order: random.Random, first: str, stay: bool) -> None:
        """All ranks of the living run, in any order, perhaps with a fault in one piece: chance
        would hardly do it.

        Whoever writes gets on meanwhile, perhaps with this one; and one rank may begin anew in the
        middle of it.
        """
        senders = [self.enter(self.current() or RUNS[0], rank) for rank in range(self.world)]
        steps = [
            (s, piece) for s in senders if s is not None for piece in range(len(self.pieces(s)))
        ]
        for sender in senders:
            if sender is not None:
                self.ask(sender, number)
        order.shuffle(steps)
        if self.persists and self.writing is None and order.random() < 0.5:
            # As they lie: the disk can begin
            steps.sort(key=lambda step: self.pieces(step[0])[step[1]])
            self.begin_to_write()
        anew = len(steps) // 2 if first == "anew" else -1
        for count, (sender, piece) in enumerate(steps):
            if count == anew:
                self.ask(sender, number)
                steps += [(sender, again) for again in range(len(self.pieces(sender)))]
            if count or first != "never":
                self.send(sender, piece, "good" if count or anew >= 0 else first)
            self.step()
        for sender in senders:
            if sender is not None:
                self.finish(sender)
                if not stay:
                    self.end(sender)

    # --- the disk and the readers -----------------------------------------------------------------

    @precondition(lambda self: self.persists and self.writing is None)
    @rule(works=st.booleans())
    def flush(self, works: bool) -> None:
        version = self.registry.next_flush(0, (), None)
        if version is not None:
            self.write(version)
            while self.writing is not None:
                self.step(works)

    @precondition(lambda self: self.persists and self.writing is None)
    @rule()
    def begin_to_write(self) -> None:
        """What waits for the disk, or else what has come of a version so far."""
        version = self.registry.next_flush(0, (), 0)
        if version is not None:
            self.write(version)

    def write(self, version: Version) -> None:
        self.writing = Writing(self.flusher, version)
        self.step()

    @precondition(lambda self: self.writing is not None)
    @rule(steps=st.integers(1, 12), works=st.sampled_from([True] * 5 + [False]))
    def go_on_writing(self, steps: int, works: bool) -> None:
        for step in range(steps):
            self.step(works or step < steps - 1)

    def step(self, works: bool = True) -> None:
        """Let the writer do its next step, or have the disk fail in it."""
        writing = self.writing
        if writing is None:
            return
        writing.proceed(None if works else CheckpointError("no space left"))
        writing.broken |= not works
        if writing.done:
            self.writing = None
            version = writing.version
            if writing.result:
                assert version in self.seen, "what never was complete is on the disk"
                self.durable.pop(version.number, None)
                self.durable[version.number] = self.seen[version]
            assert writing.result is not False or writing.broken, self.flusher.times["last_error"]
            self.registry.unpin(version)

    def kill(self) -> None:
        """The node's end, for the writer."""
        writing, self.writing = self.writing, None
        if writing is not None and not writing.done:  # else its error has ended this run
            writing.proceed(EndedError())
            assert writing.done

    @staticmethod
    def whole(version: Version, puts: dict[int, int]) -> bytes:
        """The file that a version becomes of these attempts of the ranks."""
        layout, image = version.index.layout, bytearray(SIZE)
        for rank, put in puts.items():
            for offset, length in layout.shards[rank]:
                part = sent(version.session, version.number, rank, put)[offset : offset + length]
                image[offset : offset + length] = part
        return finished(memoryview(image), layout)

    @rule(one=ONE)
    def borrow(self, one: int) -> None:
        complete = self.complete()
        if complete:
            version = self.registry.complete("job")[complete[one % len(complete)].number]
            assert version.slot is not None
            version.pins += 1  # as while it is copied
            self.borrowed.append((version, self.seen[version]))
            self.in_use[version] = version.slot

    @rule()
    def give_back(self) -> None:
        if self.borrowed:
            self.registry.unpin(self.borrowed.pop()[0])

    @rule(really=st.integers(0, 2))
    def restart(self, really: int) -> None:
        if really:  # else hardly anything would ever be in its memory
            return
        self.kill()
        for sender in list(self.living):
            sender.claims.clear()
            sender.ticket, sender.dead = None, True
        self.living.clear()
        self.begin()

    # --- what holds whatever happens --------------------------------------------------------------

    @invariant()
    def complete_is_whole_and_of_one_attempt(self) -> None:
        if self.current() != self.known_run:  # one that comes back goes on from its own versions
            self.known_run = self.current()
            own = [
                v.number for v in self.complete() if v in self.seen and v.session == self.known_run
            ]
            self.newest = own[-1] if own and not self.persists else self.newest
        for version in self.complete():
            if version in self.seen:
                continue
            puts = {rank: self.committed.get((version, rank), 0) for rank in range(self.world)}
            assert all(puts.values()), f"not all ranks committed version {version.number}: {puts}"
            self.seen[version] = self.acknowledged[version.number] = self.whole(version, puts)
            self.newest = version.number
            assert version.manifest is not None and version.manifest.crcs == chunk_crcs(
                version.image
            )

    def complete(self) -> list[Version]:
        job = self.registry.jobs.get("job")
        return list(job.complete.values()) if job is not None else []

    @invariant()
    def complete_stays_what_it_was(self) -> None:
        for version in self.complete():
            assert bytes(version.image) == self.seen[version]
        for version, content in self.borrowed:
            assert bytes(version.image) == content, "a reader's bytes changed"

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        if not self.acknowledged:
            return
        memory = {v.number: self.seen[v] for v in self.complete()}
        # Where memory is all, and little, what a run went back behind may go.
        for number in {max(self.acknowledged) if self.persists else 0, self.newest} - {0}:
            if memory.get(number) != self.acknowledged[number]:
                path = self.folder.file("job", number)
                verify(path)
                assert path.read_bytes() == self.acknowledged[number]

    @invariant()
    def who_asks_is_told_of_the_last_attempt(self) -> None:
        job = self.registry.jobs.get("job")
        run = job.session if job is not None else None
        for number in run.complete if run is not None else ():
            assert self.begun[number] in self.seen, (
                f"version {number} was complete in an earlier attempt"
            )
        for number in run.durable if run is not None else ():
            assert self.begun[number].flushed, f"version {number} was durable in an earlier attempt"

    @invariant()
    def the_disk_has_what_was_sent(self) -> None:
        listed = self.folder.versions("job")
        assert len(listed) <= 2 * KEEP
        for manifest in listed:
            path = self.folder.file("job", manifest.version)
            verify(path, manifest)
            assert path.read_bytes() == self.durable[manifest.version]
        job = self.registry.jobs.get("job")
        for version in job.complete.values() if job is not None else ():
            assert not version.flushed or self.durable.get(version.number) == self.seen[version]

    @invariant()
    def memory_stays_within_the_limit(self) -> None:
        job = self.registry.jobs.get("job")
        held = (
            {id(v.slot) for v in (*job.partial.values(), *job.complete.values())}
            if job is not None
            else set()
        )
        held |= {id(self.in_use[v]) for v, _ in self.borrowed}
        held |= {id(self.writing.slot)} if self.writing is not None else set()
        held |= {id(self.in_use[c]) for s in self.living for c in s.claims}
        held -= {id(None)}
        assert not held & {id(s) for s in self.registry.pool.free}, "a slot in use is free"
        assert (
            (len(held) + len(self.registry.pool.free)) * SLOT
            == self.registry.pool.allocated
            <= self.slots * SLOT
        )


class OneRank(Protocol):
    world = 1


class MemoryOnly(Protocol):
    persists, slots = False, 2


class ThreeRanks(Protocol):
    world, slots = 3, 4
