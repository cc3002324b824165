"""What failures and checkpoints have cost: goodput, its parts, and ratios of runs that were made side by side.

Only runs that pass all gates count (ECRL 5.6, eq. 6 and 7). Ratios are taken between runs of the same seed, which were
made one after the other: what a shared machine does to both cancels.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deepvm.lab.audit.gates import Records
from deepvm.lab.matrix import CALM

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 %, for 1 to 15 degrees of freedom; then that of a normal distribution with a correction."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; without one if there is a single value."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of independent values."""
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
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom


@dataclass(frozen=True)
class Cost:
    """What one run has cost. Times in seconds.

    Attributes:
        goodput: steps a second, each counted once (eq. 6). compute_s: of steps, those done again included. snapshot_s,
            write_s: while training waited. stall_s: for which checkpoints held training up in all. background_s: writes
            beside the training. detect_s, restart_s, restore_s, replay_s: parts of the recovery.
    """

    variant: str
    seed: int
    passed: bool
    goodput: float
    wall_s: float
    restarts: int
    compute_s: float
    snapshot_s: float
    write_s: float
    background_s: float
    stall_s: float
    detect_s: float
    restart_s: float
    restore_s: float
    replay_s: float
    loss_difference: float | None = None


def cost_of(run: Records, *, passed: bool) -> Cost:
    """Of one run. Raises DataError: its records are damaged."""
    supervisor, rows = run.supervisor, run.checkpoints
    wall_s = float(supervisor["wall_s"])
    parts = {key: sum(a.get(key) or 0.0 for a in supervisor["attempts"]) for key in _RECOVERY}
    return Cost(
        variant=str(run.config["variant"]),
        seed=int(run.config["seed"]),
        passed=passed,
        goodput=run.config["steps"] / wall_s if wall_s else 0.0,
        wall_s=wall_s,
        restarts=int(supervisor["restarts"]),
        compute_s=sum(row["seconds"] for row in run.steps.get(0, ())),
        snapshot_s=sum(row["snapshot_s"] for row in rows),
        write_s=sum(row["foreground_s"] + row["enqueue_s"] for row in rows),
        background_s=sum(row["background_s"] for row in rows),
        stall_s=sum(row["stall_s"] for row in rows),
        **parts,
    )


_RECOVERY = ("detect_s", "restart_s", "restore_s", "replay_s")


@dataclass(frozen=True)
class SuiteResult:
    """The variants of a data set, a model and its failures. ``paired``: ratios of goodput, by ``ovl_over_blk``."""

    dataset: str
    model: str
    failure: str
    variants: Mapping[str, Sequence[Cost]]
    paired: Mapping[str, Estimate]


def suites_of(runs: Iterable[tuple[Records, bool]]) -> list[SuiteResult]:
    """All suites of a matrix; runs without failures belong to each suite of their data set and model.

    ``runs``: with whether they have passed all gates.
    """
    found: dict[tuple[str, str, str], list[Cost]] = defaultdict(list)
    for run, passed in runs:
        config = run.config
        found[config["dataset"]["name"], _model(config["model"]), config["failure"]].append(cost_of(run, passed=passed))
    failures = [key for key in found if key[2] != CALM] or list(found)
    results = []
    for dataset, model, failure in failures:
        shared = found.get((dataset, model, CALM), []) if failure != CALM else []
        variants: dict[str, list[Cost]] = defaultdict(list)
        for cost in [*shared, *found[dataset, model, failure]]:
            variants[cost.variant].append(cost)
        results.append(SuiteResult(dataset, model, failure, dict(variants), _paired(variants)))
    return results


def _paired(variants: Mapping[str, Sequence[Cost]]) -> dict[str, Estimate]:
    """Goodput of each variant over that of blocking, of runs with the same seed."""
    base = {cost.seed: cost.goodput for cost in variants.get("blk", ()) if cost.passed}
    found = {}
    for name, costs in variants.items():
        ratios = [cost.goodput / base[cost.seed] for cost in costs if cost.passed and base.get(cost.seed)]
        if name != "blk" and ratios:
            found[f"{name}_over_blk"] = Estimate.of_ratios(ratios)
    return found


def _model(model: Mapping[str, object]) -> str:
    return str(model["name"])
