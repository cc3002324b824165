"""A folder of versions when all goes well, and what others may have put into it."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.checkpoint.images import manifest_of, names, noise, write_to_folder
from support.effort import examples

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import read_manifest, verify
from deepvm.checkpoint.files.file_names import check_job, parse_name
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import SUFFIX, NewVersion
from deepvm.errors import CheckpointError, DamagedError, RequestError

PIECE = 65536


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file has many."""
    monkeypatch.setattr(durable_write, "PIECE", PIECE)


JOBS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
VERSIONS = st.integers(0, 2**63 - 1)


def write(
    folder: VersionFolder, data: bytes | bytearray, job: str = "job", version: int = 1
) -> Path:
    return write_to_folder(folder, data, manifest_of(data, job, version))


def swept(folder: VersionFolder, older_than_s: float = 0) -> int:
    before = len(folder.leftovers())
    folder.sweep(older_than_s)
    return before - len(folder.leftovers())


def versions(folder: VersionFolder, job: str = "job") -> list[int]:
    return [m.version for m in folder.versions(job)]


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "a-b", "a-000000000001"]), st.integers(0, 9)),
        st.binary(min_size=1),
    )
)
def test_what_is_written_is_listed_and_read(
    tmp_path_factory: pytest.TempPathFactory, images: dict
) -> None:
    folder = VersionFolder(tmp_path_factory.mktemp("v"))
    for (job, version), data in images.items():
        path = write(folder, data, job, version)
        assert verify(path) == manifest_of(data, job, version)
    assert [(f.job, f.version) for f in folder.found()] == sorted(
        images, key=lambda key: (key[0], -key[1])
    )
    for (job, version), data in images.items():
        assert folder.file(job, version).read_bytes() == data
        assert version in versions(folder, job)
        folder.delete(job, version, spare=bool(version % 2))
        folder.delete(job, version)  # it is gone: nothing to do
        assert version not in versions(folder, job)
    assert not folder.found()
    folder.sweep()
    assert not names(folder.path)


@given(JOBS, VERSIONS)
def test_names_come_back(job: str, version: int) -> None:
    folder = VersionFolder(Path("/nowhere"))
    assert parse_name(folder.file(job, version).name) == (job, version)


def test_no_name_leaves_the_folder() -> None:
    for name in ["", "-a", ".a", "a/b", "a b", "a\n", "ä", "a" * 65, "..", "a\0"]:
        with pytest.raises(RequestError):
            check_job(name)


SIZES = [1, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5000, 20 * PIECE]


@settings(max_examples=examples(160))
@given(
    st.sampled_from(SIZES) | st.integers(1, 3 * PIECE), st.booleans(), st.sampled_from([0, 1, 512])
)
@example(4097, True, 1)
@example(2 * PIECE + 5000, False, 512)
def test_any_size_at_any_address(
    tmp_path_factory: pytest.TempPathFactory, size: int, direct: bool, shift: int
) -> None:
    memory = mmap.mmap(-1, size + shift)
    memory[shift:] = bytes(noise(size))
    image = memoryview(memory)[shift:]
    folder = VersionFolder(tmp_path_factory.mktemp("v"), direct=direct)
    write_to_folder(folder, image, manifest_of(bytes(image)))
    assert folder.file("job", 1).read_bytes() == image
    assert (size,) == tuple(f.size for f in folder.found())


def test_other_numbers_than_bytes(tmp_path: Path) -> None:
    data = noise(4000)
    new = NewVersion(memoryview(data).cast("i"), "job", 1, [4000], lambda: manifest_of(data))
    VersionFolder(tmp_path).write(new)
    assert verify(tmp_path / "job-000000000001.pt")


def test_an_image_that_is_not_filled_to_its_end(tmp_path: Path) -> None:
    data = noise(2 * PIECE)
    with pytest.raises(ValueError, match="filled"):
        new = NewVersion(memoryview(data), "job", 1, [PIECE], lambda: manifest_of(data))
        VersionFolder(tmp_path).write(new)
    assert not names(tmp_path)


def test_bytes_are_written_only_when_they_are_final(tmp_path: Path) -> None:
    data, wanted = bytearray(5 * PIECE), bytes(noise(5 * PIECE))

    def fill():
        step = PIECE // 3
        for start in range(0, len(data), step):
            data[start : start + step] = wanted[start : start + step]
            yield min(start + step, len(data))
            time.sleep(0.001)

    folder = VersionFolder(tmp_path)
    folder.write(NewVersion(memoryview(data), "job", 1, fill(), lambda: manifest_of(wanted)))
    verify(folder.file("job", 1))


def test_a_version_written_again_is_the_new_one(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    write(folder, b"old" * 100)
    write(folder, b"newer" * 100)
    assert verify(folder.file("job", 1)).size == 500
    assert len(names(tmp_path)) == 2


def test_folders_are_made_on_the_way(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path / "a" / "b")
    assert folder.found() == ()
    assert swept(folder) == 0
    folder.delete("job", 1)
    write(folder, b"x")
    assert versions(folder) == [1]


@pytest.mark.parametrize("question", ["versions", "damaged"])
def test_a_version_that_is_being_removed_is_no_damaged_one(
    question: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = VersionFolder(tmp_path)
    for version in (1, 2):
        path = write(folder, b"1" * 100, version=version)
    path.with_name(path.name + SUFFIX).unlink()  # its record goes first
    timer = threading.Timer(0.02, path.unlink)
    timer.start()
    assert [found.version for found in getattr(folder, question)("job")] == (
        [1] if question == "versions" else []
    )
    assert caplog.text == ""
    timer.join()


class TestSpares:
    """Old files are overwritten in place, but never under a reader's eyes."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> VersionFolder:
        if not durable_write.can_reuse(tmp_path):
            pytest.skip("files are never reused on this file system")
        folder = VersionFolder(tmp_path)
        write(folder, b"1" * 10_000, version=1)
        return folder

    @pytest.mark.parametrize("size", [1, 9_999, 10_000, 30_000])
    def test_the_next_version_takes_the_file(
        self, folder: VersionFolder, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Its number alone says little: file systems give those of removed files to new ones.
        inode, answers, real = folder.file("job", 1).stat().st_ino, [], durable_write.is_unused
        monkeypatch.setattr(
            durable_write, "is_unused", lambda path: answers.append(real(path)) or answers[-1]
        )
        folder.delete("job", 1, spare=True)
        assert not folder.found()
        write(folder, b"2" * size, version=2)
        assert folder.file("job", 2).stat().st_ino == inode
        assert answers == [True]
        assert verify(folder.file("job", 2)).size == size
        assert len(names(folder.path)) == 2

    @pytest.mark.parametrize("how", ["open", "mapped", "linked"])
    def test_not_while_somebody_has_it(self, folder: VersionFolder, how: str) -> None:
        path = folder.file("job", 1)
        if how == "linked":
            os.link(path, folder.path / "mine")
        stream = (folder.path / "mine" if how == "linked" else path).open("rb")
        seen = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) if how == "mapped" else None
        if how != "open":
            stream.close()
        folder.delete("job", 1, spare=True)
        write(folder, b"2" * 10_000, version=2)
        verify(folder.file("job", 2))
        old = (
            seen[:]
            if seen
            else (folder.path / "mine").read_bytes()
            if how == "linked"
            else stream.read()
        )
        assert old == b"1" * 10_000
        stream.close()

    def test_a_link_in_its_place_is_not_followed(
        self, folder: VersionFolder, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        other.write_bytes(b"keep me")
        (folder.path / ".job.spare.tmp").symlink_to(other)
        write(folder, b"2" * 100, version=2)
        assert other.read_bytes() == b"keep me"
        verify(folder.file("job", 2))

    def test_only_where_leases_tell(
        self, folder: VersionFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(durable_write, "can_reuse", lambda _: False)
        other = VersionFolder(folder.path)
        other.delete("job", 1, spare=True)
        assert not names(folder.path)

    def test_one_job_leaves_the_other_alone(self, folder: VersionFolder) -> None:
        folder.delete("job", 1, spare=True)
        write(folder, b"x", job="job2")
        folder.drop_spare("job2")
        assert (folder.path / ".job.spare.tmp").exists()
        folder.drop_spare("job")
        folder.drop_spare("job")
        assert not (folder.path / ".job.spare.tmp").exists()


def test_strangers_are_no_versions(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    for name in (
        "a.pt",
        "a-1.pt",
        "a-0000000000001.pt",
        "a-000000000001.pt.bak",
        "-000000000001.pt",
        "x.tmp",
        ".x.tmp",
    ):
        (tmp_path / name).write_bytes(b"")
    assert folder.found() == ()
    assert swept(folder) == 0  # .x.tmp is not ours


def test_what_claims_a_version_and_is_no_file_is_damaged(tmp_path: Path) -> None:
    """With or without a commit record: a link whose record is gone is no reason to begin at 0."""
    folder = VersionFolder(tmp_path)
    (tmp_path / "a-000000000001.pt").mkdir()
    os.mkfifo(tmp_path / "a-000000000002.pt")
    (tmp_path / "a-000000000003.pt").symlink_to(tmp_path / "elsewhere.pt")
    found = {f.version: f.problem for f in folder.found("a")}
    assert (
        "a folder instead of a file" in found[1]
        and "a pipe instead of a file" in found[2]
        and "a symbolic link instead of a file" in found[3]
    )
    assert [d.version for d in folder.damaged("a")] == [3, 2, 1]


def test_versions_that_are_not_complete_say_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = VersionFolder(tmp_path)
    for version in range(1, 7):
        write(folder, b"x" * 100, version=version)
    record = {v: tmp_path / f"job-{v:012d}.pt{SUFFIX}" for v in range(1, 7)}
    record[1].unlink()
    record[2].write_bytes(b"{}")
    record[3].write_bytes(record[4].read_bytes())
    folder.file("job", 5).write_bytes(b"x" * 99)
    found = {f.version: f for f in folder.found()}
    assert [v for v, f in found.items() if not f.problem] == [6, 4]
    for version, word in {1: "no manifest", 2: "manifest", 3: "version 4", 5: "99 bytes"}.items():
        assert word in found[version].problem
    assert versions(folder) == [6, 4]
    assert versions(folder) == [6, 4]
    assert len(caplog.messages) == 4, "once is enough"
    with pytest.raises(FileNotFoundError):
        read_manifest(folder.file("job", 1))
    for version in (1, 2, 3, 5):
        if version != 3:
            with pytest.raises(DamagedError, match=f"job-{version:012d}.pt"):
                verify(folder.file("job", version))


@pytest.mark.parametrize("what", ["data", "record"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "loop"])
def test_what_is_no_file_does_not_stop_us(tmp_path: Path, what: str, kind: str) -> None:
    folder = VersionFolder(tmp_path)
    path = write(folder, b"x" * 100)
    victim = path if what == "data" else path.with_name(path.name + SUFFIX)
    victim.unlink()
    {
        "folder": victim.mkdir,
        "fifo": lambda: os.mkfifo(victim),
        "loop": lambda: victim.symlink_to(victim),
    }[kind]()
    assert versions(folder) == []
    with pytest.raises(DamagedError):
        verify(path)


def test_verify_names_the_bytes(tmp_path: Path) -> None:
    data = noise(100)
    folder = VersionFolder(tmp_path)
    path = write_to_folder(folder, data, manifest_of(data, chunk_bytes=30))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        start = bit // 8 // 30 * 30
        with pytest.raises(
            DamagedError, match=f"bytes {start} to {min(start + 30, 100) - 1} are damaged"
        ):
            verify(path)


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (VersionFolder(tmp_path / "file"), VersionFolder(tmp_path / "file" / "below")):
        for action in (folder.found, folder.sweep, lambda folder=folder: write(folder, b"x")):
            with pytest.raises(CheckpointError, match="file"):
                action()


def test_leftovers_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = VersionFolder(tmp_path)
    hidden = [
        ".job-000000000001.pt.0123abcd.tmp",
        ".job-000000000001.pt.json.0123abcd.tmp",
        ".job.spare.tmp",
    ]
    for name in [*hidden, ".job.tmp", ".job-000000000001.pt.tmp", "job.tmp"]:
        (tmp_path / name).write_bytes(b"")
    assert [p.name for p in folder.leftovers()] == sorted(hidden)
    assert swept(folder, 100) == 0
    os.utime(tmp_path / hidden[0], (1, 1))  # a copy of an old file is not old
    assert swept(folder, 100) == 0
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 101)
        (tmp_path / hidden[1]).write_bytes(b"")
        os.utime(tmp_path / hidden[1], (now + 100, now + 100))
        assert swept(folder, 100) == 2
    assert swept(folder) == 1
    assert len(names(tmp_path)) == 3


def test_a_record_without_its_file_is_seen(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    write(folder, b"x", version=1)
    write(folder, b"y", version=2).unlink()
    (found, _) = folder.found()
    assert (found.version, found.size, found.manifest) == (2, 0, None)
    assert "the file is not" in found.problem
    assert versions(folder) == [1]
    folder.delete("job", 2)
    assert len(names(tmp_path)) == 2
