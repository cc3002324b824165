"""What the published steps teach, learnt beforehand: ``data/performance/calibration.json``.

Learning takes a fifth of a second, reading the result a hundredth; a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from deepvm.catalog.published.rows import Published, published
from deepvm.core.training.evidence import Evidence, learn
from deepvm.core.training.hardware import Accelerator
from deepvm.core.training.workload import Precision, Workload
from deepvm.io.user_dirs import read_data

CALIBRATION = "performance/calibration.json"
_DIGITS = 5


@dataclass(frozen=True)
class Calibration:
    """Evidence, and which runs it is from.

    ``seen``: (model, GPU, precision, method) of the published runs. ``rows``: how many there are.
    """

    evidence: Evidence
    seen: frozenset[tuple[str, str, str, str]]
    rows: int


def calibrate() -> Calibration:
    """Learn from all published runs.

    Effects of the places where they were measured are left out.
    """
    runs = list(published())
    evidence = learn([run.row() for run in runs]).only(
        lambda name: not name.startswith(("site: ", "network=unstated"))
    )
    return Calibration(
        evidence, frozenset(_key(run) for run in runs if not run.splits_layers), len(runs)
    )


def _key(run: Published) -> tuple[str, str, str, str]:
    return key_of(run.workload, run.machine.accelerator, run.precision)


def key_of(workload: Workload, gpu: Accelerator, precision: Precision) -> tuple[str, str, str, str]:
    """What makes a run of the same: model, GPU, precision and method."""
    return workload.model.name, gpu.name, precision.value, workload.method.value


def to_text(found: Calibration) -> str:
    """The file's text: names, means and the rows of the covariance's root, five digits each."""
    evidence = found.evidence
    names = sorted(evidence.names, key=evidence.names.__getitem__)
    document: dict[str, Any] = {
        "schema_version": "deepvm.calibration/1",
        "description": (
            "Effects of published steps on the nominal step time"
            " (deepvm/core/training/evidence.py), made by scripts/calibrate_performance.py from"
            " published.csv."
        ),
        "rows": found.rows,
        "seen": sorted(map(list, found.seen)),
        "names": names,
        "mean": [_rounded(value) for value in evidence.mean.tolist()],
        "root": [
            [_rounded(v) for v in row[: i + 1]] for i, row in enumerate(evidence.root.tolist())
        ],
    }
    return json.dumps(document, separators=(",", ":")).replace("],[", "],\n[") + "\n"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if abs(value) > 1e-7 else 0.0


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
