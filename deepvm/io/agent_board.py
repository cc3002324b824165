"""The board: memory that an agent shares with the trainers on its machine. A step costs them two loads and a store.

All ranks save the same step without a collective in each: rank 0, at the end of step s, sees that a version is wanted
and has ``s + 1`` written into slot ``(s + 1) % 4`` of every machine's board. Only behind the acknowledgements of all
does it contribute to step s + 1, so nobody can have passed it; every rank saves at the end of step k if slot ``k % 4``
holds k. Four slots, because a rank may be a step behind: what it has not reached must not be written over.

Numbers are 64 bits wide, aligned, and written through ``memoryview.cast("Q")``, whole at once: ``struct`` would write
bytes one by one.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from pathlib import Path

AGENT = "DEEPVM_AGENT"
"""Environment variable with the folder of the machine's agent: its board and its socket."""
BOARD, SOCKET = "board", "socket"
SLOTS = 4
MOST_RANKS = 200
_MAGIC = 0x4445455056423031  # "DEEPVB01"
_WORDS = 2048
_RANK_AT, _RANK_WORDS = 64, 8


class Word(IntEnum):
    """Where the numbers are."""

    MAGIC = 0
    RANKS = 1  # of this machine
    SLOT = 8  # four of them: the steps whose ends are to be saved
    WANTED = 16  # the number of the newest wish for a version, 0 before the first
    REASON = 17  # of that wish, a number of Wish
    LIMIT_MS = 18  # until when it is worth something, milliseconds since the epoch; 0: no limit
    HOLD = 19  # the step at whose end trainers wait for what comes next; 0: none


class RankWord(IntEnum):
    """Where the numbers of a local rank are, from its own place on."""

    STEPS = 0  # done, from 0; those of the version that it resumed from included
    STEP_NS = 1  # of the last one
    SEEN = 2  # the newest wish that it knows of
    VERSION = 3  # the newest version that it has begun
    SAVE_NS = 4  # for how long that stalled it
    HELD = 5  # the step at whose end it waits, 0: it does not


class Wish(IntEnum):
    """Why a version is wanted."""

    NONE = 0
    INSURANCE = 1
    EMERGENCY = 2
    RESIZE = 3
    STOP = 4
    USER = 5


class Board:
    """A board that is open; for one process, any thread."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises OSError: it is not there; ValueError: it is none."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, _WORDS * 8)
        finally:
            os.close(descriptor)
        self.words = memoryview(self._map).cast("Q")
        if self.words[Word.MAGIC] != _MAGIC:
            self.close()
            raise ValueError(f"{path} is no board of an agent")

    @classmethod
    def create(cls, path: Path, ranks: int) -> Board:
        """Make one for so many local ranks, or clear what is there for a new generation. Raises OSError."""
        if not 0 < ranks <= MOST_RANKS:
            raise ValueError(f"{ranks} ranks; 1 to {MOST_RANKS} are possible")
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        words = memoryview(bytearray(_WORDS * 8)).cast("Q")
        words[Word.MAGIC], words[Word.RANKS] = _MAGIC, ranks
        # Another file, not the same bytes: trainers of an older generation keep theirs, and change nothing here.
        hidden.write_bytes(words.tobytes())
        os.replace(hidden, path)
        return cls(path)

    @property
    def ranks(self) -> int:
        """Local ranks."""
        return self.words[Word.RANKS]

    def schedule(self, step: int) -> None:
        """Have the end of a step saved by all ranks of this machine."""
        self.words[Word.SLOT + step % SLOTS] = step

    def scheduled(self, step: int) -> bool:
        """Whether the end of a step is to be saved."""
        return self.words[Word.SLOT + step % SLOTS] == step and step > 0

    def want(self, wish: Wish, limit_ms: int = 0) -> int:
        """Want a version; returns the number of the wish."""
        words = self.words
        words[Word.REASON], words[Word.LIMIT_MS] = wish, limit_ms
        words[Word.WANTED] += 1  # last: whoever sees it sees the reason, too
        return words[Word.WANTED]

    def of_rank(self, rank: int, word: RankWord) -> int:
        """A number of a local rank."""
        return self.words[_RANK_AT + rank * _RANK_WORDS + word]

    def set_of_rank(self, rank: int, word: RankWord, value: int) -> None:
        """Change it; only that rank does."""
        self.words[_RANK_AT + rank * _RANK_WORDS + word] = value

    def close(self) -> None:
        """Close it; twice is harmless."""
        self.words.release()
        self._map.close()


def rank_place(rank: int) -> int:
    """Index of the first word of a local rank."""
    return _RANK_AT + rank * _RANK_WORDS
