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
class AttemptLog:
    """Lines of one attempt, by rank, in the order in which they were written."""

    starts: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    steps: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    samples: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    writes: Sequence[Row] = ()
    errors: Sequence[str] = ()

    @classmethod
    def read(cls, folder: Path) -> AttemptLog:
        """Of a folder; it may still grow. Raises DataError: a file is damaged."""
        rows: list[tuple[int, dict[str, Any]]] = []
        for path in folder.glob("*.jsonl"):
            if name := _NAME.fullmatch(path.name):
                rows += [(int(name[2]), row) for row in read_lines(path)]
        rows.sort(key=lambda pair: (pair[0], float(pair[1]["time"])))  # of several processes

        def of(kind: str) -> dict[int, list[Row]]:
            logs: dict[int, list[Row]] = {}
            for rank, row in rows:
                if row["kind"] == kind:
                    logs.setdefault(rank, []).append(row)
            return logs

        errors = [row["why"] for _, row in rows if row["kind"] == "error"]
        return cls(of("start"), of("step"), of("samples"), of("write").get(0, ()), errors)

    @property
    def progress(self) -> Sequence[Row]:
        """Rank 0's steps: those of optimizers, else those that the script logged itself."""
        return self.steps.get(0) or self.samples.get(0) or ()
