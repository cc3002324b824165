"""A speed-up curve as it was measured, and the file in which it grows run by run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS
from deepvm.errors import DataError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.safe_read import read_text

SCALING_VERSION = DOCUMENT_VERSIONS["scaling"]
_WANTED = "--out goes on with a file that this command has written, or begins a new one"
_PLAN = ("workload", "plan", "local")


@dataclass(frozen=True)
class Run:
    """One training on n hosts.

    Attributes:
        n: VMs. repeat: which, from 1.
        seconds_per_step: of the slowest process, one for each window; empty when it failed.
        images_per_s: of all VMs together, at the median; None when it failed.
        failed: why, None when not.
    """

    n: int
    repeat: int
    seconds_per_step: tuple[float, ...] = ()
    images_per_s: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Point:
    """One size of the curve.

    Attributes:
        n: VMs.
        seconds: for as many images as one VM has in a step: a step's time over n, the median of all windows of the
            median run. All sizes do the same work in it, as the trainings do whose times the paper compares.
        speedup: S(n) = seconds(1) / seconds(n), None while n = 1 is not measured.
    """

    n: int
    seconds: float
    speedup: float | None


@dataclass(frozen=True)
class Curve:
    """A speed-up curve, whole or in part.

    Attributes:
        workload: what was trained. hosts: their names. plan: the sizes and repeats that were asked for.
        local: all on one machine: the numbers say that the parts work together, not how VMs scale.
        runs: each that was tried, in this order. machine: of the first process.
        fit: a document deepvm.fit/1, None when there is too little for one. warnings: for people.
        unwritten: why the file does not hold all of it, "" when it does or there is none.
    """

    workload: Mapping[str, Any]
    hosts: tuple[str, ...]
    plan: Mapping[str, Any]
    local: bool
    runs: tuple[Run, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    unwritten: str = ""

    @property
    def points(self) -> tuple[Point, ...]:
        """One for each size that was measured, the smallest first."""
        good: dict[int, list[float]] = {}
        for run in self.runs:
            if run.failed is None:
                good.setdefault(run.n, []).append(median(run.seconds_per_step) / run.n)
        seconds = {n: median(times) for n, times in sorted(good.items())}
        return tuple(Point(n, s, seconds[1] / s if 1 in seconds else None) for n, s in seconds.items())

    @property
    def samples(self) -> tuple[tuple[float, float], ...]:
        """(n, S(n)) of every run that was measured, against the median of n = 1; empty without that."""
        base = next((p.seconds for p in self.points if p.n == 1), None)
        if base is None:
            return ()
        good = [r for r in self.runs if r.failed is None]
        return tuple((float(r.n), base / (median(r.seconds_per_step) / r.n)) for r in good)

    @property
    def missing(self) -> tuple[int, ...]:
        """Sizes that were asked for and have no run that was measured."""
        there = {p.n for p in self.points}
        return tuple(n for n in self.plan["sizes"] if n not in there)

    def document(self) -> dict[str, object]:
        """The curve as JSON has it."""
        return {
            "schema_version": SCALING_VERSION,
            "workload": dict(self.workload),
            "hosts": list(self.hosts),
            "local": self.local,
            "plan": dict(self.plan),
            "runs": [asdict(r) | {"seconds_per_step": list(r.seconds_per_step)} for r in self.runs],
            "points": [asdict(p) for p in self.points],
            "fit": None if self.fit is None else dict(self.fit),
            "warnings": list(self.warnings),
            "machine": dict(self.machine),
        }


def write_curve(path: Path, curve: Curve) -> None:
    """Replace the file by one with this curve, whole or not at all.

    Raises:
        DataError: it cannot be written; the file is as it was.
    """
    write_bytes(path, (json.dumps(curve.document(), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_curve(path: Path) -> Curve | None:
    """What a file holds, None when there is none.

    Raises:
        DataError: it cannot be read, or is no speed-up curve.
    """
    try:
        text = read_text(path, _WANTED)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"not JSON: {error}") from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCALING_VERSION:
        raise _refused(path, f"schema_version {version!r}, expected {SCALING_VERSION!r}")
    try:
        return Curve(
            workload=dict(found["workload"]),
            hosts=tuple(map(str, found["hosts"])),
            plan=dict(found["plan"]),
            local=bool(found["local"]),
            runs=tuple(_run(r) for r in found["runs"]),
            machine=dict(found["machine"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(path, f"not as this program writes it ({type(error).__name__}: {error})") from None


def check_same(path: Path, old: Curve, new: Curve) -> None:
    """Refuse to go on with a curve that was measured in another way, or on other machines; hosts may have new names.

    Raises:
        RequestError: names what differs.
    """
    before, now = old.document(), new.document()
    for part in _PLAN:
        for key, was, wanted in _differences(part, before[part], now[part]):
            raise _other(path, f"{key} {was!r} there, {wanted!r} here")
    for key in ("processor", "gpus") if old.machine else ():
        if old.machine.get(key) != new.machine.get(key):
            raise _other(path, f"machines: {key} {old.machine.get(key)!r} there, {new.machine.get(key)!r} here")


def _differences(part: str, was: object, wanted: object) -> list[tuple[str, object, object]]:
    if not (isinstance(was, dict) and isinstance(wanted, dict)):
        return [] if was == wanted else [(part, was, wanted)]
    keys = sorted(was.keys() | wanted.keys())
    return [(k, was.get(k), wanted.get(k)) for k in keys if was.get(k) != wanted.get(k)]


def _run(found: Mapping[str, Any]) -> Run:
    seconds = tuple(float(s) for s in found["seconds_per_step"])
    failed = found["failed"]
    if failed is None and not (seconds and all(0 < s < math.inf for s in seconds)):
        raise ValueError("a run without times")
    speed = None if failed is not None else float(found["images_per_s"])
    return Run(int(found["n"]), int(found["repeat"]), seconds, speed, None if failed is None else str(failed))


def _refused(path: Path, why: str) -> DataError:
    return DataError(f"{path}: {why}; {_WANTED}")


def _other(path: Path, why: str) -> RequestError:
    return RequestError("out", str(path), f"a file that was measured in the same way ({why}), or the name of a new one")


def kept_runs(curve: Curve) -> Sequence[Run]:
    """The runs that need not be made again: failed ones are tried once more."""
    return [r for r in curve.runs if r.failed is None]
