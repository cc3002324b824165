"""Trainers on several machines link agents without a controller, by torch.distributed's store.

It serves agents that have no controller, and those whose controller is dead or cut off. Whichever
agent receives a preemption notice, its first trainer writes the request into the store; the trainer
of rank 0 finds it, and has the step after next marked on every machine's board before it takes part
in it (:mod:`deepvm.io.agent_board`). Threads look into the store now and then, and seldom while a
controller answers; a step costs nothing.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import time
from typing import Any

from deepvm.io.agent_board import Board, Flag, SaveReason, ScheduledSave

_LOOK_S = 0.1
_SELDOM = 10
_ACK_LOOK_S = 0.005
_ACK_S = 60.0
_LAST_S = 2.0

log = logging.getLogger("deepvm.training")


def distributed() -> Any:
    """``torch.distributed`` if the training has loaded and initialized it, else None."""
    found = getattr(sys.modules.get("torch"), "distributed", None)
    if found is not None and found.is_available() and found.is_initialized():
        return found
    return None


class Peers:
    """The other machines of a training, as one rank sees them."""

    def __init__(self, board: Board, store: Any, *, rank: int, local_rank: int, world: int) -> None:
        """Report that this rank exists; a machine's first one polls the store from now on."""
        self._board = board
        self._store = store
        self._rank = rank
        self._world = world
        self._requested = 0
        self._collected = 0
        self._saves = 0
        self._ranks_s = _ACK_S
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if not local_rank:
            store.add("boards", 1)
            self._thread = threading.Thread(target=self._watch, name="deepvm-peers", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        store.add("ranks", 1)

    @classmethod
    def find(
        cls, torch_distributed: Any, board: Board, *, rank: int, local_rank: int, world: int
    ) -> Peers | None:
        """The peers of a training whose ranks know each other; None without a store."""
        try:
            store = torch_distributed.distributed_c10d._get_default_store()
        except (AttributeError, AssertionError, ValueError):
            store = None
        if store is None or torch_distributed.get_world_size() != world:
            log.warning(
                "the ranks of this training have no store: a machine's agent cannot ask the others"
                " to save"
            )
            return None
        store = torch_distributed.PrefixStore("deepvm", store)
        return cls(board, store, rank=rank, local_rank=local_rank, world=world)

    def schedule(self, step: int, save: ScheduledSave) -> None:
        """Have all ranks save at the end of a step, by rank 0, which takes part only then."""
        store = self._store
        try:
            self._await_ranks()
            self._saves += 1
            store.set(f"save/{self._saves}", json.dumps([step, *save.for_others()]))
        except (
            RuntimeError,
            OSError,
        ) as error:  # no rank has it: rank 0 must not save without them
            log.warning("the ranks' store cannot be used: %s; step %d is not saved", error, step)
            return
        until_s = time.monotonic() + _ACK_S
        try:
            others = store.add("boards", 0) - 1
            while store.add(f"seen/{self._saves}", 0) < others:
                # A machine that does not answer trains no more, and none continues without it
                if time.monotonic() > until_s:
                    log.warning("not all machines know that step %d is to be saved", step)
                    break
                time.sleep(_ACK_LOOK_S)
        except (RuntimeError, OSError) as error:
            log.warning("the ranks' store cannot be used: %s", error)
        self._board.schedule(step, save, by_peers=True)

    def _await_ranks(self) -> None:
        """Wait until all ranks are here; once, because in some trainings only a few save."""
        until_s = time.monotonic() + self._ranks_s
        while self._store.add("ranks", 0) < self._world:
            if time.monotonic() > until_s:
                self._ranks_s = 0.0
                return
            time.sleep(_ACK_LOOK_S)

    def _watch(self) -> None:
        looks = 0
        try:
            while not self._over.wait(_LOOK_S):
                looks += 1
                if not looks % _SELDOM or self._is_needed():
                    (self._pass_on if self._rank else self._collect)()
        except (RuntimeError, OSError) as error:  # the training has ended elsewhere
            log.debug("the ranks' store cannot be used: %s", error)
        except ValueError:
            log.debug("the board is closed")

    def _is_needed(self) -> bool:
        """Whether no controller answers, or this machine's agent requests a save nevertheless."""
        words = self._board.words
        asks = self._rank and words[Flag.REQUEST] != self._requested
        return bool(words[Flag.ALONE] or words[Flag.UNHEARD] or asks)

    def _pass_on(self) -> None:
        """What this machine's agent wants, and what rank 0 has decided."""
        words = self._board.words
        store = self._store
        if words[Flag.REQUEST] != self._requested:
            number = self._requested = words[Flag.REQUEST]
            save = ScheduledSave(SaveReason(words[Flag.REASON]), words[Flag.LIMIT_MS], number)
            words[Flag.TAKEN] = number
            place = store.add("wishes", 1)
            store.set(f"wish/{place}", json.dumps(save.for_others()))
        while store.check([f"save/{self._saves + 1}"]):
            self._saves += 1
            step, *fields = json.loads(store.get(f"save/{self._saves}"))
            self._board.schedule(step, ScheduledSave.of_others(fields), by_peers=True)
            store.add(f"seen/{self._saves}", 1)

    def _collect(self) -> None:
        """What other machines' agents want."""
        while self._store.check([f"wish/{self._collected + 1}"]):
            self._collected += 1
            save = ScheduledSave.of_others(json.loads(self._store.get(f"wish/{self._collected}")))
            self._board.request(save.reason, save.limit_ms)

    def close(self) -> None:
        """Look no more; twice is harmless."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LAST_S)
            self._thread = None
            atexit.unregister(self.close)
