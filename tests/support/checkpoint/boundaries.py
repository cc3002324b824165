"""A small training that remembers its state at each boundary, and changes that loops make between
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from deepvm.checkpoint import Checkpointer
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.training.state import random_state
from support.checkpoint.loops.parts import Fields
from support.checkpoint.loops.run import digest

Extra = Callable[[torch.nn.Module, torch.optim.Optimizer], dict[str, Any]]


def saved(folder: Path) -> dict[int, Any]:
    """What was saved, by version."""
    here = VersionFolder(folder)
    return {
        m.version: torch.load(here.file("job", m.version), weights_only=True)
        for m in here.versions("job")
    }


class Training:
    """A small training. After each iteration its state is remembered, as a checkpoint must have it.

    Attributes:
        boundaries: digests of the parts of the state by the number of iterations done, random
            states included.
    """

    def __init__(
        self, folder: Path, every: int | str | None = 1, extra: Extra = lambda model, optimizer: {}
    ) -> None:
        torch.manual_seed(1)
        self.folder = folder
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.place = Fields(position=0)
        self.extra = {"place": self.place, **extra(self.model, self.optimizer)}
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra=self.extra,
            tiers=folder,
            every=every,
            keep=1000,
            slots=8,
            job="job",
        )
        self.boundaries: dict[int, dict[str, str]] = {}

    def step(self) -> None:
        """The position advances before the forward, and random numbers are drawn after the step."""
        self.place.position += 1
        self.optimize(torch.randn(4, 8))
        torch.rand(3)

    def optimize(self, inputs: torch.Tensor) -> None:
        """Forward, backward and step, and nothing else."""
        self.optimizer.zero_grad()
        self.model(inputs).square().sum().backward()
        self.optimizer.step()

    def remember(self, version: int) -> None:
        self.boundaries[version] = {
            "model": digest(self.model),
            "optimizer": digest(self.optimizer),
            "random": digest(random_state()),
            **{name: digest(value) for name, value in self.extra.items()},
        }

    def run(self, total: int) -> list[int]:
        """The step numbers that the loop yields."""
        numbers = []
        for step in self.saver.steps(total):
            assert self.saver.version == step
            numbers.append(step)
            self.step()
            self.remember(step + 1)
        return numbers

    def check(self, versions: list[int] | None = None) -> list[int]:
        """Close it. Each version has what was remembered at its boundary.

        Returns which there are.
        """
        self.saver.close()
        trees = saved(self.folder)
        for version, tree in trees.items():
            if version in self.boundaries:
                contents = {
                    "model": digest(tree["model"]),
                    "optimizer": digest(tree["optimizer"]),
                    "random": digest(tree["extra"]["rng"]),
                    **{name: digest(tree["extra"][name]) for name in self.extra},
                }
                assert contents == self.boundaries[version], version
        assert versions is None or sorted(trees) == versions
        return sorted(trees)


def by_data(training: Training) -> None:
    for parameter in training.model.parameters():
        parameter.data.mul_(0.5)


def in_place(training: Training) -> None:
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.mul_(0.5)


def replaced(training: Training) -> None:
    for parameter in training.model.parameters():
        parameter.data = parameter.data * 0.5


def loaded(training: Training) -> None:
    training.model.load_state_dict(
        {name: value * 2 for name, value in training.model.state_dict().items()}
    )


def momentum(training: Training) -> None:
    for state in training.optimizer.state.values():
        state["exp_avg"].zero_()


def buffers(training: Training) -> None:
    training.model[1].running_mean.add_(1.0)


def rates(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] *= 0.5
