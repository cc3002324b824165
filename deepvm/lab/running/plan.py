"""What is to be run: one training, and what is to fail in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.faults.fault_registry import find_fault
from deepvm.lab.strategies.strategy_registry import find_strategy


class StoppedError(Exception):
    """A run was given up because all of them are."""


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        folder: of the run. config: as in its ``config.json``. hang_s: without a step for so long,
            an attempt hangs.
    """

    folder: Path
    config: Mapping[str, Any]
    hang_s: float = 15.0

    @property
    def in_memory(self) -> bool:
        """Whether it needs a memory node."""
        strategy = self.config["strategy"]
        return strategy is not None and find_strategy(strategy).in_memory

    @property
    def strikes(self) -> list[FaultInjection]:
        """Failures in their order."""
        return [FaultInjection.of(one) for one in self.config["strikes"]]


def from_outside(strike: FaultInjection) -> bool:
    """Whether the supervisor strikes, not the rank that is hit."""
    return find_fault(strike.fault).moment_of(strike) is None
