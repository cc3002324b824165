"""When to save: policies decide, the training job and the simulator act.

Times are monotonic seconds of whatever clock the caller has; a policy has none and remembers nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from deepvm.errors import RequestError

OVERHEAD = 0.03
"""Share of the training time that checkpoints may cost unless the user says otherwise (CheckFreq's budget is 0.035)."""


@dataclass(frozen=True)
class SaveContext:
    """What a policy may know.

    Attributes:
        step: optimizer steps done. now_s: the time.
        last_step: steps in the newest version. last_s: when it was taken, or training began.
        stall_s: how long training stood still for a version, 0 while nobody knows.
        busy_s: how long a version is under way to its safest place, 0 while nobody knows.
    """

    step: int
    now_s: float
    last_step: int = 0
    last_s: float = 0.0
    stall_s: float = 0.0
    busy_s: float = 0.0


class SavePolicy(Protocol):
    """Decides whether the state after a step is to be saved."""

    def due(self, context: SaveContext) -> bool:
        """Whether to save now."""


@dataclass(frozen=True)
class Never:
    """Only when it is asked for."""

    def due(self, context: SaveContext) -> bool:
        """See :class:`SavePolicy`."""
        return False


@dataclass(frozen=True)
class EverySteps:
    """After each multiple of a number of steps."""

    steps: int

    def __post_init__(self) -> None:
        """Refuse what is no number of steps.

        Raises:
            RequestError: below 1.
        """
        if isinstance(self.steps, bool) or self.steps < 1:
            raise RequestError("every", self.steps, "a whole number of steps from 1")

    def due(self, context: SaveContext) -> bool:
        """See :class:`SavePolicy`."""
        return context.step % self.steps == 0


@dataclass(frozen=True)
class EverySeconds:
    """As soon as so much time has passed."""

    seconds: float

    def __post_init__(self) -> None:
        """Refuse what is no time.

        Raises:
            RequestError: not above 0.
        """
        if not 0 < self.seconds < math.inf:
            raise RequestError("every", self.seconds, "a time above 0 s")

    def due(self, context: SaveContext) -> bool:
        """See :class:`SavePolicy`."""
        return context.now_s - context.last_s >= self.seconds


@dataclass(frozen=True)
class Auto:
    """As often as pays: Young's interval, but within a budget of overhead and never while a version is under way.

    Young (1974) and Daly (2006): with ``stall_s`` lost for each version and a failure every ``mtbf_s`` on average, the
    loss is least at an interval of sqrt(2 stall_s mtbf_s). CheckFreq's budget: stall_s / interval <= overhead.

    Attributes:
        mtbf_s: mean time between failures of the cluster, seconds. overhead: share of the time that may be lost.
    """

    mtbf_s: float = 3600.0
    overhead: float = OVERHEAD

    def __post_init__(self) -> None:
        """Refuse what is no time or share.

        Raises:
            RequestError: naming the attribute.
        """
        if not 0 < self.mtbf_s < math.inf:
            raise RequestError("mtbf_s", self.mtbf_s, "a time above 0 s")
        if not 0 < self.overhead < 1:
            raise RequestError("overhead", self.overhead, "a share between 0 and 1")

    def interval_s(self, stall_s: float, busy_s: float) -> float:
        """Seconds between two versions.

        Args:
            stall_s: seconds that training stands still for one.
            busy_s: seconds that one is under way.
        """
        return max(math.sqrt(2 * stall_s * self.mtbf_s), stall_s / self.overhead, busy_s)

    def due(self, context: SaveContext) -> bool:
        """See :class:`SavePolicy`."""
        if not context.last_step and not context.stall_s:
            return True  # the first version shows what one costs
        return context.now_s - context.last_s >= self.interval_s(context.stall_s, context.busy_s)
