"""How many VMs may send to one memory node before its network saturates (DeepVM III-C2, Table V)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.errors import RequestError


@dataclass(frozen=True)
class SaturationTable:
    """n_sat by bandwidth: the number of senders at which one more sender stops helping (eq. 14).

    A bandwidth between two rows counts as the lower one, which was measured to hold; below the first row as the first.

    Attributes:
        network_gbps: bandwidths in Gbit/s, strictly increasing.
        n_sat: senders at saturation, whole numbers >= 1, never decreasing.
    """

    network_gbps: tuple[float, ...]
    n_sat: tuple[int, ...]

    def __post_init__(self) -> None:
        """Keep Python's own numbers; raise a RequestError for a table that the planner's algebra does not hold for."""
        gbps, n_sat = self.network_gbps, self.n_sat
        if not gbps or len(gbps) != len(n_sat):
            raise RequestError("n_sat", (gbps, n_sat), "one n_sat for each bandwidth, at least one row")
        if not all(0 < g < float("inf") for g in gbps) or any(a >= b for a, b in zip(gbps, gbps[1:], strict=False)):
            raise RequestError("network_gbps", gbps, "positive bandwidths in Gbit/s, strictly increasing")
        whole = all(1 <= n < float("inf") and n == int(n) for n in n_sat)
        if not whole or any(a > b for a, b in zip(n_sat, n_sat[1:], strict=False)):
            raise RequestError("n_sat", n_sat, "whole numbers >= 1 that never decrease with bandwidth")
        object.__setattr__(self, "network_gbps", tuple(float(g) for g in gbps))
        object.__setattr__(self, "n_sat", tuple(int(n) for n in n_sat))

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[float, int]]) -> SaturationTable:
        """Build from ``(network_gbps, n_sat)`` rows in any order."""
        ordered = sorted(rows)
        return cls(tuple(g for g, _ in ordered), tuple(n for _, n in ordered))

    def lookup(self, network_gbps: float | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """n_sat of a bandwidth in Gbit/s, same shape; that of a pair is the smaller of the two, for it never falls."""
        row = np.searchsorted(np.asarray(self.network_gbps), network_gbps, side="right") - 1
        return np.asarray(self.n_sat, dtype=np.int64)[np.maximum(row, 0)]


PAPER_TABLE = SaturationTable((0.3, 1.7, 5.0, 10.0, 12.5, 15.0, 25.0, 30.0), (3, 12, 16, 20, 24, 24, 28, 32))
"""DeepVM Table V, measured by its authors on AWS in 2023."""
