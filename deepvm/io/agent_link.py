"""What a trainer knows of the agent on its machine: the board, and messages over a socket. Nothing where no agent is.

A message is a line of JSON, and so is its answer. Messages are for what happens now and then; what happens in each step
goes over the board (:mod:`deepvm.io.agent_board`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepvm.io.agent_board import AGENT, BOARD, SOCKET, Board, RankWord, Wish, Word

EPOCH = "DEEPVM_EPOCH"
"""Environment variable with the number of the generation; what is older is refused everywhere."""
_ANSWER_S = 30.0
_LONGEST = 1_000_000

log = logging.getLogger("deepvm.training")


class AgentLink:
    """The agent of this machine, as one rank sees it."""

    def __init__(self, folder: Path, *, rank: int, local_rank: int, world: int) -> None:
        """Open the board. Raises OSError, ValueError: there is none."""
        self.rank, self.local_rank, self.world = rank, local_rank, world
        self._folder = folder
        self.board = Board(folder / BOARD)
        self._place = self.board.words
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader: Any = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> AgentLink | None:
        """The agent that the environment names, if any; one that cannot be used is logged, and training goes on."""
        folder = environ.get(AGENT)
        if not folder:
            return None
        try:
            rank, local, world = (int(environ.get(name, d)) for name, d in _RANKS)
            return cls(Path(folder), rank=rank, local_rank=local, world=world)
        except (OSError, ValueError) as error:
            log.warning("the agent at %s cannot be used: %s; versions are saved as if there were none", folder, error)
            return None

    @property
    def wish(self) -> int:
        """The number of the newest wish for a version."""
        return self.board.words[Word.WANTED]

    @property
    def reason(self) -> Wish:
        """Why it is wanted."""
        return Wish(self.board.words[Word.REASON])

    @property
    def limit_s(self) -> float | None:
        """Until when it is worth something, seconds since the epoch; None without a limit."""
        limit_ms = self.board.words[Word.LIMIT_MS]
        return limit_ms / 1000 if limit_ms else None

    def stepped(self, step: int, took_ns: int) -> bool:
        """A step has ended; returns whether its end is to be saved, the same on all ranks."""
        board, rank = self.board, self.local_rank
        board.set_of_rank(rank, RankWord.STEPS, step)
        board.set_of_rank(rank, RankWord.STEP_NS, took_ns)
        if self.rank == 0 and self.wish != board.of_rank(rank, RankWord.SEEN):
            wish = self.wish
            board.set_of_rank(rank, RankWord.SEEN, wish)
            if self.world == 1:
                return True
            self.ask({"ask": "schedule", "step": step + 1, "wish": wish})
        return board.scheduled(step)

    def held(self, step: int) -> None:
        """Wait at the end of a saved step, while the agent says so: what is done after it would be lost."""
        board, rank = self.board, self.local_rank
        board.set_of_rank(rank, RankWord.HELD, step)
        while board.words[Word.HOLD] == step and not self._expired():
            time.sleep(0.005)
        board.set_of_rank(rank, RankWord.HELD, 0)

    def _expired(self) -> bool:
        limit_s = self.limit_s
        return limit_s is not None and time.time() > limit_s

    def ask(self, message: Mapping[str, Any], limit_s: float = _ANSWER_S) -> Mapping[str, Any] | None:
        """The agent's answer; None if there is none in time, as when it was killed: training goes on."""
        line = json.dumps({**message, "rank": self.rank, "local_rank": self.local_rank}).encode() + b"\n"
        with self._lock:
            for fresh in (False, True):
                try:
                    if self._socket is None or fresh:
                        self._connect()
                    assert self._socket is not None
                    self._socket.settimeout(limit_s)
                    self._socket.sendall(line)
                    found = self._reader.readline(_LONGEST)
                    answer = json.loads(found) if found.endswith(b"\n") else None
                    if isinstance(answer, dict):
                        return answer
                except (OSError, ValueError) as error:
                    log.debug("the agent does not answer: %s", error)
                self._disconnect()
        return None

    def _connect(self) -> None:
        self._disconnect()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_S)
        # The name of a Unix socket may have 108 bytes: go by the open folder.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.connect(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.close(folder)
        self._reader = self._socket.makefile("rb")

    def _disconnect(self) -> None:
        for one in (self._reader, self._socket):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.close()
        self._socket = self._reader = None

    def close(self) -> None:
        """Close all; twice is harmless."""
        with self._lock:
            self._disconnect()
            self.board.close()


_RANKS = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))
