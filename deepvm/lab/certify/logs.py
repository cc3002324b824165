"""Read what the probe has logged in the processes of one attempt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepvm.lab.records import read_lines

Row = Mapping[str, Any]
_NAME = re.compile(r"(steps|samples)-(\d+)-(\d+)\.jsonl")


@dataclass(frozen=True)
class Logged:
    """Lines of one attempt, by rank, in the order in which they were written."""

    starts: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    steps: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    samples: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    writes: Sequence[Row] = ()
    errors: Sequence[str] = ()

    @classmethod
    def read(cls, folder: Path) -> Logged:
        """Of a folder; it may still grow. Raises DataError: a file is damaged."""
        rows: dict[tuple[str, int], list[Row]] = {}
        for path in folder.glob("*.jsonl"):
            name = _NAME.fullmatch(path.name)
            if name is not None:
                for row in read_lines(path):
                    rows.setdefault((row["kind"], int(name[2])), []).append(row)
        for found in rows.values():  # of several processes
            found.sort(key=lambda row: float(row["time"]))

        def of(kind: str) -> dict[int, Sequence[Row]]:
            return {rank: found for (one, rank), found in sorted(rows.items()) if one == kind}

        errors = [row["why"] for found in of("error").values() for row in found]
        return cls(of("start"), of("step"), of("samples"), of("write").get(0, ()), errors)

    @property
    def progress(self) -> Sequence[Row]:
        """Rank 0's steps: those of optimizers, else those that the script logged itself."""
        return self.steps.get(0) or self.samples.get(0) or ()
