"""Generations of a job at a memory node: a newer one is let in at once, an older one refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import MIB, make_image, make_layout, put, running, tier

from deepvm.checkpoint.format.shard import Level
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
        with pytest.raises(CheckpointError, match="generation 1 of 'job' is over: 2 has begun"):
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
        with pytest.raises(CheckpointError, match="generation 4 of 'job' is over: 5 has begun"):
            tier(node, "two").begin("job", 4)
        tier(node, "two").begin("job", 5)
