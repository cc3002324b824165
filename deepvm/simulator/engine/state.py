"""State of simulated runs, and their outcomes."""

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.records import dataclass, fields

PARTS = ("compute", "recompute", "save", "allocation", "preparation")
NEVER = 1e30  # Steps and seconds that are never reached; infinity does not survive arithmetic
TINY = 1e-300  # Replaces a zero denominator where the numerator is 0 too, or the result is unused


@dataclass(frozen=True)
class Outcome:
    """Outcomes of the runs; arrays of one shape (runs,)."""

    total_s: FloatArray
    vm_s: FloatArray  # machine time that is billed
    on_demand_s: FloatArray  # that part of it
    preemptions: FloatArray  # machines lost
    parts_s: FloatArray  # (5, runs) PARTS; they add up to total_s


@dataclass
class Runs:
    """State of the runs that are not done; all arrays are (R,) or (R, ...)."""

    number: IntArray
    start: IntArray
    now: FloatArray
    durable: FloatArray  # steps in the newest checkpoint that survives the loss that comes next
    step: FloatArray
    furthest: FloatArray  # steps beyond are done for the first time
    training: BoolArray  # else machines are waited for
    compute: FloatArray
    recompute: FloatArray
    save: FloatArray
    allocation: FloatArray
    preparation: FloatArray
    extra_s: FloatArray  # machine time in which a replacement overlapped the old machine
    on_demand: BoolArray
    on_demand_s: FloatArray
    cap: FloatArray  # steps after which the deadline wants a checkpoint or another market
    preemptions: FloatArray
    lives: IntArray
    asked: FloatArray  # (R, n) when each machine was asked for
    ready: FloatArray  # (R, n) when it is there
    death: FloatArray  # (R, n) when it is preempted
    notice: FloatArray  # (R, n) when its notice comes; at the death: none
    members: BoolArray  # (R, n) machines that take part
    seen_s: FloatArray
    missed: FloatArray
    shape: FloatArray  # of the hazard
    scale: FloatArray
    logs: FloatArray  # (R, K)

    def keep(self, rows: BoolArray) -> None:
        kept = np.flatnonzero(rows)
        for f in fields(self):  # several times as fast as a mask for what has two dimensions
            setattr(self, f.name, getattr(self, f.name).take(kept, axis=0))


def rest_of(steps: FloatArray, by: FloatArray | float) -> FloatArray:
    """Remainder of whole numbers held as floats; many times as fast as ``%``."""
    return steps - np.floor(steps / by) * by
