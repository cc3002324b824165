"""One attempt of a script: start it, watch its log, kill all of its processes, leave none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deepvm.io.process_tree import follow_parent
from deepvm.lab.certify import probe
from deepvm.lab.certify.logs import Logged, Tail
from deepvm.lab.certify.subject import Subject

_LOOK_S, _GONE_S = 0.001, 30.0
_TAIL_LINES, _TAIL_BYTES = 15, 20_000
State = Literal["ended", "failed", "killed", "hung"]


@dataclass(frozen=True)
class Attempt:
    """What an attempt has been.

    Attributes:
        state: how it ended; ``killed`` by us. code: its exit code. held: the file in whose write it was killed.
            left: processes that could not be killed.
    """

    number: int
    state: State
    code: int
    wall_s: float
    logged: Logged
    last_lines: str = ""
    held: str = ""
    left: int = 0


@dataclass(frozen=True)
class Trigger:
    """When an attempt is to be killed.

    Attributes:
        kind: after a step, or in a write. steps: lines that must have been logged in the attempt, given the first
            one, which tells where it goes on. delay_s: from then on. hold_after: steps of the attempt before the write.
            skip: writes to let pass then. counts: the kind of the lines that are counted.
    """

    kind: Literal["step", "write"]
    steps: Callable[[Mapping[str, Any]], int] = lambda first: 1
    delay_s: float = 0.0
    hold_after: int = 0
    skip: int = 0
    counts: Literal["step", "samples"] = "step"

    @property
    def hold(self) -> str:
        """As the probe reads it."""
        return f"{self.hold_after}:{self.skip}" if self.kind == "write" else ""


def run_attempt(subject: Subject, run: Path, number: int, trigger: Trigger | None, limit_s: float) -> Attempt:
    """Run the script until it ends, or is killed as ``trigger`` says. Leaves no process, whatever is raised."""
    logs = run / f"log-{number}"
    logs.mkdir()
    parent, began = os.getpid(), time.monotonic()
    with (run / f"output-{number}.txt").open("wb") as output:
        process = subprocess.Popen(
            subject.command(run, resumes=number > 0),
            cwd=subject.folder(run),
            env=subject.environment(run, logs, trigger.hold if trigger is not None else ""),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: follow_parent(parent, signal.SIGKILL),
        )
    state: State = "hung"
    held = ""
    try:
        state, held = _watch(process, Tail(logs), trigger, began + limit_s)
        held = held.removeprefix(f"{run / 'out'}{os.sep}")
        ended = process.poll()
        if state == "killed" and ended is not None:  # by itself, before it could be killed
            state = "ended" if ended == 0 else "failed"
    finally:
        left = kill_all(process, logs)
    code = process.wait()
    text = _last_lines(run / f"output-{number}.txt") if state in ("failed", "hung") else ""
    return Attempt(number, state, code, time.monotonic() - began, Logged.read(logs), text, held, left)


def _watch(process: subprocess.Popen[bytes], tail: Tail, trigger: Trigger | None, until_s: float) -> tuple[State, str]:
    """Watch until it ends or is to be killed; in which write."""
    first: dict[str, Any] | None = None
    done = 0
    while True:
        code = process.poll()
        for rank, line in tail.new() if trigger is not None else ():
            row = json.loads(line)
            if row["kind"] == "held":
                return "killed", row["file"]
            if trigger is not None and not rank:
                if first is None and row["kind"] == ("start" if trigger.counts == "step" else "samples"):
                    first = row
                done += row["kind"] == trigger.counts
        if code is not None:
            return ("ended" if code == 0 else "failed"), ""
        if trigger is not None and trigger.kind == "step" and first is not None and done >= trigger.steps(first):
            time.sleep(trigger.delay_s)
            return "killed", ""
        if time.monotonic() > until_s:
            return "hung", ""
        time.sleep(_LOOK_S if trigger is not None else 0.01)


def kill_all(process: subprocess.Popen[bytes], logs: Path) -> int:
    """Kill all processes of an attempt with SIGKILL; how many still live.

    They are known by a variable in their environment: torchrun's workers have sessions of their own, and those that
    have lost their parents are found, too. What is stopped starts no others.
    """
    known = set[int]()
    while new := _processes_of(logs) - known:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        known |= new
    until_s = time.monotonic() + _GONE_S
    while True:
        for pid in _processes_of(logs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                process.kill()
        process.wait()
        left = _processes_of(logs)
        if not left or time.monotonic() > until_s:
            return len(left)
        time.sleep(0.01)


def _processes_of(logs: Path) -> set[int]:
    marker = f"{probe.LOG}={logs}".encode()
    found = set[int]()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's; zombies have no environment
                if marker in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
    return found


def _last_lines(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
