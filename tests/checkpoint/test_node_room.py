"""What a node promises, and to whom it gives room: promises are of bytes, not of numbers, and nobody starves."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from checkpoint.memory_nodes import Acks, finished, make_image, make_layout, put, put_all, running, tier, until

from deepvm.checkpoint.folder import VersionFolder
from deepvm.checkpoint.node import watcher
from deepvm.checkpoint.node.server import Node
from deepvm.checkpoint.tiers.base import Level


def gate(node: Node, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The disk stands still until this is set."""
    opened, store = threading.Event(), node.store
    assert store is not None
    write = store.write

    def slow(*arguments: object) -> None:
        assert opened.wait(20)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write", slow)
    return opened


# --- promises ----------------------------------------------------------------------------------------------------


def test_a_number_put_again_is_not_durable_because_the_first_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = make_layout(100_000)
    first, second = make_image(layout, 1), make_image(layout, 2)
    with running(persist=tmp_path) as node:
        to = tier(node)
        assert put(to, 200, layout, first).wait(Level.DURABLE)
        opened = gate(node, monkeypatch)
        again = put(to, 200, layout, second)
        assert again.levels == [Level.REMOTE] and not again.wait(Level.DURABLE, 0.5)
        opened.set()
        assert again.wait(Level.DURABLE)
        assert VersionFolder(tmp_path).file("job", 200).read_bytes() == finished(second, layout)
        to.close()


def test_a_late_disk_makes_nothing_else_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two versions of one number reaches the disk while the second is on its way, or was given up."""
    layout = make_layout(100_000, world=2)
    with running(persist=tmp_path) as node:
        tiers = [tier(node), tier(node)]
        opened = gate(node, monkeypatch)
        assert all(
            isinstance(a, Acks) and a.wait(Level.REMOTE) for a in put_all(tiers, 5, layout, make_image(layout, 1))
        )
        again = put(tiers[0], 5, layout, make_image(layout, 2), rank=0)
        opened.set()
        assert until(lambda: bool(node.metrics()["flush"]["flushed"]))
        assert not again.wait(Level.REMOTE, 0.5)
        with node.shelf.changed:
            node.shelf._drop(node.shelf.jobs["job"].partial[5])
        assert not again.wait(Level.REMOTE, 0.5)
        for one in tiers:
            one.close()


def test_one_rank_alone_is_not_told_of_the_other_ranks_earlier_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_POLL_S", 0.2)
    layout = make_layout(100_000, world=2)
    with running() as node:
        tiers = [tier(node), tier(node)]
        assert all(
            isinstance(a, Acks) and a.wait(Level.REMOTE) for a in put_all(tiers, 200, layout, make_image(layout, 1))
        )
        again = put(tiers[0], 200, layout, make_image(layout, 2), rank=0)
        assert not again.wait(Level.REMOTE, 1)
        put(tiers[1], 200, layout, make_image(layout, 2), rank=1)
        assert again.wait(Level.REMOTE)
        for one in tiers:
            one.close()


def test_who_waits_is_told_at_once() -> None:
    """Not with the next look, 5 s later: what came while a question was open is asked again."""
    layout = make_layout(50_000, world=2)
    image = make_image(layout, 1)
    with running() as node:
        tiers = [tier(node), tier(node)]
        for version in range(1, 30):
            begin = time.monotonic()
            acks = put_all(tiers, version, layout, image)
            assert all(isinstance(a, Acks) and a.wait(Level.REMOTE) for a in acks)
            assert time.monotonic() - begin < 3
        for one in tiers:
            one.close()
