"""How good predictions are: each published run predicted from all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepvm.catalog.published.rows import PublishedRun, published
from deepvm.core.interval import Z80
from deepvm.core.training.evidence import leave_out

FloatArray = npt.NDArray[np.float64]

PROMISED: dict[str, Any] = {"median_error": 0.12, "coverage": {"min": 0.75, "max": 0.90}}
"""The largest median error of throughput within a GPU, and how often the 80 % interval holds."""


@dataclass(frozen=True)
class Group:
    """Runs that belong together.

    How many, the errors of their predictions, and how often the interval held.
    """

    name: str
    runs: int
    median: float
    p90: float
    coverage: float
    width: float


@dataclass(frozen=True)
class PublishedCheck:
    """The check, over all runs, by GPU, by model and by source.

    ``unseen``: runs predicted without any run of their model, by model.
    """

    total: Group
    gpus: tuple[Group, ...]
    models: tuple[Group, ...]
    sources: tuple[Group, ...]
    unseen: tuple[Group, ...]

    @property
    def kept(self) -> bool:
        """Whether what is promised holds."""
        near = all(group.median <= PROMISED["median_error"] for group in self.gpus)
        held = PROMISED["coverage"]
        return near and bool(held["min"] <= self.total.coverage <= held["max"])

    @property
    def promised(self) -> dict[str, Any]:
        """What must hold."""
        return PROMISED


def check_published() -> PublishedCheck:
    """Leave each published run out, and each model."""
    runs = list(published())
    rows = [run.row() for run in runs]
    measured = np.array([row.error for row in rows])
    models = [_model(run) for run in runs]
    one, whole = (
        _Left(mean - measured, sd) for mean, sd in (leave_out(rows), leave_out(rows, models))
    )
    return PublishedCheck(
        one.group("all", np.arange(len(runs))),
        one.by([run.machine.accelerator.name for run in runs]),
        one.by(models),
        one.by([run.source for run in runs]),
        whole.by(models),
    )


def _model(run: PublishedRun) -> str:
    return run.workload.model.name


@dataclass(frozen=True)
class _Left:
    """Predictions of runs that were left out.

    How far off they are, and their doubt, on a logarithmic scale.
    """

    off: FloatArray
    sd: FloatArray

    def group(self, name: str, places: npt.NDArray[np.int64]) -> Group:
        off = np.abs(self.off[places])
        sd = self.sd[places]
        median, p90 = np.quantile(np.expm1(off), [0.5, 0.9])
        width = float(np.median(np.expm1(Z80 * sd)))
        return Group(
            name, len(places), float(median), float(p90), float((off <= Z80 * sd).mean()), width
        )

    def by(self, keys: Sequence[str]) -> tuple[Group, ...]:
        return tuple(
            self.group(key, np.flatnonzero([k == key for k in keys])) for key in sorted(set(keys))
        )
