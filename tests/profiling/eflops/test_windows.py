"""Warm-up, windows, median and spread, with a scripted clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.profiling.eflops import eflops_worker as module
from deepvm.profiling.eflops.eflops_worker import Timing, Window, spread, time_windows


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
    assert clock.steps == [1] * module.SINGLE_STEPS + [11] * 7  # 5 % more than fill a second
    window = Window(110, clock.seconds[-1])
    assert found == Timing(11, (window,) * 2, (window,) * 5, True)
    assert spread(found.windows) == 0


def test_warming_up_takes_as_long_as_the_speed_changes() -> None:
    clock = Clock(5, 5, 5, 5, 5.0, 4.0, 3.0, 2.5, 2.45, 1.5)
    found = timed(clock, windows=3)
    assert [w.seconds for w in found.warm_up] == [5.0, 4.0, 3.0, 2.5, 2.45]
    assert found.steady
    assert {w.seconds for w in found.windows} == {1.5}


def test_a_warm_up_that_does_not_settle_ends_and_is_told() -> None:
    restless = Clock(*([0.1] * 4 + [0.1, 0.2] * 100))
    assert len(timed(restless).warm_up) == module.MOST_WARM_UPS
    slow = Clock(*([20.0] * 4 + [20.0, 40.0] * 100))
    found = timed(slow)
    assert [w.seconds for w in found.warm_up] == [20.0, 40.0]  # a minute has passed
    assert not found.steady


def test_a_hiccup_in_the_first_steps_does_not_make_windows_short() -> None:
    assert timed(Clock(9.0, 0.1, 3.0, 0.1)).steps == 11


def test_single_steps_that_are_slow_do_not_make_windows_short() -> None:
    """Each of them waits for the device; steps that are queued take a fifth."""
    clock = Clock(*[0.5] * 4, 0.1)
    found = timed(clock)
    assert clock.steps[4:] == [3, *[11] * 6]
    assert found.steps == 11 and all(w.seconds >= 1 for w in found.windows)
    assert found.steady


@given(
    single_s=st.floats(1e-3, 10),
    step_s=st.floats(1e-3, 10),
    noise=st.lists(st.floats(1.0, 1.0 + module.STEADY), min_size=1, max_size=30),
    seconds=st.floats(0.001, 10),
)
def test_a_window_lasts_as_long_as_it_should(
    single_s: float, step_s: float, noise: list[float], seconds: float
) -> None:
    """However much slower or faster single steps are: if the others differ by less than the warm-up
    waits for.
    """
    found = timed(Clock(*[single_s] * 4, *(step_s * n for n in noise)), seconds=seconds)
    assert all(w.seconds >= seconds * (1 - 1e-9) for w in found.windows)


@given(
    step_s=st.lists(st.floats(1e-6, 100), min_size=1, max_size=60),
    count=st.integers(3, 20),
    seconds=st.floats(0.001, 10),
    images=st.integers(1, 1000),
)
def test_whatever_the_clock_says(
    step_s: list[float], count: int, seconds: float, images: int
) -> None:
    clock = Clock(*step_s)
    lines: list[str] = []
    found = time_windows(clock, images, count, seconds, lines.append)
    warm, counted = len(found.warm_up), clock.seconds[-count:]
    # The fastest step that was seen says how many fill a window, and never fewer than before.
    seen = [clock.seconds[i] / clock.steps[i] for i in range(1, module.SINGLE_STEPS + warm)]
    wanted = [
        min(module.MOST_STEPS, max(1, math.ceil(1.05 * seconds / min(seen[: 3 + i]))))
        for i in range(warm + 1)
    ]
    assert [*clock.steps[module.SINGLE_STEPS : -count], found.steps] == wanted
    assert 2 <= warm <= module.MOST_WARM_UPS
    assert len(clock.seconds) == module.SINGLE_STEPS + warm + count
    assert [w.seconds for w in found.windows] == counted
    assert {w.images for w in found.windows} == {images * found.steps}
    # The first pair of neighbors that agree, and no other, ends the warm-up.
    warm_s = clock.seconds[module.SINGLE_STEPS : -count]
    speeds = [w.images_per_s for w in found.warm_up]
    agree = [
        abs(a - b) <= module.STEADY * (a + b) / 2 for a, b in zip(speeds, speeds[1:], strict=False)
    ]
    assert agree[-1] == found.steady
    assert not any(agree[:-1])
    assert found.steady or warm == module.MOST_WARM_UPS or sum(warm_s) >= module.MOST_WARM_UP_S
    speeds = sorted(images * found.steps / s for s in counted)
    middle = (speeds[(count - 1) // 2] + speeds[count // 2]) / 2
    assert spread(found.windows) == pytest.approx((speeds[-1] - speeds[0]) / middle)
    assert len(lines) == 1 + warm + count


def test_a_clock_that_stands_still_gives_finite_numbers() -> None:
    found = timed(Clock(0.0))
    assert found.steps == module.MOST_STEPS
    assert all(math.isfinite(w.images_per_s) for w in found.windows)
