"""Fit a speed-up curve to measured points: which law, how well, how far (DeepVM III-C1, V-B1)."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.speedup import HybridSpeedup
from deepvm.core.json_types import JsonDict
from deepvm.core.spelling import joined
from deepvm.errors import RequestError
from deepvm.profiling.fit.points import MAX_NODES, Points
from deepvm.profiling.fit.speedup_models import (
    LAWS,
    LOGISTIC,
    FittedLaw,
    best_first,
    comparable,
    fit_law,
    residuals,
    search_fast,
)
from deepvm.records import dataclass

ENOUGH_SIZES = 5
REACH = 1.5  # a curve is trusted up to so many times the largest measured n
OFF = 0.1  # a mean error, an S(1) or a band that is further off gets a warning
_SCATTER = 0.05
_HYBRID = "hybrid, which is the logistic with its tangent below b (eq. 12)"
_ABOVE_LINEAR = 1.05
_NEAR_LINEAR = 0.9


def doubts(
    n: FloatArray, s: FloatArray, laws: Sequence[FittedLaw], best: FittedLaw, up_to: int
) -> tuple[str, ...]:
    """Warnings about using ``best`` up to n = ``up_to``, worst first; ``n``, ``s``: shape (m,)."""
    logistic = next(f for f in laws if f.law is LOGISTIC)
    return (
        *_of_use(n, up_to),
        *_of_points(n, s),
        *_of_fits(len(n), laws, best),
        *_of_logistic(n, logistic),
    )


def point_doubts(points: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """What is wrong with points (n, S(n)) themselves, or that no law comes near them."""
    n, s = np.array(points, dtype=np.float64).T
    found = [text for text in _of_points(n, s) if not text.startswith("only")]
    if len(np.unique(n)) > len(LOGISTIC.parameters):
        best = best_first([fit_law(law, n, s) for law in LAWS])[0]
        if best.mape > OFF:
            found.append(_far(best))
    return tuple(found)


def _of_use(n: FloatArray, up_to: int) -> Iterator[str]:
    largest = float(n.max())
    if up_to > REACH * largest:
        yield (
            f"n = {up_to} is {up_to / largest:.3g} x the largest n that was measured ({largest:g}):"
            f" beyond {REACH} x, here n = {int(REACH * largest)}, S(n) is a guess, and the band"
            " knows nothing of other laws. A logistic that was measured to n = 8 with 5 % noise"
            " gave an S(32) of 0.4 to 6 times the truth"
        )


def _of_points(n: FloatArray, s: FloatArray) -> Iterator[str]:
    sizes = np.unique(n)
    if len(sizes) < ENOUGH_SIZES:
        yield (
            f"only {len(sizes)} different n: measure {ENOUGH_SIZES} or more, or the law says more"
            " than the points do"
        )
    if is_near_linear(n, s):
        yield (
            f"S(n) is above {_NEAR_LINEAR} n everywhere, so no bend has been measured: "
            f"nothing is known of n above {sizes[-1]:g}"
        )
    at_one = 1.0
    if (n == 1).any():
        at_one = float(np.median(s[n == 1]))
    if abs(at_one - 1) > _SCATTER:
        yield (
            f"S(1) is 1 by definition and {at_one:.3g} in the points: are they speed-ups over"
            " one VM?"
        )
    above = [size for size in sizes if size > 1 and np.median(s[n == size]) > _ABOVE_LINEAR * size]
    if shown := ", ".join(f"{size:g}" for size in above):
        yield (
            f"faster than n VMs can be at n = {shown}: was it the same work, and n = 1 not slowed"
            " by something?"
        )
    for size in sizes:
        own = s[n == size]
        spread = 0.0
        if len(own) > 1:
            spread = float(np.std(own, ddof=1) / np.mean(own))
        if spread > _SCATTER:
            yield (
                f"{len(own)} measurements at n = {size:g} scatter by {100 * spread:.0f} % of S(n):"
                " repeat them"
            )


def _of_fits(measurements: int, laws: Sequence[FittedLaw], best: FittedLaw) -> Iterator[str]:
    for fitted in laws:
        if not fitted.converged:
            yield f"{fitted.law.name}: the search for its parameters was cut off; do not use them"
    without = [f for f in laws if f.aicc is None]
    if without:
        names = joined(f.law.name for f in without)
        most = max(len(f.law.parameters) for f in without)
        yield (
            f"{measurements} measurements are too few for an AICc of {names}: {most + 3} are enough"
            " to compare all laws"
        )
    if best.mape > OFF:
        yield _far(best)


def _far(best: FittedLaw) -> str:
    return (
        f"the nearest law, {best.law.name}, is {100 * best.mape:.0f} % off on average: "
        "use the points themselves (--speedup measured)"
    )


def _of_logistic(n: FloatArray, logistic: FittedLaw) -> Iterator[str]:
    largest = float(n.max())
    a, b, c = logistic.values
    if b >= largest:
        yield (
            f"logistic: no measurement past its bend at n = {b:.3g}, so a, b and c are guesses;"
            " measure larger n"
        )
    for name, value in logistic.at_bounds().items():
        yield (
            f"logistic: {name} = {value:g} is the bound of the search, so the points do not have"
            " this shape"
        )
    sizes = np.arange(1.0, largest + 1.0)
    hybrid = HybridSpeedup(a, b, c).speedup(sizes)
    if hybrid[0] <= 0:
        yield f"{_HYBRID}: S(n) is below 0 up to n = {sizes[hybrid <= 0][-1]:g}"
    elif abs(hybrid[0] - 1) > OFF:
        yield f"{_HYBRID}: S(1) is {hybrid[0]:.3g} and must be 1, so small n come out wrong"


def is_near_linear(n: FloatArray, s: FloatArray) -> bool:
    """Whether every measurement is close to S(n) = n, so that no bend has been seen."""
    return bool((s > _NEAR_LINEAR * n).all())


FEWEST_SIZES = 4  # three parameters go through three points whatever these are
RESAMPLES = 400
SHARE = 0.95  # of the draws inside the band, at each n on its own
_CATALOG_KINDS = {"alpha-beta": "ring", "amdahl": "ring with c 0 and", "logistic": "hybrid"}
_LEAST_DRAWN = 0.1  # noise beyond 90 % would turn into speed-ups below 0


@dataclass(frozen=True)
class Band:
    """A band around a fitted curve; ``draws``: their parameters (resamples, parameters)."""

    fitted: FittedLaw
    draws: FloatArray

    def at(self, n: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Low and high S(n), same shape as n; they enclose the fitted curve and are >= 0."""
        n = np.asarray(n, dtype=np.float64)
        drawn = np.array([self.fitted.law.speedup(n, *values) for values in self.draws])
        low, high = np.quantile(drawn, [(1 - SHARE) / 2, (1 + SHARE) / 2], axis=0)
        curve = self.fitted.speedup(n)
        return np.minimum(low, curve), np.maximum(high, curve)


class BandPoint(NamedTuple):
    """S(n) of the best law at one size, and the bootstrap band around it."""

    n: int
    low: float
    speedup: float
    high: float


@dataclass(frozen=True)
class Fit:
    """Four laws fitted to ``points`` (n, S(n)), sorted by n; ``best``: by AICc, up to ``up_to``."""

    points: Points
    laws: tuple[FittedLaw, ...]
    best: FittedLaw
    band: Band
    up_to: int
    warnings: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({int(n) for n, _ in self.points}))

    def law(self, name: str) -> FittedLaw:
        return next(f for f in self.laws if f.law.name == name)

    @property
    def ranked(self) -> list[FittedLaw]:
        return best_first(self.laws)

    @property
    def ranked_by(self) -> str:
        if self.best.aicc is not None and comparable(self.laws):
            return "AICc"
        return "mean error"

    @property
    def catalog_kind(self) -> str:
        """The kind of a catalog's curve that has the best law; empty if none is near enough."""
        name = self.best.law.name
        hybrid_is_off = any(text.startswith("hybrid") for text in self.warnings)
        if self.best.mape > OFF or not comparable(self.laws):
            return ""
        if name == "logistic" and hybrid_is_off:
            return ""
        return _CATALOG_KINDS.get(name, "")

    @property
    def medians(self) -> dict[int, float]:
        return {n: median(s for size, s in self.points if size == n) for n in self.sizes}

    @property
    def straight(self) -> bool:
        """Whether nothing bends yet at the largest measured n."""
        return self.law("logistic").values[1] >= self.sizes[-1] or is_near_linear(
            *np.array(self.points).T
        )

    @property
    def trusted_to(self) -> int:
        """The largest n to use: 1.5 x the largest measured, or that if nothing bends yet."""
        if self.straight:
            return self.sizes[-1]
        return int(REACH * self.sizes[-1])

    def band_points(self) -> tuple[BandPoint, ...]:
        """The band at the measured n, and beyond them at doublings up to :attr:`up_to`."""
        sizes = list(self.sizes)
        while sizes[-1] < self.up_to:
            sizes.append(min(2 * sizes[-1], self.up_to))
        n = np.array(sizes, dtype=np.float64)
        low, high = self.band.at(n)
        rows = zip(sizes, low.tolist(), self.best.speedup(n).tolist(), high.tolist(), strict=True)
        return tuple(BandPoint(*row) for row in rows)

    def document(self) -> JsonDict:
        """``deepvm.fit/1``: ``a``, ``b``, ``c`` (logistic), ``mape`` and ``band`` of ``law``."""
        own = {f.law.name: dict(zip(f.law.parameters, f.values, strict=True)) for f in self.laws}
        return {
            "schema_version": "deepvm.fit/1",
            "law": self.best.law.name,
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
    points: Sequence[tuple[float, float]],
    *,
    up_to: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Fit:
    """Fit four laws to points (n, S(n)), n >= 1 whole VMs, S > 0, and choose one.

    ``up_to``: the largest n to use it for, by default the largest measured. Raises RequestError:
    fewer than four different n, an invalid point, or an ``up_to`` outside 1 ... 4096.
    """
    ordered = tuple(sorted((float(n), float(s)) for n, s in points))
    for point in ordered:
        if not (
            1 <= point[0] <= MAX_NODES and point[0] == int(point[0]) and 0 < point[1] < math.inf
        ):
            raise RequestError(
                "POINTS", point, f"a whole n, 1 to {MAX_NODES}, and a speed-up above 0"
            )
    sizes = sorted({int(n) for n, _ in ordered})
    if len(sizes) < FEWEST_SIZES:
        few = (
            f"at least {FEWEST_SIZES} different n, better 8, some of them past the bend of the"
            " curve"
        )
        raise RequestError(
            "POINTS", f"{len(sizes)} different n ({', '.join(map(str, sizes))})", few
        )
    if up_to is not None and not 1 <= up_to <= MAX_NODES:
        raise RequestError("up_to", up_to, f"a whole number of VMs, 1 to {MAX_NODES}")
    n, s = np.array(ordered, dtype=np.float64).T
    laws = tuple(fit_law(law, n, s) for law in LAWS)
    best = best_first(laws)[0]
    largest = max(sizes[-1], up_to or 0)
    band = bootstrap(best, n, s, resamples=resamples, seed=seed)
    return Fit(ordered, laws, best, band, largest, doubts(n, s, laws, best, largest))


def next_step(fit: Fit) -> str:
    """Which n to measure next, and why; or that there is no need."""
    sizes = fit.sizes
    largest = fit.sizes[-1]
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
        gaps = [
            (high / low, round((low * high) ** 0.5))
            for low, high in zip(sizes, sizes[1:], strict=False)
        ]
        _, between = max([gap for gap in gaps if gap[1] not in sizes], default=(0, 2 * largest))
        return f"measure n = {between}: {len(sizes)} sizes are few"
    if width[widest] > OFF and sum(n == 1 for n, _ in fit.points) == 1:
        return f"repeat n = 1, from which all speed-ups count: S({sizes[widest]}) is {known}"
    if width[widest] > OFF:
        return f"repeat n = {sizes[widest]}, where the band is widest: {known}"
    return f"nothing; up to n = {fit.trusted_to} these points are enough"


def bootstrap(
    fitted: FittedLaw, n: FloatArray, s: FloatArray, *, resamples: int = RESAMPLES, seed: int = 0
) -> Band:
    """The band around a fit to sizes ``n`` in VMs and speed-ups ``s`` of shape (m,), given its law.

    Each draw multiplies the fitted curve by 1 minus another size's mean residual (what a law cannot
    describe at a size is the same in all its repeats), scatters S(1), and fits again.
    """
    random = np.random.default_rng(seed)
    law = fitted.law
    sizes, where = np.unique(n, return_inverse=True)
    own = residuals(law, fitted.values, n, s)
    mean = np.bincount(where, own) / np.bincount(where)
    # A law with S(1) = 1 has no residual there that could stand for another size's
    free = sizes > 1
    if not law.unit:
        free = np.ones(len(sizes), dtype=bool)
    pool = mean[free]
    # Centred, or all draws would be shifted alike; stretched for the fitted parameters, and by
    # Student's t, because few residuals say little of their own width
    freedom = max(len(pool) - len(law.parameters), 1)
    pool = (pool - pool.mean()) * math.sqrt(len(pool) / freedom)
    pool = pool * stdtrit(freedom, (1 + SHARE) / 2) / stdtrit(math.inf, (1 + SHARE) / 2)
    units = _units(s[n == 1], pool, resamples, random)
    curve = fitted.speedup(n)
    # A search that starts on a bound of 0 takes long to leave it.
    start = tuple(
        max(v, 1e-6) if low == 0 else v for v, low in zip(fitted.values, law.low, strict=True)
    )
    draws = []
    for one in units:
        drawn = np.zeros(len(sizes))
        drawn[free] = random.choice(pool, len(pool))
        # A residual is law / measured - 1.
        measured = curve / np.maximum(1.0 + drawn[where], _LEAST_DRAWN)
        found = search_fast(law, n, np.where(n == 1, measured, measured / one), start)
        if found is not None:
            draws.append(found)
    return Band(fitted, np.array(draws or [fitted.values]))


def _units(
    own: FloatArray, pool: FloatArray, resamples: int, random: np.random.Generator
) -> FloatArray:
    """Error factors of n = 1, (resamples,); ``own``: S(1) values; ``pool``: all residuals."""
    drawn: FloatArray = random.choice(pool, resamples)
    if len(own) > 1:
        spread = (own / np.median(own) - 1.0) * math.sqrt(len(own) / (len(own) - 1))
        drawn = np.median(random.choice(spread, (resamples, len(own))), axis=1)
    return np.asarray(np.maximum(1.0 + drawn, _LEAST_DRAWN))
