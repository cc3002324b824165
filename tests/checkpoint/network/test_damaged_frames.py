"""Frames damaged on their way, in any field: nobody crashes, waits for good, or has other bytes than were sent.

A proxy between a trainer and a real node changes one frame of a connection behind the proof, in one of the directions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import Acks, finished, make_image, make_layout, put, running, tier
from support.effort import examples

from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.shard import Level
from deepvm.checkpoint.network.protocol import Kind
from deepvm.checkpoint.tiers import tcp
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError

HEAD, DATA = struct.Struct("!4sBI"), struct.Struct("!QII")
PROOF = (Kind.CHALLENGE, Kind.PROOF, Kind.PROVED)
JUNK = [None, True, -1, 0, 7, 2**63, 2**70, float("inf"), float("nan"), "", "x" * 70, [], [[1]], [["a", "b"]], {}]
JUNK += [[[float("inf"), 1]], [[0, 2**70, "x"]], [[0, float("inf"), float("nan")]]]
LAYOUT = make_layout(60_000, seed=4)
IDLE_S = 0.3


def damaged_json(raw: bytes, chance: random.Random) -> bytes:
    body = json.loads(raw or b"{}")
    name = chance.choice([*body, "epoch", "missing", "received", "durable"])
    if chance.random() < 0.2:
        body.pop(name, None)
    else:
        body[name] = chance.choice(JUNK)
    return json.dumps(body).encode()


def flipped(raw: bytes, chance: random.Random, end: int | None = None) -> bytes:
    changed = bytearray(raw or b"\0")
    changed[chance.randrange(end or len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def damaged(kind: int, raw: bytes, chance: random.Random) -> bytes:
    """A frame, changed in any way but for its magic, which is tested elsewhere."""
    if chance.random() < 0.15:
        return HEAD.pack(b"DVM1", chance.choice([*Kind]), len(raw)) + raw
    if chance.random() < 0.1:
        return HEAD.pack(b"DVM1", kind, max(len(raw) + chance.choice([-1, 1, 2**20]), 0)) + raw
    if kind == Kind.DATA:  # mostly where it belongs
        raw = flipped(raw, chance, DATA.size if chance.random() < 0.8 else None)
    elif kind in (Kind.MANIFEST, Kind.LAYOUT) or chance.random() < 0.3:
        raw = flipped(raw, chance)
    else:
        raw = damaged_json(raw, chance)
    return HEAD.pack(b"DVM1", kind, len(raw)) + raw


class Line:
    """A proxy; ``to_node``: which direction is damaged; ``place``: of the third piece, a bit of its place alone."""

    def __init__(
        self, target: tuple[str, int], chance: random.Random, *, to_node: bool, place: int | None = None
    ) -> None:
        self._target, self._chance, self._to_node, self._place = target, chance, to_node, place
        self._lock, self.damaged, self._due = threading.Lock(), 0, chance.randrange(1, 14) if place is None else 3
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for pair in ((near, far, self._to_node), (far, near, not self._to_node)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, bad: bool) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while len(head := stream.read(HEAD.size)) == HEAD.size:
                _, kind, length = HEAD.unpack(head)
                raw = stream.read(length)
                if self._place is not None and bad and kind == Kind.DATA and self._turn():
                    offset, *others = DATA.unpack_from(raw)
                    sink.sendall(head + DATA.pack(offset ^ (1 << self._place), *others) + raw[DATA.size :])
                elif self._place is None and bad and kind not in PROOF and self._turn():
                    sink.sendall(damaged(kind, raw, self._chance))
                    # Who waits for the rest of a longer frame would do so for half a minute.
                    threading.Timer(IDLE_S, self._cut, (source, sink)).start()
                else:
                    sink.sendall(head + raw)
        self._cut(source, sink)

    def _turn(self) -> bool:
        """Whether it is this frame's: one of the first of all connections."""
        with self._lock:
            self._due -= 1
            self.damaged += not self._due
            return not self._due

    def _cut(self, *ends: socket.socket) -> None:
        for sock in ends:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in self._sockets:
            self._cut(sock)
            sock.close()


@contextmanager
def line(node: object, chance: random.Random, *, to_node: bool, place: int | None = None) -> Iterator[Line]:
    address = node.address  # type: ignore[attr-defined]
    made = Line((address.host, address.port), chance, to_node=to_node, place=place)
    try:
        yield made
    finally:
        made.close()


def known(work: Callable[[], object]) -> object:
    """The result, or None for an error that callers know. Raises any other."""
    try:
        return work()
    except CheckpointError:
        return None


def through(url: str, session: str) -> TcpTier:
    return tier(url, session, wire_bytes=4096, limit_s=3.0, flows=1)


def requests_campaign(rounds: int, seed: int, caplog: pytest.LogCaptureFixture, folder: Path) -> int:
    """A trainer's requests are damaged; returns how many frames were."""
    count = 0
    with running(lease_s=0.01) as node:
        for number in range(rounds):
            chance = random.Random(seed * 1000 + number)
            image = make_image(LAYOUT, number)
            with line(node, chance, to_node=True) as bad:
                to = through(bad.url, f"s{number}")
                acks = known(lambda to=to, number=number, image=image: put(to, 1 + number, LAYOUT, image))
                known(lambda to=to: to.versions("job"))
                to.close()
                count += bad.damaged
            own = tier(node, "reader")
            rows = own.versions("job")
            held = {row.version: own.fetch(row, folder).read_bytes() for row in rows}
            if isinstance(acks, Acks) and Level.REMOTE in acks.levels:
                assert held.get(1 + number) == finished(image, LAYOUT), f"acknowledged, and other bytes ({number})"
            for version, data in held.items():
                sent = {finished(make_image(LAYOUT, n), LAYOUT) for n in range(number + 1)}
                assert data in sent, f"version {version} has bytes that nobody sent ({number})"
            own.close()
    assert "internal error" not in caplog.text
    return count


def answers_campaign(rounds: int, seed: int, folder: Path) -> int:
    """A node's answers are damaged; the other replica is good. Returns how many frames were damaged."""
    count = 0
    for number in range(rounds):
        chance = random.Random(seed * 1000 + number)
        image = make_image(LAYOUT, number)
        with running() as one, running() as two, line(one, chance, to_node=False) as bad:
            nodes = [through(bad.url, "s"), through(two.url, "s")]  # type: ignore[attr-defined]
            both = ReplicatedTier(nodes, 2, retry_s=0.02)
            acks = known(lambda both=both, image=image: put(both, 1, LAYOUT, image))  # type: ignore[arg-type]
            known(lambda both=both: both.damaged("job"))
            known(lambda nodes=nodes: nodes[0].damaged("job"))
            for _ in range(2):
                rows = known(lambda both=both: both.versions("job"))
                for row in rows if isinstance(rows, tuple) else ():
                    path = known(lambda both=both, row=row: both.fetch(row, folder))
                    assert path is None or path.read_bytes() == finished(image, LAYOUT)  # type: ignore[attr-defined]
            if isinstance(acks, Acks) and acks.levels:
                own = tier(two, "reader")
                assert [m.version for m in own.versions("job")] == [1], "acknowledged, and the other one has nothing"
                own.close()
            both.close()
            count += bad.damaged
    return count


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_damaged_requests(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rounds = examples(300)
    assert requests_campaign(rounds, 1, caplog, tmp_path) >= rounds // 3


def test_damaged_answers(tmp_path: Path) -> None:
    rounds = examples(80)
    assert answers_campaign(rounds, 1, tmp_path) >= rounds // 3


def misplaced_piece(place: int, folder: Path) -> None:
    """Its checksum is right; only where it belongs has changed on the way."""
    layout = Layout(60_000, ((Segment(0, 60_000),),))
    image = make_image(layout, 1)
    with running() as node, line(node, random.Random(1), to_node=True, place=place) as bad:
        to = through(bad.url, "s")
        acks = known(lambda: put(to, 1, layout, image))
        assert bad.damaged
        rows = to.versions("job")
        assert not rows or to.fetch(rows[0], folder).read_bytes() == bytes(image), "other bytes than were sent"
        assert rows or not isinstance(acks, Acks)
        to.close()


@pytest.mark.parametrize("place", [0, 5, 11, 12, 13, 14, 15, 40])
def test_a_piece_whose_place_is_damaged(place: int, tmp_path: Path) -> None:
    misplaced_piece(place, tmp_path)


def test_bytes_that_stay_in_place_of_others_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent again as part of the same attempt, the right bytes are taken for there already."""
    monkeypatch.setattr(tcp.secrets, "token_hex", lambda count: "0" * 2 * count)
    with pytest.raises(AssertionError, match="other bytes"):
        misplaced_piece(14, tmp_path)
