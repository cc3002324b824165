"""Where a node persists versions: a folder and a bucket do the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.checkpoint import object_store
from support.checkpoint.images import manifest_of, noise, write_version
from support.checkpoint.memory_nodes import (
    MIB,
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
from support.effort import in_ring_2

from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import CommitRecord, Level, NewVersion, Shard
from deepvm.checkpoint.tiers.base import Store
from deepvm.checkpoint.tiers.registry import open_store, open_tier
from deepvm.errors import CheckpointError, RequestError


@contextmanager
def folder_url(folder: Path) -> Iterator[str]:
    yield (folder / "p").as_uri()


@contextmanager
def bucket_url(folder: Path) -> Iterator[str]:
    with object_store.running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        yield f"s3://{object_store.BUCKET}/run"


PLACES = {"folder": folder_url, "bucket": bucket_url}


@pytest.fixture(params=in_ring_2(PLACES, "bucket"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty place."""
    with PLACES[request.param](tmp_path) as url:
        yield url


def store_at(url: str) -> Store:
    found = open_store(url)
    assert found is not None
    found.open_for_writing()
    return found


def test_a_version_comes_back(place: str) -> None:
    store, data = store_at(place), noise(2 * CHUNK_BYTES + 999, 3)
    write_version(store, data, manifest_of(data, version=3))
    write_version(store, data, manifest_of(data, version=12))
    assert [m.version for m in store.versions("job")] == [12, 3]
    manifest, chunks = store.read("job", 3)
    assert manifest == manifest_of(data, version=3)
    assert b"".join(bytes(c) for c in chunks) == data
    store.delete("job", 12)
    store.delete("job", 99)
    assert [m.version for m in store.versions("job")] == [3]
    with pytest.raises(FileNotFoundError):
        store.read("job", 12)
    assert store.versions("other") == ()
    store.close()


def test_the_next_version_overwrites_what_retention_let_go(tmp_path: Path) -> None:
    """No blocks to free and to find, which takes half as long as the write.

    One spare in all, none in the end.
    """
    store, where = store_at(tmp_path.as_uri()), {}
    for job, version in (("job", 1), ("job", 2), ("job", 3), ("other", 1)):
        data = noise(CHUNK_BYTES + version, version)
        write_version(store, data, manifest_of(data, job=job, version=version))
        (path,) = tmp_path.glob(f"{job}-*{version}.pt")
        assert path.read_bytes() == data
        where[job, version] = path.stat().st_ino
        if version == 2:
            reader = path.open("rb")
        store.delete(job, version)
        assert [p.name for p in tmp_path.glob(".*.spare.tmp")] == [f".{job}.spare.tmp"]
    assert where["job", 1] == where["job", 2] != where["job", 3]
    with reader:  # it was not overwritten, as somebody reads it
        assert reader.read() == noise(CHUNK_BYTES + 2, 2)
    store.close()
    assert not list(tmp_path.glob(".*.spare.tmp"))


def test_a_spare_takes_no_room_from_another_job(tmp_path: Path) -> None:
    """A job that has ended would keep it, and where it took the last room no version of another
    could be written.
    """
    store = store_at(tmp_path.as_uri())
    for version in (1, 2):
        write_version(store, noise(1000), manifest_of(noise(1000), version=version))
    store.delete("job", 1)
    there = []

    def bytes_are_final() -> Iterator[int]:
        there.extend(tmp_path.glob(".*.spare.tmp"))
        yield 1000

    record = manifest_of(noise(1000), job="other")
    store.write(NewVersion(memoryview(noise(1000)), "other", 1, bytes_are_final(), lambda: record))
    assert there == [] and [m.version for m in store.versions("other")] == [1]
    store.close()


def test_a_reader_of_a_folder_costs_little_memory(tmp_path: Path) -> None:
    """There may be as many as the node has connections."""
    store, image = store_at(tmp_path.as_uri()), noise(3 * MIB + 7)
    write_version(store, image, manifest_of(image))
    pieces = [bytes(piece) for piece in store.read("job", 1)[1]]
    assert max(map(len, pieces)) == MIB and b"".join(pieces) == image


def test_a_disk_that_fails_is_an_error_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the store and its iterator: the node refuses the reader and logs the reason."""
    store, path = store_at(tmp_path.as_uri()), tmp_path / "job-000000000001.pt"
    write_version(store, noise(100), manifest_of(noise(100)))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        store.read("job", 1)
    path.symlink_to("/proc/self/mem")  # reading at 0 is EIO
    with pytest.raises(CheckpointError, match=rf"{path}: cannot be read: Input/output error"):
        list(store.read("job", 1)[1])
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=rf"{path}: cannot be read: Is a directory"):
        store.read("job", 1)
    store.close()
    with running(persist=tmp_path) as node:
        to = tier(node)
        with pytest.raises(CheckpointError, match="cannot be read"):
            to.fetch(manifest_of(noise(100)), tmp_path)
        assert "cannot be read: Is a directory" in caplog.text
        to.close()


def test_a_node_finds_what_an_earlier_one_persisted(place: str, tmp_path: Path) -> None:
    """Of two ranks: a bucket gets whole versions only from a node."""
    layout = make_layout(3 * MIB, world=2, records=5)
    image = make_image(layout, 1)
    with running(persist=place) as node:
        acks = put_all([tier(node), tier(node)], 7, layout, image)
        assert all(not isinstance(a, Exception) and a.wait(Level.DURABLE, 30) for a in acks)
    with running(persist=place) as node:
        to = tier(node, "later")
        (manifest,) = to.versions("job")
        assert (manifest.version, manifest.world) == (7, 2)
        assert to.fetch(manifest, tmp_path / "f").read_bytes() == finished(image, layout)
        to.close()


def test_what_stays(place: str) -> None:
    """The newest two, one for each ten steps, and the newest of the best."""
    layout = make_layout(MIB)
    with running(persist=place, keep=2, keep_every=10) as node:
        to = tier(node)
        for version in (3, 6, 9, 12, 15, 18, 21):
            acks: list[Level] = []
            best = version in (3, 9)
            to.put(
                Shard("job", version, 0, layout, make_image(layout, version), best=best),
                acks.append,
            )
            assert to.settle(30)
            assert acks == [Level.REMOTE, Level.DURABLE]
        assert node.store is not None
        assert until(lambda: [m.version for m in node.store.versions("job")] == [21, 18, 12, 9])
        assert [m.best for m in node.store.versions("job")] == [False, False, False, True]
        to.close()


def test_a_flush_that_fails_is_tried_again() -> None:
    layout = make_layout(MIB)
    with object_store.running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        with running(persist=f"s3://{object_store.BUCKET}/run") as node:
            refused: list[str] = []

            def refuse(method: str, path: str) -> str | None:
                if method == "PUT" and len(refused) < 2:
                    refused.append(path)
                    return "403 Access Denied"
                return None

            server.trouble = refuse
            to = tier(node)
            acks = put(to, 1, layout, make_image(layout, 1))
            assert acks.wait(Level.REMOTE) and acks.wait(Level.DURABLE, 30)
            assert len(refused) == 2
            assert "s3:GetObject" in str(node.metrics()["flush"]["last_error"])
            assert server.uploads() == []
            to.close()


def test_a_bucket_that_is_not_there_is_said_at_the_start() -> None:
    with object_store.running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        with (
            pytest.raises(CheckpointError, match="make the bucket first"),
            running(persist="s3://nobodys-bucket/x"),
        ):
            pass


def test_a_bucket_that_cannot_be_written_is_said_at_the_start() -> None:
    with object_store.running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        store = open_store(f"s3://{object_store.BUCKET}/run")
        assert store is not None
        server.trouble = lambda method, path: None if method == "GET" else "403 Access Denied"
        with pytest.raises(CheckpointError, match="s3:GetObject, PutObject"):
            store.open_for_writing()
        server.trouble = lambda method, path: None
        store.open_for_writing()
        assert server.uploads() == server.keys() == [], "nothing is left of the proof"


def test_trainers_and_nodes_read_urls_alike() -> None:
    for url, where in [
        ("file:///mnt/a%20b%23", "file:///mnt/a b#"),
        ("file://localhost/mnt/a", "file:///mnt/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a%20b/c/", "s3://bucket/a%20b/c"),
        ("s3://bucket/a b", "s3://bucket/a b"),
    ]:
        store = open_store(url)
        assert store is not None and store.url == open_tier(url, "s").url == where


def test_urls_that_mean_no_place() -> None:
    for url in [
        *(
            "file:///mnt/run#1",
            "file:///mnt/run?x",
            "s3://bucket/run#1",
            "s3://bucket/run?x",
            "s3://bucket#",
            "s3:///x",
        ),
        *(
            "s3://",
            "file://",
            "file://host/x",
            "file:relative",
            "file:///a%00",
            "/mnt/x",
            "http://x/y",
            "",
        ),
    ]:
        with pytest.raises(RequestError, match="tiers"):
            open_tier(url, "s")
        if url:
            with pytest.raises(RequestError, match="persist"):
                open_store(url)


def test_the_command_with_a_bucket(tmp_path: Path) -> None:
    layout = make_layout(MIB)
    with object_store.running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        with Process(
            tmp_path, "--persist", f"s3://{object_store.BUCKET}/run", persist=False
        ) as node:
            to = tier(node)
            assert put(to, 5, layout, make_image(layout, 5)).wait(Level.DURABLE, 30)
            assert node.status()["persist"] == f"s3://{object_store.BUCKET}/run"
            to.close()
        assert sorted(server.keys()) == ["run/job-000000000005.pt", "run/job-000000000005.pt.json"]
        data = (
            server.client()
            .get_object(Bucket=object_store.BUCKET, Key="run/job-000000000005.pt.json")["Body"]
            .read()
        )
        assert CommitRecord.from_json(data).version == 5
