"""How much work to do between two saves: closed forms.

Arguments and results are seconds: numbers, or arrays over many runs of the same shape. ``save_s``
is how long training stalls for one checkpoint (the thesis's and Daly's delta), ``mttp_s`` the mean
time to preemption M; the interval is the working time from the end of one save to the start of
the next (Daly's tau).

The loss rate that all of them minimize, for a hazard of h preemptions a second: a save costs
``save_s`` each ``interval_s``, and a preemption in the middle of an interval costs half of it, so
``save_s / interval + h interval / 2`` is lost, which is least at ``sqrt(2 save_s / h)``.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # the training job imports this module, and may have no numpy
    import numpy as np
    import numpy.typing as npt

    Number: TypeAlias = float | npt.NDArray[np.floating[Any]]
    Truth: TypeAlias = bool | npt.NDArray[np.bool_]


def young_s(save_s: Number, mttp_s: Number) -> Number:
    """sqrt(2 delta M): Young (1974), and eq. 4.5 of the Spotify thesis without R (Daly 2003)."""
    return (2 * save_s * mttp_s) ** 0.5


def daly_s(save_s: Number, mttp_s: Number) -> Number:
    """Daly's higher-order form (2006, eq. 37).

    sqrt(2 delta M) (1 + sqrt(delta/(2 M))/3 + delta/(18 M)) - delta while delta < 2 M, else M.
    """
    share = save_s / (2 * mttp_s)
    series = young_s(save_s, mttp_s) * (1 + share**0.5 / 3 + share / 9) - save_s
    return where(share < 1, series, mttp_s + 0 * series)


def exact_s(save_s: Number, mttp_s: Number) -> Number:
    """M (1 + W0(-exp(-delta/M - 1))): exact minimum for exponential lifetimes (Lambert's W).

    Where the derivative of the expected time (Daly 2006, eq. 13) is 0: ``(1 - tau/M) exp(tau/M) =
    exp(-delta/M)``.
    """
    if isinstance(save_s, (int, float)) and isinstance(mttp_s, (int, float)):
        return _exact_s(save_s, mttp_s)
    import numpy as np
    from scipy.special import lambertw

    share = np.asarray(save_s / mttp_s, dtype=float)
    # For shares near 0 the argument is next to the branch point -1/e, where W0 loses half of the
    # digits; there the series around it, -1 + p - p^2/3 + 11/72 p^3 with p = sqrt(2 (1 -
    # exp(-share))), has them all.
    p = np.sqrt(-2 * np.expm1(-share))
    factor = np.where(p < 1e-3, _near_branch(p), 1 + lambertw(-np.exp(-share - 1)).real)
    return np.asarray(mttp_s * factor)


def _near_branch(p: Any) -> Any:
    return p - p**2 / 3 + 11 / 72 * p**3 - 43 / 540 * p**4


def _exact_s(save_s: float, mttp_s: float) -> float:
    """The zero x = tau/M of log(1 - x) + x + delta/M, without numpy and scipy."""
    if save_s <= 0:
        return 0.0
    if mttp_s == math.inf:
        return math.inf
    share = save_s / mttp_s
    p = math.sqrt(-2 * math.expm1(-share))
    if p < 1e-3:
        return float(mttp_s * _near_branch(p))
    low = 0.0
    high = 1.0
    for _ in range(53):  # a bit of the result each time
        middle = (low + high) / 2
        if math.log1p(-middle) + middle + share > 0:
            low = middle
        else:
            high = middle
    return mttp_s * low


def where(condition: Truth, one: Number, other: Number) -> Number:
    """``one`` where the condition holds, ``other`` elsewhere."""
    if isinstance(condition, bool):
        if condition:
            return one
        return other
    import numpy as np

    return np.where(condition, one, other)


def maximum(*values: Number) -> Number:
    """The largest, element by element."""
    if all(isinstance(v, (int, float)) for v in values):
        return max(values)
    import numpy as np

    return reduce(np.maximum, values)


def in_steps(interval_s: Number, step_s: Number) -> Number:
    """How many steps an interval is, a real number; infinite if steps take no time."""
    if isinstance(step_s, (int, float)) and not step_s:
        return where(interval_s > 0, math.inf, 0 * interval_s)
    return interval_s / step_s


TOLERANCE = 1e-9  # of a step: 0.3 s are 2.9999999999999996 steps of 0.1 s, and 3


def rounded_down(steps: Number) -> Number:
    """Whole steps; infinite stays infinite."""
    if isinstance(steps, (int, float)):
        if math.isfinite(steps):
            return float(math.floor(steps + TOLERANCE))
        return steps
    import numpy as np

    return np.asarray(np.floor(steps + TOLERANCE))
