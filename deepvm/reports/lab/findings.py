"""What tables, figures, files and the page all show: which runs count, what they are compared with, how they were made.

Numbers are those of runs that pass all gates: a figure of a training that did not resume correctly
says nothing. Means over suites take the seeds with which the reference, blocking and overlapped all
pass (ECRL 5.9).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.io.times import format_time
from deepvm.lab.checked import Checked
from deepvm.lab.matrix import CALM, NONE, SIZES
from deepvm.lab.matrix import REFERENCES as VARIANTS_WITHOUT
from deepvm.lab.records import ENVIRONMENT, Records, read_document
from deepvm.lab.results import Cost, Estimate, SuiteResult, suites_of

BASE = "blk"
DIVERGED = "training diverged: some losses are not numbers"
PARTS = ("detect", "restart", "restore", "replay")
REFERENCES = {
    "ref-blk": "blocking checkpoints, no failures (ECRL's reference)",
    "none": "neither checkpoints nor failures (ECRL's reference has blocking checkpoints)",
}
"""What others are compared with, the first one first."""


def passing(costs: Sequence[Cost]) -> list[Cost]:
    """Runs whose numbers count."""
    return [cost for cost in costs if cost.passed]


def estimate(costs: Sequence[Cost], of: Callable[[Cost], float | None]) -> Estimate | None:
    """A mean over the runs that pass and of which it is known, with its interval.

    None without any.
    """
    found = [value for cost in passing(costs) if (value := of(cost)) is not None]
    return Estimate.of(found) if found else None


def part_s(cost: Cost, part: str) -> float | None:
    """A part of a recovery, a mean over those of a run of which it is known; None without any."""
    known, total = cost.known[f"{part}_s"], getattr(cost, f"{part}_s")
    return total / known if known else None


def recovery_s(cost: Cost) -> float | None:
    """A whole recovery, a mean over those of a run; None if a part is not known of any."""
    parts = [part_s(cost, part) for part in PARTS]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def variant_words(suite: SuiteResult, name: str) -> str:
    """A variant of a suite: one without failures is no rival of those that have them."""
    return (
        f"{name} (no failures)"
        if suite.failure != CALM and name in (NONE, *VARIANTS_WITHOUT)
        else name
    )


def ranks_words(config: Mapping[str, Any]) -> str:
    """How many ranks a run has, such as ``4; 2 from step 25 on``."""
    return "; ".join(
        f"{world} from step {step} on" if step else f"{world}" for step, world in config["worlds"]
    )


@dataclass(frozen=True)
class Findings:
    """Of the folder of a matrix."""

    out: Path
    checked: Checked
    records: Sequence[tuple[Records, bool]]
    suites: Sequence[SuiteResult]

    @classmethod
    def of(cls, out: Path, checked: Checked, records: Sequence[tuple[Records, bool]]) -> Findings:
        """Raises DataError: records are damaged."""
        return cls(out, checked, records, suites_of(records))

    @cached_property
    def reference(self) -> str:
        """The variant that others are compared with; empty if the matrix has none."""
        return next(
            (name for name in REFERENCES if any(name in one.variants for one in self.suites)), ""
        )

    @cached_property
    def configs(self) -> Sequence[Mapping[str, Any]]:
        """Of all runs."""
        return [run.config for run, _ in self.records]

    def values(self, of: Callable[[Mapping[str, Any]], Any]) -> list[str]:
        """The different values of something in the configurations of all runs."""
        return list(dict.fromkeys(str(of(config)) for config in self.configs))

    def config_of(self, suite: SuiteResult) -> Mapping[str, Any]:
        """The configuration of one of its runs that fail, if any does."""
        found = [
            c
            for c in self.configs
            if (c["dataset"]["name"], c["model"]["name"]) == (suite.dataset, suite.model)
        ]
        return next((c for c in found if c["failure"] == suite.failure), found[0])

    def schedule(self, suite: SuiteResult) -> str:
        """What fails when, such as ``exit 40, 80``; random ones as they were drawn."""
        if suite.failure == CALM:
            return "none"
        config = self.config_of(suite)
        steps: dict[str, list[int]] = {}
        for strike in config["strikes"]:
            steps.setdefault(strike["fault"], []).append(strike["step"])
        texts = [f"{fault} {', '.join(map(str, found))}" for fault, found in steps.items()]
        texts += [f"{name} disk {_disk(when)}".rstrip() for name, when in config["disk"].items()]
        return "; ".join(texts) or "none"

    def reason(self, cost: Cost) -> str:
        """Why a run does not pass, and whether it has diverged; empty if it passes, and has not."""
        gates = self.checked.runs.get(cost.run, {})
        reasons = [f"{gate}: {why}" for gate, why in gates.items() if why]
        return "; ".join([*reasons, *([DIVERGED] if cost.diverged else [])])

    def left_out(self, suite: SuiteResult) -> list[tuple[str, str]]:
        """Runs of a suite that do not count, and why."""
        every = (cost for costs in suite.variants.values() for cost in costs)
        return [(cost.run, self.reason(cost)) for cost in every if not cost.passed]

    @cached_property
    def finals(self) -> Mapping[str, str]:
        """Digests of the final parameters, by run; those that have none are missing."""
        found = {}
        for run, _ in self.records:
            with contextlib.suppress(DataError):
                found[run.folder.name] = run.final
        return found

    def complete(self, suite: SuiteResult, names: Sequence[str]) -> Mapping[str, Sequence[Cost]]:
        """Runs of some variants, of the seeds with which all of these pass.

        Empty if there are none.
        """
        by_seed = {
            name: {cost.seed: cost for cost in passing(suite.variants.get(name, ()))}
            for name in names
        }
        seeds = (
            set.intersection(*(set(found) for found in by_seed.values())) if by_seed else set[int]()
        )
        return (
            {name: [found[seed] for seed in sorted(seeds)] for name, found in by_seed.items()}
            if seeds
            else {}
        )

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """On what the runs were made; where they differ, all of it with the number of runs."""
        found: dict[str, dict[str, int]] = {}
        for run, _ in self.records:
            for item, value in read_document(run.folder / ENVIRONMENT).items():
                counts = found.setdefault(item, {})
                counts[str(value)] = counts.get(str(value), 0) + 1
        runs = len(self.records)

        def said(counts: Mapping[str, int]) -> str:
            if len(counts) == 1 and sum(counts.values()) == runs:
                return next(iter(counts))
            return "; ".join(f"{value} ({n} of {runs} runs)" for value, n in counts.items())

        return {item: said(counts) for item, counts in found.items()}

    @cached_property
    def when(self) -> tuple[float, float]:
        """When the first run began and the last one ended, seconds since the epoch."""
        attempts = [one for run, _ in self.records for one in run.supervisor["attempts"]]
        times = [one[key] for one in attempts for key in ("began", "detected")]
        return (min(times), max(times)) if times else (0.0, 0.0)

    @property
    def made(self) -> str:
        """The same in words."""
        first, last = (
            format_time(datetime.fromtimestamp(int(at), timezone.utc)) for at in self.when
        )
        return f"{first} to {last}"

    def doubts(self) -> list[str]:
        """What a reader must know before taking the numbers for more than they are."""
        found = []
        for name, size in SIZES.items():
            sizes = sorted(
                {c["dataset_size"] for c in self.configs if c["dataset"]["name"] == name}
            )
            if sizes and sizes != [size] and name.startswith("cifar"):
                some = " or ".join(map(str, sizes))
                found.append(
                    f"{name} has {size} samples, these runs had {some}: a part of it, or other"
                    f" files in its format. Nothing here is a result on {name}."
                )
            elif sizes and sizes != [size]:
                found.append(f"{name}: {' or '.join(map(str, sizes))} of its {size} samples.")
        seeds = {
            cost.seed for one in self.suites for costs in one.variants.values() for cost in costs
        }
        if len(seeds) < 2:
            found.append(
                "One seed: there are no intervals, and differences of a few per cent mean nothing."
            )
        elif len(seeds) < 5:
            found.append(
                f"{len(seeds)} seeds: intervals are wide; five or more tell small differences"
                " apart."
            )
        diverged = {
            c.run
            for one in self.suites
            for costs in one.variants.values()
            for c in costs
            if c.diverged
        }
        if diverged:
            found.append(
                f"Training diverged, some losses are not numbers: {', '.join(sorted(diverged))}."
            )
        if self.checked.failures:
            bad = len(self.checked.runs) - self.checked.passed
            found.append(
                f"Runs that do not pass all gates are in no number below: {bad} of"
                f" {len(self.checked.runs)}."
            )
        return found


def _disk(when: Mapping[str, Any]) -> str:
    if when.get("mbps"):
        return f"{when['mbps']:g} MB/s"
    return f"{when['share']:.0%}" if when.get("share") else ""
