"""Time that passes evenly, even if the wall clock is set, and also while the computer sleeps.

Processes of one boot share a job's clock, by a file; after a reboot a new one starts at the wall
clock's time, but not before the last recorded time.
"""

import json
import time
from pathlib import Path

from deepvm.io.atomic_write import write_json
from deepvm.profiling.hosts.machine import boot_id
from deepvm.records import asdict, dataclass

CLOCK = "clock.json"


@dataclass(frozen=True)
class SteadyClock:
    """Seconds since the epoch that never jump: wall clock at the start, then monotonic."""

    boot: str
    zero_s: float  # when that boot started

    @classmethod
    def start(cls, least_s: float = 0.0) -> "SteadyClock":
        """Start at the wall clock's time or ``least_s``: recorded times are in the past."""
        return cls(boot_id(), max(time.time(), least_s) - _since_boot_s())

    @classmethod
    def load(cls, path: Path) -> "SteadyClock | None":
        try:
            clock = cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        if clock.boot and clock.boot == boot_id():
            return clock
        return None

    def save(self, path: Path) -> None:
        write_json(path, asdict(self))

    def now_s(self) -> float:
        return self.zero_s + _since_boot_s()

    def of_wall_s(self, wall_s: float) -> float:
        """This clock's time for ``wall_s`` of the wall clock as it is set now."""
        return wall_s + self.now_s() - time.time()


def clock_of(folder: Path, least_s: float = 0.0) -> SteadyClock:
    """The clock of the job in a folder, started if there is none. Raises DataError."""
    clock = SteadyClock.load(folder / CLOCK)
    if clock is None or clock.now_s() < least_s:
        clock = SteadyClock.start(least_s)
        clock.save(folder / CLOCK)
    return clock


def job_time_s(folder: Path, wall_s: float) -> float:
    """What the wall clock shows, by the clock of the job in a folder, if it has one."""
    clock = SteadyClock.load(folder / CLOCK)
    if clock:
        return clock.of_wall_s(wall_s)
    return wall_s


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
