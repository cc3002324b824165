"""A memory node of the size that a plan recommends takes what the plan promises: f x s, from all
its senders at once.

Small checkpoints are the hard case: what the system and the node need is the same, so there is
little memory beside it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.builders import catalog, cpu_type, gpu_type
from support.cgroups import limited
from support.checkpoint import object_store
from support.checkpoint.memory_nodes import (
    MIB,
    Acks,
    Process,
    finished,
    make_image,
    make_layout,
    put_all,
    tier,
    until,
)

from deepvm.checkpoint.format.manifest import Level
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.memory_nodes import (
    KERNEL_BYTES,
    KERNEL_PERCENT,
    NODE_BYTES,
    PAPER_NODES,
    REAL_NODES,
    SYSTEM_BYTES,
    MemoryNodeRule,
)
from deepvm.core.units import GIB
from deepvm.errors import TierBusyError
from deepvm.services.keywords import recommend

SENDERS, SIZE, BUFFERS, VERSIONS = 9, 64 * MIB, 2, 5
MOST = 50
"""Versions to try."""
LADDER = (0.125, 0.25, 0.5, 1.0, 1.125, 1.25, 1.5, 2.0, 4.0)
"""Memory of the VMs that there are, GiB."""


def recommended(rule: MemoryNodeRule) -> Cluster:
    """The best cluster of nine trainers, with the smallest node that the rule allows."""
    nodes = [
        cpu_type(f"node{gib:g}", memory_gib=gib, on_demand_usd_per_hour=str(gib)) for gib in LADDER
    ]
    answer = recommend(
        catalog(gpu_type(), *nodes, memory_nodes=rule),
        1000,
        architecture="tiering",
        checkpoint_size=SIZE,
        buffers=BUFFERS,
        max_nodes=SENDERS,
    )
    return answer[0].cluster


def left_by_the_system(memory_gib: float | None) -> int:
    """Bytes of a VM that its kernel and services leave."""
    assert memory_gib is not None
    left = int(memory_gib * GIB * (100 - KERNEL_PERCENT) / 100) - KERNEL_BYTES - SYSTEM_BYTES
    assert left > 0, "no node runs there"
    return left


@pytest.fixture(params=["a folder", "a bucket"])
def persist(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The node's options for where complete versions go; none for a folder of its own."""
    if request.param == "a folder":
        yield []
        return
    with object_store.running() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        yield ["--persist", f"s3://{object_store.BUCKET}/run"]


def node_within(folder: Path, memory_bytes: int, words: list[str], stack: ExitStack) -> Process:
    """``memory-node serve`` with room for what was promised, on a machine with so much memory."""
    within = stack.enter_context(limited(memory_bytes))
    memory = f"{BUFFERS * SIZE // MIB}MiB"
    return stack.enter_context(
        Process(folder, *words, memory=memory, persist=not words, within=within)
    )


def test_it_takes_what_the_plan_promises(tmp_path: Path, persist: list[str]) -> None:
    cluster = recommended(REAL_NODES)
    assert cluster.memory is not None and (cluster.gpu_count, cluster.memory.count) == (SENDERS, 1)
    memory = left_by_the_system(cluster.memory.instance.memory_gib)
    layout = make_layout(SIZE, SENDERS)
    images = [make_image(layout, seed) for seed in (0, 1)]
    with ExitStack() as stack:
        node = node_within(tmp_path, memory, persist, stack)
        tiers = [tier(node) for _ in range(SENDERS)]
        for each in tiers:
            stack.callback(each.close)
        taken: list[int] = []
        for version in range(1, MOST):
            # One is written while the next arrives; the one behind it needs the slot of the first.
            assert until(lambda: node.status()["flush"]["waiting"] < BUFFERS, 60)  # type: ignore[index]
            answers = put_all(tiers, version, layout, images[version % 2])
            acks = [a for a in answers if isinstance(a, Acks)]
            if not acks and all(isinstance(a, TierBusyError) for a in answers):
                # The flusher had the slot for another moment; a trainer skips the version as well
                continue
            assert len(acks) == SENDERS, (version, answers, node.log.read_text())
            assert all(a.wait(Level.REMOTE, 60) for a in acks), node.log.read_text()
            taken.append(version)
            if len(taken) == VERSIONS:
                assert all(a.wait(Level.DURABLE, 60) for a in acks), node.log.read_text()
                break
        assert len(taken) == VERSIONS
        assert node.process.poll() is None
        assert node.peak - BUFFERS * SIZE < NODE_BYTES
        found = {m.version: m for m in tiers[0].versions("job")}
        assert found.keys() >= set(taken[-2:])
        for version in taken[-2:]:
            fetched = tiers[0].fetch(found[version], tmp_path / "fetched")
            assert fetched.read_bytes() == finished(images[version % 2], layout)
        assert node.end(signal.SIGTERM) == 0
        assert "OOM" not in node.log.read_text()


def test_by_eq_6_alone_it_is_killed(tmp_path: Path) -> None:
    """Even where the system needs nothing: the node itself needs more than its versions."""
    cluster = recommended(PAPER_NODES)
    assert cluster.memory is not None and cluster.memory.instance.memory_gib == 0.125
    layout = make_layout(SIZE, SENDERS)
    with ExitStack() as stack:
        node = node_within(tmp_path, BUFFERS * SIZE, [], stack)
        tiers = [tier(node) for _ in range(SENDERS)]
        for each in tiers:
            stack.callback(each.close)
        image = make_image(layout, 0)
        for version in (1, 2, 3):
            put_all(tiers, version, layout, image)
        assert node.process.wait(60) == -signal.SIGKILL
