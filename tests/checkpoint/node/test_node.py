"""A memory node and its tier, over real sockets: what is sent comes back, within its room, its
addresses and TLS.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.checkpoint.images import chunk_crcs
from support.checkpoint.memory_nodes import (
    MIB,
    TOKEN,
    Acks,
    NodeDisk,
    finished,
    make_certificate,
    make_image,
    make_layout,
    put,
    put_all,
    running,
    tier,
    until,
)
from support.pace import soon

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format import checksums
from deepvm.checkpoint.format.checksums import CrcBoundaries, seal_by_parts, total
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network import protocol
from deepvm.checkpoint.network.endpoint import Address
from deepvm.checkpoint.network.protocol import tune, within_machine
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
            assert all(
                a.levels == [Level.REMOTE, Level.DURABLE][: 1 + persists]
                for a in acks
                if isinstance(a, Acks)
            )
            manifest = tiers[0].versions("job")[0]
            assert (manifest.version, manifest.world, manifest.layout) == (
                version,
                world,
                layout.digest,
            )
            path = tiers[0].fetch(manifest, tmp_path / "fetched")
            expected = finished(image, layout)
            assert path.read_bytes() == expected and manifest.crcs == chunk_crcs(
                memoryview(expected)
            )
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
    size=st.integers(1, 300_000),
    world=st.integers(1, 5),
    seed=st.integers(0, 2**20),
    wire=st.integers(4096, 90_000),
)
@example(size=472, world=3, seed=406, wire=4096)  # a checksum across a piece of two bytes
@settings(max_examples=25)
def test_any_layout(
    tmp_path_factory: pytest.TempPathFactory, size: int, world: int, seed: int, wire: int
) -> None:
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


@given(
    size=st.integers(2000, 60_000),
    seed=st.integers(0, 2**20),
    records=st.integers(0, 9),
    chunk=st.sampled_from([1000, 4096, CHUNK_BYTES]),
)
def test_checksums_of_parts_are_those_of_the_whole(
    size: int, seed: int, records: int, chunk: int
) -> None:
    layout = make_layout(size, 1, seed, records)
    image, rng = make_image(layout, seed), random.Random(seed)
    expected = finished(image, layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "CHUNK_BYTES", chunk)
        for cuts in (CrcBoundaries.of(layout), CrcBoundaries((), False)):
            copy = memoryview(bytearray(image))
            pieces, start = [], 0
            while start < size:
                end = min(size, start + rng.randint(1, 9000))
                pieces += cuts.pieces(copy[start:end], start)
                start = end
            assert not cuts.usable or total(sorted(pieces)) == chunk_crcs(copy, size)[0]
            rng.shuffle(pieces)
            del pieces[len(pieces) - seed % 3 :]  # what is missing is hashed again
            sums = seal_by_parts(copy, layout, pieces)
            assert sums == chunk_crcs(memoryview(expected), chunk) and copy == expected


def test_without_a_library_that_combines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_combine", None)
    assert not CrcBoundaries.of(make_layout(50_000)).usable


@pytest.mark.skipif(
    not hasattr(socket, "TCP_CONGESTION"), reason="this system has no congestion control to choose"
)
def test_connections_inside_a_machine_are_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        usual = door.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        for source, near in (("127.0.0.1", True), ("127.0.0.2", False)):
            with socket.create_connection(door.getsockname(), source_address=(source, 0)) as sock:
                tune(sock)
                found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert within_machine(sock) == near
                assert found.rstrip(b"\0") == (b"reno" if near else usual.rstrip(b"\0"))


@pytest.mark.parametrize(
    ("cores", "near", "connections"), [(2, True, 2), (2, False, 3), (4, True, 3)]
)
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
        # Two flows and the one that watches
        assert until(lambda: node.metrics()["connections"] == 3)
        to.close()


def test_no_room_is_said_and_the_next_version_has_room_again(
    tmp_path: Path, node_disk: NodeDisk
) -> None:
    layout = make_layout(MIB)
    node_disk.hang()
    with running(3 * MIB, tmp_path / "p", keep=9) as node:
        to = tier(node)
        # One is being written, one only waits for that, one is the newest: none of them may go.
        acks = [put(to, v, layout, make_image(layout, v)) for v in (1, 2, 3)]
        assert [a.levels for a in acks] == [[Level.REMOTE]] * 3
        with (
            soon(2),
            pytest.raises(
                TierBusyError, match="no space for version 4.*3 complete checkpoints wait"
            ),
        ):
            put(to, 4, layout, make_image(layout, 4))  # the disk stands still, the trainer does not
        assert [m.version for m in to.versions("job")] == [3, 2, 1]
        node_disk.work()
        assert all(
            a.wait(Level.DURABLE) and a.levels == [Level.REMOTE, Level.DURABLE] for a in acks
        )
        assert put(to, 5, layout, make_image(layout, 5)).wait(Level.DURABLE)
        assert node.metrics()["counts"]["busy"] == 1
        assert [m.version for m in VersionFolder(tmp_path / "p").versions("job")] == [5, 3, 2, 1]
        to.close()


def test_too_little_memory_names_the_numbers() -> None:
    layout = make_layout(MIB)
    with running(2 * MIB - 1) as node:
        to = tier(node)
        with pytest.raises(
            CheckpointError,
            match=r"1048576 bytes .* 2097151 bytes holds 1 .*space for 2.*--memory 2MiB",
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
        assert to.fetch(found[1], tmp_path / "f").read_bytes() == finished(
            make_image(layout, 2), layout
        )
        with pytest.raises(CheckpointError, match="version 1 of 'job' is not here|another"):
            to.fetch(type(found[1])(**{**found[1].__dict__, "version": 1}), tmp_path / "f")
        to.close()


def test_acknowledgements_are_received_again_when_the_node_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layout = make_layout(1000)
    with running() as node:
        address = node.address  # type: ignore[attr-defined]
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).wait(Level.REMOTE)
        assert "acknowledgements" not in caplog.text
    assert until(lambda: f"{to.url}: acknowledgements cannot be received for now: " in caplog.text)
    assert "received again" not in caplog.text
    with running(listen=address):
        assert until(lambda: f"{to.url}: acknowledgements are received again" in caplog.text)
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
        with pytest.raises(
            DamagedError, match=f"bytes {CHUNK_BYTES} to {layout.size - 1} are damaged"
        ):
            to.fetch(to.versions("job")[0], tmp_path / "f")
        assert list((tmp_path / "f").iterdir()) == []
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


def test_addresses_and_tokens(tmp_path: Path) -> None:
    assert Address.parse("tcps://[::1]:70") == Address("::1", 70, True)
    assert (
        str(Address.parse("[::1]:70")) == "[::1]:70"
        and Address.parse("tcp://a.b:7070/").url == "tcp://a.b:7070"
    )
    for text in (
        "",
        "host",
        "host:",
        "host:99999",
        "http://host:1",
        "tcp://u@host:1",
        "tcp://host:1/x",
        ":1",
        "a b:1",
    ):
        with pytest.raises(RequestError):
            Address.parse(text)
    for text in ("tcp://node..example:7070", f"tcp://{'a' * 64}.example:7070", ".example:1"):
        # No DNS name: looking it up would be no OSError
        with pytest.raises(RequestError, match="HOST:PORT"):
            Address.parse(text)
    assert Address.parse(f"{'a' * 63}.example.:1").host == f"{'a' * 63}.example."


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
    with (
        running(persist=tmp_path) as node,
        pytest.raises(CheckpointError, match="another memory node writes there"),
    ):
        Node(node.settings).start()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
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
        assert to.fetch(to.versions("job")[0], tmp_path / "f").read_bytes() == finished(
            image, layout
        )
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
                "created_at": node.registry.complete("job")[3].manifest.created,
            }
        ]
        assert found["flush"]["flushed"] == 1 and TOKEN.decode() not in str(found)
        to.close()
