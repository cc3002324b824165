"""Accuracy of predictions: each published run predicted from all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from deepvm.catalog.published.rows import published
from deepvm.core.arrays import FloatArray
from deepvm.core.training.evidence import leave_out
from deepvm.core.units import Z80


@dataclass(frozen=True)
class Group:
    """Runs that belong together: their number, prediction errors, and coverage of the interval."""

    name: str
    runs: int
    median: float
    p90: float
    coverage: float
    width: float


@dataclass(frozen=True)
class PublishedCheck:
    """The check, over all runs, by GPU, by model and by source.

    ``unseen``: runs predicted without any run of their model, by model. ``promised``: the largest
    median error of throughput within a GPU, and how often the 80 % interval holds.
    """

    total: Group
    gpus: tuple[Group, ...]
    models: tuple[Group, ...]
    sources: tuple[Group, ...]
    unseen: tuple[Group, ...]

    promised: ClassVar[Mapping[str, Any]] = {
        "median_error": 0.12,
        "coverage": {"min": 0.75, "max": 0.90},
    }

    @property
    def kept(self) -> bool:
        """Whether the promised accuracy holds."""
        held = self.promised["coverage"]
        near = all(group.median <= self.promised["median_error"] for group in self.gpus)
        return near and bool(held["min"] <= self.total.coverage <= held["max"])


def check_published() -> PublishedCheck:
    """Leave each published run out, and each model."""
    runs = list(published())
    rows = [run.row() for run in runs]
    measured = np.array([row.error for row in rows])
    models = [run.workload.model.name for run in runs]

    def groups(keys: Sequence[str], left_out: tuple[FloatArray, FloatArray]) -> tuple[Group, ...]:
        mean, sd = left_out
        off = np.abs(mean - measured)
        names = np.array(keys)
        return tuple(_group(key, off[names == key], sd[names == key]) for key in sorted(set(keys)))

    one = leave_out(rows)
    return PublishedCheck(
        groups(["all"] * len(runs), one)[0],
        groups([run.machine.accelerator.name for run in runs], one),
        groups(models, one),
        groups([run.source for run in runs], one),
        groups(models, leave_out(rows, models)),
    )


def _group(name: str, off: FloatArray, sd: FloatArray) -> Group:
    """``off``: errors of predictions, ``sd``: their standard deviation; on a logarithmic scale."""
    median, p90 = np.quantile(np.expm1(off), [0.5, 0.9])
    width = np.median(np.expm1(Z80 * sd))
    held = (off <= Z80 * sd).mean()
    return Group(name, len(off), float(median), float(p90), float(held), float(width))
