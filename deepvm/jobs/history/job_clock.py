"""The clock of a job: its times, and those of its machines, are by it, whichever process writes or reads them.

On one boot all processes go by the same clock, from a file of the job's folder. After a reboot, or on another computer,
another one is started by the wall clock, but not before what was written down last.
"""

from __future__ import annotations

from pathlib import Path

from deepvm.io.steady_clock import SteadyClock

CLOCK = "clock.json"


def clock_of(folder: Path, least_s: float = 0.0) -> SteadyClock:
    """The clock of the job in a folder, started if there is none. Raises DataError: it cannot be written down."""
    clock = SteadyClock.load(folder / CLOCK)
    if clock is None or clock.now_s() < least_s:
        clock = SteadyClock.start(least_s)
        clock.save(folder / CLOCK)
    return clock


def job_time_s(folder: Path, wall_s: float) -> float:
    """What the wall clock shows, by the clock of the job in a folder, if it has one."""
    clock = SteadyClock.load(folder / CLOCK)
    return wall_s if clock is None else clock.of_wall_s(wall_s)
