"""Peers that break the rules: strangers, garbage, bytes of others, layouts too large.

The node lives all the same.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import (
    MIB,
    TOKEN,
    Acks,
    Peer,
    Process,
    finished,
    make_certificate,
    make_image,
    make_layout,
    put,
    put_all,
    raw_sender,
    running,
    tier,
    until,
)

from deepvm.checkpoint.format.layout import ChecksumField, Layout, Segment
from deepvm.checkpoint.format.manifest import CommitRecord, Level
from deepvm.checkpoint.network import protocol
from deepvm.checkpoint.network.client import Link
from deepvm.checkpoint.network.protocol import Channel, Kind, RequestRefused, admit, introduce
from deepvm.checkpoint.tiers import tcp
from deepvm.errors import CheckpointError

HEAD = struct.Struct("!4sBI")


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    """Every connection's thread ends with its node and its tier."""
    before = set(threading.enumerate())
    yield
    # A peer that did not close is let go when the idle limit comes; all of ours close.
    assert until(
        lambda: (
            not [t for t in set(threading.enumerate()) - before if "deepvm-tcp-poller" in t.name]
        ),
        5,
    )


def test_a_wrong_token_is_said_and_not_tried_again() -> None:
    layout = make_layout(1000)
    with running() as node:
        to = tier(node, token=b"another")
        for call in (lambda: put(to, 1, layout, make_image(layout, 1)), lambda: to.versions("job")):
            with pytest.raises(CheckpointError, match=r"tcp://127.0.0.1:\d+: the token is wrong"):
                call()
        assert until(lambda: node.metrics()["refused"] == {"unproven": 2})
        to.close()


def test_garbage_of_a_stranger() -> None:
    for data in [
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
        b"\0" * 4096,
        HEAD.pack(b"DVM1", Kind.PROOF, 2**32 - 1) + b"x" * 1000,
        HEAD.pack(b"DVM1", Kind.LAYOUT, 2**26) + b"x" * 1000,
        HEAD.pack(b"DVM1", Kind.STATUS, 0),
        HEAD.pack(b"DVM1", Kind.DATA, 2**23),
        b"",
    ]:
        with running() as node:
            address = node.address  # type: ignore[attr-defined]
            with (
                socket.create_connection((address.host, address.port)) as stranger,
                contextlib.suppress(OSError),
            ):
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


@pytest.mark.parametrize("secure", [False, True])
def test_a_stranger_for_whom_there_is_no_thread_is_forgotten(
    secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed, and counts no longer."""
    options: dict[str, object] = {}
    if secure:
        certificate, key = make_certificate(tmp_path)
        options = {"certificate": certificate, "key": key}
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("deepvm-127."):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with running(**options) as node:
        address = node.address  # type: ignore[attr-defined]
        with socket.create_connection((address.host, address.port), timeout=5) as stranger:
            assert stranger.recv(1) == b""
        assert (
            until(lambda: node.metrics()["refused"] == {"unproven": 1})
            and node.metrics()["unproven"] == 0
        )


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
            (RequestRefused, OSError),
            match=(
                "2 connections already.*--connections N, 3 for each rank|closed|reset|Broken pipe"
            ),
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
    """Each with three connections, as many as a rank ever has, and with the settings that nobody
    gave.
    """
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


def test_data_outside_the_part_is_refused() -> None:
    for offset, length in [(MIB, 10), (MIB - 5, 10), (2**63, 10), (0, MIB + 1)]:
        layout = make_layout(MIB)
        with running() as node:
            link = sender(node, layout)
            with pytest.raises(RequestRefused, match="not in the part of rank 0"):
                link.channel.send_data(offset, memoryview(bytes(length)), label="test")
                link.answer()
            assert [v["received_bytes"] for v in node.metrics()["versions"]] == [0]
            link.close()


def test_data_of_another_rank_is_refused() -> None:
    layout = make_layout(MIB, 2)
    with running() as node:
        link = sender(node, layout)
        start, length = layout.shards[1][0]
        with pytest.raises(RequestRefused, match="not in the part of rank 0"):
            link.channel.send_data(start, memoryview(bytes(length)), label="test")
            link.answer()
        link.close()


def test_duplicates_are_thrown_away_and_overlaps_refused() -> None:
    layout = make_layout(MIB, records=0)
    image = make_image(layout, 1)
    with running() as node:
        link = sender(node, layout)
        link.channel.send_data(0, image[: MIB // 2], label="test")
        # Other bytes, at a place that is verified
        link.channel.send_data(100, memoryview(bytes(1000)), label="test")
        link.channel.send_data(MIB // 2, image[MIB // 2 :], label="test")
        answer = link.call(Kind.COMMIT, {"version": 1}).body
        assert answer["complete"] and node.metrics()["counts"]["duplicates"] == 1
        version = node.registry.jobs["job"].complete[1]
        assert bytes(version.image) == bytes(image)
        assert link.call(Kind.RESERVE, {"version": 2, "put": "p"}).kind is Kind.CREDIT
        link.channel.send_data(0, image[:5000], label="test")
        with pytest.raises(RequestRefused, match="here in part"):
            link.channel.send_data(500, image[500:5500], label="test")
            link.answer()
        link.close()


def test_tiny_pieces_are_refused() -> None:
    """What the node remembers of each would be more than the piece."""
    layout = Layout(
        3 * MIB,
        (
            (Segment(0, MIB), Segment(2 * MIB, 100), Segment(2 * MIB + 200, MIB - 200)),
            (Segment(MIB, MIB), Segment(2 * MIB + 100, 100)),
        ),
    )
    with running() as node:
        link = sender(node, layout)
        link.channel.send_data(2 * MIB, memoryview(bytes(100)), label="test")  # a run of its own
        link.channel.send_data(MIB - 10, memoryview(bytes(10)), label="test")  # the end of one
        assert link.call(Kind.PING).kind is Kind.PONG
        with pytest.raises(
            RequestRefused, match="4095 bytes at 0; pieces have 4096 or end their run"
        ):
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


def test_a_strange_hello() -> None:
    for change, words in [
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
    ]:
        body = {
            "role": "sender",
            "job": "job",
            "session": "s",
            "world": 1,
            "rank": 0,
            "layout": "0" * 64,
        }
        with running() as node:
            link = Link(node.address, TOKEN)  # type: ignore[attr-defined]
            with pytest.raises(RequestRefused, match=words):
                link.hello({**body, **change})
            link.close()
            assert node.registry.jobs == {}


def test_a_strange_layout() -> None:
    for raw in [
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        make_layout(999).to_json(),
        b'{"schema_version": "deepvm.layout/1"}',
    ]:
        layout = make_layout(MIB)
        with running() as node:
            link = Link(node.address, TOKEN)  # type: ignore[attr-defined]
            body = {
                "role": "sender",
                "job": "job",
                "session": "s",
                "world": 1,
                "rank": 0,
                "layout": layout.digest,
            }
            assert not link.hello(body)["layout"]
            with pytest.raises(RequestRefused):
                link.call(Kind.LAYOUT, raw)
            link.close()


OTHER = make_layout(1000)


@pytest.mark.parametrize(
    ("count", "manifest", "words"),
    [
        ("x", b"", "invalid count"),
        (None, b"", "invalid count"),
        (-1, b"", "invalid count"),
        (True, b"", "invalid count"),
        (1, b"{}", "expected a manifest"),
        (1, b"[" * 5000, "expected a manifest"),
        (1, CommitRecord.of("other", 1, OTHER, (1,)).to_json(), "checkpoints of another job"),
    ],
)
def test_a_node_that_talks_nonsense(count: object, manifest: bytes, words: str) -> None:
    """Whoever knows the token may still be wrong: the trainer gets an error that it knows, and goes
    on without.
    """

    def serve(listening: socket.socket) -> None:
        channel = Channel(listening.accept()[0])
        admit(channel, TOKEN)
        channel.receive(idle_s=5)
        channel.send(Kind.WELCOME, {})
        channel.receive(idle_s=5)
        channel.send(Kind.VERSIONS, {"count": count})
        channel.send(Kind.MANIFEST, manifest)
        channel.close_gracefully()

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
            with pytest.raises(RequestRefused):
                link.call(kind, body)
            link.close()
        link = raw_sender(node, layout)
        with pytest.raises(RequestRefused, match="DATA before CREDIT"):
            link.channel.send_data(0, memoryview(b"x"), label="test")
            link.answer()
        link.close()
        link = raw_sender(node, layout)
        for body in ({}, {"version": -1}, {"version": 2**63}, {"version": "1"}):
            with pytest.raises((RequestRefused, OSError)):
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
            body = (
                rng.randbytes(rng.randrange(200))
                if rng.random() < 0.5
                else b'{"role": "sender", "version": 1}'
            )
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
    """Half of a piece came, then the line went dead.

    The sender comes back on another connection.
    """
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


def test_a_layout_costs_little_beside_the_memory(tmp_path: Path) -> None:
    """A peer that knows the token sends layouts as large as it may, under many names."""
    with Process(tmp_path, memory="64MiB", persist=False) as node:
        before, count = node.rss, 40_000
        fields = [ChecksumField(256 * count + 4 * n, 256 * n, 256) for n in range(count)]
        layout = Layout(260 * count, ((Segment(0, 260 * count),),), tuple(fields))
        assert 2**19 < len(layout.to_json()) < 2**20
        links = [raw_sender(node, layout, job=f"job{number}") for number in range(2)]
        links.append(Link(node.address, TOKEN))
        links[-1].hello(
            {
                "role": "sender",
                "job": "c",
                "session": "s",
                "world": 1,
                "rank": 0,
                "layout": layout.digest,
            }
        )
        with pytest.raises(RequestRefused, match="more --memory"):
            links[-1].call(Kind.LAYOUT, layout.to_json())
        assert node.rss - before < 64 * MIB, (node.rss - before) / MIB
        for link in links:
            link.close()
        assert until(lambda: node.status()["connections"] == 1)
        raw_sender(node, layout).close()
        link = Link(node.address, TOKEN)
        greeting = {
            "role": "sender",
            "job": "job",
            "session": "s",
            "world": 1,
            "rank": 0,
            "layout": "0" * 64,
        }
        link.hello(greeting)
        with pytest.raises(
            RequestRefused,
            match="a layout of 1048577 bytes; with its memory the node reads 1048576",
        ):
            link.call(Kind.LAYOUT, bytes(2**20 + 1))
        link.close()


def test_layouts_of_living_runs_are_not_forgotten_for_others() -> None:
    with running(2 * MIB) as node:
        registry = node.registry
        for job in "ab":
            registry.enter(peer := Peer(job))
            registry.learn(peer, make_layout(1000), 2**20)
        registry.enter(last := Peer("c"))
        with pytest.raises(RequestRefused, match="more --memory"):
            registry.learn(last, make_layout(1000), 1)
        assert [len(registry.jobs[name].layouts) for name in "abc"] == [1, 1, 0]
        registry.jobs["a"].session.heard -= 60
        registry.learn(last, make_layout(1000), 1)
        assert [len(registry.jobs[name].layouts) for name in "abc"] == [0, 1, 1]
