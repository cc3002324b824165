"""How runs are judged, those of the lab and those of audited scripts: gates, and their answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, TypeVar

from deepvm.core.json_types import JsonObject
from deepvm.lab.records import MissingFileError
from deepvm.records import dataclass

Evidence = TypeVar("Evidence")
Problems: TypeAlias = Iterator[str]  # What is wrong, nothing where a gate is passed


class NotJudgedError(Exception):
    """A gate cannot be judged, and why."""


@dataclass(frozen=True)
class Gate:
    """An answer; the reason is empty if it is passed."""

    name: str
    state: Literal["passed", "failed", "skipped"]
    reason: str = ""


def judge(gates: Mapping[str, Callable[[Evidence], Problems]], evidence: Evidence) -> list[Gate]:
    """All gates, each with the first thing that is wrong."""
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


def replays(rows: Iterable[JsonObject], ids: str) -> Problems:
    """A repeated step had the same samples (key ``ids``) and, on as many ranks, the same loss."""
    first: dict[tuple[int, int, int | None], JsonObject] = {}
    for row in rows:
        step = row["global_step"]
        rank = row["rank"]
        before = first.setdefault((step, rank, row.get("world_size")), row)
        for key, problem in ((ids, "other samples"), ("loss_hex", "another loss")):
            if before[key] != row[key]:
                yield f"step {step} of rank {rank}: attempt {row['attempt']} had {problem}"
