"""Backups: whole or not at all, the newest that can be read, nothing of an older generation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deepvm.errors import CheckpointError
from deepvm.jobs.agent.backups import KEEP, Backups
from deepvm.jobs.storage.backup_store import Part


def backups(tmp_path: Path, name: str = "here") -> Backups:
    return Backups.at([(tmp_path / "tier").as_uri()], "job", tmp_path / name)


def upload(to: Backups, path: Path, step: int, *, rank: int = 0, epoch: int = 1) -> str:
    """Upload a file or folder; returns the error, or an empty text."""
    done, said = threading.Event(), list[str]()

    def told(_: int, error: str) -> None:
        said.append(error)
        done.set()

    assert to.add(path, Part(step, rank, epoch), told) == {}
    assert done.wait(10)
    return said[0]


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    one, many = tmp_path / "mine.pt", tmp_path / "many"
    one.write_bytes(b"weights")
    (many / "deep").mkdir(parents=True)
    (many / "deep" / "a").write_bytes(b"a")
    to = backups(tmp_path)
    assert to.latest(0, 1) is None
    assert upload(to, one, 3) == ""
    found = backups(tmp_path, "there").latest(0, 2)
    assert found is not None and found.step == 3 and found.path.read_bytes() == b"weights"
    assert upload(backups(tmp_path), many, 4, epoch=2) == ""
    found = backups(tmp_path, "there").latest(0, 2)
    assert found is not None and found.step == 4 and (found.path / "deep" / "a").read_bytes() == b"a"


def test_old_ones_are_removed_and_a_damaged_one_is_skipped(tmp_path: Path) -> None:
    to, file = backups(tmp_path), tmp_path / "mine"
    for step in range(1, 6):
        file.write_text(str(step))
        assert upload(to, file, step) == ""
    folders = sorted((tmp_path / "tier" / "job" / "backups").glob("0*"))
    assert len(folders) == KEEP or _wait(lambda: len(list((tmp_path / "tier" / "job" / "backups").glob("0*"))) == KEEP)
    folders = sorted((tmp_path / "tier" / "job" / "backups").glob("0*"))
    (folders[-1] / "rank-0" / "mine").write_text("?")
    found = to.latest(0, 1)
    assert found is not None and found.step == 4 and found.path.read_text() == "4"
    (folders[-2] / "rank-0" / "mine").unlink()
    with pytest.raises(CheckpointError, match="no backup can be read"):  # never silently from step 0
        to.latest(0, 1)


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("1")
    assert backups(tmp_path).latest(0, 2) is None  # generation 2 has begun
    assert "generation 1 is over" in upload(backups(tmp_path), file, 9, epoch=1)
    assert backups(tmp_path).latest(0, 2) is None


def test_ranks_have_their_own(tmp_path: Path) -> None:
    to = backups(tmp_path)
    for rank in (1, 0):
        (tmp_path / f"r{rank}").write_text(str(rank))
        assert upload(to, tmp_path / f"r{rank}", 5, rank=rank) == ""
    found = [to.latest(rank, 1) for rank in (0, 1, 2)]
    assert [f.path.read_text() for f in found if f is not None] == ["0", "1", "0"]


def test_without_a_place(tmp_path: Path) -> None:
    to = Backups.at(["tcp://node:1"], "job", tmp_path)
    assert "file://" in to.add(tmp_path, Part(1, 0, 1), lambda *_: None)["error"]
    assert "there is no" in backups(tmp_path).add(tmp_path / "none", Part(1, 0, 1), lambda *_: None)["error"]


def _wait(done: Callable[[], bool]) -> bool:
    return any(done() or threading.Event().wait(0.05) for _ in range(200))
