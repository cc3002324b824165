"""Memory nodes and senders for tests: in this process, or in one that can be killed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.checksums import finish
from deepvm.checkpoint.format.layout import ChecksumField, Layout, Segment
from deepvm.checkpoint.format.manifest import Level, NewVersion, Shard
from deepvm.checkpoint.network.client import Link, node_status
from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.network.protocol import Kind
from deepvm.checkpoint.node import flusher
from deepvm.checkpoint.node.server import Node, NodeSettings
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Reservation
from deepvm.checkpoint.tiers.tcp import TcpTier

TOKEN = b"open sesame, and then some"
HERE = Address("127.0.0.1", 0)
MIB = 2**20


def make_layout(size: int, world: int = 1, seed: int = 0, records: int = 3) -> Layout:
    """Random segments for each rank, and records with a checksum behind each, twice."""
    rng = random.Random(seed)
    count = min(size, max(world * 3, 1))
    places = [0, *sorted(rng.sample(range(1, size), count - 1)), size] if size > 1 else [0, 1]
    shards: list[list[Segment]] = [[] for _ in range(world)]
    for start, end in zip(places, places[1:], strict=False):
        shards[rng.randrange(world)].append(Segment(start, end - start))
    fields = []
    step = size // (records + 1)
    if step > 64:
        for number in range(records):
            start = number * step + rng.randrange(8)
            length = step - rng.randrange(16, 32)
            fields.append(ChecksumField(start + length, start, length))
            fields.append(ChecksumField(records * step + 8 + 4 * number, start, length))
    return Layout(size, tuple(tuple(s) for s in shards), tuple(fields))


def make_image(layout: Layout, seed: int) -> memoryview:
    return memoryview(bytearray(random.Random(seed).randbytes(layout.size)))


def finished(image: memoryview, layout: Layout) -> bytes:
    """The file that a node must make of an image."""
    copy = bytearray(image)
    finish(memoryview(copy), layout)
    return bytes(copy)


@contextlib.contextmanager
def running(
    memory: int = 64 * MIB, persist: Path | str | None = None, **settings: object
) -> Iterator[Node]:
    """A node in this process; ``url`` and ``address`` say where."""
    place = persist.as_uri() if isinstance(persist, Path) else persist or ""
    node = Node(
        NodeSettings(
            **{"listen": HERE, "token": TOKEN, "memory_bytes": memory, "persist": place, **settings}
        )  # type: ignore[arg-type]
    )
    address = node.start()
    node.address, node.url = address, address.url  # type: ignore[attr-defined]
    try:
        yield node
    finally:
        node.stop(lambda: True)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 and its key; the test is skipped where there is no openssl."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    words += ["-days", "2", "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
    if subprocess.run(
        [*words, "-keyout", str(key), "-out", str(certificate)], capture_output=True
    ).returncode:
        pytest.skip("no openssl here to make a certificate")
    return certificate, key


def tier(where: object, session: str = "s1", token: bytes = TOKEN, **options: object) -> TcpTier:
    url = where if isinstance(where, str) else where.url  # type: ignore[attr-defined]
    options.setdefault("flows", 2)  # also on a machine with two cores
    options.setdefault("wire_bytes", MIB)  # many messages
    return TcpTier(url, session, token, **options)  # type: ignore[arg-type]


class Acks:
    """What was acknowledged, in order; a callback for ``put``."""

    def __init__(self) -> None:
        self.levels: list[Level] = []
        self._changed = threading.Condition()

    def __call__(self, level: Level) -> None:
        with self._changed:
            self.levels.append(level)
            self._changed.notify_all()

    def wait(self, level: Level, limit_s: float = 10.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: level in self.levels, limit_s)


def put(
    to: TcpTier, version: int, layout: Layout, image: memoryview, rank: int = 0, job: str = "job"
) -> Acks:
    acks = Acks()
    to.put(Shard(job, version, rank, layout, image), acks)
    return acks


def put_all(
    tiers: list[TcpTier], version: int, layout: Layout, image: memoryview, job: str = "job"
) -> list[Acks | Exception]:
    """All ranks at once, each from its thread."""
    results: list[Acks | Exception] = [Exception("no answer")] * layout.world

    def one(rank: int) -> None:
        try:
            results[rank] = put(tiers[rank], version, layout, image, rank, job)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(layout.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def until(condition: Callable[[], object], limit_s: float = 10.0) -> bool:
    """Wait for a condition; whether it came."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


WAYS = ("complete", "early", "begun early")
"""When a version's way to the disk of a node meets its trouble: it was complete when its writing
began; it became
complete while it was written, and then came the trouble; or that came with the first byte.
"""


class NodeDisk:
    """The disk of the nodes in this process, which may stand still or fail, whichever way a version
    goes there.

    Both ways end in :meth:`VersionFolder.write`, in whose midst the trouble comes: what it had
    begun is to be cleared up. A version is not complete before its writing has begun, where that is
    the way: else chance would decide.

    Attributes:
        early: how many versions were in trouble, or might have been, whose writing began before
            they were complete.
    """

    def __init__(self, way: str, patch: pytest.MonkeyPatch) -> None:
        """Work, for now."""
        self.way, self.early = way, 0
        self._error, self._busy = 0, False
        self._opened = threading.Event()
        self._opened.set()
        self._write, self._commit = VersionFolder.write, VersionRegistry.commit
        patch.setattr(flusher, "LEAST_BYTES", 2**62 if way == "complete" else 0)
        # Under load the way must be the one that is meant
        patch.setattr(flusher, "_SILENCE_S", 20.0)
        patch.setattr(VersionFolder, "write", lambda folder, *words: self._troubled(folder, *words))
        if way != "complete":
            patch.setattr(
                VersionRegistry, "commit", lambda registry, ticket: self._late(registry, ticket)
            )

    def hang(self) -> None:
        """Stand still until ``work``."""
        self._opened.clear()

    def fail(self, error: int = errno.ENOSPC) -> None:
        """Fail with this error until ``work``."""
        self._error = error

    def work(self) -> None:
        """Take whatever comes, and what waits."""
        self._error = 0
        self._opened.set()

    def _troubled(self, folder: VersionFolder, new: NewVersion) -> None:
        early = not isinstance(new.final, list)
        self.early += early
        self._busy = True

        def ends() -> Iterator[int]:
            if early and self.way == "begun early":
                self._trouble()
            for end in new.final:
                if end == len(new.image):
                    self._trouble()
                yield end

        try:
            self._write(folder, replace(new, final=ends()))
        finally:
            self._busy = False

    def _trouble(self) -> None:
        assert self._opened.wait(20), "the test has left the disk standing still"
        if self._error:
            raise OSError(self._error, os.strerror(self._error))

    def _late(self, registry: VersionRegistry, ticket: Reservation) -> Mapping[str, Any]:
        """A commit, once the version is on its way.

        While the disk is busy with another one it may take none.
        """
        until(lambda: ticket.version.early or self._busy or registry.queue, 1.0)
        return self._commit(registry, ticket)


@dataclass(eq=False)
class Peer:
    """A sender without a connection."""

    job: str = "job"
    session: str = "s"
    world: int = 1
    rank: int = 0
    digest: str = "x"
    epoch: int = 0

    def abort(self) -> None: ...

    def gone(self) -> bool:
        return False


def raw_sender(
    node: object, layout: Layout, session: str = "s1", rank: int = 0, job: str = "job"
) -> Link:
    """A connection that sent HELLO and its layout as a sender, for tests that break rules."""
    link = Link(node.address, TOKEN)  # type: ignore[attr-defined]
    welcome = link.hello(
        {
            "role": "sender",
            "job": job,
            "session": session,
            "world": layout.world,
            "rank": rank,
            "layout": layout.digest,
        }
    )
    if not welcome["layout"]:
        assert link.call(Kind.LAYOUT, layout.to_json()).kind is Kind.PONG
    return link


def program() -> list[str]:
    """The command line for Python.

    Where temporary folders count as disks, it believes so too (see conftest).
    """
    if durable_write.medium(Path(tempfile.gettempdir())).kind not in ("tmpfs", "ramfs"):
        return ["-m", "deepvm.cli.main"]
    believes = (
        "from deepvm.checkpoint.files import durable_write as disk; disk.Medium.volatile = False; "
    )
    return [
        "-c",
        believes
        + "import runpy; runpy.run_module('deepvm.cli.main', run_name='__main__', alter_sys=True)",
    ]


class Process:
    """A node in a process of its own, by the command line."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        kill_at: str = "",
        memory: str = "64MiB",
        persist: bool = True,
        within: Sequence[str] = (),
    ) -> None:
        """Start it; ``within``: what stands before the command."""
        token = folder / "token"
        token.write_bytes(TOKEN + b"\n")
        self.persist = folder / "persist"
        command = [
            *within,
            sys.executable,
            *program(),
            "memory-node",
            "serve",
            "--listen",
            "127.0.0.1:0",
        ]
        command += ["--memory", memory, "--token-file", str(token), *words]
        if persist:
            command += ["--persist", f"file://{self.persist}"]
        environment = {**os.environ, "DEEPVM_CHECKPOINT_KILL_AT": kill_at}
        self.log = folder / "node.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        assert self.line.startswith("listening on "), self.log.read_text()
        self.address = Address.parse(self.line.split()[-1])
        self.url = self.address.url

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self, signal: int, limit_s: float = 20.0) -> int:
        self.process.send_signal(signal)
        return self.process.wait(limit_s)

    @property
    def rss(self) -> int:
        """Bytes of memory in use."""
        return self._memory("VmRSS")

    @property
    def peak(self) -> int:
        """The most that it was."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0]) * 1024

    def status(self) -> dict[str, object]:
        return dict(node_status(self.address, TOKEN))
