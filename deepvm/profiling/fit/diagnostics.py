"""Problems of measured points, or of using the curve fitted to them, with remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.speedup import HybridSpeedup
from deepvm.core.spelling import joined
from deepvm.profiling.fit.speedup_models import LAWS, LOGISTIC, FittedLaw, best_first, fit_law

ENOUGH_SIZES = 5
REACH = 1.5  # a curve is trusted up to so many times the largest measured n
CLOSE = 2.0  # laws whose AICc is not further apart are equally good
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
