"""State of simulated runs, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
PARTS = ("compute", "recompute", "save", "allocation", "preparation")
NEVER = 1e30
"""Steps and seconds that are never reached; infinity does not survive arithmetic."""
TINY = 1e-300
"""Replaces a zero denominator where the numerator is 0 too, or the result is unused."""


@dataclass(frozen=True)
class Outcome:
    """Outcomes of the runs; arrays of one shape (runs,).

    Attributes:
        total_s: from the first request to the last step.
        vm_s: machine time that is billed, seconds of one VM. on_demand_s: that part of it that is
            on demand.
        preemptions: machines lost.
        parts_s: (5, runs) ``PARTS``; they add up to ``total_s``.
    """

    total_s: Array
    vm_s: Array
    on_demand_s: Array
    preemptions: Array
    parts_s: Array


@dataclass
class Runs:
    """State of the runs that are not done; all arrays are (R,) or (R, ...)."""

    number: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    now: Array
    durable: Array  # steps in the newest version that survives the loss that comes next
    step: Array
    furthest: Array  # steps beyond are done for the first time
    training: Mask  # else machines are waited for
    compute: Array
    recompute: Array
    save: Array
    allocation: Array
    preparation: Array
    extra_s: Array  # machine time in which a replacement overlapped the old machine
    on_demand: Mask
    on_demand_s: Array
    cap: Array  # steps after which the deadline wants a version or another market
    preemptions: Array
    lives: npt.NDArray[np.int64]
    asked: Array  # (R, n) when each machine was asked for
    ready: Array  # (R, n) when it is there
    death: Array  # (R, n) when it is preempted
    notice: Array  # (R, n) when its notice comes; at the death: none
    members: Mask  # (R, n) machines that take part
    seen_s: Array
    missed: Array
    shape: Array  # of the hazard
    scale: Array
    logs: Array  # (R, K)

    def keep(self, rows: Mask) -> None:
        """Keep these rows only."""
        kept = np.flatnonzero(rows)
        for f in fields(self):  # several times as fast as a mask for what has two dimensions
            setattr(self, f.name, getattr(self, f.name).take(kept, axis=0))


def rest_of(steps: Array, by: Array | float) -> Array:
    """Remainder of whole numbers held as floats; many times as fast as ``%``."""
    return steps - np.floor(steps / by) * by
