"""Shared by the tests of checkpointers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")
from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.format.manifest import (  # noqa: E402
    CommitRecord,  # noqa: E402
    Level,
    Shard,
)
from deepvm.checkpoint.tiers.base import Tier  # noqa: E402
from deepvm.errors import DamagedError  # noqa: E402


class Fill(torch.optim.Optimizer):
    """Writes the step's number into every parameter and state tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["m"] = torch.zeros_like(p)
        self.n = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.n += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.fill_(self.n)
                self.state[p]["m"].fill_(self.n)


def model_of(count: int = 12, width: int = 256) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(count)])


def numbers_in(tree: Any) -> set[float]:
    if isinstance(tree, torch.Tensor):
        return set(tree.unique().tolist()) if tree.numel() > 1000 else set()
    if isinstance(tree, dict):
        return set().union(*map(numbers_in, tree.values()))
    return set().union(*map(numbers_in, tree)) if isinstance(tree, (list, tuple)) else set()


def contents(folder: Path) -> dict[int, set[float]]:
    found = {}
    for path in folder.glob("*.pt"):
        tree = torch.load(path, weights_only=True)
        assert set(tree) == {"model", "optimizer", "extra", "version", "fingerprint"}
        found[tree["version"]] = numbers_in(tree["model"]) | numbers_in(tree["optimizer"])
    return found


def fill_and_save(
    folder: Path, steps: int, every: int, *, pause: bool = False, **options: Any
) -> dict[int, set[float]]:
    """``pause``: half way, until a version is complete.

    A busy machine may still be getting memory for the first.
    """
    model = model_of()
    optimizer = Fill(model.parameters())
    with Checkpointer(
        model=model, optimizer=optimizer, tiers=[folder.as_uri()], every=every, keep=1000, **options
    ) as saver:
        for step in range(1, steps + 1):
            optimizer.step()
            if pause and 2 * step == steps:
                saver.save(block=True)
        saver.save(block=True)
    return contents(folder)


class Job:
    """A small training with everything that has a state: dropout, momentum, a scheduler, Python's
    random numbers.
    """

    def __init__(self, folder: Path, every: int | str | None = 1, **options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(16, 1),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=50)
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra={"scheduler": self.scheduler},
            tiers=[folder.as_uri()],
            every=every,
            **options,
        )

    def train(self, until: int) -> None:
        while self.saver.version < until:
            x = torch.randn(4, 8) * random.random() * numpy.random.random()
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values()]
        tensors += [t for s in self.optimizer.state_dict()["state"].values() for t in s.values()]
        return [bytes(t.contiguous().untyped_storage()) for t in tensors]


class Slow(Tier):
    """A place that takes what it is given when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go, self.taken, self.error = threading.Event(), [], error

    @property
    def url(self) -> str:
        return "slow://"

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        assert self.go.wait(30)
        if self.error:
            raise self.error
        self.taken.append(shard.version)
        acknowledged(Level.REMOTE)

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        if self.error:
            raise self.error
        return ()

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        raise DamagedError("nothing here")


def simple(tier: Tier, **options: Any) -> tuple[Any, Checkpointer]:
    model = model_of(2, 32)
    optimizer = Fill(model.parameters())
    return optimizer, Checkpointer(model=model, optimizer=optimizer, tiers=[tier], **options)
