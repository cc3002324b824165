"""What an agent says of the signs of life of its trainers."""

from __future__ import annotations

import pytest

from deepvm.jobs.agent.liveness import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_steps_of_any_rank_count(clock: Clock) -> None:
    progress = Progress(clock)
    for clock.now, steps in ((5.0, (0, 0)), (9.0, (1, 0)), (10.0, (1, 1)), (12.0, (2, 1))):
        progress.look(steps)
    assert progress.longest_s == 2.0 and progress.idle_s == 0.0
    clock.now = 30.0
    progress.look((2, 1))
    assert (progress.longest_s, progress.idle_s) == (2.0, 18.0), "it counts when the step ends"


def test_the_first_step_is_told_of_once_in_each_generation(clock: Clock) -> None:
    progress = Progress(clock)
    for began_s in (10.0, 50.0):
        clock.now = began_s
        progress.begin()
        progress.look((0, 0), waits_for=1.0)
        clock.now = began_s + 7.0
        assert progress.first_s() is None
        progress.look((3, 0))
        clock.now = began_s + 9.0
        progress.look((3, 3))
        assert progress.first_s() == 7.0 and progress.first_s() is None


def test_lines_are_told_of_and_are_no_steps(clock: Clock) -> None:
    progress = Progress(clock)
    progress.look((0,))
    clock.now = 100.0
    assert progress.printed_s is None
    progress.printed()
    clock.now = 130.0
    assert (progress.longest_s, progress.idle_s, progress.printed_s) == (None, 130.0, 30.0)
    progress.look((1,))
    assert progress.longest_s == 0.0, "how long loading takes says nothing of steps"


def test_waiting_for_a_version_is_no_hang_but_only_once_for_a_step(clock: Clock) -> None:
    progress = Progress(clock)
    progress.look((1,))
    for second in range(1, 300):
        clock.now = float(second)
        progress.look((1,), 7.5)
    assert progress.idle_s == 0.0
    for second in range(300, 600):
        clock.now = float(second)
        progress.look((1,), 77.5)
    assert progress.idle_s == 300.0, "another version is asked for, and nothing has moved on"
    progress.look((2,))
    assert progress.longest_s == 300.0 and progress.idle_s == 0.0
    clock.now = 700.0
    progress.look((2,), 99.5)
    assert progress.idle_s == 0.0


def test_each_generation_begins_anew(clock: Clock) -> None:
    progress = Progress(clock)
    progress.look((5,))
    progress.printed()
    clock.now = 50.0
    progress.begin()
    assert (progress.longest_s, progress.idle_s, progress.printed_s) == (None, 0.0, None)
