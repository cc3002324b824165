"""What a node promises, and to whom it gives room: promises are of bytes, not of numbers, and
nobody starves.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
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
    running,
    tier,
    until,
)
from support.pace import soon

from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.network import client
from deepvm.checkpoint.network.client import Link
from deepvm.checkpoint.network.protocol import Kind
from deepvm.checkpoint.node import version_registry
from deepvm.errors import CheckpointError, TierBusyError

# --- promises -------------------------------------------------------------------------------------


def test_a_number_put_again_is_not_durable_because_the_first_was(
    tmp_path: Path, node_disk: NodeDisk
) -> None:
    layout = make_layout(100_000)
    first, second = make_image(layout, 1), make_image(layout, 2)
    with running(persist=tmp_path) as node:
        to = tier(node)
        assert put(to, 200, layout, first).wait(Level.DURABLE)
        node_disk.hang()
        again = put(to, 200, layout, second)
        assert again.levels == [Level.REMOTE] and not again.wait(Level.DURABLE, 0.5)
        node_disk.work()
        assert again.wait(Level.DURABLE)
        assert VersionFolder(tmp_path).file("job", 200).read_bytes() == finished(second, layout)
        to.close()


def test_a_late_disk_makes_nothing_else_durable(tmp_path: Path, node_disk: NodeDisk) -> None:
    """The first of two versions of one number reaches the disk while the second is on its way, or
    was given up.
    """
    layout = make_layout(100_000, world=2)
    with running(persist=tmp_path) as node:
        tiers = [tier(node), tier(node)]
        node_disk.hang()
        assert all(
            isinstance(a, Acks) and a.wait(Level.REMOTE)
            for a in put_all(tiers, 5, layout, make_image(layout, 1))
        )
        again = put(tiers[0], 5, layout, make_image(layout, 2), rank=0)
        node_disk.work()
        assert until(lambda: bool(node.metrics()["flush"]["flushed"]))
        assert not again.wait(Level.REMOTE, 0.5)
        with node.registry.changed:
            node.registry._drop(node.registry.jobs["job"].partial[5])
        assert not again.wait(Level.REMOTE, 0.5)
        for one in tiers:
            one.close()


def test_one_rank_alone_is_not_told_of_the_other_ranks_earlier_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_POLL_S", 0.2)
    layout = make_layout(100_000, world=2)
    with running() as node:
        tiers = [tier(node), tier(node)]
        assert all(
            isinstance(a, Acks) and a.wait(Level.REMOTE)
            for a in put_all(tiers, 200, layout, make_image(layout, 1))
        )
        again = put(tiers[0], 200, layout, make_image(layout, 2), rank=0)
        assert not again.wait(Level.REMOTE, 1)
        put(tiers[1], 200, layout, make_image(layout, 2), rank=1)
        assert again.wait(Level.REMOTE)
        for one in tiers:
            one.close()


def test_who_waits_is_told_at_once() -> None:
    """Not with the next look, 5 s later: what came while a question was open is asked again."""
    layout = make_layout(50_000, world=2)
    image = make_image(layout, 1)
    with running() as node:
        tiers = [tier(node), tier(node)]
        for version in range(1, 30):
            with soon(3):
                acks = put_all(tiers, version, layout, image)
                assert all(isinstance(a, Acks) and a.wait(Level.REMOTE) for a in acks)
        for one in tiers:
            one.close()


def test_a_callback_that_fails_is_logged_and_costs_no_other_version(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fails(level: Level) -> None:
        if level is Level.DURABLE:
            raise ValueError("of the trainer")

    layout = make_layout(50_000)
    with running(2 * MIB, tmp_path) as node:
        one = tier(node)
        one.put(Shard("job", 1, 0, layout, make_image(layout, 1)), fails)
        assert until(
            lambda: (
                "version 1: a callback failed" in caplog.text and "of the trainer" in caplog.text
            )
        )
        assert put(one, 2, layout, make_image(layout, 2)).wait(Level.DURABLE)
        one.close()


# --- room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("persists", [True, False])
def test_a_run_that_begins_below_the_old_maximum_has_room(tmp_path: Path, persists: bool) -> None:
    """In a node with room for two versions, the least that it may have."""
    layout = make_layout(MIB)
    level = Level.DURABLE if persists else Level.REMOTE
    with running(2 * MIB, tmp_path / "p" if persists else None) as node:
        for session, versions in (
            ("one", (100, 200, 300)),
            ("two", (110, 120, 130, 300, 310, 320, 130, 140, 150)),
        ):
            to = tier(node, session)
            for version in versions:
                assert put(to, version, layout, make_image(layout, version)).wait(level), version
                assert version in [m.version for m in to.versions("job")]
            to.close()


def test_what_a_run_before_completed_stays_until_this_one_has_completed_something(
    tmp_path: Path,
) -> None:
    layout = make_layout(MIB, world=2)
    with running(2 * MIB) as node:
        tiers = [tier(node, "one"), tier(node, "one")]
        for version in (100, 200):
            put_all(tiers, version, layout, make_image(layout, version))
        for one in tiers:
            one.close()
        tiers = [tier(node, "two"), tier(node, "two")]
        for version in (110, 120):  # rank 1 dies before it has sent its part
            with contextlib.suppress(TierBusyError):
                put(tiers[0], version, layout, make_image(layout, version))
            manifest = tiers[0].versions("job")[0]
            path = tiers[0].fetch(manifest, tmp_path)
            assert path.read_bytes() == finished(make_image(layout, 200), layout)
        for one in tiers:
            one.close()


def test_living_jobs_do_not_starve_each_other(tmp_path: Path) -> None:
    """Memory holds two versions, and all of them are on disk: no third copy is needed."""
    layout = make_layout(MIB)
    with running(2 * MIB, tmp_path / "p") as node:
        tiers = {job: tier(node, job) for job in "abc"}
        for version in range(1, 5):
            for job, to in tiers.items():
                assert put(to, version, layout, make_image(layout, version), job=job).wait(
                    Level.DURABLE
                )
        for job, to in tiers.items():
            newest = to.versions(job)[0]
            assert to.fetch(newest, tmp_path / job).read_bytes() == finished(
                make_image(layout, 4), layout
            )
            to.close()


def test_the_own_newest_goes_before_that_of_others(tmp_path: Path) -> None:
    layout = make_layout(MIB)
    with running(2 * MIB, tmp_path / "p") as node:
        one, two = tier(node, "one"), tier(node, "two")
        assert put(one, 1, layout, make_image(layout, 1), job="a").wait(Level.DURABLE)
        for version in (1, 2, 3):
            assert put(two, version, layout, make_image(layout, version), job="b").wait(
                Level.DURABLE
            )
            newest = node.registry.jobs["b"].complete[version]
            assert until(lambda v=newest: not v.used)  # type: ignore[misc]
        assert list(node.registry.complete("a")) == [1]
        one.close()
        two.close()


def test_no_room_names_the_option() -> None:
    layout = make_layout(MIB)
    with running(2 * MIB) as node:
        to = tier(node)
        for job in "ab":
            put(to, 1, layout, make_image(layout, 1), job=job)
        with pytest.raises(
            TierBusyError, match=r"no space for version 1: all 2097152 bytes .*--memory"
        ):
            put(to, 1, layout, make_image(layout, 1), job="c")
        to.close()


def test_jobs_that_are_over_make_room_for_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_registry, "_MOST_JOBS", 5)
    layout = make_layout(1000)
    with running(persist=tmp_path) as node:
        for number in range(12):
            to = tier(node, f"s{number}")
            assert put(to, 1, layout, make_image(layout, number), job=f"job-{number}").wait(
                Level.DURABLE
            )
            to.close()
        assert len(node.registry.jobs) <= 5
        for job in ("job-0", "job-11"):
            assert [m.version for m in tier(node).versions(job)] == [1]
    with running() as node:
        tiers = [tier(node, f"s{number}") for number in range(6)]
        for number, to in enumerate(tiers[:5]):
            put(to, 1, layout, make_image(layout, number), job=f"job-{number}")
            to.close()
        # Their versions are nowhere else
        with pytest.raises(CheckpointError, match="knows 5 jobs already"):
            put(tiers[5], 1, layout, make_image(layout, 1), job="job-5")


@pytest.mark.parametrize("keep", [9, 1])
def test_a_slow_reader_keeps_no_slot(tmp_path: Path, keep: int) -> None:
    """It gets the rest from the disk; where the disk has it no more it is told."""
    layout = make_layout(20 * MIB)
    image = make_image(layout, 1)
    with running(40 * MIB, tmp_path / "p", keep=keep) as node:
        to = tier(node)
        assert put(to, 1, layout, image).wait(Level.DURABLE)
        reader = Link(node.address, TOKEN)  # type: ignore[attr-defined]
        reader.hello({"role": "reader"})
        assert reader.call(Kind.GET, {"job": "job", "version": 1}).kind is Kind.MANIFEST
        time.sleep(0.3)  # all buffers on the way are full
        for version in (2, 3, 4):
            assert put(to, version, layout, image).wait(Level.DURABLE)
        found = bytearray()
        while (head := reader.channel.header(idle_s=5))[0] is Kind.DATA:
            piece = reader.channel.data_header(head[1])
            assert piece.offset == len(found)
            data = memoryview(bytearray(piece.length))
            reader.channel.read_into(data, limit_s=5)
            found += data
        if keep == 9:
            assert head[0] is Kind.END and found == finished(image, layout)
        else:
            assert head[0] is Kind.ERROR and 0 < len(found) < layout.size
            assert b"version 1 of 'job' is not here" in reader.channel.rest(*head).raw
        reader.close()
        to.close()


# --- the disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_disk", ["complete", "early"], indirect=True)
def test_a_version_that_cannot_be_written_stops_no_other_job(
    tmp_path: Path, node_disk: NodeDisk
) -> None:
    layout = make_layout(100_000)
    (tmp_path / "bad-000000000001.pt").mkdir()
    with running(persist=tmp_path) as node:
        bad, good = tier(node, "bad"), tier(node, "good")
        stuck = put(bad, 1, layout, make_image(layout, 1), job="bad")
        behind = put(bad, 2, layout, make_image(layout, 2), job="bad")
        assert until(lambda: node.metrics()["flush"]["failed"] == 3)  # the pause after that is 2 s
        with soon(1.5):
            for version in range(1, 6):
                assert put(good, version, layout, make_image(layout, version), job="good").wait(
                    Level.DURABLE
                )
        assert (
            until(lambda: bool(node.registry.jobs["bad"].trouble))
            and not node.registry.jobs["good"].trouble
        )
        assert stuck.levels == behind.levels == [Level.REMOTE]  # one after the other, as they came
        (tmp_path / "bad-000000000001.pt").rmdir()
        assert until(
            lambda: (
                [v["durable"] for v in node.metrics()["versions"] if v["job"] == "bad"]
                == [True, True]
            )
        )
        assert not node.registry.jobs["bad"].trouble
        bad.close()
        good.close()


@pytest.mark.parametrize("node_disk", ["complete", "early"], indirect=True)
def test_a_job_that_cannot_be_written_does_not_fill_the_memory(
    tmp_path: Path, node_disk: NodeDisk
) -> None:
    """Whoever waited for its disk was told; what it has completed last stays."""
    layout = make_layout(100_000)
    (tmp_path / "bad-000000000001.pt").mkdir()
    with running(3 * 102_400, tmp_path) as node:
        bad, good = tier(node, "bad"), tier(node, "good")
        for version in (1, 2, 3):
            put(bad, version, layout, make_image(layout, version), job="bad")
        with pytest.raises(TierBusyError):
            put(good, 1, layout, make_image(layout, 1), job="good")
        assert until(lambda: bool(node.registry.jobs["bad"].trouble))
        for version in (2, 3, 4):
            assert put(good, version, layout, make_image(layout, version), job="good").wait(
                Level.DURABLE
            )
        assert 3 in [m.version for m in bad.versions("bad")]
        bad.close()
        good.close()


@pytest.mark.parametrize("node_disk", ["complete", "early"], indirect=True)
def test_the_flusher_outlives_what_it_does_not_expect(tmp_path: Path, node_disk: NodeDisk) -> None:
    layout = make_layout(100_000)

    def fail(job: str) -> None:
        raise RuntimeError("can't start new thread")

    with running(persist=tmp_path) as node:
        to = tier(node)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.store, "versions", fail)
            assert put(to, 1, layout, make_image(layout, 1)).wait(Level.DURABLE)
        assert put(to, 2, layout, make_image(layout, 2)).wait(Level.DURABLE)
        to.close()
