"""Records that are damaged are told with file and key.

What is not there fails the gates that need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.lab.made_runs import Row, change_document, change_lines, make_calm, make_run

from deepvm.errors import DataError
from deepvm.lab.audit.gates import verdicts
from deepvm.lab.records import Records


def judge(folder: Path) -> dict[str, str]:
    """What is wrong at each gate that fails."""
    found = verdicts(Records.read(folder))
    return {gate: why for gate, why in found.items() if why}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a failure-free run, and one that failed twice; both right."""
    make_calm(tmp_path / "calm")
    make_run(tmp_path / "run")
    return tmp_path


def attempts(change: Callable[[Row], object]) -> Callable[[Row], object]:
    return lambda d: [change(one) for one in d["attempts"]]


@pytest.mark.parametrize(
    ("name", "key", "change"),
    [
        ("config.json", "steps", lambda d: d.pop("steps")),
        ("config.json", "dataset_size", lambda d: d.update(dataset_size="many")),
        ("config.json", "worlds", lambda d: d.update(worlds=[[0, 3]])),
        ("config.json", "strikes", lambda d: d.update(strikes="ab")),
        ("supervisor.json", "attempts", lambda d: d.update(attempts=3)),
        ("supervisor.json", "wall_s", lambda d: d.update(wall_s=float("nan"))),
        ("supervisor.json", "struck", attempts(lambda one: one.update(struck=[["a"]]))),
        ("supervisor.json", "reached_step", attempts(lambda one: one.update(reached_step="5"))),
    ],
)
def test_documents_that_are_damaged_are_told_with_their_key(
    runs: Path, name: str, key: str, change: Callable[[Row], None]
) -> None:
    change_document(runs / "run", name, change)
    with pytest.raises(
        DataError, match=rf"run/{re.escape(name)}: damaged: (it has no )?(attempts\[0\]\.)?{key}\b"
    ):
        judge(runs / "run")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("rank_1.jsonl", "world_size", "2"),
        ("rank_1.jsonl", "global_step", -1),
        ("rank_1.jsonl", "time", None),
        ("worker_0.jsonl", "pid", "x"),
        ("checkpoint_rank0.jsonl", "error", None),
    ],
)
def test_lines_that_are_damaged_are_told_with_their_number(
    runs: Path, name: str, key: str, value: object
) -> None:
    change_lines(runs / "run", name, lambda rows: [{**rows[0], key: value}, *rows[1:]])
    with pytest.raises(DataError, match=rf"{re.escape(name)}, line 1: damaged: {key} is"):
        judge(runs / "run")


def test_a_folder_is_no_log(runs: Path) -> None:
    (runs / "run" / "rank_1.jsonl").unlink()
    (runs / "run" / "rank_1.jsonl").mkdir()
    with pytest.raises(DataError, match=r"rank_1\.jsonl: Is a directory"):
        judge(runs / "run")


def test_what_people_lay_beside_the_logs_is_none(runs: Path) -> None:
    for name in ("rank_0.old.jsonl", "rank_x.jsonl", "rank_01.jsonl", "worker_.jsonl"):
        (runs / "run" / name).write_text("no JSON\n")
    assert judge(runs / "run") == {}


def test_a_file_that_is_missing_fails_the_gates_that_need_it(runs: Path) -> None:
    (runs / "run" / "final.sha256").unlink()
    assert judge(runs / "run") == dict.fromkeys(
        ("parameters", "artefacts"), "final.sha256 is missing"
    )
