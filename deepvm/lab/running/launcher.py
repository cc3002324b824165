"""How a run is launched: a whole run, or the ranks of each of its attempts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from deepvm.lab.running.plan import Plan


class Attempt(ABC):
    """The processes of one start of a training."""

    @abstractmethod
    def exits(self) -> Sequence[int | None]:
        """Exit codes of the ranks; < 0: minus a signal; None: running or unknown."""

    @abstractmethod
    def workers(self) -> Sequence[int]:
        """The ranks' processes in order, without those that have not reported yet."""

    def agent(self) -> int | None:
        """The launcher's own process on the machine, if it has one."""
        return None

    @abstractmethod
    def kill_all(self) -> None:
        """End all processes, and wait until they are gone."""


class Launcher(ABC):
    """Launches runs on this machine."""

    @abstractmethod
    def run(self, plan: Plan, stopping: threading.Event | None = None) -> bool:
        """Run a plan to its end; returns whether it got there. Leaves no process behind.

        Once ``stopping`` is set, the run is given up. Raises StoppedError.
        """

    def close(self) -> None:
        """End what helps it, if anything does."""
        return
