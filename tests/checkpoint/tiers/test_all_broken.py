"""Every committed version is broken: a training must not begin at 0 as if there had been none,
wherever they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint import object_store
from support.checkpoint.cloud_stores import CloudStore
from support.checkpoint.disks import Disk, Folder, Objects
from support.checkpoint.memory_nodes import HERE, TOKEN, running, until
from support.effort import in_ring_2, sampled

torch = pytest.importorskip("torch")
pytest.importorskip("boto3")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.format.manifest import SUFFIX  # noqa: E402
from deepvm.checkpoint.network.endpoint import Endpoint  # noqa: E402
from deepvm.checkpoint.tiers.base import Tier  # noqa: E402
from deepvm.checkpoint.tiers.file import FileTier  # noqa: E402
from deepvm.checkpoint.tiers.replicated import ReplicatedTier  # noqa: E402
from deepvm.checkpoint.tiers.s3 import S3Tier  # noqa: E402
from deepvm.checkpoint.tiers.striped import StripedTier  # noqa: E402
from deepvm.checkpoint.tiers.tcp import TcpTier  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402


@dataclass
class Place:
    """A kind of tiers. ``open``: as after a restart of trainer and nodes, whose memory is empty;
    ``disks``: behind.
    """

    open: Callable[[], AbstractContextManager[list[Tier]]]
    disks: list[Disk]


@contextmanager
def file_place(folder: Path) -> Iterator[Place]:
    @contextmanager
    def open_tiers() -> Iterator[list[Tier]]:
        yield [FileTier(folder / "versions")]

    yield Place(open_tiers, [Folder(folder / "versions")])


@contextmanager
def two_files(folder: Path) -> Iterator[Place]:
    @contextmanager
    def open_tiers() -> Iterator[list[Tier]]:
        yield [FileTier(folder / "one"), FileTier(folder / "two")]

    yield Place(open_tiers, [Folder(folder / "one"), Folder(folder / "two")])


@contextmanager
def s3_place(folder: Path) -> Iterator[Place]:
    with object_store.running() as store:

        @contextmanager
        def open_tiers() -> Iterator[list[Tier]]:
            yield [S3Tier(object_store.BUCKET, "run", endpoint=store.url, attempts=1)]

        yield Place(open_tiers, [Objects(store)])


@contextmanager
def cloud_place(folder: Path | None) -> Iterator[Place]:
    store = CloudStore(folder)

    @contextmanager
    def open_tiers() -> Iterator[list[Tier]]:
        yield [store.tier()]

    yield Place(open_tiers, [store])


@contextmanager
def node_place(
    folder: Path, nodes: int, where: Callable[[], Endpoint] = lambda: HERE, *, replicas: int = 0
) -> Iterator[Place]:
    folders, starts = [folder / f"persist-{n}" for n in range(nodes)], iter(range(1000))

    @contextmanager
    def open_tiers() -> Iterator[list[Tier]]:
        with ExitStack() as stack:
            made = [stack.enter_context(running(persist=path, listen=where())) for path in folders]
            session = f"run {next(starts)}"
            tiers = [TcpTier(node.address, session, TOKEN) for node in made]  # type: ignore[attr-defined]
            yield [
                (
                    ReplicatedTier(tiers, replicas)
                    if replicas
                    else tiers[0]
                    if nodes == 1
                    else StripedTier(tiers)
                )
            ]
            # Durable is what one disk has
            assert until(lambda: not any(node.registry.queue for node in made))

    yield Place(open_tiers, [Folder(path) for path in folders])


@contextmanager
def node_with_bucket(folder: Path) -> Iterator[Place]:
    starts = iter(range(1000))
    with object_store.running() as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", store.url)

        @contextmanager
        def open_tiers() -> Iterator[list[Tier]]:
            with running(persist=f"s3://{object_store.BUCKET}/run") as node:
                yield [TcpTier(node.url, f"run {next(starts)}", TOKEN)]  # type: ignore[attr-defined]

        yield Place(open_tiers, [Objects(store)])


PLACES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "file": file_place,
    "file and file": two_files,
    "s3": s3_place,
    "gs": lambda folder: cloud_place(None),
    "az": cloud_place,
    "tcp to file": lambda folder: node_place(folder, 1),
    "tcp to s3": node_with_bucket,
    "tcp,tcp": lambda folder: node_place(folder, 2),
    "tcp,tcp?replicas=2": lambda folder: node_place(folder, 2, replicas=2),
}
if "OMPI_COMM_WORLD_RANK" in os.environ:  # test_mpi_streams.py runs these tests under mpirun
    from deepvm.checkpoint.network.endpoint import MpiEndpoint

    PLACES = {"mpi": lambda folder: node_place(folder, 1, MpiEndpoint.here)}


@pytest.fixture(params=in_ring_2(PLACES, "s3"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with PLACES[request.param](tmp_path) as made:
        yield made


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


def change(suffix: str, how: Callable[[bytes], bytes | None]) -> Callable[[Disk], None]:
    """Do this to all files of versions, or to all their records; None removes."""

    def work(disk: Disk) -> None:
        for name in [n for n in disk.names() if n.endswith(suffix)]:
            data = how(disk.read(name))
            disk.remove(name)
            if data is not None:
                disk.write(name, data)

    return work


BROKEN: dict[str, Callable[[Disk], None]] = {
    "cut": change(".pt", lambda data: data[:-1]),
    "longer": change(".pt", lambda data: data + b"x"),
    "empty": change(".pt", lambda data: b""),
    "removed": change(".pt", lambda data: None),
    "flipped": change(".pt", flip),
    "records gone": change(".pt" + SUFFIX, lambda data: None),
    "records empty": change(".pt" + SUFFIX, lambda data: b""),
    "records flipped": change(".pt" + SUFFIX, flip),
}


def saver_of(tiers: list[Tier], job: str = "job") -> Checkpointer:
    model = torch.nn.Linear(64, 64)
    return Checkpointer(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), tiers=tiers, job=job
    )


def save(place: Place, *versions: int, job: str = "job") -> None:
    """Durably, each of other bytes."""
    with place.open() as tiers, saver_of(tiers, job) as saver:
        for version in versions:
            saver._version = version
            saver.wait()  # it is changed by hand
            with torch.no_grad():
                saver._state.model.weight.fill_(version)
            assert saver.save(block=True).durable.result(30) == version


def restore(place: Place, **options: Any) -> int:
    with place.open() as tiers, saver_of(tiers) as saver:
        return saver.restore_latest(**options)


def contents(place: Place) -> set[bytes]:
    return {
        disk.read(name) for disk in place.disks for name in disk.names() if not name.startswith(".")
    }


def test_an_empty_place_starts_at_0(place: Place) -> None:
    assert restore(place) == 0


def test_versions_of_others_are_no_evidence(place: Place) -> None:
    save(place, 3, job="job-2")
    for disk in place.disks:
        BROKEN["records gone"](disk)
    assert restore(place) == 0


@pytest.mark.parametrize("how", sampled(BROKEN))
def test_a_run_does_not_begin_anew(place: Place, how: str) -> None:
    save(place, 3, 5)
    for disk in place.disks:
        BROKEN[how](disk)
    left = contents(place)
    with pytest.raises(CheckpointError, match="all checkpoints of job are damaged") as told:
        restore(place)
    for word in ("version 5", "version 3", "allow_fresh=True", "DEEPVM_JOB", "deepvm ckpt verify"):
        assert word in str(told.value)
    assert len(str(told.value)) < 2000 and contents(place) == left, (
        "nobody but the user gives up what is there"
    )


@pytest.mark.parametrize("how", sampled(["cut", "removed", "flipped", "records gone"]))
def test_the_user_may_begin_anew(place: Place, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is damaged is set aside: a run that comes to its numbers again does not overwrite it."""
    save(place, 3, 5)
    for disk in place.disks:
        BROKEN[how](disk)
    left = contents(place)
    assert restore(place, allow_fresh=True) == 0
    assert "starts over at 0" in caplog.text and "version 5" in caplog.text
    assert restore(place) == 0, "they are out of the way"
    save(place, 3)
    assert restore(place) == 3
    assert left <= contents(place), "and none is lost"


def test_a_good_version_is_restored_all_the_same(place: Place) -> None:
    save(place, 3, 5)
    for disk in place.disks:
        for name in disk.names():
            if "-000000000005." in name and name.endswith(".pt"):
                disk.write(name, b"")
    assert restore(place) == 3
    assert restore(place, allow_fresh=True) == 3


def test_the_other_place_has_it(tmp_path: Path) -> None:
    with two_files(tmp_path) as place:
        save(place, 3)
        BROKEN["records empty"](place.disks[0])
        assert restore(place) == 3
        for name in place.disks[0].names():
            place.disks[0].remove(name)
        assert restore(place) == 3
