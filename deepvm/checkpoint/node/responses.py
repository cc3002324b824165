"""What the shelf answers to a sender."""

from __future__ import annotations

from dataclasses import dataclass

from deepvm.checkpoint.node.versions import Version


@dataclass(frozen=True)
class Ticket:
    """Leave to send a part. ``version``: where to; ``rank``: whose; ``put``: in which attempt."""

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
class Receipt:
    """The answer to a commit. ``missing``: ranges of the shard that are not here; else it is safe in this memory."""

    missing: tuple[tuple[int, int], ...]
    complete: bool = False
    durable: bool = False


@dataclass(frozen=True)
class Fate:
    """What became of a session's versions, after change number ``sequence``.

    Attributes:
        stuck: those for which the disk fails again and again, and why.
    """

    sequence: int
    receiving: tuple[int, ...]
    complete: tuple[int, ...]
    durable: tuple[int, ...]
    stuck: tuple[tuple[int, str], ...] = ()
