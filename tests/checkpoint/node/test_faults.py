"""What goes wrong: cut connections, full disks, killed nodes and senders.

Acknowledged is restorable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
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
    running,
    tier,
    until,
)
from support.checkpoint.proxy import Proxy
from support.pace import soon
from support.places import TESTS

from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format import manifest as shard_module
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.network.protocol import Channel, Kind, introduce
from deepvm.errors import CheckpointError, TierBusyError


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


@pytest.mark.parametrize("size", [4 * MIB, pytest.param(20 * MIB, marks=pytest.mark.slow)])
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
        assert acks.levels == [] and not node.registry.complete("job")
        to.close()
        proxy.close()


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
        # Counted, then logged
        assert until(lambda: f"version 1 of job stays in memory: {why}" in caplog.messages)
        assert [v["durable"] for v in node.metrics()["versions"]] == [False]
        assert not [p.name for p in (tmp_path / "p").iterdir() if "000000000001" in p.name], (
            "half of it is left"
        )
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
        assert to.fetch(newest, tmp_path / "f").read_bytes() == finished(
            make_image(layout, 2), layout
        )
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
        assert to.fetch(manifest, tmp_path / "g").read_bytes() == finished(
            make_image(layout, 1), layout
        )
        to.close()


def test_a_node_that_does_not_answer_costs_put_no_more_than_its_limit() -> None:
    layout = make_layout(32 * MIB)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        to = tier(f"tcp://127.0.0.1:{deaf.getsockname()[1]}", limit_s=1.0)
        with soon(1.0 + 5), pytest.raises(CheckpointError):
            put(to, 1, layout, make_image(layout, 1))
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
    return Shard(
        "job",
        version,
        0,
        layout,
        make_image(layout, version),
        ready=lambda end: time.sleep(pause_s),
    )


def test_a_version_that_takes_longer_than_any_other_wait_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        with soon(3.5), pytest.raises(CheckpointError):
            put(to, 2, layout, image)
        node.process.send_signal(signal.SIGCONT)
        versions = iter(range(3, 1000))

        def taken() -> bool:
            # Until the node has seen that nobody sends version 2 any more
            with contextlib.suppress(TierBusyError):
                return put(to, next(versions), layout, image).wait(Level.DURABLE)
            return False

        assert until(taken, 5)
        to.close()


# --- killed nodes and senders ---------------------------------------------------------------------

NODE = ["node.before-credit", "node.mid-chunk", "node.before-ack", "node.after-ack"]
WRITES = [
    "before-write",
    "before-sync",
    "after-sync",
    "before-rename",
    "before-folder-sync",
    "after-folder-sync",
]
FOLDER = [f"{what}.{at}" for what in ("data", "record") for at in WRITES]
SENDER = ["sender.before-reserve", "sender.mid-chunk", "sender.before-commit"]


def durable_until_killed(node: Process, layout: Layout, versions: range) -> list[int]:
    """Versions that were acknowledged as durable before the node died."""
    to, acks = tier(node, limit_s=3.0), {}
    for version in versions:
        acks[version] = Acks()
        with contextlib.suppress(CheckpointError):
            acks[version] = put(to, version, layout, make_image(layout, version))
            until(
                lambda v=version: (
                    Level.DURABLE in acks[v].levels or node.process.poll() is not None
                ),
                5,
            )  # type: ignore[misc]
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


@pytest.mark.parametrize(
    "label", [*NODE, "data.before-rename", "record.before-rename", "record.after-folder-sync"]
)
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
def test_a_killed_sender_leaves_the_version_before_it(
    tmp_path: Path, label: str, times: int
) -> None:
    layout = make_layout(4 * MIB)
    with running(persist=tmp_path / "p", keep=9) as node:
        to = tier(node)
        assert put(to, 1, layout, make_image(layout, 1)).wait(Level.DURABLE)
        to.close()
        code = SENDING.format(here=str(TESTS), url=node.url)  # type: ignore[attr-defined]
        environment = {"DEEPVM_CHECKPOINT_KILL_AT": f"{label}:{times}", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        to = tier(node, "next")
        versions = to.versions("job")
        complete = [m.version for m in versions]
        assert complete == list(range(times if label != "sender.mid-chunk" else 1, 0, -1))
        for manifest in versions:
            expected = finished(make_image(layout, manifest.version), layout)
            assert to.fetch(manifest, tmp_path / "f").read_bytes() == expected
        # Its name is free again at once
        assert put(to, 9, layout, make_image(layout, 9)).wait(Level.DURABLE)
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
    assert (
        {m.version for m in VersionFolder(node.persist).versions("job")}
        == set(remote)
        == {1, 2, 3, 4}
    )
    assert node.process.stdout is not None
    for file in VersionFolder(node.persist).found():
        verify(file.path)


def test_a_stopping_node_takes_nothing_new_and_gives_up_in_time(
    tmp_path: Path, node_disk: NodeDisk
) -> None:
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
