"""Machines that hear of no controller: they save, then end themselves, so that nobody pays for what
nobody watches.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # whole jobs


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def orphan(home: Home, name: str, job: Path) -> None:
    """Start a job, kill its controller, and wait until nothing of it runs."""
    process = home.start("run", str(job))
    until(lambda: (home.result / "starts-0").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killed_s = time.monotonic()
    assert home.document("jobs", "orphans")["orphans"]
    until(lambda: not home.processes(), 30)
    assert time.monotonic() - killed_s >= 2
    assert not home.document("jobs", "orphans")["orphans"]


def test_an_orphaned_machine_saves_and_ends(home: Home) -> None:
    job = home.job("left", "exec python own.py 250 0.03;", orphan_after="3s")
    orphan(home, "left", job)
    backups = [
        int(p.name[:12]) for p in (home.jobs / "left" / "versions" / "left" / "backups").glob("0*")
    ]
    assert max(backups) >= 60  # steps of those three seconds are in it
    found = home.document("jobs", "resume", "left")
    assert (found["state"], found["steps"], found["lost_steps"]) == ("done", 250, 0)
    starts = [int(step) for step in (home.result / "starts-0").read_text().split()]
    assert starts == [0, max(backups)]


BULKY = """
import os, sys, time
import deepvm.training as dt

here = os.environ["RESULT"]
latest = dt.latest()
step = int((latest / "step").read_text()) if latest else 0
open(here + "/starts-0", "a").write(f"{step} ")
while step < 200:
    with dt.step_context():
        time.sleep(0.03)
    step += 1
    if dt.check_save():
        mine = f"{here}/mine-{step}"
        os.mkdir(mine)
        open(mine + "/step", "w").write(str(step))
        with open(mine + "/bulk", "w") as bulk:
            bulk.truncate(300_000_000)  # takes a while to check and copy
        dt.backup(mine)
"""


def test_it_ends_when_its_version_is_safe_and_not_when_that_is_begun(home: Home) -> None:
    (home.code / "bulky.py").write_text(BULKY)
    job = home.job("bulky", "exec python bulky.py;", orphan_after="3s", save_policy="static:1000")
    orphan(home, "bulky", job)
    assert list(
        (home.jobs / "bulky" / "versions" / "bulky" / "backups").glob("0*/rank-0/record.json")
    )


def test_an_orphaned_anchor_ends(home: Home) -> None:
    job = home.job(
        "left", "exec python own.py 250 0.03;", orphan_after="3s", anchor={"type": "m7g.large"}
    )
    orphan(home, "left", job)
    found = home.document("jobs", "resume", "left")
    assert (found["state"], found["lost_steps"]) == ("done", 0)
    assert sorted(m["type"] for m in found["machines"]) == ["g4dn.xlarge"] * 2 + ["m7g.large"] * 2


@pytest.mark.parametrize("role", ["trainer", "anchor"])
def test_an_agent_that_never_finds_its_controller_ends(tmp_path: Path, role: str) -> None:
    settings = {
        "machine": "m1",
        "secret": "00",
        "controller": "http://127.0.0.1:9",
        "role": role,
        "orphan_after_s": 1,
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    words = [
        sys.executable,
        "-m",
        "deepvm.jobs.agent.main",
        str(tmp_path / "settings.json"),
        "http://127.0.0.1:9",
    ]
    began = time.monotonic()
    assert subprocess.run(words, timeout=30).returncode == 0
    assert time.monotonic() - began >= 1


def test_a_setup_that_takes_long_makes_no_orphan(home: Home) -> None:
    job = home.job("slow", "exec python own.py 20 0.02;", orphan_after="2s", setup="sleep 4")
    found = home.document("run", str(job))
    assert (found["state"], found["generations"], len(found["machines"])) == ("done", 1, 1)
