"""State of checkpoints, sessions and jobs on a node; ``version_registry`` has the rules."""

from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Protocol

from deepvm.checkpoint.format.checksums import CrcBoundaries, CrcPiece
from deepvm.checkpoint.format.layout import Layout, Ranges, Segment, runs
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.records import dataclass, field

_REMEMBERED = 256  # outcomes of a session's checkpoints, also where the slot was reused since


class State(str, Enum):
    """States of a checkpoint."""

    RECEIVING = "receiving"
    FINISHING = "finishing"
    COMPLETE = "complete"
    DROPPED = "dropped"


class Sender(Protocol):
    """A rank's connection and its ``HELLO``."""

    job: str
    session: str
    world: int
    rank: int
    digest: str  # of its layout
    epoch: int  # 0: none

    def abort(self) -> None:
        """Close it now; pending calls fail."""

    def gone(self) -> bool:
        """Whether its peer has closed it, perhaps unnoticed by its own thread."""


@dataclass(eq=False)
class Claim:
    """Memory for a piece that a connection is receiving."""

    version: "Version"
    rank: int
    start: int
    end: int
    sender: Sender
    view: memoryview
    ended: bool = False  # its bytes no longer count


class LayoutIndex:
    """A layout and what is derived from it once, in memory eight times its document's size."""

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
    """A checkpoint in a slot."""

    job: str
    number: int
    session: str
    index: LayoutIndex
    slot: memoryview | None
    heard: float  # when a sender's request for it last came, monotonic
    state: State = State.RECEIVING
    attempt_ids: dict[int, str] = field(default_factory=dict)  # the attempt of each rank's part
    # Verified ranges of each rank
    received: defaultdict[int, Ranges] = field(default_factory=lambda: defaultdict(Ranges))
    committed: set[int] = field(default_factory=set)
    pieces: list[CrcPiece] = field(default_factory=list)  # checksums of ``received``
    claims: list[Claim] = field(default_factory=list)
    senders: set[Sender] = field(default_factory=set)  # with credit for it
    pins: int = 0  # threads that read the slot
    manifest: CommitRecord = field(init=False, repr=False)
    flushed: bool = False
    best: bool = False
    superseded: bool = False  # its run saves this number again: no outcome is reported
    attempt_number: int = 0
    renewed: int = 0  # how often verified bytes were discarded
    early: bool = False  # a write before it was complete was tried

    @property
    def image(self) -> memoryview:
        """The file's bytes; only for holders of a claim, a pin or the lock."""
        assert self.slot is not None, "the slot was given back"
        return self.slot[: self.index.layout.size]

    @property
    def used(self) -> bool:
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
        return self.received[rank].missing(self.index.runs[rank])


@dataclass(eq=False)
class Session:
    """One training run, by its random id."""

    name: str
    heard: float  # when one of its connections last sent something, monotonic
    senders: set[Sender] = field(default_factory=set)
    reserved: dict[int, int] = field(default_factory=dict)  # by rank, the newest checkpoint
    # Checkpoints for which there was no space, and the ranks that know: all must get the same
    # answer
    skipped: OrderedDict[int, set[int]] = field(default_factory=OrderedDict)
    # The last numbers whose latest attempt is so
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
        return now - self.heard < lease_s and not all(sender.gone() for sender in self.senders)


@dataclass(eq=False)
class Job:
    """A job's checkpoints, layouts and session."""

    name: str
    session: Session
    layouts: OrderedDict[str, LayoutIndex] = field(default_factory=OrderedDict)  # by digest
    partial: dict[int, Version] = field(default_factory=dict)
    complete: dict[int, Version] = field(default_factory=dict)  # in the order of completion
    sequence: int = 0  # incremented when a checkpoint changes its state
    hold: int | None = None  # checkpoints from this one on stay on disk; None: only the newest
    trouble: str = ""  # why the disk fails

    def keeps(self, version: Version) -> bool:
        """Whether it is this run's newest, by number or by completion (a run may go back)."""
        return version is self.last or version.number == max(v.number for v in self._newest())

    @property
    def last(self) -> Version | None:
        return next(reversed(self._newest()), None)

    def _newest(self) -> list[Version]:
        own = [v for v in self.complete.values() if v.session == self.session.name]
        return own or [*self.complete.values()]


class Reservation(NamedTuple):
    """Permission to send a rank's part of a checkpoint, in one attempt."""

    version: Version
    rank: int
    attempt_id: str
