"""Models: published sizes, the same weights for the same seed, and no random number drawn from the
process.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deepvm.lab.training.datasets import Samples, load
from deepvm.lab.training.models import MODELS, WIDTHS, build, loss_of
from deepvm.lab.training.trainer import digest

FOR_TOKENS = ("gpt-tiny",)
IMAGES = Samples(torch.zeros(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64), 10)
SMALL = Samples(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64), 10)


QUICK = [
    pytest.param(name, marks=pytest.mark.slow if name == "resnet50" else ()) for name in MODELS
]


def samples_of(name: str) -> Samples:
    return load("tokens", None, 4) if name in FOR_TOKENS else SMALL


def made(name: str, samples: Samples | None = None, **changes: object) -> nn.Module:
    options = {"seed": 0, "width": 8, "norm": "batch", "dropout": 0.0, **changes}
    return build(name, samples or samples_of(name), **options)  # type: ignore[arg-type]


# https://github.com/kuangliu/pytorch-cifar counts 11 173 962 and 23 520 842 with this stem and 10
# classes.
@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet18", 11_173_962), ("resnet50", 23_520_842)]
)
def test_published_sizes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = made(name, IMAGES, width=None)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_a_seed_is_a_model() -> None:
    for name in MODELS:
        before = torch.get_rng_state()
        one, two, other = made(name), made(name), made(name, seed=1)
        assert digest(one) == digest(two) != digest(other)
        assert torch.equal(torch.get_rng_state(), before)


def test_norms_and_widths() -> None:
    for name in MODELS:
        for norm in ["batch", "group"]:
            found = [made(name, norm=norm, width=width) for width in (8, 16)]
            assert sum(p.numel() for p in found[0].parameters()) < sum(
                p.numel() for p in found[1].parameters()
            )
            kinds = {type(module) for module in found[0].modules()}
            if name in FOR_TOKENS:
                assert nn.LayerNorm in kinds and not kinds & {nn.BatchNorm2d, nn.GroupNorm}
            else:
                wanted, none = (
                    (nn.BatchNorm2d, nn.GroupNorm)
                    if norm == "batch"
                    else (nn.GroupNorm, nn.BatchNorm2d)
                )
                assert wanted in kinds and none not in kinds
                # No running statistics: nothing but parameters is trained.
                assert (norm == "group") is not any(True for _ in found[0].buffers())


@pytest.mark.parametrize("name", QUICK)
def test_gradients_reach_everything(name: str) -> None:
    samples = samples_of(name)
    model = made(name, samples, dropout=0.1)
    loss = loss_of(model, samples.inputs, samples.targets)
    assert loss.shape == () and loss > 0
    torch.autograd.backward(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", QUICK)
def test_dropout_draws_random_numbers(name: str) -> None:
    inputs = samples_of(name).inputs + (0 if name in FOR_TOKENS else 1)
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal((wet := made(name, dropout=0.5))(inputs), wet(inputs))
        assert torch.equal((dry := made(name))(inputs), dry(inputs))


def test_widths_are_multiples_of_eight() -> None:
    assert set(WIDTHS) == set(MODELS) and all(width % 8 == 0 for width in WIDTHS.values())
