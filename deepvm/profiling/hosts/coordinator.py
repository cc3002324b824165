"""Run one program on each of several hosts: start it, read its JSON lines, send it orders, and end it for certain.

A program's standard input stays open for as long as it may run; :mod:`deepvm.profiling.hosts.watchdog` is the other
end. Every wait here has a limit.
"""

from __future__ import annotations

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
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from deepvm.errors import MeasurementError, RequestError
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.hosts.watchdog import MARK

Message = dict[str, Any]
"""A JSON object with an ``event``, as :func:`deepvm.profiling.hosts.watchdog.emit` writes it."""
_KEPT_LINES = 40
_LONGEST_LINE = 2**20
_GRACE_S = 5.0
_ENDING_S = 0.5
"""A process whose connection broke because it ended has ended within this time."""
_OVER = ("failed", "ended")


@dataclass
class _Member:
    host: Host
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    unread: deque[Message] = field(default_factory=deque)


class Coordinator:
    """One command on each of several hosts; leaving the ``with`` block ends all of them.

    Follow all of them with :meth:`next_message`, or ask them one by one with :meth:`answer` and :meth:`collect`.
    """

    def __init__(
        self,
        commands: Sequence[tuple[Host, Sequence[str]]],
        hear: Callable[[str], None] | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start all at once.

        Args:
            commands: hosts, and the words to start here for each.
            hear: gets each line that is printed for people, with its host.
            environment: of the commands; this process's own unless given.
            folder: where the commands start; where this process is unless given.

        Raises:
            RequestError: a program cannot be started.
        """
        self._hear, self._environment, self._folder = hear, environment, folder
        self._messages: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._members: list[_Member] = []
        try:
            for place, (host, words) in enumerate(commands):
                self._start(place, host, list(words))
        except BaseException:
            self.stop(0)
            raise

    def _start(self, place: int, host: Host, words: list[str]) -> None:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                words,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                # A session of its own: Ctrl-C comes to this process alone, which then ends the others in good order.
                start_new_session=True,
                env=self._environment,
                cwd=self._folder,
            )
        except OSError as error:
            raise RequestError("launcher", words[0], f"a program that can be started ({error.strerror})") from None
        member = _Member(host, process)
        self._members.append(member)
        assert process.stdout is not None and process.stderr is not None
        readers = [
            threading.Thread(target=self._read_messages, args=(place, process.stdout), daemon=True),
            threading.Thread(target=self._read_text, args=(member, process.stderr), daemon=True),
        ]
        for thread in (*readers, threading.Thread(target=self._wait, args=(place, process, readers), daemon=True)):
            thread.start()

    def _read_messages(self, place: int, source: IO[bytes]) -> None:
        with source, contextlib.suppress(OSError, ValueError):
            while line := source.readline(_LONGEST_LINE):
                if (message := _parsed(line.decode(errors="replace"))) is not None:
                    self._messages.put((place, message))

    def _read_text(self, member: _Member, source: IO[bytes]) -> None:
        with source, contextlib.suppress(OSError, ValueError):
            while line := source.readline(_LONGEST_LINE):
                text = line.decode(errors="replace").rstrip()
                if text:
                    member.tail.append(text)
                if text and (hear := self._hear) is not None:
                    hear(f"[{member.host.name}] {text}")

    def _wait(self, place: int, process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
        code = process.wait()
        for reader in readers:  # what was said before the end comes before it; a grandchild may hold the pipe longer
            reader.join(1.0)
        reason = f"{_ending(code)}{self.last(place)}"
        self._messages.put((place, {"event": "ended", "reason": reason, "code": code}))

    def next_message(self, deadline: float) -> tuple[int, Message] | None:
        """The next message and the place of its host; None when none comes until ``deadline`` (``time.monotonic()``).

        The end of a command is the event ``ended`` with a ``reason`` and a ``code`` as of :class:`subprocess.Popen`.
        """
        try:
            return self._messages.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return None

    def answer(self, place: int, limit_s: float, name: str = "") -> Message:
        """The next message of one host; what the others say meanwhile is kept for them.

        Args:
            place: of the host.
            limit_s: to wait for it.
            name: what to call the host in an error; its own name unless given.

        Raises:
            MeasurementError: it failed, has ended, or said nothing in time.
        """
        answers, failed = self.collect([place], limit_s)
        if failed:
            raise MeasurementError(f"{name or self._members[place].host.name}: {failed[place]}")
        return answers[place]

    def collect(self, places: Iterable[int], limit_s: float) -> tuple[dict[int, Message], dict[int, str]]:
        """The next message of each of these hosts, and the reasons of those that gave none within the time."""
        answers: dict[int, Message] = {}
        failed: dict[int, str] = {}
        deadline = time.monotonic() + limit_s
        for place in places:
            unread = self._members[place].unread
            if not self._await_message(lambda unread=unread: bool(unread), deadline):  # type: ignore[misc]
                failed[place] = self.silence(place, limit_s)
            elif unread[0]["event"] in _OVER:  # it stays there for everybody who asks again
                failed[place] = unread[0]["reason"]
            else:
                answers[place] = unread.popleft()
        return answers, failed

    def ending(self, place: int) -> str:
        """Why a command has ended, in words; ``its command still runs`` when it has not."""
        unread = self._members[place].unread
        self._await_message(lambda: any(m["event"] in _OVER for m in unread), time.monotonic() + _ENDING_S)
        return next((m["reason"] for m in unread if m["event"] in _OVER), "its command still runs")

    def _await_message(self, done: Callable[[], bool], deadline: float) -> bool:
        while not done():
            if (found := self.next_message(deadline)) is None:
                return False
            place, message = found
            self._members[place].unread.append(message)
        return True

    def send(self, place: int, order: object) -> None:
        """Send a host's command a line of JSON; nothing happens when it has ended."""
        stdin = self._members[place].process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()

    def tail(self, place: int, lines: int = 5) -> tuple[str, ...]:
        """The last lines that a host has printed for people."""
        return tuple(self._members[place].tail)[-lines:]

    def last(self, place: int) -> str:
        """The last of these lines with a word in it, to follow a reason; "" when there is none."""
        words = (line for line in reversed(self._members[place].tail) if any(map(str.isalnum, line)))
        line = next(words, "")
        return f"; it said last: {line[:200]}" if line else ""

    def silence(self, place: int, limit_s: float) -> str:
        """What to say of a host that has said nothing for so long."""
        return f"nothing was heard from it for {limit_s:g} s{self.last(place)}"

    def wait(self, limit_s: float) -> None:
        """Give the commands time to end by themselves."""
        deadline = time.monotonic() + limit_s
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(deadline - time.monotonic(), 0))

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """End everything: by closing the standard inputs, then by signals to what runs on this machine."""
        self._hear = None  # that all end now is no news
        try:
            for member in self._members:
                assert member.process.stdin is not None
                with contextlib.suppress(OSError):
                    member.process.stdin.close()
            self.wait(grace_s)
            self._signal(signal.SIGTERM)
            self.wait(2.0)
        finally:  # also when somebody presses Ctrl-C once more
            self._signal(signal.SIGKILL)
            self.wait(5.0)

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(member.process.pid, number)

    def __enter__(self) -> Coordinator:
        """Itself; the commands run already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        self.stop()


def _parsed(line: str) -> Message | None:
    """The message in a line of output, None for what is printed for people."""
    if not line.startswith(MARK):
        return None
    try:
        message = json.loads(line[len(MARK) :])
    except ValueError:
        return None
    return message if isinstance(message, dict) and isinstance(message.get("event"), str) else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"its command ended with exit code {code}"
    try:
        return f"its command was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its command was killed by signal {-code}"
