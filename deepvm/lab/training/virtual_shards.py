"""Steps with the same result for any number of ranks: a fixed number of shards per step.

Each shard is a batch of its own, with a seed of its own for dropout, and gradients, buffers and
losses of all shards are added in a fixed tree. A rank computes one shard or several; numbers are
added in the same order by all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from deepvm.errors import RequestError
from deepvm.lab.training.models import loss_of


class VirtualShards:
    """A model whose gradients are computed in shards."""

    def __init__(self, module: nn.Module, shards: int, rank: int, world: int, seed: int) -> None:
        """Raises RequestError: ranks cannot have equally many shards."""
        if shards % world:
            raise RequestError("world", world, f"a divisor of the {shards} virtual shards")
        self._module = module
        self._shards = shards
        self._seed = seed
        self._mine = shards // world
        self._first = rank * self._mine
        self._world = world
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._buffers = [b for b in module.buffers() if b.is_floating_point()]
        self._counters = [b for b in module.buffers() if not b.is_floating_point()]

    def gradients(
        self, step: int, inputs: Tensor, targets: Tensor, before: Callable[[], None]
    ) -> float:
        """Leave the mean gradient of all shards in the parameters; returns the mean loss of all.

        ``inputs`` and ``targets``: this rank's samples, those of its shards in their order.
        ``before`` is called before ranks exchange anything.
        """
        start = [b.clone() for b in self._buffers]
        counted = [b.clone() for b in self._counters]
        rows = []
        for number, (x, y) in enumerate(
            zip(inputs.chunk(self._mine), targets.chunk(self._mine), strict=True)
        ):
            for buffer, value in zip(self._buffers, start, strict=True):
                buffer.copy_(value)
            for counter, value in zip(self._counters, counted, strict=True):
                counter.copy_(value)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(
                    ((self._seed * 1_000_003 + step) * 1009 + self._first + number) % 2**63
                )
                loss = loss_of(self._module, x, y)
                gradients = torch.autograd.grad(loss, self._parameters)
            rows.append(
                torch.cat([t.detach().reshape(-1) for t in (*gradients, *self._buffers, loss)])
            )
        before()
        mean = _tree_sum(self._everyones(torch.stack(rows))) / self._shards
        sizes = [t.numel() for t in (*self._parameters, *self._buffers)]
        *parts, loss = torch.split(mean, [*sizes, 1])
        for parameter, part in zip(self._parameters, parts, strict=False):
            parameter.grad = part.reshape(parameter.shape).clone()
        for buffer, part in zip(self._buffers, parts[len(self._parameters) :], strict=True):
            buffer.copy_(part.reshape(buffer.shape))
        return float(loss)

    def _everyones(self, rows: Tensor) -> Sequence[Tensor]:
        if self._world == 1:
            return list(rows)
        gathered = [torch.empty_like(rows) for _ in range(self._world)]
        dist.all_gather(gathered, rows)
        return list(torch.cat(gathered))


def _tree_sum(rows: Sequence[Tensor]) -> Tensor:
    """The sum of rows by pairs, then pairs of pairs: the same order for any rank count."""
    left = list(rows)
    while len(left) > 1:
        left = [sum(left[i + 1 : i + 2], left[i]) for i in range(0, len(left), 2)]
    return left[0]
