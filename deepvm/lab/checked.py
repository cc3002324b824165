"""The answer of ``deepvm lab check``: every run and published file against every gate."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deepvm.errors import DataError
from deepvm.lab.audit.gates import ARTEFACTS, GATES, STORIES, verdicts
from deepvm.lab.records import (
    CONFIG,
    ENVIRONMENT,
    RUNS,
    SUPERVISOR,
    MissingFileError,
    Records,
    read_document,
)
from deepvm.lab.results import SuiteResult, suites_of
from deepvm.lab.running.manifest import NAME, Row, RunState, key_of, read_manifest, read_planned
from deepvm.records import dataclass

NOT_RUN = "not run yet; 'deepvm lab run' continues with what is missing"


class GateFailure(NamedTuple):
    """A gate that a run does not pass."""

    run: str
    gate: str
    reason: str


@dataclass(frozen=True)
class CheckedRuns:
    """The runs of a folder."""

    # By name, what is wrong at each gate; of a missing or damaged run only ``artefacts`` is there
    runs: Mapping[str, Mapping[str, str]]
    left_out: Sequence[str] = ()  # of the same matrices, not requested (``--only``)

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
        return [(run, gates[ARTEFACTS]) for run, gates in self.runs.items() if gates.get(ARTEFACTS)]


def check(out: Path, *, published: bool = False) -> tuple[CheckedRuns, list[tuple[Records, bool]]]:
    """All runs of a folder; records of whole ones, and whether they passed. Raises DataError."""
    # ``published``: publishable files must be there, too, and agree
    planned = read_planned(out)
    started = (out / NAME).exists() or not planned.wanted
    rows = read_manifest(out) if started else []
    if not rows and not planned.wanted:
        raise DataError(f"{out}: its manifest lists no runs")
    gates: dict[str, dict[str, str]] = {}
    whole = []
    for row in rows:
        folder = out / RUNS / row.run
        try:
            for needed in (CONFIG, SUPERVISOR, ENVIRONMENT):
                if not (folder / needed).is_file():
                    raise DataError(f"{folder / needed}: missing")
            records = Records.read(folder)
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
    """What the list of runs says of a run, and is not so. Raises DataError."""
    if row.key != key_of(run.config, read_document(run.folder / ENVIRONMENT)):
        return f"{NAME} lists a run of another configuration or environment than its files have"
    if passed and row.state not in (RunState.COMPLETED.value, RunState.SKIPPED.value):
        return f"{NAME} lists it as {row.state}"
    return ""


_AGAIN = "'deepvm lab report' writes it again"


def publishable(suite: SuiteResult, form: str) -> str:
    """The name of a suite's file."""
    name = re.sub(r"[^a-z0-9-]+", "-", f"{suite.dataset}-{suite.model}-{suite.failure}")
    return f"{name}_publishable.{form}"


def published_verdicts(out: Path, runs: Sequence[Records]) -> dict[str, tuple[str, str]]:
    """By run: what is missing or damaged, and what is wrong in a file. Raises DataError."""
    verdicts = {run.folder.name: ("", "") for run in runs}
    finals: dict[str, str | None] = dict.fromkeys(verdicts)
    for run in runs:
        with contextlib.suppress(DataError):
            finals[run.folder.name] = run.final
    for suite in suites_of((run, False) for run in runs):
        name = publishable(suite, "json")
        missing, published = _published(out / name)
        for cost in suite.costs:
            wrong = ""
            if not missing and published.get(cost.run, "") != finals[cost.run]:
                wrong = f"{name} is of other runs; {_AGAIN}"
            if not any(verdicts[cost.run]):
                verdicts[cost.run] = missing, wrong
    return verdicts


def _published(path: Path) -> tuple[str, Mapping[str, str | None]]:
    try:
        return "", {row["run"]: row["final_sha256"] for row in read_document(path)["runs"]}
    except MissingFileError:
        return f"{path.name} is missing; {_AGAIN}", {}
    except (DataError, KeyError, TypeError):
        return f"{path.name}: damaged; {_AGAIN}", {}
