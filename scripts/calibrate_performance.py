"""Refit to the published steps, after a change of ``data/performance`` or the step-time law.

    python scripts/calibrate_performance.py

writes ``data/performance/calibration.json``; ``make test`` fails until it is up to date.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from deepvm.catalog.published.performance import CALIBRATION, Calibration, key_of
from deepvm.catalog.published.rows import SPLIT_LAYERS, PublishedRun, published
from deepvm.core.training.evidence import Evidence, learn
from deepvm.io.atomic_write import write_bytes
from deepvm.io.user_dirs import data_folder

_DIGITS = 5


def calibrate() -> Calibration:
    """Learn from all published runs.

    Effects of the places where they were measured are left out.
    """
    runs = list(published())
    evidence = only(
        learn([run.row() for run in runs]),
        lambda name: not name.startswith(("site: ", "network=unstated")),
    )
    return Calibration(
        evidence, frozenset(_key(run) for run in runs if not _splits_layers(run)), len(runs)
    )


def only(evidence: Evidence, wanted: Callable[[str], bool]) -> Evidence:
    """What is known of some of the effects, whatever the others are."""
    kept = [name for name in evidence.names if wanted(name)]
    rows = [evidence.names[name] for name in kept]
    root = np.asarray(np.linalg.cholesky(evidence.covariance[np.ix_(rows, rows)]))
    return Evidence({name: i for i, name in enumerate(kept)}, evidence.mean[rows], root)


def _splits_layers(run: PublishedRun) -> bool:
    """Whether it says something of its GPU, but is no run of its method: layers are split too."""
    return run.source == SPLIT_LAYERS and run.workload.batch < run.passes


def _key(run: PublishedRun) -> tuple[str, str, str, str]:
    return key_of(run.workload, run.machine.accelerator, run.precision)


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


if __name__ == "__main__":
    write_bytes(data_folder() / CALIBRATION, to_text(calibrate()).encode())
