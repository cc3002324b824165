"""A speed-up curve as it was measured, and the file in which it grows run by run."""

import json
import math
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS, steps_of_runs
from deepvm.core.grouping import grouped
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.training.steptime import Steps
from deepvm.documents.build import document_of
from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_document
from deepvm.io.safe_read import read_text
from deepvm.records import asdict, dataclass, field

_VERSION = DOCUMENT_VERSIONS["scaling"]
_WANTED = "a JSON file of `deepvm profile scaling`; a new name in --out starts a new one"
_STEPS = "CSV of measured steps, or a JSON file of `deepvm profile scaling`"


@dataclass(frozen=True)
class Run:
    """One training run on n hosts, or why it ``failed``; ``repeat`` counts from 1."""

    n: int
    repeat: int
    seconds_per_step: tuple[float, ...] = ()  # of the slowest process in each window
    images_per_s: float | None = None  # of all VMs at their median
    failed: str | None = None
    batch: int | None = None  # samples on each GPU; None: the workload's


@dataclass(frozen=True)
class Cell:
    """Good runs on n VMs with one batch."""

    n: int
    gpus: int
    batch: int
    runs: int
    step_s: float  # median of medians
    spread: float  # of windows


class Point(NamedTuple):
    """The median run on n VMs: S(n) = seconds(1) / seconds(n)."""

    n: int
    seconds: float  # a step's over n: of the same images at all sizes
    speedup: float | None  # None while n = 1 is not measured


@dataclass(frozen=True)
class Curve:
    """Steps on n VMs with several batches; the speed-up curve is of the workload's batch."""

    workload: JsonObject
    hosts: tuple[str, ...]
    plan: JsonObject  # requested ``sizes``, ``batches`` and ``repeats``
    local: bool  # all hosts are one machine
    runs: tuple[Run, ...] = ()
    machine: JsonObject = field(default_factory=dict)
    fit: JsonObject | None = None  # a document deepvm.fit/1
    step_time: JsonObject | None = None  # the fitted step-time law
    warnings: tuple[str, ...] = ()
    unwritten: str = ""  # why the file lacks something

    @property
    def good(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.failed is None)

    @property
    def batch(self) -> int:
        return int(self.workload["batch"])

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.batch, *self.plan.get("batches", ()))))

    def batch_of(self, run: Run) -> int:
        return run.batch or self.batch

    @property
    def cells(self) -> tuple[Cell, ...]:
        runs = grouped(((run.n, self.batch_of(run)), run) for run in self.good)
        found = []
        for (n, batch), own in sorted(runs.items()):
            step_s = median(median(r.seconds_per_step) for r in own)
            windows = [s for r in own for s in r.seconds_per_step]
            spread = (max(windows) - min(windows)) / step_s
            found.append(Cell(n, n * self.workload["processes"], batch, len(own), step_s, spread))
        return tuple(found)

    @property
    def on_curve(self) -> tuple[Run, ...]:
        return tuple(run for run in self.good if self.batch_of(run) == self.batch)

    @property
    def points(self) -> tuple[Point, ...]:
        times = grouped((r.n, median(r.seconds_per_step) / r.n) for r in self.on_curve)
        seconds = {n: median(own) for n, own in sorted(times.items())}
        return tuple(
            Point(n, s, seconds[1] / s if 1 in seconds else None) for n, s in seconds.items()
        )

    @property
    def samples(self) -> tuple[tuple[float, float], ...]:
        """(n, S(n)) of every good run, against the median of n = 1; empty without that."""
        base = next((p.seconds for p in self.points if p.n == 1), None)
        if base is None:
            return ()
        return tuple((float(r.n), base / (median(r.seconds_per_step) / r.n)) for r in self.on_curve)

    @property
    def steps(self) -> tuple[tuple[int, int, float, float], ...]:
        """(VMs, GPUs, samples per GPU, seconds per step) of good runs that show how VMs train."""
        return steps_of_runs(self.document())

    @property
    def missing(self) -> tuple[int, ...]:
        there = {(run.n, self.batch_of(run)) for run in self.good}
        return tuple(
            n for n in self.plan["sizes"] if any((n, batch) not in there for batch in self.batches)
        )

    def document(self) -> dict[str, object]:
        own = {"workload": dict(self.workload), "plan": dict(self.plan)}
        return (
            document_of("profiling.Scaling", self) | own | {"runs": list(map(_run_of, self.runs))}
        )


def write_curve(path: Path, curve: Curve) -> None:
    """Replace the file. Raises DataError."""
    write_document(path, curve.document())


def read_curve(path: Path, wanted: str = _WANTED) -> Curve | None:
    """Read a file of :func:`write_curve`, None when there is none. Raises DataError."""
    try:
        found = json.loads(read_text(path, wanted))
        version = found["schema_version"]
        if version != _VERSION:
            problem = f"invalid value for schema_version: {version!r}"
            raise DataError(f"{path}: {problem} (expected {wanted})")
        runs = [
            Run(**run | {"seconds_per_step": tuple(run["seconds_per_step"])})
            for run in found["runs"]
        ]
        curve = Curve(
            found["workload"],
            tuple(found["hosts"]),
            found["plan"],
            found["local"],
            tuple(runs),
            found["machine"],
        )
        if not all(0 < s < math.inf for run in curve.good for s in run.seconds_per_step):
            raise ValueError("seconds_per_step")
        curve.document()  # fails where a file that was edited lacks times
        return curve
    except FileNotFoundError:
        return None
    except KeyError as error:
        raise DataError(f"{path}: missing key {error.args[0]} (expected {wanted})") from None
    except RecursionError:
        problem = "lists or objects are nested too deeply"
        raise DataError(f"{path}: {problem} (expected {wanted})") from None
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{path}: damaged ({type(error).__name__}: {error}) (expected {wanted})"
        ) from None


def read_scaling(path: Path) -> Curve:
    """As :func:`read_curve`, of a file that must exist."""
    curve = read_curve(path, _STEPS)
    if curve is None:
        raise DataError(f"{path}: does not exist (expected {_STEPS})")
    return curve


def read_scaling_steps(path: Path) -> Steps:
    """The steps of a file of :func:`write_curve`. Raises DataError: it has none."""
    curve = read_scaling(path)
    if not curve.steps:
        why = "no run that ended"
        if curve.local:
            why = "processes of one machine, which say nothing of several VMs"
        raise DataError(f"{path}: {why} (expected runs with times, such as of several batches)")
    return Steps(*np.array(curve.steps, dtype=np.float64).T)


def _run_of(run: Run) -> JsonDict:
    found = asdict(run) | {"seconds_per_step": list(run.seconds_per_step)}
    if run.batch is None:
        del found["batch"]
    return found


def check_same(path: Path, old: Curve, new: Curve) -> None:
    """Raise RequestError if a curve differs in method or machines; names may differ."""
    there, here = (
        {**c.workload, **c.plan, "local": c.local}
        | {f"machines: {k}": c.machine.get(k) for k in ("processor", "gpus")}
        for c in (old, new)
    )
    for key in here | there:
        was = there.get(key)
        wanted = here.get(key)
        if was != wanted and (old.machine or not key.startswith("machines")):
            raise RequestError(
                "out",
                str(path),
                f"a file that was measured in the same way ({key} {was!r} there, {wanted!r} here),"
                " or the name of a new one",
            )
