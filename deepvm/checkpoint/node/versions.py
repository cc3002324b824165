"""State of versions, sessions and jobs on a node; :mod:`deepvm.checkpoint.node.version_registry` has the rules."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from deepvm.checkpoint.format.crc_combine import Atom, Cuts
from deepvm.checkpoint.format.layout import Layout, Ranges, Segment, runs
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.node.slots import Slot

REMEMBERED = 256
"""Version numbers of a session whose fate is remembered after their slot was used again."""


class State(str, Enum):
    """States of a version: receiving parts, computing checksums, complete; or dropped."""

    RECEIVING = "receiving"
    FINISHING = "finishing"
    COMPLETE = "complete"
    DROPPED = "dropped"


class Owner(Protocol):
    """A connection, as the registry sees it."""

    def abort(self) -> None:
        """End it now; whatever it waits for fails."""

    def gone(self) -> bool:
        """Whether its peer has ended it, which its thread may not have seen yet."""


@dataclass(eq=False)
class Claim:
    """A range of a version that a connection is writing into.

    Attributes:
        view: the memory. ended: nobody waits for these bytes any more; they do not count.
    """

    version: Version
    rank: int
    start: int
    end: int
    owner: Owner
    view: memoryview
    ended: bool = False


@dataclass(frozen=True)
class Plan:
    """A layout, with what is derived from it once.

    Attributes:
        runs: for each rank its ranges, sorted, neighbours joined. cuts: where pieces are cut for their checksums.
        document: bytes of the layout as it came; in memory all this takes about eight times as many.
    """

    layout: Layout
    runs: tuple[tuple[Segment, ...], ...]
    cuts: Cuts
    document: int = 0

    @classmethod
    def of(cls, layout: Layout, document: int = 0) -> Plan:
        """Derive it."""
        return cls(layout, tuple(runs(shard) for shard in layout.shards), Cuts.of(layout), document)

    def allows(self, rank: int, start: int, end: int) -> bool:
        """Whether a range is inside one run of a rank."""
        run = self._run(rank, start)
        return run is not None and end <= run.offset + run.length

    def ends(self, rank: int, end: int) -> bool:
        """Whether a run of a rank ends there."""
        run = self._run(rank, end - 1)
        return run is not None and end == run.offset + run.length

    def _run(self, rank: int, place: int) -> Segment | None:
        """The last run of a rank that begins at a place or before it."""
        own = self.runs[rank]
        at = bisect_right(own, Segment(place, self.layout.size)) - 1
        return own[at] if at >= 0 else None


@dataclass(eq=False)
class Version:
    """A version in a slot.

    Attributes:
        puts: which attempt each rank's part is of. received: verified ranges of each rank.
        committed: ranks whose part is whole. atoms: checksums of what is verified.
        claims: ranges being written. pins: threads that read the slot.
        senders: connections that were given credit for it last. heard: when one last came, monotonic.
        manifest: once complete. flushed: it is on disk as well. best: so far, says the training.
        attempt: which save of its run it is; all parts are of this one.
        superseded: the same run saves its number anew; what becomes of this one is nobody's answer any more.
        renewed: how often bytes that had come were to come again. early: somebody wrote it, or tried, before all came.
    """

    job: str
    number: int
    session: str
    plan: Plan
    slot: Slot | None
    heard: float
    state: State = State.RECEIVING
    puts: dict[int, str] = field(default_factory=dict)
    received: dict[int, Ranges] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    atoms: list[Atom] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    senders: set[Owner] = field(default_factory=set)
    pins: int = 0
    manifest: Manifest | None = None
    flushed: bool = False
    best: bool = False
    superseded: bool = False
    attempt: int = 0
    renewed: int = 0
    early: bool = False

    @property
    def image(self) -> memoryview:
        """The file's bytes; only for those who hold a claim or a pin, or the lock."""
        assert self.slot is not None, "the slot was given back"
        return self.slot.view[: self.plan.layout.size]

    @property
    def used(self) -> bool:
        """Whether a thread is reading or writing the slot."""
        return bool(self.claims) or self.pins > 0 or self.state is State.FINISHING

    def arrived(self, rank: int) -> Ranges:
        """The verified ranges of a rank's part."""
        return self.received.setdefault(rank, Ranges())

    def reach(self, start: int) -> int:
        """The end of what is verified without a gap from ``start`` on."""
        while (end := max((r.reach(start) for r in self.received.values()), default=start)) > start:
            start = end
        return start

    def forget(self, rank: int) -> None:
        """Discard a rank's part."""
        self.renewed += bool(self.received.pop(rank, None))
        self.committed.discard(rank)
        self.atoms = [a for a in self.atoms if not self.plan.allows(rank, a.start, a.end)]

    def missing(self, rank: int) -> Iterator[tuple[int, int]]:
        """The ranges of a rank's part that are not verified."""
        return self.arrived(rank).missing(self.plan.runs[rank])


class RecentNumbers:
    """The last numbers of a session, oldest forgotten first."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers: OrderedDict[int, None] = OrderedDict()

    def add(self, number: int) -> None:
        """Remember a number as the newest."""
        self._numbers.pop(number, None)
        self._numbers[number] = None
        if len(self._numbers) > REMEMBERED:
            self._numbers.popitem(last=False)

    def discard(self, number: int) -> None:
        """Forget a number."""
        self._numbers.pop(number, None)

    def __contains__(self, number: object) -> bool:
        """Whether it is remembered."""
        return number in self._numbers

    def __iter__(self) -> Iterator[int]:
        """The numbers, oldest first."""
        return iter(self._numbers)


class Session:
    """One training run.

    Attributes:
        name: its random id. owners: its connections. heard: when one of them last said something, monotonic.
        reserved: the newest version that each rank began. skipped: versions for which there was no room, and who was
            told: all ranks get the same answer, or the parts of some would wait in vain for the others.
        complete, durable: versions that it was, or would have been, told of; of a number, the one begun last.
    """

    def __init__(self, name: str, now: float) -> None:
        """Begin."""
        self.name, self.heard = name, now
        self.owners: set[Owner] = set()
        self.reserved: dict[int, int] = {}
        self.skipped: OrderedDict[int, set[int]] = OrderedDict()
        self.complete, self.durable = RecentNumbers(), RecentNumbers()

    def skips(self, number: int, rank: int) -> bool:
        """Whether a rank must skip a version as another one did; who asks a second time means it."""
        told = self.skipped.setdefault(number, {rank}) if number in self.skipped else {rank}
        if rank not in told:
            told.add(rank)
            return True
        self.skipped.pop(number, None)
        while len(self.skipped) > REMEMBERED:
            self.skipped.popitem(last=False)
        return False

    def alive(self, now: float, lease_s: float) -> bool:
        """Whether somebody is still there."""
        return now - self.heard < lease_s and not all(owner.gone() for owner in self.owners)


class Job:
    """A job's versions, layouts and session.

    Attributes:
        partial, complete: versions by number. ``complete`` in the order of completion.
        sequence: changes with every change of a version's state, for those who wait.
        hold: versions from this number on stay on disk; None: the newest alone. trouble: why the disk takes nothing.
    """

    def __init__(self, name: str) -> None:
        """Begin."""
        self.name = name
        self.session: Session | None = None
        self.plans: OrderedDict[str, Plan] = OrderedDict()
        self.partial: dict[int, Version] = {}
        self.complete: dict[int, Version] = {}
        self.sequence = 0
        self.hold: int | None = None
        self.trouble = ""

    def alive(self, now: float, lease_s: float) -> bool:
        """Whether somebody may still send to it."""
        return self.session is not None and self.session.alive(now, lease_s)

    def keeps(self, version: Version) -> bool:
        """Whether a complete version is the newest of this run, by its number or by the time of its completion.

        They differ when a run goes back to an earlier version. What earlier runs have completed counts as long as this
        one has completed nothing.
        """
        return version is self.last or version.number == max(v.number for v in self._newest())

    @property
    def last(self) -> Version | None:
        """The version that this run, or else one before it, has completed last."""
        return next(reversed(self._newest()), None)

    def _newest(self) -> list[Version]:
        session = self.session.name if self.session is not None else ""
        return [v for v in self.complete.values() if v.session == session] or [*self.complete.values()]


@dataclass(frozen=True)
class Reservation:
    """Permission to send a part. ``version``: where to; ``rank``: whose; ``put``: in which attempt."""

    version: Version
    rank: int
    put: str

    @property
    def received(self) -> tuple[tuple[int, int], ...]:
        """Ranges that are here already; needs the lock."""
        return tuple(self.version.arrived(self.rank))


@dataclass(frozen=True)
class Busy:
    """No room. ``retry_after_s``: when to ask for another version; ``reason``: for people."""

    retry_after_s: float
    reason: str


@dataclass(frozen=True)
class CommitReply:
    """The answer to a commit. ``missing``: ranges of the shard that are not here; else it is safe in this memory."""

    missing: tuple[tuple[int, int], ...]
    complete: bool = False
    durable: bool = False


@dataclass(frozen=True)
class VersionStates:
    """States of a session's versions, after change number ``sequence``.

    Attributes:
        stuck: those for which the disk fails again and again, and why.
    """

    sequence: int
    receiving: tuple[int, ...]
    complete: tuple[int, ...]
    durable: tuple[int, ...]
    stuck: tuple[tuple[int, str], ...] = ()
