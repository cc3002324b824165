"""What ECRL has published of its matrix (Exp4): Tables 5, 6 and 7.

Facts of Chen, "ECRL: Elastic and Correct Recovery Lab (DDP)": four RTX 4090, CIFAR, ResNet-18 and
ResNet-50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSuite:
    """A row of Table 6, with the stalls of Table 8. Goodput in steps a second, stalls in seconds.

    ``gain``: goodput of overlapped over that of blocking, less 1, as printed.
    """

    dataset: str
    model: str
    failure: str
    reference: float
    blocking: float
    overlapped: float
    gain: float
    blocking_stall_s: float
    overlapped_stall_s: float


ENVIRONMENT = (
    "CIFAR, ResNet-18 and ResNet-50, four ranks on RTX 4090, 1600 steps, K = 50, one seed a suite"
)
"""Under which its figures were taken; steps: see data/lab/ecrl-exp4.yaml."""
MACHINE = {
    "OS": "Arch Linux, kernel 6.12.53-1-lts, x86_64",
    "CPU": "2x Intel Xeon Gold 5118 @ 2.30GHz",
    "cores": "24 physical cores, 48 logical CPUs",
    "memory": "125 GiB, 19 GiB swap",
    "GPUs": "4x GeForce RTX 4090, 2x GeForce RTX 3090; driver 580.95.05, CUDA 13.0",
    "Python": "3.11.14",
    "PyTorch": "2.10.0+cu128",
}
"""Table 2."""
MATRIX = (
    ("CIFAR-10; CIFAR-100", 2),
    ("ResNet-18; ResNet-50", 2),
    ("base (400, 1200); late (800, 1400)", 2),
    ("ref; blk; ovl", 3),
)
"""Table 3: data sets, models, failures, variants."""
SUITES: Sequence[PublishedSuite] = (
    PublishedSuite(
        "cifar100", "resnet18", "late", 14.5657, 12.2979, 12.7471, 0.036527, 11.7959, 5.1019
    ),
    PublishedSuite(
        "cifar100", "resnet50", "base", 8.6444, 7.6277, 7.8637, 0.030946, 24.2103, 10.2728
    ),
    PublishedSuite(
        "cifar10", "resnet50", "late", 7.2259, 6.6058, 6.8030, 0.029853, 24.7192, 10.1076
    ),
    PublishedSuite(
        "cifar10", "resnet18", "base", 11.7289, 11.3023, 11.5721, 0.023869, 11.0699, 6.1273
    ),
    PublishedSuite(
        "cifar10", "resnet50", "base", 8.5743, 6.7222, 6.8576, 0.020142, 24.2825, 9.7517
    ),
    PublishedSuite(
        "cifar100", "resnet18", "base", 14.9770, 12.5790, 12.7443, 0.013142, 11.1750, 5.1956
    ),
    PublishedSuite(
        "cifar100", "resnet50", "late", 8.3879, 7.2988, 7.3179, 0.002609, 26.6126, 10.4842
    ),
    PublishedSuite(
        "cifar10", "resnet18", "late", 13.3230, 11.2143, 11.2408, 0.002358, 10.8221, 5.8818
    ),
)
PASS_RATE, GAIN, DROPS = (1.0, 1.0, 1.0), 0.019931, (-0.132466, -0.115026)
"""Table 5: of reference, blocking, overlapped; of overlapped over blocking.

Of both over the reference.
"""
AGGREGATE = {
    "goodput": ("goodput, steps/s", (10.9284, 9.4560, 9.6433)),
    "restarts": ("restarts", (0.0, 2.0, 2.0)),
    "wall_s": ("wall time, s", (157.1323, 181.3431, 177.7858)),
    "stall_s": ("stall, s", (18.0629, 18.0859, 7.8654)),
    "write_s": ("write, s", (17.8939, 17.9036, 1.3811)),
    "snapshot_s": ("snapshot, s", (0.0295, 0.0324, 0.0328)),
    "loss_difference": ("loss difference", (None, 0.0660, 0.0669)),
}
"""Table 5: means over the 8 suites, of reference, blocking, overlapped.

By attribute of :class:`~deepvm.lab.results.Cost`. Of loss differences (eq. 8): from the reference.
"""
SLICES = {
    ("dataset", "cifar10"): (0.019055, -9.7563, 0.0009),
    ("dataset", "cifar100"): (0.020806, -10.6848, 0.0009),
    ("model", "resnet18"): (0.018974, -5.6390, 0.0018),
    ("model", "resnet50"): (0.020888, -14.8021, 0.0000),
    ("failure", "base"): (0.022025, -9.8476, 0.0012),
    ("failure", "late"): (0.017837, -10.5935, 0.0006),
}
"""Table 7: gain of overlapped over blocking, differences of their stalls (s) and losses."""
