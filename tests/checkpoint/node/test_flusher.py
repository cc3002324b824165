"""A version that is written to the node's disk while it is still being received."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import unittest.mock as mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoint.memory_nodes import (
    MIB,
    Acks,
    Peer,
    finished,
    make_image,
    make_layout,
    put,
    running,
    tier,
    until,
)
from support.effort import examples

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format import checksums
from deepvm.checkpoint.format.layout import ChecksumField, Layout, Segment, runs
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.node import flusher
from deepvm.checkpoint.node import version_registry as rules
from deepvm.checkpoint.node.flusher import GivenUpError, PartialVersion
from deepvm.checkpoint.node.server import Node
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.checkpoint.node.versions import Reservation
from deepvm.errors import CheckpointError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "LEAST_BYTES", 0)
    monkeypatch.setattr(checksums, "STEP_BYTES", 4096)
    monkeypatch.setattr(durable_write, "PIECE", 8192)
    monkeypatch.setattr(rules, "LEAST_PIECE", 1)
    # Under load the test must see what is written before it goes
    monkeypatch.setattr(flusher, "_SILENCE_S", 3.0)


@pytest.mark.parametrize("combines", [True, False])
@settings(max_examples=examples(60), deadline=None)
@given(
    size=st.integers(1, 40_000),
    world=st.integers(1, 3),
    records=st.integers(0, 9),
    chunk=st.integers(32, 4096),
    order=st.randoms(use_true_random=False),
)
def test_what_is_final_does_not_change(
    combines: bool, size: int, world: int, records: int, chunk: int, order: random.Random
) -> None:
    """Whatever the order in which pieces come, and whenever somebody looks.

    With short chunks sums lie across them.
    """
    with mock.patch.object(checksums, "STEP_BYTES", chunk), pytest.MonkeyPatch.context() as changed:
        if not combines:
            changed.setattr(checksums, "_combine", None)
        look_while_it_comes(size, world, records, order)


def look_while_it_comes(size: int, world: int, records: int, order: random.Random) -> None:
    layout = make_layout(size, world, seed=order.randrange(99), records=records)
    source = make_image(layout, order.randrange(99))
    expected = finished(source, layout)
    pieces = [
        (rank, start, min(start + 1500, offset + length))
        for rank in range(world)
        for offset, length in runs(layout.shards[rank])
        for start in range(offset, offset + length, 1500)
    ]
    pieces.sort(key=lambda piece: piece[1])
    if order.random() < 0.5:  # else they come as they lie, and the disk can begin
        order.shuffle(pieces)
    registry = VersionRegistry(4 * MIB, persists=True)
    tickets = []
    for rank in range(world):
        peer = Peer(world=world, rank=rank, digest=layout.digest)
        assert not registry.enter(peer) or rank
        registry.learn(peer, layout)
        ticket = registry.reserve(peer, 1, "put")
        assert isinstance(ticket, Reservation)
        tickets.append((peer, ticket))
    version = registry.next_flush(0, (), 0)
    assert version is tickets[0][1].version
    seen: list[tuple[int, bytes]] = []

    def look() -> None:
        with contextlib.suppress(GivenUpError):  # it is seen below
            for end in PartialVersion(registry, version).final():
                seen.append((end, bytes(version.image[:end])))

    looks = threading.Thread(target=look)
    looks.start()
    for rank, start, end in pieces:
        peer, ticket = tickets[rank]
        claim = registry.claim(peer, ticket, start, end)
        assert claim is not None
        claim.view[:] = source[start:end]
        registry.settle(claim, version.index.cuts.pieces(claim.view, start))
    for _, ticket in tickets:
        registry.commit(ticket)
    looks.join(20)
    assert [end for end, _ in seen] == sorted({end for end, _ in seen})
    assert seen[-1][0] == size
    assert all(found == expected[:end] for end, found in seen)


def test_a_checksum_across_a_border(tmp_path: Path) -> None:
    """What comes after its first bytes must not come over its last ones."""
    layout = Layout(40_000, ((Segment(0, 40_000),),), (ChecksumField(4094, 0, 1000),))
    source = make_image(layout, 3)
    with running(64 * MIB, tmp_path / "kept") as node:
        slow = Slow(node, layout, source, most=4096)
        assert until(lambda: hidden(tmp_path / "kept"))
        time.sleep(0.1)
        slow.end()
        assert slow.acks.wait(Level.DURABLE) and is_there(
            tmp_path / "kept", "slow", finished(source, layout)
        )


@pytest.mark.parametrize("ending", ["lease", "closed"])
def test_a_commit_that_never_comes(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes are here, but nobody says so: the slot is not held longer than by a version that
    nobody writes.
    """
    monkeypatch.setattr(flusher, "_SILENCE_S", 0.05)
    layout, now = make_layout(20_000), [0.0]
    registry, peer = (
        VersionRegistry(4 * MIB, persists=True, lease_s=30.0, clock=lambda: now[0]),
        Peer(digest=layout.digest),
    )
    registry.enter(peer)
    registry.learn(peer, layout)
    ticket = registry.reserve(peer, 1, "put")
    assert isinstance(ticket, Reservation)
    claim = registry.claim(peer, ticket, 0, 20_000)
    assert claim is not None
    registry.settle(claim, ticket.version.index.cuts.pieces(claim.view, 0))
    raised = threading.Event()

    def look() -> None:
        try:
            for _ in PartialVersion(registry, ticket.version).final():
                pass
        except GivenUpError:
            raised.set()

    threading.Thread(target=look, daemon=True).start()
    assert not raised.wait(0.3)
    if ending == "lease":
        now[0] = 31.0
    else:
        assert not registry.drained(1.0)
    assert raised.wait(5)


def test_a_rank_that_begins_anew() -> None:
    """Its first bytes may be on the disk, though the version goes on."""
    layout = make_layout(40_000, 2, records=4)
    registry = VersionRegistry(4 * MIB, persists=True)
    peers = [Peer(world=2, rank=rank, digest=layout.digest) for rank in (0, 1)]
    for peer in peers:
        registry.enter(peer)
        registry.learn(peer, layout)

    def send(rank: int, put: str, seed: int) -> Reservation:
        ticket = registry.reserve(peers[rank], 1, put)
        assert isinstance(ticket, Reservation)
        for offset, length in layout.shards[rank]:
            claim = registry.claim(peers[rank], ticket, offset, offset + length)
            assert claim is not None
            claim.view[:] = make_image(layout, seed)[offset : offset + length]
            registry.settle(claim, ticket.version.index.cuts.pieces(claim.view, offset))
        return ticket

    first, second = send(0, "one", 1), send(1, "one", 2)
    final = PartialVersion(registry, first.version).final()
    assert next(final) == 4096
    registry.commit(second)
    registry.commit(send(0, "two", 3))
    with pytest.raises(GivenUpError):
        for _ in final:
            pass


class Slow:
    """A trainer whose copy stands still in the middle."""

    def __init__(self, node: Node, layout: Layout, source: memoryview, most: int = 0) -> None:
        self.go, self.acks, self.error = threading.Event(), Acks(), ""
        self._tier = tier(node, "of slow", wire_bytes=4096, flows=1)
        most = most or layout.size // 2

        def ready(end: int) -> None:
            if end > most:
                assert self.go.wait(20)

        def work() -> None:
            try:
                self._tier.put(Shard("slow", 1, 0, layout, source, ready), self.acks)
            except CheckpointError as error:
                self.error = str(error)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def end(self) -> None:
        self.go.set()
        self._thread.join(20)
        self._tier.settle(20)
        self._tier.close()


def hidden(folder: Path) -> list[Path]:
    return [p for p in folder.glob(".slow*.tmp")] if folder.exists() else []


LAYOUT = make_layout(100_000, records=8)
SOURCE = make_image(LAYOUT, 1)
DONE = finished(SOURCE, LAYOUT)


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[Node, Slow, Path]]:
    """A node on whose disk the first half of a version lies already, under a hidden name."""
    with running(64 * MIB, tmp_path / "kept") as node:
        slow = Slow(node, LAYOUT, SOURCE)
        folder = tmp_path / "kept"
        assert until(lambda: any(DONE[:40_000] == p.read_bytes()[:40_000] for p in hidden(folder)))
        assert not list(folder.glob("slow*"))
        try:
            yield node, slow, folder
        finally:
            slow.end()


def is_there(folder: Path, job: str, content: bytes, version: int = 1) -> bool:
    path = VersionFolder(folder).file(job, version)
    verify(path)
    return path.read_bytes() == content and not hidden(folder)


def test_the_disk_has_what_has_come(begun: tuple[Node, Slow, Path]) -> None:
    _, slow, folder = begun
    slow.go.set()
    assert slow.acks.wait(Level.DURABLE)
    assert slow.acks.levels == [Level.REMOTE, Level.DURABLE]
    assert is_there(folder, "slow", DONE)


def test_a_complete_version_goes_first(
    begun: tuple[Node, Slow, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "_SILENCE_S", 60.0)
    node, slow, folder = begun
    other = make_layout(20_000)
    quick = tier(node, "another run")
    assert put(quick, 7, other, make_image(other, 2), job="quick").wait(Level.DURABLE)
    assert not slow.acks.levels and not hidden(folder)
    quick.close()
    slow.go.set()
    assert slow.acks.wait(Level.DURABLE) and is_there(folder, "slow", DONE)


def test_what_stands_still_is_given_up(begun: tuple[Node, Slow, Path]) -> None:
    _, slow, folder = begun
    assert until(lambda: not hidden(folder)), "it holds the slot and the disk's space for ever"
    slow.go.set()
    assert slow.acks.wait(Level.DURABLE) and is_there(folder, "slow", DONE)


def test_a_trainer_that_begins_anew(
    begun: tuple[Node, Slow, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other bytes under the same number: none of those that were written first may be left among
    them.
    """
    node, slow, folder = begun
    monkeypatch.setattr(flusher, "_SILENCE_S", 30.0)
    other = make_image(LAYOUT, 5)
    again = tier(node, "of slow")
    assert put(again, 1, LAYOUT, other, job="slow").wait(Level.DURABLE)
    assert is_there(folder, "slow", finished(other, LAYOUT))
    again.close()


def test_a_node_that_stops_leaves_nothing_hidden(
    begun: tuple[Node, Slow, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "_SILENCE_S", 60.0)
    node, slow, folder = begun
    node.stop(lambda: True)
    assert not hidden(folder) and not list(folder.glob("slow*"))
    slow.end()
    assert slow.error and not slow.acks.levels


def test_a_disk_that_fails_early_may_work_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "_FIRST_RETRY_S", 0.01)
    write, tried = VersionFolder.write, []

    def full(self: VersionFolder, *arguments: Any) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise CheckpointError("no space left on device")
        write(self, *arguments)

    monkeypatch.setattr(VersionFolder, "write", full)
    with running(64 * MIB, tmp_path / "kept") as node:
        slow = Slow(node, LAYOUT, SOURCE)
        assert until(lambda: tried)
        slow.end()
        assert slow.acks.wait(Level.DURABLE) and is_there(tmp_path / "kept", "slow", DONE)
        assert node.metrics()["flush"]["failed"] == 0  # it was a favour


def test_small_versions_are_not_written_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "LEAST_BYTES", LAYOUT.size + 1)
    with running(64 * MIB, tmp_path / "kept") as node:
        slow = Slow(node, LAYOUT, SOURCE)
        assert not until(lambda: hidden(tmp_path / "kept"), 0.3)
        slow.end()
        assert slow.acks.wait(Level.DURABLE) and is_there(tmp_path / "kept", "slow", DONE)
