"""Logs of an attempt: of several processes and ranks, torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepvm.errors import DataError
from deepvm.lab.certify.attempt import AttemptLog


def line(kind: str, time: float, **more: object) -> str:
    return json.dumps({"kind": kind, "time": time, **more}) + "\n"


def test_lines_of_several_processes_are_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "steps-0-7.jsonl").write_text(
        line("step", 3, n=1) + line("write", 3.5, file="a", n=1)
    )
    (tmp_path / "steps-0-8.jsonl").write_text(
        line("start", 1) + line("step", 2, n=1) + line("step", 4, n=2)
    )
    (tmp_path / "steps-1-9.jsonl").write_text(
        line("step", 1, n=1) + line("write", 2, file="b", n=1)
    )
    (tmp_path / "samples-0-7.jsonl").write_text(
        line("samples", 1, global_step=0) + line("error", 2, why="no")
    )
    (tmp_path / "others.jsonl").write_text("x")
    found = AttemptLog.read(tmp_path)
    assert [row["time"] for row in found.steps[0]] == [2, 3, 4] and len(found.steps[1]) == 1
    assert [row["file"] for row in found.writes] == ["a"] and found.errors == ["no"]
    assert found.progress == found.steps[0]


def test_without_optimizers_samples_are_progress(tmp_path: Path) -> None:
    (tmp_path / "samples-0-7.jsonl").write_text(line("samples", 1, global_step=0))
    assert len(AttemptLog.read(tmp_path).progress) == 1
    assert not AttemptLog.read(tmp_path / "nothing").progress


def test_only_the_last_line_may_be_torn(tmp_path: Path) -> None:
    (tmp_path / "steps-0-7.jsonl").write_text(line("step", 1, n=1) + '{"kind": "st')
    assert len(AttemptLog.read(tmp_path).steps[0]) == 1
    (tmp_path / "steps-0-7.jsonl").write_text('{"kind": "st\n' + line("step", 1, n=1))
    with pytest.raises(DataError, match="line 1: damaged"):
        AttemptLog.read(tmp_path)
