"""Sweeps: jobs that differ in one or two parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepvm.core.preemption.gang_survival import MOST_VMS
from deepvm.core.preemption.job import Job, Span
from deepvm.core.units import parse_seconds
from deepvm.errors import RequestError

_SPANS = ("grace", "save", "backup", "allocation", "preparation")
_LIMITS = {
    "mttp": (1e-3, math.inf),
    **dict.fromkeys(_SPANS, (0.0, math.inf)),
    "missed": (0.0, 1.0),
    "vms": (1.0, float(MOST_VMS)),
}
KEYS = tuple(_LIMITS)
_POINTS = 12
_MAX_POINTS = 1000
_ALLOWED = (
    f"KEY=LOW:HIGH[:STEP] such as mttp=1h:12h; keys: {', '.join(KEYS)}; mttp with units, missed"
    f" from 0 to 1, whole numbers of vms from 1 to {MOST_VMS}, at most {_MAX_POINTS} points in all"
)


def swept(job: Job, sweeps: Sequence[str]) -> list[tuple[Job, tuple[tuple[str, float], ...]]]:
    """The jobs of ``KEY=LOW:HIGH[:STEP]``; with several, each value of one with each of the others.

    Raises:
        RequestError: what is no such range.
    """
    ranges = [_range(text) for text in sweeps]
    names = [name for name, _ in ranges]
    if len(set(names)) < len(names):
        raise RequestError("sweep", " ".join(sweeps), "each key once")
    if math.prod(len(values) for _, values in ranges) > _MAX_POINTS:
        raise RequestError("sweep", " ".join(sweeps), _ALLOWED)
    found = []
    for point in itertools.product(*(values for _, values in ranges)):
        values = tuple(zip(names, point, strict=True))
        varied = job
        for name, value in values:
            varied = _with(varied, name, value)
        found.append((varied, values))
    return found


def _range(text: str) -> tuple[str, list[float]]:
    name, _, rest = text.partition("=")
    parts = rest.split(":")
    unit = name in ("missed", "vms") and any(c.isalpha() for c in rest)  # neither is a time
    if name not in KEYS or len(parts) > 3 or unit:
        raise RequestError("sweep", text, _ALLOWED)
    try:
        # "mttp=1:12" is no range of seconds
        low, high = (
            parse_seconds(part, "sweep", bare="" if name == "mttp" else "s", zero=True)
            for part in (parts * 2)[:2]
        )
        steps = [parse_seconds(part, "sweep", bare="s", zero=True) for part in parts[2:]]
    except RequestError:
        raise RequestError("sweep", text, _ALLOWED) from None
    by = (high - low) / (_POINTS - 1)
    if steps:
        by = steps[0]
    elif name == "vms":
        by = max(1.0, by // 1)
    count = 1.0
    if high > low:
        count = (high - low) / max(by, 1e-9) + 1
    least, most = _LIMITS[name]
    whole = low == int(low) and by == int(by)
    if not least <= low <= high <= most or count > _MAX_POINTS or (name == "vms" and not whole):
        raise RequestError("sweep", text, _ALLOWED)
    return name, [low + i * by for i in range(int(count + 1e-9))]


def _with(job: Job, name: str, value: float) -> Job:
    if name == "mttp":
        return replace(job, mttp_s=(value,))
    if name == "missed":
        return replace(job, missed_notice_rate=value)
    if name == "vms":
        return replace(job, vms=int(value))
    changes: dict[str, Any] = {f"{name}_s": Span.of(value)}
    return replace(job, **changes)
