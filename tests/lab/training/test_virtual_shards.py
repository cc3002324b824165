"""Virtual shards: the same gradients to the last bit, however many ranks compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepvm.errors import RequestError
from deepvm.lab.training.datasets import Samples
from deepvm.lab.training.models import build, loss_of
from deepvm.lab.training.trainer import VirtualShards, _tree_sum

SHARDS, BATCH = 4, 16
IMAGES = Samples(
    torch.randn(BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(1)),
    torch.arange(BATCH) % 10,
    10,
)


def model(norm: str = "batch", dropout: float = 0.2) -> nn.Module:
    return build("resnet8", IMAGES, seed=2, width=8, norm=norm, dropout=dropout)


def trained(world: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[Tensor]:
    """Gradients, buffers and loss of a step by so many ranks, one after the other: each gives the
    others its rows.
    """
    rows: list[Tensor] = []

    def everyones(self: VirtualShards, mine: Tensor) -> Sequence[Tensor]:
        rows.append(mine)
        return list(torch.cat(rows)) if len(rows) == world else [mine[0]] * SHARDS

    monkeypatch.setattr(VirtualShards, "_everyones", everyones)
    found: list[Tensor] = []
    for rank in range(world):
        module = model(**changes)
        shards, own = VirtualShards(module, SHARDS, rank, world, 7), BATCH // world
        window = slice(rank * own, (rank + 1) * own)
        loss = shards.gradients(5, IMAGES.inputs[window], IMAGES.targets[window], lambda: None)
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        found = [*gradients, *(b.clone() for b in module.buffers()), torch.tensor(loss)]
    return found


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("world", [2, 4])
def test_any_number_of_ranks_has_the_same_result(
    norm: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, more = trained(1, monkeypatch, norm=norm), trained(world, monkeypatch, norm=norm)
    assert len(one) == len(more) > 10 and all(
        torch.equal(a, b) for a, b in zip(one, more, strict=True)
    )


def test_it_is_the_gradient_of_the_mean_loss() -> None:
    module, plain = (model("group", 0.0) for _ in range(2))
    loss = VirtualShards(module, SHARDS, 0, 1, 0).gradients(
        0, IMAGES.inputs, IMAGES.targets, lambda: None
    )
    whole = loss_of(plain, IMAGES.inputs, IMAGES.targets)
    torch.autograd.backward(whole)
    assert loss == pytest.approx(float(whole.detach()), rel=1e-6)
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert (
            a.grad is not None
            and b.grad is not None
            and torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)
        )


def test_random_numbers_are_those_of_seed_step_and_shard() -> None:
    before = torch.get_rng_state()

    def loss(seed: int, step: int) -> float:
        return VirtualShards(model(), SHARDS, 0, 1, seed).gradients(
            step, IMAGES.inputs, IMAGES.targets, lambda: None
        )

    assert loss(1, 3) == loss(1, 3) and len({loss(1, 3), loss(1, 4), loss(2, 3)}) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_that_do_not_divide_the_shards() -> None:
    with pytest.raises(RequestError, match="a divisor of the 4 virtual shards"):
        VirtualShards(model(), 4, 0, 3, 0)


def test_the_tree_sum_is_a_sum_in_one_order() -> None:
    for count in [1, 2, 3, 4, 5, 8]:
        rows = [torch.tensor([float(2**i), 1e-8 * i]) for i in range(count)]
        assert torch.allclose(_tree_sum(rows), torch.stack(rows).sum(0))
        if count == 4:
            assert torch.equal(_tree_sum(rows), (rows[0] + rows[1]) + (rows[2] + rows[3]))
