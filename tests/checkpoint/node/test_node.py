"""A memory node and its tier, over real sockets: what is sent comes back, and the rules of room, names and sessions."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoint.memory_nodes import (
    MIB,
    TOKEN,
    Acks,
    NodeDisk,
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
from support.pace import soon

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format import crc_combine
from deepvm.checkpoint.format.checksums import chunk_crcs
from deepvm.checkpoint.format.crc_combine import CrcBoundaries, seal_by_parts, total
from deepvm.checkpoint.format.layout import CHUNK_BYTES, runs
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.network import protocol
from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.network.protocol import Kind, Refused, tune, within_machine
from deepvm.checkpoint.node.eviction import VersionMemory
from deepvm.checkpoint.node.server import Node
from deepvm.checkpoint.tiers import tcp
from deepvm.errors import CheckpointError, DamagedError, RequestError, TierBusyError


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("persists", [False, True])
def test_what_is_sent_comes_back(tmp_path: Path, world: int, persists: bool) -> None:
    layout = make_layout(3 * MIB + 17, world, seed=world)
    with running(persist=tmp_path / "persist" if persists else None) as node:
        tiers = [tier(node) for _ in range(world)]
        for version in (1, 2, 3):
            image = make_image(layout, version)
            acks = put_all(tiers, version, layout, image)
            last = Level.DURABLE if persists else Level.REMOTE
            assert all(isinstance(a, Acks) and a.wait(last) for a in acks)
            assert all(a.levels == [Level.REMOTE, Level.DURABLE][: 1 + persists] for a in acks if isinstance(a, Acks))
            manifest = tiers[0].versions("job")[0]
            assert (manifest.version, manifest.world, manifest.layout) == (version, world, layout.digest)
            path = tiers[0].fetch(manifest, tmp_path / "fetched")
            expected = finished(image, layout)
            assert path.read_bytes() == expected and manifest.crcs == chunk_crcs(memoryview(expected))
            if persists:
                file = VersionFolder(tmp_path / "persist").file("job", version)
                assert file.read_bytes() == expected and verify(file) == manifest
        assert sorted((tmp_path / "fetched").iterdir()) == sorted(
            VersionFolder(tmp_path / "fetched").file("job", v) for v in (1, 2, 3)
        )
        for one in tiers:
            assert one.settle(5)
            one.close()


@given(
    size=st.integers(1, 300_000), world=st.integers(1, 5), seed=st.integers(0, 2**20), wire=st.integers(4096, 90_000)
)
@settings(max_examples=25)
def test_any_layout(tmp_path_factory: pytest.TempPathFactory, size: int, world: int, seed: int, wire: int) -> None:
    layout = make_layout(size, world, seed, records=seed % 5)
    image = make_image(layout, seed)
    with running() as node:
        tiers = [tier(node, wire_bytes=wire) for _ in range(world)]
        acks = put_all(tiers, 7, layout, image)
        assert all(isinstance(a, Acks) and a.wait(Level.REMOTE) for a in acks), acks
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path_factory.mktemp("fetched"))
        assert path.read_bytes() == finished(image, layout)
        for one in tiers:
            one.close()


@given(size=st.integers(2000, 60_000), seed=st.integers(0, 2**20), records=st.integers(0, 9))
def test_checksums_of_parts_are_those_of_the_whole(size: int, seed: int, records: int) -> None:
    layout = make_layout(size, 1, seed, records)
    image, rng = make_image(layout, seed), random.Random(seed)
    expected = finished(image, layout)
    for cuts in (CrcBoundaries.of(layout), CrcBoundaries((), False)):
        copy = memoryview(bytearray(image))
        pieces, start = [], 0
        while start < size:
            end = min(size, start + rng.randint(1, 9000))
            pieces += cuts.pieces(copy[start:end], start)
            start = end
        assert not cuts.usable or total(sorted(pieces)) == chunk_crcs(copy, size)[0]
        rng.shuffle(pieces)
        assert seal_by_parts(copy, layout, cuts, pieces) == chunk_crcs(memoryview(expected)) and copy == expected


def test_without_a_library_that_combines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc_combine, "_combine", None)
    assert not CrcBoundaries.of(make_layout(50_000)).usable


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system has no congestion control to choose")
def test_connections_inside_a_machine_are_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        usual = door.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        for source, near in (("127.0.0.1", True), ("127.0.0.2", False)):
            with socket.create_connection(door.getsockname(), source_address=(source, 0)) as sock:
                tune(sock)
                found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert within_machine(sock) == near
                assert found.rstrip(b"\0") == (b"reno" if near else usual.rstrip(b"\0"))


@pytest.mark.parametrize(("cores", "near", "connections"), [(2, True, 2), (2, False, 3), (4, True, 3)])
def test_a_second_flow_where_it_helps(
    cores: int, near: bool, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "cores", lambda: cores)
    monkeypatch.setattr(protocol, "within_machine", lambda sock: near)
    layout = make_layout(17 * MIB)
    with running(128 * MIB) as node:
        to = tier(node, flows=None)
        put(to, 1, layout, make_image(layout, 1))
        # One of them watches; it may come later than the version is there.
        assert until(lambda: node.metrics()["connections"] >= connections)
        time.sleep(0.05)
        assert node.metrics()["connections"] == connections
        to.close()


def test_two_flows_and_more_than_a_chunk(tmp_path: Path) -> None:
    layout = make_layout(2 * CHUNK_BYTES + 5 * MIB + 3, records=40)
    image = make_image(layout, 1)
    with running() as node:
        to = tier(node)
        assert put(to, 1, layout, image).levels == [Level.REMOTE]
        assert to.fetch(to.versions("job")[0], tmp_path).read_bytes() == finished(image, layout)
        assert node.metrics()["counts"]["duplicates"] == 0
        assert until(lambda: node.metrics()["connections"] == 3)  # two flows and the one that watches
        to.close()


def test_no_room_is_said_and_the_next_version_has_room_again(tmp_path: Path, node_disk: NodeDisk) -> None:
    layout = make_layout(MIB)
    node_disk.hang()
    with running(3 * MIB, tmp_path / "p", keep=9) as node:
        to = tier(node)
        # One is being written, one only waits for that, one is the newest: none of them may go.
        acks = [put(to, v, layout, make_image(layout, v)) for v in (1, 2, 3)]
        assert [a.levels for a in acks] == [[Level.REMOTE]] * 3
        with soon(2), pytest.raises(TierBusyError, match="no room for version 4.*3 complete versions wait"):
            put(to, 4, layout, make_image(layout, 4))  # the disk stands still, the trainer does not
        assert [m.version for m in to.versions("job")] == [3, 2, 1]
        node_disk.work()
        assert all(a.wait(Level.DURABLE) and a.levels == [Level.REMOTE, Level.DURABLE] for a in acks)
        assert put(to, 5, layout, make_image(layout, 5)).wait(Level.DURABLE)
        assert node.metrics()["counts"]["busy"] == 1
        assert [m.version for m in VersionFolder(tmp_path / "p").manifests("job")] == [5, 3, 2, 1]
        to.close()


def test_all_ranks_skip_the_same_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(MIB, 2)
    monkeypatch.setattr(VersionMemory, "_slot", lambda *_: None)
    with running() as node:
        tiers = [tier(node), tier(node)]
        with pytest.raises(TierBusyError):
            put(tiers[0], 1, layout, make_image(layout, 1), 0)
        monkeypatch.undo()
        with pytest.raises(TierBusyError):
            put(tiers[1], 1, layout, make_image(layout, 1), 1)
        for one in tiers:
            one.close()


def test_too_little_memory_names_the_numbers() -> None:
    layout = make_layout(MIB)
    with running(2 * MIB - 1) as node:
        to = tier(node)
        with pytest.raises(
            CheckpointError, match=r"1048576 bytes .* 2097151 bytes holds 1 .*room for 2.*--memory 2MiB"
        ):
            put(to, 1, layout, make_image(layout, 1))
        to.close()


def test_memory_is_used_again_and_the_limit_holds(tmp_path: Path) -> None:
    small, large = make_layout(MIB), make_layout(2 * MIB)
    with running(4 * MIB) as node:
        to = tier(node)
        for version in range(1, 12):
            layout = small if version % 5 else large
            assert put(to, version, layout, make_image(layout, version)).levels == [Level.REMOTE]
            assert node.registry.pool.allocated <= 4 * MIB
        newest = to.versions("job")[0]
        assert newest.version == 11
        assert to.fetch(newest, tmp_path).read_bytes() == finished(make_image(small, 11), small)
        to.close()


def test_a_run_that_starts_again_from_an_earlier_version(tmp_path: Path) -> None:
    """Its versions have lower numbers than some on disk; they must not be deleted for that."""
    layout = make_layout(MIB)
    with running(8 * MIB, tmp_path / "p", keep=2) as node:
        for session, versions in (("one", (10, 20, 30)), ("two", (5, 6, 7, 20))):
            to = tier(node, session)
            for version in versions:
                image = make_image(layout, version + len(session))
                assert put(to, version, layout, image).wait(Level.DURABLE)
                assert version in [m.version for m in VersionFolder(tmp_path / "p").manifests("job")]
            to.close()
        to = tier(node, "three")
        assert until(lambda: {m.version for m in VersionFolder(tmp_path / "p").manifests("job")} == {30, 20, 7})
        manifest = next(m for m in to.versions("job") if m.version == 20)
        assert to.fetch(manifest, tmp_path / "f").read_bytes() == finished(image, layout)
        to.close()


def test_a_restart_finds_what_is_on_disk(tmp_path: Path) -> None:
    layout = make_layout(MIB)
    with running(8 * MIB, tmp_path / "p") as node:
        to = tier(node)
        for version in (1, 2, 3):
            assert put(to, version, layout, make_image(layout, version)).wait(Level.DURABLE)
        to.close()
    (tmp_path / "p" / ".job-000000000009.pt.12345678.tmp").write_bytes(b"left by a killed one")
    with running(8 * MIB, tmp_path / "p") as node:
        assert not list((tmp_path / "p").glob("*.pt.*.tmp"))
        to = tier(node)
        found = to.versions("job")
        assert [m.version for m in found] == [3, 2] and to.versions("other") == ()
        assert to.fetch(found[1], tmp_path / "f").read_bytes() == finished(make_image(layout, 2), layout)
        with pytest.raises(CheckpointError, match="version 1 of 'job' is not here|another"):
            to.fetch(type(found[1])(**{**found[1].__dict__, "version": 1}), tmp_path / "f")
        to.close()


def test_versions_are_watched_again_when_the_node_is_back(caplog: pytest.LogCaptureFixture) -> None:
    layout = make_layout(1000)
    with running() as node:
        address = node.address  # type: ignore[attr-defined]
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).wait(Level.REMOTE)
        assert "watched" not in caplog.text
    assert until(lambda: "versions are not watched for now" in caplog.text)
    assert "watched again" not in caplog.text
    with running(listen=address):
        assert until(lambda: "versions are watched again" in caplog.text)
        to.close()


def test_damage_on_the_nodes_disk_is_found(tmp_path: Path) -> None:
    layout = make_layout(CHUNK_BYTES + MIB)
    with running(persist=tmp_path / "p") as node:
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).wait(Level.DURABLE)
        to.close()
    file = VersionFolder(tmp_path / "p").file("job", 1)
    with file.open("r+b") as stream:
        stream.seek(CHUNK_BYTES + 5)
        byte = stream.read(1)[0]
        stream.seek(CHUNK_BYTES + 5)
        stream.write(bytes([byte ^ 4]))
    with running(persist=tmp_path / "p") as node:
        to = tier(node)
        with pytest.raises(DamagedError, match=f"bytes {CHUNK_BYTES} to {layout.size - 1} are damaged"):
            to.fetch(to.versions("job")[0], tmp_path / "f")
        assert list((tmp_path / "f").iterdir()) == []
        to.close()


def test_two_runs_of_one_name() -> None:
    layout = make_layout(MIB)
    with running() as node:
        one, two = tier(node, "one"), tier(node, "two")
        put(one, 1, layout, make_image(layout, 1))
        with pytest.raises(CheckpointError, match="another training run of the name 'job'.*30 s"):
            put(two, 1, layout, make_image(layout, 1))
        assert put(two, 1, layout, make_image(layout, 1), job="other").levels == [Level.REMOTE]
        one.close()
        assert put(two, 2, layout, make_image(layout, 2)).levels == [Level.REMOTE]
        assert {m.version for m in two.versions("job")} == {1, 2}
        two.close()


def test_a_silent_run_loses_its_name_and_its_unfinished_versions() -> None:
    layout = make_layout(MIB)
    with running(lease_s=0.2) as node:
        old = raw_sender(node, layout, "old")
        assert old.call(Kind.RESERVE, {"version": 5, "put": "p"}).kind is Kind.CREDIT
        start, length = layout.shards[0][0]
        image = make_image(layout, 5)
        old.channel.send_data(start, image[start : start + min(length, MIB // 2)], label="test")
        assert old.call(Kind.PING).kind is Kind.PONG
        to = tier(node, "new")
        with pytest.raises(CheckpointError, match="another training run"):
            put(to, 6, layout, image)
        time.sleep(0.25)
        assert put(to, 6, layout, image).levels == [Level.REMOTE]
        assert [v["version"] for v in node.metrics()["versions"]] == [6]
        with pytest.raises((OSError, Refused)):  # its connection was ended
            old.call(Kind.COMMIT, {"version": 5})
        old.close()
        to.close()


def test_a_stale_commit_and_stale_data_are_refused() -> None:
    """As after a pause of the whole VM: the connection stands, and its run is over."""
    layout = make_layout(MIB)
    with running() as node:
        old = raw_sender(node, layout, "old")
        assert old.call(Kind.RESERVE, {"version": 5, "put": "p"}).kind is Kind.CREDIT
        with node.registry.changed:
            node.registry.jobs["job"].session.senders.clear()
        new = raw_sender(node, layout, "new")
        with pytest.raises(Refused, match="is over here") as error:
            old.call(Kind.COMMIT, {"version": 5})
        assert error.value.code == "stale"
        with pytest.raises(Refused, match="version 5 of 'job' is not being received here"):
            new.call(Kind.COMMIT, {"version": 5})
        old.close()
        new.close()


def test_a_commit_twice_is_one(tmp_path: Path) -> None:
    layout = make_layout(MIB)
    image = make_image(layout, 1)
    with running() as node:
        to = tier(node)
        put(to, 1, layout, image)
        link = raw_sender(node, layout)
        for _ in range(2):  # the answer to the first was lost
            assert link.call(Kind.RESERVE, {"version": 2, "put": "p"}).kind is Kind.CREDIT
            link.channel.send_data(0, image[:5000], label="test")
        received = link.call(Kind.RESERVE, {"version": 2, "put": "p"}).body["received"]
        assert received == [[0, 5000]]
        for start in range(5000, layout.size, 2**20):
            for offset, length in runs(layout.shards[0]):
                end = min(start + 2**20, offset + length)
                link.channel.send_data(start, image[start:end], label="test")
        for _ in range(2):
            assert link.call(Kind.COMMIT, {"version": 2}).body["complete"]
            assert link.call(Kind.RESERVE, {"version": 2, "put": "p"}).body["received"] == [[0, layout.size]]
        assert node.metrics()["counts"]["received_bytes"] == 2 * layout.size
        assert node.metrics()["counts"]["complete"] == 2
        link.close()
        to.close()


@pytest.mark.parametrize("size", [MIB, MIB + 5000])
def test_a_version_put_again_is_the_new_one(tmp_path: Path, size: int) -> None:
    """After a failure the trainer may save other bytes under the same number: they are never mixed."""
    layout, other = make_layout(MIB, 2, seed=3), make_layout(size, 2, seed=3)
    with running() as node:
        tiers = [tier(node), tier(node)]
        put_all(tiers, 1, layout, make_image(layout, 1))
        put_all(tiers, 1, other, make_image(other, 2))
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(make_image(other, 2), other)
        put(tiers[0], 2, layout, make_image(layout, 1), 0)  # the other rank's part never came; then all again
        put(tiers[1], 2, layout, make_image(layout, 2), 1)
        put(tiers[0], 3, layout, make_image(layout, 1), 0)
        put(tiers[0], 3, layout, make_image(layout, 2), 0)
        put(tiers[1], 3, layout, make_image(layout, 2), 1)
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(make_image(layout, 2), layout)
        for one in tiers:
            one.close()


def test_parts_of_two_saves_of_a_number_are_no_version(tmp_path: Path) -> None:
    """The ranks are not equally fast: one sends the second save while another is still at the first."""
    layout = make_layout(MIB, 2, seed=3)
    first, second = make_image(layout, 1), make_image(layout, 2)
    with running() as node:
        tiers = [tier(node), tier(node)]

        def save(rank: int, image: memoryview, attempt: int) -> Acks:
            acks = Acks()
            tiers[rank].put(Shard("job", 1, rank, layout, image, attempt=attempt), acks)
            return acks

        save(0, first, 1)
        save(0, second, 2)
        with pytest.raises(Refused, match="saved anew"):
            save(1, first, 1)
        assert tiers[0].versions("job") == ()
        assert save(1, second, 2).levels == [Level.REMOTE]
        save(1, second, 3)
        assert save(0, second, 3).levels == [Level.REMOTE]
        with pytest.raises(Refused, match="saved anew"):
            save(1, first, 2)
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(second, layout)
        for one in tiers:
            one.close()


def test_half_of_an_attempt_is_not_half_of_the_next(tmp_path: Path) -> None:
    layout = make_layout(MIB, 2, seed=3)
    first, second = make_image(layout, 1), make_image(layout, 2)
    with running() as node:
        links = [raw_sender(node, layout, rank=r) for r in (0, 1)]
        for rank, link in enumerate(links):
            assert link.call(Kind.RESERVE, {"version": 1, "put": "one"}).kind is Kind.CREDIT
            start, length = layout.shards[rank][0]
            link.channel.send_data(start, first[start : start + length], label="test")
            assert link.call(Kind.PING).kind is Kind.PONG
        tiers = [tier(node), tier(node)]
        assert all(isinstance(a, Acks) for a in put_all(tiers, 1, layout, second))
        path = tiers[0].fetch(tiers[0].versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(second, layout)
        with pytest.raises(Refused, match="not being received any more"):
            links[0].call(Kind.COMMIT, {"version": 1})
        for one in (*tiers, *links):
            one.close()


def test_an_attempt_with_another_layout(tmp_path: Path) -> None:
    """The state's structure changed after a save that failed half way."""
    layout, other = make_layout(MIB, seed=1), make_layout(MIB + 999, seed=2)
    with running() as node:
        link = raw_sender(node, layout)
        assert link.call(Kind.RESERVE, {"version": 1, "put": "one"}).kind is Kind.CREDIT
        link.channel.send_data(0, make_image(layout, 1)[:5000], label="test")
        to = tier(node)
        assert put(to, 1, other, make_image(other, 2)).levels == [Level.REMOTE]
        path = to.fetch(to.versions("job")[0], tmp_path)
        assert path.read_bytes() == finished(make_image(other, 2), other)
        assert len(node.metrics()["versions"]) == 1
        link.close()
        to.close()


def test_who_asks_again_after_no_room_gets_room() -> None:
    layout = make_layout(MIB)
    with running(2 * MIB) as node:
        to = tier(node)
        held = [node.registry.pool.take(MIB), node.registry.pool.take(MIB)]
        with pytest.raises(TierBusyError):
            put(to, 1, layout, make_image(layout, 1))
        for slot in held:
            assert slot is not None
            node.registry.pool.free.append(slot)
        assert put(to, 1, layout, make_image(layout, 1)).levels == [Level.REMOTE]
        to.close()


def test_put_returns_before_the_other_ranks_and_is_told_later() -> None:
    layout = make_layout(MIB, 2)
    image = make_image(layout, 1)
    with running() as node:
        tiers = [tier(node), tier(node)]
        first = put(tiers[0], 1, layout, image, 0)
        assert first.levels == [] and tiers[0].versions("job") == ()
        second = put(tiers[1], 1, layout, image, 1)
        assert second.levels == [Level.REMOTE] and first.wait(Level.REMOTE, 2)
        for one in tiers:
            one.close()


def test_a_version_that_the_others_left_makes_room() -> None:
    layout = make_layout(MIB, 2)
    with running(2 * MIB) as node:
        tiers = [tier(node), tier(node)]
        assert all(isinstance(a, Acks) for a in put_all(tiers, 1, layout, make_image(layout, 1)))
        put(tiers[0], 2, layout, make_image(layout, 2), 0)  # rank 1 never sends its part ...
        with pytest.raises(TierBusyError):
            put(tiers[0], 3, layout, make_image(layout, 3), 0)
        assert isinstance(put(tiers[1], 4, layout, make_image(layout, 4), 1), Acks)  # ... and goes on to a newer one
        put(tiers[0], 4, layout, make_image(layout, 4), 0)
        assert tiers[0].versions("job")[0].version == 4
        put(tiers[0], 5, layout, make_image(layout, 5), 0)
        node.registry.jobs["job"].partial[5].heard -= 31  # its lease is over
        assert all(isinstance(a, Acks) for a in put_all(tiers, 6, layout, make_image(layout, 6)))
        for one in tiers:
            one.close()


def test_ranks_of_different_layouts() -> None:
    one, two = make_layout(MIB, 2, seed=1), make_layout(MIB, 2, seed=2)
    with running() as node:
        tiers = [tier(node), tier(node)]
        put(tiers[0], 1, one, make_image(one, 1), 0)
        with pytest.raises(CheckpointError, match="different layouts of version 1"):
            put(tiers[1], 1, two, make_image(two, 1), 1)
        for each in tiers:
            each.close()


def test_addresses_and_tokens(tmp_path: Path) -> None:
    assert Address.parse("tcps://[::1]:70") == Address("::1", 70, True)
    assert str(Address.parse("[::1]:70")) == "[::1]:70" and Address.parse("tcp://a.b:7070/").url == "tcp://a.b:7070"
    for text in ("", "host", "host:", "host:99999", "http://host:1", "tcp://u@host:1", "tcp://host:1/x", ":1", "a b:1"):
        with pytest.raises(RequestError):
            Address.parse(text)


def test_nobody_listens() -> None:
    to = tier("tcp://127.0.0.1:9")
    layout = make_layout(1000)
    with pytest.raises(
        CheckpointError, match=r"tcp://127.0.0.1:9: Connection refused; is a memory node running"
    ) as error:
        put(to, 1, layout, make_image(layout, 1))
    assert "memory-node status" not in str(error.value)  # that would say the same
    with pytest.raises(CheckpointError, match="Connection refused"):
        to.versions("job")
    to.close()
    with pytest.raises(CheckpointError, match="closed"):
        put(to, 1, layout, make_image(layout, 1))


def test_one_folder_has_one_node(tmp_path: Path) -> None:
    with running(persist=tmp_path) as node, pytest.raises(CheckpointError, match="another memory node writes there"):
        Node(node.settings).start()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + [
            "-subj",
            "/CN=node",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("no openssl here to make a certificate")
    layout = make_layout(17 * MIB)
    image = make_image(layout, 1)
    with running(certificate=certificate, key=key) as node:
        assert node.url.startswith("tcps://")  # type: ignore[attr-defined]
        stranger = tier(node)
        with pytest.raises(CheckpointError, match="certificate is not trusted.*DEEPVM_TLS_CA"):
            put(stranger, 1, layout, image)
        monkeypatch.setenv("DEEPVM_TLS_CA", str(certificate))
        to = tier(node)
        assert put(to, 1, layout, image).levels == [Level.REMOTE]
        assert to.fetch(to.versions("job")[0], tmp_path / "f").read_bytes() == finished(image, layout)
        plain = node.url.replace("tcps", "tcp")  # type: ignore[attr-defined]
        with pytest.raises(CheckpointError, match=f"if it speaks TLS, it is {node.url}"):  # type: ignore[attr-defined]
            put(tier(plain, limit_s=2), 2, layout, image)
        to.close()
        stranger.close()
    with running() as node:
        secure = node.url.replace("tcp", "tcps")  # type: ignore[attr-defined]
        with pytest.raises(CheckpointError, match=f"does not speak TLS.*without it is {node.url}"):  # type: ignore[attr-defined]
            tier(secure, limit_s=2).versions("job")


def test_the_node_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; import deepvm.checkpoint.node.server, deepvm.checkpoint.tiers.tcp; "
        "print(sorted({'torch', 'numpy', 'pickle', 'typer', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_status_is_plain(tmp_path: Path) -> None:
    layout = make_layout(MIB)
    with running(4 * MIB, tmp_path / "p") as node:
        to = tier(node)
        assert put(to, 3, layout, make_image(layout, 1)).wait(Level.DURABLE)
        assert until(lambda: node.metrics()["flush"]["waiting"] == 0)
        found = node.metrics()
        assert found["versions"] == [
            {
                "job": "job",
                "version": 3,
                "state": "complete",
                "bytes": layout.size,
                "received_bytes": layout.size,
                "durable": True,
            }
        ]
        assert found["flush"]["flushed"] == 1 and TOKEN.decode() not in str(found)
        to.close()
