"""Pushes over TCP: the programs that run on the receiver and on the senders of ``deepvm profile saturation``.

They are told what to do in lines of JSON on standard input, tell what they found through lines as well, and end when
whoever started them is gone; see :mod:`deepvm.profiling.hosts.watchdog`. The senders' connections are proven with a
token, in both directions, as those of memory nodes (:mod:`deepvm.checkpoint.network.protocol`); once all senders have
come, nobody else is let in. A push begins with a signal to each sender, and is over with its last byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from deepvm.checkpoint.network.protocol import Channel, Kind, admit, introduce, tune
from deepvm.errors import CheckpointError
from deepvm.profiling.hosts.network import boot_id, own_addresses
from deepvm.profiling.hosts.watchdog import MOST_REASON, emit, hold

PIECE = 2**20
STALL_S = 30.0
"""A sender of which nothing has come for so long is lost."""
CONNECT_S = 5.0
"""For one address of the receiver."""
_STRANGERS = 16


def shares(size: int, count: int) -> list[int]:
    """``size`` bytes in ``count`` parts that differ by at most one byte."""
    return [size // count + (place < size % count) for place in range(count)]


class Receiver:
    """The one that all push to; it has the clock."""

    def __init__(self, token: bytes, names: Sequence[str], *, stall_s: float = STALL_S) -> None:
        """Listen on a free port of all addresses, and let these senders in."""
        self._token, self._names, self._stall_s = token, set(names), stall_s
        self._listener = socket.create_server(("", 0), backlog=128)
        self._listener.settimeout(0.2)
        self.port = int(self._listener.getsockname()[1])
        self._senders: dict[str, tuple[socket.socket, Channel]] = {}
        self._changed = threading.Condition()
        self._open = True
        threading.Thread(target=self._let_in, daemon=True).start()

    def gather(self, names: Sequence[str], limit_s: float) -> list[str]:
        """Wait until all of these have come, or the time is over, and let nobody in any more.

        Returns:
            The names of those that have come.
        """
        with self._changed:
            self._changed.wait_for(lambda: set(names) <= set(self._senders), limit_s)
            self._open = False
        return [name for name in names if name in self._senders]

    def _let_in(self) -> None:
        # A stranger that says nothing must not keep the others waiting: each has a thread, which ends with its proof.
        room = threading.Semaphore(max(_STRANGERS, 2 * len(self._names)))
        with self._listener:
            while self._open:
                with contextlib.suppress(OSError):
                    sock, _ = self._listener.accept()
                    if room.acquire(blocking=False):
                        threading.Thread(target=self._meet, args=(sock, room), daemon=True).start()
                    else:
                        sock.close()

    def _meet(self, sock: socket.socket, room: threading.Semaphore) -> None:
        channel = Channel(sock)
        try:
            tune(sock)
            admit(channel, self._token)
            name = str(channel.receive(idle_s=CONNECT_S).body.get("name"))
            with self._changed:
                if not self._open or name not in self._names or name in self._senders:
                    raise OSError(f"{name} is not awaited")
                channel.send(Kind.WELCOME)
                self._senders[name] = sock, channel
                self._changed.notify_all()
        except (OSError, CheckpointError):
            channel.close()
        finally:
            room.release()

    def push(self, names: Sequence[str], size: int, limit_s: float) -> Mapping[str, Any]:
        """Have these senders push ``size`` bytes together, at once.

        Returns:
            ``seconds`` from the first start signal to the last byte; ``busy``: the part of the time in which this
            thread used a processor; ``lost``: why senders have not sent their part.
        """
        lost: dict[str, str] = {}
        each: dict[str, float] = {}
        left = dict(zip(names, shares(size, len(names)), strict=True))
        buffer = memoryview(bytearray(PIECE))
        cpu, start = time.thread_time(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            for name in names:
                sock, channel = self._senders[name]
                try:
                    channel.send(Kind.GET, {"bytes": left[name]})
                    sock.setblocking(False)
                    selector.register(sock, selectors.EVENT_READ, name)
                except OSError as error:
                    lost[name] = _why(error)
            heard = dict.fromkeys(names, time.monotonic())
            while waiting := [name for name in names if name not in lost and name not in each]:
                for key, _ in selector.select(min(1.0, self._stall_s)):
                    name = key.data
                    try:
                        count = key.fileobj.recv_into(buffer[: min(PIECE, left[name])])  # type: ignore[union-attr]
                        problem = "" if count else "it has closed the connection"
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        count, problem = 0, _why(error)
                    heard[name] = time.monotonic()
                    left[name] -= count
                    if problem:
                        lost[name] = problem
                    elif not left[name]:
                        each[name] = heard[name] - start
                    if name in lost or name in each:
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                for name in waiting:
                    if name in lost or name in each:
                        continue
                    if now - heard[name] > self._stall_s:
                        lost[name] = f"nothing has come of it for {self._stall_s:g} s"
                    elif now - start > limit_s:
                        lost[name] = f"it was not done in {limit_s:g} s"
                    if name in lost:
                        selector.unregister(self._senders[name][0])
        seconds = max(each.values(), default=0.0)
        busy = (time.thread_time() - cpu) / (time.monotonic() - start)
        for name in lost:
            self._senders.pop(name)[1].close()
        return {"seconds": seconds, "busy": busy, "lost": lost}

    def close(self) -> None:
        """Part from all senders, which then end."""
        self._open = False
        for _, channel in self._senders.values():
            channel.close()


def receive(lines: SimpleQueue[str]) -> None:
    """What the receiver's program does with the orders that come."""
    first = json.loads(lines.get())
    receiver = Receiver(bytes.fromhex(first["token"]), first["senders"], stall_s=first["stall_s"])
    emit("open", port=receiver.port, addresses=list(own_addresses().values()), boot=boot_id())
    while True:  # until its watchdog ends it
        order = json.loads(lines.get())
        if "gather" in order:
            emit("gathered", here=receiver.gather(order["gather"], order["limit_s"]))
        else:
            emit("pushed", **receiver.push(order["push"], order["bytes"], order["limit_s"]))


def send(lines: SimpleQueue[str]) -> None:
    """What a sender's program does: it connects, and pushes whenever the receiver says so."""
    first = json.loads(lines.get())
    sock, channel, address = _connect(first["addresses"], first["port"], bytes.fromhex(first["token"]))
    channel.send(Kind.HELLO, {"name": first["name"]})
    if channel.receive(idle_s=CONNECT_S).kind is not Kind.WELCOME:
        raise OSError("the receiver does not want this sender")
    emit("ready", address=address, boot=boot_id())
    piece = memoryview(os.urandom(PIECE))  # of zeros, a link that compresses would make nothing
    while True:
        frame = channel.receive(idle_s=first["limit_s"])
        left = int(frame.body["bytes"])
        sock.settimeout(first["stall_s"])
        while left:
            left -= sock.send(piece[:left])


def _connect(addresses: Sequence[str], port: int, token: bytes) -> tuple[socket.socket, Channel, str]:
    problems = []
    for address in addresses:
        try:
            sock = socket.create_connection((address, port), timeout=CONNECT_S)
            tune(sock)
            channel = Channel(sock)
            introduce(channel, token, limit_s=CONNECT_S)
            return sock, channel, address
        except (OSError, CheckpointError) as error:  # another machine may have that address in its own network
            problems.append(f"{address}: {_why(error)}")
    raise OSError(f"cannot reach the receiver's port {port}: {'; '.join(problems)}")


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or error or type(error).__name__)


def main() -> None:
    """``python -m deepvm.profiling.saturation.transfer_tcp receive|send SECONDS``: for how long it may run."""
    role, limit_s = sys.argv[1:]
    lines = hold(float(limit_s))
    try:
        (receive if role == "receive" else send)(lines)
    except (OSError, CheckpointError, ValueError, KeyError) as error:
        emit("failed", reason=_why(error)[:MOST_REASON])
        os._exit(1)  # threads that wait for connections hold nothing that is worth waiting for


if __name__ == "__main__":
    main()
