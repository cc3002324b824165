"""Which candidates can be left out without losing any of the best k plans.

A candidate is dominated when another is at least as good in *every* resource. Comparing price and size alone is not
enough: on real spot prices a bigger machine is often the cheaper one, and then it is better in all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BLOCK = 256


def skyband(costs: npt.NDArray[np.int64], depth: int) -> npt.NDArray[np.bool_]:
    """The k-skyband (Papadias et al., TODS 2005): rows that fewer than ``depth`` >= 1 other rows dominate, as a mask.

    A row dominates another when it is less or equal in every column and, if equal in all of them, stands earlier.
    The best ``depth`` plans are among these rows: each dominator of a dropped row gives a plan that ranks before every
    plan of that row. ``costs``: (rows, resources), smaller is better; every resource that counts.
    """
    rows = len(costs)
    kept = np.zeros(rows, dtype=np.bool_)
    # In lexicographic order a dominator always stands before what it dominates, and a stable sort keeps equal rows in
    # their order; so one pass over blocks, each compared with the survivors before it and with itself, is enough.
    order = np.lexsort(costs.T[::-1])
    survivors = np.empty((0, costs.shape[1]), dtype=costs.dtype)
    for start in range(0, rows, _BLOCK):
        index = order[start : start + _BLOCK]
        block = costs[index]
        before = np.tri(len(block), k=-1, dtype=np.bool_)  # [i, j]: j stands before i
        dominators = _dominated_by(block, survivors).sum(axis=1)
        # Dropped rows may be counted as dominators inside the block: what dominates them dominates the row as well.
        dominators += (_dominated_by(block, block) & before).sum(axis=1)
        keep = dominators < depth
        kept[index[keep]] = True
        survivors = np.concatenate([survivors, block[keep]])
    return kept


def price_order(prices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The place of each row in the order of prices, equal prices in the order of the rows, as plans are ranked."""
    return np.argsort(np.argsort(prices, kind="stable")).astype(np.int64)


def _dominated_by(rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """[i, j]: others[j] is less or equal to rows[i] in every column."""
    result = np.ones((len(rows), len(others)), dtype=np.bool_)
    for column in range(rows.shape[1]):
        result &= others[None, :, column] <= rows[:, None, column]
    return result
