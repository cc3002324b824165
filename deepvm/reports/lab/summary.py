"""What all views of a matrix show: its suites, how its runs were made, and warnings.

Means over suites take the seeds with which the reference, blocking and overlapped runs all pass
(ECRL 5.9).
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from deepvm.errors import DataError
from deepvm.io.times import format_time
from deepvm.lab.checked import Checked
from deepvm.lab.matrix import CALM, SIZES
from deepvm.lab.records import ENVIRONMENT, Records, read_document
from deepvm.lab.results import Cost, SuiteResult, suites_of

DIVERGED = "training diverged: some losses are not numbers"
REFERENCES = {
    "ref-blk": "blocking checkpoints, no failures (ECRL's reference)",
    "none": "neither checkpoints nor failures (ECRL's reference has blocking checkpoints)",
}
"""What others are compared with, in order of preference."""
FEW_SEEDS = 5


def worlds(config: Mapping[str, Any]) -> str:
    """How many ranks a run has, such as ``4; 2 from step 25 on``."""
    parts = []
    for step, world in config["worlds"]:
        parts.append(f"{world} from step {step} on" if step else f"{world}")
    return "; ".join(parts)


@dataclass(frozen=True)
class LabSummary:
    """Of the folder of a matrix; ``records``: with whether they pass all gates."""

    checked: Checked
    records: Sequence[tuple[Records, bool]]
    suites: Sequence[SuiteResult]

    @classmethod
    def of(cls, checked: Checked, records: Sequence[tuple[Records, bool]]) -> LabSummary:
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

    def values(self, of: Callable[[Mapping[str, Any]], Any]) -> list[str]:
        """The different values of something in the configurations of all runs."""
        return list(dict.fromkeys(str(of(config)) for config in self.configs))

    def config_of(self, suite: SuiteResult) -> Mapping[str, Any]:
        """The configuration of a run with the suite's failures, if there is one."""
        configs = [
            config
            for config in self.configs
            if config["dataset"]["name"] == suite.dataset and config["model"]["name"] == suite.model
        ]
        return next((c for c in configs if c["failure"] == suite.failure), configs[0])

    def schedule(self, suite: SuiteResult) -> str:
        """What fails when, such as ``exit 40, 80``; random steps as they were drawn."""
        if suite.failure == CALM:
            return "none"
        config = self.config_of(suite)
        steps: dict[str, list[str]] = defaultdict(list)
        for strike in config["strikes"]:
            steps[strike["fault"]].append(str(strike["step"]))
        texts = [f"{fault} {', '.join(at)}" for fault, at in steps.items()]
        texts += [f"{name} disk {_limit(disk)}".rstrip() for name, disk in config["disk"].items()]
        return "; ".join(texts) or "none"

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
            with contextlib.suppress(DataError):
                digests[run.folder.name] = run.final
        return digests

    def complete(self, suite: SuiteResult, names: Sequence[str]) -> dict[str, list[Cost]]:
        """Runs of these variants, of the seeds with which all of them pass; empty without any."""
        by_seed = {
            name: {cost.seed: cost for cost in suite.variants[name].passing}
            for name in names
            if name in suite.variants
        }
        if not names or len(by_seed) < len(names):
            return {}
        seeds = sorted(set.intersection(*map(set, by_seed.values())))
        if not seeds:
            return {}
        return {name: [costs[seed] for seed in seeds] for name, costs in by_seed.items()}

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
    def warnings(self) -> list[str]:
        """What a reader must know before using the numbers."""
        return [*self._sizes(), *self._seeds(), *self._runs()]

    def _sizes(self) -> Iterator[str]:
        for name, size in SIZES.items():
            sizes = {c["dataset_size"] for c in self.configs if c["dataset"]["name"] == name}
            used = " or ".join(map(str, sorted(sizes)))
            if sizes <= {size}:
                continue
            if name.startswith("cifar"):
                yield (
                    f"{name} has {size} samples, these runs had {used}: a part of it, or other"
                    f" files in its format. Nothing here is a result on {name}."
                )
            else:
                yield f"{name}: {used} of its {size} samples."

    def _seeds(self) -> Iterator[str]:
        seeds = {cost.seed for suite in self.suites for cost in suite.costs}
        if len(seeds) < 2:
            yield "One seed: there are no intervals, and small differences mean nothing."
        elif len(seeds) < FEW_SEEDS:
            yield (
                f"{len(seeds)} seeds: intervals are wide; five or more tell small differences"
                " apart."
            )

    def _runs(self) -> Iterator[str]:
        diverged = {c.run for suite in self.suites for c in suite.costs if c.diverged}
        if diverged:
            runs = ", ".join(sorted(diverged))
            yield f"Training diverged, some losses are not numbers: {runs}."
        if self.checked.failures:
            failed = len(self.checked.runs) - self.checked.passed
            yield (
                "Runs that do not pass all gates are in no number below:"
                f" {failed} of {len(self.checked.runs)}."
            )


def _limit(disk: Mapping[str, Any]) -> str:
    if disk.get("mbps"):
        return f"{disk['mbps']:g} MB/s"
    if disk.get("share"):
        return f"{disk['share']:.0%}"
    return ""


def _utc(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(int(seconds), timezone.utc))
