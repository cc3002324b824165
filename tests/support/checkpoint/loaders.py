"""Data loaders of many kinds, and what a training does with them: it is cut anywhere, and must go
on the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

EPOCHS = 3


def noise() -> float:
    return float(torch.rand(())) + random.random() + float(numpy.random.rand())


class Items(Dataset[Any]):
    """Samples with their numbers, and random changes."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, place: int) -> tuple[int, float]:
        return place, noise()


class Stream(IterableDataset[Any]):
    """Each worker has a part of it, in an order of its own."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        share = range(22) if worker is None else range(worker.id, 22, worker.num_workers)
        order = list(share)
        random.shuffle(order)
        for place in order:
            yield place, float(torch.rand(())) if worker is not None else 0.0


class Remembering(Dataset[Any]):
    """Knows how often it was asked, and can be put back."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 22

    def __getitem__(self, place: int) -> tuple[int, float]:
        self.asked += 1
        return place, self.asked + noise()

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


class Eager(Sampler[list[int]]):
    """GeneratorStates its whole order from global generators when its iterator is made."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        order = [*range(22)]
        random.shuffle(order)
        order = [order[i] for i in torch.randperm(22)]
        return iter([order[at : at + 4] for at in range(0, 22, 4)])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def weighted(**more: Any) -> DataLoader[Any]:
    return DataLoader(
        Items(),
        4,
        sampler=torch.utils.data.WeightedRandomSampler([1.0] * 11 + [3.0] * 11, 22),
        **more,
    )


def replacing(**more: Any) -> DataLoader[Any]:
    generator = seeded()
    sampler = torch.utils.data.RandomSampler(
        Items(), replacement=True, num_samples=80, generator=generator
    )
    return DataLoader(Items(), 4, sampler=sampler, generator=generator, **more)


KINDS: dict[str, Callable[..., DataLoader[Any]]] = {
    "shuffled": lambda **more: DataLoader(Items(), 4, shuffle=True, **more),
    "in order": lambda **more: DataLoader(Items(), 4, drop_last=True, **more),
    "with a generator": lambda **more: DataLoader(
        Items(), 4, shuffle=True, generator=seeded(), **more
    ),
    "weighted": weighted,
    "with replacement": replacing,
    "eager sampler": lambda **more: DataLoader(Items(), batch_sampler=Eager(), **more),
    "single samples": lambda **more: DataLoader(Items(), None, shuffle=True, **more),
    "stream": lambda **more: DataLoader(Stream(), 4, **more),
}


def step(batch: Any, seen: list[Any]) -> None:
    """What a step draws: dropout, and whatever else."""
    seen.append((repr(batch), noise()))


def plain(loader: Any) -> list[Any]:
    """What a training sees that nobody cuts, one entry a step."""
    seen: list[Any] = []
    for _ in range(EPOCHS):
        for batch in loader:
            step(batch, seen)
        noise()  # a validation
    return seen
