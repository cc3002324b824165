"""What the audit reads in a run's documents and lines.

Damaged records raise DataError with file and key; what a run did wrong is a question for the gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len, Lt
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from deepvm.errors import DataError

Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Time = Annotated[float, Gt(-inf), Lt(inf)]
Seconds = Annotated[float, Ge(0), Lt(inf)]
Worlds = Annotated[list[Annotated[list[Count], Len(2, 2)]], Len(1)]

# ``data/documents/lab.json`` says what the keys of config.json and supervisor.json mean.


class LabModel(TypedDict):
    """The model of a run."""

    name: str
    width: int | None
    norm: Literal["batch", "group"]
    dropout: float


class LabDataset(TypedDict):
    """The data set of a run."""

    name: str
    path: str | None


class LabStrike(TypedDict):
    """A planned failure."""

    fault: str
    step: Count
    rank: Count
    target: str
    seconds: Seconds
    delay_s: Seconds
    key: str
    ends: bool


class LabRun(TypedDict):
    """All that makes a run what it is; ``config.json`` in its folder."""

    schema_version: Literal["deepvm.lab-run/1"]
    matrix: str
    dataset: LabDataset
    dataset_size: Positive
    model: LabModel
    failure: str
    variant: str
    strategy: str | None
    seed: Count
    world: Positive
    worlds: Worlds
    min_world: Positive | None
    virtual_shards: Count
    global_batch: Positive
    accumulate: Positive
    steps: Positive
    checkpoint_every: Positive
    max_inflight: Positive
    keep: Positive
    launcher: str
    strikes: list[LabStrike]
    disk: dict[str, Any]
    controls: list[str]


class _MoreOfAttempt(TypedDict, total=False):
    detect_s: Seconds | None
    restart_s: Seconds | None
    restore_s: Seconds | None
    replay_s: Seconds | None
    last_lines: list[str]
    broken: list[str]
    machines: list[str]
    safe: list[Annotated[list[Any], Len(3, 3)]]


class LabAttempt(_MoreOfAttempt):
    """One start of a training."""

    attempt: Count
    world: Count
    state: str
    until: Count
    began: Time
    detected: Time
    exits: list[int | None]
    causes: list[str]
    struck: dict[str, Time]
    resumed_step: Count | None
    reached_step: Count
    damaged: Count
    disk_errors: Count


class _MoreOfSupervisor(TypedDict, total=False):
    left: list[int]
    why: str


class LabSupervisor(_MoreOfSupervisor):
    """What happened to a run; ``supervisor.json`` in its folder."""

    state: str
    restarts: Count
    wall_s: Annotated[float, Gt(0), Lt(inf)]
    hangs: Count
    attempts: list[LabAttempt]


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
