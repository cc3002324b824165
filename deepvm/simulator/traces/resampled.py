"""Observed lifetimes, some censored, resampled by their Kaplan-Meier estimate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.errors import DataError
from deepvm.simulator.engine.lifetimes import LifeSource
from deepvm.simulator.traces.lifetime_fit import survival_curve
from deepvm.simulator.traces.trace import TraceLives


class ResampledLifetimes(LifeSource):
    """Independent lives, drawn from Kaplan and Meier's curve of those that were seen.

    Where the longest were censored, the curve ends above 0: beyond it nothing was seen, and lives
    go on at the constant rate of all preemptions over all lives.
    """

    def __init__(self, lives: Sequence[tuple[float, bool]]) -> None:
        """``lives``: (seconds, whether a preemption ended it).

        Raises DataError: none was ended by one.
        """
        seen_s = np.array([s for s, _ in lives], dtype=float)
        ended = np.array([e for _, e in lives], dtype=bool)
        if not ended.any():
            raise DataError(
                f"none of {len(lives)} lives was ended by a preemption; name another pool, or an"
                " mttp_s"
            )
        self._times, self._above = survival_curve(
            [TraceLives("history", 0.0, np.maximum(seen_s, 1e-3), ended)]
        )
        self.mean_s = float(seen_s.sum() / ended.sum())

    def draw(self, random: np.random.Generator, starts: IntArray, numbers: IntArray) -> FloatArray:
        share = random.random(len(numbers))
        # The first time that fewer than this share outlast
        place = np.searchsorted(-self._above, -share)
        beyond = place == len(self._times)
        life = self._times[np.minimum(place, len(self._times) - 1)]
        return life + np.where(beyond, random.exponential(self.mean_s, len(numbers)), 0.0)
