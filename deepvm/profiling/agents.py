"""Programs of ours on other hosts: how they are started, and lines of JSON to and from them, with a time-out each."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from deepvm.errors import MeasurementError, RequestError

PRESETS = {
    "ssh": "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}",
    # A host name of its own as well: MPI takes processes with one host name for those of one machine.
    "netns": """ip netns exec {host} unshare --uts sh -c 'hostname "$0" && exec "$@"' {host}""",
    "local": "env",
}
"""Launchers by name: the command is appended."""

_MARK = "deepvm"
_GRACE_S = 3.0
_ENDING_S = 0.5
"""In which a process whose connection is gone has ended, if that is why."""
_TAIL = 600


@dataclass(frozen=True)
class Launcher:
    """How a command is started on a host.

    Attributes:
        template: words of a shell, with ``{host}`` in them; the command is appended to them.
        local: all hosts are this machine, and their names only names.
    """

    template: str
    local: bool = False

    @classmethod
    def parse(cls, text: str) -> Launcher:
        """Read the name of a preset, or a template.

        Raises:
            RequestError: neither; a template without ``{host}`` would start everything on one host.
        """
        template = PRESETS.get(text, text)
        allowed = f"{', '.join(PRESETS)}, or a command with {{host}} in it to which another command can be appended"
        try:
            words = shlex.split(template)
        except ValueError as error:
            raise RequestError("launcher", text, f"{allowed} ({error})") from None
        if text != "local" and (not words or "{host}" not in template):
            raise RequestError("launcher", text, allowed)
        return cls(template, local=text == "local")

    def words(self, host: str, command: Sequence[str]) -> list[str]:
        """The words that start a command on a host."""
        front = [word.replace("{host}", host) for word in shlex.split(self.template)]
        # ssh joins the words with blanks, for the shell on the other side.
        over_ssh = os.path.basename(front[0]) == "ssh"
        return [*front, *([shlex.join(command)] if over_ssh else command)]


class Lines:
    """JSON objects, one a line, on the streams of this process; whatever else comes on such streams is passed over."""

    def __init__(self, read: IO[bytes], write: IO[bytes]) -> None:
        """Keep the streams."""
        self._read, self._write = read, write

    @classmethod
    def standard(cls) -> Lines:
        """Standard input and output."""
        return cls(open(0, "rb", closefd=False), open(1, "wb", closefd=False))

    def read(self) -> dict[str, Any]:
        """The next object; an empty one at the end. Waits as long as whoever started this lives."""
        for line in self._read:
            if (found := _marked(line)) is not None:
                return found
        return {}

    def write(self, found: Mapping[str, Any]) -> None:
        """Tell something."""
        self._write.write(_line(found))
        self._write.flush()


def _line(found: Mapping[str, Any]) -> bytes:
    return json.dumps({_MARK: found}).encode() + b"\n"


def _marked(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get(_MARK), dict):
            return dict(found[_MARK])
    return None


class Agent:
    """A program that was started, as the one who started it sees it.

    Attributes:
        name: for messages, such as ``sender vm3``.
    """

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it.

        Raises:
            MeasurementError: there is no such command.
        """
        self.name, self._words = name, list(words)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this
        self._rest = b""
        try:
            # A session of its own: what it starts ends with it, and Ctrl-C reaches it through us alone.
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,
                env=None if environment is None else dict(environment),
            )
        except OSError as error:
            self._said.close()
            problem = f"{name}: cannot start {words[0]}: {error.strerror}; is the launcher right, and installed here?"
            raise MeasurementError(problem) from None

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send it a line; one that has ended says so when it is heard."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(_line(order))
            self._process.stdin.flush()

    def hear(self, limit_s: float) -> dict[str, Any]:
        """Its next line.

        Raises:
            MeasurementError: it had a problem, has ended, or said nothing in time.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                *lines, self._rest = self._rest.split(b"\n")
                for place, line in enumerate(lines):
                    if (found := _marked(line)) is None:
                        continue
                    self._rest = b"\n".join([*lines[place + 1 :], self._rest])
                    if "problem" in found:
                        raise MeasurementError(f"{self.name}: {found['problem']}")
                    return found
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise MeasurementError(f"{self.name}: it said nothing in {limit_s:.0f} s{self._tail()}")
                more = os.read(self._process.stdout.fileno(), 2**16)
                if not more:
                    raise MeasurementError(f"{self.name}: {self.ending()}{self._tail()}")
                self._rest += more

    def ending(self) -> str:
        """How its process ended, in words; ``its process still runs`` when it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_ENDING_S)
            return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}"
        return "its process still runs"

    def hang_up(self) -> None:
        """End its input, which it takes for the end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def terminate(self) -> None:
        """Ask it and what it has started to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and what it has started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)

    def over(self, deadline: float) -> bool:
        """Whether its process has ended by then (of the monotonic clock); if so, it is closed."""
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return False
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()
        return True

    def said(self) -> str:
        """The end of what it wrote on standard error."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - _TAIL))
        return self._said.read().decode(errors="replace").strip()

    def _tail(self) -> str:
        lines = self.said().splitlines()
        return f": {' / '.join(lines[-3:])}" if lines else ""


def end(agents: Iterable[Agent]) -> None:
    """End all of them: by themselves, as their input ends, or else by force; no process stays behind here."""
    left = list(agents)
    steps: tuple[Callable[[Agent], None], ...] = (Agent.hang_up, Agent.terminate, Agent.kill)
    for step in steps:
        for agent in left:
            step(agent)
        deadline = time.monotonic() + _GRACE_S
        left = [agent for agent in left if not agent.over(deadline)]


def shares(size: int, count: int) -> list[int]:
    """``size`` bytes in ``count`` parts that differ by at most one byte."""
    return [size // count + (place < size % count) for place in range(count)]


def own_addresses() -> list[str]:
    """IPv4 addresses of this host's interfaces, those of loopback last; empty where the kernel does not say."""
    found = []
    with contextlib.suppress(ImportError, OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        import fcntl

        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(asked[20:24]))
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))
