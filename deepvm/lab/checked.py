"""The answer of ``deepvm lab check``: every run of a folder against every gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deepvm.errors import DataError
from deepvm.lab.audit.gates import ARTEFACTS, GATES, STORIES, verdicts
from deepvm.lab.audit.publication import published_verdicts
from deepvm.lab.audit.references import with_references
from deepvm.lab.records import CONFIG, ENVIRONMENT, RUNS, SUPERVISOR, Records, read_document
from deepvm.lab.results import suites_of
from deepvm.lab.running.manifest import NAME, Row, RunState, key_of, read_manifest, read_planned

NOT_RUN = "not run yet; 'deepvm lab run' continues with what is missing"


class GateFailure(NamedTuple):
    """A gate that a run does not pass."""

    run: str
    gate: str
    reason: str


@dataclass(frozen=True)
class CheckedRuns:
    """The runs of a folder.

    Attributes:
        runs: by name, what is wrong at each gate, empty where it is passed. Of a run that is
            missing or damaged, only ``artefacts`` is there. left_out: of the same matrices, runs
            that were not requested (``--only``).
    """

    runs: Mapping[str, Mapping[str, str]]
    left_out: Sequence[str] = ()

    @property
    def passed(self) -> int:
        return sum(not any(gates.values()) for gates in self.runs.values())

    @property
    def verdict(self) -> str:
        text = f"{self.passed} of {len(self.runs)} runs pass all gates"
        if self.left_out:
            text += f"; {len(self.left_out)} more of the matrix were left out"
        return text

    def of_gate(self, name: str) -> tuple[int, int]:
        known = [gates[name] for gates in self.runs.values() if name in gates]
        failed = sum(map(bool, known))
        return len(known) - failed, failed

    @property
    def gates(self) -> Mapping[str, Mapping[str, int]]:
        return {
            name: dict(zip(("passed", "failed"), self.of_gate(name), strict=True)) for name in GATES
        }

    @property
    def failures(self) -> list[GateFailure]:
        return [
            GateFailure(run, gate, reason)
            for run, gates in self.runs.items()
            for gate, reason in gates.items()
            if reason
        ]

    @property
    def incomplete(self) -> list[tuple[str, str]]:
        """(run, reason) of runs whose artefacts are missing or damaged."""
        return [(run, gates[ARTEFACTS]) for run, gates in self.runs.items() if gates.get(ARTEFACTS)]


def check(out: Path, *, published: bool = False) -> tuple[CheckedRuns, list[tuple[Records, bool]]]:
    """All runs of a folder, and the records of those that are whole, with whether they have passed.

    Args:
        out: the folder of a matrix.
        published: whether publishable files must be there, too, and say the same as the runs; if
            all runs are whole.

    Raises:
        DataError: there are no runs, or the list of runs is damaged.
    """
    planned = read_planned(out)
    started = (out / NAME).exists() or not planned.wanted
    rows = read_manifest(out) if started else []
    if not rows and not planned.wanted:
        raise DataError(f"{out}: its manifest lists no runs")
    gates: dict[str, dict[str, str]] = {}
    whole: list[Records] = []
    for row in rows:
        folder = out / RUNS / row.run
        try:
            records = _records(folder)
            gates[row.run] = problems = verdicts(records)
            passed = not any(problems.values())
            problems[STORIES] = problems[STORIES] or _listed(row, records, passed=passed)
            suites_of([(records, False)])  # it can be counted
            whole.append(records)
        except DataError as error:
            reason = str(error).removeprefix(str(folder)).lstrip("/: ")
            gates[row.run] = {ARTEFACTS: f"{reason}; 'deepvm lab run' makes this run again"}
    gates.update({name: {ARTEFACTS: NOT_RUN} for name in planned.wanted if name not in gates})
    # What a damaged run should have published is not known
    if published and len(whole) == len(gates):
        for name, (missing, wrong) in published_verdicts(out, whole).items():
            gates[name][ARTEFACTS] = gates[name][ARTEFACTS] or missing
            gates[name][STORIES] = gates[name][STORIES] or wrong
    judged = [(one, not any(gates[one.folder.name].values())) for one in whole]
    return CheckedRuns(gates, [name for name in planned.runs if name not in gates]), judged


def _listed(row: Row, run: Records, *, passed: bool) -> str:
    """What the list of runs says of a run, which has ``passed`` its gates, and is not so.

    Raises DataError.
    """
    if row.key != key_of(run.config, read_document(run.folder / ENVIRONMENT)):
        return f"{NAME} lists a run of another configuration or environment than its files have"
    if passed and row.state not in (RunState.COMPLETED.value, RunState.SKIPPED.value):
        return f"{NAME} lists it as {row.state}"
    return ""


def _records(folder: Path) -> Records:
    """Of a run. Raises DataError: without these nothing can be asked."""
    for needed in (CONFIG, SUPERVISOR, ENVIRONMENT):
        if not (folder / needed).is_file():
            raise DataError(f"{folder / needed}: missing")
    return with_references(Records.read(folder), folder.parent)
