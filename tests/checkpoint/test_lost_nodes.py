"""The loss of one node, memory and disk, loses nothing acknowledged: a node is killed at each
labeled point.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from support.checkpoint.images import FOLDER_LABELS  # noqa: E402
from support.checkpoint.killing import NODE, Arena, Broken, arena  # noqa: E402, F401  arena is a fixture
from support.checkpoint.losing import Loss, lose  # noqa: E402

PIECES = {"data.mid-write": 5, "node.mid-chunk": 18}
"""How often the harness's small model comes by in each version."""


def at(label: str, version: int) -> str:
    pieces = PIECES.get(label, 1)
    return f"{label}:{(version - 1) * pieces + (pieces + 1) // 2}"


def test_a_sample(arena: Arena) -> None:  # noqa: F811
    before = arena.promised
    assert lose(arena, Loss(at("node.mid-chunk", 3)))
    assert lose(arena, Loss(at("node.before-ack", 4), nodes=3, returns=False))
    assert lose(arena, Loss(at("node.after-ack", 3), trainers=True))
    assert lose(arena, Loss(reader_at="node.mid-send:1", nodes=3))
    assert arena.promised >= before + 20


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2, 6])
@pytest.mark.parametrize("trainers", [False, True])
def test_at_every_point(arena: Arena, version: int, trainers: bool) -> None:  # noqa: F811
    for label in NODE:
        assert lose(arena, Loss(at(label, version), trainers=trainers)), label
        assert lose(arena, Loss(at(label, version), trainers=trainers, nodes=3, returns=False)), (
            label
        )


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 3])
def test_while_it_writes_to_its_disk_which_is_lost_too(arena: Arena, version: int) -> None:  # noqa: F811
    for label in FOLDER_LABELS:
        if not label.startswith("replaced"):
            assert lose(arena, Loss(at(label, version), disks=True)), label


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 4])
def test_two_ranks(arena: Arena, version: int) -> None:  # noqa: F811
    for label in NODE:
        for trainers in (False, True):
            assert lose(
                arena,
                Loss(f"{label}:{2 * version}", world=2, nodes=3, returns=False, trainers=trainers),
            )


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3])
def test_at_any_time(arena: Arena, nodes: int) -> None:  # noqa: F811
    chance = random.Random(nodes)
    lost = sum(
        lose(
            arena,
            Loss(after_s=chance.uniform(0, 0.15), nodes=nodes, trainers=chance.random() < 0.5),
        )
        for _ in range(20)
    )
    assert lost >= 12


SEEN = {
    "one_copy_is_enough": Loss(
        "node.after-ack:3", trainers=True, slow=True, change=("one_copy_is_enough",)
    ),
    "reads_the_first_node_alone": Loss(
        "node.after-ack:3", trainers=True, resume_change=("reads_the_first_node_alone",)
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_broken_rules_are_seen(arena: Arena, name: str) -> None:  # noqa: F811
    with pytest.raises(Broken, match=r"acknowledged and gone|restored"):
        for _ in range(3):
            lose(arena, SEEN[name])
    assert lose(arena, replace(SEEN[name], change=(), resume_change=()))
