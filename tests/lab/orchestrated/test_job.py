"""The job file of a run, what its ranks are told, and what faults may use of its machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.lab_jobs import SAMPLES, matrix_of

from deepvm.jobs.jobfile import read_job_file
from deepvm.lab.audit.orchestrated import STATE, left_by
from deepvm.lab.faults.fault import FaultTarget
from deepvm.lab.matrix import runs_of
from deepvm.lab.matrix_runner import config_of
from deepvm.lab.orchestrated.control import JobPlace, job_document, write_job
from deepvm.lab.orchestrated.rank import order_of
from deepvm.lab.records import CONFIG
from deepvm.lab.registry import find_fault
from deepvm.lab.running.launcher import Plan


def config(**more: Any) -> dict[str, Any]:
    matrix = matrix_of({"loss": [70]}, **more)
    return config_of(matrix, runs_of(matrix)[0], SAMPLES)


@pytest.mark.parametrize(
    ("more", "count", "anchor"),
    [
        ({}, 2, "none"),
        ({"min_world": 1}, {"min": 1, "max": 2}, "none"),
        ({"variant": "deepvm-tcp"}, 2, {"type", "memory"}),
    ],
)
def test_the_job_file_is_one_that_deepvm_run_reads(
    tmp_path: Path, more: dict[str, Any], count: Any, anchor: Any
) -> None:
    place = JobPlace(tmp_path)
    document = job_document(place, Plan(tmp_path, config(**more)))
    assert document["machines"]["count"] == count
    assert document["anchor"] == anchor or set(document["anchor"]) == anchor
    write_job(place, document)
    found = read_job_file(place.file)
    assert (found.cloud, found.steps, found.step_timeout) == ("local", 300, 15.0)
    assert place.state.stat().st_mode & 0o077 == 0


def test_nothing_of_the_users_own_jobs_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_HISTORY", "postgresql://team/jobs")
    monkeypatch.setenv("DEEPVM_DATA_DIR", "/home/me/deepvm")
    found = JobPlace(tmp_path).environ
    mine = {
        value
        for key, value in found.items()
        if key.startswith(("DEEPVM_", "XDG_")) and key.endswith(("DIR", "HOME"))
    }
    assert "DEEPVM_HISTORY" not in found and all(
        value.startswith(str(tmp_path / STATE)) for value in mine
    )


def test_a_rank_is_told_its_generation_and_meets_no_failure_twice(tmp_path: Path) -> None:
    matrix = matrix_of({"exit": [40, 60]})
    planned = config_of(matrix, runs_of(matrix)[0], SAMPLES)
    (tmp_path / CONFIG).write_text(json.dumps(planned))
    (tmp_path / "worker_1.jsonl").write_text(
        json.dumps({"event": "strike", "key": "exit-40-0"}) + "\n"
    )
    tiers = "tcp://127.0.0.1:5 file:///versions"
    order = order_of(tmp_path, {"DEEPVM_EPOCH": "3", "DEEPVM_TIERS": tiers})
    assert (order.attempt, order.tiers) == (2, ["tcp://127.0.0.1:5"])
    assert [one.key for one in order.strikes] == ["exit-60-0"]


class Taken(FaultTarget):
    """A job of which only is noted what was done to it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, object]] = []
        self.restart_controller = lambda down_s: self.done.append(("restart_controller", down_s))

    def preempt(self, grace_s: float | None) -> None:
        self.done.append(("preempt", grace_s))

    def recommend(self) -> None:
        self.done.append(("recommend", None))


def test_faults_of_machines() -> None:
    for fault, done in [
        ("loss", ("preempt", None)),
        ("notice", ("preempt", 10.0)),
        ("rebalance", ("recommend", None)),
        ("controller", ("restart_controller", 1.0)),
    ]:
        matrix = matrix_of({fault: [70]})
        (strike,) = runs_of(matrix)[0].strikes
        job = Taken()
        find_fault(fault).strike_from_outside(strike, job)
        assert job.done == [done]


OVER = """
import subprocess, sys
from pathlib import Path
from deepvm.io.processes import become_subreaper, end_descendants
from deepvm.lab.orchestrated.control import note_left
from deepvm.lab.orchestrated.control import JobPlace

become_subreaper()
place = JobPlace(Path(sys.argv[1]))
subprocess.run(["sh", "-c", sys.argv[2]])
note_left(place)
assert end_descendants()
"""


@pytest.mark.parametrize(("command", "count"), [("sleep 60 & sleep 60 &", 2), ("true & true", 0)])
def test_what_lives_when_a_job_is_over_is_written_down(
    tmp_path: Path, command: str, count: int
) -> None:
    place = JobPlace(tmp_path)
    place.state.mkdir()
    subprocess.run([sys.executable, "-c", OVER, str(tmp_path), command], check=True, timeout=60)
    assert len(json.loads(place.left.read_bytes())) == count


def test_processes_that_a_job_has_left_are_found_by_their_environment(tmp_path: Path) -> None:
    other = tmp_path / "other"
    words = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(
        words, env={**os.environ, **JobPlace(tmp_path).environ}, stdin=subprocess.PIPE
    )
    try:
        assert left_by(tmp_path) == [process.pid] and left_by(other) == []
    finally:
        process.communicate()
    assert left_by(tmp_path) == []
