"""The share of a long training that is kept under preemption, if it saves at the best interval.

As in :mod:`deepvm.core.preemption.makespan` without emergency saves: preemptions come at the rate
L; R is a restart, D the stall of a save, d the time until it is durable, tau the time between two
saves, stall included. Version i+1 is durable after::

    E = exp(L (R + d)) (exp(L tau) - 1) / L                 (Daly 2006, eq. 13, R + d for R)

on average, and tau - D of that is training. The best tau is near D + sqrt(2 D / L) (Young 1974),
and no shorter than d, because one version is written at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_NEVER, _ALWAYS = 1e-15, 1e6
"""Rates at which nothing happens and at which nothing is left; beyond, exp() overflows."""
_LEAST_STALL_S = 0.01


def kept_share(rate: Array, stall_s: Array, durable_s: Array, restart_s: Array) -> Array:
    """Share of the time, restarts and lost work included, that is training kept; 0 to 1.

    ``rate``: preemptions a second of the whole cluster. ``stall_s``: D. ``durable_s``: d.
    ``restart_s``: R; seconds.
    """
    rate, stall_s, durable_s, restart_s = np.broadcast_arrays(rate, stall_s, durable_s, restart_s)
    rate = np.clip(rate, _NEVER, _ALWAYS)
    stall = np.maximum(stall_s, _LEAST_STALL_S)
    tau = stall + np.maximum(np.sqrt(2 * stall / rate), durable_s)
    with np.errstate(over="ignore"):
        kept = (
            rate * (tau - stall) / (np.exp(rate * (restart_s + durable_s)) * np.expm1(rate * tau))
        )
    return np.asarray(np.clip(kept, 0.0, 1.0))
