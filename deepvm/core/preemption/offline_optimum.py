"""Lower bound for policies: the least cost of a deadline job on a known spot history.

Exact on the grid of ticks: at each tick the job may run on spot (if there is some), on on-demand,
or wait; each start costs the restart, in time and money; a preemption loses nothing, because it is
foreseen.
"""

import math
from collections.abc import Callable

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.errors import RequestError

MOST_CELLS = 1_000_000  # of the table of one start; more would take hours
CELLS_AT_ONCE = 50_000  # of several starts, so that their tables stay in the processor's cache


def least_cost(
    up: BoolArray,
    gap_s: float,
    *,
    work_s: float,
    deadline_s: float,
    restart_s: float,
    spot_price: float,
    progress: Callable[[int], object] | None = None,
) -> FloatArray:
    """(starts,) costs in on-demand seconds, by dynamic programming; infinite where all are late.

    The state is what the job runs on and the time that restarts and waiting have taken, in units of
    the greatest common divisor of gap and restart: the job is in time if and only if that stays
    within ``deadline - work``. A start takes as many ticks as the restart needs: stopping before
    that would be waiting at a price.

    ``up``: (starts, ticks) whether there is a spot VM, from each start to its deadline or beyond.
    ``spot_price``: over the on-demand price. ``progress``: gets the number of newly known bounds.
    Raises a RequestError if gap and restart have so small a common divisor that the table would be
    too large.
    """
    unit_s = math.gcd(round(1000 * gap_s), round(1000 * restart_s)) / 1000
    cells = max(math.floor((deadline_s - work_s) / unit_s + 1e-9) + 1, 0)
    if cells > MOST_CELLS:
        raise RequestError(
            "restart", restart_s, f"for the bound, a multiple of the traces' gap of {gap_s:g} s"
        )
    if not cells:
        return np.full(len(up), np.inf)
    rows = max(CELLS_AT_ONCE // cells, 1)
    costs = []
    for i in range(0, len(up), rows):
        some = up[i : i + rows]
        costs.append(_least(some, gap_s, unit_s, cells, work_s, deadline_s, restart_s, spot_price))
        if progress is not None:
            progress(len(costs[-1]))
    return np.concatenate(costs)


def _least(
    up: BoolArray,
    gap_s: float,
    unit_s: float,
    cells: int,
    work_s: float,
    deadline_s: float,
    restart_s: float,
    spot_price: float,
) -> FloatArray:
    ticks = math.ceil(deadline_s / gap_s - 1e-9)
    count = len(up)
    least = np.full(count, np.inf)
    waiting = round(gap_s / unit_s)
    restart = round(restart_s / unit_s)
    length = max(math.ceil(restart_s / gap_s - 1e-9), 1)  # ticks of a start
    nowhere = np.full((count, cells), np.inf)
    # cost of being at a tick, by what the job runs on; the starts that are under way arrive some
    # ticks later
    idle = nowhere.copy()
    running = {"spot": nowhere.copy(), "on-demand": nowhere.copy()}
    arriving = {name: [nowhere] * (length - 1) for name in running}
    prices = {"spot": spot_price, "on-demand": 1.0}
    idle[:, 0] = 0.0
    used_s = unit_s * np.arange(cells)
    for tick in range(ticks):
        left_s = work_s - (tick * gap_s - used_s)  # (cells,) of work
        best = np.minimum(idle, np.minimum(running["spot"], running["on-demand"]))
        for name, price in prices.items():
            soon = up[:, tick]
            whole = up[:, tick : tick + length].all(axis=1) & (tick + length <= up.shape[1])
            if name == "on-demand":
                soon = np.ones_like(soon)
                whole = np.ones_like(whole)
            on = np.where(soon[:, None], running[name], np.inf)
            started = nowhere.copy()
            started[:, restart:] = np.where(whole[:, None], best, np.inf)[
                :, : max(cells - restart, 0)
            ]
            # After a start, left_s stands for the work left by then and the restart together.
            for cost, window in ((on, gap_s), (started, length * gap_s)):
                ends = left_s <= window + 1e-9
                if ends.any():
                    least = np.minimum(least, (cost + price * left_s)[:, ends].min(axis=1))
                    cost[:, ends] = np.inf
            arriving[name].append(started + price * length * gap_s)
            running[name] = np.minimum(on + price * gap_s, arriving[name].pop(0))
        idle = nowhere.copy()
        idle[:, waiting:] = best[:, : max(cells - waiting, 0)]
    return least
