"""A speed-up curve fitted to measured points: which law, how well, how far it may be trusted (DeepVM III-C1, V-B1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepvm.core.cluster.speedup import FloatArray, HybridSpeedup, LogisticSpeedup, RingSpeedup
from deepvm.errors import RequestError
from deepvm.profiling.fit.confidence_band import RESAMPLES, Band, bootstrap
from deepvm.profiling.fit.diagnostics import doubts
from deepvm.profiling.fit.speedup_models import LAWS, Fitted, best_first, fit_law
from deepvm.profiling.fit.speedup_points import MOST_NODES, Points

SCHEMA = "deepvm.fit/1"
FEWEST_SIZES = 4
"""Three parameters go through three points whatever these are."""


@dataclass(frozen=True)
class BandPoint:
    """S(n) of the best law at one size, dimensionless, and the bootstrap band around it."""

    n: int
    low: float
    speedup: float
    high: float


@dataclass(frozen=True)
class Fit:
    """What the points say.

    Attributes:
        points: (n, S(n)) as measured, sorted by n.
        laws: each law fitted, in the order of :data:`~deepvm.profiling.fit.speedup_models.LAWS`.
        best: the first of them by :func:`~deepvm.profiling.fit.speedup_models.best_first`.
        band: around the best.
        up_to: the largest n that was asked for.
        warnings: what is wrong with these points or with using these curves, in words.
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
        """One of the laws by its name, KeyError for another."""
        return {f.law.name: f for f in self.laws}[name]

    @property
    def logistic(self) -> LogisticSpeedup:
        """DeepVM eq. 10 with the fitted a, b and c."""
        return LogisticSpeedup(*self.law("logistic").values, fitted_to=float(self.sizes[-1]))

    @property
    def hybrid(self) -> HybridSpeedup:
        """DeepVM eq. 12 with the same parameters, as catalogs carry it."""
        return HybridSpeedup(*self.law("logistic").values, fitted_to=float(self.sizes[-1]))

    @property
    def ring(self) -> RingSpeedup:
        """The alpha-beta law, as catalogs carry it."""
        return RingSpeedup(*self.law("alpha-beta").values, fitted_to=float(self.sizes[-1]))

    def band_points(self) -> tuple[BandPoint, ...]:
        """The band at the measured n, and beyond them at doublings up to :attr:`up_to`."""
        sizes = list(self.sizes)
        while sizes[-1] < self.up_to:
            sizes.append(min(2 * sizes[-1], self.up_to))
        n: FloatArray = np.array(sizes, dtype=np.float64)
        rows = zip(sizes, *self.band.at(n), self.best.speedup(n), strict=True)
        return tuple(BandPoint(size, float(low), float(s), float(high)) for size, low, high, s in rows)

    def document(self) -> dict[str, Any]:
        """``deepvm.fit/1``.

        ``a``, ``b`` and ``c`` are the logistic's, as ``ring``, ``amdahl`` and ``usl`` hold those of the other laws.
        ``model`` is the best law; ``mape`` (a fraction) and ``band`` are of that one. An AICc without a value is null.
        """
        a, b, c = self.law("logistic").values
        own = {f.law.name: dict(zip(f.law.parameters, f.values, strict=True)) for f in self.laws}
        return {
            "schema_version": SCHEMA,
            "model": self.best.law.name,
            "a": a,
            "b": b,
            "c": c,
            "ring": own["alpha-beta"],
            "amdahl": own["amdahl"],
            "usl": own["usl"],
            "mape": self.best.mape,
            "aicc": {f.law.name: f.aicc for f in self.laws},
            "warnings": list(self.warnings),
            "band": [{"n": p.n, "low": p.low, "speedup": p.speedup, "high": p.high} for p in self.band_points()],
        }


def fit_curve(
    points: Sequence[tuple[float, float]], *, up_to: int | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> Fit:
    """Fit the four laws and choose among them.

    Args:
        points: (n, S(n)) with whole n >= 1 in VMs and S above 0, in any order; a size may stand several times.
        up_to: the largest n that the curve will be asked for; the largest measured when None.
        resamples: draws behind the band.
        seed: of the draws; the same gives the same band.

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
