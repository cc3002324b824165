"""Disks that fail and processes that are killed: what was acknowledged is there, what is half is
never listed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint.images import (
    FOLDER_LABELS,
    REPLACED,
    aligned,
    manifest_of,
    names,
    noise,
    write_to_folder,
)
from support.checkpoint.killed_writers import PIECE, WRITER, killed_writer
from support.effort import sampled
from support.small_disk import small_disk

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import SUFFIX, CommitRecord
from deepvm.errors import CheckpointError, DamagedError


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_write, "PIECE", PIECE)


def check(path: Path, acknowledged: list[int], tried: int, size: int) -> None:
    """What must hold after every kill."""
    folder = VersionFolder(path)
    listed = folder.versions("job")
    for manifest in listed:
        # A listed one is whole, whether it was acknowledged or not.
        verify(folder.file("job", manifest.version), manifest)
        assert manifest.crcs == manifest_of(noise(manifest.size, manifest.version)).crcs
    numbers = [m.version for m in listed]
    # The newest two that were acknowledged, but an older one may go as soon as a newer one is
    # there.
    newest = acknowledged[-1:] if tried in numbers else acknowledged[-2:]
    assert set(newest) <= set(numbers), (acknowledged, numbers)
    assert set(numbers) <= {*acknowledged, tried}
    # The folder can be written to as if nothing had been, by somebody who cleans up and by somebody
    # who does not.
    if size % 2:
        folder.sweep()
    again = noise(size, tried)
    write_to_folder(folder, again, manifest_of(again, version=tried))
    verify(folder.file("job", tried))
    folder.sweep()
    allowed = {f.path.name for f in folder.found()}
    assert set(names(path)) <= allowed | {name + SUFFIX for name in allowed}


@pytest.fixture
def folder(tmp_path: Path) -> VersionFolder:
    """One with a good version 1."""
    folder = VersionFolder(tmp_path)
    data = noise(6 * PIECE + 77, 1)
    write_to_folder(folder, data, manifest_of(data))
    return folder


@pytest.mark.parametrize("label", FOLDER_LABELS)
@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_writer_killed_at_a_point(tmp_path: Path, label: str, count: int) -> None:
    size = 5 * PIECE + 1234 + count
    for version in (1, 2):
        data = noise(size, version)
        write_to_folder(VersionFolder(tmp_path), data, manifest_of(data, version=version))
    # "mid-write" comes by six times for each version.
    times = {"data.mid-write": 6 * (count - 1) + 3}.get(label, count)
    acknowledged = killed_writer(tmp_path, f"{label}:{times}", 3, 9, size)
    assert acknowledged == list(range(3, 3 + count - 1))
    check(tmp_path, [1, 2, *acknowledged], 3 + len(acknowledged), size)


@pytest.mark.parametrize("label", sampled(FOLDER_LABELS))
def test_a_writer_killed_while_it_replaces_a_version(tmp_path: Path, label: str) -> None:
    """A job that was started anew writes a version that an earlier run has written with other
    bytes.
    """
    size = 5 * PIECE
    folder = VersionFolder(tmp_path)
    for version in (2, 3):
        old = noise(size, 100 + version)
        write_to_folder(folder, old, manifest_of(old, version=version))
    assert killed_writer(tmp_path, label, 3, 1, size) == []
    new = label in REPLACED or label in ("data.before-folder-sync", "data.after-folder-sync")

    def check() -> None:
        """At each moment the one or the other is complete."""
        listed = {
            m.version: verify(folder.file("job", m.version), m).crcs for m in folder.versions("job")
        }
        assert listed == {
            v: manifest_of(noise(size, s)).crcs for v, s in ((2, 102), (3, 3 if new else 103))
        }
        verify(folder.file("job", 3))

    check()
    folder.sweep()
    check()
    assert names(tmp_path) == sorted(f.path.name + s for f in folder.found() for s in ("", SUFFIX))
    assert killed_writer(tmp_path, "", 3, 1, size) == [3]
    new = True
    check()


@pytest.mark.parametrize(
    "label", ["data.before-rename", "data.before-folder-sync", "replaced.before-rename"]
)
def test_a_writer_killed_while_it_replaces_and_no_one_cleans_up(tmp_path: Path, label: str) -> None:
    folder, size = VersionFolder(tmp_path), 5 * PIECE
    old = noise(size, 103)
    write_to_folder(folder, old, manifest_of(old, version=3))
    for _ in range(2):
        assert killed_writer(tmp_path, label, 3, 1, size) == []
        assert [
            verify(folder.file("job", m.version), m).version for m in folder.versions("job")
        ] == [3]
    folder.delete("job", 3)
    assert folder.found() == ()
    assert killed_writer(tmp_path, "", 3, 1, size) == [3]
    assert verify(folder.file("job", 3)).crcs == manifest_of(noise(size, 3)).crcs


def test_what_reaches_the_disk_in_which_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process shows nothing of what a machine without power forgets: here only the order
    can be seen.
    """
    folder = VersionFolder(tmp_path)
    data = noise(6 * PIECE, 1)
    write_to_folder(folder, data, manifest_of(data))
    events: list[str] = []
    fsync, replace, unlink, write = os.fsync, os.replace, os.unlink, os.pwrite

    def name(path: Any) -> str:
        text = os.path.basename(
            os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        )
        kind = "record" if SUFFIX in text else "data" if ".pt" in text else "folder"
        return f"hidden {kind}" if text.startswith(".") else kind

    def trace(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **more: Any) -> Any:
            text = name(first)
            found = real(first, *rest, **more)
            events.append(f"{what} {text}")
            return found

        return call

    monkeypatch.setattr(os, "fsync", trace("sync", fsync))
    monkeypatch.setattr(os, "replace", trace("rename", replace))
    monkeypatch.setattr(os, "unlink", trace("remove", unlink))
    monkeypatch.setattr(os, "pwrite", trace("write", write))
    write_to_folder(folder, data, manifest_of(data))
    once = [e for i, e in enumerate(events) if i == 0 or events[i - 1] != e]
    data_steps = ["write hidden data", "sync hidden data"]
    record_steps = [
        "write hidden record",
        "sync hidden record",
        "rename hidden record",
        "sync folder",
    ]
    promotion = ["rename hidden record", "sync folder"]
    assert once == [*data_steps, *record_steps, "rename hidden data", "sync folder", *promotion]
    events.clear()
    folder.delete("job", 1, spare=False)
    assert events == ["remove record", "sync folder", "remove data"]
    events.clear()
    write_to_folder(folder, data, manifest_of(data))
    assert [e for i, e in enumerate(events) if i == 0 or events[i - 1] != e] == once, (
        "a new one goes the same way"
    )


@pytest.mark.slow
def test_a_hundred_killed_writers(tmp_path: Path) -> None:
    """One folder, killed again and again, at points and at any time."""
    chance = random.Random(20261121)
    acknowledged: list[int] = []
    version, kills = 1, 0
    while kills < 120:
        size = chance.randrange(1, 12 * PIECE)
        at = f"{chance.choice(FOLDER_LABELS)}:{chance.randrange(1, 6)}"
        before = len(acknowledged)
        acknowledged += killed_writer(tmp_path, at, version, 8, size)
        kills += 1
        version = version + len(acknowledged) - before
        check(tmp_path, acknowledged, version, size)
        acknowledged.append(version)
        version += 1


@pytest.mark.slow
def test_writers_killed_at_any_time(tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged: list[int] = []
    version = 1
    for _ in range(60):
        size = chance.randrange(1, 40 * PIECE)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(version), "100000", str(size)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.wait(chance.uniform(0, 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
        lines = process.communicate()[0].split()
        acknowledged += map(int, lines)
        version += len(lines)
        check(tmp_path, acknowledged, version, size)
        acknowledged.append(version)
        version += 1


Fault = Callable[[Callable[..., Any]], Callable[..., Any]]


def failing(number: int, nth: int) -> Fault:
    """The n-th call fails with an error of the system, and all after it."""

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= nth:
                raise OSError(number, os.strerror(number))
            return real(*arguments)

        return call

    return wrap


def must_fail(folder: VersionFolder, version: int = 2, match: str = "cannot be written") -> None:
    before = names(folder.path)
    data = noise(6 * PIECE + 77, 2)
    with pytest.raises(CheckpointError, match=match):
        write_to_folder(folder, aligned(data), manifest_of(data, version=version))
    verify(folder.file("job", 1), manifest_of(noise(6 * PIECE + 77, 1)))
    assert [m.version for m in folder.versions("job")] == [1]
    if version != 1:
        assert names(folder.path) == before, "something was left"


# How often a write of a version makes them: data and record, and the folder is synchronized for
# each of three names.
CALLS = {"pwrite": 8, "fsync": 5, "ftruncate": 2, "replace": 3}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("call", "nth"), [(call, nth) for call, times in CALLS.items() for nth in range(1, times + 1)]
)
def test_calls_that_fail(
    folder: VersionFolder, monkeypatch: pytest.MonkeyPatch, call: str, number: int, nth: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number, nth)(getattr(os, call)))
        must_fail(folder, match=os.strerror(number))
    data = noise(100)
    write_to_folder(folder, data, manifest_of(data, version=2))
    verify(folder.file("job", 2))


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_the_same_version_survives_a_write_that_fails(
    folder: VersionFolder, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC, 1)(getattr(os, call)))
        must_fail(folder, version=1)


def test_a_limit_on_the_size_of_files(folder: VersionFolder) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * PIECE, hard))
    try:
        must_fail(folder, match="File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1M") as place:  # room for two versions and a half
        a_third_version_fails(place)


def a_third_version_fails(disk: Path) -> None:
    folder = VersionFolder(disk)
    for version in (1, 2):
        data = noise(6 * PIECE + 77, version)
        write_to_folder(folder, data, manifest_of(data, version=version))
    data = noise(6 * PIECE, 3)
    with pytest.raises(CheckpointError, match="No space left"):
        write_to_folder(folder, data, manifest_of(data, version=3))
    assert [m.version for m in folder.versions("job")] == [2, 1]
    assert len(names(disk)) == 4
    for version in (1, 2):
        verify(folder.file("job", version))
    folder.delete("job", 1, spare=True)
    write_to_folder(folder, data, manifest_of(data, version=3))
    verify(folder.file("job", 3))
    folder.writer_lock.leave()  # an open lock keeps the file system busy


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("at", ["open", "write"])
def test_file_systems_without_direct_writes(
    folder: VersionFolder, monkeypatch: pytest.MonkeyPatch, number: int, at: str
) -> None:
    real_open, real_write = os.open, os.pwrite
    straight: set[int] = set()

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(number, os.strerror(number))
        descriptor = real_open(path, flags, *rest, **more)
        (straight.add if flags & os.O_DIRECT else straight.discard)(descriptor)
        return descriptor

    def written(descriptor: int, data: memoryview, offset: int) -> int:
        if descriptor in straight:
            raise OSError(number, os.strerror(number))
        return real_write(descriptor, data, offset)

    data = noise(6 * PIECE + 77, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(os, "pwrite", written)
        write_to_folder(folder, aligned(data), manifest_of(data, version=2))
    verify(folder.file("job", 2))


@pytest.mark.parametrize("most", [1, 4095, 4097, 50_000])
@pytest.mark.parametrize("direct", [True, False])
def test_short_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, direct: bool
) -> None:
    real = os.pwrite
    data = noise(2 * PIECE + 77 if most > 1 else 5000, 2)
    straight = []

    def short(descriptor: int, view: memoryview, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            straight.append(len(view))
            # The kernel takes whole blocks only; what it says may still be less.
            return min(most, real(descriptor, view[: max(4096, most // 4096 * 4096)], offset))
        return real(descriptor, view[:most], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", short)
        path = write_to_folder(
            VersionFolder(tmp_path, direct=direct), aligned(data), manifest_of(data)
        )
    verify(path)
    assert len(straight) <= 2 * PIECE // max(4096, most // 4096 * 4096) + 2, (
        "after part of a block it goes on without"
    )
    assert direct or not straight


def test_a_disk_that_takes_nothing(folder: VersionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: 0)
        must_fail(folder, match="takes no more")


def test_no_threads_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(durable_write.ThreadPoolExecutor, "submit", refuse)
    data = noise(6 * PIECE + 77)
    verify(write_to_folder(VersionFolder(tmp_path), data, manifest_of(data)))


CHUNK = 100


def small(tmp_path: Path) -> tuple[VersionFolder, Path, CommitRecord]:
    data = noise(3 * CHUNK + 50)
    folder = VersionFolder(tmp_path)
    manifest = manifest_of(data, chunk_bytes=CHUNK)
    return folder, write_to_folder(folder, data, manifest), manifest


def is_refused(folder: VersionFolder, path: Path) -> None:
    with pytest.raises(DamagedError, match=path.name):
        verify(path)


def test_cut_anywhere(tmp_path: Path) -> None:
    folder, path, _ = small(tmp_path)
    record = path.with_name(path.name + SUFFIX)
    for victim in (path, record):
        whole = victim.read_bytes()
        for length in range(len(whole)):
            victim.write_bytes(whole[:length])
            is_refused(folder, path)
            assert folder.versions("job") == ()
        victim.write_bytes(whole + b"\0")
        is_refused(folder, path)
        assert folder.versions("job") == ()
        victim.write_bytes(whole)
        verify(path)


@given(st.data())
def test_random_bytes_anywhere(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder, path, manifest = small(tmp_path_factory.mktemp("v"))
    victim = data.draw(st.sampled_from([path, path.with_name(path.name + SUFFIX)]))
    whole = victim.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=60))
    changed = whole[:start] + patch + whole[start + len(patch) :]
    victim.write_bytes(changed)
    try:
        assert verify(path) == manifest
    except DamagedError:
        return
    assert changed == whole


def test_one_flipped_bit_in_a_record(tmp_path: Path) -> None:
    folder, path, _ = small(tmp_path)
    record = path.with_name(path.name + SUFFIX)
    whole = record.read_bytes()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        record.write_bytes(damaged)
        is_refused(folder, path)
        assert not folder.versions("job")


def test_all_damaged_places_are_named(tmp_path: Path) -> None:
    data = noise(40 * CHUNK + 50)
    folder = VersionFolder(tmp_path)
    path = write_to_folder(folder, data, manifest_of(data, chunk_bytes=CHUNK))

    def damage(*chunks: int) -> str:
        changed = bytearray(data)
        for chunk in chunks:
            changed[chunk * CHUNK + 7] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DamagedError) as caught:
            verify(path)
        return str(caught.value)

    assert damage(0).endswith(": bytes 0 to 99 are damaged")
    assert damage(1, 2, 5, 40).endswith(": bytes 100 to 299, 500 to 599, 4000 to 4049 are damaged")
    assert damage(*range(0, 24, 2)).endswith("1800 to 1899 and 2 more ranges are damaged")
    assert damage(*range(41)).endswith(": bytes 0 to 4049 are damaged")
