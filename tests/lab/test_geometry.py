"""Geometry and sampler: each sample once an epoch, whatever the number of ranks, wherever a
training was stopped.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from deepvm.errors import RequestError
from deepvm.lab import ResumableSampler
from deepvm.lab.geometry import Geometry, ids_hash


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Geometry, int]:
    world = draw(st.integers(1, 6))
    batch = world * draw(st.integers(1, 5))
    return Geometry(draw(st.integers(batch, batch * 9 + 5)), batch), world


@given(geometries(), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_has_each_sample_at_most_once_and_whole_steps(
    made: tuple[Geometry, int], seed: int, epoch: int
) -> None:
    geometry, world = made
    order = geometry.permutation(seed, epoch)
    assert len(order) == geometry.epoch_samples == geometry.steps_per_epoch * geometry.global_batch
    assert geometry.dataset_size - len(order) < geometry.global_batch
    assert len(set(order.tolist())) == len(order) and set(order.tolist()) <= set(
        range(geometry.dataset_size)
    )
    for step in range(geometry.steps_per_epoch):
        window = geometry.window(order, step)
        shards = [geometry.shard(window, rank, world) for rank in range(world)]
        assert np.concatenate(shards).tolist() == window.tolist()


@given(geometries(), st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 3))
def test_a_training_that_is_stopped_anywhere_sees_what_another_sees(
    made: tuple[Geometry, int], pieces: list[int], seed: int
) -> None:
    geometry, world = made

    def train(
        steps: int, state: dict[str, int] | None, ranks: int
    ) -> tuple[list[list[int]], dict[str, int]]:
        """Steps of a training whose sampler goes on from a state; each is the ids of all ranks."""
        samplers = [
            ResumableSampler(
                geometry.dataset_size,
                global_batch=geometry.global_batch,
                rank=r,
                world=ranks,
                seed=seed,
            )
            for r in range(ranks)
        ]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        found: list[list[int]] = []
        while True:
            for batches in zip(*samplers, strict=True):
                found.append([one for batch in batches for one in batch])
                for sampler in samplers:
                    sampler.step()
                if len(found) == steps:
                    return found, samplers[0].state_dict()

    whole, last = train(sum(pieces), None, world)
    parts: list[list[int]] = []
    state = None
    for place, steps in enumerate(pieces):
        # And with other numbers of ranks
        more, state = train(steps, state, world if place % 2 else 1)
        parts += more
    assert parts == whole and state == last


@pytest.mark.system
def test_what_a_data_loader_reads_ahead_is_not_trained() -> None:
    data = torch.arange(40)
    sampler = ResumableSampler(40, global_batch=4, seed=1)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1, prefetch_factor=4)  # type: ignore[arg-type]
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        sampler.step()
        if len(seen) == 3:
            break
    assert sampler.state_dict() == {"epoch": 0, "cursor_step": 3, "seed": 1} and len(sampler) == 7
    again = ResumableSampler(40, global_batch=4, seed=1)
    again.load_state_dict(sampler.state_dict())
    rest = [batch for batch in again]
    assert sorted(one for batch in [*seen, *rest] for one in batch) == list(range(40))


def test_an_epoch_follows_the_other_in_another_order() -> None:
    sampler = ResumableSampler(12, global_batch=4)
    first = list(sampler)
    for _ in range(3):
        sampler.step()
    assert (sampler.epoch, sampler.cursor_step, sampler.global_step) == (1, 0, 3)
    second = list(sampler)
    assert first != second and Counter(sum(first, [])) == Counter(sum(second, []))


def test_hashes_are_those_that_anyone_can_compute() -> None:
    assert ids_hash(np.array([3, 10, 7])) == hashlib.sha256(b"3,10,7").hexdigest()
    assert ids_hash([]) == hashlib.sha256(b"").hexdigest()


def test_what_cannot_be_is_named() -> None:
    for keys, named in [
        ({"dataset_size": 0}, "dataset_size"),
        ({"global_batch": 0}, "global_batch"),
        ({"global_batch": 41}, "global_batch"),
        ({"world": 3}, "world"),
        ({"world": 0}, "world"),
        ({"rank": 2, "world": 2}, "rank"),
        ({"rank": -1, "world": 2}, "rank"),
        ({"seed": -1}, "seed"),
    ]:
        size, given = keys.pop("dataset_size", 40), {"global_batch": 4, **keys}
        with pytest.raises(RequestError) as caught:
            ResumableSampler(size, **given)
        assert named in str(caught.value)


def test_a_state_of_another_sampler_is_refused() -> None:
    for state in [
        {},
        {"epoch": 0, "cursor_step": 10, "seed": 0},
        {"epoch": -1, "cursor_step": 0, "seed": 0},
        {"epoch": "x"},
    ]:
        sampler = ResumableSampler(40, global_batch=4)
        with pytest.raises(RequestError):
            sampler.load_state_dict(state)
        assert sampler.global_step == 0
