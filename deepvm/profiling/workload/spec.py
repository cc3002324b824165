"""What is trained to measure a machine; light to import, without torch."""

from __future__ import annotations

from dataclasses import dataclass

BATCH, RESOLUTION = 128, 32  # the paper's (V-A): a batch of 128 for each GPU, of images of CIFAR-10, with Adam


@dataclass(frozen=True)
class Workload:
    """What a number of eFLOPS belongs to.

    Attributes:
        model: as in :func:`deepvm.profiling.workload.models.build`. resolution: height and width of images, pixels.
        batch: images of a step on each GPU, or in each process on the CPU.
        dtype: ``float32``, or ``bfloat16`` and ``float16`` for mixed precision. optimizer: ``adam`` or ``sgd``.
    """

    model: str
    resolution: int = RESOLUTION
    batch: int = BATCH
    dtype: str = "float32"
    optimizer: str = "adam"
