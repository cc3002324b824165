"""Performance of instances and clusters (DeepVM III-B2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SECONDS_PER_HOUR = 3600


def flopp(eflops: float, usd_per_hour: float) -> float:
    """FLOPP, operations per dollar (DeepVM eq. 1): eFLOPS x 3600 / price.

    Args:
        eflops: measured operations per second, in the catalogue's eFLOPS unit.
        usd_per_hour: price in $/h, above 0.
    """
    return eflops * SECONDS_PER_HOUR / usd_per_hour


def throughput(
    eflops: float | npt.NDArray[np.float64], count: npt.NDArray[np.float64], scaling_factor: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Performance of a cluster of ``count`` equal VMs: eFLOPS x n x K(n) (DeepVM V-A), in the eFLOPS unit."""
    return eflops * count * scaling_factor
