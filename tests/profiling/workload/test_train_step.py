"""How a model is laid out for the devices that train it."""

from __future__ import annotations

import torch

from deepvm.profiling.workload.train_step import memory_format

IMAGES, VOLUMES = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv3d(3, 4, 3)


def test_tensor_cores_take_images_with_their_channels_last() -> None:
    for model, device, kind, last in [
        (IMAGES, "cuda", torch.bfloat16, True),
        (IMAGES, "cuda", torch.float16, True),
        (IMAGES, "cuda", torch.float32, False),
        (IMAGES, "cpu", torch.bfloat16, False),
        (VOLUMES, "cuda", torch.bfloat16, False),
    ]:
        expected = torch.channels_last if last else torch.preserve_format
        assert memory_format(model, torch.device(device), kind) is expected
