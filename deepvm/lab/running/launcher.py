"""How the ranks of an attempt are started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path


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
    """Starts ranks on this machine."""

    def ready(self) -> None:
        """Load what ranks are forked from before anything is measured; may be called again."""
        return

    @abstractmethod
    def start(self, order: Path, world: int, port: int) -> Attempt:
        """Start ``world`` ranks of the attempt described in a file; rank 0 listens at ``port``."""

    def close(self) -> None:
        """End what helps it, if anything does."""
        return
