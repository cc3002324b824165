"""What a rank is told: the run's configuration, and what is special about this attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.lab.faults.fault import FaultSchedule, Strike
from deepvm.lab.faults.fault import Target as _Target


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

    def document(self) -> dict[str, Any]:
        """For a file."""
        return {
            "folder": str(self.folder),
            "attempt": self.attempt,
            "config": dict(self.config),
            "strikes": [one.document() for one in self.strikes],
            "disk": {
                k: {**vars(v), "target": v.target.value} for k, v in (self.disk or {}).items()
            },
            "until": self.until,
            "tiers": list(self.tiers),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Order:
        """From a file."""
        return cls(
            folder=Path(document["folder"]),
            attempt=document["attempt"],
            config=document["config"],
            strikes=[Strike.of(one) for one in document["strikes"]],
            disk={
                k: FaultSchedule(**{**v, "target": _Target(v["target"])})
                for k, v in document["disk"].items()
            },
            until=document["until"],
            tiers=tuple(document["tiers"]),
        )
