"""The rule of the audit is that of the trainer, though they share no line."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import deepvm.lab.audit
from deepvm.lab.audit.gates import SampleRule, hash_of
from deepvm.lab.geometry import Geometry, ids_hash


@given(
    st.integers(1, 60), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9), st.integers(0, 100)
)
def test_samples_are_those_of_the_trainer(
    size: int, world: int, local: int, seed: int, step: int
) -> None:
    batch = world * local
    geometry = Geometry(size + batch, batch)
    rule = SampleRule({"dataset_size": size + batch, "global_batch": batch, "seed": seed})
    epoch, cursor = geometry.place(step)
    assert rule.place(step) == (epoch, cursor)
    window = geometry.window(geometry.permutation(seed, epoch), cursor)
    for rank in range(world):
        expected = geometry.shard(window, rank, world)
        found = rule.samples(step, rank, world)
        assert list(map(int, found)) == expected.tolist() and hash_of(found) == ids_hash(expected)


def test_the_audit_reads_nothing_of_the_code_that_trained() -> None:
    for path in Path(deepvm.lab.audit.__path__[0]).glob("*.py"):
        assert not any(
            name in path.read_text() for name in ("lab.geometry", "lab.training", "lab.running")
        ), path
