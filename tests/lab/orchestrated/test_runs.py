"""Whole runs as jobs of ``deepvm run``: machines are lost, taken back, replaced, and every gate is
passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.lab_jobs import JobRun, matrix_of, run_job
from support.processes import until

from deepvm.lab.audit.orchestrated import STATE, left_by

pytestmark = pytest.mark.slow  # whole jobs


def passes(matrix: Any, out: Path) -> JobRun:
    found = run_job(matrix, out)
    assert not found.failed, found.failed
    assert not left_by(found.folder) and not (found.folder / STATE).exists()
    return found


def test_a_lost_machine_is_replaced(tmp_path: Path) -> None:
    found = passes(matrix_of({"loss": [70]}), tmp_path)
    first, second = found.attempts
    assert (first["state"], first["causes"], first["world"]) == ("failed", ["loss-70-0"], 2)
    assert first["machines"][0] not in second["machines"] and second["resumed_step"] in (40, 60)
    assert first["detect_s"] < 5 and second["restart_s"] > 0 and second["replay_s"] > 0


def test_a_notice_loses_no_step(tmp_path: Path) -> None:
    found = passes(matrix_of({"notice": [70]}), tmp_path)
    first, second = found.attempts
    assert (first["state"], first["causes"]) == ("preempted", ["notice-70-0"])
    assert second["resumed_step"] == first["reached_step"] >= 70
    assert [first["reached_step"], "emergency"] in [row[:2] for row in first["safe"]]


@pytest.mark.parametrize("fault", ["loss", "notice"])
def test_a_job_goes_on_smaller_and_grows_again_bit_for_bit(tmp_path: Path, fault: str) -> None:
    found = passes(matrix_of({fault: [70]}, min_world=1, steps=1200), tmp_path)
    assert [attempt["world"] for attempt in found.attempts] == [2, 1, 2]
    first, second, third = found.attempts
    assert (second["state"], second["causes"]) == ("completed", [])
    assert third["resumed_step"] == second["until"] == second["reached_step"]


def test_versions_in_the_memory_of_another_machine(tmp_path: Path) -> None:
    failures = {"loss": [70], "node": [130], "controller": [170], "rebalance": [220]}
    passes(matrix_of(failures, "deepvm-tcp", steps=400), tmp_path)


@pytest.mark.parametrize(
    ("failures", "causes"),
    [
        ({"kill": {"at": [70], "target": "worker", "rank": 1}}, ["kill-70-1"]),
        ({"kill": {"at": [70], "target": "agent"}}, ["kill-70-0"]),
        ({"kill": {"at": [70], "target": "machine"}}, ["kill-70-0"]),
        ({"exit": [70]}, ["exit-70-0"]),
        ({"flip": [70]}, ["flip-70-0"]),
    ],
)
@pytest.mark.parametrize("variant", ["deepvm", "blk"])
def test_other_failures(
    tmp_path: Path, failures: dict[str, Any], causes: list[str], variant: str
) -> None:
    found = passes(matrix_of(failures, variant), tmp_path)
    assert [attempt["causes"] for attempt in found.attempts] == [causes, []]


PROGRAM = """
import sys
from pathlib import Path
from deepvm.lab.matrix import FORMAT
from deepvm.lab.matrix_runner import MatrixRunner
MatrixRunner(FORMAT.read(Path(sys.argv[1])), Path(sys.argv[2])).run()
"""


def test_nothing_outlives_a_lab_that_is_killed_and_it_resumes(tmp_path: Path) -> None:
    file, out = tmp_path / "matrix.yaml", tmp_path / "out"
    file.write_text(
        yaml.safe_dump(matrix_of({"loss": [70]}).model_dump(mode="json", exclude_unset=True))
    )
    words = [sys.executable, "-c", PROGRAM, str(file), str(out)]
    process = subprocess.Popen(words)
    runs = out / "runs"
    assert until(lambda: list(runs.glob("*/rank_1.jsonl")), 120)
    run = next(runs.glob("*/rank_1.jsonl")).parent
    assert left_by(run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert until(lambda: not left_by(run), 20)
    subprocess.run(words, check=True, timeout=200)
    assert not (run / STATE).exists()
    assert "completed" in (out / "manifest.csv").read_text() and os.listdir(runs)
