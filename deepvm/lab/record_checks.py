"""Type checks of a run's documents and lines, so that the audit can read them.

Damaged records are told with file and key; what a run did wrong is another question, that of the
gates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from deepvm.errors import DataError

Check = tuple[Callable[[Any], bool], str]
"""Whether a value can be used, and what is allowed in words."""


def whole(least: int = 0) -> Check:
    """A whole number."""
    return lambda value: type(value) is int and value >= least, f"a whole number from {least}"


def maybe(check: Check) -> Check:
    """None as well."""
    return lambda value: value is None or check[0](value), f"{check[1]}, or null"


def list_of(check: Check) -> Check:
    """A list of such values."""
    return (
        lambda value: isinstance(value, list) and all(map(check[0], value)),
        f"a list; each is {check[1]}",
    )


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_strike(value: Any) -> bool:
    return isinstance(value, dict) and all(
        (
            *(type(value.get(key)) is str for key in ("fault", "target", "key")),
            *(type(value.get(key)) is int and value[key] >= 0 for key in ("step", "rank")),
            _is_time(value.get("seconds")) and value["seconds"] >= 0,
            type(value.get("ends")) is bool,
        )
    )


def _is_hex(value: Any) -> bool:
    try:
        float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_worlds(value: Any) -> bool:
    if not isinstance(value, list) or not all(
        isinstance(one, list) and len(one) == 2 for one in value
    ):
        return False
    steps = [step for step, _ in value if type(step) is int]
    ranks = [world for _, world in value if type(world) is int and world > 0]
    return (
        len(steps) == len(ranks) == len(value) > 0 and steps[0] == 0 and steps == sorted(set(steps))
    )


TEXT: Check = lambda value: type(value) is str, "text"
TIME: Check = _is_time, "a number"
SECONDS: Check = lambda value: _is_time(value) and value >= 0, "seconds from 0"
NAMED: Check = (
    lambda value: isinstance(value, dict) and type(value.get("name")) is str,
    "an object with a name",
)
OBJECT: Check = lambda value: isinstance(value, dict), "an object"
FLAG: Check = lambda value: type(value) is bool, "true or false"
TEXTS = list_of(TEXT)
SAFE: Check = (
    lambda value: isinstance(value, list) and len(value) == 3 and type(value[0]) is int,
    "a version, why it was made, and whether it lasts",
)

CONFIG_CHECKS: Mapping[str, Check] = {
    "dataset": NAMED,
    "dataset_size": whole(1),
    "model": NAMED,
    "failure": TEXT,
    "variant": TEXT,
    "strategy": maybe(TEXT),
    "seed": whole(),
    "world": whole(1),
    "worlds": (_is_worlds, "steps that grow from 0, each with a number of ranks"),
    "virtual_shards": whole(),
    "global_batch": whole(1),
    "accumulate": whole(1),
    "steps": whole(1),
    "checkpoint_every": whole(1),
    "max_inflight": whole(1),
    "launcher": TEXT,
    "strikes": list_of(
        (_is_strike, "an object with fault, step, rank, target, seconds, key and ends")
    ),
    "disk": OBJECT,
    "controls": TEXTS,
}
"""Keys of a run's configuration that the audit reads."""
_CONFIG_EXTRA: Mapping[str, Check] = {"min_world": maybe(whole(1))}

_SUPERVISOR: Mapping[str, Check] = {
    "state": TEXT,
    "restarts": whole(),
    "wall_s": (lambda value: _is_time(value) and value > 0, "seconds above 0"),
    "attempts": list_of(OBJECT),
}
_ATTEMPT: Mapping[str, Check] = {
    "attempt": whole(),
    "world": whole(),
    "state": TEXT,
    "until": whole(),
    "began": TIME,
    "detected": TIME,
    "exits": list_of(maybe((lambda value: type(value) is int, "a whole number"))),
    "causes": TEXTS,
    "struck": (
        lambda value: isinstance(value, dict) and all(map(_is_time, value.values())),
        "an object of times",
    ),
    "resumed_step": maybe(whole()),
    "reached_step": whole(),
    "damaged": whole(),
    "disk_errors": whole(),
}
RECOVERY = ("detect_s", "restart_s", "restore_s", "replay_s")
"""The parts of a recovery, of attempts that have had one."""
_ATTEMPT_EXTRA: Mapping[str, Check] = {
    "broken": TEXTS,
    "safe": list_of(SAFE),
    **dict.fromkeys(RECOVERY, maybe(SECONDS)),
}

STEP_CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(
        ("attempt", "global_step", "epoch", "cursor_step", "sample_ids_count", "world_size"),
        whole(),
    ),
    "sample_ids_hash": TEXT,
    "loss": (
        lambda value: type(value) is float or (type(value) is int and abs(value) < 2**53),
        "a number, or NaN",
    ),
    "loss_hex": (_is_hex, "a number as float.hex writes it"),
    "seconds": SECONDS,
    "time": TIME,
}
"""Of a line of a rank's log; ``loss`` may be NaN."""
EVENT_CHECKS: Mapping[str, Check] = {"event": TEXT, "time": TIME, "attempt": whole()}
FACT_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "started": {"pid": whole()},
    "restored": {"step": whole(), "seconds": SECONDS},
    "closed": {"seconds": SECONDS},
    "slowed": {"seconds": SECONDS},
    "warned": {"text": TEXT},
    "stalled": {
        "step": whole(),
        "in_step": FLAG,
        **dict.fromkeys(("seconds", "snapshot_s", "write_s"), SECONDS),
    },
}
"""By event."""
CHECKPOINT_CHECKS: Mapping[str, Check] = {
    "time": TIME,
    "attempt": whole(),
    "step": whole(),
    "error": TEXT,
    **dict.fromkeys(
        ("snapshot_s", "foreground_s", "background_s", "enqueue_s", "backpressure_s", "stall_s"),
        SECONDS,
    ),
}


def check_keys(
    found: Mapping[str, Any],
    needed: Mapping[str, Check],
    where: object,
    extra: Mapping[str, Check] | None = None,
) -> None:
    """Raise DataError if a key is missing or invalid; ``extra``: optional keys."""
    for key, (good, allowed) in needed.items():
        if key not in found:
            raise DataError(f"{where}: damaged: it has no {key}")
        if not good(found[key]):
            raise DataError(f"{where}: damaged: {key} is {_shown(found[key])}; allowed: {allowed}")
    for key in extra or ():
        if key in found:
            check_keys(found, {key: (extra or {})[key]}, where)


def check_loss(row: Mapping[str, Any], path: object, number: int) -> None:
    """Of a line whose keys are checked: both forms of its loss are one number. Raises DataError."""
    if float(row["loss"]).hex() != float.fromhex(row["loss_hex"]).hex():
        said = (
            f"loss is {_shown(row['loss'])}; allowed: {float.fromhex(row['loss_hex'])!r}, as"
            " loss_hex has it"
        )
        raise DataError(f"{path}, line {number}: damaged: {said}")


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Of a run. Raises DataError."""
    check_keys(config, CONFIG_CHECKS, where, _CONFIG_EXTRA)
    batch, size = config["global_batch"], config["dataset_size"]
    if batch > size:
        raise DataError(
            f"{where}: damaged: global_batch is {batch}, more than the {size} samples of"
            " dataset_size"
        )
    for _, world in config["worlds"]:
        if batch % world:
            raise DataError(
                f"{where}: damaged: worlds has {world} ranks, which do not divide global_batch,"
                f" {batch}"
            )


def check_supervisor(found: Mapping[str, Any], where: object) -> None:
    """Of a run. Raises DataError."""
    check_keys(found, _SUPERVISOR, where)
    for place, attempt in enumerate(found["attempts"]):
        check_keys(attempt, _ATTEMPT, f"{where}, attempts[{place}]", _ATTEMPT_EXTRA)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
