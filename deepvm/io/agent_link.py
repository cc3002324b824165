"""What a trainer knows of its machine's agent: the board, and lines of JSON over a socket."""

import atexit
import contextlib
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

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
from deepvm.io.threads import start_thread
from deepvm.records import KW_ONLY, dataclass

_LOOK_S = 0.1
_SELDOM = 10
_ACK_LOOK_S = 0.005
_ACK_S = 60.0
_CLOSE_S = 2.0


def distributed() -> Any:
    """``torch.distributed`` if the training has loaded and initialized it, else None."""
    found = getattr(sys.modules.get("torch"), "distributed", None)
    if found is not None and found.is_available() and found.is_initialized():
        return found
    return None


class Peers:
    """The other machines of a training, without a controller, by torch.distributed's store.

    An agent's first trainer writes its request there; that of rank 0 has the step after next marked
    on every machine's board before it takes part in it. Threads poll the store.
    """

    def __init__(self, board: Board, store: Any, *, rank: int, local_rank: int, world: int) -> None:
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
            self._thread = start_thread(self._watch, name="deepvm-peers")
            atexit.register(self.close)
        store.add("ranks", 1)

    @classmethod
    def find(
        cls, torch_distributed: Any, board: Board, *, rank: int, local_rank: int, world: int
    ) -> "Peers | None":
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
        except (RuntimeError, OSError) as error:
            # No rank has it: rank 0 must not save without them
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
                words = self._board.words
                asks = self._rank and words[Flag.REQUEST] != self._requested
                # No controller answers, or this machine's agent requests a save nevertheless
                needed = words[Flag.ALONE] or words[Flag.UNHEARD] or asks
                if not looks % _SELDOM or needed:
                    (self._pass_on if self._rank else self._collect)()
        except (RuntimeError, OSError) as error:  # the training has ended elsewhere
            log.debug("the ranks' store cannot be used: %s", error)
        except ValueError:
            log.debug("the board is closed")

    def _pass_on(self) -> None:
        words = self._board.words
        store = self._store
        if words[Flag.REQUEST] != self._requested:
            number = self._requested = words[Flag.REQUEST]
            save = ScheduledSave(SaveReason(words[Flag.REASON]), words[Flag.LIMIT_MS], number)
            words[Flag.TAKEN] = number
            place = store.add("requests", 1)
            store.set(f"request/{place}", json.dumps(save.for_others()))
        while store.check([f"save/{self._saves + 1}"]):
            self._saves += 1
            step, *fields = json.loads(store.get(f"save/{self._saves}"))
            self._board.schedule(step, ScheduledSave.of_others(fields), by_peers=True)
            store.add(f"seen/{self._saves}", 1)

    def _collect(self) -> None:
        while self._store.check([f"request/{self._collected + 1}"]):
            self._collected += 1
            save = ScheduledSave.of_others(
                json.loads(self._store.get(f"request/{self._collected}"))
            )
            self._board.request(save.reason, save.limit_ms)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
            self._thread = None
            atexit.unregister(self.close)


# Environment variable: the number of the generation. What bears a lower one is refused.
EPOCH = "DEEPVM_EPOCH"
# Environment variable: after how many steps scripts save that do not say when
SAVE_EVERY = "DEEPVM_SAVE_EVERY"
# Environment variable: the number on its machine of a process that trains without the others
INDEPENDENT = "DEEPVM_INDEPENDENT"
_ANSWER_S = 30.0
_POLL_S = 0.005
_LAST_S = 5.0
# Seconds that trainers hold after a save's limit: machines may go late, and work would be lost
_AFTER_S = 10.0
_LONGEST = 1_000_000
_STRANGE_STEPS = 10  # After so many steps without the others, it should be logged
_RANKS = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))

log = logging.getLogger("deepvm.training")
_Message: TypeAlias = Mapping[str, Any]


@dataclass(eq=False, repr=False)
class AgentLink:
    """The agent of this machine, as one rank sees it."""

    _folder: Path
    _: KW_ONLY
    rank: int
    local_rank: int
    world: int
    local_world: int
    epoch: int = 0

    def __post_init__(self) -> None:
        names = ("rank", "local_rank", "world", "local_world", "epoch")
        self._who = {name: getattr(self, name) for name in names}
        self.board = Board(self._folder / BOARD)
        self._words = self.board.words
        for word in (RankFlag.HELD, RankFlag.VERSION):  # one that was killed may have left them
            self.board.set_of_rank(self.local_rank, word, 0)
        self._peers: Peers | None = None
        self._unmet = self.world > 1 and self.world != self.local_world
        self._alone = 0
        self._request = 0
        self._due = 0
        # For how long the other machines were waited for, until they knew of the newest save
        self.announced_s = 0.0
        self._between_ns = self._of_ns = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._messages: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> "AgentLink | None":
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
                world = local_world = 1
            return cls(
                Path(folder),
                rank=rank,
                local_rank=local_rank,
                world=world,
                local_world=local_world,
                epoch=int(environ.get(EPOCH, "0")),
            )
        except (OSError, ValueError) as error:
            text = "the agent at %s cannot be used: %s; nothing is saved before a preemption"
            log.warning(text, folder, error)
            return None

    def stepped(
        self, step: int, took_ns: int, between_ns: int = 0, of_ns: int = 0
    ) -> ScheduledSave | None:
        """Report the end of a step; returns the save that is due there, the same on all ranks.

        Of the ``of_ns`` since the end of the last step, ``between_ns`` passed until this one
        started; 0: unknown.
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
        if self._request_of_agent is None:
            return False
        # Machines may end after a save that holds: none would acknowledge another one.
        due = self.board.scheduled(step)
        return due is None or not due.reason.holds

    def _announce(self, step: int, save: ScheduledSave) -> None:
        """Announce a save to all ranks; this rank waits for all machines."""
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
        if self.world > 1:
            return None
        return self._request_of_agent

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
                    "this training has %d ranks on several machines and has not initialized"
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
        return not alone or self.world == self.local_world or self._peers is not None

    def asked_here(self) -> ScheduledSave | None:
        """A request that this machine alone has received; once."""
        if self._request_of_agent is None:
            return None
        return self._asked()

    def _policy_wants(self, step: int) -> bool:
        due = self._words[Flag.DUE]
        every = self._words[Flag.EVERY]
        if every:  # the agent need not look in time
            return (step + (self.world > 1)) % every == 0
        # With several ranks it is announced a step ahead.
        return due != self._due and due > 0 and step >= due - (self.world > 1)

    def _asked(self) -> ScheduledSave:
        self._due = self._words[Flag.DUE]
        found = self._request_of_agent
        if found is None:
            return ScheduledSave(SaveReason.INSURANCE)
        self._request = found.request
        self._words[Flag.TAKEN] = found.request  # last: until then its reason stays
        return found

    @property
    def _request_of_agent(self) -> ScheduledSave | None:
        words = self._words
        number = words[Flag.REQUEST]
        if number == self._request:
            return None
        return ScheduledSave(SaveReason(words[Flag.REASON]), words[Flag.LIMIT_MS], number)

    def saving(self, step: int) -> None:
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
        return self._words[Flag.RESUMED] >= save.request

    def ask(self, message: _Message, limit_s: float = _ANSWER_S) -> _Message | None:
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

    def tell(self, message: _Message) -> None:
        """Send a message in the background, in order; any thread may."""

        def tell_all() -> None:
            for message in iter(self._messages.get, None):
                self.ask(message)

        with self._lock:
            if self._teller is None:
                self._teller = start_thread(tell_all, name="deepvm-agent")
        self._messages.put(message)

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
        if self._teller is not None:
            self._messages.put(None)
            self._teller.join(_LAST_S)
            self._teller = None
        if self._peers is not None:
            self._peers.close()
        with self._lock:
            self._disconnect()
            self.board.close()
