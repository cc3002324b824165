"""Processes that train: which interpreter they have, and those that wait for their turn."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import until
from support.processes import gone

from deepvm.jobs.agent.trainers import Command, Trainers, _Waiting


class Made:
    """Trainers, and what they have printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.all = folder, list[str](), list[Trainers]()

    def __call__(self, train: str, **env: str) -> Trainers:
        """Their agent's own ``PATH`` is that of a machine which boots."""
        environ = {**os.environ, "PATH": "/usr/bin:/bin"}
        found = Trainers(
            Command(train, 1, env, self.folder), environ, lambda rank, line: self.said.append(line)
        )
        self.all.append(found)
        return found


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    (tmp_path / "who.py").write_text("import sys; print(sys.executable)")
    found = Made(tmp_path)
    yield found
    for trainers in found.all:
        trainers.close()
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # the suite adopts nobody's children


def run(trainers: Trainers) -> int:
    trainers.start([{}])
    code: Any = until(lambda: (trainers.ended(),) if trainers.ended() is not None else None)
    trainers.last_lines()
    return int(code[0])


@pytest.mark.system
def test_python_is_the_interpreter_of_the_agent(made: Made) -> None:
    """On a machine whose image has it in a folder of its own, no ``PATH`` names it."""
    assert run(made("python who.py")) == 0 and made.said == [sys.executable]


@pytest.mark.system
def test_python_is_the_one_that_the_job_names(made: Made, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho mine")
    (tmp_path / "bin" / "python").chmod(0o755)
    assert run(made("python who.py", PATH=f"{tmp_path}/bin")) == 0 and made.said == ["mine"]


@pytest.mark.system
def test_an_interpreter_that_is_not_there_is_said_when_it_is_needed(made: Made) -> None:
    trainers = made("python who.py", PATH="/nowhere")
    trainers.warm_up()
    assert trainers.warm
    with pytest.raises(FileNotFoundError, match="python"):
        trainers.start([{}])


def test_one_that_dies_while_it_waits_is_started_anew(made: Made) -> None:
    """It lives still when it is looked at, and hears nothing any more."""
    trainers, pipe = made("python who.py"), subprocess.PIPE
    words = ["/bin/sh", "-c", "exec 0<&-; echo deaf; exec sleep 60"]
    deaf = subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True)
    assert deaf.stdout is not None and deaf.stdout.readline() == b"deaf\n"
    trainers._warm = [_Waiting(deaf, os.open(os.devnull, os.O_RDONLY))]
    assert run(trainers) == 0 and made.said == [sys.executable]
    assert deaf.wait(10) < 0
    deaf.stdout.close()


@pytest.mark.system
def test_pipes_of_those_that_are_not_ready_are_closed(made: Made) -> None:
    trainers = made("python who.py")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        trainers.warm_up()
        trainers.start([{}])
        trainers.kill()
    trainers.warm_up()
    trainers.close()
    until(lambda: set(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.slow  # it loads torch
def test_one_that_is_told_before_it_is_ready(made: Made) -> None:
    trainers = made("python who.py")
    trainers.warm_up()
    assert not trainers.warm and run(trainers) == 0 and made.said == [sys.executable]


@pytest.mark.system
def test_one_that_was_started_waits_no_more(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether trainers wait is asked by the thread of the heartbeats, at any time."""
    trainers, looks, go_on = made("python who.py"), threading.Event(), threading.Event()
    trainers.warm_up()

    def slowly(_: _Waiting) -> bool:
        looks.set()
        go_on.wait(1.0)
        return False

    monkeypatch.setattr(_Waiting, "is_ready", slowly)
    beats = threading.Thread(target=lambda: trainers.warm)
    beats.start()
    assert looks.wait(5)
    trainers.start([{}])
    go_on.set()
    beats.join()
    assert len(trainers.running) == 1 and not trainers._warm


def test_what_trainers_leave_is_ended_and_nothing_else(made: Made) -> None:
    """What the process has started before, as its own helpers, is no trainer's."""
    before = subprocess.Popen(["sleep", "600"])
    try:
        trainers = made("(setsid sleep 601 & echo $! >stray);")
        assert run(trainers) == 0
        stray = int((made.folder / "stray").read_text())
        assert not gone(stray)
        trainers.kill()
        assert gone(stray) and before.poll() is None
    finally:
        before.kill()
        before.wait()
