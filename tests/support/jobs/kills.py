"""Kill whatever belongs to a job, in any order, until it has trained to its end all the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from support.jobs.runs import Home

CHAIN = """
import hashlib, os, sys, time
import deepvm.training as dt

here, steps = os.environ["RESULT"], int(sys.argv[1])
rank = os.environ.get("RANK", "0")
latest = dt.latest()
step, state = latest.read_text().split() if latest else (0, "")
step = int(step)
while step < steps:
    with dt.step_context():
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        time.sleep(0.02)
    step += 1
    if dt.check_save():
        mine = f"{here}/mine-{rank}-{os.environ['DEEPVM_EPOCH']}-{step}"
        open(mine, "w").write(f"{step} {state}")
        dt.backup(mine)
open(f"{here}/final-{rank}", "w").write(state)
"""
"""A training whose result depends on every step, once and in order."""

VICTIMS = {
    "controller": ("deepvm.cli.main run", "deepvm.cli.main jobs resume"),
    "agent": ("deepvm.jobs.agent.main",),
    "machine": ("deepvm.jobs.clouds.local_machine",),
    "trainer": ("chain.py",),
}


def final_of(steps: int) -> str:
    """The result of an undisturbed training."""
    import hashlib

    state = ""
    for step in range(steps):
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
    return state


def processes(home: Home, kind: str) -> list[int]:
    """Of one kind, by their command lines."""
    found = []
    for pid in home.processes():
        with contextlib.suppress(OSError):
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if any(text in words for text in VICTIMS[kind]) and "unshare" not in words and "/bin/sh" not in words:
                found.append(pid)
    return found


def campaign(home: Home, job: Path, name: str, seed: int, kills: int, limit_s: float = 240.0) -> list[str]:
    """Start a job and kill; returns what was killed. The job is resumed each time its controller is gone."""
    rng = random.Random(seed)
    process, killed = home.start("run", str(job)), list[str]()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        time.sleep(rng.uniform(0.2, 2.5))
        if process.poll() is not None:
            said = _end(process)
            if process.returncode == 0:
                return killed
            begun = b"the name of a job" not in said  # else it was killed before it had written the job down
            assert process.returncode in (-9, 4) or not begun, (process.returncode, said, killed)
            process = home.start("jobs", "resume", name) if begun else home.start("run", str(job))
            continue
        if len(killed) >= kills:
            continue
        kind = rng.choice(list(VICTIMS))
        found = processes(home, kind)
        if found:
            killed.append(kind)
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)
    raise AssertionError(f"the job does not end; killed: {killed}")


def _end(process: subprocess.Popen[bytes]) -> bytes:
    _, said = process.communicate()
    return said[-2000:]
