"""Locks that the kernel releases with their process."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest
from support.lock_holder import holder

from deepvm.io.file_lock import FileLock


@pytest.mark.parametrize(
    ("theirs", "mine", "free"),
    [("shared", True, True), ("shared", False, False), ("", True, False)],
)
def test_another_process(tmp_path: Path, theirs: str, mine: bool, free: bool) -> None:
    lock = FileLock(tmp_path / "lock")
    with holder(tmp_path / "lock", theirs) as process:
        assert lock.take(shared=mine) is lock.held is free
        lock.release()
        process.kill()
    assert lock.take(shared=mine), "it goes with its holder"
    lock.release()


def test_it_waits_for_as_long_as_it_is_told(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.take(shared=False)
    assert not second.take(shared=True, limit_s=0.05)
    threading.Timer(0.05, first.release).start()
    assert second.take(shared=True, limit_s=30) and not first.held
    second.release()


def test_a_regular_file_that_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks nothing else exclusively.

    Nothing is created before the lock is taken, and links are not followed.
    """
    lock = FileLock(tmp_path / "lock", 0o640)
    assert not lock.held and not (tmp_path / "lock").exists()
    assert lock.take(shared=False)
    assert stat.S_ISREG(os.fstat(lock._descriptor).st_mode)
    assert fcntl.fcntl(lock._descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    assert (tmp_path / "lock").stat().st_mode & 0o137 == 0
    lock.release()
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        FileLock(tmp_path / "link").take(shared=True)


def test_its_mode_can_be_changed(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.take(shared=False) and first.take(shared=True) and second.take(shared=True)
    assert not first.take(shared=False) and not first.held, (
        "it was released before it was asked for"
    )
    second.release()
    assert first.take(shared=False)
    first.release()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        lock = FileLock(tmp_path / "lock")
        assert lock.take(shared=False)
        del lock  # releases it
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = FileLock(tmp_path / "lock")
    with pytest.raises(OSError, match="No locks"):
        lock.take(shared=True)
    assert not lock.held
    lock.release()
