"""Acknowledged implies restorable, proven by killing trainers and nodes.

See tests/support/checkpoint/killing.py.
"""

from __future__ import annotations

import random
import re

import pytest
from support.places import ROOT

pytest.importorskip("torch")

from support.checkpoint.images import FOLDER_LABELS
from support.checkpoint.killing import (  # noqa: E402
    JOINT,
    NODE,
    READER,
    SENDER,
    SNAPSHOT,
    Arena,
    Case,
    arena,  # noqa: F401  a fixture
)

PIECES = {"data.mid-write": 5, "sender.mid-chunk": 18, "node.mid-chunk": 18}
"""How often the harness's small model comes by in each version, where it is more than once."""


def at(label: str, version: int) -> str:
    """In the version with this number, after half of it where it comes in pieces."""
    pieces = PIECES.get(label, 1)
    return f"{label}:{(version - 1) * pieces + (pieces + 1) // 2}"


def run(arena: Arena, *cases: Case) -> None:  # noqa: F811
    for case in cases:
        assert arena.run(case), f"nothing was killed: {case}"


def test_every_label_in_the_code_is_in_the_campaigns() -> None:
    package = ROOT / "deepvm" / "checkpoint"
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for label in re.findall(r'(?:point\(|label=)f?"([^"]+)"', path.read_text()):
            if not label.startswith(("home.", "dcp.")):  # killed in tests of their own
                names = (
                    ("data", "record", "replaced")
                    if path.name == "version_dir.py"
                    else ("data", "record")
                )
                found |= {label.replace("{prefix}", what) for what in names}
    assert found == {*SNAPSHOT, *FOLDER_LABELS, *SENDER, *NODE, *READER, *JOINT}


def test_a_sample(arena: Arena) -> None:  # noqa: F811
    run(
        arena,
        Case("file", trainer_at=at("data.before-rename", 3)),
        Case("file", keep=2, trainer_at=at("record.before-rename", 5)),
        Case("file", trainer_at=at("snapshot.after-copy", 4)),
        Case("tcp", trainer_at=at("sender.mid-chunk", 3)),
        Case("tcp", trainer_at=at("sender.before-commit", 4)),
        Case("both", trainer_at=at("record.after-folder-sync", 4)),
        Case("tcp", node_at=at("node.before-ack", 3)),
        Case("tcp", node_at=at("record.before-rename", 3)),
        Case("tcp", node_at=at("data.before-folder-sync", 2), spared=True),
        Case("both", node_at=at("node.mid-chunk", 3), spared=True),
        Case("tcp", trainer_at=at("sender.before-reserve", 5), reader_at="node.mid-send:1"),
        Case("both", after_s=0.06),
        Case("tcp", node_after_s=0.05, after_s=0.07),
    )
    assert sum(arena.kills.values()) >= 13 and arena.promised >= 20, (arena.kills, arena.promised)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1000, 2])
@pytest.mark.parametrize("version", [1, 2, 6])
def test_trainers_with_a_folder(arena: Arena, version: int, keep: int) -> None:  # noqa: F811
    run(
        arena,
        *[
            Case("file", keep=keep, trainer_at=at(label, version))
            for label in (*SNAPSHOT, *FOLDER_LABELS)
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2, 5])
def test_trainers_with_a_node(arena: Arena, version: int) -> None:  # noqa: F811
    run(arena, *[Case("tcp", trainer_at=at(label, version)) for label in (*SNAPSHOT, *SENDER)])


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 4])
def test_trainers_with_both(arena: Arena, version: int) -> None:  # noqa: F811
    run(
        arena,
        *[
            Case("both", trainer_at=at(label, version))
            for label in (*SNAPSHOT, *SENDER, *FOLDER_LABELS)
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize("spared", [False, True])
@pytest.mark.parametrize("version", [1, 2, 4])
def test_nodes(arena: Arena, version: int, spared: bool) -> None:  # noqa: F811
    run(
        arena,
        *[
            Case("tcp", node_at=at(label, version), spared=spared)
            for label in (*NODE, *FOLDER_LABELS)
        ],
    )


@pytest.mark.slow
def test_nodes_beside_a_folder(arena: Arena) -> None:  # noqa: F811
    run(
        arena,
        *[Case("both", node_at=at(label, 2), spared=True) for label in (*NODE, *FOLDER_LABELS)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(1, 8))
def test_nodes_that_die_while_a_run_restores(arena: Arena, piece: int) -> None:  # noqa: F811
    run(
        arena,
        Case("tcp", trainer_at=at("sender.before-commit", 7), reader_at=f"node.mid-send:{piece}"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 3])
def test_two_ranks_in_one_folder(arena: Arena, version: int) -> None:  # noqa: F811
    labels = [*JOINT, *(label for label in FOLDER_LABELS if label.startswith("record."))]
    run(arena, *[Case("file", world=2, trainer_at=at(label, version)) for label in labels])


@pytest.mark.slow
@pytest.mark.parametrize("tiers", ["file", "tcp", "both"])
def test_trainers_killed_at_any_time(arena: Arena, tiers: str) -> None:  # noqa: F811
    chance = random.Random(tiers)
    kills = sum(
        arena.run(
            Case(tiers, chance.choice([2, 1000]), after_s=chance.uniform(0, 0.25), step_s=0.01)
        )
        for _ in range(25)
    )
    assert kills >= 15


@pytest.mark.slow
@pytest.mark.parametrize("tiers", ["tcp", "both"])
@pytest.mark.parametrize("spared", [False, True])
def test_nodes_killed_at_any_time(arena: Arena, tiers: str, spared: bool) -> None:  # noqa: F811
    chance = random.Random(f"{tiers} {spared}")
    for _ in range(12):
        also = -1.0 if spared else chance.uniform(0, 0.2)
        arena.run(
            Case(
                tiers, node_after_s=chance.uniform(0, 0.2), after_s=also, spared=spared, step_s=0.01
            )
        )
    assert arena.kills["node at any time"] >= 8
