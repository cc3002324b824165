"""Machines that lose power at any moment: what was acknowledged is on the disk, and nothing half is
ever shown.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.crashing import Broken, Filter, Recorder, crash_everywhere
from support.checkpoint.images import manifest_of, noise, plain_shard, write_to_folder

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import record_of
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import NewVersion, Shard
from deepvm.checkpoint.tiers.file import FileTier

PIECE = 64
SIZE = 3 * PIECE + 17


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_write, "PIECE", PIECE)
    # Files are overwritten in place, as on a disk of one's own, wherever the tests run.
    monkeypatch.setattr(durable_write, "can_reuse", lambda folder: True)
    monkeypatch.setattr(durable_write, "is_unused", lambda path: True)


def data_of(version: int, run: int = 0) -> bytearray:
    return noise(SIZE, 100 * run + version)


def write_earlier(folder: Path, *versions: int) -> None:
    """Versions of an earlier run, safely on the disk."""
    folder.mkdir()
    for version in versions:
        data = data_of(version, run=1)
        write_to_folder(VersionFolder(folder), data, manifest_of(data, version=version))


def record(
    folder: Path, patch: pytest.MonkeyPatch, lost: Filter = lambda call, kind: False
) -> Recorder:
    folder.mkdir(exist_ok=True)
    recorder = Recorder(folder, patch, lost)
    for found in VersionFolder(folder).versions("job"):
        recorder.promised[found.version] = bytes(data_of(found.version, run=1))
    return recorder


def save(recorder: Recorder, tier: FileTier, version: int) -> None:
    data = data_of(version)
    recorder.begin(version, bytes(data))
    tier.put(plain_shard(data, version), lambda level: recorder.promise(version, bytes(data)))


Way = Callable[[Path, pytest.MonkeyPatch, Filter], tuple[Recorder, int]]


def new_versions(home: Path, patch: pytest.MonkeyPatch, lost: Filter) -> tuple[Recorder, int]:
    """A run that keeps two versions, each over the file of one that went."""
    recorder = record(home / "versions", patch, lost)
    tier = FileTier(home / "versions", keep=2)
    for version in range(1, 6):
        save(recorder, tier, version)
    tier.close()
    return recorder, 2


def the_same_version_again(
    home: Path, patch: pytest.MonkeyPatch, lost: Filter
) -> tuple[Recorder, int]:
    """A run that began anew from an older version comes to the numbers of the earlier one."""
    write_earlier(home / "versions", 2, 3)
    recorder = record(home / "versions", patch, lost)
    tier = FileTier(home / "versions")
    for version in (2, 3):
        save(recorder, tier, version)
    return recorder, 1000


def two_ranks(home: Path, patch: pytest.MonkeyPatch, lost: Filter) -> tuple[Recorder, int]:
    """Each writes its part into one file; of version 2 there is one of an earlier run."""
    write_earlier(home / "versions", 2)
    recorder = record(home / "versions", patch, lost)
    layout = Layout(SIZE, ((Segment(0, 100),), (Segment(100, SIZE - 100),)))
    tiers = [FileTier(home / "versions", session="s") for _ in range(2)]
    for version in (1, 2):
        data = data_of(version)
        recorder.begin(version, bytes(data))

        def put(rank: int, version: int = version, data: bytearray = data) -> None:
            shard = Shard("job", version, rank, layout, memoryview(data))
            tiers[rank].put(shard, lambda level: recorder.promise(version, bytes(data)))

        threads = [threading.Thread(target=put, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert version in recorder.promised
    return recorder, 1000


WAYS = (new_versions, the_same_version_again, two_ranks)


def crash(
    way: Way, home: Path, patch: pytest.MonkeyPatch, lost: Filter = lambda call, kind: False
) -> int:
    with patch.context() as context:
        recorder, keep = way(home, context, lost)
    assert recorder.promised
    return crash_everywhere(recorder, home / "after", keep)


@pytest.mark.parametrize("way", WAYS)
def test_no_crash_breaks_a_promise(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crash(way, tmp_path, monkeypatch) >= 50


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["data", "record", "folder"])
def test_every_fsync_is_needed(
    kind: str, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Broken):
        crash(way, tmp_path, monkeypatch, lambda call, what: what == kind)


def rename_before_fsync(patch: pytest.MonkeyPatch) -> None:
    def place(path: Path, data: Any, final: Any, *, direct: bool, prefix: str) -> None:
        for _ in final:
            pass
        target = path.with_name(path.name[1:-13])
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(descriptor, len(data))
        os.pwrite(descriptor, data, 0)
        os.replace(path, target)
        os.fsync(descriptor)
        os.close(descriptor)

    patch.setattr(durable_write, "write_file", place)
    patch.setattr(VersionFolder, "_rename", staticmethod(lambda hidden, target, prefix: None))


def record_before_data(patch: pytest.MonkeyPatch) -> None:
    def publish(self: VersionFolder, hidden: Path, target: Path, written: Any) -> None:
        self._commit(record_of(target), written())
        self._rename(hidden, target, "data")
        self._sync("data")

    patch.setattr(VersionFolder, "_publish", publish)


def withdrawn_before_it_is_replaced(patch: pytest.MonkeyPatch) -> None:
    """As it was once: for a moment there is neither the old version nor the new one."""

    def publish(self: VersionFolder, hidden: Path, target: Path, written: Any) -> None:
        manifest = written()
        self._withdraw(record_of(target))
        self._rename(hidden, target, "data")
        self._sync("data")
        self._commit(record_of(target), manifest)

    patch.setattr(VersionFolder, "_publish", publish)


def acknowledged_first(patch: pytest.MonkeyPatch) -> None:
    put = FileTier.put

    def early(self: FileTier, shard: Shard, told: Any) -> None:
        told(None)
        put(self, shard, told)

    patch.setattr(FileTier, "put", early)


def old_versions_go_first(patch: pytest.MonkeyPatch) -> None:
    """Room is made before the new version is there."""
    write = VersionFolder.write

    def hasty(self: VersionFolder, new: NewVersion) -> None:
        for found in self.versions(new.job)[1:]:
            self.delete(new.job, found.version, spare=True)
        write(self, new)

    patch.setattr(VersionFolder, "write", hasty)


def a_spare_keeps_its_record(patch: pytest.MonkeyPatch) -> None:
    """The old record vouches for the bytes of the version that is written over it."""

    def delete(self: VersionFolder, job: str, version: int, *, spare: bool = False) -> None:
        target = self.file(job, version)
        os.replace(target, self._spare(job))
        self._withdraw(record_of(target))

    patch.setattr(VersionFolder, "delete", delete)
    patch.setattr(VersionFolder, "_withdraw", lambda self, record: record.unlink(missing_ok=True))


@pytest.mark.parametrize(
    ("mutation", "way"),
    [
        (rename_before_fsync, the_same_version_again),
        (record_before_data, the_same_version_again),
        (withdrawn_before_it_is_replaced, the_same_version_again),
        (withdrawn_before_it_is_replaced, two_ranks),
        (acknowledged_first, new_versions),
        (old_versions_go_first, new_versions),
        (a_spare_keeps_its_record, new_versions),
    ],
)
def test_a_wrong_order_is_seen(
    mutation: Callable[[pytest.MonkeyPatch], None],
    way: Way,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        mutation(patch)
        with pytest.raises(Broken):
            crash(way, tmp_path, monkeypatch)
