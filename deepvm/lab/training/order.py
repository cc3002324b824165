"""What a rank is told: the run's configuration, and what is special about this attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from deepvm.lab.faults.fault import FaultSchedule, Strike


@dataclass(frozen=True)
class Order:
    """One attempt of one run, for all of its ranks.

    Attributes:
        folder: of the run. attempt: from 0. config: of the run, as in ``config.json``. strikes:
            failures that are still to come. disk: faults of the disk, by name. until: the step at
            which this attempt ends by plan, as where the number of ranks changes. tiers: memory
            nodes, if any.
    """

    folder: Path
    attempt: int
    config: Mapping[str, Any]
    strikes: Sequence[Strike] = ()
    disk: Mapping[str, FaultSchedule] | None = None
    until: int = 0
    tiers: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        return _json().dump_json(self)

    @staticmethod
    def from_json(text: bytes) -> Order:
        return _json().validate_json(text)


@cache
def _json() -> TypeAdapter[Order]:
    return TypeAdapter(Order)
