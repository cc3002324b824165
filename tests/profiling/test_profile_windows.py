"""Warm-up, windows, median and spread, with a scripted clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.profiling import windows as module
from deepvm.profiling.windows import Timing, Window, median_speed, spread, time_windows


class Clock:
    """A machine whose steps take what a script says; the last entry stays."""

    def __init__(self, *step_s: float) -> None:
        self.script: Iterator[float] = iter(step_s)
        self.now = next(self.script)
        self.steps: list[int] = []
        self.seconds: list[float] = []

    def __call__(self, steps: int) -> float:
        self.steps.append(steps)
        self.seconds.append(self.now * steps)
        self.now = next(self.script, self.now)
        return self.seconds[-1]


def timed(clock: Callable[[int], float], windows: int = 5, seconds: float = 1.0) -> Timing:
    return time_windows(clock, 10, windows, seconds, lambda line: None)


def test_a_steady_machine() -> None:
    clock = Clock(5.0, 0.1)  # the first step is slow, and counts for nothing
    found = timed(clock)
    assert clock.steps == [1] * module.SINGLE_STEPS + [10] * 7
    assert found == Timing(10, (Window(100, 1.0),) * 2, (Window(100, 1.0),) * 5, True)
    assert median_speed(found.windows) == 100
    assert spread(found.windows) == 0


def test_warming_up_takes_as_long_as_the_speed_changes() -> None:
    clock = Clock(1, 1, 1, 1, 1.0, 0.8, 0.6, 0.5, 0.49, 0.3)
    found = timed(clock, windows=3)
    assert [w.seconds for w in found.warm_up] == [1.0, 0.8, 0.6, 0.5, 0.49]
    assert found.steady
    assert {w.seconds for w in found.windows} == {0.3}


def test_a_warm_up_that_does_not_settle_ends_and_is_told() -> None:
    restless = Clock(*([0.1] * 4 + [0.1, 0.2] * 100))
    assert len(timed(restless).warm_up) == module.MOST_WARM_UPS
    slow = Clock(*([20.0] * 4 + [20.0, 40.0] * 100))
    found = timed(slow)
    assert [w.seconds for w in found.warm_up] == [20.0, 40.0]  # a minute has passed
    assert not found.steady


def test_a_hiccup_in_the_first_steps_does_not_make_windows_short() -> None:
    assert timed(Clock(9.0, 0.1, 3.0, 0.1)).steps == 10


@given(
    step_s=st.lists(st.floats(1e-6, 100), min_size=1, max_size=60),
    count=st.integers(3, 20),
    seconds=st.floats(0.001, 10),
    images=st.integers(1, 1000),
)
def test_whatever_the_clock_says(step_s: list[float], count: int, seconds: float, images: int) -> None:
    clock = Clock(*step_s)
    lines: list[str] = []
    found = time_windows(clock, images, count, seconds, lines.append)
    single = clock.seconds[1 : module.SINGLE_STEPS]
    assert found.steps == min(module.MOST_STEPS, max(1, math.ceil(seconds / min(single))))
    warm, counted = len(found.warm_up), clock.seconds[-count:]
    assert 2 <= warm <= module.MOST_WARM_UPS
    assert len(clock.seconds) == module.SINGLE_STEPS + warm + count
    assert [w.seconds for w in found.windows] == counted
    assert {w.images for w in found.windows} == {images * found.steps}
    # The first pair of neighbours that agree, and no other, ends the warm-up.
    warm_s = clock.seconds[module.SINGLE_STEPS : -count]
    agree = [
        abs(1 / a - 1 / b) <= module.STEADY * (1 / a + 1 / b) / 2 for a, b in zip(warm_s, warm_s[1:], strict=False)
    ]
    assert agree[-1] == found.steady
    assert not any(agree[:-1])
    assert found.steady or warm == module.MOST_WARM_UPS or sum(warm_s) >= module.MOST_WARM_UP_S
    speeds = sorted(images * found.steps / s for s in counted)
    middle = (speeds[(count - 1) // 2] + speeds[count // 2]) / 2
    assert median_speed(found.windows) == pytest.approx(middle)
    assert spread(found.windows) == pytest.approx((speeds[-1] - speeds[0]) / middle)
    assert len(lines) == 1 + warm + count


def test_a_clock_that_stands_still_gives_finite_numbers() -> None:
    found = timed(Clock(0.0))
    assert found.steps == module.MOST_STEPS
    assert math.isfinite(median_speed(found.windows))
