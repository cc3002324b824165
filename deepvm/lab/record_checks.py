"""What the audit reads in a run's documents and lines.

Damaged records raise DataError with file and key; what a run did wrong is a question for the gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from deepvm.documents.outputs.lab import Count, LabRun, Seconds, Time
from deepvm.errors import DataError


class Step(TypedDict):
    """A line of a rank's log; ``loss`` may be NaN."""

    attempt: Count
    global_step: Count
    epoch: Count
    cursor_step: Count
    sample_ids_count: Count
    sample_ids_hash: str
    world_size: Count
    loss: float
    loss_hex: str
    seconds: Seconds
    time: Time


class Checkpoint(TypedDict):
    """A line of the log of checkpoints."""

    time: Time
    attempt: Count
    step: Count
    error: str
    snapshot_s: Seconds
    foreground_s: Seconds
    background_s: Seconds
    enqueue_s: Seconds
    backpressure_s: Seconds
    stall_s: Seconds


class Event(TypedDict):
    """What else happened to a rank."""

    event: str
    time: Time
    attempt: Count


class StartEvent(Event):
    """A process."""

    pid: Count


class TimedEvent(Event):
    """Something that took time."""

    seconds: Seconds


class RestoreEvent(TimedEvent):
    """A checkpoint; 0 without one."""

    step: Count


class StallEvent(RestoreEvent):
    """Training has waited for a checkpoint."""

    in_step: bool
    snapshot_s: Seconds
    write_s: Seconds


class WarningEvent(Event):
    """A warning."""

    text: str


_EVENTS = {
    "started": StartEvent,
    "restored": RestoreEvent,
    "closed": TimedEvent,
    "slowed": TimedEvent,
    "warned": WarningEvent,
    "stalled": StallEvent,
}


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Of a run. Raises DataError."""
    check(LabRun, config, where)
    batch = config["global_batch"]
    size = config["dataset_size"]
    worlds = config["worlds"]
    if batch > size:
        raise DataError(f"{where}: damaged: global_batch is {batch}, of {size} samples")
    steps = [step for step, _ in worlds]
    if steps[0] or steps != sorted(set(steps)) or any(not w or batch % w for _, w in worlds):
        allowed = f"steps from 0 that increase, with numbers of ranks that divide {batch} samples"
        raise DataError(f"{where}: damaged: worlds is {worlds}; expected {allowed}")


def check_steps(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a rank's log: both forms of a loss are one number. Raises DataError."""
    check_lines(Step, rows, path)
    for number, row in enumerate(rows, 1):
        if float(row["loss"]).hex() != row["loss_hex"]:
            loss = f"{row['loss']}, not {row['loss_hex']}"
            raise DataError(f"{path}, line {number}: damaged: loss is {loss}")


def check_events(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a rank's other log. Raises DataError."""
    check_lines(Event, rows, path)
    for number, row in enumerate(rows, 1):
        check(_EVENTS.get(row["event"], Event), row, f"{path}, line {number}")


def check_lines(kind: Any, rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a log whose lines are of one kind. Raises DataError."""
    for number, row in enumerate(rows, 1):
        check(kind, row, f"{path}, line {number}")


@cache
def _validator(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check(kind: Any, document: Mapping[str, Any], where: object) -> None:
    """Of a document of a kind. Raises DataError."""
    try:
        _validator(kind).validate_python(document, strict=True)
    except ValidationError as error:
        raise _damaged(error, where) from None


def _damaged(error: ValidationError, where: object) -> DataError:
    first = error.errors()[0]
    names = [f"[{one}]" if isinstance(one, int) else f", {one}" for one in first["loc"]]
    above, _, key = "".join(names).rpartition(", ")
    if first["type"] == "missing":
        return DataError(f"{where}{above}: damaged: it has no {key}")
    value = repr(first["input"])[:60]
    return DataError(f"{where}{above}: damaged: {key} is {value}; {first['msg']}")
