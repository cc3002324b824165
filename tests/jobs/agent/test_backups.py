"""Backups: whole or not at all, the newest that can be read, nothing of an older generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepvm.errors import CheckpointError
from deepvm.jobs.agent.backups import KEEP, Backups, Others, open_backups
from deepvm.jobs.storage.backup_store import Part, PartStatus


def backups(tmp_path: Path, name: str = "here") -> Backups:
    return Backups(open_backups([(tmp_path / "tier").as_uri()], "job"), tmp_path / name)


def upload(to: Backups, path: Path, step: int, *, rank: int = 0, epoch: int = 1) -> str:
    """Upload a file or folder; returns the error, or an empty text."""
    done, said = threading.Event(), list[str]()

    def told(_: int, error: str, __: float) -> None:
        said.append(error)
        done.set()

    assert to.add(path, Part(step, rank, epoch), told, Others(rank + 1)) == {}
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
    assert (
        found is not None and found.step == 4 and (found.path / "deep" / "a").read_bytes() == b"a"
    )


def test_old_ones_are_removed_and_a_damaged_one_is_skipped(tmp_path: Path) -> None:
    to, file = backups(tmp_path), tmp_path / "mine"
    for step in range(1, 6):
        file.write_text(str(step))
        assert upload(to, file, step) == ""
    folders = sorted((tmp_path / "tier" / "job" / "backups").glob("0*"))
    assert len(folders) == KEEP or _wait(
        lambda: len(list((tmp_path / "tier" / "job" / "backups").glob("0*"))) == KEEP
    )
    folders = sorted((tmp_path / "tier" / "job" / "backups").glob("0*"))
    (folders[-1] / "rank-0" / "mine").write_text("?")
    found = to.latest(0, 1)
    assert found is not None and found.step == 4 and found.path.read_text() == "4"
    (folders[-2] / "rank-0" / "mine").unlink()
    # Never silently from step 0
    with pytest.raises(CheckpointError, match="no backup can be read"):
        to.latest(0, 1)


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("1")
    assert backups(tmp_path).latest(0, 2) is None  # generation 2 has started
    assert "generation 1 is over" in upload(backups(tmp_path), file, 9, epoch=1)
    assert backups(tmp_path).latest(0, 2) is None


def test_rank_0_waits_for_the_others(tmp_path: Path) -> None:
    """They are on other machines, and it knows of them by what they put beside its part."""
    agents, said = [backups(tmp_path, f"m{rank}") for rank in (0, 1, 2)], list[tuple[int, str]]()
    for rank in (0, 1, 2):
        (tmp_path / f"r{rank}").write_text(str(rank))
    everybody = Others(3, all_say=True)
    agents[0].add(
        tmp_path / "r0", Part(5, 0, 1), lambda step, error, _: said.append((step, error)), everybody
    )
    assert not _wait(lambda: bool(said), 0.3) and agents[0].under_way == 1
    agents[2].nothing(Part(5, 2, 1))
    assert not _wait(lambda: bool(said), 0.3)
    assert upload(agents[1], tmp_path / "r1", 5, rank=1) == ""
    assert _wait(lambda: said == [(5, "")]) and _wait(lambda: not agents[0].under_way)
    found = [agents[rank].latest(rank, 1) for rank in (0, 1)]
    assert [f.path.read_text() for f in found if f is not None] == ["0", "1"]
    with pytest.raises(CheckpointError, match="none for rank 2"):
        agents[2].latest(2, 1)


def test_a_rank_that_cannot_save_fails_the_backup_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, said = backups(tmp_path, "m0"), backups(tmp_path, "m1"), list[str]()
    (tmp_path / "r").write_text("1")
    one.add(
        tmp_path / "r",
        Part(5, 0, 1),
        lambda _, error, __: said.append(error),
        Others(2, all_say=True),
    )

    def full(path: Path, part: Part) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(other._store, "save", full)
    assert "No space left" in upload(other, tmp_path / "r", 5, rank=1)
    assert _wait(lambda: said == ["step 5: no parts of ranks [1]"])
    assert other.failure == "No space left on device" and one.failure == said[0]
    assert one.latest(0, 1) is None


@pytest.mark.parametrize("trouble", ["no file", "no place"])
def test_a_rank_that_cannot_begin_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Rank 0 cannot know that it wanted to save: sealed without it, the next start would give it
    the part of rank 0.
    """
    one, other = backups(tmp_path, "m0"), backups(tmp_path, "m1")
    (tmp_path / "r").write_text("0")
    store, there = other._store, threading.Event()
    assert store is not None
    set_status = store.set_status

    def set_if_there(part: Part, status: PartStatus) -> bool:
        if not there.is_set():
            raise OSError("the network is gone")
        return set_status(part, status)

    monkeypatch.setattr(store, "set_status", set_if_there)
    path = tmp_path / ("r" if trouble == "no place" else "missing")
    found = other.add(path, Part(5, 1, 1), lambda *_: None, Others(2))
    assert ("the network is gone" if trouble == "no place" else "there is no ") in found["error"]
    assert upload(one, tmp_path / "r", 5) == ""
    there.set()
    assert _wait(lambda: not store.whole())
    assert one.latest(0, 1) is None


def test_a_rank_that_says_nothing_is_waited_for_until_the_machine_goes(tmp_path: Path) -> None:
    one, said = backups(tmp_path), list[str]()
    (tmp_path / "r").write_text("1")
    others = Others(2, all_say=True, limit_s=time.time() + 0.3)
    one.add(tmp_path / "r", Part(5, 0, 1), lambda _, error, __: said.append(error), others)
    assert _wait(lambda: said == ["step 5: no parts of ranks [1]"], 10) and one.latest(0, 1) is None


def test_where_the_controller_waits_no_more_rank_0_does_not_either(tmp_path: Path) -> None:
    """Else the end of its training would be told when the limit of a save has passed that nobody
    wants.
    """
    one, said, given_up = backups(tmp_path), list[str](), list[bool]()
    (tmp_path / "r").write_text("1")
    others = Others(2, all_say=True, given_up=lambda: bool(given_up))
    one.add(tmp_path / "r", Part(5, 0, 1), lambda _, error, __: said.append(error), others)
    assert not _wait(lambda: bool(said), 0.5)
    given_up.append(True)
    assert _wait(lambda: said == [""]) and not one.under_way
    assert one.latest(0, 1) is not None


def test_a_rank_that_is_late_seals_again(tmp_path: Path) -> None:
    """Rank 0 has gone on, or ended, before another rank begins: ranks without a common step drift
    apart.
    """
    one, other = backups(tmp_path, "m0"), backups(tmp_path, "m1")
    for rank in (0, 1):
        (tmp_path / f"r{rank}").write_text(str(rank))
    assert upload(one, tmp_path / "r0", 5) == ""
    assert upload(other, tmp_path / "r1", 5, rank=1) == ""
    assert [k.ranks for k in one._store.whole()] == [2]  # type: ignore[union-attr]
    found = other.latest(1, 1)
    assert found is not None and found.path.read_text() == "1"


def test_a_generation_that_is_over_is_waited_for_no_more(tmp_path: Path) -> None:
    one, said = backups(tmp_path), list[str]()
    (tmp_path / "r").write_text("1")
    one.add(
        tmp_path / "r",
        Part(5, 0, 1),
        lambda _, error, __: said.append(error),
        Others(2, all_say=True),
    )
    assert not _wait(lambda: bool(said), 0.2)
    one.forget(2)
    assert _wait(lambda: said == ["generation 1 is over: 2 has started"]) and not one.failure


def test_without_a_place(tmp_path: Path) -> None:
    to = Backups(open_backups(["tcp://node:1"], "job"), tmp_path)
    assert "file://" in to.add(tmp_path, Part(1, 0, 1), lambda *_: None)["error"]
    assert (
        "there is no"
        in backups(tmp_path).add(tmp_path / "none", Part(1, 0, 1), lambda *_: None)["error"]
    )


def _wait(done: Callable[[], bool], limit_s: float = 10.0) -> bool:
    until_s = time.monotonic() + limit_s
    while not done() and time.monotonic() < until_s:
        time.sleep(0.01)
    return done()
