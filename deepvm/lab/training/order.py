"""What a rank receives besides the run's configuration: what is special about this attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.records import CONFIG, read_document, write_document


@dataclass(frozen=True)
class Order:
    """One attempt of one run, for all of its ranks.

    Attributes:
        folder: of the run. attempt: from 0. struck: failures that have happened. until: the step at
            which this attempt ends by plan, as where the number of ranks changes; 0: the last.
            tiers: memory nodes, if any.
    """

    folder: Path
    attempt: int
    struck: Collection[str] = ()
    until: int = 0
    tiers: Sequence[str] = ()

    @cached_property
    def config(self) -> dict[str, Any]:
        """Of the run."""
        return read_document(self.folder / CONFIG)

    @property
    def strikes(self) -> list[FaultInjection]:
        """Failures that are still to come."""
        planned = [FaultInjection.of(one) for one in self.config["strikes"]]
        return [one for one in planned if one.key not in self.struck]

    @property
    def file(self) -> Path:
        return self.folder / f"order-{self.attempt}.json"

    def write(self) -> Path:
        write_document(self.file, {**asdict(self), "folder": str(self.folder)})
        return self.file

    @classmethod
    def read(cls, path: Path) -> Order:
        return cls(**{**read_document(path), "folder": path.parent})
