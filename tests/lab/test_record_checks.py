"""Values of records against what ``data/documents`` declares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from deepvm.errors import DataError
from deepvm.lab.record_checks import check, check_events, check_steps

ATTEMPT: dict[str, Any] = {
    "attempt": 0,
    "world": 2,
    "state": "failed",
    "until": 10,
    "began": 1.0,
    "detected": 2,
    "exits": [1, None],
    "causes": ["exit"],
    "struck": {"exit-5-0": 1.5},
    "resumed_step": None,
    "reached_step": 5,
    "damaged": 0,
    "disk_errors": 0,
}
SUPERVISOR: dict[str, Any] = {
    "state": "completed",
    "restarts": 1,
    "wall_s": 9.0,
    "hangs": 0,
    "attempts": [ATTEMPT],
}


def test_what_is_right_passes() -> None:
    check("lab.LabSupervisor", SUPERVISOR, "file")
    more = {**ATTEMPT, "detect_s": None, "safe": [[1, "stop", True]], "new": "ignored"}
    check("lab.LabSupervisor", {**SUPERVISOR, "attempts": [more], "why": ""}, "file")
    check("lab.LabSupervisor", {**SUPERVISOR, "wall_s": 1e300}, "file")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.pop("state"), "file: damaged: it has no state"),
        (lambda d: d.update(state=None), "file: damaged: state is None; expected type string"),
        (lambda d: d.update(restarts=True), "damaged: restarts is True"),
        (lambda d: d.update(restarts=1.0), "damaged: restarts is 1.0"),
        (lambda d: d.update(restarts=-1), "restarts is -1; expected type integer, minimum 0"),
        (lambda d: d.update(wall_s=0), "wall_s is 0; expected type number, exclusiveMinimum 0"),
        (lambda d: d.update(wall_s=float("inf")), "damaged: wall_s is inf"),
        (lambda d: d.update(wall_s=10**400), "damaged: wall_s is 1000"),
        (lambda d: d.update(left=4711), "damaged: left is 4711"),
        (lambda d: d.update(attempts=[3]), r"damaged: attempts\[0\] is 3"),
        (
            lambda d: d["attempts"][0].update(exits=[1, "x"]),
            r"file, attempts\[0\]: damaged: exits\[1\] is 'x'",
        ),
        (
            lambda d: d["attempts"][0].update(struck={"exit": float("nan")}),
            r"file, attempts\[0\], struck: damaged: exit is nan",
        ),
        (
            lambda d: d["attempts"][0].update(safe=[[1, "stop"]]),
            r"attempts\[0\]: damaged: safe\[0\] is",
        ),
        (lambda d: d["attempts"][0].pop("exits"), r"attempts\[0\]: damaged: it has no exits"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Any], object], problem: str) -> None:
    document = copy.deepcopy(SUPERVISOR)
    change(document)
    with pytest.raises(DataError, match=problem):
        check("lab.LabSupervisor", document, "file")


def test_a_loss_may_be_no_number() -> None:
    step = dict.fromkeys(
        ("attempt", "global_step", "epoch", "cursor_step", "sample_ids_count", "world_size"), 1
    )
    row = {**step, "sample_ids_hash": "", "seconds": 0.5, "time": 1}
    check_steps([{**row, "loss": float("nan"), "loss_hex": "nan"}], "log")
    with pytest.raises(DataError, match="line 1: damaged: loss is 0.5, not nan"):
        check_steps([{**row, "loss": 0.5, "loss_hex": "nan"}], "log")
    with pytest.raises(DataError, match="line 1: damaged: loss is 1000"):
        check_steps([{**row, "loss": 10**400, "loss_hex": "nan"}], "log")


def test_each_kind_of_event_has_its_facts() -> None:
    event = {"event": "started", "time": 1.0, "attempt": 0}
    check_events([{**event, "event": "Step"}, {**event, "pid": 1}], "log")
    with pytest.raises(DataError, match="log, line 1: damaged: it has no pid"):
        check_events([event], "log")
