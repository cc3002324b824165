"""The cost of failures and checkpoints: goodput, its parts, ratios of paired runs (ECRL 5.6)."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from deepvm.core.grouping import grouped
from deepvm.lab.matrix import CALM
from deepvm.lab.records import Records
from deepvm.records import dataclass

BLOCKING = "blk"  # The variant that others are compared with
PARTS = ("detect", "restart", "restore", "replay")  # Of a recovery
# Student's t at 97.5 % for 1 to 15 degrees of freedom, then terms of its expansion: scipy is an
# extra, and reports stay as they were published
_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float | None  # None: there is a single value
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, None, None, len(values))
        freedom = len(values) - 1
        student = 1.95996 + 2.3723 / freedom + 2.8226 / freedom**2
        if freedom <= len(_T95):
            student = _T95[freedom - 1]
        half = student * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, len(values))

    @classmethod
    def of_ratios(cls, ratios: Sequence[float]) -> Estimate:
        logs = cls.of([math.log(ratio) for ratio in ratios])
        ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
        return cls(math.exp(logs.mean), ends[0], ends[1], logs.n)


@dataclass(frozen=True)
class Cost:
    """What one run has cost. Times are those of rank 0."""

    run: str
    variant: str
    seed: int
    passed: bool
    goodput: float  # steps a second, each counted once (eq. 6)
    wall_s: float
    restarts: int
    compute_s: float  # of steps, repeated ones included, without stalls in the optimizer's step
    repeated_s: float  # of steps that another attempt did again
    snapshot_s: float  # while training waited
    write_s: float  # while training waited
    background_s: float  # writes alongside the training
    drain_s: float  # from the last step until what was in flight had been written
    stall_s: float  # for which checkpoints held training up, also those that were never complete
    checkpoints: int  # that were made
    skipped: int  # that were due, and skipped or given up
    # Parts of all recoveries; None if there was one, and no time of it is known
    detect_s: float | None
    restart_s: float | None
    restore_s: float | None
    replay_s: float | None
    known: Mapping[str, int]  # how many times of each part
    # Mean absolute difference from an undisturbed run; None without one, or if it ``diverged``
    loss_difference: float | None = None
    diverged: bool = False  # a loss is no number

    def part_s(self, part: str) -> float | None:
        known = self.known[f"{part}_s"]
        total = getattr(self, f"{part}_s")
        return total / known if known else None

    @property
    def recovery_s(self) -> float | None:
        known = [part for name in PARTS if (part := self.part_s(name)) is not None]
        if len(known) == len(PARTS):
            return sum(known)
        return None


def cost_of(run: Records, *, passed: bool, undisturbed: Records | None = None) -> Cost:
    """Of one run. Raises DataError: its records are damaged."""
    config = run.config
    supervisor = run.supervisor
    rows = run.checkpoints
    steps = run.steps.get(0, [])
    stalls = [row for row in run.events(0) if row["event"] == "stalled"]
    in_steps_s = sum(row["seconds"] for row in stalls if row["in_step"])
    compute_s = sum(row["seconds"] for row in steps)
    counted_s = sum(row["seconds"] for (_, rank), row in run.owners.items() if not rank)
    recovery: dict[str, float | None] = {}
    counts = {}
    for key in (f"{part}_s" for part in PARTS):
        times = [one[key] for one in run.attempts if key in one]
        known = [time for time in times if time is not None]
        recovery[key] = sum(known) if known or not times else None
        counts[key] = len(known)
    diverged = not all(math.isfinite(row["loss"]) for row in run.owners.values())
    compared = None if diverged else undisturbed
    return Cost(
        run=run.folder.name,
        variant=config["variant"],
        seed=config["seed"],
        passed=passed,
        goodput=config["steps"] / supervisor["wall_s"],
        wall_s=supervisor["wall_s"],
        restarts=supervisor["restarts"],
        compute_s=compute_s - in_steps_s,
        repeated_s=compute_s - counted_s,
        snapshot_s=sum(row["snapshot_s"] for row in stalls),
        write_s=sum(row["write_s"] for row in stalls),
        background_s=sum(row["background_s"] for row in rows),
        drain_s=sum(row["seconds"] for row in run.events(0) if row["event"] == "closed"),
        stall_s=sum(row["seconds"] for row in stalls),
        checkpoints=sum(not row["error"] for row in rows),
        skipped=sum(bool(row["error"]) for row in rows),
        known=counts,
        loss_difference=_loss_difference(run, compared),
        diverged=diverged,
        **recovery,
    )


def _loss_difference(run: Records, undisturbed: Records | None) -> float | None:
    differences = []
    for key, row in run.owners.items():
        other = undisturbed and undisturbed.owners.get(key)
        # The undisturbed run may have diverged
        if other and not key[1] and math.isfinite(other["loss"]):
            differences.append(abs(row["loss"] - other["loss"]))
    if differences:
        return statistics.fmean(differences)
    return None


@dataclass(frozen=True)
class Variant:
    """The runs of a variant in a suite; numbers are those of the runs that pass all gates."""

    name: str
    costs: Sequence[Cost]

    @cached_property
    def passing(self) -> list[Cost]:
        return [cost for cost in self.costs if cost.passed]

    @property
    def verdict(self) -> str:
        if len(self.passing) == len(self.costs):
            return "pass"
        return "fail"

    @property
    def diverged(self) -> int:
        return sum(cost.diverged for cost in self.passing)

    def gains(self, other: Variant) -> dict[int, float]:
        goodputs = {cost.seed: cost.goodput for cost in other.passing}
        return {
            cost.seed: cost.goodput / goodputs[cost.seed]
            for cost in self.passing
            if cost.seed in goodputs
        }

    def over(self, other: Variant) -> Estimate | None:
        gains = self.gains(other)
        if not gains:
            return None
        return Estimate.of_ratios(list(gains.values()))

    def known(self, name: str) -> list[float]:
        values = [getattr(cost, name) for cost in self.passing]
        return [value for value in values if value is not None]

    def mean(self, name: str) -> float | None:
        values = self.known(name)
        if values:
            return statistics.fmean(values)
        return None

    def estimate(self, name: str) -> Estimate | None:
        values = self.known(name)
        if values:
            return Estimate.of(values)
        return None


@dataclass(frozen=True)
class SuiteResult:
    """The variants of a data set, a model and its failures."""

    dataset: str
    model: str
    failure: str
    variants: Mapping[str, Variant]

    @property
    def title(self) -> str:
        return f"{self.dataset} {self.model} {self.failure}"

    @property
    def costs(self) -> list[Cost]:
        return [cost for variant in self.variants.values() for cost in variant.costs]

    def over(self, base: str) -> dict[str, Estimate]:
        if base not in self.variants:
            return {}
        others = {name: one for name, one in self.variants.items() if name != base}
        ratios = {name: one.over(self.variants[base]) for name, one in others.items()}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    @property
    def paired(self) -> dict[str, Estimate]:
        return {f"{name}_over_{BLOCKING}": ratio for name, ratio in self.over(BLOCKING).items()}


def suites_of(runs: Iterable[tuple[Records, bool]]) -> list[SuiteResult]:
    """All suites of a matrix; ``runs``: with whether they have passed all gates."""
    all_runs = list(runs)
    undisturbed: dict[tuple[str, str, int], Records] = {}
    for run, passed in all_runs:
        if passed and run.config["failure"] == CALM:
            undisturbed.setdefault(_training(run), run)
    costs: dict[tuple[str, str, str], list[Cost]] = defaultdict(list)
    for run, passed in all_runs:
        training = _training(run)
        cost = cost_of(run, passed=passed, undisturbed=undisturbed.get(training))
        costs[training[0], training[1], run.config["failure"]].append(cost)
    results = []
    for dataset, model, failure in [key for key in costs if key[2] != CALM] or list(costs):
        members = costs[dataset, model, failure]
        if failure != CALM:
            members = [*costs.get((dataset, model, CALM), ()), *members]
        by_name = grouped((cost.variant, cost) for cost in members)
        variants = {name: Variant(name, own) for name, own in by_name.items()}
        results.append(SuiteResult(dataset, model, failure, variants))
    return results


def _training(run: Records) -> tuple[str, str, int]:
    config = run.config
    return config["dataset"]["name"], config["model"]["name"], config["seed"]
