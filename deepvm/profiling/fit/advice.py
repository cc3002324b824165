"""How far a fitted curve may be used, and which size to measure next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepvm.profiling.fit.diagnostics import ENOUGH_SIZES, OFF, REACH, is_near_linear
from deepvm.profiling.fit.speedup_fit import Fit


def trusted_to(fit: Fit) -> int:
    """The largest n to use the curve for: 1.5 x the largest measured, or just that one where nothing bends yet."""
    return fit.sizes[-1] if _is_straight(fit) else int(REACH * fit.sizes[-1])


def next_step(fit: Fit) -> str:
    """Which n to measure next, and why; or that there is no need."""
    sizes, largest = fit.sizes, fit.sizes[-1]
    n = np.array(sizes, dtype=np.float64)
    low, high = fit.band.at(n)
    width = (high - low) / 2 / fit.best.speedup(n)
    widest = int(np.argmax(width))
    if fit.up_to > REACH * largest:
        return f"measure n = {fit.up_to}, for which the curve is to be used"
    if _is_straight(fit):
        return f"measure n = {2 * largest}: nothing bends yet at n = {largest}"
    if len(sizes) <= ENOUGH_SIZES:
        between = _middle(sizes)
        return f"measure n = {between or 2 * largest}: {len(sizes)} sizes are few"
    if width[widest] > OFF and sum(n == 1 for n, _ in fit.points) == 1:
        return f"repeat n = 1, from which all speed-ups count: S({sizes[widest]}) is {_sure(width[widest])}"
    if width[widest] > OFF:
        return f"repeat n = {sizes[widest]}, where the band is widest: {_sure(width[widest])}"
    return f"nothing; up to n = {trusted_to(fit)} these points are enough"


def _sure(width: float) -> str:
    return f"known to {100 * width:.0f} % to either side"


def _is_straight(fit: Fit) -> bool:
    return fit.logistic.b >= fit.sizes[-1] or is_near_linear(*np.array(fit.points).T)


def _middle(sizes: Sequence[int]) -> int | None:
    """A size that is not measured yet, in the middle of the widest gap as a ratio."""
    gaps = [(high / low, round((low * high) ** 0.5)) for low, high in zip(sizes, sizes[1:], strict=False)]
    free = [(ratio, middle) for ratio, middle in gaps if middle not in sizes]
    return max(free)[1] if free else None
