"""The cost of failures and checkpoints: goodput, its parts, and ratios of paired runs.

Only runs that pass all gates count (ECRL 5.6, eq. 6 and 7). Ratios are taken between runs of the
same seed, which were made one after the other: what a shared machine does to both cancels.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from deepvm.lab.matrix import CALM
from deepvm.lab.records import Records

BLOCKING = "blk"
"""The variant that others are compared with."""
PARTS = ("detect", "restart", "restore", "replay")
"""Of a recovery."""
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
"""Student's t at 97.5 % for 1 to 15 degrees of freedom, then terms of its expansion."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; without one if there is a single value."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, None, None, len(values))
        half = _t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, len(values))

    @classmethod
    def of_ratios(cls, ratios: Sequence[float]) -> Estimate:
        """Of ratios: a geometric mean."""
        logs = cls.of([math.log(ratio) for ratio in ratios])
        ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
        return cls(math.exp(logs.mean), ends[0], ends[1], logs.n)


def _t95(freedom: int) -> float:
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    return 1.95996 + 2.3723 / freedom + 2.8226 / freedom**2


@dataclass(frozen=True)
class Cost:
    """What one run has cost. Times in seconds, those of rank 0.

    Attributes:
        run: its name. goodput: steps a second, each counted once (eq. 6). compute_s: of steps,
            those done again included, and stalls in the optimizer's step left out. repeated_s: of
            steps that another attempt did again. snapshot_s, write_s: while training waited.
            stall_s: for which checkpoints held training up until its last step, also those that a
            failure has kept from completion. drain_s: after that, until what was in flight had been
            written. background_s: writes alongside the training. checkpoints: that were made;
            skipped: that were due, and skipped or given up. detect_s, restart_s, restore_s,
            replay_s: parts of the recovery, as far as they are known; None if there was one, and no
            time of it is known. known: how many times of each part are.
            loss_difference: mean absolute difference of the losses from those of an undisturbed
            run; None without one, or if a loss is no number, and the run has ``diverged``.
    """

    run: str
    variant: str
    seed: int
    passed: bool
    goodput: float
    wall_s: float
    restarts: int
    compute_s: float
    repeated_s: float
    snapshot_s: float
    write_s: float
    background_s: float
    drain_s: float
    stall_s: float
    checkpoints: int
    skipped: int
    detect_s: float | None
    restart_s: float | None
    restore_s: float | None
    replay_s: float | None
    known: Mapping[str, int]
    loss_difference: float | None = None
    diverged: bool = False

    def part_s(self, part: str) -> float | None:
        """A part of a recovery, a mean over those of the run of which it is known."""
        known = self.known[f"{part}_s"]
        total = getattr(self, f"{part}_s")
        return total / known if known else None

    @property
    def recovery_s(self) -> float | None:
        """A whole recovery, a mean over those of the run; None if a part is not known of any."""
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
    counts: dict[str, int] = {}
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
    """Mean over the steps of rank 0 that both have done."""
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
    """The runs of a variant in a suite.

    Numbers are those of the runs that pass all gates: a figure of a training that did not resume
    correctly says nothing.
    """

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
        """Goodput over that of another variant, by the seeds with which runs of both pass."""
        goodputs = {cost.seed: cost.goodput for cost in other.passing}
        return {
            cost.seed: cost.goodput / goodputs[cost.seed]
            for cost in self.passing
            if cost.seed in goodputs
        }

    def over(self, other: Variant) -> Estimate | None:
        """The same, of all of these runs."""
        gains = self.gains(other)
        if not gains:
            return None
        return Estimate.of_ratios(list(gains.values()))

    def known(self, name: str) -> list[float]:
        """The values of an attribute of :class:`Cost`, of the runs of which it is known."""
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
        """For people."""
        return f"{self.dataset} {self.model} {self.failure}"

    @property
    def costs(self) -> list[Cost]:
        return [cost for variant in self.variants.values() for cost in variant.costs]

    def over(self, base: str) -> dict[str, Estimate]:
        """Goodput over that of a variant, by the names of the others."""
        if base not in self.variants:
            return {}
        others = {name: one for name, one in self.variants.items() if name != base}
        ratios = {name: one.over(self.variants[base]) for name, one in others.items()}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    @property
    def paired(self) -> dict[str, Estimate]:
        """Ratios of goodput, by ``ovl_over_blk``."""
        return {f"{name}_over_{BLOCKING}": ratio for name, ratio in self.over(BLOCKING).items()}


def suites_of(runs: Iterable[tuple[Records, bool]]) -> list[SuiteResult]:
    """All suites of a matrix.

    Runs without failures belong to each suite of their data set and model.

    ``runs``: with whether they have passed all gates.
    """
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
        members = list(costs[dataset, model, failure])
        if failure != CALM:
            members = [*costs.get((dataset, model, CALM), ()), *members]
        results.append(SuiteResult(dataset, model, failure, _variants(members)))
    return results


def _variants(costs: Iterable[Cost]) -> dict[str, Variant]:
    by_name: dict[str, list[Cost]] = defaultdict(list)
    for cost in costs:
        by_name[cost.variant].append(cost)
    return {name: Variant(name, runs) for name, runs in by_name.items()}


def _training(run: Records) -> tuple[str, str, int]:
    """Runs that should do the same steps."""
    config = run.config
    return config["dataset"]["name"], config["model"]["name"], config["seed"]
