"""Which samples a step must have, by the pinned rule alone, without code of the trainer.

perm(seed, epoch) = ``numpy.random.default_rng([seed, epoch]).permutation(D)``; an epoch has floor(D
/ B) steps, each a window of B samples of it, and rank r of W the r-th part of the window. A log has
the hex SHA-256 of a rank's ids in their order, decimal, joined by commas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class SampleRule:
    """The rule, for one training; steps are best asked for in their order."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._size = config["dataset_size"]
        self._batch = config["global_batch"]
        self._seed = config["seed"]
        self._epoch = -1
        self._order = list[str]()

    def place(self, step: int) -> tuple[int, int]:
        per_epoch: int = self._size // self._batch
        return divmod(step, per_epoch)

    def samples(self, step: int, rank: int, world: int) -> Sequence[str]:
        epoch, cursor = self.place(step)
        if epoch != self._epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._size)
            self._epoch = epoch
            self._order = list(map(str, order.tolist()))
        local = self._batch // world
        first = cursor * self._batch + rank * local
        return self._order[first : first + local]


def hash_of(samples: Sequence[str]) -> str:
    """As logs have it."""
    return hashlib.sha256(",".join(samples).encode()).hexdigest()
