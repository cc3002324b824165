"""One attempt of a script: start it, kill it at the chosen point, leave no process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from deepvm.io.process_tree import follow_parent
from deepvm.lab.certify import probe
from deepvm.lab.certify.disk_room import check_room, log_incomplete
from deepvm.lab.certify.logs import AttemptLog, Row
from deepvm.lab.certify.subject import Subject
from deepvm.lab.records import last_lines

_POLL_S = 0.001
_IDLE_POLL_S = 0.01
_TAIL_LINES = 15
State = Literal["ended", "failed", "killed", "hung"]


@dataclass(frozen=True)
class Attempt:
    """What an attempt has been.

    Attributes:
        state: how it ended; ``killed`` by us. code: its exit code. torn_file: the file in whose
            write it was killed.
            left: processes that could not be killed.
    """

    number: int
    state: State
    code: int
    wall_s: float
    logged: AttemptLog
    last_lines: str = ""
    torn_file: str = ""
    left: int = 0


@dataclass(frozen=True)
class KillPoint:
    """``after`` steps of the attempt and ``delay_s``, or when ``limit`` steps are made.

    Of a write: in the first one ``after`` so many steps, but for ``skip`` others.
    """

    after: int
    delay_s: float
    limit: int
    skip: int = 0


@dataclass(frozen=True)
class Trigger:
    """When an attempt is to be killed.

    Attributes:
        kind: after a step of an optimizer, after samples that the script has logged, or in a write.
        point: given the first line of the attempt, which tells where it continues.
    """

    kind: Literal["step", "samples", "write"]
    point: Callable[[Row], KillPoint] = lambda first: KillPoint(1, 0.0, 1)


def run_attempt(
    subject: Subject, run: Path, number: int, trigger: Trigger | None, limit_s: float
) -> Attempt:
    """Run the script until it ends, or is killed as ``trigger`` says.

    Leaves no process, also after an error.

    Raises:
        DataError: the folder of the audit is full, so that a failure says nothing of the script.
        OSError: another fault of that folder.
    """
    logs = run / f"log-{number}"
    logs.mkdir()
    (logs / probe.COMPLETE).touch()
    parent = os.getpid()
    began = time.monotonic()
    with (run / f"output-{number}.txt").open("wb") as output:
        process = subprocess.Popen(
            subject.command(run, resumes=number > 0),
            cwd=subject.folder(run),
            env=subject.environment(run, logs, trigger.kind if trigger is not None else ""),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: follow_parent(parent, signal.SIGKILL),
        )
    state: State = "hung"
    try:
        state = _watch(process, logs, trigger, began + limit_s)
    finally:
        left = kill_all(process, logs)
    code = process.wait()
    if state == "killed" and code != -signal.SIGKILL:  # it has ended by itself before
        state = "ended" if code == 0 else "failed"
    text = ""
    if state in ("failed", "hung"):
        check_room(run.parent)
        text = "\n".join(last_lines(run / f"output-{number}.txt", _TAIL_LINES))
    torn = ""
    if state == "killed":
        torn = json.loads((logs / probe.KILLED).read_text())["file"]
    torn = torn.removeprefix(f"{run / 'out'}{os.sep}")
    return Attempt(
        number, state, code, time.monotonic() - began, AttemptLog.read(logs), text, torn, left
    )


def _watch(
    process: subprocess.Popen[bytes], logs: Path, trigger: Trigger | None, until_s: float
) -> State:
    """Watch until it has ended or killed itself, and tell it where to do that when it asks."""
    asked = trigger is not None
    while True:
        code = process.poll()
        if not (logs / probe.COMPLETE).exists():
            raise log_incomplete(logs.parent.parent)
        if (logs / probe.KILLED).exists():
            return "killed"
        if code is not None:
            if code == 0:
                return "ended"
            return "failed"
        if asked and trigger is not None and (logs / probe.FIRST).exists():
            point = trigger.point(json.loads((logs / probe.FIRST).read_text()))
            probe.write_whole(str(logs / probe.POINT), asdict(point))
            asked = False
        if time.monotonic() > until_s:
            return "hung"
        time.sleep(_POLL_S if asked else _IDLE_POLL_S)


def kill_all(process: subprocess.Popen[bytes], logs: Path) -> int:
    """Kill all processes of an attempt with SIGKILL; how many still live."""
    left = probe.kill_processes(str(logs))
    process.kill()
    process.wait()
    return left


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Kill all processes whose logs are below a folder when this process ends, even by SIGKILL.

    A process of its own waits for that. PR_SET_PDEATHSIG in each process of the script would not
    do: it kills when the *thread* that has started a process ends, so a script that starts workers
    from a thread would be disturbed, and programs that load no probe would be left.
    """
    command = [sys.executable, "-I", "-S", str(Path(probe.__file__).resolve()), str(folder)]
    guard = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C, and a kill of this process group, are not for it
    )
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait()
