"""The harness of the kills is itself tested: it sees each rule of the checkpointer that is broken
on purpose.

The same cases pass without the mutation: what is seen is the mutation and nothing else. Those that
only a machine without power tells apart, such as a rename before its fsync, are in test_crashes.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from support.checkpoint.killing import Arena, Broken, Case, arena  # noqa: E402, F401  arena is a fixture
from support.effort import sampled  # noqa: E402

SEEN = {
    "no_gate": (
        Case("file", change=("slow_copies", "no_gate"), trainer_at="record.before-write:5"),
        "holds another state",
    ),
    "folder_acknowledges_first": (
        Case("file", change=("folder_acknowledges_first",), trainer_at="data.before-rename:3"),
        "acknowledged and gone",
    ),
    "sender_acknowledges_first": (
        Case("tcp", change=("sender_acknowledges_first",), trainer_at="sender.before-commit:3"),
        "acknowledged and gone",
    ),
    "node_says_durable_before_it_writes": (
        Case(
            "tcp",
            node_change=("node_says_durable_before_it_writes",),
            node_at="data.before-rename:3",
        ),
        "acknowledged and gone",
    ),
    "node_drops_what_is_not_flushed": (
        Case(
            "tcp",
            node_change=("node_drops_what_is_not_flushed",),
            trainer_at="sender.before-commit:6",
        ),
        "acknowledged and gone",
    ),
    "restores_the_oldest": (
        Case("file", resume_change=("restores_the_oldest",), trainer_at="data.before-rename:4"),
        "restored",
    ),
    "forgets_the_optimizer": (
        Case("file", resume_change=("forgets_the_optimizer",), trainer_at="data.before-rename:4"),
        "restored",
    ),
}


def without(name: str, case: Case) -> Case:
    """The same kill of the code as it is."""
    kept = {
        field: tuple(n for n in getattr(case, field) if n != name)
        for field in ("change", "node_change", "resume_change")
    }
    return replace(case, **kept)


@pytest.mark.parametrize("name", sampled(SEEN))
def test_it_is_seen(arena: Arena, name: str) -> None:  # noqa: F811
    case, said = SEEN[name]
    # On a busy machine a run may end without the kill, or with nothing promised before it: such a
    # run shows nothing.
    with pytest.raises(Broken, match=said):
        for _ in range(3):
            arena.run(case)
    assert arena.run(without(name, case))
