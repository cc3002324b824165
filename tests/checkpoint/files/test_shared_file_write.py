"""Several ranks, one folder: all parts or nothing, whoever dies."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from support.checkpoint.images import joint_images, joint_layout, names

from deepvm.checkpoint.files import shared_file_write
from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format import manifest as shard_module
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord, Level, Shard
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.errors import CheckpointError

SIZE = 300_000


def layout_of(world: int) -> Layout:
    return joint_layout(world, SIZE)


def put(
    folder: Path,
    version: int,
    parts: list[bytearray],
    layout: Layout,
    ranks: list[int],
    session: str,
    attempt: int = 0,
) -> list[object]:
    """What each rank got: its levels, or why not."""
    found: list[object] = [None] * len(ranks)

    def one(place: int, rank: int) -> None:
        levels: list[Level] = []
        tier = FileTier(folder, keep=2, session=session)
        try:
            tier.put(
                Shard("job", version, rank, layout, memoryview(parts[rank]), attempt=attempt),
                levels.append,
            )
            found[place] = levels
        except CheckpointError as error:
            found[place] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_write_one_file(world: int, tmp_path: Path) -> None:
    layout = layout_of(world)
    for version in (1, 2, 3):
        whole, parts = joint_images(layout, version)
        assert (
            put(tmp_path, version, parts, layout, list(range(world)), "s")
            == [[Level.DURABLE]] * world
        )
        path = VersionFolder(tmp_path).file("job", version)
        assert path.read_bytes() == whole
        assert verify(path).world == world
    assert [m.version for m in VersionFolder(tmp_path).versions("job")] == [3, 2]  # keep=2
    assert [n for n in names(tmp_path) if n.startswith(".") and "spare" not in n] == []


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_comes_leaves_the_version_before_it(
    missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(2)
    whole, parts = joint_images(layout, 1)
    put(tmp_path, 1, parts, layout, [0, 1], "s")
    monkeypatch.setattr(shared_file_write.put_part, "__defaults__", (0.3,))
    (error,) = put(tmp_path, 2, parts, layout, [1 - missing], "s")
    assert isinstance(error, CheckpointError) and "in time" in str(error)
    assert [m.version for m in VersionFolder(tmp_path).versions("job")] == [1]
    # As large as a version, and nobody's
    assert [n for n in names(tmp_path) if n.startswith(".job")] == []
    # The next run takes nothing of what was left.
    whole, parts = joint_images(layout, 2)
    assert put(tmp_path, 2, parts, layout, [0, 1], "next") == [[Level.DURABLE]] * 2
    assert VersionFolder(tmp_path).file("job", 2).read_bytes() == whole


def test_ranks_have_time_for_the_bytes_of_a_large_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 reads all of it before it commits: the others wait longer for that than for anything
    else.
    """
    layout = layout_of(2)
    whole, parts = joint_images(layout, 1)
    honest = shared_file_write._complete

    def complete(*given: object) -> object:
        time.sleep(0.8)
        return honest(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_file_write, "_complete", complete)
    monkeypatch.setattr(shared_file_write.put_part, "__defaults__", (0.4,))
    monkeypatch.setattr(shard_module, "LEAST_BYTES_S", SIZE / 20)
    assert put(tmp_path, 1, parts, layout, [0, 1], "s") == [[Level.DURABLE]] * 2
    assert VersionFolder(tmp_path).file("job", 1).read_bytes() == whole


def test_two_saves_of_a_number_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that gives the first up, when others are at the second, takes nothing of that away."""
    layout = layout_of(2)
    whole, parts = joint_images(layout, 2)
    honest = shared_file_write._complete

    def complete(*given: object) -> object:
        monkeypatch.setattr(shard_module, "LEAST_BYTES_S", 1e12)
        (error,) = put(tmp_path, 1, joint_images(layout, 1)[1], layout, [1], "s", attempt=1)
        assert isinstance(error, CheckpointError)
        return honest(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_file_write, "_complete", complete)
    monkeypatch.setattr(shared_file_write.put_part, "__defaults__", (0.3,))
    monkeypatch.setattr(shard_module, "LEAST_BYTES_S", SIZE / 20)
    assert put(tmp_path, 1, parts, layout, [0, 1], "s", attempt=2) == [[Level.DURABLE]] * 2
    assert VersionFolder(tmp_path).file("job", 1).read_bytes() == whole


def test_a_rank_that_gave_up_does_not_undo_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its own word away while rank 0 commits: the version is there, and rank 0 says so."""
    layout = layout_of(2)
    _, parts = joint_images(layout, 1)
    honest = VersionFolder.adopt

    def adopt(folder: VersionFolder, hidden: Path, manifest: CommitRecord) -> None:
        honest(folder, hidden, manifest)
        for path in tmp_path.glob(".*.json.*.tmp"):
            path.unlink()

    monkeypatch.setattr(VersionFolder, "adopt", adopt)
    assert put(tmp_path, 1, parts, layout, [0, 1], "s")[0] == [Level.DURABLE]


def test_bytes_that_changed_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(2)
    _, parts = joint_images(layout, 1)
    honest = shared_file_write._checksums
    monkeypatch.setattr(
        shared_file_write, "_checksums", lambda shard: [crc ^ shard.rank for crc in honest(shard)]
    )
    monkeypatch.setattr(shared_file_write.put_part, "__defaults__", (0.5,))
    errors = put(tmp_path, 1, parts, layout, [0, 1], "s")
    assert all(isinstance(e, CheckpointError) for e in errors) and "rank 1" in str(errors[0])
    assert VersionFolder(tmp_path).versions("job") == ()


@pytest.mark.parametrize(
    ("where", "which"),
    [("_write_part", 0), ("_write_part", 1), ("_write_part", 2), ("_complete", 0)],
)
def test_a_rank_that_cannot_write_keeps_nobody_waiting(
    where: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others learn of it at once; else a training that ends would wait a minute."""
    layout = layout_of(3)
    _, parts = joint_images(layout, 1)
    put(tmp_path, 1, parts, layout, [0, 1, 2], "s")
    honest = getattr(shared_file_write, where)

    def fail(hidden: Path, shard: Shard, *rest: object) -> object:
        if shard.rank == which:
            time.sleep(0.05 * (which == 2))  # the others have written by then
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return honest(hidden, shard, *rest)

    monkeypatch.setattr(shared_file_write, where, fail)
    began = time.monotonic()
    errors = put(tmp_path, 2, joint_images(layout, 2)[1], layout, [0, 1, 2], "s")
    assert time.monotonic() - began < 10
    assert all(isinstance(error, CheckpointError) for error in errors)
    assert "Input/output error" in str(errors[which])
    assert not which or f"rank {which} could not write" in str(errors[0])
    assert [m.version for m in VersionFolder(tmp_path).versions("job")] == [1]
    assert [n for n in names(tmp_path) if n.startswith(".job") and "spare" not in n] == []


def test_a_rank_says_nothing_of_an_older_version_that_is_being_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its record goes first, so for a moment it looks damaged to whoever lists the folder."""
    layout = layout_of(2)
    _, parts = joint_images(layout, 2)
    VersionFolder(tmp_path).file("job", 1).parent.mkdir(exist_ok=True)
    VersionFolder(tmp_path).file("job", 1).write_bytes(b"its record is gone")
    tiers = [FileTier(tmp_path, keep=0, session="s") for _ in range(2)]
    threads = [
        threading.Thread(
            target=tier.put,
            args=(Shard("job", 2, rank, layout, memoryview(parts[rank])), lambda _: None),
        )
        for rank, tier in enumerate(tiers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert VersionFolder(tmp_path).complete("job", 2) is not None
    assert not caplog.records
