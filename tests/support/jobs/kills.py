"""Kill whatever belongs to a job, in any order, until it has trained to its end all the same."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from support.jobs.runs import Home

import deepvm
from deepvm.io.failpoints import POINTS
from deepvm.jobs.decisions.states import Job, Machine

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
    "trainer": ("chain.py", "train.py", "synced.py"),
    "warm process": ("deepvm.jobs.agent.warm",),
    "memory node": ("memory-node serve",),
}

TORCH = """
import hashlib, os, sys, time
import torch
import torch.distributed as dist
from deepvm.checkpoint import Checkpointer

dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
checkpointer = Checkpointer(model=model, optimizer=optimizer)
for step in range(checkpointer.restore_latest(), int(sys.argv[1])):
    optimizer.zero_grad()
    (model(torch.ones(1, 64) * (step % 7)) ** 2).sum().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
checkpointer.close()
data = b"".join(p.detach().numpy().tobytes() for p in model.module.parameters())
open(f"{os.environ['RESULT']}/final-{dist.get_rank()}", "w").write(hashlib.sha256(data).hexdigest())
"""
"""A training with a Checkpointer whose parameters depend on every step, bit for bit."""

SYNCED = """
import os, sys, time
import torch
import torch.distributed as dist
import deepvm.training as dt

dist.init_process_group("gloo")
latest = dt.latest()
step = int(latest.read_text()) if latest else 0
while step < int(sys.argv[1]):
    with dt.step_context():
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
    step += 1
    if dt.check_save():
        mine = f"{os.environ['RESULT']}/mine-{dist.get_rank()}-{os.environ['DEEPVM_EPOCH']}-{step}"
        open(mine, "w").write(str(step))
        dt.backup(mine)
dist.barrier()
"""
"""Ranks that go in step, each with a backup of its own."""

PRODUCT = Path(deepvm.__file__).parent


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


def points() -> set[str]:
    """All points of the rooms that run jobs: those in the source, and one each side of each change of a state."""
    found = set[str]()
    for file in (PRODUCT / "jobs").rglob("*.py"):
        found |= set(re.findall(r'point\("([\w.-]+)"\)', file.read_text()))
    states = [f"job.{state.value}" for state in Job if state is not Job.PENDING]
    states += [f"machine.{state.value}" for state in Machine]
    found |= {f"{state}.{where}" for state in states for where in ("unwritten", "written")}
    return found | {f"job.{Job.PENDING.value}.begun"}


def arm(home: Home, labels: Iterable[str]) -> Path:
    """Let each of these points kill once; returns the folder of those that have not."""
    folder = home.folder / "points"
    folder.mkdir()
    for label in labels:
        (folder / label).touch()
    home.env[POINTS] = str(folder)
    return folder


def until_it_ends(
    home: Home, job: Path, name: str, limit_s: float, meanwhile: Callable[[], None] = lambda: None
) -> int:
    """Start a job, and go on with it whenever its controller is killed; returns the last exit code."""
    process = home.start("run", str(job))
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        meanwhile()
        time.sleep(0.05)
        if process.poll() is None:
            continue
        said = _end(process)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode in (0, 1, 3), said
            return process.returncode
        begun = b"the name of a job" not in home.run("jobs", "show", name).stderr.encode()
        process = home.start("jobs", "resume", name) if begun else home.start("run", str(job))
    process.kill()
    raise AssertionError(f"the job does not end: {_end(process)!r}")
