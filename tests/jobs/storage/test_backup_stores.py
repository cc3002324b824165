"""The contract of places for backups, and what goes wrong at each of them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from support.checkpoint.object_store import BUCKET, Store, running
from support.effort import in_ring_2, sampled

from deepvm.errors import CheckpointError
from deepvm.jobs.agent.backups import Backups, open_backups
from deepvm.jobs.storage import backup_store
from deepvm.jobs.storage.backup_store import (
    BackupStore,
    FolderBackups,
    Part,
    PartStatus,
    Record,
    StoredBackup,
    staying,
)
from deepvm.jobs.storage.bucket_backups import BucketBackups

pytestmark = pytest.mark.xdist_group("object store")  # one process starts the server, once

Make = Callable[[], BackupStore]


@pytest.fixture
def bucket() -> Iterator[Store]:
    with running() as found:
        yield found


@contextmanager
def in_a_folder(folder: Path) -> Iterator[Make]:
    yield lambda: FolderBackups(folder / "tier", "job")


@contextmanager
def in_a_bucket(folder: Path) -> Iterator[Make]:
    with running() as found:
        first = BucketBackups(BUCKET, "/run", "job", endpoint=found.url, attempts=1)

        def another() -> BackupStore:
            place = BucketBackups(BUCKET, "/run", "job", endpoint=found.url, attempts=1)
            place._bucket.s3 = first._bucket.s3  # making one takes longer than a backup
            return place

        yield another


PLACES = {"folder": in_a_folder, "bucket": in_a_bucket}


@pytest.fixture(params=in_ring_2(PLACES, "bucket"))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes the place as one more machine sees it."""
    with PLACES[request.param](tmp_path) as another:
        yield another


def put(store: BackupStore, path: Path, part: Part, ranks: int = 1) -> None:
    """Save a part, the last of its backup."""
    store.save(path, part)
    store.seal(part, ranks)


def fetched(store: BackupStore, folder: Path, rank: int = 0) -> list[tuple[int, str]]:
    """Step and content of all visible backups of single files."""
    return [(k.step, store.fetch(k, rank, folder / "fetched").read_text()) for k in store.whole()]


def test_files_and_folders(make: Make, tmp_path: Path) -> None:
    many = tmp_path / "many"
    (many / "deep").mkdir(parents=True)
    (many / "deep" / "a b\u00e9").write_bytes(os.urandom(5000))
    (many / "empty").write_bytes(b"")
    (tmp_path / "one").write_text("1")
    store = make()
    store.begin(1)
    assert store.whole() == []
    put(store, tmp_path / "one", Part(1, 0, 1))
    put(store, many, Part(2, 0, 1, automatic=True))
    two, one = make().whole()
    assert (two.step, two.automatic, one.step, one.automatic) == (2, True, 1, False)
    place = make().fetch(two, 3, tmp_path / "there")
    assert place.name == "many"
    found = {
        p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()
    }
    assert found == {"deep/a b\u00e9": (many / "deep" / "a b\u00e9").read_bytes(), "empty": b""}


def test_parts_of_ranks_and_the_same_step_again(make: Make, tmp_path: Path) -> None:
    """A backup is visible when it is sealed, and each rank has its own part or none."""
    store, file = make(), tmp_path / "mine"
    for rank in (1, 0):
        file.write_text(f"rank {rank}")
        store.save(file, Part(5, rank, 1))
    assert not make().whole()
    make().seal(Part(5, 0, 1, automatic=True), 2)
    assert [(k.step, k.ranks, k.automatic) for k in make().whole()] == [(5, 2, True)]
    file.write_text("again")
    store.save(file, Part(5, 0, 1))
    assert [fetched(make(), tmp_path, rank) for rank in (0, 1)] == [[(5, "again")], [(5, "rank 1")]]
    with pytest.raises(CheckpointError, match="a part for each of 2 ranks, and none for rank 2"):
        fetched(make(), tmp_path, 2)


def test_what_rank_0_alone_saved_is_for_all(make: Make, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("rank 0")
    put(make(), tmp_path / "mine", Part(5, 0, 1))
    assert fetched(make(), tmp_path, 3) == [(5, "rank 0")]


def test_parts_of_two_generations_are_no_backup(make: Make, tmp_path: Path) -> None:
    """The same step, done again from an older version: a rank of the older generation saved it, and
    was lost.
    """
    store, file = make(), tmp_path / "mine"
    for rank in (0, 1):
        file.write_text(f"old {rank}")
        store.save(file, Part(5, rank, 1))
    file.write_text("new 0")
    store.save(file, Part(5, 0, 2))
    store.seal(Part(5, 0, 2), 2)  # as if rank 1 had been seen
    assert make().whole() == []
    file.write_text("new 1")
    store.save(file, Part(5, 1, 2))
    assert [fetched(make(), tmp_path, rank) for rank in (0, 1)] == [[(5, "new 0")], [(5, "new 1")]]


def test_ranks_hear_of_each_other(make: Make, tmp_path: Path) -> None:
    one, other, file = make(), make(), tmp_path / "mine"
    file.write_text("1")
    one.save(file, Part(5, 0, 1))
    assert not other.set_status(Part(5, 1, 1), PartStatus.BEGUN) and not other.set_status(
        Part(5, 2, 1), PartStatus.NOTHING
    )
    assert one.statuses(Part(5, 0, 1)) == {
        0: PartStatus.WHOLE,
        1: PartStatus.BEGUN,
        2: PartStatus.NOTHING,
    }
    other.save(file, Part(5, 1, 1))
    assert one.statuses(Part(5, 0, 1)) == {
        0: PartStatus.WHOLE,
        1: PartStatus.WHOLE,
        2: PartStatus.NOTHING,
    }
    one.seal(Part(5, 0, 1), 2)
    assert other.set_status(Part(5, 3, 1), PartStatus.BEGUN), "it was sealed without this rank"
    assert make().whole() == [] and one.statuses(Part(5, 0, 1))[3] is PartStatus.BEGUN
    one.begin(2)
    with pytest.raises(CheckpointError, match="generation 1 is over"):
        make().set_status(Part(5, 3, 1), PartStatus.BEGUN)


def test_what_was_never_sealed_is_swept(make: Make, tmp_path: Path) -> None:
    def listing() -> Iterable[str]:
        if isinstance(store, FolderBackups):
            return [str(path) for path in (tmp_path / "tier").rglob("*")]
        assert isinstance(store, BucketBackups)
        return [*store._bucket.sizes(store._bucket.prefix), *store._entries()]

    store, file = make(), tmp_path / "mine"
    file.write_text("1")
    put(store, file, Part(1, 0, 1))
    for part in (Part(2, 1, 1), Part(4, 0, 1), Part(9, 1, 1)):
        store.set_status(part, PartStatus.BEGUN)
        store.save(file, part)
    put(store, file, Part(5, 0, 1))
    store.sweep(4, 1)
    store.seal(Part(4, 0, 1), 1)  # it is still under way
    assert [k.step for k in make().whole()] == [5, 4, 1]
    assert make().statuses(Part(9, 1, 1)) == {1: PartStatus.WHOLE}
    store.seal(Part(9, 1, 1), 1)
    assert [k.step for k in make().whole()] == [9, 5, 4, 1]
    assert not [name for name in listing() if "000000000002-" in name]


def test_a_seal_that_cannot_be_read_keeps_its_backup(tmp_path: Path) -> None:
    """The disk may have failed for a moment: it is not whole, and not swept either."""
    store, file = FolderBackups(tmp_path / "tier", "job"), tmp_path / "mine"
    file.write_text("1")
    put(store, file, Part(1, 0, 1))
    (seal,) = tmp_path.rglob("whole.json")
    text = seal.read_bytes()
    seal.write_bytes(text[:5])
    assert store.whole() == []
    store.sweep(2, 1)
    seal.write_bytes(text)
    assert fetched(store, tmp_path) == [(1, "1")]


def test_a_save_raises_the_number_of_the_generation(make: Make, tmp_path: Path) -> None:
    """Also of a script that never asks for the newest one."""
    (tmp_path / "mine").write_text("1")
    make().save(tmp_path / "mine", Part(1, 0, 2))
    with pytest.raises(CheckpointError, match="generation 1 is over: 2 has started"):
        make().save(tmp_path / "mine", Part(2, 0, 1))


@pytest.mark.parametrize("damage", ["content", "file", "record"])
def test_all_ranks_go_on_from_one_step(tmp_path: Path, damage: str) -> None:
    """Each with its own state: where one part is damaged nobody goes on from the others."""
    store, file = FolderBackups(tmp_path / "tier", "job"), tmp_path / "mine"
    for step in (1, 2):
        for rank in (0, 1):
            file.write_text(f"{step} of {rank}")
            store.save(file, Part(step, rank, 1))
        store.seal(Part(step, 0, 1), 2)
    part = tmp_path / "tier" / "job" / "backups" / "000000000002-000000001" / "rank-1"
    if damage == "content":
        (part / "mine").write_text("2 of ?")
    elif damage == "file":
        (part / "mine").unlink()
    else:
        (part / "record.json").write_text("?")
    agents = [
        Backups(FolderBackups(tmp_path / "tier", "job"), tmp_path / f"here-{rank}")
        for rank in (0, 1)
    ]
    first = agents[0].latest(0, 2)
    assert first is not None and first.path.read_text() == "2 of 0"
    with pytest.raises(
        CheckpointError, match="the backup of step 2 is quarantined: start again, from an older one"
    ):
        agents[1].latest(1, 2)
    again = [agents[rank].latest(rank, 3) for rank in (0, 1)]
    assert [found.path.read_text() for found in again if found] == ["1 of 0", "1 of 1"]


def test_what_cannot_be_read_now_is_not_skipped(bucket: Store, tmp_path: Path) -> None:
    """Another rank may well read it."""
    store, file = (
        BucketBackups(BUCKET, "run", "job", endpoint=bucket.url, attempts=1),
        tmp_path / "mine",
    )
    for step in (1, 2):
        file.write_text(str(step))
        put(store, file, Part(step, 0, 1))
    bucket.trouble = lambda method, path: "503 Slow Down" if "/mine" in path else None
    with pytest.raises(CheckpointError, match="503|SlowDown|Slow Down"):
        Backups(store, tmp_path / "here").latest(0, 2)


def test_removal(make: Make, tmp_path: Path) -> None:
    store, file = make(), tmp_path / "mine"
    for step in (1, 2):
        file.write_text(str(step))
        put(store, file, Part(step, 0, 1))
    store.remove(store.whole()[1].name, 1)
    assert fetched(make(), tmp_path) == [(2, "2")]
    store.begin(2)
    with pytest.raises(CheckpointError, match="generation 1 is over: 2 has started"):
        make().remove(store.whole()[0].name, 1)
    assert fetched(make(), tmp_path) == [(2, "2")]


def test_an_older_generation_is_refused(make: Make, tmp_path: Path) -> None:
    old, new, file = make(), make(), tmp_path / "mine"
    file.write_text("old")
    old.begin(1)
    put(old, file, Part(1, 0, 1))
    new.begin(2)
    with pytest.raises(CheckpointError, match="generation 1 is over: 2 has started"):
        put(old, file, Part(2, 0, 1))
    with pytest.raises(CheckpointError, match="generation 1 is over"):
        make().begin(1)
    file.write_text("new")
    put(new, file, Part(1, 0, 2))
    assert fetched(make(), tmp_path)[0] == (1, "new")


def test_a_newer_generation_begins_in_the_middle_of_an_upload(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, file = make(), make(), tmp_path / "mine"
    file.write_text("late")
    old.begin(1)
    honest = Record.to_json

    def begin(record: Record) -> bytes:
        new.begin(2)
        return honest(record)

    monkeypatch.setattr(Record, "to_json", begin)
    with pytest.raises(CheckpointError, match="generation 1 is over"):
        put(old, file, Part(7, 0, 1))
    assert make().whole() == []


def test_a_full_disk_when_fetching(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, file = make(), tmp_path / "mine"
    file.write_bytes(bytes(10_000))
    put(store, file, Part(1, 0, 1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(backup_store.os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left"):
            Backups(make(), tmp_path / "here").latest(0, 1)
    found = Backups(make(), tmp_path / "here").latest(0, 1)
    assert found is not None and found.path.read_bytes() == bytes(10_000)


def test_retention_by_an_agent(make: Make, tmp_path: Path) -> None:
    """Insurance and emergency saves go when a newer backup is whole.

    The script's own stay, as many as are kept.
    """
    agent, file = Backups(make(), tmp_path / "here", keep=2), tmp_path / "mine"
    for step, automatic in (
        (10, False),
        (12, True),
        (14, True),
        (20, False),
        (22, True),
        (30, False),
    ):
        file.write_text(str(step))
        done = threading.Event()
        assert agent.add(file, Part(step, 0, 1, automatic), lambda *_, done=done: done.set()) == {}
        assert done.wait(30)
    agent.add(tmp_path / "none", Part(1, 0, 1), lambda *_: None)
    assert _settled(lambda: [k.step for k in make().whole()], [30, 20])


def _settled(look: Callable[[], object], wanted: object) -> bool:
    for _ in range(100):
        if look() == wanted:
            return True
        threading.Event().wait(0.05)
    return False


def test_what_stays() -> None:
    """Negative: automatic."""
    for whole, keep, stay in [
        ([], 2, []),
        ([5], 2, [5]),
        ([5, 4, 3], 2, [5, 4]),
        ([-5, -4, -3], 2, [5, 4]),
        ([5, -4, 3, 2], 2, [5, 3]),
        ([-5, -4, 3, 2], 3, [5, 3, 2]),
        ([5, -4, 3, 2], 0, [5, 3, 2]),
        ([-5, -4, -3], 0, [5, 4]),
        ([5, -4], 1, [5]),
    ]:
        rows = [StoredBackup(abs(n), str(abs(n)), n < 0) for n in whole]
        assert staying(rows, keep) == {str(n) for n in stay}


def test_records_lead_nowhere_else() -> None:
    for name in ("../x", "/etc/passwd", "a/../../x", "a\0"):
        with pytest.raises(ValueError, match="out of the folder"):
            Record.from_json(json.dumps({"name": "a", "sha256": {name: "0"}}).encode())
    for data in (b"[]", b"{}", b"?", b'{"name": "", "sha256": {}}', b'{"name": "a", "sha256": 1}'):
        with pytest.raises(ValueError):
            Record.from_json(data)


def test_the_first_tier_that_takes_them(tmp_path: Path) -> None:
    assert open_backups(["tcp://node:1", "mpi://1"], "job") is None
    found = open_backups(["tcp://node:1", "s3://bucket/run", tmp_path.as_uri()], "job")
    assert found is not None and found.url == "s3://bucket/run/job/backups"
    assert open_backups([f"{tmp_path.as_uri()}/a%20b"], "job").url.endswith("/a%20b/job/backups")  # type: ignore[union-attr]


REQUESTS = {
    "begin": lambda method, path: method == "PUT" and ".ledger?" in path,
    "upload": lambda method, path: method == "PUT" and "/mine" in path,
    "part": lambda method, path: "partNumber=2" in path,
    "end": lambda method, path: method == "POST" and "uploadId" in path,
    "record": lambda method, path: method == "PUT" and "record.json" in path,
    "list": lambda method, path: method == "GET" and "list-type" in path,
}


@pytest.mark.parametrize(
    ("request_name", "fate"), sampled(product(REQUESTS, ["503 Slow Down", "lost", "late"]))
)
def test_requests_that_fail(bucket: Store, tmp_path: Path, request_name: str, fate: str) -> None:
    """With one more try the backup is made; without, it is whole or not visible."""
    file = tmp_path / "mine"
    file.write_bytes(os.urandom(9_000_000 if request_name in ("part", "end") else 1000))
    for attempts in (2, 1):
        bucket.begin()
        store = BucketBackups(BUCKET, "run", "job", endpoint=bucket.url, attempts=attempts)
        left = [fate]
        bucket.trouble = lambda method, path: (
            left.pop() if left and REQUESTS[request_name](method, path) else None  # noqa: B023
        )
        said = ""
        try:
            put(store, file, Part(1, 0, 1))
        except CheckpointError as error:
            said = str(error)
        bucket.trouble = lambda method, path: None
        whole = store.whole()
        assert not said or attempts == 1, said
        assert said or whole, "it was said to be backed up"
        for kept in whole:
            assert store.fetch(kept, 0, tmp_path / "there").read_bytes() == file.read_bytes()
        bucket.deliver()
        assert [k.step for k in store.whole()] in ([], [1])
        put(store, file, Part(2, 0, 1))
        assert store.whole()[0].step == 2


def test_a_bucket_that_is_refused(bucket: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("1")
    store = BucketBackups("nowhere", "run", "job", endpoint=bucket.url, attempts=1)
    with pytest.raises(CheckpointError, match="NoSuchBucket.*make the bucket first"):
        put(store, tmp_path / "mine", Part(1, 0, 1))
    bucket.trouble = lambda method, path: "403 Access Denied"
    # Not: there are none, training starts at 0
    with pytest.raises(CheckpointError, match="s3:GetObject"):
        Backups(
            BucketBackups(BUCKET, "run", "job", endpoint=bucket.url, attempts=1), tmp_path
        ).latest(0, 1)


def test_a_damaged_object_is_skipped(bucket: Store, tmp_path: Path) -> None:
    store, file = BucketBackups(BUCKET, "run", "job", endpoint=bucket.url), tmp_path / "mine"
    for step in (1, 2):
        file.write_text(str(step))
        put(store, file, Part(step, 0, 1))
    names = bucket.keys()
    newest = next(k for k in names if "000000000002-" in k and k.endswith("/mine"))
    bucket.client().put_object(Bucket=BUCKET, Key=newest, Body=b"?")
    found = Backups(store, tmp_path / "here").latest(0, 1)
    assert found is not None and (found.step, found.path.read_text()) == (1, "1")
    bucket.client().delete_object(Bucket=BUCKET, Key="run/job/backups/.ledger")
    assert [k.step for k in store.whole()] == [2, 1], "a copy without its ledger is whole"


KILLED = """
import sys
from pathlib import Path
from deepvm.jobs.storage.backup_store import Part
from deepvm.jobs.storage.bucket_backups import BucketBackups
BucketBackups("bucket", "run", "job", endpoint=sys.argv[1]).save(Path(sys.argv[2]), Part(2, 0, 1))
"""


def test_an_agent_that_is_killed_in_the_middle_of_an_upload(bucket: Store, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_bytes(bytes(20_000_000))
    store = BucketBackups(BUCKET, "run", "job", endpoint=bucket.url)
    put(store, file, Part(1, 0, 1))
    process = subprocess.Popen([sys.executable, "-c", KILLED, bucket.url, str(file)])

    def kill(method: str, path: str) -> str | None:
        if "partNumber=2" in path and "000000000002-" in path:
            process.send_signal(signal.SIGKILL)
        return None

    bucket.trouble = kill
    assert process.wait(60) == -signal.SIGKILL
    bucket.trouble = lambda method, path: None
    assert [k.step for k in store.whole()] == [1]
    put(store, file, Part(2, 0, 1))
    assert [k.step for k in store.whole()] == [2, 1]
    (left,) = bucket.uploads()
    assert "/000000000002-" in left  # it is paid for: the next generation aborts it
    orphan = left.rpartition("/")[0] + "/other"  # a file of a folder that came whole before the end
    bucket.client().put_object(Bucket=BUCKET, Key=orphan, Body=b"x")
    ours = bucket.client().create_multipart_upload(
        Bucket=BUCKET, Key=left.replace("g000000001", "g000000002")
    )
    assert left.count("g000000001") == 1
    put(BucketBackups(BUCKET, "run", "job", endpoint=bucket.url), file, Part(3, 0, 2))
    assert bucket.uploads() == [ours["Key"]] and orphan not in set(bucket.keys())
    assert [k.step for k in store.whole()] == [3, 2, 1]
