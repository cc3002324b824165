"""Trainings whose results show each step, points that kill, and what must hold of a job whatever
was killed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import MEET, Home, until

import deepvm
from deepvm.io.failpoints import POINTS
from deepvm.jobs.clouds.netns import _bridge, _space
from deepvm.jobs.decisions.states import Job, Machine

CHAIN = (
    MEET
    + """
import hashlib, os, sys, time
import deepvm.training as dt

here, steps = os.environ["RESULT"], int(sys.argv[1])
rank, epoch = os.environ.get("RANK", "0"), os.environ["DEEPVM_EPOCH"]
latest = dt.latest()
step, saved_by, state = latest.read_text().split(" ") if latest else (0, 0, "")
step = int(step)
open(f"{here}/restored-{rank}", "a").write(f"{epoch} {step} {saved_by}\\n")
while step < steps:
    with dt.step_context():
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        time.sleep(0 if os.path.exists(f"{here}/hurry") else 0.02)
    step += 1
    if dt.check_save():
        mine = f"{here}/mine-{rank}-{epoch}-{step}"
        open(mine, "w").write(f"{step} {epoch} {state}")
        dt.backup(mine)
        open("kept.txt", "w").write(state)
open("kept.txt", "w").write(state)
open(f"{here}/final-{rank}", "w").write(state)
"""
)
"""A training whose result depends on every step, once and in order; ``kept.txt`` is its output."""

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
here, epoch = os.environ["RESULT"], os.environ["DEEPVM_EPOCH"]


class SavedBy:  # the generation that has saved what is restored
    epoch = "0"

    def state_dict(self):
        return {"epoch": epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


saved_by = SavedBy()
checkpointer = Checkpointer(model=model, optimizer=optimizer, extra={"saved by": saved_by})
first = checkpointer.restore_latest()
open(f"{here}/restored-{dist.get_rank()}", "a").write(f"{epoch} {first} {saved_by.epoch}\\n")
for step in range(first, int(sys.argv[1])):
    optimizer.zero_grad()
    (model(torch.ones(1, 64) * (step % 7)) ** 2).sum().backward()
    optimizer.step()
    time.sleep(0 if os.path.exists(f"{here}/hurry") else float(sys.argv[2]))
checkpointer.close()
data = b"".join(p.detach().numpy().tobytes() for p in model.module.parameters())
open(f"{here}/final-{dist.get_rank()}", "w").write(hashlib.sha256(data).hexdigest())
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
MUTATIONS = Path(__file__).parent / "mutations"


def final_of(steps: int) -> str:
    """The result of an undisturbed training."""
    import hashlib

    state = ""
    for step in range(steps):
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
    return state


def said_by(process: subprocess.Popen[bytes]) -> bytes:
    """What a process that has ended said last."""
    _, said = process.communicate()
    return said[-2000:]


def points() -> set[str]:
    """All points of the rooms that run jobs: those in the source, and one each side of each change
    of a state.
    """
    found = set[str]()
    for file in (PRODUCT / "jobs").rglob("*.py"):
        found |= set(re.findall(r'point\("([\w.-]+)"\)', file.read_text()))
    states = [f"job.{state.value}" for state in Job if state is not Job.PENDING]
    states += [f"machine.{state.value}" for state in Machine]
    found |= {f"{state}.{where}" for state in states for where in ("unwritten", "written")}
    return found | {f"job.{Job.PENDING.value}.begun"}


def nothing_is_left(home: Home, name: str) -> dict[str, Any]:
    """Check that a job has left no process, machine or network, counts its money once, and saw
    nothing stale.
    """
    assert until(lambda: not home.processes(), 15)
    assert not home.document("jobs", "orphans")["orphans"]
    assert not networks(name)
    assert not stale(home, name)
    found = home.document("jobs", "show", name)
    assert found["cost_usd"] == pytest.approx(sum(m["usd"] for m in found["machines"]), abs=1e-7)
    places = {
        p.name for p in (home.jobs / name / "machines").iterdir() if (p / "machine.json").exists()
    }
    assert (
        {m["id"] for m in found["machines"] if m["usd"]}
        <= places
        <= {m["id"] for m in found["machines"]}
    )
    return found


def networks(name: str) -> list[Path]:
    """The network namespaces of a job on the cloud netns, and its switch."""
    spaces = Path("/run/netns").glob(f"{_space(name, '')}*")
    return [*spaces, *Path("/sys/class/net").glob(_bridge(name))]


def stale(home: Home, name: str) -> list[str]:
    """What an older generation has made visible after a newer one had looked for versions.

    Trainings write down their generation, the step that they go on from, and the generation that
    saved it.
    """
    found = []
    for place in sorted(home.result.glob("restored-*")):
        rows = [tuple(map(int, line.split())) for line in place.read_text().splitlines()]
        seen = [
            (step, saved_by, f"generation {epoch} goes on from") for epoch, step, saved_by in rows
        ]
        if place.name == "restored-0":
            folders = (home.jobs / name / "versions" / name / "backups").glob("0*/whole.json")
            seen += [(*map(int, f.parent.name.split("-")), "there is") for f in folders]  # type: ignore[misc]
        for epoch, step, _ in rows:
            found += [
                f"{place.name}: {who} {later} of generation {saved_by}, and generation {epoch}"
                f" found only {step}"
                for later, saved_by, who in seen
                if saved_by < epoch and later > step
            ]
    return found


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
    """Start a job, and go on with it whenever its controller is killed.

    Returns the last exit code.
    """
    process = home.start("run", str(job))
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        meanwhile()
        time.sleep(0.05)
        if process.poll() is None:
            continue
        said = said_by(process)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode in (0, 1, 3), said
            return process.returncode
        begun = b"the name of a job" not in home.run("jobs", "show", name).stderr.encode()
        process = home.start("jobs", "resume", name) if begun else home.start("run", str(job))
    process.kill()
    raise AssertionError(f"the job does not end: {said_by(process)!r}")


def undisturbed(home: Home, steps: int) -> str:
    """The parameters of ``train.py`` on two ranks of which nothing is killed."""
    home.hurry()
    assert (
        home.document("run", str(home.job("calm", f"python train.py {steps} 0", count=2)))["state"]
        == "done"
    )
    found: set[str] = {(home.result / f"final-{rank}").read_text() for rank in range(2)}
    assert len(found) == 1
    return found.pop()
