"""What all views of a matrix show: its suites, how its runs were made, and warnings.

Means over suites take the seeds with which the reference, blocking and overlapped runs all pass
(ECRL 5.9).
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from deepvm.core.units import format_time
from deepvm.errors import DataError
from deepvm.lab.checked import CheckedRuns
from deepvm.lab.matrix import CALM, SIZES
from deepvm.lab.records import ENVIRONMENT, Records, read_document
from deepvm.lab.results import Cost, SuiteResult, suites_of
from deepvm.reports.pages import sentences

DIVERGED = "training diverged: some losses are not numbers"
REFERENCES = {
    "ref-blk": "blocking checkpoints, no failures (ECRL's reference)",
    "none": "neither checkpoints nor failures (ECRL's reference has blocking checkpoints)",
}
"""Policies that others are compared with, in order of preference."""


@dataclass(frozen=True)
class LabSummary:
    """Of the folder of a matrix; ``records``: with whether they pass all gates."""

    checked: CheckedRuns
    records: Sequence[tuple[Records, bool]]
    suites: Sequence[SuiteResult]

    @classmethod
    def of(cls, checked: CheckedRuns, records: Sequence[tuple[Records, bool]]) -> LabSummary:
        """Raises DataError: records are damaged."""
        return cls(checked, records, suites_of(records))

    @cached_property
    def reference(self) -> str:
        """The variant that others are compared with; empty if the matrix has none."""
        return next(filter(self.has, REFERENCES), "")

    def has(self, variant: str) -> bool:
        """Whether a suite has such a variant."""
        return any(variant in suite.variants for suite in self.suites)

    @cached_property
    def configs(self) -> Sequence[Mapping[str, Any]]:
        """Of all runs."""
        return [run.config for run, _ in self.records]

    def config_of(self, suite: SuiteResult) -> Mapping[str, Any]:
        """The configuration of a run with the suite's failures, if there is one."""
        configs = [
            config
            for config in self.configs
            if config["dataset"]["name"] == suite.dataset and config["model"]["name"] == suite.model
        ]
        # A suite may have runs without failures only
        return next((c for c in configs if c["failure"] == suite.failure), configs[0])

    def schedule(self, suite: SuiteResult) -> str:
        """What fails when, such as ``exit 40, 80``; random steps as they were drawn."""
        if suite.failure == CALM:
            return "none"
        text: str = sentences("lab_cells.j2").schedule(self.config_of(suite))
        return text

    def reason(self, cost: Cost) -> str:
        """Why a run does not pass, and whether it has diverged; empty if it passes, and has not."""
        gates = self.checked.runs.get(cost.run, {})
        reasons = [f"{gate}: {reason}" for gate, reason in gates.items() if reason]
        if cost.diverged:
            reasons.append(DIVERGED)
        return "; ".join(reasons)

    def left_out(self, suite: SuiteResult) -> list[tuple[str, str]]:
        """Runs of a suite that do not count, with the reason."""
        return [(cost.run, self.reason(cost)) for cost in suite.costs if not cost.passed]

    @cached_property
    def finals(self) -> Mapping[str, str]:
        """Digests of the final parameters, by run; those that have none are missing."""
        digests = {}
        for run, _ in self.records:
            # A run that did not get to its end has none
            with contextlib.suppress(DataError):
                digests[run.folder.name] = run.final
        return digests

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """On what the runs were made; where they differ, all of it with the number of runs."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for run, _ in self.records:
            for item, value in read_document(run.folder / ENVIRONMENT).items():
                counts[item][str(value)] += 1
        return {item: self._counted(values) for item, values in counts.items()}

    def _counted(self, values: Counter[str]) -> str:
        runs = len(self.records)
        if list(values.values()) == [runs]:
            return next(iter(values))
        return "; ".join(f"{value} ({n} of {runs} runs)" for value, n in values.items())

    @property
    def made(self) -> str:
        """When the first run started and the last one ended."""
        attempts = [one for run, _ in self.records for one in run.supervisor["attempts"]]
        first = min((one["began"] for one in attempts), default=0.0)
        last = max((one["detected"] for one in attempts), default=0.0)
        return f"{_utc(first)} to {_utc(last)}"

    @property
    def part_of_data(self) -> dict[str, tuple[list[int], int]]:
        """Data sets of which runs had a part: the sizes they had, and the whole."""
        parts = {}
        for name, whole in SIZES.items():
            used = {c["dataset_size"] for c in self.configs if c["dataset"]["name"] == name}
            if used - {whole}:
                parts[name] = (sorted(used), whole)
        return parts


def _utc(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(int(seconds), timezone.utc))
