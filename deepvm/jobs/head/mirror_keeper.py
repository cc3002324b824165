"""The remote controller's mirror: nothing is done before it is in it, so another can continue."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, TimeoutError
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from deepvm.core.json_types import JsonDict
from deepvm.errors import DeepVMError
from deepvm.io.failpoints import point
from deepvm.io.threads import start_thread
from deepvm.jobs.cloud import (
    ChangedError,
    Cloud,
    HostsController,
    Listing,
    Objects,
    UnknownError,
    head_name,
)
from deepvm.jobs.decisions.world import Head, JobState
from deepvm.jobs.head import mirror
from deepvm.jobs.head.mirror import COMMANDS, MIRROR, FencedError, HeadState, LogPieces
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.loggers import jobs_log as log
from deepvm.jobs.wire import WireError

# Seconds between writes of the mirror: if anything is new, and if nothing is
EACH_S, BEAT_S = 5.0, 15.0
HANGS_S = 60.0  # A controller whose loop has not turned for so long says no more that it lives
# A file as new as the last turn of the controller's loop; it exists while that runs
PULSE, TURN_S = "pulse", 5.0
LOOK_S = 3.0  # Between looks for commands, and writes of logs
_AGAIN_S = 1.0
_LAST_S = 1800.0

Handle: TypeAlias = Callable[[bytes, str], tuple[bytes, str]]  # What answers a signed command


def keeper_of(row: JobRow, cloud: Cloud) -> "StateReplicator | None":
    """That of a job whose head this computer is."""
    state = HeadState.load(row.folder)
    if state is None or not state.here or not isinstance(cloud, HostsController):
        return None
    objects = cloud.objects(row.name)
    logs = LogPieces(row.folder, objects, state.number)
    return StateReplicator(row.name, state.number, objects, logs, row.folder / PULSE)


class StateReplicator:
    """Keeps the mirror of one job; reads the history that its controller writes."""

    def __init__(
        self, name: str, number: int, objects: Objects, logs: LogPieces, pulse: Path | None = None
    ) -> None:
        self._name = name
        self._number = number  # Of this head
        self._objects = objects
        self._logs = logs
        self._pulse = pulse  # A file that is touched while the controller's loop turns
        self._tag: str | None = None
        self._nonce = ""
        self._writer = ""
        self._written = 0
        self._events: list[JsonDict] = []
        self._bytes = b""
        self._put_s = 0.0
        self._turned_s = time.monotonic()
        self._change = threading.Condition()
        self._waiting: list[Future[None]] = []
        # The answers to commands, until they are written: a command counts once
        self._answers = dict[str, bytes]()
        self._over = False
        self._fenced: FencedError | None = None
        self._give_up: Callable[[FencedError], object] = lambda error: None
        self._threads: list[threading.Thread] = []

    def take(
        self, world: JobState, history: History, cloud: HostsController, nonce: str
    ) -> JobState:
        """Be the controller from now on. Raises FencedError, UnknownError, RefusedError."""
        # Returns the world with what its heads cost
        self._nonce = self._writer = nonce
        world = replace(world, heads=self._heads(world, cloud))
        history.commit(self._name, history.world(self._name), world, [])
        for _ in range(3):  # a write of the controller before this one may still come
            self._look()
            try:
                self._put(history)
            except ChangedError:
                continue
            point("head.taken")
            return world
        raise FencedError(f"another head writes the mirror of {self._name}")

    def go_on(self) -> None:
        """Take the mirror as it is: only the final one is left to write. Raises FencedError."""
        theirs = self._look()
        self._writer = secrets.token_hex(16)
        self._nonce = theirs["nonce"]

    def _look(self) -> JsonDict:
        found = self._objects.get(MIRROR)
        theirs = {} if found is None else mirror.decoded(found.data)
        if found is None or int(theirs["head"]) > self._number:
            raise FencedError(f"another head has taken {self._name} over")
        self._tag = found.tag
        return theirs

    def _heads(self, world: JobState, cloud: HostsController) -> tuple[Head, ...]:
        try:
            lives = cloud.heads(self._name)
        except UnknownError as error:
            log.warning("%s", error)
            lives = Listing({})
        mine = head_name(self._number)
        usd = cloud.head_usd_per_hour()
        known = {head.name: head for head in world.heads}
        own = known.pop(mine, Head(mine, usd, time.time()))
        # Those that were lost before their controllers started have cost something, too.
        unheard = [name for name in lives.ended if name not in known and name != mine]
        lost = [Head(name, usd, *lives.ended[name]) for name in unheard]
        earlier = [*known.values(), *sorted(lost, key=lambda head: head.launched_s)]
        for place, head in enumerate(earlier):
            if head.ended_s is None:
                _, ended_s = lives.ended.get(head.name, (0.0, world.now_s))
                earlier[place] = replace(head, ended_s=ended_s)
        launched_s = lives.alive.get(mine, own.launched_s)
        return (*earlier, replace(own, launched_s=launched_s, ended_s=None))

    def _put(self, history: History) -> None:
        copy = history.copy(self._name, self._events[-1]["number"] if self._events else 0)
        self._events += copy["events"]
        copy["events"] = self._events
        was = self._bytes
        now_s = time.monotonic()
        self._bytes = json.dumps(copy).encode()
        idle = now_s - self._put_s < BEAT_S or now_s - self._turned_s > HANGS_S
        if self._bytes == was and idle:
            return
        self._written += 1
        data = mirror.encoded(copy, self._number, self._writer, self._written, self._nonce)
        self._bytes, made = b"", self._bytes  # until it is known to be written
        self._tag = self._objects.replace(MIRROR, data, self._tag)
        self._bytes = made
        self._put_s = now_s

    def _put_again(self, history: History) -> None:
        """Write it where it is unknown what became of the last write. Raises FencedError."""
        try:
            self._put(history)
        except ChangedError:
            theirs = self._look()
            if theirs["writer"] != self._writer:
                raise FencedError(f"another head has taken {self._name} over") from None
            if theirs["number"] != self._written:  # the reply to an older one was lost
                self._put(history)

    async def kept(self) -> None:
        """Wait until all that is written down by now is in the mirror. Raises FencedError."""
        waiting: Future[None] = Future()
        with self._change:
            if self._fenced is not None:
                raise self._fenced
            self._waiting.append(waiting)
            self._change.notify_all()
        await asyncio.wrap_future(waiting)

    def _keep(self, open_history: Callable[[], History]) -> None:
        """Run until the end or a takeover; failures are retried, as actions wait for the mirror."""
        with ExitStack() as opened:
            history: History | None = None
            while not self._over:
                with self._change:
                    self._change.wait_for(lambda: self._waiting or self._over, EACH_S)
                    waiting = self._waiting
                    self._waiting = []
                try:
                    history = history or opened.enter_context(open_history())
                    self._put_again(history)
                except FencedError as error:
                    self._end(error, waiting)
                    return
                except Exception as error:
                    _warn("the mirror cannot be written", error)
                    with self._change:
                        self._waiting = [*waiting, *self._waiting]
                    time.sleep(_AGAIN_S)
                    continue
                for each in waiting:
                    if each.set_running_or_notify_cancel():
                        each.set_result(None)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say that the loop turns, again and again, also while the bucket is slow."""
        with self._change:
            if self._over:
                return
            self._turned_s = time.monotonic()
            if self._pulse is not None:
                with suppress(OSError):  # a full disk
                    self._pulse.touch()
        loop.call_later(min(TURN_S, HANGS_S / 2), self._turn, loop)

    def _end(self, error: FencedError, waiting: list[Future[None]]) -> None:
        with self._change:
            self._fenced = error
            waiting += self._waiting
            self._waiting = []
        for each in waiting:
            if each.set_running_or_notify_cancel():
                each.set_exception(error)
        with suppress(RuntimeError):  # its loop is closed: it has ended
            self._give_up(error)  # it may have nothing to write down for days

    def attend(
        self,
        controller: Any,
        loop: asyncio.AbstractEventLoop,
        open_history: Callable[[], History] = History.open,
    ) -> None:
        """Work in threads until :meth:`leave`."""

        def handle(body: bytes, signature: str) -> Any:
            answer: Coroutine[Any, Any, tuple[bytes, str]] = controller.handle(body, signature)
            return asyncio.run_coroutine_threadsafe(answer, loop).result(60.0)

        self._give_up = lambda error: loop.call_soon_threadsafe(controller.give_up, error)
        loop.call_soon_threadsafe(self._turn, loop)
        for work in (partial(self._keep, open_history), partial(self._run_errands, handle)):
            self._threads.append(start_thread(work, name="head"))

    def _run_errands(self, handle: Handle) -> None:
        while True:
            with self._change:
                if self._change.wait_for(lambda: self._over or self._fenced, LOOK_S):
                    return
            try:
                keys = self._objects.keys(COMMANDS)
                self._answers = {key: a for key, a in self._answers.items() if key in keys}
                for key in keys:
                    self._answer(key, handle)
                self._logs.send()
            except (RuntimeError, CancelledError, TimeoutError) as error:
                log.warning("%s", error)  # the controller is ending
            except Exception as error:  # the next command must be heard all the same
                _warn("commands and logs", error)

    def _answer(self, key: str, handle: Handle) -> None:
        if key not in self._answers:
            found = self._objects.get(key)
            if found is None:
                return
            self._answers[key] = json.dumps(_answer_to(found.data, handle)).encode()
        self._objects.put(mirror.ANSWERS + key.removeprefix(COMMANDS), self._answers[key])
        self._objects.remove([key])
        del self._answers[key]

    def leave(self) -> None:
        with self._change:
            self._over = True
            self._change.notify_all()
            if self._pulse is not None:
                with suppress(OSError):
                    self._pulse.unlink(missing_ok=True)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def finish(self, history: History) -> None:
        """Write the last logs and the final document, at any price. Raises FencedError."""
        self.leave()
        end_s = time.monotonic() + _LAST_S
        while True:
            try:
                self._logs.send(last=True)
                self._put_again(history)
                return
            except FencedError:
                raise
            except Exception as error:
                if time.monotonic() > end_s:
                    raise
                _warn("the end of the job cannot be written", error)
                time.sleep(_AGAIN_S)


def _answer_to(data: bytes, handle: Handle) -> dict[str, str]:
    try:
        asked = json.loads(data)
        body, signature = handle(str(asked["body"]).encode(), str(asked["signature"]))
        return {"body": body.decode(), "signature": signature}
    except (WireError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"refused": str(error)}


def _warn(message: str, error: Exception) -> None:
    log.warning("%s: %s", message, error, exc_info=not isinstance(error, (DeepVMError, OSError)))
