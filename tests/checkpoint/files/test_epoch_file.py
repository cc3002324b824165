"""Generations in a folder: what an older one writes never becomes visible, at any time."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from support.checkpoint.images import manifest_of, noise, write_to_folder

from deepvm.checkpoint.files.version_dir import EpochFile, VersionFolder
from deepvm.errors import CheckpointError


def write(folder: VersionFolder, version: int) -> None:
    data = noise(4096, version)
    write_to_folder(folder, bytes(data), manifest_of(data, version=version))


def test_a_newer_generation_shuts_out_older_ones(tmp_path: Path) -> None:
    old, new = VersionFolder(tmp_path), VersionFolder(tmp_path)
    old.begin("job", 1)
    write(old, 1)
    new.begin("job", 2)
    with pytest.raises(CheckpointError, match="generation 1 is over: 2 has started"):
        write(old, 2)
    with pytest.raises(CheckpointError, match="generation 1 is over"):
        VersionFolder(tmp_path).begin("job", 1)
    write(new, 3)
    assert [m.version for m in new.versions("job")] == [3, 1]
    assert not [p for p in tmp_path.iterdir() if ".tmp" in p.name]


def test_a_run_without_a_number_is_not_shut_out(tmp_path: Path) -> None:
    VersionFolder(tmp_path).begin("job", 7)
    by_hand = VersionFolder(tmp_path)
    write(by_hand, 1)
    assert [m.version for m in by_hand.versions("job")] == [1]


def test_other_jobs_have_generations_of_their_own(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    folder.begin("other", 9)
    folder.begin("job", 1)
    write(folder, 1)
    assert EpochFile(tmp_path, "other").read() == 9 and EpochFile(tmp_path, "job").read() == 1


def test_a_newer_generation_waits_for_a_commit_under_way(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path, "job")
    epochs.begin(1)
    began = threading.Event()

    def begin() -> None:
        EpochFile(tmp_path, "job").begin(2)
        began.set()

    with epochs.current(1):
        thread = threading.Thread(target=begin)
        thread.start()
        assert not began.wait(0.2)
    thread.join(5)
    assert began.is_set() and epochs.read() == 2


def test_a_damaged_number_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".job.epoch").write_text("two")
    with pytest.raises(CheckpointError, match="no number of a generation"):
        EpochFile(tmp_path, "job").begin(3)


def test_what_fails_beside_a_lock_is_not_blamed_on_it(tmp_path: Path) -> None:
    """The writer of the version says which file could not be written, and may try again."""
    epochs = EpochFile(tmp_path, "job")
    epochs.begin(1)
    with pytest.raises(OSError, match="No space"), epochs.current(1):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "version")
    EpochFile(tmp_path, "job").begin(2)  # it is released
