"""What the audit reads in a run's documents and lines.

Damaged records raise DataError with file and key; what a run did wrong is a question for the gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from deepvm.errors import DataError

RECOVERY = ("detect_s", "restart_s", "restore_s", "replay_s")
"""The parts of a recovery, of attempts that have had one."""


def _increasing(worlds: list[list[int]]) -> list[list[int]]:
    steps = [step for step, _ in worlds]
    if steps[0] != 0 or steps != sorted(set(steps)) or not all(ranks for _, ranks in worlds):
        raise ValueError("steps must increase from 0, each with a number of ranks")
    return worlds


def _step_first(value: list[Any]) -> list[Any]:
    if type(value[0]) is not int:
        raise ValueError("a step, the reason, and whether it is durable")
    return value


def _hex(value: str) -> str:
    try:
        float.fromhex(value)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    return value


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Time = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Worlds = Annotated[
    list[Annotated[list[Count], Field(min_length=2, max_length=2)]],
    Field(min_length=1),
    AfterValidator(_increasing),
]
Hex = Annotated[str, AfterValidator(_hex)]
Safe = Annotated[list[Any], Field(min_length=3, max_length=3), AfterValidator(_step_first)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True)


class Named(_Record):
    """A data set, or a model."""

    name: str


class PlannedStrike(_Record):
    """A planned failure."""

    fault: str
    step: Count
    rank: Count
    target: str
    seconds: Seconds
    key: str
    ends: bool


class Config(_Record):
    """``config.json``."""

    dataset: Named
    dataset_size: Positive
    model: Named
    failure: str
    variant: str
    strategy: str | None
    seed: Count
    world: Positive
    worlds: Worlds
    min_world: Positive | None = None
    virtual_shards: Count
    global_batch: Positive
    accumulate: Positive
    steps: Positive
    checkpoint_every: Positive
    max_inflight: Positive
    launcher: str
    strikes: list[PlannedStrike]
    disk: dict[str, Any]
    controls: list[str]


class AttemptRecord(_Record):
    """An attempt in ``supervisor.json``."""

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
    broken: list[str] = []
    safe: list[Safe] = []
    detect_s: Seconds | None = None
    restart_s: Seconds | None = None
    restore_s: Seconds | None = None
    replay_s: Seconds | None = None


class SupervisorRecord(_Record):
    """``supervisor.json``."""

    state: str
    restarts: Count
    wall_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    attempts: list[AttemptRecord]


class Step(_Record):
    """A line of a rank's log; ``loss`` may be NaN."""

    attempt: Count
    global_step: Count
    epoch: Count
    cursor_step: Count
    sample_ids_count: Count
    sample_ids_hash: str
    world_size: Count
    loss: float
    loss_hex: Hex
    seconds: Seconds
    time: Time


class Checkpoint(_Record):
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


class Event(_Record):
    """What else happened to a rank."""

    event: str
    time: Time
    attempt: Count


class Started(Event):
    """A process."""

    pid: Count


class Timed(Event):
    """Something that took time."""

    seconds: Seconds


class Restored(Timed):
    """A checkpoint; 0 without one."""

    step: Count


class Stalled(Restored):
    """Training has waited for a checkpoint."""

    in_step: bool
    snapshot_s: Seconds
    write_s: Seconds


class Warned(Event):
    """A warning."""

    text: str


_EVENTS: Mapping[str, type[Event]] = {
    "started": Started,
    "restored": Restored,
    "closed": Timed,
    "slowed": Timed,
    "warned": Warned,
    "stalled": Stalled,
}
_STEPS, _CHECKPOINTS = TypeAdapter(list[Step]), TypeAdapter(list[Checkpoint])


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Of a run. Raises DataError."""
    _check(Config, config, where)
    batch, size = config["global_batch"], config["dataset_size"]
    if batch > size:
        raise DataError(f"{where}: damaged: global_batch is {batch}, of {size} samples")
    for _, world in config["worlds"]:
        if batch % world:
            raise DataError(
                f"{where}: damaged: worlds has {world} ranks, which do not divide {batch} samples"
            )


def check_supervisor(document: Mapping[str, Any], where: object) -> None:
    """Of a run. Raises DataError."""
    _check(SupervisorRecord, document, where)


def check_steps(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a rank's log: both forms of a loss are one number. Raises DataError."""
    _check_lines(_STEPS, rows, path)
    for number, row in enumerate(rows, 1):
        if float(row["loss"]).hex() != float.fromhex(row["loss_hex"]).hex():
            raise DataError(
                f"{path}, line {number}: damaged: loss is {row['loss']}, not {row['loss_hex']}"
            )


def check_checkpoints(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of the log of checkpoints. Raises DataError."""
    _check_lines(_CHECKPOINTS, rows, path)


def check_events(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a rank's other log. Raises DataError."""
    for number, row in enumerate(rows, 1):
        where = f"{path}, line {number}"
        _check(Event, row, where)
        _check(_EVENTS.get(row["event"], Event), row, where)


def _check(kind: type[BaseModel], document: Mapping[str, Any], where: object) -> None:
    try:
        kind.model_validate(document)
    except ValidationError as error:
        raise _damaged(error, where, ()) from None


def _check_lines(kind: TypeAdapter[Any], rows: Sequence[Mapping[str, Any]], path: object) -> None:
    try:
        kind.validate_python(rows)
    except ValidationError as error:
        line, *_ = error.errors()[0]["loc"]
        raise _damaged(error, f"{path}, line {int(line) + 1}", (line,)) from None


def _damaged(error: ValidationError, where: object, above: Sequence[object]) -> DataError:
    """``above``: the place in pydantic's error that ``where`` names already."""
    first = error.errors()[0]
    *parents, key = first["loc"][len(above) :]
    path = "".join(f"[{one}]" if isinstance(one, int) else f", {one}" for one in parents)
    if isinstance(key, int):
        parents_end = path.rpartition(", ")
        path, key = parents_end[0], f"{parents_end[2]}[{key}]"
    if first["type"] == "missing":
        return DataError(f"{where}{path}: damaged: it has no {key}")
    value = repr(first["input"])
    if len(value) > 60:
        value = f"{value[:57]}..."
    return DataError(f"{where}{path}: damaged: {key} is {value}; {first['msg']}")
