"""Pushes over TCP: the receiver's and senders' programs.

They authenticate each other by a token, as memory nodes do; once all senders are there, no other
peer is accepted. A push starts with a signal to each sender and ends with its last byte.
"""

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Sequence
from queue import SimpleQueue

from deepvm.checkpoint.network.protocol import Channel, Kind, admit, introduce, tune
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CheckpointError, MeasurementError
from deepvm.io.threads import start_thread
from deepvm.profiling.hosts.machine import boot_id, own_addresses
from deepvm.profiling.hosts.watchdog import agent, emit

PIECE = 2**20
CONNECT_S = 5.0  # for one address of the receiver


def shares(size: int, count: int) -> list[int]:
    """``size`` bytes in ``count`` parts that differ by at most one byte."""
    return [size // count + (place < size % count) for place in range(count)]


class Arrivals:
    """The senders of a push that are awaited, and those that are ``lost``, with the reasons."""

    def __init__(self, names: Sequence[str], stall_s: float, limit_s: float) -> None:
        self._stall_s = stall_s
        self._limit_s = limit_s
        self._cpu = time.thread_time()
        self._start = time.monotonic()
        self._heard = dict.fromkeys(names, self._start)
        self._seconds = 0.0
        self.lost: dict[str, str] = {}

    def awaited(self) -> list[str]:
        return [name for name in self._heard if name not in self.lost]

    def hear(self, name: str, *, done: bool) -> None:
        """Bytes of a sender have arrived, all of them when ``done``."""
        self._heard[name] = time.monotonic()
        if done:
            self._seconds = self._heard.pop(name) - self._start

    def overdue(self) -> list[str]:
        now = time.monotonic()
        found = []
        for name in self.awaited():
            if now - self._heard[name] > self._stall_s:
                self.lost[name] = f"nothing has come of it for {self._stall_s:g} s"
            elif now - self._start > self._limit_s:
                self.lost[name] = f"it was not done in {self._limit_s:g} s"
            else:
                continue
            found.append(name)
        return found

    def result(self) -> JsonDict:
        """The fields of a ``Push``; call it in the receiving thread."""
        busy = (time.thread_time() - self._cpu) / (time.monotonic() - self._start)
        return {"seconds": self._seconds, "busy": busy, "lost": self.lost}


class Receiver:
    """The host that all push to, which takes the time."""

    def __init__(self, token: bytes, names: Sequence[str], *, stall_s: float) -> None:
        self._token = token
        self._names = set(names)
        self._stall_s = stall_s
        self._listener = socket.create_server(("", 0), backlog=128)
        self._listener.settimeout(0.2)
        self.port = int(self._listener.getsockname()[1])
        self._senders: dict[str, tuple[socket.socket, Channel]] = {}
        self._open = True
        start_thread(self._let_in)

    def gather(self, names: Sequence[str]) -> list[str]:
        self._open = False
        return [name for name in names if name in self._senders]

    def _let_in(self) -> None:
        with self._listener:
            while self._open:
                with contextlib.suppress(OSError):
                    sock, _ = self._listener.accept()
                    # A thread of its own: silent strangers must not delay the senders
                    start_thread(self._meet, sock)

    def _meet(self, sock: socket.socket) -> None:
        channel = Channel(sock)
        try:
            tune(sock)
            admit(channel, self._token)
            name = str(channel.receive(idle_s=CONNECT_S).body.get("name"))
            if not self._open or name not in self._names or name in self._senders:
                raise OSError(f"{name} is not awaited")
            self._senders[name] = sock, channel
            channel.send(Kind.WELCOME)
        except (OSError, CheckpointError):
            channel.close()

    def push(self, names: Sequence[str], size: int, limit_s: float) -> JsonObject:
        left = dict(zip(names, shares(size, len(names)), strict=True))
        buffer = memoryview(bytearray(PIECE))
        arrivals = Arrivals(names, self._stall_s, limit_s)
        with selectors.DefaultSelector() as selector:
            for name in names:
                sock, channel = self._senders[name]
                try:
                    channel.send(Kind.GET, {"bytes": left[name]})
                    sock.setblocking(False)
                    selector.register(sock, selectors.EVENT_READ, name)
                except OSError as error:
                    arrivals.lost[name] = _why(error)
            while arrivals.awaited():
                for key, _ in selector.select(min(1.0, self._stall_s)):
                    name = key.data
                    try:
                        count = key.fileobj.recv_into(buffer[: min(PIECE, left[name])])  # type: ignore[union-attr]
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        count = 0
                        arrivals.lost[name] = _why(error)
                    left[name] -= count
                    if count:
                        arrivals.hear(name, done=not left[name])
                    else:
                        arrivals.lost.setdefault(name, "it has closed the connection")
                    if not count or not left[name]:
                        selector.unregister(key.fileobj)
                for name in arrivals.overdue():
                    selector.unregister(self._senders[name][0])
        result = arrivals.result()
        for name in arrivals.lost:
            self._senders.pop(name)[1].close()
        return result


def receive(lines: SimpleQueue[str]) -> None:
    """The receiver's program: carry out orders."""
    first = json.loads(lines.get())
    receiver = Receiver(bytes.fromhex(first["token"]), first["senders"], stall_s=first["stall_s"])
    emit("open", port=receiver.port, addresses=list(own_addresses().values()), boot=boot_id())
    while True:  # until its watchdog ends it
        order = json.loads(lines.get())
        if "gather" in order:
            emit("gathered", here=receiver.gather(order["gather"]))
        else:
            emit("pushed", **receiver.push(order["push"], order["bytes"], order["limit_s"]))


def send(lines: SimpleQueue[str]) -> None:
    """A sender's program: connect, and push whenever the receiver says so."""
    first = json.loads(lines.get())
    sock, channel = _connect(first["addresses"], first["port"], bytes.fromhex(first["token"]))
    channel.send(Kind.HELLO, {"name": first["name"]})
    if channel.receive(idle_s=CONNECT_S).kind is not Kind.WELCOME:
        raise MeasurementError("the receiver does not want this sender")
    emit("ready", boot=boot_id())
    piece = memoryview(os.urandom(PIECE))  # zeros could be compressed on the way
    while True:
        frame = channel.receive(idle_s=first["limit_s"])
        left = int(frame.body["bytes"])
        sock.settimeout(first["stall_s"])
        while left:
            left -= sock.send(piece[:left])


def _connect(addresses: Sequence[str], port: int, token: bytes) -> tuple[socket.socket, Channel]:
    problems = []
    for address in addresses:
        try:
            sock = socket.create_connection((address, port), timeout=CONNECT_S)
            tune(sock)
            channel = Channel(sock)
            introduce(channel, token, limit_s=CONNECT_S)
            return sock, channel
        except (OSError, CheckpointError) as error:
            # Another machine may have that address in its own network
            problems.append(f"{address}: {_why(error)}")
    raise MeasurementError(f"cannot reach the receiver's port {port}: {'; '.join(problems)}")


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or error or type(error).__name__)


if __name__ == "__main__":
    agent(
        lambda order, lines: (receive if order["work"] == "receive" else send)(lines), folder=False
    )
