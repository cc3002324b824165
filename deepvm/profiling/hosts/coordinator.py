"""Run one program (:mod:`.watchdog`) on several hosts, exchange JSON lines, and always end it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from deepvm.core.json_types import JsonDict
from deepvm.core.progress import Say
from deepvm.errors import MeasurementError, RequestError
from deepvm.io.threads import start_thread
from deepvm.profiling.hosts.launcher import Host
from deepvm.profiling.hosts.watchdog import MARK
from deepvm.records import dataclass, field

# A JSON object with an ``event``, as :func:`deepvm.profiling.hosts.watchdog.emit` writes it
Message = JsonDict
_KEPT_LINES = 40
_LONGEST_LINE = 2**20
_GRACE_S = 5.0
_ENDING_S = 0.5  # a process whose connection broke because it ended has ended within this time
_OVER = ("failed", "ended")


@dataclass
class _Member:
    host: Host
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    unread: deque[Message] = field(default_factory=deque)


class Coordinator(contextlib.AbstractContextManager["Coordinator"]):
    """A command on each of several hosts, ended with the ``with`` block; a place is its number."""

    def __init__(
        self,
        commands: Sequence[tuple[Host, Sequence[str]]],
        hear: Say | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start all; ``hear`` receives lines for people. Raises RequestError: one cannot start."""
        self._hear = hear
        self._messages: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._members: list[_Member] = []
        # A session of its own: Ctrl-C reaches this process alone, which then ends the others
        popen = partial(subprocess.Popen[Any], start_new_session=True, env=environment, cwd=folder)
        try:
            for host, words in commands:
                self._start(host, words, popen)
        except BaseException:
            self.stop(0)
            raise

    def _start(self, host: Host, words: Sequence[str], popen: Callable[..., Any]) -> None:
        try:
            process: subprocess.Popen[bytes] = popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise RequestError(
                "launcher", words[0], f"a program that can be started ({error.strerror})"
            ) from None
        place = len(self._members)
        member = _Member(host, process)
        self._members.append(member)
        streams = (
            (process.stdout, partial(self._take_message, place)),
            (process.stderr, partial(self._take_text, member)),
        )
        readers = [start_thread(_read, *each) for each in streams]
        start_thread(self._wait, place, process, readers)

    def _take_message(self, place: int, line: str) -> None:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):
                message = json.loads(line[len(MARK) :])
                if isinstance(message, dict) and isinstance(message.get("event"), str):
                    self._messages.put((place, message))

    def _take_text(self, member: _Member, line: str) -> None:
        if text := line.rstrip():
            member.tail.append(text)
            if (hear := self._hear) is not None:
                hear(f"[{member.host.name}] {text}")

    def _wait(
        self, place: int, process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]
    ) -> None:
        code = process.wait()
        # Earlier messages come before the end; a grandchild may keep the pipe open
        for reader in readers:
            reader.join(1.0)
        how = f"ended with exit code {code}"
        if code < 0:
            # Real-time signals have none
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(-code, f'signal {-code}')}"
        reason = f"its command {how}{self._last(place)}"
        self._messages.put((place, {"event": "ended", "reason": reason, "code": code}))

    def next_message(self, deadline: float) -> tuple[int, Message] | None:
        """The next message and its place, None at ``deadline``; a command's last is ``ended``."""
        try:
            return self._messages.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return None

    def answer(self, place: int, limit_s: float, name: str = "") -> Message:
        """The next message of one host. Raises MeasurementError: it failed, ended, or is silent."""
        answers, failed = self.collect([place], limit_s)
        if failed:
            raise MeasurementError(f"{name or self._members[place].host.name}: {failed[place]}")
        return answers[place]

    def collect(
        self, places: Iterable[int], limit_s: float
    ) -> tuple[dict[int, Message], dict[int, str]]:
        answers = {}
        failed = {}
        deadline = time.monotonic() + limit_s
        for place in places:
            unread = self._members[place].unread
            if not self._await_message(lambda unread=unread: bool(unread), deadline):  # type: ignore[misc]
                failed[place] = self.silence(place, limit_s)
            elif unread[0]["event"] in _OVER:  # stays there for later questions
                failed[place] = unread[0]["reason"]
            else:
                answers[place] = unread.popleft()
        return answers, failed

    def ending(self, place: int) -> str:
        """Why a command has ended, in words; ``its command still runs`` when it has not."""
        unread = self._members[place].unread
        self._await_message(
            lambda: any(m["event"] in _OVER for m in unread), time.monotonic() + _ENDING_S
        )
        return next((m["reason"] for m in unread if m["event"] in _OVER), "its command still runs")

    def _await_message(self, done: Callable[[], bool], deadline: float) -> bool:
        while not done():
            if (found := self.next_message(deadline)) is None:
                return False
            place, message = found
            self._members[place].unread.append(message)
        return True

    def send(self, place: int, order: object) -> None:
        stdin = self._members[place].process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()

    def tail(self, place: int) -> tuple[str, ...]:
        return tuple(self._members[place].tail)[-5:]

    def _last(self, place: int) -> str:
        words = (
            line for line in reversed(self._members[place].tail) if any(map(str.isalnum, line))
        )
        line = next(words, "")
        if line:
            return f"; its last line: {line[:200]}"
        return ""

    def silence(self, place: int, limit_s: float) -> str:
        return f"nothing was received from it for {limit_s:g} s{self._last(place)}"

    def wait(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(deadline - time.monotonic(), 0))

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Close the standard inputs, then signal what runs on this machine."""
        self._hear = None  # what they print while they end is of no interest
        try:
            for member in self._members:
                assert member.process.stdin is not None
                with contextlib.suppress(OSError):
                    member.process.stdin.close()
            self.wait(grace_s)
            self._signal(signal.SIGTERM)
            self.wait(2.0)
        finally:  # also after another Ctrl-C
            self._signal(signal.SIGKILL)
            self.wait(5.0)

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(member.process.pid, number)

    def __exit__(self, *_: object) -> None:
        self.stop()


def _read(source: IO[bytes], take: Say) -> None:
    with source, contextlib.suppress(OSError, ValueError):
        while line := source.readline(_LONGEST_LINE):
            take(line.decode(errors="replace"))
