"""An object store that fails: errors of the trainer, leftovers, and what is retried."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkpoint.images import manifest_of, noise, plain_shard
from support.checkpoint.object_store import BUCKET, Store, running
from support.places import TESTS

from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import SUFFIX, CommitRecord, Level, NewVersion
from deepvm.checkpoint.tiers import base, object_store, s3
from deepvm.checkpoint.tiers.s3 import S3Tier, checksum
from deepvm.errors import CheckpointError, DamagedError

pytestmark = pytest.mark.xdist_group("object store")  # one process starts the server, once

NAME = "run/job-000000000001.pt"
BIG = 2 * CHUNK_BYTES + 100


@pytest.fixture
def store() -> Iterator[Store]:
    with running() as found:
        yield found


@pytest.fixture
def tier(store: Store) -> S3Tier:
    return S3Tier(BUCKET, "/run/", endpoint=store.url, attempts=2)


def put(tier: S3Tier, size: int = 1000, version: int = 1) -> None:
    tier.put(plain_shard(noise(size, version), version), lambda level: None)


def only_once(match: Callable[[str, str], bool], answer: str) -> Callable[[str, str], str | None]:
    """Trouble for the first request of a kind."""
    left = [answer]
    return lambda method, path: left.pop() if left and match(method, path) else None


def is_part(method: str, path: str) -> bool:
    return method == "PUT" and "partNumber=2" in path


def is_start(method: str, path: str) -> bool:
    return method == "POST" and "uploads" in path


def is_end(method: str, path: str) -> bool:
    return method == "POST" and "uploadId" in path


def is_read(method: str, path: str) -> bool:
    return method == "GET" and path.startswith(f"/{BUCKET}/{NAME}?")


def is_record(method: str, path: str) -> bool:
    return method == "PUT" and path.startswith(f"/{BUCKET}/{NAME}{SUFFIX}")


STEPS = {"start": is_start, "part": is_part, "end": is_end, "record": is_record}


def test_it_is_loaded_when_it_is_used() -> None:
    code = (
        "import sys; from deepvm.checkpoint.tiers.s3 import S3Tier; S3Tier('b', 'p');"
        "print(sorted({'boto3', 'botocore', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_record_comes_last(tier: S3Tier, store: Store) -> None:
    put(tier, BIG)
    assert store.keys() == [NAME, NAME + SUFFIX]
    assert store.uploads() == []
    writes = [(m, p) for m, p in store.seen if m in ("PUT", "POST")]
    assert is_start(*writes[0])
    assert sorted("partNumber" in p for _, p in writes[1:4]) == [True] * 3
    assert writes[4][1] == f"/bucket/{NAME}{SUFFIX}.next?"
    assert is_end(*writes[5])
    assert writes[6][1] == f"/bucket/{NAME}{SUFFIX}?"
    assert len(writes) == 7


def test_the_store_compares_each_part(
    tier: S3Tier, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tier._bucket.s3.upload_part
    sent = []
    monkeypatch.setattr(
        tier._bucket.s3, "upload_part", lambda **words: sent.append(words) or real(**words)
    )
    data = noise(BIG, 1)
    put(tier, BIG)
    checksums = {w["PartNumber"]: w["ChecksumCRC32"] for w in sent}
    assert checksums == {n: checksum(c) for n, c in enumerate(manifest_of(data).crcs, start=1)}


@pytest.mark.parametrize("prefix", ["", "/", "run", "/run/", "a/b"])
def test_prefixes(store: Store, prefix: str) -> None:
    tier = S3Tier(BUCKET, prefix, endpoint=store.url)
    put(tier)
    inside = prefix.strip("/")
    assert tier.url == f"s3://{BUCKET}/{inside}".rstrip("/")
    assert store.keys()[0] == f"{inside}/job-000000000001.pt".lstrip("/")
    assert len(tier.versions("job")) == 1


def test_many_parts_become_larger_parts(
    tier: S3Tier, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_MOST_PARTS", 2)
    put(tier, BIG)
    assert sum("partNumber" in path for _, path in store.seen) == 2
    (manifest,) = tier.versions("job")
    assert manifest.crcs == manifest_of(noise(BIG, 1)).crcs


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "answer", ["503 Slow Down", pytest.param("500 Internal Error", marks=pytest.mark.slow)]
)
def test_an_error_that_passes_is_not_noticed(
    tier: S3Tier, store: Store, tmp_path: Path, step: str, answer: str
) -> None:
    store.trouble = only_once(STEPS[step], answer)
    put(tier, BIG)
    (manifest,) = tier.versions("job")
    assert tier.fetch(manifest, tmp_path).read_bytes() == noise(BIG, 1)
    assert store.uploads() == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "answer", ["503 Slow Down", pytest.param("403 Access Denied", marks=pytest.mark.slow)]
)
def test_an_error_that_stays_leaves_nothing_behind(
    store: Store, tmp_path: Path, step: str, answer: str
) -> None:
    tier = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    put(tier, 1000, 0)
    store.trouble = lambda method, path: answer if STEPS[step](method, path) else None
    with pytest.raises(CheckpointError, match=f"s3://{BUCKET}/run: cannot write {NAME}") as caught:
        put(tier, BIG, 1)
    assert ("s3:GetObject" in str(caught.value)) == (answer[:3] == "403")
    assert store.uploads() == []
    (manifest,) = tier.versions("job")
    assert tier.fetch(manifest, tmp_path).read_bytes() == noise(1000, 0)
    store.trouble = lambda method, path: None
    put(tier, BIG, 1)
    assert [m.version for m in tier.versions("job")] == [1, 0]


def test_parts_that_cannot_be_aborted_are_told_of(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    tier = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    store.trouble = lambda method, path: (
        "503 Slow Down" if is_part(method, path) or method == "DELETE" else None
    )
    with pytest.raises(CheckpointError, match="SlowDown"):
        put(tier, BIG)
    assert "parts of run/job-000000000001.pt stay behind" in caplog.text
    assert tier.versions("job") == ()


def test_an_upload_that_somebody_aborts(store: Store) -> None:
    tier = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)
    aborted: list[str] = []

    def abort(method: str, path: str) -> str | None:
        if is_end(method, path) and not aborted:
            aborted.append(path)
            return "404 No Such Upload"
        return None

    store.trouble = abort
    with pytest.raises(CheckpointError, match="NoSuchUpload"):
        put(tier, BIG)
    assert tier.versions("job") == ()
    assert store.keys() == []


def test_a_failure_in_the_trainer_aborts_too(
    tier: S3Tier, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Iterator[int]:
        yield CHUNK_BYTES
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "seal", broken)
    with pytest.raises(KeyboardInterrupt):
        put(tier, BIG)
    assert store.uploads() == store.keys() == []


def test_a_reply_that_breaks_off_is_asked_for_again(
    tier: S3Tier, store: Store, tmp_path: Path
) -> None:
    put(tier, BIG)
    (manifest,) = tier.versions("job")
    store.trouble = only_once(is_read, "cut")
    assert tier.fetch(manifest, tmp_path).read_bytes() == noise(BIG, 1)
    store.trouble = lambda method, path: "cut" if is_read(method, path) else None
    with pytest.raises(CheckpointError, match="cannot read"):
        tier.fetch(manifest, tmp_path / "other")
    assert os.listdir(tmp_path / "other") == []


def test_an_object_that_changes_while_it_is_read(
    tier: S3Tier, store: Store, tmp_path: Path
) -> None:
    put(tier, BIG)
    (manifest,) = tier.versions("job")
    client = store.client()

    real = tier._bucket.s3.head_object

    def head(**words: str) -> object:
        reply = real(**words)
        client.put_object(Bucket=BUCKET, Key=NAME, Body=bytes(noise(BIG, 9)))
        return reply

    tier._bucket.s3.head_object = head
    with pytest.raises(CheckpointError, match="PreconditionFailed|damaged"):
        tier.fetch(manifest, tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_is_not_complete_is_not_listed(
    tier: S3Tier, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for version in range(1, 7):
        put(tier, 100, version)
    client = store.client()
    names = {v: f"run/job-{v:012d}.pt" for v in range(1, 7)}
    client.delete_object(Bucket=BUCKET, Key=names[1])
    client.delete_object(Bucket=BUCKET, Key=names[2] + SUFFIX)
    client.put_object(Bucket=BUCKET, Key=names[3] + SUFFIX, Body=b"{}")
    client.put_object(Bucket=BUCKET, Key=names[4], Body=b"short")
    other = CommitRecord("job", 9, 1, 100, manifest_of(noise(100)).crcs).to_json()
    client.put_object(Bucket=BUCKET, Key=names[5] + SUFFIX, Body=other)
    client.put_object(Bucket=BUCKET, Key="run/job-x.pt", Body=b"")
    assert [m.version for m in tier.versions("job")] == [6]
    assert sum("not complete" in line for line in caplog.messages) == 5
    assert [m.version for m in tier.versions("job")] == [6]
    assert sum("not complete" in line for line in caplog.messages) == 5, "once is enough"
    found = {d.version: d.problem for d in tier.damaged("job")}
    said = {
        1: "the object is not",
        2: "no manifest",
        3: "a manifest of",
        4: "5 bytes instead of 100",
        5: "version 9",
    }
    assert list(found) == [5, 4, 3, 2, 1] and all(
        word in found[version] for version, word in said.items()
    )
    assert tier.unrecorded("job") == {2}
    for version, word in said.items():
        with pytest.raises(DamagedError, match=word):
            tier.read("job", version)
    with pytest.raises(FileNotFoundError):
        tier.read("job", 7)


def test_an_object_of_another_size(tier: S3Tier, store: Store, tmp_path: Path) -> None:
    put(tier)
    (manifest,) = tier.versions("job")
    store.client().put_object(Bucket=BUCKET, Key=NAME, Body=b"short")
    with pytest.raises(DamagedError, match="5 bytes instead of 1000"):
        tier.fetch(manifest, tmp_path)


def test_a_folder_that_cannot_be_written(tier: S3Tier, tmp_path: Path) -> None:
    put(tier)
    (manifest,) = tier.versions("job")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="file"):
        tier.fetch(manifest, tmp_path / "file")


def test_old_versions_that_cannot_be_removed_stay(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    tier = S3Tier(BUCKET, endpoint=store.url, attempts=1, keep=1)
    put(tier, version=1)
    store.trouble = lambda method, path: "403 Access Denied" if method == "DELETE" else None
    put(tier, version=2)
    assert [m.version for m in tier.versions("job")] == [2, 1]
    assert "old checkpoints stay" in caplog.text


def test_a_user_who_may_list_only_a_prefix(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S3 refuses to say of an object that it is not there."""
    store.trouble = lambda method, path: (
        "403 Access Denied" if method == "GET" and "/run/.job.ledger" in path else None
    )
    tier = S3Tier(BUCKET, "run", endpoint=store.url, attempts=1, keep=1)
    for version in (1, 2):
        put(tier, version=version)
    (manifest,) = tier.versions("job")
    assert manifest.version == 2
    assert tier.fetch(manifest, tmp_path).read_bytes() == noise(1000, 2)
    tier.set_aside("job", [2])
    assert tier.versions("job") == () and not caplog.records


def test_what_a_user_has_to_do(store: Store) -> None:
    with pytest.raises(CheckpointError, match="NoSuchBucket.*make the bucket first"):
        put(S3Tier("nowhere", endpoint=store.url))
    with pytest.raises(
        CheckpointError, match="s3://bucket: cannot list its objects: .*127.0.0.1:1/"
    ):
        S3Tier(BUCKET, endpoint="http://127.0.0.1:1", attempts=1).versions("job")
    # The fixture of this name may be put back after the store's own
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(CheckpointError, match="set AWS_ACCESS_KEY_ID"):
            put(S3Tier(BUCKET, endpoint=store.url))


def test_the_last_save_of_a_program_that_forgets_to_close(store: Store) -> None:
    """At the interpreter's end there are no new threads."""
    code = (
        "import atexit, sys\n"
        "from support.checkpoint.images import noise, plain_shard\n"
        "from deepvm.checkpoint.tiers.s3 import S3Tier\n"
        "tier = S3Tier(sys.argv[1], 'last', keep=1, endpoint=sys.argv[2])\n"
        "tier.put(plain_shard(noise(20_000_000, 1), 1), lambda level: None)\n"
        "def late():\n"
        "    tier.put(plain_shard(noise(20_000_000, 2), 2), lambda level: None)\n"
        "    print([m.version for m in tier.versions('job')])\n"
        "atexit.register(late)\n"
    )
    words = [sys.executable, "-c", code, BUCKET, store.url]
    path = {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    ended = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, **path}, timeout=120
    )
    assert (ended.stdout, ended.returncode) == ("[2]\n", 0), ended.stderr


SIZE = 3000
OLD, NEW = noise(SIZE, 1), noise(SIZE, 2)
AGAIN: dict[str, Callable[[str, str], bool]] = {
    "start": is_start,
    "part": lambda method, path: "partNumber=1" in path,
    "list": lambda method, path: method == "GET" and "list-type" in path,
    "upcoming": lambda method, path: method == "PUT" and ".json.next" in path,
    "end": is_end,
    "record": lambda method, path: is_record(method, path) and ".json.next" not in path,
    "removal": lambda method, path: method == "DELETE",
}


def write(tier: S3Tier, data: bytearray, *, best: bool = False) -> list[Level]:
    acknowledged: list[Level] = []
    tier.put(replace(plain_shard(data, 1), best=best), acknowledged.append)
    return acknowledged


def there(tier: S3Tier, folder: Path) -> bytes:
    """The bytes of the only version, verified, read in all ways that there are."""
    (manifest,) = tier.versions("job")
    data = tier.fetch(manifest, folder).read_bytes()
    record, pieces = tier.read("job", 1)
    assert record == manifest and b"".join(map(bytes, pieces)) == data
    return data


@pytest.fixture
def once(store: Store) -> S3Tier:
    """One that tries each request once."""
    return S3Tier(BUCKET, "run", endpoint=store.url, attempts=1)


class TestTheSameNumberAgain:
    """At every moment the old version or the new one is there and complete: never none, never a
    mixture.
    """

    @pytest.mark.parametrize("step", AGAIN)
    @pytest.mark.parametrize(
        "answer", ["503 Slow Down", pytest.param("cut", marks=pytest.mark.slow)]
    )
    @pytest.mark.parametrize(
        "data",
        [NEW, pytest.param(OLD, marks=pytest.mark.slow), noise(2000, 3)],
        ids=["other bytes", "the same bytes", "another size"],
    )
    def test_a_request_that_fails(
        self, store: Store, once: S3Tier, tmp_path: Path, step: str, answer: str, data: bytearray
    ) -> None:
        write(once, OLD)
        store.trouble = lambda method, path: answer if AGAIN[step](method, path) else None
        acknowledged: list[Level] = []
        with contextlib.suppress(CheckpointError):
            acknowledged = write(once, data)
        store.trouble = lambda method, path: None
        found = there(once, tmp_path)
        assert found in (OLD, data)
        if acknowledged:
            assert found == data
        for last in (noise(SIZE, 4), OLD):  # whatever was left behind is no harm to those that come
            write(once, last)
            assert there(once, tmp_path) == last
            assert store.keys() == [NAME, NAME + SUFFIX]

    @pytest.mark.slow
    def test_a_trainer_that_is_killed_at_any_request(
        self, store: Store, once: S3Tier, tmp_path: Path
    ) -> None:
        """Of two chunks only the second is another one: the first tells nothing."""
        old, new = (bytes(CHUNK_BYTES) + noise(SIZE, seed) for seed in (1, 2))
        found = []
        for after in itertools.count():
            store.begin()
            write(once, bytearray(old))
            ended = killed(store, after)
            found.append(there(once, tmp_path))
            if not ended:
                break
            write(once, NEW)
            assert there(once, tmp_path) == NEW
            assert store.keys() == [NAME, NAME + SUFFIX]
        # Uploads; two parts; and start, list, record, upcoming, end, record, removal; and none.
        assert len(found) == 11
        assert found == [old] * 8 + [new] * 3

    def test_a_writer_that_was_killed_and_one_that_fails_after_it(
        self, store: Store, once: S3Tier, tmp_path: Path
    ) -> None:
        """The upcoming record of the first one is the only one that fits when the second one
        begins.
        """
        write(once, OLD)
        store.trouble = lambda method, path: (
            "503 Slow Down" if AGAIN["record"](method, path) else None
        )
        write(once, NEW)
        assert there(once, tmp_path) == NEW
        for step in AGAIN:
            store.trouble = lambda method, path, step=step: (
                "503 No" if AGAIN[step](method, path) else None
            )  # type: ignore[misc]
            with contextlib.suppress(CheckpointError):
                write(once, noise(SIZE, 5))
            store.trouble = lambda method, path: None
            assert there(once, tmp_path) in (NEW, noise(SIZE, 5))

    def test_the_same_bytes_leave_the_object_alone(
        self, store: Store, once: S3Tier, tmp_path: Path
    ) -> None:
        write(once, OLD)
        before, record = (
            store.client().head_object(Bucket=BUCKET, Key=NAME),
            store.read(NAME + SUFFIX),
        )
        store.seen.clear()
        write(once, OLD)
        assert not any(is_end(*request) or is_record(*request) for request in store.seen)
        assert store.read(NAME + SUFFIX) == record
        write(once, OLD, best=True)
        assert (
            store.client().head_object(Bucket=BUCKET, Key=NAME)["LastModified"]
            == before["LastModified"]
        )
        assert store.uploads() == []
        assert [m.best for m in once.versions("job")] == [True]
        write(once, OLD)  # they were called the best, and still are what they were
        assert [m.best for m in once.versions("job")] == [True]
        assert there(once, tmp_path) == OLD

    def test_an_object_that_somebody_damaged_is_made_anew(
        self, store: Store, once: S3Tier, tmp_path: Path
    ) -> None:
        """Its record says that the bytes are there already; the store's own checksum does not."""
        write(once, OLD)
        store.client().put_object(Bucket=BUCKET, Key=NAME, Body=bytes(noise(SIZE, 9)))
        write(once, OLD)
        assert there(once, tmp_path) == OLD

    def test_a_store_that_keeps_no_checksums(
        self, store: Store, once: S3Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = once._bucket.s3.head_object
        monkeypatch.setattr(
            once._bucket.s3, "head_object", lambda ChecksumMode="", **words: real(**words)
        )
        for _ in range(2):
            write(once, OLD)
            assert there(once, tmp_path) == OLD
        assert sum(is_end(*request) for request in store.seen) == 2

    def test_removal_in_the_middle_of_a_replacement(self, store: Store, once: S3Tier) -> None:
        write(once, OLD)
        store.trouble = lambda method, path: (
            "503 No" if is_end(method, path) or method == "DELETE" else None
        )
        with pytest.raises(CheckpointError):
            write(once, NEW)
        assert store.keys() == [NAME, NAME + SUFFIX, f"{NAME}{SUFFIX}.next"]
        for left in (2, 1):
            store.trouble = fail_at("DELETE", left)
            with pytest.raises(CheckpointError):
                once.delete("job", 1)
            assert once.versions("job") == ()
        store.trouble = lambda method, path: None
        once.delete("job", 1)
        assert store.keys() == []

    def test_a_training_that_saves_what_it_began_from(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The notice of an interruption comes before the first step: the same number, and the same
        bytes.
        """
        torch = pytest.importorskip("torch")
        from deepvm.checkpoint import Checkpointer

        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)

        def train(steps: int) -> int:
            torch.manual_seed(0)
            model = torch.nn.Linear(30, 30)
            optimizer = torch.optim.Adam(model.parameters())
            with Checkpointer(
                model=model, optimizer=optimizer, tiers=[f"s3://{BUCKET}/run"], every=100
            ) as saver:
                start = saver.restore_latest()
                for _ in range(steps):
                    model(torch.randn(4, 30)).square().mean().backward()
                    optimizer.step()
                saver.save(block=True).durable.result(30)
            return start

        train(1)
        store.seen.clear()
        assert train(0) == 1
        assert not any(is_end(*request) for request in store.seen)


def fail_at(wanted: str, number: int) -> Callable[[str, str], str | None]:
    """Trouble for the request of a method with this number, from 1, and those behind it."""
    count = itertools.count(1)
    return lambda method, path: (
        "503 Slow Down" if method == wanted and next(count) >= number else None
    )


def killed(store: Store, after: int) -> bool:
    """Another trainer saves version 1; it is killed when the store has done so many requests.

    Whether it was.
    """
    code = (
        "import sys\n"
        "from support.checkpoint.images import noise, plain_shard\n"
        "from deepvm.checkpoint.tiers.s3 import S3Tier\n"
        "tier = S3Tier(sys.argv[1], 'run', threads=1, attempts=1, endpoint=sys.argv[2])\n"
        f"data = bytearray({CHUNK_BYTES}) + noise({SIZE}, 2)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "tier.put(plain_shard(data, 1), lambda level: None)\n"
    )
    path = {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    words = [sys.executable, "-c", code, BUCKET, store.url]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **path}
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        assert child.stdout.readline() == b"ready\n"
        count = itertools.count()

        def trouble(method: str, path: str) -> str | None:
            if next(count) < after:
                return None
            child.kill()
            return "503 Slow Down"  # one that the store never got

        store.trouble = trouble
        child.communicate(b"go\n", timeout=60)
        store.trouble = lambda method, path: None
    return child.returncode == -signal.SIGKILL


def test_many_readers_share_the_memory_of_one(
    tier: S3Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks of a training restore at once from a node that has just started."""
    monkeypatch.setattr(object_store, "CHUNK_BYTES", 100)
    image = noise(40 * 100)
    manifest = manifest_of(image)
    tier.write(NewVersion(memoryview(image), "job", 1, [len(image)], lambda: manifest))
    asked, honest = [], tier._bucket.whole
    monkeypatch.setattr(
        tier._bucket, "whole", lambda *key, **more: (asked.append(key), honest(*key, **more))[1]
    )
    alone = tier.read("job", 1)[1]
    next(alone)
    assert len(asked) <= 9  # eight ahead
    alone.close()
    asked.clear()
    readers = [tier.read("job", 1)[1] for _ in range(16)]
    read = [bytearray() for _ in readers]
    for _ in range(6):
        for reader, own in zip(readers, read, strict=True):
            own += next(reader)
    assert len(asked) - 6 * 16 <= 2 * 16
    for reader, own in zip(readers, read, strict=True):
        for piece in reader:
            own += piece
    assert all(own == image for own in read) and tier._bucket._readers == 0
