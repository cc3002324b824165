"""Sweeps: jobs that differ in one or two parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepvm.core.preemption.gang_survival import MOST_VMS
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import SavePolicy
from deepvm.core.units import parse_seconds
from deepvm.errors import RequestError

_SPANS = {
    "grace": "grace_s",
    "save": "save_s",
    "backup": "backup_s",
    "allocation": "allocation_s",
    "preparation": "preparation_s",
}
KEYS = ("mttp", *_SPANS, "missed", "vms")
_POINTS = 12
_MOST = 1000


@dataclass(frozen=True)
class Case:
    """One thing to simulate.

    Attributes:
        job: with the values of the sweep. policy: when it is saved.
        values: (key, value) of the sweep, seconds for times; empty without one.
    """

    job: Job
    policy: SavePolicy
    values: tuple[tuple[str, float], ...] = ()


def swept(job: Job, sweeps: Sequence[str]) -> list[tuple[Job, tuple[tuple[str, float], ...]]]:
    """The jobs of ``KEY=LOW:HIGH[:STEP]``; with several, each value of one with each of the others.

    Raises:
        RequestError: what is no such range.
    """
    ranges = [_range(text) for text in sweeps]
    names = [name for name, _ in ranges]
    if len(set(names)) < len(names):
        raise RequestError("sweep", " ".join(sweeps), "each key once")
    if math.prod(len(values) for _, values in ranges) > _MOST:
        raise RequestError("sweep", " ".join(sweeps), f"at most {_MOST} points in all")
    found = []
    for point in itertools.product(*(values for _, values in ranges)):
        values = tuple(zip(names, point, strict=True))
        varied = job
        for name, value in values:
            varied = _with(varied, name, value)
        found.append((varied, values))
    return found


def _range(text: str) -> tuple[str, list[float]]:
    allowed = f"KEY=LOW:HIGH[:STEP] such as mttp=1h:12h; keys: {', '.join(KEYS)}"
    name, _, rest = text.partition("=")
    parts = rest.split(":")
    unit = name in ("missed", "vms") and any(c.isalpha() for c in rest)  # neither is a time
    if name not in KEYS or len(parts) not in (1, 2, 3) or unit:
        raise RequestError("sweep", text, allowed)
    try:
        several = parts if len(parts) > 1 else parts * 2
        low, high, *step = [parse_seconds(part, "sweep", bare=True, zero=True) for part in several]
    except RequestError:
        raise RequestError("sweep", text, allowed) from None
    # Nobody means 1 to 12 seconds
    if name == "mttp" and not all(p.strip()[-1:].isalpha() for p in parts[:2]):
        raise RequestError(
            "sweep", text, "times with a unit of s, min, h or d, such as mttp=1h:12h"
        )
    whole = name == "vms"
    by = (
        step[0]
        if step
        else (max(1.0, (high - low) // (_POINTS - 1)) if whole else (high - low) / (_POINTS - 1))
    )
    least = {"mttp": 1e-3, "vms": 1.0}.get(name, 0.0)
    most = {"missed": 1.0, "vms": float(MOST_VMS)}.get(name, math.inf)
    if low > high or (high > low and by <= 0):
        raise RequestError("sweep", text, "LOW not above HIGH, and a STEP above 0")
    if not least <= low <= high <= most:
        raise RequestError(
            "sweep", text, f"{name} from {least:g}" + (f" to {most:g}" if most < math.inf else "")
        )
    if high > low and (high - low) / by > _MOST:
        raise RequestError("sweep", text, f"at most {_MOST} points in all")
    if whole and any(v != int(v) for v in (low, by)):
        raise RequestError("sweep", text, "whole numbers of VMs")
    count = int((high - low) / by + 1e-9) + 1 if high > low else 1
    return name, [low + i * by for i in range(count)]


def _with(job: Job, name: str, value: float) -> Job:
    if name == "mttp":
        return replace(job, mttp_s=(value,))
    if name == "missed":
        return replace(job, missed_notice_rate=value)
    if name == "vms":
        return replace(job, vms=int(value))
    changes: dict[str, Any] = {_SPANS[name]: Span.of(value)}
    return replace(job, **changes)
