"""A speed-up curve fitted to measured points: which law, how well, how far it may be trusted (DeepVM III-C1, V-B1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from deepvm.errors import RequestError
from deepvm.profiling.fit.confidence_band import RESAMPLES, Band, bootstrap
from deepvm.profiling.fit.diagnostics import ENOUGH_SIZES, OFF, REACH, doubts, is_near_linear
from deepvm.profiling.fit.speedup_models import LAWS, Fitted, best_first, fit_law
from deepvm.profiling.fit.speedup_points import MOST_NODES, Points

FEWEST_SIZES = 4
"""Three parameters go through three points whatever these are."""


class BandPoint(NamedTuple):
    """S(n) of the best law at one size, dimensionless, and the bootstrap band around it."""

    n: int
    low: float
    speedup: float
    high: float


@dataclass(frozen=True)
class Fit:
    """What the points say.

    Attributes:
        points: (n, S(n)) as measured, sorted by n. laws: all four. best: by AICc. band: around it.
        up_to: the largest n that was asked for. warnings: what is wrong with these points or with using these curves.
    """

    points: Points
    laws: tuple[Fitted, ...]
    best: Fitted
    band: Band
    up_to: int
    warnings: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The measured n, each once, rising."""
        return tuple(sorted({int(n) for n, _ in self.points}))

    def law(self, name: str) -> Fitted:
        """One of the laws by its name."""
        return next(f for f in self.laws if f.law.name == name)

    @property
    def straight(self) -> bool:
        """Whether nothing bends yet at the largest measured n."""
        return self.law("logistic").values[1] >= self.sizes[-1] or is_near_linear(*np.array(self.points).T)

    @property
    def trusted_to(self) -> int:
        """The largest n to use the curve for: 1.5 x the largest measured, or just that one where nothing bends yet."""
        return self.sizes[-1] if self.straight else int(REACH * self.sizes[-1])

    def band_points(self) -> tuple[BandPoint, ...]:
        """The band at the measured n, and beyond them at doublings up to :attr:`up_to`."""
        sizes = list(self.sizes)
        while sizes[-1] < self.up_to:
            sizes.append(min(2 * sizes[-1], self.up_to))
        n = np.array(sizes, dtype=np.float64)
        rows = zip(sizes, *self.band.at(n), self.best.speedup(n), strict=True)
        return tuple(BandPoint(size, float(low), float(s), float(high)) for size, low, high, s in rows)

    def document(self) -> dict[str, Any]:
        """``deepvm.fit/1``.

        ``a``, ``b`` and ``c`` are the logistic's, as ``ring``, ``amdahl`` and ``usl`` hold those of the other laws.
        ``model`` is the best law; ``mape`` (a fraction) and ``band`` are of that one. An AICc without a value is null.
        """
        own = {f.law.name: dict(zip(f.law.parameters, f.values, strict=True)) for f in self.laws}
        return {
            "schema_version": "deepvm.fit/1",
            "model": self.best.law.name,
            **own["logistic"],
            "ring": own["alpha-beta"],
            "amdahl": own["amdahl"],
            "usl": own["usl"],
            "mape": self.best.mape,
            "aicc": {f.law.name: f.aicc for f in self.laws},
            "warnings": list(self.warnings),
            "band": [p._asdict() for p in self.band_points()],
        }


def fit_curve(
    points: Sequence[tuple[float, float]], *, up_to: int | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> Fit:
    """Fit the four laws and choose among them.

    Points are (n, S(n)) with whole n >= 1 in VMs and S above 0, in any order; sizes may repeat. ``up_to`` is the
    largest n to use the curve for, the largest measured when None. ``resamples`` and ``seed`` are of the band's draws.

    Raises:
        RequestError: fewer than four different n, a point that is none, or an ``up_to`` outside 1 ... 4096.
    """
    ordered = tuple(sorted((float(n), float(s)) for n, s in points))
    for point in ordered:
        if not (1 <= point[0] <= MOST_NODES and point[0] == int(point[0]) and 0 < point[1] < math.inf):
            raise RequestError("POINTS", point, f"a whole n, 1 to {MOST_NODES}, and a speed-up above 0")
    sizes = sorted({int(n) for n, _ in ordered})
    if len(sizes) < FEWEST_SIZES:
        few = f"at least {FEWEST_SIZES} different n, better 8, some of them past the bend of the curve"
        raise RequestError("POINTS", f"{len(sizes)} different n ({', '.join(map(str, sizes))})", few)
    if up_to is not None and not 1 <= up_to <= MOST_NODES:
        raise RequestError("up_to", up_to, f"a whole number of VMs, 1 to {MOST_NODES}")
    n, s = np.array(ordered, dtype=np.float64).T
    laws = tuple(fit_law(law, n, s) for law in LAWS)
    best = best_first(laws)[0]
    largest = max(sizes[-1], up_to or 0)
    band = bootstrap(best, n, s, resamples=resamples, seed=seed)
    return Fit(ordered, laws, best, band, largest, doubts(n, s, laws, best, largest))


def next_step(fit: Fit) -> str:
    """Which n to measure next, and why; or that there is no need."""
    sizes, largest = fit.sizes, fit.sizes[-1]
    n = np.array(sizes, dtype=np.float64)
    low, high = fit.band.at(n)
    width = (high - low) / 2 / fit.best.speedup(n)
    widest = int(np.argmax(width))
    known = f"known to {100 * width[widest]:.0f} % to either side"
    if fit.up_to > REACH * largest:
        return f"measure n = {fit.up_to}, for which the curve is to be used"
    if fit.straight:
        return f"measure n = {2 * largest}: nothing bends yet at n = {largest}"
    if len(sizes) <= ENOUGH_SIZES:
        # In the middle of the widest gap as a ratio.
        gaps = [(high / low, round((low * high) ** 0.5)) for low, high in zip(sizes, sizes[1:], strict=False)]
        _, between = max([gap for gap in gaps if gap[1] not in sizes], default=(0, 2 * largest))
        return f"measure n = {between}: {len(sizes)} sizes are few"
    if width[widest] > OFF and sum(n == 1 for n, _ in fit.points) == 1:
        return f"repeat n = 1, from which all speed-ups count: S({sizes[widest]}) is {known}"
    if width[widest] > OFF:
        return f"repeat n = {sizes[widest]}, where the band is widest: {known}"
    return f"nothing; up to n = {fit.trusted_to} these points are enough"
