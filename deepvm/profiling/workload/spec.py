"""What is trained to measure a machine; light to import, without torch."""

from collections.abc import Mapping

from deepvm.records import dataclass

# The paper's (V-A): a batch of 128 for each GPU, of images of CIFAR-10, with Adam
BATCH = 128
RESOLUTION = 32

# Models that are built here, by what ``recommend --model`` calls them
PRESETS: Mapping[str, str] = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "resnet152": "resnet152",
    "efficientnet-v2-m": "efficientnet_v2_m",
}
# What a workload's ``dtype`` is for each precision of the planner that training here has
DTYPES: Mapping[str, str] = {
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}


@dataclass(frozen=True)
class Workload:
    """What a number of eFLOPS belongs to."""

    model: str  # as in :func:`deepvm.profiling.workload.models.build`
    resolution: int = RESOLUTION  # height and width of images, pixels
    batch: int = BATCH  # images of a step on each GPU, or in each process on the CPU
    dtype: str = "float32"  # ``bfloat16`` and ``float16`` for mixed precision
    optimizer: str = "adam"  # or ``sgd``
