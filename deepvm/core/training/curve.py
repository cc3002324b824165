"""The speed-up curve of the step-time law: DeepVM's S(n) and K(n) for a workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from deepvm.core.cluster.speedup import STEP_TIME, BoolArray, FloatArray, SpeedupCurve
from deepvm.core.training.speed import SpeedUncertainty, TrainingSpeed
from deepvm.core.training.steptime import REACH


@dataclass(frozen=True)
class StepTimeSpeedup(SpeedupCurve):
    """S(n) of a type for one workload: throughput of n VMs over that of one.

    Attributes:
        speed_of: throughput of clusters of these sizes. known: on 1, 2 ... VMs.
        unit: units a second of one VM; where sharding makes several VMs faster than that many
            single ones, a share of the best, so that K(n) <= 1 as eq. 13 has it.
        needs: what the workload needs where it fits on no number of these VMs; else empty.
    """

    kind: ClassVar[str] = STEP_TIME
    speed_of: Callable[[FloatArray], TrainingSpeed] = field(repr=False)
    known: TrainingSpeed = field(repr=False, compare=False)
    unit: float
    needs: str = ""

    @classmethod
    def of(
        cls, known: TrainingSpeed, speed_of: Callable[[FloatArray], TrainingSpeed]
    ) -> StepTimeSpeedup:
        """The curve of a type, given its speeds on 1, 2 ... VMs and how to get others."""
        share = (known.throughput / known.vms)[known.fits if known.fits.any() else ...]
        source = known.source.value
        fitted_to = float(known.fitted_vms)
        return cls(
            speed_of, known, float(share.max()), known.needs, source=source, fitted_to=fitted_to
        )

    def speedup(self, n: FloatArray) -> FloatArray:
        """Throughput over the unit; 0 where the workload does not fit."""
        sizes = np.atleast_1d(np.asarray(n, dtype=np.float64))
        if np.array_equal(sizes, self.known.vms):
            found = self.known
        else:
            found = self.speed_of(sizes)
        return np.asarray((found.throughput * found.fits / self.unit).reshape(np.shape(n)))

    def doubt(self, n: FloatArray) -> SpeedUncertainty:
        """The doubt in the speeds of n VMs."""
        rows = np.searchsorted(self.known.vms, n)
        if np.array_equal(self.known.vms.take(rows, mode="clip"), n):
            return self.known.doubt.at(rows)
        return self.speed_of(np.asarray(n, dtype=np.float64)).doubt

    def extrapolated(self, n: FloatArray) -> BoolArray:
        """Beyond 1.5 x the largest measured cluster, or the batch known to train well."""
        return np.asarray(
            np.asarray(n) > min(REACH * (self.fitted_to or np.inf), self.known.proven_vms)
        )
