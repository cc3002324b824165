"""The board: memory that an agent shares with the trainers on its machine.

All ranks save the same step without a collective in each. Rank 0, at the end of step s, sees a
request, and has entry ``(s + 1) % 4`` of every machine's ring set to s + 1. Only after the
acknowledgements of all agents does it contribute to step s + 1, so no rank can have passed it;
every rank saves at the end of step k if entry ``k % 4`` says k. There are four entries because a
rank may be a step behind: one that it has not read must not be overwritten. Of the two rings, one
is written by the agent, the other by the trainer that watches the ranks' own store while no
controller answers. What comes late is of a step that is over, and hides nothing newer.

Numbers are 64 bits wide, aligned, and written through ``memoryview.cast("Q")``, which stores each
whole; ``struct`` writes byte by byte.
"""

import mmap
import os
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

# Environment variable: the folder of the machine's agent, with its board and its socket
AGENT = "DEEPVM_AGENT"
BOARD = "board"
SOCKET = "socket"
MOST_RANKS = 200
_RING = 4
_MAGIC = 0x4445455056423031  # "DEEPVB01"
_WORDS = 2048
_RING_AT = 16
_PEERS_RING_AT = 32
_ENTRY_WORDS = 4
_RANK_AT = 64
_RANK_WORDS = 8


class Flag(IntEnum):
    """Indices of single numbers."""

    MAGIC = 0
    REQUEST = 1  # number of the newest request to save, from 1
    REASON = 2  # its SaveReason
    LIMIT_MS = 3  # until when it is of use, milliseconds since the epoch
    RESUMED = 4  # ranks that hold after a request with this number, or a lower one, continue
    DUE = 5  # the step at whose end the save policy wants a version; 0: none
    ALONE = 6  # 1: the agent has no controller, and knows of no other machine
    UNHEARD = 7  # 1: the agent has one, which does not answer
    TAKEN = 8  # number of the newest request that a rank has seen, or that is given up
    EVERY = 9  # steps between versions, where the save policy has them fixed; 0: DUE says when


class RankFlag(IntEnum):
    """Indices within the numbers of one local rank."""

    STEP = 0  # steps done, those of the restored version included
    STEP_NS = 1  # duration of the last one
    VERSION = 2  # the newest version that it has started to save
    HELD = 3  # the step at whose end it holds; 0: it does not
    BETWEEN_NS = 4  # in all, from the end of a step until the next starts
    OF_NS = 5  # of so long, from the end of a step to that of the next


class SaveReason(IntEnum):
    """Why a version is saved."""

    NONE = 0
    INSURANCE = 1  # by the save policy
    EMERGENCY = 2  # a machine is about to go
    RESIZE = 3  # a machine has come
    STOP = 4  # the job is about to stop
    USER = 5  # deepvm jobs save

    @property
    def holds(self) -> bool:
        """Whether trainers wait afterwards, because what they do next would be lost."""
        return self in (SaveReason.EMERGENCY, SaveReason.RESIZE, SaveReason.STOP)

    @property
    def ends(self) -> bool:
        """Whether all machines go afterwards, memory nodes too: only what is durable is safe."""
        return self is SaveReason.STOP

    @property
    def automatic(self) -> bool:
        """Whether it is useless once a newer one is safe: neither script nor user requested it."""
        return self.holds or self is SaveReason.INSURANCE


class ScheduledSave(NamedTuple):
    """A save at the end of a step. ``request``: its number, 0 for one by the save policy."""

    reason: SaveReason
    limit_ms: int = 0
    request: int = 0

    def for_others(self) -> list[int]:
        """For machines with other clocks: the reason, milliseconds left, and the request."""
        return [int(self.reason), max(self.limit_ms - int(time.time() * 1000), 0), self.request]

    @classmethod
    def of_others(cls, fields: Sequence[int]) -> "ScheduledSave":
        reason, left_ms, request = fields
        return cls(SaveReason(reason), int(time.time() * 1000) + int(left_ms), int(request))


class Board:
    """An open board; for one process, any thread."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be read, ValueError if it is not a board."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, _WORDS * 8)
        finally:
            os.close(descriptor)
        self.words = memoryview(self._map).cast("Q")
        if self.words[Flag.MAGIC] != _MAGIC:
            self.close()
            raise ValueError(f"{path} is not an agent's board")

    @classmethod
    def create(cls, path: Path) -> "Board":
        """Make an empty one, also instead of that of an older generation. Raises OSError."""
        words = memoryview(bytearray(_WORDS * 8)).cast("Q")
        words[Flag.MAGIC] = _MAGIC
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        hidden.write_bytes(words.tobytes())
        # A new file: trainers of an older generation keep theirs, and change nothing here.
        os.replace(hidden, path)
        return cls(path)

    def request(self, reason: SaveReason, limit_ms: int) -> int:
        """Request a save; returns its number. A request that holds and is unseen stays."""
        words = self.words
        unseen = SaveReason.NONE
        if words[Flag.TAKEN] != words[Flag.REQUEST]:
            unseen = SaveReason(words[Flag.REASON])
        until_ms = words[Flag.LIMIT_MS]
        waits = words[Flag.RESUMED] < words[Flag.REQUEST] and time.time() * 1000 < until_ms
        if unseen.holds and waits and reason.holds:
            limit_ms = min(limit_ms, until_ms)
        elif unseen.holds and waits:
            reason, limit_ms = unseen, until_ms
        words[Flag.REASON] = reason
        words[Flag.LIMIT_MS] = limit_ms
        words[Flag.REQUEST] += 1  # last: anyone who sees it sees the reason, too
        return words[Flag.REQUEST]

    def resume(self) -> None:
        """Have ranks that hold continue; pending requests are given up."""
        self.words[Flag.RESUMED] = 2**63
        self.words[Flag.TAKEN] = self.words[Flag.REQUEST]

    def schedule(self, step: int, save: ScheduledSave, *, by_peers: bool = False) -> None:
        """Have all local ranks save at the end of a step; may be repeated at any time."""
        place = (_PEERS_RING_AT if by_peers else _RING_AT) + step % _RING * _ENTRY_WORDS
        words = self.words
        words[place + 1], words[place + 2], words[place + 3] = save
        words[place] = step  # last, and never undone: ranks may be reading

    def scheduled(self, step: int) -> ScheduledSave | None:
        words = self.words
        place = _RING_AT + step % _RING * _ENTRY_WORDS
        if words[place] != step:
            place += _PEERS_RING_AT - _RING_AT
            if words[place] != step:
                return None
        if not step:
            return None
        return ScheduledSave(SaveReason(words[place + 1]), words[place + 2], words[place + 3])

    def of_rank(self, local_rank: int, word: RankFlag) -> int:
        return self.words[_RANK_AT + local_rank * _RANK_WORDS + word]

    def set_of_rank(self, local_rank: int, word: RankFlag, value: int) -> None:
        """Change a number of a local rank; only that rank does."""
        self.words[_RANK_AT + local_rank * _RANK_WORDS + word] = value

    def close(self) -> None:
        self.words.release()
        self._map.close()
