"""Levels that will never be reached: whoever waits for one is told soon, and why."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint.memory_nodes import (
    Acks,
    NodeDisk,
    make_image,
    make_layout,
    running,
    tier,
    until,
)

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.format.manifest import (  # noqa: E402
    CommitRecord,  # noqa: E402
    Level,
    Shard,
)
from deepvm.checkpoint.network import client  # noqa: E402
from deepvm.checkpoint.node import flusher  # noqa: E402
from deepvm.checkpoint.node.version_registry import VersionRegistry  # noqa: E402
from deepvm.checkpoint.tiers.base import Tier  # noqa: E402
from deepvm.checkpoint.tiers.file import FileTier  # noqa: E402
from deepvm.checkpoint.tiers.replicated import ReplicatedTier  # noqa: E402
from deepvm.checkpoint.training.save_handle import Handle  # noqa: E402
from deepvm.errors import CheckpointError  # noqa: E402

SOON_S = 10.0


def saver_of(*tiers: Tier) -> Checkpointer:
    model = torch.nn.Linear(64, 64)
    return Checkpointer(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), tiers=tiers
    )


def why_not_durable(handle: Handle) -> str:
    error = handle.durable.exception(SOON_S)
    assert isinstance(error, CheckpointError)
    return str(error)


def test_a_promise_that_does_not_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Python 3.10 the futures' own TimeoutError was another class than the one that
    ``except`` names.
    """

    class Late(Exception):
        pass

    def result(self: object, limit_s: float | None = None) -> int:
        raise Late

    handle = Handle(3)
    monkeypatch.setattr(Future, "result", result)
    with pytest.raises(CheckpointError, match="no tier has acknowledged the checkpoint after 0 s"):
        handle.await_safe(True, 0.01)


@pytest.mark.parametrize(
    ("disks", "count", "folder", "warned"),
    [
        (False, 1, False, True),
        (False, 2, False, True),
        (True, 1, False, False),
        (False, 1, True, False),
    ],
    ids=["no disk", "no disk, replicas", "a node with a disk", "a folder, too"],
)
def test_a_training_in_the_memory_of_nodes_only_is_warned_once(
    disks: bool,
    count: int,
    folder: bool,
    warned: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(running(persist=tmp_path / f"p{n}" if disks else None))
            for n in range(count)
        ]
        places: list[Tier] = [
            tier(nodes[0]) if count == 1 else ReplicatedTier([tier(node) for node in nodes], count)
        ]
        saver = stack.enter_context(
            saver_of(*places, *([FileTier(tmp_path / "f")] if folder else []))
        )
        for version in range(2):
            saver._version = version
            handle = saver.save(block=True)
            wait([handle.durable], SOON_S)
            assert handle.remote_done.result(0) == handle.snapshot_done.result(SOON_S) == version
            assert (handle.durable.exception(0) is None) is not warned
    lines = [record for record in caplog.records if "lost with" in record.message]
    assert [line.levelname for line in lines] == ["WARNING"] * warned
    assert all("--persist" in line.message and "tiers" in line.message for line in lines)


def test_a_node_whose_folder_is_in_memory(memory_folder: Path) -> None:
    """It writes there, and finds it again after its own end; durable it is not."""
    with running(persist=memory_folder) as node, saver_of(tier(node)) as saver:
        handle = saver.save(block=True)
        assert handle.remote_done.result(0) == 0
        assert re.search(
            f"{memory_folder} lies in that machine's memory too.*--persist", why_not_durable(handle)
        )
        assert until(lambda: node.metrics()["flush"]["flushed"] == 1)
        assert node.metrics()["volatile"] and not node.metrics()["versions"][0]["durable"]
        link = tier(node)  # and who asks late is told no more
        acks = Acks()
        layout = make_layout(10_000)
        link.put(Shard("other", 1, 0, layout, make_image(layout, 1)), acks)
        assert link.settle(SOON_S) and acks.levels == [Level.REMOTE]
        link.close()
    assert list(memory_folder.glob("*.pt"))


class Held(Tier):
    """A place elsewhere that has a version when the test says so."""

    def __init__(self, error: CheckpointError | None = None) -> None:
        self.go, self.error = threading.Event(), error

    @property
    def url(self) -> str:
        return "held://"

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        shard.ready(shard.layout.size)
        assert self.go.wait(SOON_S)
        if self.error is not None:
            raise self.error
        acknowledged(Level.REMOTE)

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        return ()

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        raise CheckpointError("not here")


def test_a_disk_of_this_machine_does_not_make_it_remote(tmp_path: Path) -> None:
    """The disk may go with the machine: who saves because that is about to be taken waits for the
    other place.
    """
    place = Held()
    with saver_of(place, FileTier(tmp_path)) as saver:
        handle = saver.save()
        assert handle.durable.result(SOON_S) == 0
        assert not wait([handle.remote_done], 0.2).done
        place.go.set()
        assert handle.remote_done.result(SOON_S) == 0


def test_a_disk_of_this_machine_is_better_than_nothing(tmp_path: Path) -> None:
    place = Held(CheckpointError("held:// is gone"))
    place.go.set()
    with saver_of(place, FileTier(tmp_path)) as saver:
        handle = saver.save(block=True)
        assert handle.durable.result(SOON_S) == 0
        assert "held:// is gone" in str(handle.remote_done.exception(SOON_S))
    with saver_of(FileTier(tmp_path)) as saver:  # where it is all there is, its word counts
        assert saver.save(block=True).remote_done.result(SOON_S) == 0


def test_a_folder_beside_it_that_fails(tmp_path: Path) -> None:
    with running() as node, saver_of(tier(node), FileTier(tmp_path / "f" / "g")) as saver:
        (tmp_path / "f").write_text("in the way")
        handle = saver.save(block=True)
        assert handle.remote_done.result(0) == 0
        why_not_durable(handle)
        assert saver.metrics["saved"] == 1


def test_a_folder_in_memory(tmp_path: Path) -> None:
    folder = FileTier(tmp_path)
    folder.volatile = True
    with saver_of(folder) as saver:
        handle = saver.save()
        assert handle.local_done.result(SOON_S) == 0
        assert "memory only" in why_not_durable(handle)
        assert isinstance(handle.remote_done.exception(SOON_S), CheckpointError)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_nothing(
    tmp_path: Path, node_disk: NodeDisk, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "_FIRST_RETRY_S", 0.05)
    node_disk.fail(error)
    with running(persist=tmp_path / "p") as node, saver_of(tier(node)) as saver:
        handle = saver.save(block=True)
        assert f"cannot be written: {os.strerror(error)}" in why_not_durable(handle)
        node_disk.work()
        assert until(lambda: not any(job.trouble for job in node.registry.jobs.values()))
        saver._version += 1  # a step
        assert saver.save(block=True).durable.result(SOON_S) == 1


def lost(put: Callable[[Shard, Acks], None], world: int = 1) -> tuple[Acks, list[str]]:
    layout, reasons, acks = make_layout(10_000, world), list[str](), Acks()
    shard = Shard(
        "job", 1, 0, layout, make_image(layout, 1), lost=lambda reason: reasons.append(str(reason))
    )
    put(shard, acks)
    return acks, reasons


def test_a_version_that_the_node_gives_up() -> None:
    """The other rank never comes, and its lease is over."""
    with running(lease_s=0.3) as node:
        to = tier(node)
        acks, reasons = lost(to.put, world=2)
        layout = make_layout(10_000, 2)
        assert not reasons
        with node.registry.changed:
            node.registry._drop(node.registry.jobs["job"].partial[1])
        assert until(lambda: reasons == ["version 1: the memory node gave it up"])
        assert acks.levels == [] and layout.world == 2
        assert to.settle(1.0)
        to.close()


def test_a_level_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_POLL_S", 0.2)
    with running() as node:
        to = tier(node, await_s=0.2)
        _, reasons = lost(to.put, world=2)
        assert until(lambda: reasons == ["version 1: it was not remote in 0 s"], SOON_S)
        to.close()


def test_a_version_with_all_its_levels_loses_nothing(tmp_path: Path) -> None:
    with running(persist=tmp_path / "p") as node:
        to = tier(node)
        acks, reasons = lost(to.put)
        assert acks.wait(Level.DURABLE)
        assert to.settle(5.0) and reasons == []
        to.close()


@pytest.mark.parametrize(
    "body", [{}, {"sequence": 1, "receiving": 5, "complete": [], "durable": []}]
)
def test_a_node_that_says_nonsense_of_its_versions(
    body: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a line in the log, and the next answer counts."""
    answer, asked = VersionRegistry.wait, itertools.count()  # counts in several threads

    def wait(registry: VersionRegistry, *words: Any) -> Any:
        return body if next(asked) == 0 else answer(registry, *words)

    def malformed() -> list[logging.LogRecord]:
        return [r for r in caplog.records if "malformed states" in r.getMessage()]

    monkeypatch.setattr(VersionRegistry, "wait", wait)
    layout = make_layout(50_000, 2)
    with running() as node:
        places, acks = [tier(node), tier(node)], [Acks(), Acks()]
        for rank, place in enumerate(places):
            place.put(Shard("job", 1, rank, layout, make_image(layout, 1)), acks[rank])
        assert acks[0].wait(Level.REMOTE) and acks[1].wait(Level.REMOTE)
        assert until(malformed)  # what is closed earlier reads no answer
        for place in places:
            place.close()
    (record,) = malformed()
    assert not record.exc_info
