"""Where a stretch of segments is cut: by a preemption, a notice, or a machine that joins.

A stretch is drawn as a whole: the time of all its steps and of all its saves, not of each. If they
differ much, two things change (Cox, Renewal Theory, 1962, chapters 4 and 5). With the mean m and
the variance v of one piece:

* A cut falls into longer pieces more often: the piece that is cut started (m + v/m)/2 before on
  average. If pieces are uniform, that time has the density P(piece > a)/m, drawn from here.
* There are more whole pieces: t/m - 1/2 + v/(2 m^2) in a time t. The cut is looked up v/(2 m)
  further on than it is.

Both hold far from the beginning (see ``FEW``). Given the sum of n pieces, the variance of one is
v (1 - 1/n), and by symmetry the shift goes from v/(2 m) through 0 to -v/(2 m) at the end.
"""

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.core.preemption.job import Span
from deepvm.records import dataclass
from deepvm.simulator.engine.state import TINY

# Longest over shortest latency above which they are uneven: there v/m^2 is 0.013, which is
# less than 0.7 % of one step or save for each preemption
UNEVEN = 1.5
FEW = 12  # Stretches of fewer uneven segments are simulated one by one, each drawn as it is


def uneven(span: Span) -> bool:
    """Whether it matters which steps or saves are cut."""
    return span.high > UNEVEN * span.low


@dataclass(frozen=True)
class Stretch:
    """Segments: some steps each, and a save after them if ``saved``; all arrays (R,)."""

    steps: FloatArray
    count: FloatArray
    saved: BoolArray
    segment_s: FloatArray
    step_s: FloatArray


@dataclass(frozen=True)
class Cut:
    """Progress of a stretch; all arrays (R,)."""

    cut: BoolArray  # whether it is left before its end
    full: FloatArray  # segments that are done
    done: FloatArray  # steps that are done after them
    saving: BoolArray  # whether a save is cut, not a step
    since_s: FloatArray  # since the last segment was done
    rest_s: FloatArray  # of the step or save that is cut
    trained_s: FloatArray  # of all steps, the one that is cut included
    step_s: FloatArray  # of one that is done

    @classmethod
    def even(cls, of: Stretch, left: FloatArray) -> "Cut":
        """Position on the even timeline, ``left`` seconds from its start."""
        full = np.floor(left / of.segment_s)
        cut = full < of.count
        full = np.minimum(full, of.count)
        since = left - full * of.segment_s
        within = np.where(cut, since, 0.0)
        done = np.minimum(np.floor(within / of.step_s), of.steps)
        saving = done >= of.steps
        rest = np.where(saving, of.segment_s, (done + 1) * of.step_s) - within
        trained = full * of.steps * of.step_s + np.minimum(within, of.steps * of.step_s)
        return cls(cut, full, done, saving, since, rest, trained, of.step_s)

    @classmethod
    def uneven(
        cls,
        of: Stretch,
        left: FloatArray,
        step: Span,
        save: Span,
        slow: FloatArray | float,
        random: np.random.Generator,
    ) -> "Cut":
        plain = cls.even(of, left)
        stall = np.maximum(of.segment_s - of.steps * of.step_s, 0.0)
        whole = of.count * of.segment_s
        # Of one step, one save, all of a segment: the variance given the sums over the stretch.
        step_var = step.variance * slow**2 * (1 - 1 / (of.count * of.steps))
        save_var = save.variance * of.saved * (1 - 1 / of.count)
        segment_var = of.steps * step_var + save_var
        # Within a segment of either end there is less to shift
        near = np.minimum(left, whole - left) / of.segment_s
        further = left + segment_var / (2 * of.segment_s) * (1 - 2 * left / whole) * np.clip(
            near, 0.0, 1.0
        )
        at = cls.even(of, np.clip(further, 0.0, whole * (1 - 1e-12)))
        # Steps differ less than saves, or the reverse
        too_many = _all_at(at, of, step.low * slow, save.low) > left
        at = _either(too_many, plain, at)
        least = _all_at(at, of, step.low * slow, save.low)
        most = _all_at(at, of, step.high * slow, save.high)
        steps = at.full * of.steps + at.done

        # The piece that is cut: when it started, and when it would be done.
        mean = np.where(at.saving, stall, of.step_s)
        half = np.minimum(np.sqrt(3 * np.where(at.saving, save_var, step_var)), mean)
        longest = mean + half
        ahead = np.clip(at.rest_s / np.maximum(mean, TINY), 0.0, 1.0)  # share of the even piece
        age = (1 - ahead) * mean
        age = np.where(age <= mean - half, age, longest - 2 * np.sqrt(half * mean * ahead))
        age = np.clip(age, np.maximum(left - most, 0.0), left - least)
        shortest = np.maximum(mean - half, age)
        length = shortest + random.random(len(left)) * np.maximum(longest - shortest, 0.0)
        length = np.minimum(length, np.where(at.saving, save.high, step.high * slow))
        length = np.maximum(length, np.where(at.saving, save.low, step.low * slow))

        # Whole pieces took the time before; the deviation is shared by variance
        before = left - age
        saves_s = at.full * stall
        saves_s += (before - steps * of.step_s - saves_s) * save_var / np.maximum(segment_var, TINY)
        saves_s = np.clip(
            saves_s, before - steps * step.high * slow, before - steps * step.low * slow
        )
        saves_s = np.where(at.full > 0, saves_s, 0.0) * of.saved
        each = np.where(steps > 0, (before - saves_s) / np.maximum(steps, 1.0), of.step_s)
        trained = before - saves_s + np.where(at.saving, 0.0, age)
        # The steps after the last whole segment are as uneven as the others
        spread = np.sqrt(
            12 * step.variance * slow**2 * at.done * (1 - at.done / np.maximum(steps, 1.0))
        )
        done_s = np.clip(at.done * each + spread * (random.random(len(left)) - 0.5), 0.0, before)

        rest = np.maximum(length - age, 0.0)
        found = cls(plain.cut, at.full, at.done, at.saving, done_s + age, rest, trained, each)
        return _either(plain.cut & (left > 0), found, plain)


def _all_at(at: Cut, of: Stretch, step_s: FloatArray | float, save_s: float) -> FloatArray:
    return (at.full * of.steps + at.done) * step_s + at.full * of.saved * save_s


def _either(which: BoolArray, one: Cut, other: Cut) -> Cut:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Cut(*(np.where(which, a, b) for a, b in pairs))
