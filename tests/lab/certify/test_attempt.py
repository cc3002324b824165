"""Attempts of scripts that log steps: where they are killed, how they end, leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import marked, until

from deepvm.lab.certify.attempt import Attempt, KillPoint, Row, Subject, Trigger, run_attempt

TRAIN = """
import os, subprocess, sys, time
from deepvm.lab.certify.probe import SampleLog
log = SampleLog()

"""


def attempt(
    folder: Path, code: str, trigger: Trigger | None = None, limit_s: float = 30.0
) -> Attempt:
    script = folder / "train.py"
    script.write_text(f"# DEEPVM_AUDIT_DIR{TRAIN}{code}")
    subject, run = Subject(script), folder / "run"
    subject.prepare(run)
    return run_attempt(subject, run, 0, trigger, limit_s)


def after(steps: int, delay_s: float = 0.0, limit: int = 1000) -> Trigger:
    return Trigger("samples", lambda first: KillPoint(steps, delay_s, limit))


FAST = "for step in range(10000):\n    log.step(step, [])\n"
LONG = FAST + "    time.sleep(0.02)\n"


@pytest.mark.system
def test_it_is_killed_at_its_step(tmp_path: Path) -> None:
    """However fast the steps are, and however late anybody looks from outside."""
    found = attempt(tmp_path, FAST, after(5))
    assert (found.state, found.code, found.left) == ("killed", -9, 0)
    assert len(found.logged.progress) == 5


@pytest.mark.system
def test_the_delay_counts_from_there(tmp_path: Path) -> None:
    found = attempt(tmp_path, LONG, after(5, delay_s=0.5))
    assert found.state == "killed" and len(found.logged.progress) > 5


@pytest.mark.system
def test_the_delay_ends_with_the_last_step_that_may_be_made(tmp_path: Path) -> None:
    found = attempt(tmp_path, FAST, after(5, delay_s=60, limit=7))
    assert found.state == "killed" and len(found.logged.progress) == 7


@pytest.mark.system
def test_the_first_line_says_how_many_are_to_come(tmp_path: Path) -> None:
    asked = []

    def point(first: Row) -> KillPoint:
        asked.append(first["global_step"])
        return KillPoint(3, 0.0, 3)

    found = attempt(
        tmp_path, LONG.replace("log.step(step", "log.step(step + 70"), Trigger("samples", point)
    )
    assert asked == [70] and len(found.logged.progress) == 3


@pytest.mark.system
def test_another_rank_than_the_first_is_not_counted(tmp_path: Path) -> None:
    code = "os.environ['RANK'] = '1'\n" + FAST.replace("10000", "20")
    assert attempt(tmp_path, code, after(5)).state == "ended"


@pytest.mark.system
def test_processes_in_sessions_of_their_own_are_killed_too(tmp_path: Path) -> None:
    """Also one that has lost its parent, as torchrun's workers have when their agent is killed."""
    sleeper = f"[sys.executable, '-c', 'import time; time.sleep(60)', {str(tmp_path)!r}]"
    orphan = f"import subprocess, sys; subprocess.Popen({sleeper}, start_new_session=True)"
    code = (
        f"subprocess.Popen({sleeper}, start_new_session=True)\nsubprocess.run([sys.executable,"
        f" '-c', {orphan!r}])\n"
    )
    assert attempt(tmp_path, code + LONG, after(2)).left == 0
    assert not marked(str(tmp_path))


@pytest.mark.system
def test_nothing_of_one_that_has_ended_is_left(tmp_path: Path) -> None:
    code = (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)',"
        f" {str(tmp_path)!r}])\n"
    )
    assert attempt(tmp_path, code).state == "ended"
    assert not marked(str(tmp_path))


@pytest.mark.system
@pytest.mark.parametrize("trigger", [None, after(5)])
def test_one_that_ends_before_it_is_killed_has_ended(
    tmp_path: Path, trigger: Trigger | None
) -> None:
    found = attempt(tmp_path, "log.step(0, [])\nprint('done')\n", trigger)
    assert (found.state, found.code, len(found.logged.progress), found.last_lines) == (
        "ended",
        0,
        1,
        "",
    )
    assert (tmp_path / "run" / "output-0.txt").read_text() == "done\n"


@pytest.mark.system
def test_one_that_fails_tells_its_last_lines(tmp_path: Path) -> None:
    found = attempt(
        tmp_path,
        "for n in range(100):\n    print(n, flush=True)\nsys.exit('ValueError: no')\n",
        after(5),
    )
    assert (found.state, found.code) == ("failed", 1)
    assert (
        found.last_lines.splitlines()[-2:] == ["99", "ValueError: no"]
        and "\n84" not in found.last_lines
    )


@pytest.mark.system
def test_one_that_takes_too_long_hangs(tmp_path: Path) -> None:
    found = attempt(tmp_path, "log.step(0, [])\ntime.sleep(60)\n", after(5), limit_s=1.5)
    assert found.state == "hung" and found.wall_s < 20


@pytest.mark.system
def test_of_two_that_kill_at_once_one_does(tmp_path: Path) -> None:
    """As two ranks that write their checkpoints at the same time: they must not stop each other for
    ever.
    """
    code = """from deepvm.lab.certify.probe import Killer
log.step(0, [])
os.fork()
while time.time() < START:
    pass
Killer(os.environ["DEEPVM_AUDIT_LOG"], "").kill(os.path.join(os.environ["DEEPVM_AUDIT_DIR"], "a", "b.pt"))
"""  # noqa: E501
    for place in range(3):
        folder = tmp_path / str(place)
        folder.mkdir()
        found = attempt(folder, code.replace("START", str(time.time() + 2)), Trigger("write"))
        assert (found.state, found.torn_file, found.left) == ("killed", "a/b.pt", 0)


@pytest.mark.parametrize("how", ["group", "audit"])
def test_nothing_is_left_of_an_audit_that_is_killed_itself(tmp_path: Path, how: str) -> None:
    """Workers in sessions of their own, as torchrun starts them, that no signal to the audit
    reaches.
    """
    sleeper = f"[sys.executable, '-c', 'import time; time.sleep(60)', {str(tmp_path)!r}]"
    code = f"subprocess.Popen({sleeper}, start_new_session=True)\n{LONG}"
    (tmp_path / "train.py").write_text(f"# DEEPVM_AUDIT_DIR\n{TRAIN}{code}")
    audit = f"""from pathlib import Path
from deepvm.lab.certify.certifier import certify
from deepvm.lab.certify.attempt import Subject
certify(Subject(Path({str(tmp_path / "train.py")!r})), out=Path({str(tmp_path / "out")!r}))"""
    process = subprocess.Popen([sys.executable, "-c", audit], start_new_session=True)
    try:
        mark = f"DEEPVM_AUDIT_LOG={tmp_path / 'out' / 'undisturbed-1' / 'log-0'}"
        assert until(lambda: len(marked(mark)) >= 2, 60)
    finally:
        (os.killpg if how == "group" else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
    assert until(lambda: not marked(mark), 20)


@pytest.mark.system
def test_what_it_is_told(tmp_path: Path) -> None:
    code = (
        "print(os.environ['DEEPVM_AUDIT_DIR'], os.environ.get('DEEPVM_AUDIT_KILL'), os.getcwd())\n"
    )
    attempt(tmp_path, code, Trigger("write"))
    shown = (tmp_path / "run" / "output-0.txt").read_text().split()
    assert shown == [str(tmp_path / "run" / "out"), "write", str(Path.cwd())]


def test_words_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    subject = Subject(script, ["--out", "{out}/x"], ["--resume"], processes=2)
    first, later = (subject.command(tmp_path / "run", resumes=resumes) for resumes in (False, True))
    assert first[1:3] == ["-m", "torch.distributed.run"] and "--nproc-per-node=2" in first
    assert first[-3:] == [str(script), "--out", str(tmp_path / "run" / "out" / "x")]
    assert later == [*first, "--resume"]
