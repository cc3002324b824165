"""What a trainer knows of the agent on its machine: the board, and messages over a socket.

A message is a line of JSON, and so is its answer. Messages are for what happens now and then; what
happens in each step goes over the board (:mod:`deepvm.io.agent_board`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepvm.io.agent_board import (
    AGENT,
    BOARD,
    SOCKET,
    Board,
    Flag,
    RankFlag,
    SaveReason,
    ScheduledSave,
)
from deepvm.io.agent_peers import Peers, distributed

EPOCH = "DEEPVM_EPOCH"
"""Environment variable: the number of the generation. What bears a lower one is refused."""
SAVE_EVERY = "DEEPVM_SAVE_EVERY"
"""Environment variable: after how many steps scripts save that do not say when."""
INDEPENDENT = "DEEPVM_INDEPENDENT"
"""Environment variable: the number on its machine of a process that trains without the others."""
_ANSWER_S = 30.0
_POLL_S = 0.005
_LAST_S = 5.0
_AFTER_S = 10.0
"""Seconds that trainers hold after a save's limit: machines may go late, and work would be lost."""
_LONGEST = 1_000_000
_STRANGE_STEPS = 10
"""After so many steps without the others, it should be logged."""
_RANKS = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))

log = logging.getLogger("deepvm.training")


class AgentLink:
    """The agent of this machine, as one rank sees it."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        local_rank: int,
        world: int,
        local_world: int,
        epoch: int = 0,
    ) -> None:
        """Open the board. Raises OSError or ValueError if there is none."""
        self._who = {"rank": rank, "local_rank": local_rank, "world": world, "epoch": epoch}
        self.rank = rank
        self.local_rank = local_rank
        self.world = world
        self._local_world = local_world
        self._folder = folder
        self.board = Board(folder / BOARD)
        self._words = self.board.words
        for word in (RankFlag.HELD, RankFlag.VERSION):  # one that was killed may have left them
            self.board.set_of_rank(local_rank, word, 0)
        self._peers: Peers | None = None
        self._unmet = world > 1 and world != local_world
        self._alone = 0
        self._request = 0
        self._due = 0
        self.announced_s = 0.0
        """For how long the other machines were waited for, until they knew of the newest save."""
        self._between_ns = self._of_ns = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._messages: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> AgentLink | None:
        """The agent named by the environment, or None; training continues without it."""
        folder = environ.get(AGENT)
        if not folder:
            return None
        try:
            rank, local_rank, world = (int(environ.get(name, default)) for name, default in _RANKS)
            # Who does not say may be on several machines
            local_world = int(environ.get("LOCAL_WORLD_SIZE", "0"))
            if environ.get(INDEPENDENT):
                rank = 0
                local_rank = int(environ[INDEPENDENT])
                world = 1
                local_world = 1
            epoch = int(environ.get(EPOCH, "0"))
            return cls(
                Path(folder),
                rank=rank,
                local_rank=local_rank,
                world=world,
                local_world=local_world,
                epoch=epoch,
            )
        except (OSError, ValueError) as error:
            log.warning(
                "the agent at %s cannot be used: %s; nothing is saved before a preemption",
                folder,
                error,
            )
            return None

    def stepped(
        self, step: int, took_ns: int, between_ns: int = 0, of_ns: int = 0
    ) -> ScheduledSave | None:
        """Report the end of a step; returns the save that is due there, the same on all ranks.

        Of the ``of_ns`` since the end of the step before it, ``between_ns`` passed until this one
        began; 0: unknown.
        """
        board = self.board
        if self._unmet:
            self.meet()
        board.set_of_rank(self.local_rank, RankFlag.STEP, step)
        board.set_of_rank(self.local_rank, RankFlag.STEP_NS, took_ns)
        self._between_ns += between_ns
        self._of_ns += of_ns
        board.set_of_rank(self.local_rank, RankFlag.BETWEEN_NS, self._between_ns)
        board.set_of_rank(self.local_rank, RankFlag.OF_NS, self._of_ns)
        if self.rank == 0 and self.knows_all and (self._is_asked(step) or self._policy_wants(step)):
            save = self._asked()
            if self.world == 1:
                return save
            self._announce(step + 1, save)
        return board.scheduled(step)

    def _is_asked(self, step: int) -> bool:
        """Whether a request is to be announced now.

        Machines may end after a save that holds: none would acknowledge another one, and this rank
        would wait.
        """
        if self._words[Flag.REQUEST] == self._request:
            return False
        due = self.board.scheduled(step)
        return due is None or not due.reason.holds

    def _announce(self, step: int, save: ScheduledSave) -> None:
        """Announce a save to all ranks; until all machines have it, this rank waits.

        Tries one way after the other; if the first order arrives late, it repeats the second.
        """
        peers = self._peers
        self.announced_s = 0.0
        if peers is None or not self._words[Flag.ALONE]:
            found = self.ask(
                {"ask": "schedule", "step": step, "save": list(save), "peers": peers is not None}
            )
            if peers is None or (found is not None and "error" not in found):
                return
            log.debug("the controller does not have step %d saved: %s", step, found)
        began_s = time.perf_counter()
        peers.schedule(step, save)
        self.announced_s = time.perf_counter() - began_s

    @property
    def unseen(self) -> ScheduledSave | None:
        """The request that a single rank has not seen."""
        words = self._words
        if self.world > 1 or words[Flag.REQUEST] == self._request:
            return None
        return ScheduledSave(
            SaveReason(words[Flag.REASON]), words[Flag.LIMIT_MS], words[Flag.REQUEST]
        )

    def asked(self) -> ScheduledSave | None:
        """The request that a single rank has not seen, outside of steps; from now on it has."""
        if self.unseen is None:
            return None
        return self._asked()

    def meet(self) -> None:
        """Find the other machines' ranks as early as possible: a controller may die later."""
        found = distributed() if self._unmet else None
        if found is None and self._unmet and not self.rank:
            self._alone += 1
            if self._alone == _STRANGE_STEPS:
                log.warning(
                    "this training has %d ranks on several machines and has not initialised"
                    " torch.distributed: unless they exchange gradients in another way, each"
                    " machine trains a model of its own",
                    self.world,
                )
        if found is not None:
            self._unmet = False
            self._peers = Peers.find(
                found, self.board, rank=self.rank, local_rank=self.local_rank, world=self.world
            )

    @property
    def knows_all(self) -> bool:
        """Whether all ranks can save the same step: by controller, own store, or all local."""
        alone = self._words[Flag.ALONE] and self.world > 1
        return not alone or self.world == self._local_world or self._peers is not None

    def asked_here(self) -> ScheduledSave | None:
        """A request that this machine alone has received; once."""
        if self._words[Flag.REQUEST] != self._request:
            return self._asked()
        return None

    def _policy_wants(self, step: int) -> bool:
        due = self._words[Flag.DUE]
        every = self._words[Flag.EVERY]
        if every:  # the agent need not look in time
            return (step + (self.world > 1)) % every == 0
        # With several ranks it is announced a step ahead.
        return due != self._due and due > 0 and step >= due - (self.world > 1)

    def _asked(self) -> ScheduledSave:
        """What is asked for; from now on it is known."""
        words = self._words
        self._due = self._words[Flag.DUE]
        if words[Flag.REQUEST] == self._request:
            return ScheduledSave(SaveReason.INSURANCE)
        self._request = words[Flag.REQUEST]
        found = ScheduledSave(SaveReason(words[Flag.REASON]), words[Flag.LIMIT_MS], self._request)
        words[Flag.TAKEN] = self._request  # last: until then its reason stays
        return found

    def saving(self, step: int) -> None:
        """Report that the state after a step is being saved."""
        self.board.set_of_rank(self.local_rank, RankFlag.VERSION, step)

    def hold(self, step: int, save: ScheduledSave) -> None:
        """Wait at the end of a saved step, while what is done next would be lost."""
        if not save.reason.holds:
            return
        board = self.board
        limit_s = save.limit_ms / 1000 + _AFTER_S
        board.set_of_rank(self.local_rank, RankFlag.HELD, step)
        while not self.is_resumed(save) and time.time() < limit_s:
            time.sleep(_POLL_S)
        board.set_of_rank(self.local_rank, RankFlag.HELD, 0)

    def is_resumed(self, save: ScheduledSave) -> bool:
        """Whether no rank need hold for a save any more."""
        return self._words[Flag.RESUMED] >= save.request

    def ask(
        self, message: Mapping[str, Any], limit_s: float = _ANSWER_S
    ) -> Mapping[str, Any] | None:
        """The agent's answer; None on a timeout, as after a kill: training continues."""
        line = json.dumps({**message, **self._who}).encode() + b"\n"
        with self._lock:
            for _ in range(2):  # the agent may have been restarted
                try:
                    if self._socket is None:
                        self._connect()
                    assert self._socket is not None
                    self._socket.settimeout(limit_s)
                    self._socket.sendall(line)
                    found = self._reader.readline(_LONGEST)
                    answer = None
                    if found.endswith(b"\n"):
                        answer = json.loads(found)
                    if isinstance(answer, dict):
                        return answer
                except TimeoutError:
                    self._disconnect()
                    return None
                except (OSError, ValueError) as error:
                    log.debug("the agent does not answer: %s", error)
                self._disconnect()
        return None

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message in the background, in order; any thread may."""
        with self._lock:
            if self._teller is None:
                self._teller = threading.Thread(
                    target=self._tell_all, name="deepvm-agent", daemon=True
                )
                self._teller.start()
        self._messages.put(message)

    def _tell_all(self) -> None:
        for message in iter(self._messages.get, None):
            self.ask(message)

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_S)
        # The name of a Unix socket has at most 107 bytes: go by the open folder.
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
        """Send what is left to tell, and close all; twice is harmless."""
        if self._teller is not None:
            self._messages.put(None)
            self._teller.join(_LAST_S)
            self._teller = None
        if self._peers is not None:
            self._peers.close()
        with self._lock:
            self._disconnect()
            self.board.close()
