"""The models that are measured: their sizes are the published ones, their operations are counted
twice.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.effort import sampled

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from deepvm.errors import RequestError  # noqa: E402
from deepvm.profiling.workload.models import MODELS, build, forward_flops  # noqa: E402

PUBLISHED = {
    # name: millions of parameters with 10 and with 1000 classes, 10^9 multiplications of the
    # forward pass, at pixels
    "resnet18": (11.181642, 11.689512, 1.814, 224),
    "resnet50": (23.528522, 25.557032, 4.089, 224),
    "resnet152": (58.164298, 60.192808, 11.514, 224),
    "efficientnet_v2_m": (52.871166, 54.139356, 24.582, 480),
}


def on_meta(name: str, classes: int = 10) -> nn.Module:
    with torch.device("meta"):
        return build(name, classes)


def operations(model: nn.Module, pixels: int) -> int:
    """The oracle: two operations per weight of an output value, layer by layer."""
    total = 0

    def convolution(layer: Any, _: Any, out: Any) -> None:
        nonlocal total
        height, width = layer.kernel_size
        total += 2 * out[0].numel() * (layer.in_channels // layer.groups) * height * width

    def linear(layer: Any, _: Any, out: Any) -> None:
        nonlocal total
        total += 2 * out[0].numel() * layer.in_features

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(convolution)
        elif isinstance(layer, nn.Linear):
            layer.register_forward_hook(linear)
    model(torch.empty(2, 3, pixels, pixels, device="meta"))
    return total


def test_all_models_are_checked() -> None:
    assert set(PUBLISHED) == set(MODELS)


def test_parameters_are_the_published_ones() -> None:
    for name in PUBLISHED:
        ten, thousand, *_ = PUBLISHED[name]
        for classes, millions in ((10, ten), (1000, thousand)):
            model = on_meta(name, classes)
            assert sum(p.numel() for p in model.parameters()) == round(millions * 1e6)
        assert model(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, classes)


@pytest.mark.parametrize("name", sampled(PUBLISHED))
def test_operations_are_the_published_ones_and_the_oracles(name: str) -> None:
    *_, billions, pixels = PUBLISHED[name]
    model = on_meta(name, 1000)
    found = forward_flops(model, pixels)
    assert found / 2e9 == pytest.approx(billions, abs=6e-4)
    assert found == operations(model, pixels)


def test_operations_are_those_of_the_image_size() -> None:
    model = on_meta("resnet18", 1000)
    assert forward_flops(model, 32) == operations(model, 32)


def test_counting_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    model(torch.randn(2, 3, 8, 8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert forward_flops(model, 8) == 2 * (4 * 6 * 6 * 3 * 9 + 2 * 4 * 6 * 6)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def counted_with_backward(model: nn.Module, pixels: int) -> int:
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(2, 3, pixels, pixels, device="meta", requires_grad=True)).sum().backward()
    return int(counter.get_total_flops()) // 2


def test_why_the_backward_pass_is_not_counted() -> None:
    """Torch counts the weights' gradient of a grouped convolution as if it had no groups.

    Where this fails because torch counts rightly (the two sums are 3), the backward pass can be
    counted as well.
    """
    with torch.device("meta"):
        grouped = nn.Sequential(
            nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
        )
        whole = nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, padding=1, bias=False))
    assert counted_with_backward(whole, 16) == 3 * forward_flops(whole, 16)
    depthwise = 2 * 32 * 9 * 16 * 16
    too_many = counted_with_backward(grouped, 16) - 3 * forward_flops(grouped, 16)
    assert too_many == (32 - 1) * depthwise


@pytest.mark.slow
def test_by_how_much_the_backward_pass_is_counted_wrong() -> None:
    model = on_meta("efficientnet_v2_m")
    assert 15 < counted_with_backward(model, 32) / forward_flops(model, 32) < 17


def test_efficientnet_trains_and_skips_blocks_in_training_only() -> None:
    model = on_meta("efficientnet_v2_m")
    model(torch.empty(2, 3, 32, 32, device="meta")).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    blocks = [layer for layer in model.children() if hasattr(layer, "kept")]
    assert [b.kept for b in blocks] == pytest.approx(
        [1 - 0.2 * number / 57 for number in range(57)]
    )
    last = blocks[-1]
    last.body = nn.Identity()
    ones = torch.ones(4000, 1, 1, 1)
    torch.manual_seed(0)
    found = last(ones) - ones  # what is not skipped is scaled, so that the mean stays
    assert found.unique().tolist() == pytest.approx([0, 1 / last.kept])
    assert found.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(last.eval()(ones), 2 * ones)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(RequestError, match="resnet18, resnet50, resnet152, efficientnet_v2_m"):
        build("resnet17")
