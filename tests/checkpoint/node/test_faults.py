"""What goes wrong: cut connections, hostile peers, full disks, killed nodes and senders. Acknowledged is restorable."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import (
    MIB,
    TOKEN,
    Acks,
    NodeDisk,
    Process,
    finished,
    make_image,
    make_layout,
    put,
    put_all,
    raw_sender,
    running,
    tier,
    until,
)
from support.places import TESTS

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format import shard as shard_module
from deepvm.checkpoint.format.layout import ChecksumField, Layout, Segment
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.network import protocol
from deepvm.checkpoint.network.client import Link
from deepvm.checkpoint.network.protocol import Channel, Kind, Refused, admit, introduce
from deepvm.checkpoint.tiers import tcp
from deepvm.errors import CheckpointError, TierBusyError

HEAD = struct.Struct("!4sBI")


class Proxy:
    """Between a tier and a node; cuts one of the connections after so many bytes towards the node, or holds them."""

    def __init__(self, target: tuple[str, int], cut_after: int, cuts: int = 1) -> None:
        self._target, self._left, self.cuts = target, cut_after, cuts
        self.sent = 0
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if counted and self._over(len(data)):
                    break
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _over(self, count: int) -> bool:
        with self._lock:
            self.sent += count
            if self.cuts and self.sent > self._left:
                self.cuts -= 1
                return True
            return False

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.mark.parametrize("size", [4 * MIB, 20 * MIB])
@pytest.mark.parametrize("cuts", [1, 2])
def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path, size: int, cuts: int) -> None:
    layout = make_layout(size)
    image = make_image(layout, 1)
    with running(128 * MIB) as node:
        address = node.address  # type: ignore[attr-defined]
        proxy = Proxy((address.host, address.port), cut_after=size * 3 // 4, cuts=cuts)
        to = tier(proxy, wire_bytes=2**16)
        assert put(to, 1, layout, image).wait(Level.REMOTE)
        assert to.fetch(to.versions("job")[0], tmp_path).read_bytes() == finished(image, layout)
        assert proxy.cuts == 0
        assert node.metrics()["counts"]["received_bytes"] == size
        # What was verified before the cut is not sent again: at most what was under way is.
        assert proxy.sent < size + 6 * MIB
        to.close()
        proxy.close()


def test_a_connection_that_is_always_cut_is_an_error() -> None:
    layout = make_layout(4 * MIB)
    with running() as node:
        address = node.address  # type: ignore[attr-defined]
        proxy = Proxy((address.host, address.port), cut_after=MIB, cuts=100)
        to = tier(proxy)
        acks = Acks()
        with pytest.raises(CheckpointError, match="tcp://127.0.0.1"):
            put(to, 1, layout, make_image(layout, 1))
        assert acks.levels == [] and node.registry.manifests("job") == []
        to.close()
        proxy.close()


def test_a_wrong_token_is_said_and_not_tried_again() -> None:
    layout = make_layout(1000)
    with running() as node:
        to = tier(node, token=b"another")
        for call in (lambda: put(to, 1, layout, make_image(layout, 1)), lambda: to.versions("job")):
            with pytest.raises(CheckpointError, match=r"tcp://127.0.0.1:\d+: the token is wrong"):
                call()
        assert until(lambda: node.metrics()["refused"] == {"unproven": 2})
        to.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
        b"\0" * 4096,
        HEAD.pack(b"DVM1", Kind.PROOF, 2**32 - 1) + b"x" * 1000,
        HEAD.pack(b"DVM1", Kind.LAYOUT, 2**26) + b"x" * 1000,
        HEAD.pack(b"DVM1", Kind.STATUS, 0),
        HEAD.pack(b"DVM1", Kind.DATA, 2**23),
        b"",
    ],
)
def test_garbage_of_a_stranger(data: bytes) -> None:
    with running() as node:
        address = node.address  # type: ignore[attr-defined]
        with socket.create_connection((address.host, address.port)) as stranger, contextlib.suppress(OSError):
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(5)
            received = b""
            while more := stranger.recv(4096):
                received += more
            assert len(received) < 1024
        assert until(lambda: node.metrics()["unproven"] == 0)
        assert tier(node).versions("job") == ()


def test_silent_strangers_keep_nobody_out() -> None:
    layout = make_layout(1000)
    with running(connections=4) as node, contextlib.ExitStack() as stack:
        address = node.address  # type: ignore[attr-defined]
        for _ in range(30):
            stack.enter_context(socket.create_connection((address.host, address.port)))
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).levels == [Level.REMOTE]
        assert node.metrics()["unproven"] <= 4
        to.close()


def test_a_silent_stranger_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PROOF_S", 0.2)
    with running() as node:
        address = node.address  # type: ignore[attr-defined]
        with socket.create_connection((address.host, address.port)) as stranger:
            stop = threading.Event()

            def drip() -> None:
                with contextlib.suppress(OSError):
                    while not stop.wait(0.05):
                        stranger.send(b"D")

            thread = threading.Thread(target=drip)
            thread.start()
            assert until(lambda: node.metrics()["refused"] == {"unproven": 1}, 3)
            stop.set()
            thread.join()


def test_too_many_connections() -> None:
    with running(connections=2) as node:
        links = [Link(node.address, TOKEN) for _ in range(2)]  # type: ignore[attr-defined]
        assert until(lambda: node.metrics()["connections"] == 2)
        late = Link(node.address, TOKEN)  # type: ignore[attr-defined]
        with pytest.raises(
            (Refused, OSError), match="2 connections already.*--connections N, 3 for each rank|closed|reset|Broken pipe"
        ):
            late.hello({"role": "status"})
        late.close()
        links.pop().close()
        assert until(lambda: node.metrics()["connections"] == 1)
        links.append(Link(node.address, TOKEN))  # type: ignore[attr-defined]
        links[-1].hello({"role": "status"})
        for link in links:
            link.close()


def test_many_ranks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with three connections, as many as a rank ever has, and with the settings that nobody gave."""
    monkeypatch.setattr(tcp, "_WORTH_TWO", 1)
    world = 40
    layout = make_layout(400 * 1024, world)
    with running() as node:
        tiers = [tier(node) for _ in range(world)]
        for version in (1, 2):
            acks = put_all(tiers, version, layout, make_image(layout, version))
            assert all(isinstance(a, Acks) and a.wait(Level.REMOTE) for a in acks), acks
        assert not node.metrics()["refused"] and node.metrics()["connections"] > 2 * world
        for one in tiers:
            one.close()


def sender(node: object, layout: Layout, version: int = 1) -> Link:
    link = raw_sender(node, layout)
    assert link.call(Kind.RESERVE, {"version": version, "put": "p"}).kind is Kind.CREDIT
    return link


@pytest.mark.parametrize(
    ("offset", "length"), [(MIB, 10), (MIB - 5, 10), (2**63, 10), (0, MIB + 1)], ids=["behind", "over", "far", "long"]
)
def test_data_outside_the_part_is_refused(offset: int, length: int) -> None:
    layout = make_layout(MIB)
    with running() as node:
        link = sender(node, layout)
        with pytest.raises(Refused, match="not in the part of rank 0"):
            link.channel.send_data(offset, memoryview(bytes(length)), label="test")
            link.answer()
        assert [v["received_bytes"] for v in node.metrics()["versions"]] == [0]
        link.close()


def test_data_of_another_rank_is_refused() -> None:
    layout = make_layout(MIB, 2)
    with running() as node:
        link = sender(node, layout)
        start, length = layout.shards[1][0]
        with pytest.raises(Refused, match="not in the part of rank 0"):
            link.channel.send_data(start, memoryview(bytes(length)), label="test")
            link.answer()
        link.close()


def test_duplicates_are_thrown_away_and_overlaps_refused() -> None:
    layout = make_layout(MIB, records=0)
    image = make_image(layout, 1)
    with running() as node:
        link = sender(node, layout)
        link.channel.send_data(0, image[: MIB // 2], label="test")
        link.channel.send_data(100, memoryview(bytes(1000)), label="test")  # other bytes, at a place that is verified
        link.channel.send_data(MIB // 2, image[MIB // 2 :], label="test")
        answer = link.call(Kind.COMMIT, {"version": 1}).body
        assert answer["complete"] and node.metrics()["counts"]["duplicates"] == 1
        version = node.registry.jobs["job"].complete[1]
        assert bytes(version.image) == bytes(image)
        assert link.call(Kind.RESERVE, {"version": 2, "put": "p"}).kind is Kind.CREDIT
        link.channel.send_data(0, image[:5000], label="test")
        with pytest.raises(Refused, match="here in part"):
            link.channel.send_data(500, image[500:5500], label="test")
            link.answer()
        link.close()


def test_tiny_pieces_are_refused() -> None:
    """What the node remembers of each would be more than the piece."""
    layout = Layout(3 * MIB, ((Segment(0, MIB), Segment(2 * MIB, 100), Segment(2 * MIB + 200, MIB - 200)),
                              (Segment(MIB, MIB), Segment(2 * MIB + 100, 100))))  # fmt: skip
    with running() as node:
        link = sender(node, layout)
        link.channel.send_data(2 * MIB, memoryview(bytes(100)), label="test")  # a run of its own
        link.channel.send_data(MIB - 10, memoryview(bytes(10)), label="test")  # the end of one
        assert link.call(Kind.PING).kind is Kind.PONG
        with pytest.raises(Refused, match="4095 bytes at 0; pieces have 4096 or end their run"):
            link.channel.send_data(0, memoryview(bytes(4095)), label="test")
            link.answer()
        link.close()


def test_damaged_bytes_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(4 * MIB)
    image = make_image(layout, 1)
    whole, left = protocol.crc32, [3]

    def wrong(data: memoryview, start: int = 0) -> int:
        left[0] -= 1
        return whole(data, start) ^ (1 if left[0] >= 0 else 0)

    monkeypatch.setattr(protocol, "crc32", wrong)
    with running() as node:
        to = tier(node)
        assert put(to, 1, layout, image).levels == [Level.REMOTE]
        assert node.metrics()["counts"]["damaged_pieces"] == 3
        assert to.fetch(to.versions("job")[0], tmp_path).read_bytes() == finished(image, layout)
        left[0] = 10**6
        with pytest.raises(CheckpointError, match="arrive damaged again and again"):
            put(to, 2, layout, image)
        assert [m.version for m in to.versions("job")] == [1]
        to.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job": "../../etc/passwd"}, "job"),
        ({"job": "a/b"}, "job"),
        ({"job": ""}, "job"),
        ({"job": ".hidden"}, "job"),
        ({"job": 5}, "job"),
        ({"job": "x" * 65}, "job"),
        ({"world": 0}, "world"),
        ({"world": 2**40}, "world"),
        ({"rank": -1}, "rank"),
        ({"rank": True}, "rank"),
        ({"rank": 1}, "rank"),
        ({"rank": 8, "world": 8}, "rank"),
        ({"session": None}, "session"),
        ({"role": "root"}, "role"),
        ({"layout": "x" * 65}, "layout"),
    ],
)
def test_a_strange_hello(change: dict[str, object], words: str) -> None:
    body = {"role": "sender", "job": "job", "session": "s", "world": 1, "rank": 0, "layout": "0" * 64}
    with running() as node:
        link = Link(node.address, TOKEN)  # type: ignore[attr-defined]
        with pytest.raises(Refused, match=words):
            link.hello({**body, **change})
        link.close()
        assert node.registry.jobs == {}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[" * 100_000, b"\xff\xfe", make_layout(999).to_json(), b'{"schema_version": "deepvm.layout/1"}'],
)
def test_a_strange_layout(raw: bytes) -> None:
    layout = make_layout(MIB)
    with running() as node:
        link = Link(node.address, TOKEN)  # type: ignore[attr-defined]
        body = {"role": "sender", "job": "job", "session": "s", "world": 1, "rank": 0, "layout": layout.digest}
        assert not link.hello(body)["layout"]
        with pytest.raises(Refused):
            link.call(Kind.LAYOUT, raw)
        link.close()


OTHER = make_layout(1000)


@pytest.mark.parametrize(
    ("count", "manifest", "words"),
    [
        ("x", b"", "a count that is none"),
        (None, b"", "a count that is none"),
        (-1, b"", "a count that is none"),
        (True, b"", "a count that is none"),
        (1, b"{}", "no commit record"),
        (1, b"[" * 5000, "no commit record"),
        (1, Manifest.of("other", 1, OTHER, (1,)).to_json(), "versions of another job"),
    ],
)
def test_a_node_that_talks_nonsense(count: object, manifest: bytes, words: str) -> None:
    """Whoever knows the token may still be wrong: the trainer gets an error that it knows, and goes on without."""

    def serve(listening: socket.socket) -> None:
        channel = Channel(listening.accept()[0])
        admit(channel, TOKEN)
        channel.receive(idle_s=5)
        channel.send(Kind.WELCOME, {})
        channel.receive(idle_s=5)
        channel.send(Kind.VERSIONS, {"count": count})
        channel.send(Kind.MANIFEST, manifest)
        channel.part()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        to = tier(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(CheckpointError, match=words):
            to.versions("job")
        thread.join(5)
        to.close()


def test_words_out_of_order() -> None:
    layout = make_layout(MIB)
    with running() as node:
        for kind, body in (
            (Kind.COMMIT, {"version": 1}),
            (Kind.LIST, {"job": "job"}),
            (Kind.ACK, {}),
            (Kind.STATUS, {}),
        ):
            link = raw_sender(node, layout)
            with pytest.raises(Refused):
                link.call(kind, body)
            link.close()
        link = raw_sender(node, layout)
        with pytest.raises(Refused, match="DATA before CREDIT"):
            link.channel.send_data(0, memoryview(b"x"), label="test")
            link.answer()
        link.close()
        link = raw_sender(node, layout)
        for body in ({}, {"version": -1}, {"version": 2**63}, {"version": "1"}):
            with pytest.raises((Refused, OSError)):
                link.call(Kind.RESERVE, body)
                link.close()
                link = raw_sender(node, layout)
        link.close()


def test_random_bytes_after_the_proof() -> None:
    """Whatever a peer with the token says, the node lives and what it has stays."""
    layout = make_layout(MIB)
    rng = random.Random(1)
    with running() as node:
        to = tier(node)
        put(to, 1, layout, make_image(layout, 1))
        for _ in range(60):
            sock = socket.create_connection((node.address.host, node.address.port))  # type: ignore[attr-defined]
            channel = Channel(sock)
            introduce(channel, TOKEN)
            kind = rng.choice(list(Kind))
            body = rng.randbytes(rng.randrange(200)) if rng.random() < 0.5 else b'{"role": "sender", "version": 1}'
            lie = rng.choice([0, 0, 1, -1, 2**31])
            with contextlib.suppress(OSError):
                sock.sendall(HEAD.pack(b"DVM1", kind, max(len(body) + lie, 0)) + body)
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(5)
                while sock.recv(4096):
                    pass
            channel.close()
        assert [m.version for m in to.versions("job")] == [1]
        assert until(lambda: node.metrics()["connections"] <= 2)
        to.close()


@pytest.mark.parametrize("same_attempt", [True, False])
def test_a_dead_connection_does_not_hold_the_bytes_of_a_new_one(same_attempt: bool) -> None:
    """Half of a piece came, then the line went dead; the sender comes back on another connection."""
    layout = make_layout(MIB, records=0)
    image = make_image(layout, 1)
    with running() as node:
        dead = sender(node, layout)
        raw = HEAD.pack(b"DVM1", Kind.DATA, 16 + MIB) + struct.pack("!QII", 0, MIB, 0)
        dead.channel._socket.sendall(raw + b"z" * (MIB // 2))
        assert until(lambda: bool(node.registry.jobs["job"].partial[1].claims))
        if same_attempt:
            link = sender(node, layout)
            link.channel.send_data(0, image, label="test")
            assert link.call(Kind.COMMIT, {"version": 1}).body["complete"]
            link.close()
        else:
            to = tier(node)
            assert put(to, 1, layout, image).levels == [Level.REMOTE]
            to.close()
        with contextlib.suppress(OSError):
            dead.channel._socket.sendall(b"z" * (MIB // 2))
        time.sleep(0.05)
        assert bytes(node.registry.jobs["job"].complete[1].image) == bytes(image)
        dead.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_waited_for(
    tmp_path: Path, node_disk: NodeDisk, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    layout = make_layout(MIB)
    node_disk.fail(error)
    with running(4 * MIB, tmp_path / "p") as node:
        to = tier(node)
        acks = put(to, 1, layout, make_image(layout, 1))
        assert until(lambda: node.metrics()["flush"]["failed"] == 1)
        assert acks.levels == [Level.REMOTE]
        why = f"{tmp_path}/p/job-000000000001.pt: cannot be written: {os.strerror(error)}"
        assert node.metrics()["flush"]["last_error"] == why
        assert until(lambda: f"version 1 of job stays in memory: {why}" in caplog.messages)  # counted, then logged
        assert [v["durable"] for v in node.metrics()["versions"]] == [False]
        assert not [p.name for p in (tmp_path / "p").iterdir() if "000000000001" in p.name], "half of it is left"
        node_disk.work()
        assert acks.wait(Level.DURABLE)
        assert [v["durable"] for v in node.metrics()["versions"]] == [True]
        assert verify(VersionFolder(tmp_path / "p").file("job", 1)).version == 1
        to.close()


@pytest.mark.parametrize("trouble", ["hang", "fail"])
def test_what_was_acknowledged_can_be_restored_whatever_the_disk_does(
    tmp_path: Path, node_disk: NodeDisk, trouble: str
) -> None:
    """From memory while the disk is in trouble, from the disk when the memory is lost with it."""
    layout = make_layout(MIB)
    with running(8 * MIB, tmp_path / "p", drain_s=0.1) as node:
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).wait(Level.DURABLE)
        getattr(node_disk, trouble)()
        acks = put(to, 2, layout, make_image(layout, 2))
        assert acks.levels == [Level.REMOTE]
        if trouble == "fail":
            assert until(lambda: node.metrics()["flush"]["failed"] == 1)
        newest = to.versions("job")[0]
        assert newest.version == 2
        assert to.fetch(newest, tmp_path / "f").read_bytes() == finished(make_image(layout, 2), layout)
        assert not acks.wait(Level.DURABLE, 0.2)
        to.close()
        # What the disk has now is what another node finds there after the end of this machine.
        (tmp_path / "q").mkdir()
        for path in (tmp_path / "p").iterdir():
            (tmp_path / "q" / path.name).write_bytes(path.read_bytes())
        node_disk.work()
    with running(8 * MIB, tmp_path / "q") as node:
        to = tier(node, "later")
        (manifest,) = to.versions("job")
        assert manifest.version == 1
        assert to.fetch(manifest, tmp_path / "g").read_bytes() == finished(make_image(layout, 1), layout)
        to.close()


def test_a_node_that_does_not_answer_costs_put_no_more_than_its_limit() -> None:
    layout = make_layout(32 * MIB)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        to = tier(f"tcp://127.0.0.1:{deaf.getsockname()[1]}", limit_s=1.0)
        begin = time.monotonic()
        with pytest.raises(CheckpointError):
            put(to, 1, layout, make_image(layout, 1))
        assert time.monotonic() - begin < 1.0 + 5
        to.close()


def test_who_proves_the_token_when_the_node_has_ended_is_sent_away() -> None:
    """It would wait for words of a node that says none any more."""
    with running() as node:
        channel = Channel(node.address.open(5.0))  # type: ignore[attr-defined]
        assert until(lambda: node.metrics()["unproven"] == 1)
        node.stop()
        introduce(channel, TOKEN)
        with contextlib.suppress(OSError):
            channel.send(Kind.HELLO, {"role": "status"})
        frame = channel.receive(idle_s=5.0)
        assert frame.kind is Kind.ERROR and frame.body["code"] == "stopping"
        channel.close()


def slowly(version: int, layout: Layout, pause_s: float) -> Shard:
    """A version that is copied more slowly than a tier would wait for anything else."""
    return Shard("job", version, 0, layout, make_image(layout, version), ready=lambda end: time.sleep(pause_s))


def test_a_version_that_takes_longer_than_any_other_wait_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of gigabytes none would, if the limit were one for all sizes."""
    layout = make_layout(8 * MIB)
    with running() as node:
        to, acks = tier(node, limit_s=0.5, await_s=0.5, flows=1), Acks()
        with pytest.raises(CheckpointError):
            to.put(slowly(1, layout, 0.2), acks)
        monkeypatch.setattr(shard_module, "LEAST_BYTES_S", layout.size / 20)
        to.put(slowly(2, layout, 0.2), acks)
        assert acks.levels == [Level.REMOTE]
        to.close()


def test_a_node_that_stops_reading_costs_put_no_more_than_its_limit(tmp_path: Path) -> None:
    layout = make_layout(40 * MIB)
    image = make_image(layout, 1)
    with Process(tmp_path, memory="100MiB") as node:
        to = tier(node, limit_s=1.0)
        assert put(to, 1, layout, image).wait(Level.DURABLE)
        node.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(CheckpointError):
            put(to, 2, layout, image)
        assert time.monotonic() - begin < 3.5
        node.process.send_signal(signal.SIGCONT)
        versions = iter(range(3, 1000))

        def taken() -> bool:
            with contextlib.suppress(TierBusyError):  # until the node has seen that nobody sends version 2 any more
                return put(to, next(versions), layout, image).wait(Level.DURABLE)
            return False

        assert until(taken, 5)
        to.close()


# --- killed nodes and senders --------------------------------------------------------------------------------------

NODE = ["node.before-credit", "node.mid-chunk", "node.before-ack", "node.after-ack"]
WRITES = ["before-write", "before-sync", "after-sync", "before-rename", "before-folder-sync", "after-folder-sync"]
FOLDER = [f"{what}.{at}" for what in ("data", "record") for at in WRITES]
SENDER = ["sender.before-reserve", "sender.mid-chunk", "sender.before-commit"]


def durable_until_killed(node: Process, layout: Layout, versions: range) -> list[int]:
    """Versions that were acknowledged as durable before the node died."""
    to, acks = tier(node, limit_s=3.0), {}
    for version in versions:
        acks[version] = Acks()
        with contextlib.suppress(CheckpointError):
            acks[version] = put(to, version, layout, make_image(layout, version))
            until(lambda v=version: Level.DURABLE in acks[v].levels or node.process.poll() is not None, 5)  # type: ignore[misc]
        if node.process.poll() is not None:
            break
    to.close()
    return [v for v, a in acks.items() if Level.DURABLE in a.levels]


def check_restorable(folder: Path, layout: Layout, durable: list[int]) -> None:
    with Process(folder, "--keep", "9") as node:
        to = tier(node, "after")
        found = {m.version: m for m in to.versions("job")}
        assert set(durable) <= set(found), (durable, set(found))
        for version, manifest in found.items():
            path = to.fetch(manifest, folder / "fetched")
            assert path.read_bytes() == finished(make_image(layout, version), layout)
        assert put(to, 100, layout, make_image(layout, 100)).wait(Level.DURABLE)
        to.close()


def kill_node(folder: Path, label: str, times: int) -> None:
    layout = make_layout(2 * MIB, seed=times)
    with Process(folder, "--keep", "9", kill_at=f"{label}:{times}") as node:
        durable = durable_until_killed(node, layout, range(1, 7))
        assert node.process.wait(5) == -signal.SIGKILL
    check_restorable(folder, layout, durable)


@pytest.mark.parametrize("label", [*NODE, "data.before-rename", "record.before-rename", "record.after-folder-sync"])
def test_a_killed_node_has_what_it_acknowledged(tmp_path: Path, label: str) -> None:
    kill_node(tmp_path, label, 4 if label == "node.mid-chunk" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3, 5])
@pytest.mark.parametrize("label", [*NODE, *FOLDER])
def test_killed_nodes(tmp_path: Path, label: str, times: int) -> None:
    kill_node(tmp_path, label, times)


SENDING = """
import sys
sys.path.insert(0, {here!r})
from support.checkpoint.memory_nodes import *
layout = make_layout(4 * MIB)
to = tier({url!r}, "killed", wire_bytes=2**18)
for version in range(2, 5):
    put(to, version, layout, make_image(layout, version))
"""


@pytest.mark.parametrize(("label", "times"), [(s, n) for s in SENDER for n in (1, 3)])
def test_a_killed_sender_leaves_the_version_before_it(tmp_path: Path, label: str, times: int) -> None:
    layout = make_layout(4 * MIB)
    with running(persist=tmp_path / "p", keep=9) as node:
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).wait(Level.DURABLE)
        to.close()
        code = SENDING.format(here=str(TESTS), url=node.url)  # type: ignore[attr-defined]
        environment = {"DEEPVM_CHECKPOINT_KILL_AT": f"{label}:{times}", "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr
        to = tier(node, "next")
        versions = to.versions("job")
        complete = [m.version for m in versions]
        assert complete == list(range(times if label != "sender.mid-chunk" else 1, 0, -1))
        for manifest in versions:
            expected = finished(make_image(layout, manifest.version), layout)
            assert to.fetch(manifest, tmp_path / "f").read_bytes() == expected
        assert put(to, 9, layout, make_image(layout, 9)).wait(Level.DURABLE)  # its name is free again at once
        to.close()


def test_the_term_signal_drains_the_queue(tmp_path: Path) -> None:
    layout = make_layout(8 * MIB)
    with Process(tmp_path, "--keep", "9") as node:
        to = tier(node)
        for version in range(1, 5):
            put(to, version, layout, make_image(layout, version))
        remote = [m.version for m in to.versions("job")]
        assert node.end(signal.SIGTERM) == 0
        to.close()
    assert {m.version for m in VersionFolder(node.persist).manifests("job")} == set(remote) == {1, 2, 3, 4}
    assert node.process.stdout is not None
    for file in VersionFolder(node.persist).found():
        verify(file.path)


def test_a_stopping_node_takes_nothing_new_and_gives_up_in_time(tmp_path: Path, node_disk: NodeDisk) -> None:
    layout = make_layout(MIB)
    node_disk.hang()
    with running(8 * MIB, tmp_path / "p", drain_s=0.6) as node:
        to = tier(node)
        put(to, 1, layout, make_image(layout, 1))
        left: list[int] = []
        thread = threading.Thread(target=lambda: left.append(node.stop()))
        thread.start()
        assert until(lambda: node.registry.stopping)
        with pytest.raises(CheckpointError, match="stopping|refused|Connection"):
            put(to, 2, layout, make_image(layout, 2))
        thread.join(5)
        assert left == [1]  # and the command line says so, with exit code 1
        node_disk.work()
        to.close()


def test_memory_stays_within_the_limit(tmp_path: Path) -> None:
    limit = 128 * MIB
    layout = make_layout(30 * MIB, 2)
    image = make_image(layout, 1)
    with Process(tmp_path, memory="128MiB") as node:
        peak, done = [node.rss], threading.Event()

        def watch() -> None:
            while not done.wait(0.005):
                peak.append(node.rss)

        thread = threading.Thread(target=watch)
        thread.start()
        tiers = [tier(node), tier(node)]
        taken = 0
        for version in range(1, 9):
            taken += all(isinstance(a, Acks) for a in put_all(tiers, version, layout, image))
        done.set()
        thread.join()
        for one in tiers:
            one.close()
    assert taken >= 4 and max(peak) > 60 * MIB
    assert max(peak) - peak[0] <= limit, (max(peak) / MIB, peak[0] / MIB)


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    """Every connection's thread ends with its node and its tier."""
    before = set(threading.enumerate())
    yield
    # A peer that did not close is let go when the idle limit comes; all of ours close.
    assert until(lambda: not [t for t in set(threading.enumerate()) - before if "deepvm-tcp-poller" in t.name], 5)


def test_a_layout_costs_little_beside_the_memory(tmp_path: Path) -> None:
    """A peer that knows the token sends layouts as large as it may, under many names."""
    with Process(tmp_path, memory="64MiB", persist=False) as node:
        before, count = node.rss, 40_000
        fields = [ChecksumField(256 * count + 4 * n, 256 * n, 256) for n in range(count)]
        layout = Layout(260 * count, ((Segment(0, 260 * count),),), tuple(fields))
        assert 2**19 < len(layout.to_json()) < 2**20
        links = [raw_sender(node, layout, job=f"job{number}") for number in range(2)]
        links.append(Link(node.address, TOKEN))
        links[-1].hello({"role": "sender", "job": "c", "session": "s", "world": 1, "rank": 0, "layout": layout.digest})
        with pytest.raises(Refused, match="more --memory"):
            links[-1].call(Kind.LAYOUT, layout.to_json())
        assert node.rss - before < 64 * MIB, (node.rss - before) / MIB
        for link in links:
            link.close()
        assert until(lambda: node.status()["connections"] == 1)
        raw_sender(node, layout).close()
        link = Link(node.address, TOKEN)
        greeting = {"role": "sender", "job": "job", "session": "s", "world": 1, "rank": 0, "layout": "0" * 64}
        link.hello(greeting)
        with pytest.raises(Refused, match="a layout of 1048577 bytes; with its memory the node reads 1048576"):
            link.call(Kind.LAYOUT, bytes(2**20 + 1))
        link.close()


def test_layouts_of_living_runs_are_not_forgotten_for_others() -> None:
    with running(2 * MIB) as node:
        registry = node.registry
        registry.enter(Peer(), "a", "s", 1, 0, "x")
        registry.learn("a", "s", make_layout(1000), 2**20)
        registry.enter(Peer(), "b", "s", 1, 0, "x")
        registry.learn("b", "s", make_layout(1000), 2**20)
        gone = Peer()
        registry.enter(gone, "c", "s", 1, 0, "x")
        with pytest.raises(Refused, match="more --memory"):
            registry.learn("c", "s", make_layout(1000), 1)
        assert [len(registry.jobs[name].plans) for name in "abc"] == [1, 1, 0]
        registry.jobs["a"].session.heard -= 60
        registry.learn("c", "s", make_layout(1000), 1)
        assert [len(registry.jobs[name].plans) for name in "abc"] == [0, 1, 1]


class Peer:
    """A connection without one."""

    def abort(self) -> None: ...

    def gone(self) -> bool:
        return False
