"""Generations of a job at a memory node: a newer one is let in at once, an older one refused."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import MIB, Peer, make_image, make_layout, put, running, tier

from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.network.protocol import RequestRefused
from deepvm.checkpoint.node.version_registry import VersionRegistry
from deepvm.errors import CheckpointError


def test_a_newer_generation_takes_over_at_once() -> None:
    layout = make_layout(MIB)
    with running() as node:
        old, new = tier(node, "one"), tier(node, "two")
        old.begin("job", 1)
        put(old, 1, layout, make_image(layout, 1))
        began = time.monotonic()
        new.begin("job", 2)
        assert put(new, 2, layout, make_image(layout, 2)).levels == [Level.REMOTE]
        assert time.monotonic() - began < 1.0  # a run without a number waits 30 s for the name
        with pytest.raises(CheckpointError, match="generation 1 of 'job' is over: 2 has started"):
            put(old, 3, layout, make_image(layout, 3))
        with pytest.raises(CheckpointError, match="generation 1 of 'job' is over"):
            tier(node, "three").begin("job", 1)
        assert {m.version for m in new.versions("job")} == {1, 2}
        old.close()
        new.close()


def test_a_node_that_is_started_again_remembers(tmp_path: Path) -> None:
    with running(persist=tmp_path) as node:
        tier(node, "one").begin("job", 5)
    with running(persist=tmp_path) as node:
        with pytest.raises(CheckpointError, match="generation 4 of 'job' is over: 5 has started"):
            tier(node, "two").begin("job", 4)
        tier(node, "two").begin("job", 5)


def fenced() -> None:
    """A machine that was thought lost saves on after the next generation has started.

    Also under its own name again.
    """
    layout = make_layout(MIB)
    with running() as node:
        old, new = tier(node, "one"), tier(node, "two")
        old.begin("job", 1)
        put(old, 1, layout, make_image(layout, 1))
        new.begin("job", 2)
        found = {m.version for m in new.versions("job")}
        for late in (old, tier(node, "one")):
            with contextlib.suppress(CheckpointError):
                late.begin("job", 1)
            with contextlib.suppress(CheckpointError):
                put(late, 3, layout, make_image(layout, 3))
            late.close()
        assert {m.version for m in new.versions("job")} == found, (
            "a version of an older generation is visible"
        )
        new.close()


def test_without_the_fence_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced()
    monkeypatch.setattr(VersionRegistry, "_refuse_older", lambda *_: None)
    with pytest.raises(AssertionError, match="older generation"):
        fenced()


def test_an_older_generation_that_was_about_to_enter_does_not_keep_the_newer_one_out() -> None:
    """Between its word and its entry the newer one starts: it would be a living run of the name,
    for a lease.
    """
    with running() as node:
        old, new = (Peer(session=f"s{n}", epoch=n) for n in (1, 2))
        node.registry.begin("job", 1)
        node.registry.begin("job", 2)
        with pytest.raises(RequestRefused, match="generation 1 of 'job' is over"):
            node.registry.enter(old)
        assert node.registry.enter(new) is False  # its layout is not known yet
