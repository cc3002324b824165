"""Failed saves and killed writers leave nothing behind for long; acknowledged files stay."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint import object_store
from support.checkpoint.images import (
    FOLDER_LABELS,
    manifest_of,
    names,
    noise,
    plain_shard,
    write_to_folder,
)
from support.checkpoint.killed_writers import killed_writer
from support.checkpoint.memory_nodes import make_image, make_layout, put, running, tier, until
from support.checkpoint.object_store import BUCKET, Store
from support.effort import sampled

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import UPCOMING, verify
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import SUFFIX, Level
from deepvm.checkpoint.node import flusher
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.s3 import S3Tier
from deepvm.errors import CheckpointError

FAILURES = 64
CALLS = ("open", "ftruncate", "pwrite", "fsync", "replace")
WHERE = {
    "data": lambda name: name.endswith(".tmp") and SUFFIX not in name,
    "record": lambda name: SUFFIX in name,
    "folder": lambda name: not name.endswith((".tmp", ".next", SUFFIX, ".pt")),
}


def fail(patch: pytest.MonkeyPatch, folder: Path, call: str, where: str, number: int) -> list[str]:
    """Calls on such files of a folder, or on the folder itself, fail.

    Returns a list of those that did.
    """
    real, failed = getattr(os, call), list[str]()

    def failing(what: Any, *more: Any, **words: Any) -> Any:
        path = Path(os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what)
        inside = (
            path == folder
            if where == "folder"
            else path.parent == folder and WHERE[where](path.name)
        )
        if inside and not (call == "open" and not more[0] & os.O_CREAT):
            failed.append(path.name)
            raise OSError(number, os.strerror(number))
        return real(what, *more, **words)

    patch.setattr(os, call, failing)
    return failed


@pytest.mark.parametrize(
    ("call", "where"), [*itertools.product(CALLS, ("data", "record")), ("fsync", "folder")]
)
def test_saves_that_fail_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, where: str
) -> None:
    to, levels = FileTier(tmp_path, keep=2), list[Level]()
    for version in (1, 2):
        to.put(plain_shard(noise(1000, version), version), levels.append)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        failed = fail(patch, tmp_path, call, where, errno.ENOSPC if call != "fsync" else errno.EIO)
        for version in range(3, 3 + FAILURES):
            with pytest.raises(CheckpointError, match="cannot be written"):
                to.put(plain_shard(noise(1000, version), version), levels.append)
    assert len(failed) >= FAILURES and names(tmp_path) == before and len(levels) == 2
    assert [verify(to.file("job", m.version)).version for m in to.versions("job")] == [2, 1]
    to.put(plain_shard(noise(1000, 9), 9), levels.append)
    assert [m.version for m in to.versions("job")] == [9, 2]
    to.close()


@given(
    nth=st.integers(1, 14),
    call=st.sampled_from(CALLS),
    number=st.sampled_from([errno.ENOSPC, errno.EIO]),
)
def test_a_call_that_fails_once(
    tmp_path_factory: pytest.TempPathFactory, nth: int, call: str, number: int
) -> None:
    """Whichever it is: the version is there and was promised, or nothing of it is."""
    folder = tmp_path_factory.mktemp("once")
    to, levels = FileTier(folder), list[Level]()
    to.put(plain_shard(noise(1000, 1)), levels.append)
    before, left = names(folder), nth
    with pytest.MonkeyPatch.context() as patch:
        real = getattr(os, call)

        def failing(*words: Any, **more: Any) -> Any:
            nonlocal left
            left -= not (call == "open" and not words[1] & os.O_CREAT)
            if not left:
                left = -1
                raise OSError(number, os.strerror(number))
            return real(*words, **more)

        patch.setattr(os, call, failing)
        try:
            to.put(plain_shard(noise(1000, 2), 2), levels.append)
        except CheckpointError:
            assert names(folder) == before
    assert [m.version for m in to.versions("job")] == [2, 1][2 - len(levels) :]
    assert to.damaged("job") == ()
    to.close()


@pytest.mark.parametrize("label", sampled(FOLDER_LABELS))
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, label: str) -> None:
    """Also before its first version was there; what a reader could have been given stays."""
    assert killed_writer(tmp_path, label, 1, 1, 300_000) == []
    folder = VersionFolder(tmp_path)
    given = [m.version for m in folder.versions("job")]
    assert given == (
        [1]
        if label in FOLDER_LABELS[FOLDER_LABELS.index("data.before-folder-sync") :][:2]
        else given
    )
    assert folder.damaged("job") == (), (
        "a run that was killed in its first save begins at 0, or with it"
    )
    to = FileTier(tmp_path, keep=9)
    to.put(plain_shard(noise(1000, 2), 2), lambda level: None)
    assert [m.version for m in to.versions("job")] == [2, *given]
    assert names(tmp_path) == sorted(
        f"job-{v:012d}.pt{s}" for v in (2, *given) for s in ("", SUFFIX)
    )
    to.close()


def test_a_writer_that_lives_keeps_what_it_writes(tmp_path: Path) -> None:
    """Another process is half way.

    Nobody takes that from it, however often others start and fail.
    """
    code = (
        "import sys; from pathlib import Path; from deepvm.checkpoint.files.version_dir import"
        " VersionFolder\nfolder = VersionFolder(Path(sys.argv[1])); hidden ="
        " folder.reserve('other', 5); hidden.write_bytes(b'half')\nprint(hidden.name, flush=True);"
        " sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        name = writer.stdout.readline().strip()
        for version in (1, 2):
            to = FileTier(tmp_path)
            to.put(plain_shard(noise(1000, version), version), lambda level: None)
            to.close()
            assert name in names(tmp_path)
        writer.send_signal(signal.SIGKILL)
    to = FileTier(tmp_path)
    to.put(plain_shard(noise(1000, 3), 3), lambda level: None)
    assert name not in names(tmp_path)
    to.close()


@pytest.mark.parametrize(
    ("call", "where"), [("pwrite", "data"), ("pwrite", "record"), ("fsync", "folder")]
)
def test_a_node_whose_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, where: str
) -> None:
    monkeypatch.setattr(flusher, "_FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(flusher, "_LAST_RETRY_S", 0.001)
    folder, layout = tmp_path / "persist", make_layout(1000)
    with running(persist=folder) as node:
        trainer = tier(node)
        assert put(trainer, 1, layout, make_image(layout, 1)).wait(Level.DURABLE)
        before = [n for n in names(folder) if n.endswith((".pt", SUFFIX))]
        with monkeypatch.context() as patch:
            failed = fail(patch, folder, call, where, errno.EIO)
            put(trainer, 2, layout, make_image(layout, 2))
            assert until(
                lambda: len(failed) >= FAILURES and node.metrics()["flush"]["failed"] >= 10, 20.0
            )
        after = [*before, *(f"job-000000000002.pt{s}" for s in ("", SUFFIX))]
        assert until(lambda: [n for n in names(folder) if n.endswith((".pt", SUFFIX))] == after), (
            "it is tried again"
        )
        assert not [n for n in names(folder) if n.startswith(".job")]
        trainer.close()


@pytest.fixture
def store() -> Iterator[Store]:
    with object_store.running() as found:
        yield found


TROUBLE: dict[str, Callable[[str, str], bool]] = {
    "part": lambda method, path: "partNumber=" in path,
    "upcoming record": lambda method, path: method == "PUT" and ".json.next" in path,
    "completion": lambda method, path: method == "POST" and "uploadId=" in path,
}


@pytest.mark.parametrize("step", TROUBLE)
def test_a_bucket_that_fails(store: Store, step: str) -> None:
    to = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    to.put(plain_shard(noise(1000, 1)), lambda level: None)
    before = store.keys()
    store.trouble = lambda method, path: "503 Slow Down" if TROUBLE[step](method, path) else None
    for version in range(2, 10):
        with pytest.raises(CheckpointError):
            to.put(plain_shard(noise(1000, version), version), lambda level: None)
    store.trouble = lambda method, path: None
    assert store.keys() == before and store.uploads() == []


def test_uploads_of_a_killed_trainer_are_given_up_by_the_next_one(store: Store) -> None:
    """Those of this job alone; others may be at work."""
    s3, left = (
        store.client(),
        ["run/job-000000000007.pt", "run/job-2-000000000007.pt", "run/job-x", "other"],
    )
    for key in left:
        s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    to = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    assert to.versions("job") == () and len(store.uploads()) == 4, "who only reads removes nothing"
    to.put(plain_shard(noise(1000, 1)), lambda level: None)
    assert sorted(store.uploads()) == sorted(left[1:])
    s3.create_multipart_upload(Bucket=BUCKET, Key=left[0])
    to.put(plain_shard(noise(1000, 2), 2), lambda level: None)
    assert left[0] in store.uploads(), "once"


def test_who_may_not_list_uploads_writes_all_the_same(store: Store) -> None:
    store.trouble = lambda method, path: (
        "403 Access Denied" if method == "GET" and "uploads" in path else None
    )
    to = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    to.put(plain_shard(noise(1000, 1)), lambda level: None)
    assert [m.version for m in to.versions("job")] == [1]


def test_a_first_save_that_was_killed_leaves_no_evidence_in_a_bucket(store: Store) -> None:
    """At each request: the next run begins at 0, or with the version; never with an error."""
    for number in itertools.count():
        store.begin()
        asked = itertools.count()

        def trouble(
            method: str, path: str, number: int = number, asked: Iterator[int] = asked
        ) -> str | None:
            return "503 Dead" if next(asked) >= number else None

        store.trouble = trouble
        done = True
        try:
            S3Tier(BUCKET, "run", endpoint=store.url, attempts=1).put(
                plain_shard(noise(1000, 1)), lambda level: None
            )
        except CheckpointError:
            done = False
        seen, store.trouble = next(asked), lambda method, path: None
        after = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
        assert after.damaged("job") == ()
        assert len(after.versions("job")) in ((1,) if done else (0, 1))
        after.put(plain_shard(noise(1000, 2), 2), lambda level: None)
        assert store.uploads() == []
        if seen < number:
            break
    assert number >= 6


def test_what_is_written_again_over_a_lost_record(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    data = noise(1000)
    path = write_to_folder(folder, data, manifest_of(data))
    path.with_name(path.name + SUFFIX).unlink()
    assert (
        [d.version for d in folder.damaged("job")]
        == [1]
        == sorted(FileTier(tmp_path).unrecorded("job"))
    )
    write_to_folder(folder, data, manifest_of(data))
    assert folder.damaged("job") == () and verify(path).version == 1


def test_a_write_that_cannot_begin_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed writer's version has its upcoming record alone.

    The next one cannot settle that, and has a spare.
    """
    monkeypatch.setattr(durable_write, "can_reuse", lambda folder: True)
    to = FileTier(tmp_path, keep=1)
    for version in (1, 2, 3):
        to.put(plain_shard(noise(1000, version), version), lambda level: None)
    (tmp_path / f"job-000000000003.pt{SUFFIX}").rename(
        tmp_path / f".job-000000000003.pt{SUFFIX}{UPCOMING}"
    )
    assert [m.version for m in to.versions("job")] == [3] and ".job.spare.tmp" in names(tmp_path)
    with monkeypatch.context() as patch:
        failed = fail(patch, tmp_path, "replace", "record", errno.EIO)
        with pytest.raises(CheckpointError, match="cannot be written"):
            to.put(plain_shard(noise(1000, 4), 3), lambda level: None)
    assert failed and names(tmp_path) == [
        f".job-000000000003.pt{SUFFIX}{UPCOMING}",
        "job-000000000003.pt",
    ]
    assert [verify(to.file("job", m.version)).version for m in to.versions("job")] == [3]
    to.close()
