"""Values of records against what ``data/documents`` declares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from deepvm.errors import DataError
from deepvm.lab.records import check, check_lines

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
        (lambda d: d.update(state=None), r"file: damaged: state is None \(.*string"),
        (lambda d: d.update(restarts=True), "damaged: restarts is True"),
        (lambda d: d.update(restarts=1.0), "damaged: restarts is 1.0"),
        (lambda d: d.update(restarts=-1), r"restarts is -1 \(.*equal to 0"),
        (lambda d: d.update(wall_s=0), r"wall_s is 0 \(.*greater than 0"),
        (lambda d: d.update(wall_s=float("inf")), "damaged: wall_s is inf"),
        (lambda d: d.update(wall_s=10**400), "damaged: wall_s is 1000"),
        (lambda d: d.update(left=4711), "damaged: left is 4711"),
        (lambda d: d.update(attempts=[3]), r"damaged: attempts\[0\] is 3"),
        (
            lambda d: d["attempts"][0].update(exits=[1, "x"]),
            r"file: damaged: attempts\[0\].exits\[1\] is 'x'",
        ),
        (
            lambda d: d["attempts"][0].update(struck={"exit": float("nan")}),
            r"file: damaged: attempts\[0\].struck.exit is nan",
        ),
        (
            lambda d: d["attempts"][0].update(safe=[[1, "stop"]]),
            r"damaged: attempts\[0\].safe\[0\] is",
        ),
        (lambda d: d["attempts"][0].pop("exits"), r"damaged: it has no attempts\[0\].exits"),
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
    check_lines("logs.Step", [{**row, "loss": float("nan"), "loss_hex": "nan"}], "log")
    with pytest.raises(DataError, match="line 1: damaged: loss is 0.5, not nan"):
        check_lines("logs.Step", [{**row, "loss": 0.5, "loss_hex": "nan"}], "log")
    with pytest.raises(DataError, match="line 1: damaged: loss is 1000"):
        check_lines("logs.Step", [{**row, "loss": 10**400, "loss_hex": "nan"}], "log")


def test_each_kind_of_event_has_its_facts() -> None:
    event = {"event": "started", "time": 1.0, "attempt": 0}
    check_lines("logs.Event", [{**event, "event": "Step"}, {**event, "pid": 1}], "log")
    with pytest.raises(DataError, match="log, line 1: damaged: it has no pid"):
        check_lines("logs.Event", [event], "log")
