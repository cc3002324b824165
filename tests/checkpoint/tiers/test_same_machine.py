"""A memory node on the trainer's machine reads its memory; every other one is sent the bytes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint.memory_nodes import (
    MIB,
    finished,
    make_certificate,
    make_image,
    make_layout,
    put,
    put_all,
    raw_sender,
    running,
    tier,
)
from support.checkpoint.proxy import Proxy

from deepvm.checkpoint import Checkpointer
from deepvm.checkpoint.format import manifest
from deepvm.checkpoint.format.layout import Layout, runs
from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.memory_file import MemoryFile, TrainerMemory, readable_memory
from deepvm.checkpoint.network.protocol import Channel, Kind, RequestRefused
from deepvm.checkpoint.tiers.tcp import TcpTier


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many pieces the trainers of this process sent, and how many nodes were to read."""
    counts = {"send_data": 0, "send_range": 0}

    def counting(name: str, method: Callable[..., None]) -> Callable[..., None]:
        def call(self: Channel, *args: Any, **options: Any) -> None:
            counts[name] += options.get("label") == "sender.mid-chunk"
            method(self, *args, **options)

        return call

    for name in counts:
        monkeypatch.setattr(Channel, name, counting(name, getattr(Channel, name)))
    return counts


def shared_image(layout: Layout, seed: int) -> memoryview:
    memory = MemoryFile(layout.size)
    memory[:] = make_image(layout, seed)
    return memoryview(memory)


def stored(to: TcpTier, folder: Path) -> bytes:
    (manifest,) = to.versions("job")
    return to.fetch(manifest, folder).read_bytes()


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("flows", [1, 2])
def test_the_node_reads_the_memory(
    world: int, flows: int, tmp_path: Path, frames: Mapping[str, int]
) -> None:
    layout = make_layout(5 * MIB + 123, world)
    image = shared_image(layout, 1)
    with running() as node:
        ranks = [tier(node, flows=flows) for _ in range(world)]
        for acks in put_all(ranks, 1, layout, image):
            assert not isinstance(acks, Exception) and acks.wait(Level.REMOTE)
        assert stored(ranks[0], tmp_path) == finished(image, layout)
        assert not frames["send_data"] and frames["send_range"] >= 5
        for each in ranks:
            each.close()


def test_bytes_are_sent_through_a_proxy(tmp_path: Path, frames: Mapping[str, int]) -> None:
    """It may lead to another machine, and what it does to the bytes is to be noticed."""
    layout = make_layout(2 * MIB)
    with running() as node:
        proxy = Proxy((node.address.host, node.address.port), cut_after=2**40, cuts=0)  # type: ignore[attr-defined]
        to = tier(proxy)
        image = shared_image(layout, 1)
        put(to, 1, layout, image)
        assert stored(to, tmp_path) == finished(image, layout)
        assert frames["send_data"] and not frames["send_range"]
        to.close()
        proxy.close()


def test_bytes_are_sent_over_tls(
    tmp_path: Path, frames: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("DEEPVM_TLS_CA", str(certificate))
    layout = make_layout(2 * MIB)
    with running(certificate=certificate, key=key) as node:
        to = tier(node.url.replace("tcp:", "tcps:"))  # type: ignore[attr-defined]
        put(to, 1, layout, shared_image(layout, 1))
        assert frames["send_data"] and not frames["send_range"]
        to.close()


def test_bytes_are_sent_to_a_node_that_cannot_open_the_memory(
    tmp_path: Path, frames: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another user, or in another container of the same host."""
    monkeypatch.setattr(TrainerMemory, "open", lambda location: None)
    layout = make_layout(2 * MIB)
    with running() as node:
        to = tier(node)
        image = shared_image(layout, 1)
        put(to, 1, layout, image)
        assert stored(to, tmp_path) == finished(image, layout)
        assert frames["send_data"] and not frames["send_range"]
        to.close()


def test_bytes_that_are_not_those_of_the_trainer_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = make_layout(2 * MIB)
    image = shared_image(layout, 1)
    damaged: list[int] = []
    really_send = Channel.send_range

    def flipped(self: Channel, offset: int, payload: memoryview, **options: Any) -> None:
        """What the node reads for the first piece differs in a bit from what was sent."""
        if not damaged:
            damaged.append(offset)
            payload = memoryview(bytes([payload[0] ^ 1]) + bytes(payload[1:]))
        really_send(self, offset, payload, **options)

    monkeypatch.setattr(Channel, "send_range", flipped)
    with running() as node:
        to = tier(node, flows=1)
        put(to, 1, layout, image)
        assert stored(to, tmp_path) == finished(image, layout)
        assert damaged and node.registry.counts["damaged_pieces"] == 1
        to.close()


def test_a_node_that_reads_slowly_gets_the_time_for_the_bytes(
    monkeypatch: pytest.MonkeyPatch, frames: Mapping[str, int]
) -> None:
    """Naming them takes no time, so it reads most of them after the last frame."""
    really_reader = TrainerMemory.reader

    def slow(self: TrainerMemory, *args: Any) -> Callable[[int], None]:
        time.sleep(0.15)
        return really_reader(self, *args)

    monkeypatch.setattr(TrainerMemory, "reader", slow)
    monkeypatch.setattr(manifest, "LEAST_BYTES_S", MIB)
    layout = make_layout(20 * MIB)
    with running() as node:
        to = tier(node, flows=2, limit_s=0.5)
        assert put(to, 1, layout, shared_image(layout, 1)).wait(Level.REMOTE)
        assert frames["send_range"] == 20  # none was sent again
        to.close()


def test_a_range_is_refused_where_no_memory_was_named() -> None:
    layout = make_layout(MIB)
    image = make_image(layout, 1)
    with running() as node:
        link = raw_sender(node, layout, "s1")
        assert link.call(Kind.RESERVE, {"version": 1, "put": "p"}).body["memory"] is False
        start, length = runs(layout.shards[0])[0]
        link.channel.send_range(start, image[start : start + length], label="test")
        with pytest.raises(RequestRefused, match="memory that was not named"):
            link.call(Kind.PING)
        link.close()


def test_a_trainer_that_gives_its_memory_up_loses_only_this_version() -> None:
    layout = make_layout(MIB)
    image = shared_image(layout, 1)
    memory = image.obj
    assert isinstance(memory, MemoryFile)
    location = dict(memory.location)
    with running() as node:
        link = raw_sender(node, layout, "s1")
        answer = link.call(Kind.RESERVE, {"version": 1, "put": "p", "memory": location})
        assert answer.body["memory"] is True
        copy = memoryview(bytes(image))
        image.release()
        memory.close()
        start, length = runs(layout.shards[0])[0]
        link.channel.send_range(start, copy[start : start + length], label="test")
        with pytest.raises(RequestRefused, match="given up the memory"):
            link.call(Kind.PING)
        link.close()
        to = tier(node, "s1")
        assert put(to, 2, layout, make_image(layout, 2)).wait(Level.REMOTE)
        to.close()


@pytest.mark.parametrize("near", [True, False])
def test_only_for_a_node_on_this_machine_is_memory_readable(
    near: bool, frames: Mapping[str, int]
) -> None:
    """Private memory is faster to copy into."""
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with running() as node:
        to = tier(node)
        if not near:
            proxy = Proxy((node.address.host, node.address.port), cut_after=2**40, cuts=0)  # type: ignore[attr-defined]
            to = tier(proxy)
        saver = Checkpointer(model=model, optimizer=optimizer, tiers=[to], job="job", every=1)
        for _ in saver.steps(2):
            optimizer.step()
        saver.close()
        if not near:
            proxy.close()
    assert bool(frames["send_range"]) == near and bool(frames["send_data"]) != near


def test_where_memory_is_accounted_for_in_advance_it_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: "2\n")
    assert readable_memory(10) is None


def test_without_file_descriptors_memory_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert readable_memory(10) is None
