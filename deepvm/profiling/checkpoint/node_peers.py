"""Processes of the memory-node benchmark: ``send`` trains; ``receive`` is plain TCP's other end."""

import json
import mmap
import os
import socket
import time
from concurrent.futures import Future
from itertools import pairwise
from queue import SimpleQueue

from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.network.protocol import tune
from deepvm.checkpoint.tiers.base import fulfil
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.core.json_types import JsonObject
from deepvm.io.threads import start_thread
from deepvm.profiling.hosts.watchdog import agent, emit

_COUNT = 8  # Bytes of the number that says how many follow
# Memory of a plain connection's receiver: more than a processor keeps in its caches
_RING_BYTES = 32 * 2**20
_BLOCK = 2**20


def anonymous(size: int) -> memoryview:
    """Memory that belongs to this process alone, and takes room once it is written."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def filled(size: int) -> memoryview:
    """Memory with random bytes."""
    memory = anonymous(size)
    fill(memory)
    return memory


def fill(memory: memoryview) -> None:
    """Write random bytes, the same in each MiB."""
    block = os.urandom(_BLOCK)
    for start in range(0, len(memory), _BLOCK):
        memory[start : start + _BLOCK] = block[: len(memory) - start]


class Sender:
    """A rank's memory, and its connections."""

    def __init__(
        self, size: int, node: str, token: str, job: str, plain_port: int, rank: int, world: int
    ) -> None:
        self._image = anonymous(size)
        ends = [size * number // world for number in range(world + 1)]
        self._layout = Layout(size, tuple((Segment(a, b - a),) for a, b in pairwise(ends)))
        self._own = self._image[ends[rank] : ends[rank + 1]]
        fill(self._own)
        self._rank = rank
        self._tier = TcpTier(node, job, bytes.fromhex(token), limit_s=120.0)
        self._job = job
        self._port = plain_port
        self._plain: list[socket.socket] = []

    def node(self, version: int) -> None:
        self._tier.put(
            Shard(self._job, version, self._rank, self._layout, self._image), lambda level: None
        )

    def plain(self, flows: int) -> None:
        while len(self._plain) < flows:
            sock = socket.create_connection(("127.0.0.1", self._port))
            tune(sock)
            self._plain.append(sock)
        share = -(-len(self._own) // flows)
        parts = [self._own[start : start + share] for start in range(0, len(self._own), share)]
        done = [Future[None]() for _ in parts]
        for future, sock, part in zip(done[1:], self._plain[1:], parts[1:], strict=False):
            start_thread(fulfil, future, _send, sock, part)
        fulfil(done[0], _send, self._plain[0], parts[0])
        for future in done:
            future.result()


def _send(sock: socket.socket, part: memoryview) -> None:
    sock.sendall(len(part).to_bytes(_COUNT, "big"))
    sock.sendall(part)
    if not sock.recv(1):
        raise ConnectionError("the receiver has gone")


def send(setting: JsonObject, lines: SimpleQueue[str]) -> None:
    """Serve as a trainer: each order names a :class:`Sender` method and a start (monotonic)."""
    sender = Sender(**setting)
    emit("ready")
    while True:
        order = json.loads(lines.get())
        time.sleep(max(order["at"] - time.monotonic(), 0.0))
        getattr(sender, order["what"])(order["argument"])
        emit("done", seconds=time.monotonic() - order["at"])


def receive() -> None:
    """Read what comes, on any number of connections."""
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    emit("open", port=server.getsockname()[1])

    def serve(sock: socket.socket) -> None:
        memory = anonymous(_RING_BYTES)
        while head := sock.recv(_COUNT, socket.MSG_WAITALL):
            left = int.from_bytes(head, "big")
            at = 0
            while left:
                count = sock.recv_into(memory[at:], min(left, _RING_BYTES - at))
                if not count:
                    return
                left = left - count
                at = (at + count) % _RING_BYTES
            sock.sendall(b"k")

    while True:
        sock, _ = server.accept()
        tune(sock)
        start_thread(serve, sock)


def _work(order: JsonObject, lines: SimpleQueue[str]) -> None:
    setting = json.loads(lines.get())
    if setting.pop("role") == "receive":
        receive()
    else:
        send(setting, lines)


if __name__ == "__main__":
    agent(_work, folder=False)
