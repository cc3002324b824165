"""Several processes and one folder: nobody takes what another is writing for what a killed one
left.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.images import manifest_of, names, noise, plain_shard, write_to_folder
from support.checkpoint.memory_nodes import make_image, make_layout, running
from support.checkpoint.memory_nodes import put as node_put
from support.checkpoint.memory_nodes import tier as node_tier
from support.lock_holder import holder

from deepvm.checkpoint.files import version_dir
from deepvm.checkpoint.files import version_dir as folder_module
from deepvm.checkpoint.files.commit_record import UPCOMING, settle, verify
from deepvm.checkpoint.files.version_dir import NODE, WRITERS, VersionFolder, WriterLock
from deepvm.checkpoint.format.manifest import SUFFIX, Level
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.errors import CheckpointError


def put(tier: FileTier, version: int, seed: int = 0) -> list[Level]:
    levels: list[Level] = []
    tier.put(plain_shard(noise(1000, seed or version), version), levels.append)
    return levels


def level_of(tier: FileTier) -> Level:
    return Level.LOCAL if tier.volatile else Level.DURABLE


class TestLocks:
    def test_a_regular_file_that_may_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NFS locks nothing else exclusively."""
        locked: list[Path] = []
        real = fcntl.flock

        def seen(descriptor: int, how: int) -> None:
            assert stat.S_ISREG(os.fstat(descriptor).st_mode)
            assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            locked.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            real(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", seen)
        store = FileTier(tmp_path)
        store.open_for_writing()
        assert set(locked) == {tmp_path / NODE, tmp_path / WRITERS}
        with pytest.raises(CheckpointError, match="another memory node"):
            FileTier(tmp_path).open_for_writing()
        store.close()
        again = FileTier(tmp_path)
        again.open_for_writing()
        assert VersionFolder(tmp_path).found() == () and names(tmp_path) == [NODE]
        again.close()

    def test_no_descriptor_is_left(self, tmp_path: Path) -> None:
        for _ in range(3):
            tier, store = FileTier(tmp_path), FileTier(tmp_path)
            put(tier, 1)
            store.open_for_writing()
            store.close()
            del tier, store
        opened = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one of the listing itself
                opened.append(os.readlink(f"/proc/self/fd/{number}"))
        assert opened and not [name for name in opened if name.startswith(str(tmp_path))]

    def test_writing_does_not_depend_on_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(37, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
        tier = FileTier(tmp_path)
        assert put(tier, 1) == put(tier, 2) == [level_of(tier)]
        assert len([m for m in caplog.messages if "No locks available" in m]) == 1
        with pytest.raises(CheckpointError, match="No locks available"):
            FileTier(tmp_path).open_for_writing()
        tier.close()

    def test_who_clears_up_for_long_stops_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(version_dir, "_WRITERS_LIMIT_S", 0.05)
        with holder(tmp_path / WRITERS, "alone") as process:
            tier = FileTier(tmp_path)
            assert put(tier, 1) == [level_of(tier)]
            process.kill()
        assert "for a long time" in caplog.text
        assert put(tier, 2) == [level_of(tier)]
        with WriterLock(tmp_path).alone() as alone:
            assert not alone, "it has the lock by now"
        tier.close()


class TestSweeping:
    def test_a_node_that_starts_beside_a_trainer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tier, starts = FileTier(tmp_path), []
        put(tier, 1)

        def node_starts(label: str) -> None:
            if label == "data.before-rename":
                store = FileTier(tmp_path)
                store.open_for_writing()
                store.close()
                starts.append(label)

        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "point", node_starts)
            for version in (1, 2):  # in the place of another one, and new
                assert put(tier, version, seed=9) == [level_of(tier)]
        assert len(starts) == 2
        assert [verify(tier.file("job", v)).version for v in (1, 2)] == [1, 2]
        tier.close()

    def test_what_a_killed_trainer_left_goes_when_the_node_starts(self, tmp_path: Path) -> None:
        left = tmp_path / ".job-000000000009.pt.0123abcd.tmp"
        with holder(tmp_path / WRITERS, "shared") as trainer:
            left.write_bytes(b"half")
            store = FileTier(tmp_path)
            store.open_for_writing()
            assert left.exists()
            store.close()
            trainer.send_signal(signal.SIGKILL)
        store.open_for_writing()
        assert not left.exists()
        store.close()

    @pytest.mark.parametrize("who", ["node", "trainer"])
    def test_what_lost_its_record_stays_as_long_as_it_would_have(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
    ) -> None:
        """No writer leaves it so, so somebody was promised it.

        A removal that was interrupted leaves old ones.
        """
        folder = VersionFolder(tmp_path)
        for version in (1, 2, 3, 9):
            data = noise(1000, version)
            write_to_folder(folder, data, manifest_of(data, version=version))
        for version in (1, 2, 9):
            (tmp_path / f"job-{version:012d}.pt{SUFFIX}").unlink()
        # Its writer was killed before the record got its usual name: it is complete.
        record = tmp_path / f"job-000000000003.pt{SUFFIX}"
        record.rename(tmp_path / f".job-000000000003.pt{SUFFIX}{UPCOMING}")
        mine = tmp_path / "notes-1.pt"
        mine.write_bytes(b"mine")
        del folder
        later = time.time() + 3700
        monkeypatch.setattr(time, "time", lambda: later)

        def write(version: int) -> set[int]:
            if who == "node":
                with running(persist=tmp_path, keep=2) as node:
                    trainer = node_tier(node)
                    layout = make_layout(1000)
                    assert node_put(trainer, version, layout, make_image(layout, version)).wait(
                        Level.DURABLE
                    )
                    trainer.close()
            else:
                tier = FileTier(tmp_path, keep=2)
                put(tier, version)
                tier.close()
            return {f.version for f in VersionFolder(tmp_path).found()}

        assert write(10) == {3, 9, 10}
        assert verify(tmp_path / "job-000000000003.pt").version == 3 and record.exists()
        assert write(11) == {10, 11}
        assert mine.read_bytes() == b"mine"

    def test_what_a_killed_trainer_left_goes_when_the_next_one_writes(self, tmp_path: Path) -> None:
        left = tmp_path / ".job-000000000009.pt.0123abcd.tmp"
        with holder(tmp_path / WRITERS, "shared") as trainer:
            left.write_bytes(b"half")
            tier = FileTier(tmp_path)
            put(tier, 1)
            tier.close()
            assert left.exists(), "another one is at work"
            trainer.send_signal(signal.SIGKILL)
        tier = FileTier(tmp_path)
        assert tier.versions("job") and left.exists(), "who only reads removes nothing"
        put(tier, 2)
        assert names(tmp_path) == [f"job-{v:012d}.pt{s}" for v in (1, 2) for s in ("", SUFFIX)]
        left.write_bytes(b"ours")
        put(tier, 3)
        assert left.exists(), "its own files are on their way"
        tier.close()


@pytest.mark.parametrize("other", ["begins", "ends"])
@pytest.mark.parametrize("label", ["data.before-rename", "replaced.before-rename"])
def test_two_writers_of_one_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, other: str
) -> None:
    """The second takes the record that the first has ready for what a killed writer left."""
    tier, second = FileTier(tmp_path), FileTier(tmp_path)
    put(tier, 1)

    def between(here: str) -> None:
        if here != label:
            return
        patch.undo()
        if other == "begins":
            settle(tier.file("job", 1))
        else:
            put(second, 1, seed=3)

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "point", between)
        assert put(tier, 1, seed=2) == [level_of(tier)]
    # The last to give its file the name
    stays = 3 if (label, other) == ("replaced.before-rename", "ends") else 2
    assert verify(tier.file("job", 1)).crcs == manifest_of(noise(1000, stays)).crcs
    assert [m.version for m in tier.versions("job")] == [1]
    assert names(tmp_path) == ["job-000000000001.pt", "job-000000000001.pt.json"]
    tier.close()
    second.close()


class TestOtherTrainings:
    def warnings(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        found = [
            r.getMessage()
            for r in caplog.records
            if r.levelno >= logging.WARNING and "DEEPVM_JOB" in r.message
        ]
        caplog.clear()
        return found

    def test_two_under_one_name_are_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = FileTier(tmp_path, keep=2), FileTier(tmp_path, keep=2)
        put(one, 10)
        put(one, 20)
        put(other, 5000)
        assert self.warnings(caplog) == [], "to go on from an older version is usual"
        put(one, 30)
        (said,) = self.warnings(caplog)
        assert "checkpoints of job that this run has not written: 5000." in said
        put(one, 40)
        assert self.warnings(caplog) == [], "once"
        for tier in (one, other):
            tier.close()

    def test_newer_ones_at_the_start(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = FileTier(tmp_path, keep=2), FileTier(tmp_path, keep=2)
        put(one, 5000)
        assert self.warnings(caplog) == []
        put(other, 10)
        assert "5000" in self.warnings(caplog)[0]
        for tier in (one, other):
            tier.close()

    def test_one_training_alone_is_not(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for first in (1, 7):
            tier = FileTier(tmp_path, keep=2, every=3)
            for version in range(first, first + 6):
                put(tier, version)
            put(tier, version)  # the last save once more
            tier.close()
        assert self.warnings(caplog) == []
