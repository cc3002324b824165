"""A test run that is interrupted or killed leaves no processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT
from support.processes import gone, marked, until
from support.reaper import MARK

RUN = """
import subprocess, sys, time
from support.reaper import watch_this_process
watch_this_process()
leaves = 'sleep 600 & echo $! > "$0"/shell; exec setsid sleep 600'
subprocess.Popen(["sh", "-c", leaves, sys.argv[1]], start_new_session=True)
time.sleep(600)
"""
ENDS = [signal.SIGKILL, signal.SIGINT]


def outside() -> dict[str, str]:
    """As the first run has it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != MARK and not name.startswith("PYTEST_")
    }


@pytest.mark.parametrize("number", ENDS)
def test_what_a_run_has_started_ends_with_it(number: signal.Signals, tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], env=outside(), stderr=subprocess.DEVNULL
    )
    place = tmp_path / "shell"
    assert until(lambda: place.exists() and place.read_text().strip(), 20)
    left = int(place.read_text())
    assert not gone(left)
    run.send_signal(number)
    run.wait(20)
    assert until(lambda: gone(left), 20)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", ENDS)
def test_runaways_of_an_interrupted_test_end(
    number: signal.Signals, workers: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "pytest", "-q", f"-n{workers}", f"--basetemp={tmp_path}/base"]
    words.append(f"{ROOT}/tests/jobs/clouds/test_keeper.py::test_many_runaways")
    mark = f"HERE={tmp_path}"
    run = subprocess.Popen(
        words, cwd=ROOT, env={**outside(), "HERE": str(tmp_path)}, stdout=subprocess.DEVNULL
    )
    assert until(lambda: any("daemons.py" in line for line in marked(mark).values()), 60)
    run.send_signal(number)
    run.wait(60)
    assert until(lambda: not marked(mark), 60), marked(mark)
