"""Starting a command on several machines at once, hearing what it says, and ending it for certain.

A command is started through a template such as ``ssh {host}``. Its standard input stays open for as long as it may run;
see :mod:`deepvm.profiling.hosts.watchdog` for the other end. Nothing here waits without a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Literal

from deepvm.errors import RequestError
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.hosts.watchdog import MARK

PRESETS = {
    # ServerAlive: a machine that is gone without a word is noticed after a minute, not after hours.
    "ssh": "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 {host}",
    # A host name of its own as well: MPI takes processes with one host name for those of one machine.
    "netns": """ip netns exec {host} unshare --uts sh -c 'hostname "$0" && exec "$@"' {host}""",
    "local": "",
}
"""Templates by the names that ``--launcher`` knows."""
HOST, COMMAND = "{host}", "{command}"
_SHELLS = ("ssh", "rsh")
_KEPT_LINES = 40
_LONGEST_LINE = 65536
_GRACE_S = 5.0


@dataclass(frozen=True)
class Launcher:
    """How a command gets to a host.

    Attributes:
        words: the template, split as a shell would. python: the interpreter there. folder: where it is started.
        quoted: whether a shell on the host reads the command: it goes as one word, quoted for that shell.
        name: of the preset, or ``own``.
    """

    words: tuple[str, ...]
    python: str
    folder: str
    quoted: bool
    name: str

    @property
    def local(self) -> bool:
        """Whether all hosts are this machine, and their names only names."""
        return self.name == "local"

    @classmethod
    def parse(cls, template: str, python: str = "", folder: str = "") -> Launcher:
        """Read a preset's name, or a template.

        The command is appended to the template's words, or stands as one word in the place of ``{command}``. It is
        quoted for a shell there, and behind ``ssh`` and ``rsh``, which hand it to one.

        Args:
            template: ``ssh``, ``netns``, ``local``, or words with ``{host}`` in them.
            python: the interpreter on the hosts. This one for ``netns`` and ``local``, else ``python3`` unless given.
            folder: where the command is started on the hosts; where the launcher starts it unless given.

        Raises:
            RequestError: no ``{host}`` in it, unbalanced quotes, or no such program or interpreter here.
        """
        name = template if template in PRESETS else "own"
        try:
            words = shlex.split(PRESETS.get(template, template))
        except ValueError as error:
            raise RequestError("launcher", template, f"balanced quotes ({error})") from None
        if name != "local" and not any(HOST in w for w in words):
            known = ", ".join(PRESETS)
            raise RequestError("launcher", template, f"{known}, or a command with {HOST} in it, such as 'ssh {HOST}'")
        if words and HOST not in words[0] and shutil.which(words[0]) is None:
            raise RequestError("launcher", template, f"a program of this machine; there is no {words[0]} here")
        if any(COMMAND in w and w != COMMAND for w in words) or words.count(COMMAND) > 1:
            raise RequestError("launcher", template, f"{COMMAND} once and as a word of its own, or not at all")
        quoted = COMMAND in words or bool(words) and os.path.basename(words[0]) in _SHELLS
        python = python or (sys.executable if name in ("netns", "local") else "python3")
        if name in ("netns", "local") and not folder and shutil.which(python) is None:
            raise RequestError("python", python, "a Python of this machine that can be started")
        return cls(tuple(words), python, folder, quoted, name)

    def command(self, host: Host, module: str, arguments: Sequence[str]) -> list[str]:
        """The words to start here, so that ``python -m module arguments`` runs on the host."""
        there = self.program(module, arguments)
        words = [w.replace(HOST, host.name) for w in self.words]
        if not self.quoted:
            return [*words, *there]
        whole = joined(there)
        return [whole if w == COMMAND else w for w in words] if COMMAND in words else [*words, whole]

    def program(self, module: str, arguments: Sequence[str]) -> list[str]:
        """What runs on the host then, in words."""
        there = [self.python, "-m", module, *arguments]
        return ["sh", "-c", 'cd -- "$0" && exec "$@"', self.folder, *there] if self.folder else there


def joined(words: Sequence[str]) -> str:
    """Words as one, quoted for the shell of a host."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    # A shell knows ~ only outside of quotes, and `--python '~/venv/bin/python'` means the home of the host.
    if word.startswith("~/"):
        return "~/" + shlex.quote(word[2:])
    return shlex.quote(word)


@dataclass(frozen=True)
class Said:
    """A line that a host has printed."""

    place: int
    stream: Literal["out", "err"]
    text: str


@dataclass(frozen=True)
class Ended:
    """A host's command is over; ``code`` as of :class:`subprocess.Popen`."""

    place: int
    code: int


@dataclass
class _Member:
    host: Host
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))


class Crew:
    """One command on each of several hosts; leaving the ``with`` block ends all of them."""

    def __init__(
        self,
        commands: Sequence[tuple[Host, Sequence[str]]],
        hear: Callable[[str], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start all at once.

        Args:
            commands: hosts, and the words to start here for each.
            hear: gets each line that people may want to read, with its host.
            environment: of the commands; this process's own unless given.

        Raises:
            RequestError: a program cannot be started.
        """
        self._hear, self._environment = hear, environment
        self._events: queue.SimpleQueue[Said | Ended] = queue.SimpleQueue()
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
            # A session of its own: Ctrl-C comes to this process alone, which then ends the others in good order.
            process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=self._environment
            )
        except OSError as error:
            raise RequestError("launcher", words[0], f"a program that can be started ({error.strerror})") from None
        member = _Member(host, process)
        self._members.append(member)
        assert process.stdout is not None and process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(place, member, "out", process.stdout), daemon=True),
            threading.Thread(target=self._read, args=(place, member, "err", process.stderr), daemon=True),
        ]
        for thread in (*readers, threading.Thread(target=self._wait, args=(place, process, readers), daemon=True)):
            thread.start()

    def _read(self, place: int, member: _Member, stream: Literal["out", "err"], source: IO[bytes]) -> None:
        with source, contextlib.suppress(OSError, ValueError):
            while line := source.readline(_LONGEST_LINE):
                text = line.decode(errors="replace").rstrip()
                if not text:
                    continue
                if stream == "err":
                    member.tail.append(text)
                    if (hear := self._hear) is not None:
                        hear(f"[{member.host.name}] {text}")
                self._events.put(Said(place, stream, text))

    def _wait(self, place: int, process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
        code = process.wait()
        for reader in readers:  # what was said before the end comes before it; a grandchild may hold the pipe longer
            reader.join(1.0)
        self._events.put(Ended(place, code))

    def next(self, deadline: float) -> Said | Ended | None:
        """The next event, None when there is none until ``deadline`` (of ``time.monotonic()``)."""
        try:
            return self._events.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return None

    def next_fact(self, deadline: float) -> tuple[int, dict[str, Any]] | None:
        """The next fact that a host tells (:func:`deepvm.profiling.hosts.watchdog.emit`), and its place.

        Returns:
            None when there is none until ``deadline``. The end of a command is the event ``ended`` with its ``reason``.
        """
        while (event := self.next(deadline)) is not None:
            if isinstance(event, Ended):
                return event.place, {"event": "ended", "reason": f"{_ending(event.code)}{self.last(event.place)}"}
            if (fact := _fact(event)) is not None:
                return event.place, fact
        return None

    def tell(self, place: int, line: str) -> None:
        """Send a line to a host's command; nothing happens when that has ended."""
        stdin = self._members[place].process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):
            stdin.write(line.encode() + b"\n")
            stdin.flush()

    def tail(self, place: int, lines: int = 5) -> tuple[str, ...]:
        """The last lines that a host has printed for people."""
        return tuple(self._members[place].tail)[-lines:]

    def last(self, place: int) -> str:
        """The last of these lines that says something, to be put behind a reason; "" when there is none."""
        words = (line for line in reversed(self._members[place].tail) if any(map(str.isalnum, line)))
        line = next(words, "")
        return f"; it said last: {line[:200]}" if line else ""

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """End everything: by closing the standard inputs, then by signals to what runs on this machine."""
        self._hear = None  # that all end now is no news
        try:
            for member in self._members:
                assert member.process.stdin is not None
                with contextlib.suppress(OSError):
                    member.process.stdin.close()
            self._await(grace_s)
            self._signal(signal.SIGTERM)
            self._await(2.0)
        finally:  # also when somebody presses Ctrl-C once more
            self._signal(signal.SIGKILL)
            self._await(5.0)

    def _await(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(deadline - time.monotonic(), 0))

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(member.process.pid, number)

    def __enter__(self) -> Crew:
        """The crew itself; it runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        self.stop()


def _fact(said: Said) -> dict[str, Any] | None:
    if said.stream != "out" or not said.text.startswith(MARK):
        return None
    try:
        fact = json.loads(said.text[len(MARK) :])
    except ValueError:
        return None
    return fact if isinstance(fact, dict) and isinstance(fact.get("event"), str) else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"its command ended with exit code {code}"
    try:
        return f"its command was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its command was killed by signal {-code}"
