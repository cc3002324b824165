"""Which samples each rank sees at each step, independent of failures (ECRL 3.3, 4.2)."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from deepvm.core.arrays import IntArray
from deepvm.core.units import refuse_outside
from deepvm.errors import RequestError
from deepvm.records import dataclass


@dataclass(frozen=True)
class Geometry:
    """How a data set is divided into steps (ECRL eq. 1)."""

    dataset_size: int  # D
    global_batch: int  # B: samples of one step on all ranks together

    def __post_init__(self) -> None:
        if self.dataset_size < 1:
            raise RequestError("dataset_size", self.dataset_size, "at least one sample")
        if not 1 <= self.global_batch <= self.dataset_size:
            raise RequestError(
                "global_batch", self.global_batch, f"from 1 to the {self.dataset_size} samples"
            )

    @property
    def steps_per_epoch(self) -> int:
        """S = floor(D / B)."""
        return self.dataset_size // self.global_batch

    @property
    def epoch_samples(self) -> int:
        """N = S B."""
        return self.steps_per_epoch * self.global_batch

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of a step that is counted over all epochs, from 0, and its number there."""
        return divmod(step, self.steps_per_epoch)

    def local_batch(self, world: int) -> int:
        """B / W. Raises RequestError: ranks cannot have equally many samples."""
        if world < 1 or self.global_batch % world:
            raise RequestError(
                "world", world, f"a divisor of the global batch, {self.global_batch}"
            )
        return self.global_batch // world

    def permutation(self, seed: int, epoch: int) -> IntArray:
        """The samples of an epoch in their order, cut to N. Shape (N,)."""
        return np.random.default_rng([seed, epoch]).permutation(self.dataset_size)[
            : self.epoch_samples
        ]

    def window(self, permutation: IntArray, cursor_step: int) -> IntArray:
        """The samples of one step of an epoch on all ranks (ECRL eq. 3). Shape (B,)."""
        return permutation[cursor_step * self.global_batch : (cursor_step + 1) * self.global_batch]

    def shard(self, window: IntArray, rank: int, world: int) -> IntArray:
        """A rank's samples of a window (ECRL eq. 4). Shape (B / W,)."""
        size = self.local_batch(world)
        return window[rank * size : (rank + 1) * size]


def ids_hash(ids: Iterable[int]) -> str:
    """Hex SHA-256 of ordered sample ids (decimal, comma-separated), as logs record a step."""
    if isinstance(ids, np.ndarray):  # numpy's own numbers take thrice as long
        ids = ids.tolist()
    return hashlib.sha256(",".join(str(int(one)) for one in ids).encode()).hexdigest()


class ResumableSampler:
    """Batches of one rank that a restarted training continues where it stopped (ECRL 4.2).

    A batch sampler for ``torch.utils.data.DataLoader``. Data loaders read ahead, so what was drawn
    says nothing about what was trained: call :meth:`step` after each optimizer step, and only those
    steps count. Its state is three numbers, the same on all ranks, and holds for any number of
    ranks that divides the global batch::

        sampler = ResumableSampler(len(dataset), global_batch=64, rank=rank, world=world, seed=7)
        checkpointer = Checkpointer(model=model, optimizer=optimizer, extra={"sampler": sampler})
        for step in checkpointer.steps(90 * sampler.geometry.steps_per_epoch):
            ids = next(batches)  # of a generator that repeats ``yield from sampler``
            ...
            optimizer.step()
            sampler.step()
    """

    def __init__(
        self, dataset_size: int, *, global_batch: int, rank: int = 0, world: int = 1, seed: int = 0
    ) -> None:
        """Start at the first step of the first epoch.

        Args:
            dataset_size: samples of the data set, on all ranks together.
            global_batch: samples of a step on all ranks together, a multiple of ``world``; what
                is left of an epoch after the last whole step is not used in that epoch.
            rank: of ``world``.
            world: number of ranks.
            seed: of the order, from 0.
        """
        self.geometry = Geometry(dataset_size, global_batch)
        self.geometry.local_batch(world)
        if not 0 <= rank < world:
            raise RequestError("rank", rank, f"from 0 to {world - 1}")
        refuse_outside("seed", seed, 0)
        self.rank = rank
        self.world = world
        self.seed = seed
        self.epoch = self.cursor_step = 0

    @property
    def global_step(self) -> int:
        """Steps done, over all epochs."""
        return self.epoch * self.geometry.steps_per_epoch + self.cursor_step

    def __len__(self) -> int:
        return self.geometry.steps_per_epoch - self.cursor_step

    def __iter__(self) -> Iterator[list[int]]:
        geometry = self.geometry
        order = geometry.permutation(self.seed, self.epoch)
        for step in range(self.cursor_step, geometry.steps_per_epoch):
            yield geometry.shard(geometry.window(order, step), self.rank, self.world).tolist()

    def step(self) -> None:
        """A step was trained."""
        self.epoch, self.cursor_step = self.geometry.place(self.global_step + 1)

    def state_dict(self) -> dict[str, int]:
        """Where training is: {epoch, cursor_step, seed}."""
        return {"epoch": self.epoch, "cursor_step": self.cursor_step, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a state. Raises RequestError: it is not of this geometry."""
        try:
            epoch, cursor_step, seed = (
                int(state[name]) for name in ("epoch", "cursor_step", "seed")
            )
        except (KeyError, TypeError, ValueError):
            raise RequestError("state", state, "what state_dict() has returned") from None
        if epoch < 0 or seed < 0 or not 0 <= cursor_step < self.geometry.steps_per_epoch:
            steps = self.geometry.steps_per_epoch
            raise RequestError(
                "state",
                dict(state),
                f"of the same data set and global batch: {steps} steps an epoch",
            )
        self.epoch = epoch
        self.cursor_step = cursor_step
        self.seed = seed
