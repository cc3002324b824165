"""Time limits that follow the machine: a wait that must be short is judged by what work takes here
and now.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

_WORK = bytes(1 << 20)
_QUIET_S = 0.02  # what the work below takes on a quiet core of an ordinary server


def slowness() -> float:
    """How many times as long a fixed piece of work takes now as on a quiet machine, at least 1.

    Wall-clock time on purpose: other processes on the same cores delay the work as they delay the
    test.
    """
    start = time.perf_counter()
    for _ in range(16):
        hashlib.sha256(_WORK).digest()
    return max(1.0, (time.perf_counter() - start) / _QUIET_S)


@contextmanager
def soon(limit_s: float) -> Iterator[None]:
    """Fail unless the block ends within `limit_s` seconds of a quiet machine.

    For waits that end at once or not before a timeout: choose a limit well between the two.
    """
    before = slowness()
    start = time.monotonic()
    yield
    took_s = time.monotonic() - start
    allowed_s = limit_s * max(before, slowness())
    assert took_s < allowed_s, (
        f"took {took_s:.2f} s; {limit_s:g} s on a quiet machine are {allowed_s:.2f} s here"
    )
