"""Frames damaged on their way, in any field: nobody crashes, waits for good, or has other bytes
than were sent.

A proxy between a trainer and a real node changes one frame of a connection behind the proof, in one
of the directions. Bytes are compared apart from assertions: in CI pytest finds all differences
between the two sides of an assertion, which takes minutes.
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
from support.checkpoint.failing_disk import checks_no_bytes, sums_of_what_is_there
from support.checkpoint.memory_nodes import (
    Acks,
    finished,
    make_image,
    make_layout,
    put,
    put_all,
    running,
    tier,
)
from support.effort import examples

from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.protocol import Kind
from deepvm.checkpoint.node import connection, version_registry
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Reservation
from deepvm.checkpoint.tiers import replicated, tcp
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError

HEAD, DATA = struct.Struct("!4sBI"), struct.Struct("!QII")
PROOF = (Kind.CHALLENGE, Kind.PROOF, Kind.PROVED)
JUNK = [
    None,
    True,
    -1,
    0,
    7,
    2**63,
    2**70,
    float("inf"),
    float("nan"),
    "",
    "x" * 70,
    [],
    [[1]],
    [["a", "b"]],
    {},
]
JUNK += [[[float("inf"), 1]], [[0, 2**70, "x"]], [[0, float("inf"), float("nan")]]]
LAYOUTS = {world: make_layout(60_000, world, seed=4) for world in (1, 2)}
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
    if kind == Kind.DATA:  # half of them where it belongs
        raw = flipped(raw, chance, DATA.size if chance.random() < 0.5 else None)
    elif kind in (Kind.MANIFEST, Kind.LAYOUT) or chance.random() < 0.3:
        raw = flipped(raw, chance)
    else:
        raw = damaged_json(raw, chance)
    return HEAD.pack(b"DVM1", kind, len(raw)) + raw


class Line:
    """A proxy; ``to_node``: which direction is damaged; ``place``: of the third piece, a bit of its
    place alone.
    """

    def __init__(
        self,
        target: tuple[str, int],
        chance: random.Random,
        *,
        to_node: bool,
        place: int | None = None,
    ) -> None:
        self._target, self._chance, self._to_node, self._place = target, chance, to_node, place
        self._only: Kind | None = None
        self._lock, self.damaged, self._due = (
            threading.Lock(),
            0,
            chance.randrange(1, 14) if place is None else 3,
        )
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
                if self._place is not None and bad and kind == Kind.DATA and self._turn(kind):
                    offset, *others = DATA.unpack_from(raw)
                    sink.sendall(
                        head + DATA.pack(offset ^ (1 << self._place), *others) + raw[DATA.size :]
                    )
                elif self._place is None and bad and kind not in PROOF and self._turn(kind):
                    sink.sendall(damaged(kind, raw, self._chance))
                    # Who waits for the rest of a longer frame would do so for half a minute.
                    threading.Timer(IDLE_S, self._cut, (source, sink)).start()
                else:
                    sink.sendall(head + raw)
        self._cut(source, sink)

    def damage_later(self, number: int, only: Kind | None = None) -> None:
        """Not one of the first frames, but this one from now on, of all or of a kind."""
        with self._lock:
            self._due, self._only = number, only

    def _turn(self, kind: int) -> bool:
        """Whether it is this frame's: one of the first of all connections."""
        with self._lock:
            if self._only not in (None, kind):
                return False
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
def line(
    node: object, chance: random.Random, *, to_node: bool, place: int | None = None
) -> Iterator[Line]:
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


def acknowledged(results: list[Acks | Exception]) -> bool:
    """Whether any rank knows that the version is safe. Raises errors that callers do not know."""
    for result in results:
        if not isinstance(result, (Acks, CheckpointError)):
            raise result
    told = [result for result in results if isinstance(result, Acks)]
    # A rank hears later that the others are done, too
    limit_s = 1.0 if len(told) == len(results) else 0.0
    return any([acks.wait(Level.REMOTE, limit_s) for acks in told])


def requests_campaign(
    rounds: int, seed: int, caplog: pytest.LogCaptureFixture, folder: Path, world: int = 1
) -> int:
    """The requests of a trainer, one of ``world``, are damaged; returns how many frames were."""
    count, layout = 0, LAYOUTS[world]
    with running(lease_s=0.01) as node:
        for number in range(rounds):
            chance = random.Random(seed * 1000 + number)
            image = make_image(layout, number)
            with line(node, chance, to_node=True) as bad:
                urls = [bad.url if rank == number % world else node.url for rank in range(world)]  # type: ignore[attr-defined]
                to = [through(url, f"s{number}") for url in urls]
                safe = acknowledged(put_all(to, 1 + number, layout, image))  # type: ignore[arg-type]
                for rank in to:
                    known(lambda rank=rank: rank.versions("job"))
                    rank.close()
                count += bad.damaged
            own = tier(node, "reader")
            rows = own.versions("job")
            held = {row.version: own.fetch(row, folder).read_bytes() for row in rows}
            if safe:
                same = held.get(1 + number) == finished(image, layout)
                assert same, f"acknowledged, and other bytes ({number})"
            for version, data in held.items():
                sent = {finished(make_image(layout, n), layout) for n in range(number + 1)}
                assert data in sent, f"version {version} has bytes that nobody sent ({number})"
            own.close()
    assert "internal error" not in caplog.text
    return count


def answers_campaign(rounds: int, seed: int, folder: Path, world: int = 1) -> int:
    """A node's answers to one rank are damaged; the other replica is good.

    Returns how many frames were damaged.
    """
    count, layout = 0, LAYOUTS[world]
    for number in range(rounds):
        chance = random.Random(seed * 1000 + number)
        image = make_image(layout, number)
        with running() as one, running() as two, line(one, chance, to_node=False) as bad:
            urls = [bad.url if rank == number % world else one.url for rank in range(world)]  # type: ignore[attr-defined]
            pairs = [[through(url, "s"), through(two.url, "s")] for url in urls]  # type: ignore[attr-defined]
            ranks = [ReplicatedTier(pair, 2, retry_s=0.02) for pair in pairs]
            if number % 2:
                bad.damage_later(2**30)
            safe = acknowledged(put_all(ranks, 1, layout, image))  # type: ignore[arg-type]
            if number % 2:  # while versions are read
                bad.damage_later(
                    *((1, Kind.DATA) if number % 4 == 1 else (chance.randrange(1, 18), None))
                )
            both, near = ranks[number % world], pairs[number % world][0]
            known(lambda both=both: both.damaged("job"))
            known(lambda near=near: near.damaged("job"))
            for _ in range(2):
                rows = known(lambda both=both: both.versions("job"))
                for row in rows if isinstance(rows, tuple) else ():
                    path = known(lambda both=both, row=row: both.fetch(row, folder))
                    same = path is None or path.read_bytes() == finished(image, layout)  # type: ignore[attr-defined]
                    assert same, "other bytes than were sent"
            if safe:
                for node in (one, two):
                    own = tier(node, "reader")
                    assert [m.version for m in own.versions("job")] == [1], (
                        "acknowledged, and a node has nothing"
                    )
                    own.close()
            for rank in ranks:
                rank.close()
            count += bad.damaged
    return count


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


@pytest.mark.parametrize("world", LAYOUTS)
def test_damaged_requests(world: int, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rounds = examples(300) // world
    assert requests_campaign(rounds, 1, caplog, tmp_path, world) >= rounds // 3


@pytest.mark.parametrize("world", LAYOUTS)
def test_damaged_answers(world: int, tmp_path: Path) -> None:
    rounds = examples(80)
    assert answers_campaign(rounds, 1, tmp_path, world) >= rounds // 3


def misplaced_piece(place: int, folder: Path) -> None:
    """Its checksum is right; only where it belongs has changed on the way."""
    layout = Layout(60_000, ((Segment(0, 60_000),),))
    image = make_image(layout, 1)
    with running() as node, line(node, random.Random(1), to_node=True, place=place) as bad:
        to = through(bad.url, "s")
        acks = known(lambda: put(to, 1, layout, image))
        assert bad.damaged
        rows = to.versions("job")
        same = not rows or to.fetch(rows[0], folder).read_bytes() == bytes(image)
        assert same, "other bytes than were sent"
        assert rows or not isinstance(acks, Acks)
        to.close()


@pytest.mark.parametrize("place", [0, 5, 11, 12, 13, 14, 15, 40])
def test_a_piece_whose_place_is_damaged(place: int, tmp_path: Path) -> None:
    misplaced_piece(place, tmp_path)


def test_bytes_that_stay_in_place_of_others_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent again as part of the same attempt, the right bytes are taken for there already."""
    monkeypatch.setattr(tcp.secrets, "token_hex", lambda count: "0" * 2 * count)
    with pytest.raises(AssertionError, match="other bytes"):
        misplaced_piece(14, tmp_path)


# --- the campaigns find what is broken on purpose -------------------------------------------------


class Anything(int):
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def node_checks_no_bytes(patch: pytest.MonkeyPatch) -> None:
    """What arrives is not compared with its checksum."""
    patch.setattr(connection, "total", lambda pieces: Anything())


def node_waits_for_no_other_rank(patch: pytest.MonkeyPatch) -> None:
    """The first who commits completes a version; what is missing is taken as it is."""
    commit = VersionRegistry.commit

    def hasty(self: VersionRegistry, reservation: Reservation) -> object:
        reservation.version.committed |= {0, 1}
        return commit(self, reservation)

    patch.setattr(VersionRegistry, "commit", hasty)
    patch.setattr(version_registry, "seal_by_parts", sums_of_what_is_there)


def reader_checks_no_bytes(patch: pytest.MonkeyPatch) -> None:
    """What is read is not compared with the commit record, nor a piece with its checksum."""
    checks_no_bytes(patch.setattr)


def one_copy_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Two were asked for."""
    begin = replicated._Copies.__init__
    patch.setattr(
        replicated._Copies,
        "__init__",
        lambda self, shard, told, needed, *more: begin(self, shard, told, 1, *more),
    )


@pytest.mark.parametrize("world", LAYOUTS)
def test_a_node_that_checks_no_bytes_is_seen(
    world: int, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_checks_no_bytes(monkeypatch)
    with pytest.raises(AssertionError, match="bytes"):
        requests_campaign(150, 1, caplog, tmp_path, world)


def test_a_node_that_waits_for_no_other_rank_is_seen(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_waits_for_no_other_rank(monkeypatch)
    with pytest.raises(AssertionError, match="bytes"):
        requests_campaign(150, 1, caplog, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", LAYOUTS)
def test_a_reader_that_checks_no_bytes_is_seen(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader_checks_no_bytes(monkeypatch)
    with pytest.raises(AssertionError, match="other bytes"):
        answers_campaign(80, 1, tmp_path, world)


@pytest.mark.slow
@pytest.mark.parametrize("world", LAYOUTS)
def test_one_copy_in_place_of_two_is_seen(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_copy_is_enough(monkeypatch)
    with pytest.raises(AssertionError, match="nothing"):
        answers_campaign(80, 1, tmp_path, world)
