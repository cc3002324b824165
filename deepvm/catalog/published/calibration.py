"""What the published steps teach, learnt beforehand: ``data/performance/calibration.json``.

Learning takes a fifth of a second, reading the result a hundredth; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from deepvm.core.training.evidence import Evidence
from deepvm.core.training.hardware import Accelerator
from deepvm.core.training.workload import Precision, Workload
from deepvm.io.user_dirs import read_data

CALIBRATION = "performance/calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Evidence, and which runs it is from.

    ``seen``: (model, GPU, precision, method) of the published runs. ``rows``: how many there are.
    """

    evidence: Evidence
    seen: frozenset[tuple[str, str, str, str]]
    rows: int


def key_of(workload: Workload, gpu: Accelerator, precision: Precision) -> tuple[str, str, str, str]:
    """What makes a run of the same: model, GPU, precision and method."""
    return workload.model.name, gpu.name, precision.value, workload.method.value


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """The learnt effects, from the file."""
    raw = read_data(CALIBRATION)
    root = np.zeros((len(raw["names"]), len(raw["names"])))
    for i, row in enumerate(raw["root"]):
        root[i, : i + 1] = row
    evidence = Evidence(
        {name: i for i, name in enumerate(raw["names"])}, np.array(raw["mean"]), root
    )
    return Calibration(evidence, frozenset(tuple(key) for key in raw["seen"]), raw["rows"])
