"""Poll a memory node for acknowledgements in the background, which also keeps the session alive."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deepvm.checkpoint.format.shard import Level
from deepvm.checkpoint.network.client import Link
from deepvm.checkpoint.network.protocol import BrokenError, Kind, RequestRefused
from deepvm.errors import CheckpointError, MemoryOnlyError, VersionGoneError

_LOG = logging.getLogger(__name__)
_POLL_S = 5.0
_AGAIN_S = 0.5
_SLOWEST_S = 10.0


@dataclass(eq=False)
class PendingVersion:
    """A version whose acknowledgements are awaited, from when the node has reserved room for it.

    Attributes:
        acknowledged: called once for each level, the weakest first.
        lost: called once with the reason when nothing more will be acknowledged.
        lacks: why it will never be durable, empty if it will. moving_s: time for its bytes, added
            to the limit.
        sent: this rank's part is verified; until then the node need not know of it.
        wanted: levels that can be reached and were not yet. since: monotonic.
    """

    version: int
    acknowledged: Callable[[Level], None]
    lost: Callable[[CheckpointError], None]
    lacks: str
    moving_s: float
    sent: bool = False
    wanted: list[Level] = field(default_factory=lambda: [Level.REMOTE, Level.DURABLE])
    since: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Leave out the level that cannot be reached."""
        if self.lacks:
            self.wanted.remove(Level.DURABLE)

    def reached(self, level: Level) -> bool:
        """Acknowledge a level and those below it once; returns whether nothing more is awaited."""
        with self.lock:
            while self.wanted and (self.wanted[0] is level or level is Level.DURABLE):
                self.acknowledged(self.wanted.pop(0))
                if not self.wanted and self.lacks:
                    self.lost(
                        MemoryOnlyError(
                            f"version {self.version} is in the node's memory only: {self.lacks}"
                        )
                    )
            return not self.wanted


class _States(NamedTuple):
    """A node's report on a job's checkpoints: numbers by state, and why the disk rejects some."""

    sequence: int
    receiving: set[int]
    complete: set[int]
    durable: set[int]
    stuck: dict[int, str]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> _States:
        try:
            receiving, complete, durable = (
                {*map(int, body[k])} for k in ("receiving", "complete", "durable")
            )
            stuck = {int(number): str(why) for number, why in body.get("stuck", ())}
            return cls(int(body["sequence"]), receiving, complete, durable, stuck)
        except (KeyError, TypeError, ValueError):
            raise BrokenError("malformed states") from None


class AckPoller:
    """A polling thread and its connection, for one job of a tier."""

    def __init__(
        self, url: str, connect: Callable[[], Link], greeting: Mapping[str, Any], limit_s: float
    ) -> None:
        """``url``: of the node; ``greeting``: the sender's HELLO; ``limit_s``: the timeout."""
        self._url = url
        self._connect = connect
        self._greeting = greeting
        self._limit_s = limit_s
        self._pending: set[PendingVersion] = set()
        self._link: Link | None = None
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="deepvm-tcp-poller", daemon=True)
        self._thread.start()

    def add(self, pending: PendingVersion) -> None:
        with self._changed:
            self._pending.add(pending)

    def discard(self, pending: PendingVersion) -> None:
        with self._changed:
            self._pending.discard(pending)
            self._changed.notify_all()

    def settle(self, limit_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, limit_s)

    def close(self) -> None:
        """Stop polling; what is still awaited will not be acknowledged."""
        self._closed.set()
        if (link := self._link) is not None:
            link.channel.abort()
        if threading.current_thread() is not self._thread:
            self._thread.join(_POLL_S)

    def _run(self) -> None:
        sequence = -1
        pause_s = _AGAIN_S
        disconnected = False
        while not self._closed.is_set():
            try:
                if self._link is None:
                    self._link = self._connect()
                    self._link.hello(self._greeting)
                    if disconnected:
                        _LOG.warning("%s: acknowledgements are received again", self._url)
                    sequence = -1
                    disconnected = False
                # The answer is about those that the node knew when it was asked
                with self._changed:
                    asked = {p: p.sent for p in self._pending}
                question = {"sequence": sequence, "limit_ms": int(_POLL_S * 1000)}
                answer = self._link.call(
                    Kind.WAIT, question, Kind.STATE, limit_s=_POLL_S + _SLOWEST_S
                )
                states = _States.of(answer.body)
                sequence = states.sequence
                pause_s = _AGAIN_S
                if self._acknowledge(asked, states):
                    # The answer may be about a version that came meanwhile: ask again
                    sequence = -1
            except Exception as error:
                # Of any kind: no answer of the node may cost the trainer its poller
                self._disconnect(error, logged=disconnected)
                disconnected = True
                if self._closed.wait(pause_s):
                    break
                pause_s = min(2 * pause_s, _SLOWEST_S)
            self._expire()
        self._disconnect(None)

    def _disconnect(self, error: Exception | None, logged: bool = False) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        if error is None or self._closed.is_set():
            return
        expected = isinstance(error, (OSError, CheckpointError))
        if not logged or not expected:
            text = "%s: acknowledgements cannot be received for now: %s"
            _LOG.warning(text, self._url, error, exc_info=not expected)
        if isinstance(error, RequestRefused) and error.code == "stale":
            for pending in self._awaited():
                self._give_up(pending, str(error))

    def _awaited(self) -> list[PendingVersion]:
        with self._changed:
            return sorted(self._pending, key=lambda p: p.version)

    def _acknowledge(self, asked: Mapping[PendingVersion, bool], states: _States) -> bool:
        """Pass on what the node reports of ``asked`` (value: its part was sent).

        Returns whether to ask again.
        """
        _, receiving, complete, durable, stuck = states
        awaited = self._awaited()
        for pending in (p for p in awaited if p in asked):
            done = False
            # A callback that fails must not cost the other versions their acknowledgement
            with _logged(pending):
                if pending.version in durable:
                    done = pending.reached(Level.DURABLE)
                elif pending.version in complete:
                    done = pending.reached(Level.REMOTE)
                    if pending.version in stuck and not done:
                        self._give_up(
                            pending, f"the node's disk does not take it: {stuck[pending.version]}"
                        )
                elif asked[pending] and pending.version not in receiving:
                    self._give_up(pending, "the memory node gave it up", VersionGoneError)
            if done:
                self.discard(pending)
        return any(p.version in complete or p.version in durable for p in awaited if p not in asked)

    def _expire(self) -> None:
        for pending in self._awaited():
            limit_s = self._limit_s + pending.moving_s
            if time.monotonic() - pending.since > limit_s:
                levels = " and ".join(level.value for level in pending.wanted)
                self._give_up(pending, f"it was not {levels} in {limit_s:.0f} s")

    def _give_up(
        self, pending: PendingVersion, reason: str, kind: type[CheckpointError] = CheckpointError
    ) -> None:
        """Await a version no longer, and tell the trainer."""
        _LOG.warning("version %d: %s", pending.version, reason)
        with _logged(pending):
            pending.lost(kind(f"version {pending.version}: {reason}"))
        self.discard(pending)


@contextlib.contextmanager
def _logged(pending: PendingVersion) -> Iterator[None]:
    """Log what a trainer's callback raises, and continue."""
    try:
        yield
    except Exception:
        _LOG.exception("version %d: a callback failed", pending.version)
