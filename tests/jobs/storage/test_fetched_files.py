"""A folder of the user's: files appear whole, and none is replaced that a fetch has not brought."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deepvm.errors import DamagedError, DataError
from deepvm.jobs.storage.fetched_files import HIDDEN, NEW, REPLACED, SAME, BroughtFile, FetchFolder


@contextmanager
def opened(folder: Path, job: str = "job") -> Iterator[FetchFolder]:
    found = FetchFolder(folder, job)
    with found.opened():
        yield found


def bring(folder: Path, name: str, data: bytes, kept_s: float = 1.0, job: str = "job") -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    with opened(folder, job) as found:
        return found.bring(BroughtFile(name, sha256, job, kept_s), len(data), [data])


def visible(folder: Path) -> set[str]:
    files = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {str(p) for p in files if p.parts[0] != HIDDEN}


def test_twice_and_a_newer_one(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert bring(folder, "logs/a", b"1") == NEW
    assert bring(folder, "logs/a", b"1", 2.0) == SAME
    assert bring(folder, "logs/a", b"2", 2.0) == REPLACED
    assert (folder / "logs" / "a").read_bytes() == b"2"
    with pytest.raises(DataError, match="is newer than what would come"):
        bring(folder, "logs/a", b"1", 1.0)
    assert (folder / "logs" / "a").read_bytes() == b"2"


def test_the_users_own_file_stays(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"mine")
    with pytest.raises(DataError, match="of no earlier fetch; move it"):
        bring(tmp_path, "model.pt", b"theirs")
    assert (tmp_path / "model.pt").read_bytes() == b"mine"
    (tmp_path / "model.pt").unlink()
    bring(tmp_path, "model.pt", b"theirs")
    (tmp_path / "model.pt").write_bytes(b"changed")  # by the user, since
    with pytest.raises(DataError, match="of no earlier fetch"):
        bring(tmp_path, "model.pt", b"newer", 9.0)


def test_another_jobs_file_stays(tmp_path: Path) -> None:
    bring(tmp_path, "model.pt", b"1", job="one")
    with pytest.raises(DataError, match="is there already, and is of one"):
        bring(tmp_path, "model.pt", b"2", 9.0, job="two")


@pytest.mark.parametrize("name", ["../up", "/etc/x", f"{HIDDEN}/brought", "a/../../b", "link/x"])
def test_no_name_leads_out(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="is not brought"):
        bring(folder, name, b"1")
    assert not visible(folder) and not (tmp_path / "x").exists()


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    folder, other = tmp_path / "results", tmp_path / "other"
    folder.mkdir()
    other.write_bytes(b"1")
    (folder / "model.pt").symlink_to(other)
    with pytest.raises(DataError, match="is a link"):
        bring(folder, "model.pt", b"2")
    assert other.read_bytes() == b"1"


def test_a_folder_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="a folder has this name"):
        bring(tmp_path, "a", b"1")
    (tmp_path / "b").write_bytes(b"1")
    with pytest.raises(DataError, match="b/c is not brought"):
        bring(tmp_path, "b/c", b"1")


@pytest.mark.parametrize(("size", "data"), [(3, b"abd"), (2, b"abc"), (10**9, b"ab")])
def test_other_bytes_never_get_the_name(tmp_path: Path, size: int, data: bytes) -> None:
    new = BroughtFile("a", hashlib.sha256(b"abc").hexdigest(), "job", 1.0)
    with opened(tmp_path) as found, pytest.raises(DamagedError):
        found.bring(new, size, [data])
    assert not visible(tmp_path)


def test_a_full_disk(tmp_path: Path) -> None:
    reason = " TB, and 67.1 MB that stay free, do not fit on its disk, which has .* free; make"
    with opened(tmp_path) as found, pytest.raises(DataError, match=reason):
        found.check_space(10**18)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_fetch_of_nothing_leaves_nothing(tmp_path: Path, *, is_new: bool) -> None:
    folder = tmp_path / "results"
    if not is_new:
        folder.mkdir()
    with opened(folder):
        assert (folder / HIDDEN / "lock").exists()
    assert not (folder / HIDDEN).exists() and folder.exists() != is_new


def test_no_room_in_the_middle(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"ab"
        raise OSError(28, "No space left on device")

    sha256 = hashlib.sha256(b"abc").hexdigest()
    with opened(tmp_path) as found, pytest.raises(DataError, match="No space left.*make space"):
        found.bring(BroughtFile("a", sha256, "job", 1.0), 3, pieces())
    assert not visible(tmp_path) and not list((tmp_path / HIDDEN).glob("parts/*"))


def test_one_fetch_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(DataError, match="another 'deepvm jobs fetch'"):
        bring(tmp_path, "a", b"1")


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """As one of another user's, where an earlier fetch has left its own files."""
    (tmp_path / HIDDEN / "brought").mkdir(parents=True)
    with pytest.raises(DataError, match="Is a directory.*name another one"):
        bring(tmp_path, "a", b"1")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="name another one"):
        bring(tmp_path / "file" / "results", "a", b"1")


KILLED = """
import hashlib, os, signal, sys
from pathlib import Path
from deepvm.jobs.storage.fetched_files import BroughtFile, FetchFolder

folder, moment = Path(sys.argv[1]), sys.argv[2]
data = b"new" * 100_000
replace = os.replace

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def pieces():
    yield data[:1000]
    if moment == "middle":
        killed()
    yield data[1000:]

def replaced(part, path):
    if moment == "before":
        killed()
    replace(part, path)
    killed()

os.replace = replaced
found = FetchFolder(folder, "job")
with found.opened():
    sha256 = hashlib.sha256(data).hexdigest()
    found.bring(BroughtFile("model.pt", sha256, "job", 2.0), len(data), pieces())
"""


@pytest.mark.parametrize("moment", ["middle", "before", "after"])
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path, moment: str) -> None:
    bring(tmp_path, "model.pt", b"old", 1.0)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], timeout=60)
    assert done.returncode == -signal.SIGKILL
    new = b"new" * 100_000
    assert (tmp_path / "model.pt").read_bytes() == (new if moment == "after" else b"old")
    # The next fetch brings the newest, and the one after it replaces that
    assert bring(tmp_path, "model.pt", new, 2.0) == (SAME if moment == "after" else REPLACED)
    assert bring(tmp_path, "model.pt", b"newest", 3.0) == REPLACED
    assert visible(tmp_path) == {"model.pt"} and not os.path.exists(tmp_path / HIDDEN / "parts")
