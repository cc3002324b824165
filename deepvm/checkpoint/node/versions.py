"""State of checkpoints, sessions and jobs on a node; ``version_registry`` has the rules."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from deepvm.checkpoint.format.crc_combine import CrcBoundaries, CrcPiece
from deepvm.checkpoint.format.layout import Layout, Ranges, Segment, runs
from deepvm.checkpoint.format.manifest import CommitRecord

_REMEMBERED = 256  # outcomes of a session's versions, also where the slot was reused since


class State(str, Enum):
    """States of a version: receiving parts, computing checksums, complete; or dropped."""

    RECEIVING = "receiving"
    FINISHING = "finishing"
    COMPLETE = "complete"
    DROPPED = "dropped"


class Sender(Protocol):
    """A rank's connection and its ``HELLO``; ``digest``: of its layout; ``epoch``: 0 if none."""

    job: str
    session: str
    world: int
    rank: int
    digest: str
    epoch: int

    def abort(self) -> None:
        """Close it now; pending calls fail."""

    def gone(self) -> bool:
        """Whether its peer has closed it, perhaps unnoticed by its own thread."""


@dataclass(eq=False)
class Claim:
    """Memory for a piece that a connection is receiving. ``ended``: its bytes no longer count."""

    version: Version
    rank: int
    start: int
    end: int
    sender: Sender
    view: memoryview
    ended: bool = False


class LayoutIndex:
    """A layout and what is derived from it once.

    Attributes:
        runs: each rank's ranges, sorted, neighbours joined. cuts: where pieces are cut for their
            checksums.
        document: bytes of the layout as received; in memory all this takes about eight times as
            many.
    """

    def __init__(self, layout: Layout, document: int = 0) -> None:
        self.layout = layout
        self.document = document
        self.runs = tuple(runs(shard) for shard in layout.shards)
        self.cuts = CrcBoundaries.of(layout)

    def run_end(self, rank: int, place: int) -> int:
        """Where the last run of a rank that starts at or before ``place`` ends; 0: none."""
        own = self.runs[rank]
        at = bisect_right(own, Segment(place, self.layout.size)) - 1
        if at >= 0:
            return own[at].offset + own[at].length
        return 0


@dataclass(eq=False)
class Version:
    """A version in a slot.

    Attributes:
        heard: when a sender's request for it last came, monotonic.
        attempt_ids: of which attempt each rank's part is. attempt_number: that of all parts.
        received: verified ranges of each rank, and ``pieces`` their checksums. committed: ranks
            whose part is whole.
        claims: ranges being received. pins: threads that read the slot. senders: connections with
            credit for it.
        manifest: not before it is complete. flushed: on disk as well. best: the training's best so
            far.
        superseded: the same run saves its number again, so this one's outcome is no longer
            reported.
        renewed: how often verified bytes were discarded. early: a write before it was complete was
            tried.
    """

    job: str
    number: int
    session: str
    index: LayoutIndex
    slot: memoryview | None
    heard: float
    state: State = State.RECEIVING
    attempt_ids: dict[int, str] = field(default_factory=dict)
    received: defaultdict[int, Ranges] = field(default_factory=lambda: defaultdict(Ranges))
    committed: set[int] = field(default_factory=set)
    pieces: list[CrcPiece] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    senders: set[Sender] = field(default_factory=set)
    pins: int = 0
    manifest: CommitRecord = field(init=False, repr=False)
    flushed: bool = False
    best: bool = False
    superseded: bool = False
    attempt_number: int = 0
    renewed: int = 0
    early: bool = False

    @property
    def image(self) -> memoryview:
        """The file's bytes; only for holders of a claim, a pin or the lock."""
        assert self.slot is not None, "the slot was given back"
        return self.slot[: self.index.layout.size]

    @property
    def used(self) -> bool:
        """Whether a thread is reading or writing the slot."""
        return bool(self.claims) or self.pins > 0 or self.state is State.FINISHING

    def reach(self, start: int) -> int:
        """The end of what is verified without a gap from ``start`` on."""
        while (end := max((r.reach(start) for r in self.received.values()), default=start)) > start:
            start = end
        return start

    def forget(self, rank: int) -> None:
        self.renewed += bool(self.received.pop(rank, None))
        self.committed.discard(rank)
        self.pieces = [p for p in self.pieces if p.end > self.index.run_end(rank, p.start)]

    def missing(self, rank: int) -> Iterator[tuple[int, int]]:
        """The ranges of a rank's part that are not verified."""
        return self.received[rank].missing(self.index.runs[rank])


@dataclass(eq=False)
class Session:
    """One training run.

    Attributes:
        name: its random id. senders: its connections. heard: when one of them last sent something,
            monotonic.
        reserved: the newest version that each rank began. skipped: versions for which there was no
            room, and which ranks know: all must get the same answer, or some would wait in vain
            for the parts of the others.
        complete, durable: the last numbers whose latest attempt is complete or durable.
    """

    name: str
    heard: float
    senders: set[Sender] = field(default_factory=set)
    reserved: dict[int, int] = field(default_factory=dict)
    skipped: OrderedDict[int, set[int]] = field(default_factory=OrderedDict)
    complete: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    durable: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def skips(self, number: int, rank: int) -> bool:
        """Whether a rank must skip a checkpoint as another did; a second request is let through."""
        answered = self.skipped.get(number, {rank})
        if rank not in answered:
            answered.add(rank)
            return True
        self.skipped.pop(number, None)
        while len(self.skipped) > _REMEMBERED:
            self.skipped.popitem(last=False)
        return False

    def save_again(self, number: int) -> None:
        for outcome in (self.complete, self.durable):
            if number in outcome:
                outcome.remove(number)

    def alive(self, now: float, lease_s: float) -> bool:
        """Whether one of its connections may still send."""
        return now - self.heard < lease_s and not all(sender.gone() for sender in self.senders)


@dataclass(eq=False)
class Job:
    """A job's versions, layouts and session.

    Attributes:
        layouts: by digest. partial, complete: versions by number, ``complete`` in the order of
            completion.
        sequence: incremented when a version changes its state, for those who wait.
        hold: versions from this number on stay on disk; None: only the newest. trouble: why the
            disk fails.
    """

    name: str
    session: Session
    layouts: OrderedDict[str, LayoutIndex] = field(default_factory=OrderedDict)
    partial: dict[int, Version] = field(default_factory=dict)
    complete: dict[int, Version] = field(default_factory=dict)
    sequence: int = 0
    hold: int | None = None
    trouble: str = ""

    def keeps(self, version: Version) -> bool:
        """Whether a complete checkpoint is this run's newest, by number or by completion time.

        They differ when a run goes back. Versions of earlier runs count until this one has
        completed something.
        """
        return version is self.last or version.number == max(v.number for v in self._newest())

    @property
    def last(self) -> Version | None:
        """The version that this run, or else an earlier one, completed last."""
        return next(reversed(self._newest()), None)

    def _newest(self) -> list[Version]:
        own = [v for v in self.complete.values() if v.session == self.session.name]
        return own or [*self.complete.values()]


class Reservation(NamedTuple):
    """Permission to send a rank's part of a version, in one attempt."""

    version: Version
    rank: int
    attempt_id: str
