"""Step times that follow a known law, as ``deepvm profile scaling`` and users' own files record
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepvm.core.training.steptime import Steps, StepTimeLaw

LAW = StepTimeLaw(
    0.02, 0.004, network_fixed=0.1, network_per_gpu=0.002, overlap=2.5, straggling=0.02
)
"""Of a ResNet-50 on VMs with one T4 each: 240 images/s, not far from what others have published."""


def seconds(law: StepTimeLaw, nodes: float, gpus: float, batch: float) -> float:
    """A step of the law."""
    return float(law.step_s(np.array([nodes]), np.array([gpus]), np.array([batch]))[0])


def scaling_runs(
    law: StepTimeLaw = LAW,
    sizes: Sequence[int] = (1, 2, 4, 6, 8),
    batches: Sequence[int] = (128, 64, 32),
    *,
    per_vm: int = 1,
    repeats: int = 2,
    noise: float = 0.01,
    seed: int = 1,
    **workload: Any,
) -> dict[str, Any]:
    """A document of ``deepvm profile scaling``: ResNet-50, 224 pixels, float16, on GPUs that torch
    calls Tesla T4.
    """
    random = np.random.default_rng(seed)
    runs = []
    for n in sizes:
        for batch in batches:
            for repeat in range(1, repeats + 1):
                step_s = seconds(law, n, n * per_vm, batch)
                windows = (step_s * np.exp(random.normal(0, noise, 3))).tolist()
                images = n * per_vm * batch / step_s
                run = {
                    "n": n,
                    "repeat": repeat,
                    "seconds_per_step": windows,
                    "images_per_s": images,
                    "failed": None,
                }
                runs.append(run | {"batch": batch})
    one = seconds(law, 1, per_vm, batches[0])
    times = [(n, seconds(law, n, n * per_vm, batches[0]) / n) for n in sizes]
    return {
        "schema_version": "deepvm.scaling/1",
        "workload": {
            "model": "resnet50",
            "resolution": 224,
            "batch": batches[0],
            "dtype": "float16",
            "optimizer": "adam",
            "device": "cuda",
            "processes": per_vm,
            **workload,
        },
        "hosts": [f"vm{i}" for i in range(max(sizes))],
        "local": False,
        "plan": {"sizes": list(sizes), "repeats": repeats, "batches": list(batches)},
        "runs": runs,
        "points": [{"n": n, "seconds": s, "speedup": 1.0 if n == 1 else one / s} for n, s in times],
        "warnings": [],
        "machine": {"processor": "x", "gpus": ["Tesla T4"] * per_vm},
    }


def steps_of(
    law: StepTimeLaw,
    clusters: Sequence[tuple[int, int]],
    batches: Sequence[float],
    *,
    noise: float = 0.0,
    seed: int = 1,
) -> Steps:
    """Three steps of each cluster (VMs, GPUs) and batch."""
    random = np.random.default_rng(seed)
    rows = [
        (n, k, b, seconds(law, n, k, b)) for n, k in clusters for b in batches for _ in range(3)
    ]
    nodes, gpus, batch, step_s = np.array(rows, dtype=np.float64).T
    return Steps(nodes, gpus, batch, step_s * np.exp(random.normal(0, noise, len(step_s))))
