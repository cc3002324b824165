"""Trainers that wait: what they become, and when."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.jobs.kills import arm
from support.jobs.runs import Home

from deepvm.jobs.agent import trainers
from deepvm.jobs.agent.trainers import Command, Trainers
from deepvm.jobs.agent.warm import READY, await_first

SCRIPT = """
import gc, os, sys
print(sys.argv[1:], gc.get_freeze_count() > 0, os.environ["MINE"], os.getcwd())
"""


def test_a_waiting_trainer_becomes_a_command(tmp_path: Path) -> None:
    """Its end does not look at all of torch for garbage: what was loaded before is frozen."""
    (tmp_path / "own.py").write_text(SCRIPT)
    order = {
        "env": {**os.environ, "MINE": "yes"},
        "folder": str(tmp_path),
        "words": ["python", "own.py", "a b"],
    }
    code, output, _ = become(order, {})
    assert code == 0 and output == f"['a b'] True yes {tmp_path}\n"


def become(order: dict[str, Any], environ: dict[str, str]) -> tuple[int, str, str]:
    """A waiting trainer's exit code, stdout and stderr as a command."""
    told, tells = os.pipe()
    words = [sys.executable, "-m", "deepvm.jobs.agent.warm", str(tells)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        words,
        env={**os.environ, **environ},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        pass_fds=(tells,),
        text=True,
    )
    os.close(tells)
    with open(told, "rb") as source:
        assert source.read() == READY
    output, errors = process.communicate(json.dumps(order) + "\n", timeout=60)
    return process.returncode, output, errors


CHAINED = """
def train():
    try:
        {}["loss"]
    except KeyError as error:
        raise RuntimeError("no loss") from error
train()
"""
FRAME = '  File "{}", line {}, in {}'


@pytest.mark.parametrize(
    ("script", "code", "start", "last"),
    [
        ("def train():\n    1 / 0\ntrain()", 1, FRAME.format("own.py", 3, "<module>"), "ZeroDiv"),
        (CHAINED, 1, FRAME.format("own.py", 4, "train"), "RuntimeError: no loss"),
        ("raise KeyboardInterrupt", -2, FRAME.format("own.py", 1, "<module>"), "KeyboardInt"),
        ("x = = 1", 1, '  File "{folder}/own.py", line 1', "SyntaxError: invalid syntax"),
        ("raise SystemExit(7)", 7, "", ""),
        ("raise SystemExit('no data')", 1, "no data", "no data"),
    ],
)
def test_a_failure_shows_the_scripts_own_frames_first(
    script: str, code: int, start: str, last: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(script)
    (tmp_path / "torch.py").write_text("raise ImportError")  # loads sooner
    order = {"env": {}, "folder": str(tmp_path), "words": ["python", "own.py"]}
    returned, _, errors = become(order, {"PYTHONPATH": str(tmp_path)})
    assert returned == code and "runpy" not in errors and "warm.py" not in errors, errors
    lines = errors.splitlines() or [""]
    shown = [line for line in lines if line != "Traceback (most recent call last):"]
    assert shown[0].replace(f"{tmp_path}/", "") == start.replace("{folder}/", ""), errors
    assert lines[-1].startswith(last)


def test_a_module_that_is_missing_has_no_frames_of_runpy(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    for module, cause in (("mine", ""), ("mine.train", "No module named 'mine'")):
        order = {"env": {}, "folder": str(tmp_path), "words": ["python", "-m", module]}
        code, _, errors = become(order, {"PYTHONPATH": str(tmp_path)})
        assert code == 1 and "No module named" in errors and cause in errors
        assert "runpy" not in errors and "warm.py" not in errors, errors


def test_ranks_begin_when_rank_0_listens() -> None:
    """Torch tries again half a second after a connection was refused.

    Nobody waits for long, or for itself.
    """
    for rank, listens_after_s, least_s, most_s in [
        (1, 0.2, 0.2, 0.4),
        (1, None, 0.4, 10.0),
        (0, None, 0.0, 0.2),
    ]:
        took_s = []
        for _ in range(3):
            with socket.socket() as first:
                first.bind(("127.0.0.1", 0))
                timer = threading.Timer(listens_after_s or 0.0, first.listen)
                began = time.monotonic()
                if listens_after_s is not None:
                    timer.start()
                port = str(first.getsockname()[1])
                await_first({"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
                took_s.append(time.monotonic() - began)
                timer.cancel()
        assert min(took_s) >= least_s
        assert min(took_s) <= most_s  # the fastest: others use this machine


@pytest.mark.slow
def test_one_that_is_killed_before_its_turn_is_replaced(tmp_path: Path) -> None:
    """Without it the machine could never train, and would be given up after 15 minutes."""
    home = Home(tmp_path)
    try:
        folder = arm(home, ["warm.loaded"])
        done = home.run("run", str(home.job("waits", "python own.py 5 0.01")), limit_s=90)
        assert done.returncode == 0, done.stderr
        assert not list(folder.iterdir())
    finally:
        home.end()


@pytest.mark.slow
def test_a_command_that_is_nowhere_ends_the_job(tmp_path: Path) -> None:
    """One machine after the other would be paid for, else."""
    home = Home(tmp_path)
    try:
        job = home.job(
            "nowhere", "python own.py 5 0.01", env={"PATH": "/nowhere", "RESULT": str(home.result)}
        )
        done = home.run("run", str(job), limit_s=60)
        assert (
            done.returncode == 1 and "command not found: 'python', PATH=/nowhere" in done.stderr
        ), done
        assert len(home.document("jobs", "show", "nowhere")["machines"]) == 1
    finally:
        home.end()


@pytest.mark.system
def test_waiting_trainers_that_die_leave_no_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats ask whether they wait while the loop starts them."""
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\nexit 1\n")
    dies.chmod(0o755)
    monkeypatch.setattr(trainers, "_python", lambda name, env: str(dies))
    found = Trainers(Command("python own.py", 2, {}, tmp_path), os.environ, lambda rank, line: None)
    wrong, over = list[Exception](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                assert not found.warm
            except Exception as error:
                wrong.append(error)

    asks = threading.Thread(target=ask)
    asks.start()
    found.warm_up()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        found.warm_up()
        time.sleep(0.005)
    over.set()
    asks.join()
    found.close()
    assert not wrong, wrong[0]
    assert len(os.listdir("/proc/self/fd")) <= before
