"""What is trained to measure a machine, and what each process is told of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

BATCH, RESOLUTION = 128, 32
"""The paper's (V-A): a batch of 128 for each GPU, of images of CIFAR-10, with Adam."""


@dataclass(frozen=True)
class Workload:
    """What a number of eFLOPS belongs to.

    Attributes:
        model: a name of :data:`deepvm.profiling.workload.models.MODELS`, or ``module:function`` for a model of one's
            own.
        resolution: height and width of the images, pixels.
        batch: images of a step on each GPU, or in each process on the CPU.
        dtype: ``float32``, or ``bfloat16`` and ``float16`` for mixed precision.
        optimizer: ``adam`` or ``sgd``.
    """

    model: str
    resolution: int = RESOLUTION
    batch: int = BATCH
    dtype: str = "float32"
    optimizer: str = "adam"


@dataclass(frozen=True)
class Task:
    """What each process is to do.

    Attributes:
        device: ``cpu`` or ``cuda``. processes: how many train together. threads: of each on the CPU.
        windows: how many count. seconds: each lasts at least. timeout_s: the longest wait for another process.
        data: a folder, "" for random images. modules: a folder in which ``module:function`` is looked for last.
    """

    workload: Workload
    device: str
    processes: int
    threads: int
    windows: int
    seconds: float
    timeout_s: float
    data: str
    modules: str = ""

    def write(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Task:
        """The inverse of :meth:`write`."""
        fields = json.loads(text)
        return cls(**fields | {"workload": Workload(**fields["workload"])})
