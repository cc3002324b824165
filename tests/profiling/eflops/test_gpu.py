"""eFLOPS of GPUs: ``pytest -m gpu tests/profiling``."""

from __future__ import annotations

import json
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from deepvm.errors import RequestError  # noqa: E402
from deepvm.profiling.eflops.measure_eflops import measure_eflops  # noqa: E402
from deepvm.profiling.workload.models import build  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.mark.parametrize("processes", [1, None])
def test_all_gpus_or_one(processes: int | None) -> None:
    found = measure_eflops(
        "resnet18", 128, windows=3, seconds=0.5, device="cuda", processes=processes
    )
    assert found.processes == (processes or torch.cuda.device_count())
    assert found.machine["gpus"][0] == torch.cuda.get_device_name(0)
    assert found.machine["cuda"] == torch.version.cuda
    assert {w.images for w in found.windows} == {128 * found.processes * found.steps}
    json.dumps(found.document(), allow_nan=False)


def test_an_independent_stopwatch_agrees() -> None:
    """Were the device not waited for, the command would find many times the speed."""
    found = measure_eflops("resnet50", 64, 64, windows=3, seconds=0.5, device="cuda", processes=1)
    model = build("resnet50").cuda()
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = (
        torch.randn(64, 3, 64, 64, device="cuda"),
        torch.randint(10, (64,), device="cuda"),
    )
    speeds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        torch.cuda.synchronize()
        speeds.append(640 / (time.monotonic() - start))
    assert 0.5 < found.images_per_s / max(speeds) < 1.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision(dtype: str) -> None:
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        with pytest.raises(RequestError, match="has no bfloat16"):
            measure_eflops("resnet18", 16, windows=3, seconds=0.1, device="cuda", dtype=dtype)
        return
    found = measure_eflops(
        "efficientnet_v2_m", 16, windows=3, seconds=0.1, device="cuda", dtype=dtype
    )
    assert found.workload.dtype == dtype
    assert found.eflops > 0


def test_what_does_not_fit_is_told_with_the_next_step() -> None:
    with pytest.raises(
        RequestError, match="less, such as 16384: resnet152 at 1024 x 1024: CUDA out of memory"
    ):
        measure_eflops("resnet152", 32768, 1024, windows=3, device="cuda")


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(RequestError, match="the GPUs that torch sees"):
        measure_eflops("resnet18", device="cuda", processes=torch.cuda.device_count() + 1)
