"""How runs are judged, those of the lab and those of audited scripts: gates, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from deepvm.lab.records import MissingFileError

Evidence = TypeVar("Evidence")


class NotJudgedError(Exception):
    """A gate cannot be judged, and why."""


@dataclass(frozen=True)
class Gate:
    """An answer, with its reason unless it is passed."""

    name: str
    state: Literal["passed", "failed", "skipped"]
    reason: str = ""


def judge(
    gates: Mapping[str, Callable[[Evidence], Iterator[str]]], evidence: Evidence
) -> list[Gate]:
    """The answers of all gates, each with the first thing that is wrong."""
    answers = []
    for name, gate in gates.items():
        state: Literal["failed", "skipped"] = "failed"
        try:
            reason = next(gate(evidence), "")
        except NotJudgedError as error:
            state = "skipped"
            reason = str(error)
        except MissingFileError as error:
            reason = f"{error.name} is missing"
        answers.append(Gate(name, state if reason else "passed", reason))
    return answers


def replays(rows: Iterable[Mapping[str, Any]], ids: str) -> Iterator[str]:
    """A repeated step had the same samples and, on as many ranks, the same loss, bit for bit.

    ``rows``: all lines of all ranks. ``ids``: their key for samples.
    """
    first: dict[tuple[int, int, int | None], Mapping[str, Any]] = {}
    for row in rows:
        step = row["global_step"]
        rank = row["rank"]
        before = first.setdefault((step, rank, row.get("world_size")), row)
        for key, problem in ((ids, "other samples"), ("loss_hex", "another loss")):
            if before[key] != row[key]:
                yield f"step {step} of rank {rank}: attempt {row['attempt']} had {problem}"
