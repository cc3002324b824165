"""What every tier must do. A new one is one line in ``FACTORIES``; a test sees that it is there."""

from __future__ import annotations

import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from support.checkpoint import object_store
from support.checkpoint.cloud_stores import CloudStore
from support.checkpoint.images import chunk_crcs, noise, plain_shard, zip_shard
from support.checkpoint.memory_nodes import HERE, TOKEN, running, until
from support.effort import in_ring_2, sampled

from deepvm.checkpoint.files.file_names import part_job
from deepvm.checkpoint.files.stripe import read_part_file
from deepvm.checkpoint.format.checksums import finish
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.network.endpoint import Endpoint
from deepvm.checkpoint.network.protocol import RequestRefused
from deepvm.checkpoint.snapshot.host_buffer import FillProgress
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.registry import TIERS
from deepvm.checkpoint.tiers.replicated import ReplicatedTier
from deepvm.checkpoint.tiers.s3 import S3Tier
from deepvm.checkpoint.tiers.striped import StripedTier
from deepvm.checkpoint.tiers.tcp import TcpTier
from deepvm.errors import CheckpointError, DamagedError, RequestError, TierBusyError

LARGE_BYTES = CHUNK_BYTES + 1000


@dataclass
class Bench:
    """A tier to be tested, and what a test may do behind its back.

    Attributes:
        tier: the tier.
        again: another one for the same place, as after a restart of the trainer.
        damage: change one byte of a version where it is kept, given job, version and offset.
        breaking: while this context lasts, every put fails.
        levels: what is acknowledged, in order.
        most: how many versions can be put at once without waiting; one more is refused with
            ``TierBusyError``. None where every put waits for its turn.
        own_checksums: manifests have those of the whole file, not only of its parts.
    """

    tier: Tier
    again: Callable[[], Tier]
    damage: Callable[[str, int, int], None]
    breaking: Callable[[], AbstractContextManager[None]]
    levels: tuple[Level, ...] = (Level.DURABLE,)
    most: int | None = None
    own_checksums: bool = True


def damage_file(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte[0] ^ 1]))


@contextmanager
def file_bench(folder: Path) -> Iterator[Bench]:
    place = folder / "versions"

    def damage(job: str, version: int, offset: int) -> None:
        damage_file(place / f"{job}-{version:012d}.pt", offset)

    @contextmanager
    def breaking() -> Iterator[None]:
        from deepvm.checkpoint.files import durable_write

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(durable_write, "_write_pieces", fail)
            yield

    yield Bench(FileTier(place), lambda: FileTier(place), damage, breaking)


@contextmanager
def s3_bench(folder: Path) -> Iterator[Bench]:
    with object_store.running() as store:

        def make() -> Tier:
            return S3Tier(
                object_store.BUCKET, "runs/one", endpoint=store.url, attempts=1, threads=3
            )

        def damage(job: str, version: int, offset: int) -> None:
            s3, where = (
                store.client(),
                {"Bucket": object_store.BUCKET, "Key": f"runs/one/{job}-{version:012d}.pt"},
            )
            data = bytearray(s3.get_object(**where)["Body"].read())
            data[offset] ^= 1
            s3.put_object(**where, Body=bytes(data))

        @contextmanager
        def breaking() -> Iterator[None]:
            store.trouble = lambda method, path: "503 Slow Down" if method == "PUT" else None
            yield
            store.trouble = lambda method, path: None

        yield Bench(make(), cache(make), damage, breaking)


@contextmanager
def cloud_bench(folder: Path | None) -> Iterator[Bench]:
    store = CloudStore(folder)

    def damage(job: str, version: int, offset: int) -> None:
        (name,) = (
            n for n in store.names() if n.startswith(f"{job}-{version:012d}.") and n.endswith(".pt")
        )
        data = bytearray(store.read(name))
        data[offset] ^= 1
        store.write(name, bytes(data))

    @contextmanager
    def breaking() -> Iterator[None]:
        store.trouble = lambda request, path: "fail" if request in ("close", "pipe_file") else None
        yield
        store.trouble = lambda request, path: None

    yield Bench(store.tier(), cache(store.tier), damage, breaking)


@contextmanager
def node_bench(
    folder: Path, nodes: int, where: Callable[[], Endpoint] = lambda: HERE, *, replicas: int = 0
) -> Iterator[Bench]:
    made: list[Tier] = []
    with ExitStack() as stack:
        running_nodes = [
            stack.enter_context(
                running(256 * 2**20, folder / f"persist-{n}", keep=10, listen=where())
            )
            for n in range(nodes)
        ]

        def make() -> Tier:
            tiers = [TcpTier(node.address, f"run {len(made)}", TOKEN) for node in running_nodes]  # type: ignore[attr-defined]
            made.append(
                ReplicatedTier(tiers, replicas)
                if replicas
                else tiers[0]
                if nodes == 1
                else StripedTier(tiers)
            )
            return made[-1]

        def damage(job: str, version: int, offset: int) -> None:
            """In memory, from where it is served, and on disk, from where it would be."""
            # Durable: on one of them
            assert until(lambda: not any(node.registry.queue for node in running_nodes))
            for number, node in enumerate(running_nodes, start=1):
                name = job if nodes == 1 or replicas else part_job(job, number, nodes)
                path, at = folder / f"persist-{number - 1}" / f"{name}-{version:012d}.pt", offset
                if name != job:
                    part = read_part_file(path)
                    if not part.start <= offset < part.start + part.length:
                        continue
                    at = offset - part.start + part.offset
                node.registry.complete(name)[version].image[at] ^= 1
                damage_file(path, at)

        @contextmanager
        def breaking() -> Iterator[None]:
            def fail(*_: object) -> None:
                raise RequestRefused("full", "it broke when all bytes were there")

            with pytest.MonkeyPatch.context() as patch:
                for node in running_nodes:
                    patch.setattr(node.registry, "commit", fail)
                yield

        levels = (Level.REMOTE, Level.DURABLE)
        yield Bench(
            make(), make, damage, breaking, levels, own_checksums=nodes == 1 or bool(replicas)
        )
        for tier in made:
            tier.close()


FACTORIES: dict[str, Callable[[Path], AbstractContextManager[Bench]]] = {
    "file": file_bench,
    "s3": s3_bench,
    "gs-memory": lambda folder: cloud_bench(None),
    "az-disk": cloud_bench,
    "tcp": lambda folder: node_bench(folder, 1),
    "tcp-2": lambda folder: node_bench(folder, 2),
    "tcp-replicas": lambda folder: node_bench(folder, 2, replicas=2),
}
if "OMPI_COMM_WORLD_RANK" in os.environ:  # test_mpi_streams.py runs these tests under mpirun
    from deepvm.checkpoint.network.endpoint import MpiEndpoint

    FACTORIES["mpi"] = lambda folder: node_bench(folder, 1, MpiEndpoint.here)
ELSEWHERE = {"mpi", "tcps"}
"""Schemes of other tests: mpi has these under mpirun (test_mpi_streams.py).

Tcps is tcp in TLS (test_node.py).
"""


def test_every_scheme_is_under_contract() -> None:
    assert set(TIERS) - ELSEWHERE <= {name.partition("-")[0] for name in FACTORIES}


@pytest.fixture(params=in_ring_2(FACTORIES, "s3"))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with FACTORIES[request.param](tmp_path) as made:
        yield made
        made.tier.close()


SETTLE_S = 20


def put(tier: Tier, shard: Shard) -> list[Level]:
    levels: list[Level] = []
    tier.put(shard, levels.append)
    assert tier.settle(SETTLE_S)
    return levels


def versions(tier: Tier, job: str = "job") -> list[int]:
    return [m.version for m in tier.versions(job)]


def test_it_says_where_it_is(bench: Bench) -> None:
    assert "://" in bench.tier.url
    assert "secret" not in bench.tier.url


def test_unknown_jobs_are_empty(bench: Bench) -> None:
    assert bench.tier.versions("nobody") == ()
    put(bench.tier, plain_shard(noise(100)))
    assert bench.tier.versions("nobody") == ()
    assert bench.tier.versions("jo") == ()  # the start of another's name


def test_levels_come_the_weakest_first(bench: Bench) -> None:
    assert put(bench.tier, plain_shard(noise(5000))) == list(bench.levels)


def test_an_acknowledged_version_is_there_at_once_and_after_a_restart(bench: Bench) -> None:
    for version in (1, 3, 2, 20):
        seen: list[bool] = []
        bench.tier.put(
            plain_shard(noise(5000, version), version),
            lambda level, version=version, seen=seen: seen.append(version in versions(bench.tier)),
        )
        assert bench.tier.settle(SETTLE_S)
        assert all(seen) and seen
    assert versions(bench.tier) == [20, 3, 2, 1]
    assert versions(bench.again()) == [20, 3, 2, 1]


@pytest.mark.parametrize("size", [1, 2 * CHUNK_BYTES + 12345])
def test_the_bytes_come_back(bench: Bench, tmp_path: Path, size: int) -> None:
    data = noise(size, 7)
    wanted = bytes(data)
    put(bench.tier, plain_shard(data, 7))
    (manifest,) = bench.again().versions("job")
    assert (manifest.job, manifest.version, manifest.world, manifest.size) == ("job", 7, 1, size)
    assert manifest.crcs == (chunk_crcs(memoryview(wanted)) if bench.own_checksums else ())
    assert bench.again().fetch(manifest, tmp_path / "restored").read_bytes() == wanted


@pytest.mark.parametrize("records", [(100, CHUNK_BYTES, 5_000_000)])
def test_zip_files_get_their_checksums(
    bench: Bench, tmp_path: Path, records: tuple[int, ...]
) -> None:
    shard, wanted = zip_shard(5, records), zip_shard(5, records)
    finish(wanted.image, wanted.layout)
    put(bench.tier, shard)
    (manifest,) = bench.tier.versions("job")
    assert manifest.layout == shard.layout.digest
    path = bench.tier.fetch(manifest, tmp_path / "restored")
    assert path.read_bytes() == wanted.image
    assert zipfile.ZipFile(path).testzip() is None


@pytest.mark.parametrize("offset", sampled([CHUNK_BYTES - 1, CHUNK_BYTES + 999]))
def test_damaged_bytes_are_refused(bench: Bench, tmp_path: Path, offset: int) -> None:
    put(bench.tier, plain_shard(noise(CHUNK_BYTES + 1000, 1), 1))
    put(bench.tier, plain_shard(noise(CHUNK_BYTES + 1000, 2), 2))
    bench.damage("job", 2, offset)
    newest, older = bench.again().versions("job")
    with pytest.raises(DamagedError, match="damaged"):
        bench.again().fetch(newest, tmp_path / "restored")
    assert bench.again().fetch(older, tmp_path / "restored").read_bytes() == noise(
        CHUNK_BYTES + 1000, 1
    )


def test_a_version_that_is_gone(bench: Bench, tmp_path: Path) -> None:
    put(bench.tier, plain_shard(noise(100), 1))
    (manifest,) = bench.tier.versions("job")
    other = type(manifest)("job", 9, 1, manifest.size, manifest.crcs)
    with pytest.raises(CheckpointError):
        bench.tier.fetch(other, tmp_path / "restored")


def test_a_put_that_fails_harms_nothing(bench: Bench, tmp_path: Path) -> None:
    put(bench.tier, plain_shard(noise(5000, 1), 1))
    for version in (2, 1):
        with bench.breaking(), pytest.raises(CheckpointError):
            put(bench.tier, plain_shard(noise(5000, 2), version))
        (manifest,) = bench.again().versions("job")
        assert bench.again().fetch(manifest, tmp_path / "restored").read_bytes() == noise(5000, 1)
    assert put(bench.tier, plain_shard(noise(5000, 3), 3)) == list(bench.levels)
    assert versions(bench.tier) == [3, 1]


@contextmanager
def filled_slowly(shard: Shard, *, until: int | None = None) -> Iterator[Shard]:
    """The shard whose bytes come while it is put; after ``until`` bytes the copy fails."""
    data, image = bytes(shard.image), memoryview(bytearray(len(shard.image)))
    filling = FillProgress(image, shard.layout, shared=False)

    def fill() -> None:
        for start in range(0, len(data), 2**20):
            if until is not None and start >= until:
                filling.failed(CheckpointError("the copy failed"))
                return
            time.sleep(0.002)
            image[start : start + 2**20] = data[start : start + 2**20]
            filling.reached(min(start + 2**20, len(data)))

    thread = threading.Thread(target=fill)
    thread.start()
    yield replace(shard, image=image, ready=filling.ready)
    thread.join()


def test_a_version_is_sent_while_it_is_copied(bench: Bench, tmp_path: Path) -> None:
    if not bench.tier.streams:
        pytest.skip("it is only given finished copies")
    wanted = zip_shard(5, (100, CHUNK_BYTES, LARGE_BYTES))
    with filled_slowly(zip_shard(5, (100, CHUNK_BYTES, LARGE_BYTES))) as shard:
        assert put(bench.tier, shard) == list(bench.levels)
    finish(wanted.image, wanted.layout)
    (manifest,) = bench.tier.versions("job")
    assert bench.tier.fetch(manifest, tmp_path / "restored").read_bytes() == wanted.image


def test_a_copy_that_fails_while_it_is_sent_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    if not bench.tier.streams:
        pytest.skip("it is only given finished copies")
    put(bench.tier, plain_shard(noise(5000, 1), 1))
    for version in (2, 1):
        slow = filled_slowly(plain_shard(noise(17_000_000, 2), version), until=9_000_000)
        with slow as shard, pytest.raises(CheckpointError, match="the copy failed"):
            put(bench.tier, shard)
        (manifest,) = bench.again().versions("job")
        assert bench.again().fetch(manifest, tmp_path / "restored").read_bytes() == noise(5000, 1)
    assert put(bench.tier, plain_shard(noise(5000, 3), 3)) == list(bench.levels)


def test_a_version_put_again_is_the_new_one(bench: Bench, tmp_path: Path) -> None:
    put(bench.tier, plain_shard(noise(5000, 1), 1))
    put(bench.tier, plain_shard(noise(6000, 2), 1))
    (manifest,) = bench.tier.versions("job")
    assert bench.tier.fetch(manifest, tmp_path / "restored").read_bytes() == noise(6000, 2)


def test_jobs_do_not_meet(bench: Bench, tmp_path: Path) -> None:
    for number, job in enumerate(("a", "a-b", "a-000000000001")):
        put(bench.tier, plain_shard(noise(500, number), 1, job))
    for number, job in enumerate(("a", "a-b", "a-000000000001")):
        (manifest,) = bench.tier.versions(job)
        path = bench.tier.fetch(manifest, tmp_path / "restored")
        assert path.read_bytes() == noise(500, number)


@pytest.mark.parametrize("job", ["../x"])
def test_names_that_lead_elsewhere(bench: Bench, job: str) -> None:
    with pytest.raises(RequestError):
        put(bench.tier, plain_shard(noise(100), 1, job))


def test_an_image_of_another_size(bench: Bench) -> None:
    shard = plain_shard(noise(100))
    with pytest.raises((RequestError, CheckpointError)):
        put(bench.tier, Shard("job", 1, 0, shard.layout, shard.image[:99]))
    assert versions(bench.tier) == []


def test_two_at_once(bench: Bench, tmp_path: Path) -> None:
    count = 2 if bench.most is None else bench.most
    levels: dict[int, list[Level]] = {v: [] for v in range(1, count + 1)}
    busy: list[int] = []

    def work(version: int) -> None:
        try:
            bench.tier.put(
                plain_shard(noise(LARGE_BYTES, version), version), levels[version].append
            )
        except TierBusyError:
            busy.append(version)

    threads = [threading.Thread(target=work, args=(v,)) for v in levels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert bench.tier.settle(SETTLE_S)
    assert bench.most is not None or not busy
    done = [v for v in levels if v not in busy]
    assert done
    assert all(levels[v] == list(bench.levels) for v in done)
    assert sorted(versions(bench.again()), reverse=True) == sorted(done, reverse=True)
    for manifest in bench.again().versions("job"):
        path = bench.again().fetch(manifest, tmp_path / str(manifest.version))
        assert path.read_bytes() == noise(LARGE_BYTES, manifest.version)


@contextmanager
def kept_in_a_folder(folder: Path) -> Iterator[Callable[..., Tier]]:
    yield lambda **policy: FileTier(folder / "versions", **policy)


@contextmanager
def kept_in_a_bucket(folder: Path) -> Iterator[Callable[..., Tier]]:
    with object_store.running() as store:
        yield lambda **policy: S3Tier(object_store.BUCKET, endpoint=store.url, **policy)


KEPT = {"file": kept_in_a_folder, "s3": kept_in_a_bucket}


@pytest.mark.parametrize("kind", in_ring_2(["file", "s3"], "s3"))
class TestRetention:
    """Where the trainer decides what stays."""

    @pytest.fixture
    def make(self, kind: str, tmp_path: Path) -> Iterator[Callable[..., Tier]]:
        with KEPT[kind](tmp_path) as made:
            yield made

    def test_the_newest_and_every_kth(self, make: Callable[..., Tier], tmp_path: Path) -> None:
        tier = make(keep=2, every=300)
        for version in range(100, 1000, 100):
            put(tier, plain_shard(noise(1000, version), version))
            put(tier, plain_shard(noise(10), 1, "other"))
        assert versions(tier) == [900, 800, 600, 300]
        assert versions(tier, "other") == [1]
        for manifest in tier.versions("job"):
            assert tier.fetch(manifest, tmp_path / "restored").read_bytes() == noise(
                1000, manifest.version
            )
        tier.close()
        tier.close()

    def test_all_unless_asked(self, make: Callable[..., Tier]) -> None:
        tier = make()
        for version in range(5):
            put(tier, plain_shard(noise(10), version))
        assert versions(tier) == [4, 3, 2, 1, 0]

    def test_an_older_run_that_went_further_is_left_alone(self, make: Callable[..., Tier]) -> None:
        old = make()
        for version in (1, 2, 3, 300, 400):
            put(old, plain_shard(noise(10), version))
        new = make(keep=2)
        for version in (4, 5):
            put(new, plain_shard(noise(10), version))
            assert version in versions(new)
        assert versions(new) == [400, 300, 5, 4]

    def test_what_is_older_goes_after_the_newer_is_durable(self, make: Callable[..., Tier]) -> None:
        tier = make(keep=1)
        put(tier, plain_shard(noise(10), 1))
        seen: list[list[int]] = []
        tier.put(plain_shard(noise(10), 2), lambda level: seen.append(versions(tier)))
        assert (seen, versions(tier)) == ([[2, 1]], [2])

    def test_policies_that_cannot_be(self, make: Callable[..., Tier]) -> None:
        with pytest.raises(RequestError):
            make(keep=-1)
        with pytest.raises(RequestError):
            make(keep=1, every=-1)
        tier = make(every=5)  # all stay anyway
        put(tier, plain_shard(noise(10), 1))
        put(tier, plain_shard(noise(10), 2))
        assert versions(tier) == [2, 1]


def test_old_versions_that_cannot_be_removed_do_not_make_the_new_one_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def take_away(level: Level) -> None:
        (tmp_path / "p").rename(tmp_path / "q")
        (tmp_path / "p").touch()

    FileTier(tmp_path / "p", keep=1).put(plain_shard(noise(10), 1), take_away)
    assert "old checkpoints stay" in caplog.text
