"""Logs of a job's machines: whole lines, in the order of time, also of files that come later."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jobs.controllers import JOB, Messages

from deepvm.errors import DataError
from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.history.log_files import FOLDER, LogReader, add_line
from deepvm.jobs.wire import new_secret


def said(reader: LogReader, *, last: bool = False) -> list[str]:
    return [f"{line.machine} {line.text}" for line in reader.more(last=last)]


def test_machines_in_the_order_of_time(tmp_path: Path) -> None:
    for at_s, machine, text in (
        (1.0, "m2", "a"),
        (2.0, "m10", "b"),
        (3.0, "m2", "c"),
        (2.5, "m1", ""),
    ):
        add_line(tmp_path, machine, text, at_s)
    reader = LogReader(tmp_path)
    assert reader.machines() == ["m1", "m2", "m10"]
    assert said(reader) == ["m2 a", "m10 b", "m1 ", "m2 c"]
    assert said(reader) == []
    add_line(tmp_path, "m11", "a file that comes later", 4.0)
    add_line(tmp_path, "m1", "d", 3.5)
    assert said(reader) == ["m1 d", "m11 a file that comes later"]
    assert said(LogReader(tmp_path, "m1")) == ["m1 ", "m1 d"]


def test_a_line_knows_its_process(tmp_path: Path) -> None:
    add_line(tmp_path, "m1", "3 | of a script", 1.0, 12)
    add_line(tmp_path, "m1", "of an older deepvm", 2.0)
    mine, older = LogReader(tmp_path).more()
    assert (mine.rank, mine.text, mine.shown) == (
        "12",
        "3 | of a script",
        "m1/12 | 3 | of a script",
    )
    assert (older.rank, older.shown) == ("", "m1 | of an older deepvm")


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    add_line(tmp_path, "m1", "whole", 1.0)
    file = tmp_path / "logs" / "m1.log"
    with file.open("ab") as stream:
        stream.write(b"1970-01-01T00:00:02.000Z ha")
    reader = LogReader(tmp_path)
    assert said(reader) == ["m1 whole"]
    with file.open("ab") as stream:
        stream.write(b"lf, \xff and bytes that are no text\n1970-01-01T00:00:03.000Z the la")
    assert said(reader) == ["m1 half, \ufffd and bytes that are no text"]
    assert said(reader) == [] and said(reader, last=True) == ["m1 the la"]


def test_lines_of_an_older_version_have_no_time(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "m1.log").write_text("2026-11-26 no stamp of ours\nx\n")
    (line, other) = LogReader(tmp_path).more()
    assert (line.stamp, line.text, other.text) == ("", "2026-11-26 no stamp of ours", "x")


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not here"):
        LogReader(tmp_path / "gone")


def test_a_job_that_has_printed_nothing(tmp_path: Path) -> None:
    assert said(LogReader(tmp_path), last=True) == []


def test_lines_that_could_not_be_written_are_counted(tmp_path: Path) -> None:
    """As on a full disk: training goes on, and the log says what it lacks."""
    spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        world = JobState(JobLimits(1, 1), 1.0, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),))
        job = ControlledJob(JOB, tmp_path, new_secret(), spec)
        controller = Controller(job, world, Messages(), history)  # type: ignore[arg-type]
        (tmp_path / FOLDER).write_text("in the way")
        for line in ("a", "b"):
            controller._line("m1", 0, line)
        (tmp_path / FOLDER).unlink()
        for line in ("c", "d"):
            controller._line("m1", 0, line)
    assert said(LogReader(tmp_path)) == [
        "m1 [2 lines are missing here: File exists]",
        "m1 c",
        "m1 d",
    ]
