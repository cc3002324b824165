"""What is to be run: one training, and what is to fail in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepvm.lab.faults.fault import FaultSchedule, Strike


class StoppedError(Exception):
    """A run was given up because all of them are."""


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        folder: of the run. config: as in ``config.json``. worlds: steps, with the number of ranks
            from there on.
            strikes: failures in their order. disk: faults of the disk, by name. hang_s: without a
            step for so long, an attempt hangs. in_memory: whether it needs a memory node.
    """

    folder: Path
    config: Mapping[str, Any]
    worlds: Sequence[tuple[int, int]]
    strikes: Sequence[Strike] = ()
    disk: Mapping[str, FaultSchedule] = field(default_factory=dict)
    hang_s: float = 15.0
    in_memory: bool = False
