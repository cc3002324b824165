"""Time training steps: warm up until the speed is steady, then measure windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

# Before the first window: all but the first, which allocates, tell how many fill a window
SINGLE_STEPS = 4
# The warm-up ends when a window differs by no more from the one before; windows have so many more
# steps
STEADY = 0.05
MOST_WARM_UPS = 10
MOST_WARM_UP_S = 60.0  # then the machine is measured all the same, with a warning
MOST_STEPS = 100_000


@dataclass(frozen=True)
class Window:
    """Steps that were timed together; ``images`` of all devices."""

    images: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        """Images a second."""
        return self.images / self.seconds


@dataclass(frozen=True)
class Timing:
    """``steps`` per window; ``steady``: the speed had settled when the warm-up ended."""

    steps: int
    warm_up: tuple[Window, ...]
    windows: tuple[Window, ...]
    steady: bool


def time_windows(
    run: Callable[[int], float],
    images: int,
    windows: int,
    seconds: float,
    say: Callable[[str], None],
) -> Timing:
    """Warm up with steps, then windows until two differ by at most 5 %, then measure.

    ``run`` does so many steps, waits for the device, and returns the seconds that it took, the same
    in all processes: all decisions follow from it, so that processes decide alike. ``images`` are
    those of one step on all devices. A window lasts at least ``seconds``, unless steps become
    faster by more than 5 % after the warm-up; single steps wait for the device and are slower, so
    the warm-up corrects how many steps a window has.
    """

    def window() -> Window:
        # A clock without progress would make the speed infinite, which JSON cannot hold.
        return Window(steps * images, max(run(steps), 1e-9))

    say("first steps")
    fastest = min([run(1) for _ in range(SINGLE_STEPS)][1:])
    steps = _filling(seconds, fastest)
    warm_up: list[Window] = []
    steady = False
    spent_s = 0.0
    while (
        len(warm_up) < 2 or not steady and len(warm_up) < MOST_WARM_UPS and spent_s < MOST_WARM_UP_S
    ):
        warm_up.append(window())
        spent_s += warm_up[-1].seconds
        fastest = min(fastest, warm_up[-1].seconds / steps)
        steps = _filling(seconds, fastest)
        say(f"warm-up {len(warm_up)}: {warm_up[-1].images_per_s:,.1f} images/s")
        steady = len(warm_up) > 1 and spread(warm_up[-2:]) <= STEADY
    counted: list[Window] = []
    for number in range(1, windows + 1):
        counted.append(window())
        say(f"window {number} of {windows}: {counted[-1].images_per_s:,.1f} images/s")
    return Timing(steps, tuple(warm_up), tuple(counted), steady)


def _filling(seconds: float, step_s: float) -> int:
    if step_s > 0:
        return math.ceil(min(MOST_STEPS, (1 + STEADY) * seconds / step_s))
    return MOST_STEPS


def spread(windows: Sequence[Window]) -> float:
    """(fastest - slowest) / median of the windows' speeds: 0.1 is 10 %."""
    speeds = [w.images_per_s for w in windows]
    return (max(speeds) - min(speeds)) / median(speeds)
