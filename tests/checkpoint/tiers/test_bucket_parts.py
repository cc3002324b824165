"""Several ranks, one bucket: all parts or nothing, whoever dies."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.checkpoint.images import joint_images, joint_layout
from support.checkpoint.object_store import BUCKET, Store, running
from support.effort import THOROUGH
from support.places import TESTS

from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout, Segment
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.tiers import checkpoint_store
from deepvm.checkpoint.tiers.s3 import S3Tier
from deepvm.errors import CheckpointError, DamagedError, TierBusyError

pytestmark = pytest.mark.xdist_group("object store")  # one process starts the server, once

SIZE = 30_000


def layout_of(world: int, size: int = SIZE) -> Layout:
    return joint_layout(world, size)


@pytest.fixture
def store() -> Iterator[Store]:
    with running() as found:
        yield found


class Run:
    """A training of several ranks: threads, each with a tier of its own."""

    def __init__(self, store: Store, session: str, world: int = 2, *, epoch: int = 0) -> None:
        self.tiers = [
            S3Tier(BUCKET, "run", keep=2, endpoint=store.url, attempts=2, session=session)
            for _ in range(world)
        ]
        for tier in self.tiers if epoch else ():
            tier.begin("job", epoch)

    def put(
        self,
        version: int,
        parts: list[bytearray],
        layout: Layout,
        ranks: Sequence[int],
        attempt: int = 0,
    ) -> list[object]:
        """What each rank got: its levels, or why not."""
        found: list[object] = [None] * len(ranks)

        def one(place: int, rank: int) -> None:
            levels: list[Level] = []
            shard = Shard("job", version, rank, layout, memoryview(parts[rank]), attempt=attempt)
            try:
                self.tiers[rank].put(shard, levels.append)
                found[place] = levels
            except CheckpointError as error:
                found[place] = error

        threads = [threading.Thread(target=one, args=pair) for pair in enumerate(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found


def complete(store: Store, folder: Path) -> dict[int, bytes]:
    """The versions that a training would find, and their bytes."""
    tier = S3Tier(BUCKET, "run", endpoint=store.url)
    return {m.version: tier.fetch(m, folder).read_bytes() for m in tier.versions("job")}


def hidden(store: Store) -> list[str]:
    """What is left of parts: objects, and uploads that were not completed."""
    bucket = S3Tier(BUCKET, "run", endpoint=store.url)._bucket
    uploads = bucket._list("list_multipart_uploads", "Uploads", "run/")
    return [*bucket.sizes("run/.parts/"), *(row["Key"] for row in uploads)]


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_write_one_object(world: int, store: Store, tmp_path: Path) -> None:
    layout, run, wholes = layout_of(world), Run(store, "s", world), {}
    for version in (1, 2, 3):
        wholes[version], parts = joint_images(layout, version)
        assert run.put(version, parts, layout, range(world)) == [[Level.DURABLE]] * world
    assert complete(store, tmp_path) == {2: wholes[2], 3: wholes[3]}  # keep=2
    assert hidden(store) == []


def test_parts_of_many_chunks(store: Store, tmp_path: Path) -> None:
    layout = layout_of(2, 5 * CHUNK_BYTES + 7)
    whole, parts = joint_images(layout, 1)
    assert Run(store, "s").put(1, parts, layout, [0, 1]) == [[Level.DURABLE]] * 2
    assert complete(store, tmp_path) == {1: whole}


def test_a_rank_without_bytes(store: Store, tmp_path: Path) -> None:
    layout = Layout(SIZE, ((Segment(0, SIZE),), ()))
    whole, parts = joint_images(layout, 1)
    assert Run(store, "s").put(1, parts, layout, [0, 1]) == [[Level.DURABLE]] * 2
    assert complete(store, tmp_path) == {1: whole}


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_comes_leaves_the_version_before_it(
    missing: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, run = layout_of(2), Run(store, "s")
    first, parts = joint_images(layout, 1)
    run.put(1, parts, layout, [0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_store, "LIMIT_S", 0.3)
        (error,) = run.put(2, parts, layout, [1 - missing])
    assert isinstance(error, CheckpointError) and "in time" in str(error)
    assert complete(store, tmp_path) == {1: first} and hidden(store) == []
    # The next run takes nothing of what was left.
    second, parts = joint_images(layout, 2)
    assert Run(store, "next").put(2, parts, layout, [0, 1]) == [[Level.DURABLE]] * 2
    assert complete(store, tmp_path)[2] == second


def test_a_part_that_is_not_what_was_sent(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, run = layout_of(2), Run(store, "s")
    _, parts = joint_images(layout, 1)
    honest = run.tiers[0]._bucket.whole

    def flipped(key: str, **options: str) -> bytes:
        data = bytearray(honest(key, **options))
        data[10] ^= 1 if ".parts/" in key else 0
        return bytes(data)

    monkeypatch.setattr(run.tiers[0]._bucket, "whole", flipped)
    first, second = run.put(1, parts, layout, [0, 1])
    assert isinstance(first, DamagedError)
    assert isinstance(second, CheckpointError) and "rank 0 did not commit it" in str(second)
    assert complete(store, tmp_path) == {} and hidden(store) == []


def test_a_newer_version_overtakes(store: Store) -> None:
    """Rank 0 waits for others no longer than the version is wanted."""
    layout, run, left = layout_of(2), Run(store, "s"), [3]
    _, parts = joint_images(layout, 1)

    def ready(end: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise TierBusyError("a newer checkpoint is saved before a preemption")

    with pytest.raises(TierBusyError):
        run.tiers[0].put(
            Shard("job", 1, 0, layout, memoryview(parts[0]), ready=ready), lambda level: None
        )


def test_generations(store: Store, tmp_path: Path) -> None:
    """An older one is refused, and takes nothing of a newer one away."""
    layout = layout_of(2)
    whole, parts = joint_images(layout, 1)
    old, new = Run(store, "old", epoch=1), Run(store, "new", epoch=2)
    assert all("generation 1 is over" in str(found) for found in old.put(1, parts, layout, [0, 1]))
    sent = new.tiers[1]._part_name(Shard("job", 1, 1, layout, memoryview(parts[1])), 1, 2)
    new.tiers[1]._send_part(Shard("job", 1, 1, layout, memoryview(parts[1])), sent)
    old.tiers[0]._clear_parts("job", 1)
    assert hidden(store) == [sent]
    assert new.put(1, parts, layout, [0, 1]) == [[Level.DURABLE]] * 2
    assert complete(store, tmp_path) == {1: whole} and hidden(store) == []
    (found,) = new.tiers[0].versions("job")
    fresh = S3Tier(BUCKET, "run", endpoint=store.url)  # another rank's, which has listed nothing
    assert fresh.fetch(found, tmp_path / "other").read_bytes() == whole


# --- kills ----------------------------------------------------------------------------------------

CHILD = """
import sys
from support.checkpoint.images import joint_images
from test_bucket_parts import layout_of
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.tiers.s3 import S3Tier
rank = int(sys.argv[3])
layout = layout_of(2)
parts = joint_images(layout, 2)[1]
tier = S3Tier(sys.argv[1], "run", keep=2, threads=1, attempts=1, endpoint=sys.argv[2], session="s")
print("ready", flush=True); sys.stdin.readline()
tier.put(Shard("job", 2, rank, layout, memoryview(parts[rank])), lambda level: None)
"""


def killed_with(store: Store, rank: int, after: int, run: Run) -> tuple[bool, object]:
    """Version 2 of two ranks, one of which is killed when the store has had so many requests that
    are its alone.

    Returns whether it was, and what the other one got.
    """
    path = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(Path(__file__).parent), *sys.path])}
    words = [sys.executable, "-c", CHILD, BUCKET, store.url, str(rank)]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **path}
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        assert child.stdout.readline() == b"ready\n"
        count = itertools.count()
        theirs = f"/{BUCKET}/run/.parts/job/2.0." if rank else ""

        def trouble(method: str, path: str) -> str | None:
            if (
                threading.current_thread().name == "other"
                or not path.startswith(theirs)
                or next(count) < after
            ):
                return None
            child.kill()
            return "503 Slow Down"

        store.trouble = trouble
        child.stdin.write(b"go\n")
        child.stdin.flush()
        (got,) = run.put(2, joint_images(layout_of(2), 2)[1], layout_of(2), [1 - rank])
        store.trouble = lambda method, path: None
        child.stdin.close()
        child.wait(60)
    return child.returncode == -signal.SIGKILL, got


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_at_any_request(
    rank: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 is there or not, never in part.

    The one before it stays, and the next run leaves nothing of it.
    """
    layout = layout_of(2)
    first, (second, _) = joint_images(layout, 1)[0], joint_images(layout, 2)
    kills = 0
    for after in itertools.count(0, (2, 7)[not rank] // (1 + THOROUGH)):
        run = Run(store, "s")
        for tier in run.tiers[:1]:
            for version in (1, 2):
                tier.delete("job", version)
        assert (
            run.put(1, joint_images(layout, 1)[1], layout, [0, 1], attempt=1)
            == [[Level.DURABLE]] * 2
        )
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_store, "LIMIT_S", 2.0)
            was_killed, got = killed_with(store, rank, after, run)
        found = complete(store, tmp_path / str(after))
        assert found[1] == first and found.get(2, second) == second
        if got == [Level.DURABLE]:
            assert found[2] == second
        after_run = Run(store, f"next-{after}")
        third, parts = joint_images(layout, 3)
        assert after_run.put(3, parts, layout, [0, 1]) == [[Level.DURABLE]] * 2
        assert hidden(store) == []
        after_run.tiers[0].delete("job", 3)
        kills += was_killed
        if not was_killed:
            break
    assert kills >= 3
