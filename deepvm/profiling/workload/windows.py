"""Timing something that repeats: warm up until it is steady, then measure windows, and say how far they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

SINGLE_STEPS = 4
"""Steps before the first window: they allocate and choose, and all but the first guess how many fill a window."""
STEADY = 0.05
"""The warm-up ends with a window that differs by no more from the one before it; windows have so many steps more."""
MOST_WARM_UPS = 10
MOST_WARM_UP_S = 60.0
"""Windows and seconds of warm-up; then the machine is measured as it is, with a warning."""
MOST_STEPS = 100_000


@dataclass(frozen=True)
class Window:
    """Steps that were timed together.

    Attributes:
        images: how many went through, on all devices together. seconds: how long it took.
    """

    images: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        """Images a second."""
        return self.images / self.seconds


@dataclass(frozen=True)
class Timing:
    """All windows, in order.

    Attributes:
        steps: of training in each that counts. warm_up: windows that do not count. windows: those that do.
        steady: whether the warm-up ended because the speed no longer changed.
    """

    steps: int
    warm_up: tuple[Window, ...]
    windows: tuple[Window, ...]
    steady: bool


def time_windows(
    run: Callable[[int], float], images: int, windows: int, seconds: float, say: Callable[[str], None]
) -> Timing:
    """Warm up, then measure.

    The warm-up is single steps, then windows until one differs by at most 5 % from the one before; ten of them, or
    a minute, at most. Single steps wait for the device, so that each of them is slower than one of many: the windows of
    the warm-up correct how many steps a window has. All that is decided here follows from what ``run`` returns:
    processes that get the same numbers decide the same.

    Args:
        run: does so many steps, waits for the device, returns the seconds it took.
        images: of one step, on all devices together.
        windows: how many count.
        seconds: how long a window that counts lasts at least, unless steps become faster by more than 5 % behind the
            warm-up; it has whole steps, one at least.
        say: gets lines about the progress.
    """
    say("first steps")
    fastest = min([run(1) for _ in range(SINGLE_STEPS)][1:])
    steps = _filling(seconds, fastest)
    warm_up: list[Window] = []
    steady = False
    while not steady and (len(warm_up) < 2 or _may_go_on(warm_up)):
        warm_up.append(window := _window(run, steps, images))
        fastest = min(fastest, window.seconds / steps)
        steps = _filling(seconds, fastest)
        say(f"warm-up {len(warm_up)}: {warm_up[-1].images_per_s:,.1f} images/s")
        steady = len(warm_up) > 1 and spread(warm_up[-2:]) <= STEADY
    counted: list[Window] = []
    for number in range(1, windows + 1):
        counted.append(_window(run, steps, images))
        say(f"window {number} of {windows}: {counted[-1].images_per_s:,.1f} images/s")
    return Timing(steps, tuple(warm_up), tuple(counted), steady)


def _filling(seconds: float, step_s: float) -> int:
    return math.ceil(min(MOST_STEPS, (1 + STEADY) * seconds / step_s)) if step_s > 0 else MOST_STEPS


def _may_go_on(warm_up: Sequence[Window]) -> bool:
    return len(warm_up) < MOST_WARM_UPS and sum(w.seconds for w in warm_up) < MOST_WARM_UP_S


def _window(run: Callable[[int], float], steps: int, images: int) -> Window:
    # A clock that stood still would make the speed infinite, which no file could hold.
    return Window(steps * images, max(run(steps), 1e-9))


def median_speed(windows: Sequence[Window]) -> float:
    """Median of the windows' speeds, images/s."""
    return median(w.images_per_s for w in windows)


def spread(windows: Sequence[Window]) -> float:
    """(fastest - slowest) / median of the windows' speeds: 0.1 is 10 %."""
    speeds = [w.images_per_s for w in windows]
    return (max(speeds) - min(speeds)) / median(speeds)
