"""Attempts of scripts that log a line now and then: when they are killed, how they end, what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import marked

from deepvm.lab.certify.attempt import Attempt, Trigger, run_attempt
from deepvm.lab.certify.subject import Subject

TRAIN = """
import json, os, subprocess, sys, time
log = open(os.path.join(os.environ["DEEPVM_AUDIT_LOG"], f"samples-0-{os.getpid()}.jsonl"), "a", buffering=1)

def say(step, kind="samples", **more):
    row = {"kind": kind, "step": step, "epoch": 0, "ids": [], "loss": None, "time": time.time(), **more}
    log.write(json.dumps(row) + "\\n")

"""


def attempt(folder: Path, code: str, trigger: Trigger | None = None, limit_s: float = 30.0) -> Attempt:
    script = folder / "train.py"
    script.write_text(f"# DEEPVM_AUDIT_DIR{TRAIN}{code}")
    subject, run = Subject(script), folder / "run"
    subject.prepare(run)
    return run_attempt(subject, run, 0, trigger, limit_s)


def after(steps: int, delay_s: float = 0.0) -> Trigger:
    return Trigger("step", lambda first: steps, delay_s, counts="samples")


LONG = "for step in range(1000):\n    say(step)\n    time.sleep(0.02)\n"


def test_it_is_killed_behind_its_step(tmp_path: Path) -> None:
    found = attempt(tmp_path, LONG, after(5))
    assert (found.state, found.code, found.left) == ("killed", -9, 0)
    assert 5 <= len(found.logged.progress) < 20


def test_the_delay_counts_from_there(tmp_path: Path) -> None:
    found = attempt(tmp_path, LONG, after(5, delay_s=0.5))
    assert len(found.logged.progress) > 15


def test_the_first_line_says_how_many_are_to_come(tmp_path: Path) -> None:
    asked = []

    def steps(first: dict[str, object]) -> int:
        asked.append(first["step"])
        return 3

    attempt(tmp_path, LONG.replace("say(step)", "say(step + 70)"), Trigger("step", steps, counts="samples"))  # type: ignore[arg-type]
    assert set(asked) == {70}


def test_processes_in_sessions_of_their_own_are_killed_too(tmp_path: Path) -> None:
    """Also one that has lost its parent, as torchrun's workers have when their agent is killed."""
    sleeper = f"[sys.executable, '-c', 'import time; time.sleep(60)', {str(tmp_path)!r}]"
    orphan = f"import subprocess, sys; subprocess.Popen({sleeper}, start_new_session=True)"
    code = f"subprocess.Popen({sleeper}, start_new_session=True)\nsubprocess.run([sys.executable, '-c', {orphan!r}])\n"
    assert attempt(tmp_path, code + LONG, after(2)).left == 0
    assert not marked(str(tmp_path))


def test_nothing_of_one_that_has_ended_is_left(tmp_path: Path) -> None:
    code = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {str(tmp_path)!r}])\n"
    assert attempt(tmp_path, code).state == "ended"
    assert not marked(str(tmp_path))


@pytest.mark.parametrize("trigger", [None, after(5)])
def test_one_that_ends_before_it_is_killed_has_ended(tmp_path: Path, trigger: Trigger | None) -> None:
    found = attempt(tmp_path, "say(0)\nprint('done')\n", trigger)
    assert (found.state, found.code, len(found.logged.progress), found.last_lines) == ("ended", 0, 1, "")
    assert (tmp_path / "run" / "output-0.txt").read_text() == "done\n"


def test_one_that_fails_tells_its_last_lines(tmp_path: Path) -> None:
    found = attempt(tmp_path, "for n in range(100):\n    print(n, flush=True)\nsys.exit('ValueError: no')\n", after(5))
    assert (found.state, found.code) == ("failed", 1)
    assert found.last_lines.splitlines()[-2:] == ["99", "ValueError: no"] and "\n84" not in found.last_lines


def test_one_that_takes_too_long_hangs(tmp_path: Path) -> None:
    found = attempt(tmp_path, "say(0)\ntime.sleep(60)\n", after(5), limit_s=1.5)
    assert found.state == "hung" and found.wall_s < 20


def test_one_that_waits_in_a_write_is_killed_there(tmp_path: Path) -> None:
    path = tmp_path / "run" / "out" / "a" / "b.pt"
    found = attempt(tmp_path, f"say(0)\nsay(1, 'held', file={str(path)!r})\ntime.sleep(60)\n", Trigger("write"))
    assert (found.state, found.held) == ("killed", "a/b.pt")


def test_what_it_is_told(tmp_path: Path) -> None:
    code = "print(os.environ['DEEPVM_AUDIT_DIR'], os.environ.get('DEEPVM_AUDIT_HOLD'), os.getcwd())\n"
    attempt(tmp_path, code, Trigger("write", hold_after=3, skip=2))
    said = (tmp_path / "run" / "output-0.txt").read_text().split()
    assert said == [str(tmp_path / "run" / "out"), "3:2", str(Path.cwd())]


def test_words_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    subject = Subject(script, ["--out", "{out}/x"], ["--resume"], processes=2)
    first, later = (subject.command(tmp_path / "run", resumes=resumes) for resumes in (False, True))
    assert first[1:3] == ["-m", "torch.distributed.run"] and "--nproc-per-node=2" in first
    assert first[-3:] == [str(script), "--out", str(tmp_path / "run" / "out" / "x")]
    assert later == [*first, "--resume"]
