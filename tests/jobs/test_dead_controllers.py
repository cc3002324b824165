"""Jobs with several machines whose controller is dead: all ranks go on to save the same steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home, until

from deepvm.jobs.clouds.local import LocalCloud

SCRIPTS = {
    "training": (
        """
import hashlib, os, sys, time
import torch
import torch.distributed as dist
import deepvm.training as dt

here, steps = os.environ["RESULT"], int(sys.argv[1])
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, epoch = dist.get_rank(), os.environ["DEEPVM_EPOCH"]
found = dt.latest()
state = torch.load(found) if found else {"step": 0, "sum": torch.zeros(4)}
if not rank:
    open(f"{here}/starts", "a").write(f"{state['step']} ")
while state["step"] < steps:
    with dt.step_context():
        more = torch.sin(torch.full((4,), 1.0 + rank + state["step"]))
        dist.all_reduce(more)
        state = {"step": state["step"] + 1, "sum": state["sum"] * 0.9 + more}
        time.sleep(0 if os.path.exists(f"{here}/hurry") else 0.02)
    if dt.check_save():
        mine = f"{here}/mine-{rank}-{epoch}-{state['step']}"
        torch.save(state, mine)
        dt.backup(mine)
        open(f"{here}/saved-{rank}", "a").write(f"{state['step']} ")
    open(f"{here}/reached-{rank}", "w").write(str(state["step"]))
if not rank:
    open(f"{here}/final", "w").write(hashlib.sha256(state["sum"].numpy().tobytes()).hexdigest())
dist.destroy_process_group()
"""
    ),
    "checkpointer": (
        """
import hashlib, os, sys, time
import torch
import torch.distributed as dist
from deepvm.checkpoint import Checkpointer

here, steps = os.environ["RESULT"], int(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_num_threads(1)
rank = dist.get_rank()
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
parallel = torch.nn.parallel.DistributedDataParallel(model)
checkpointer = Checkpointer(model=parallel, optimizer=optimizer)
first = checkpointer.restore_latest()
if not rank:
    open(f"{here}/starts", "a").write(f"{first} ")
seen = set()
for step in range(first, steps):
    optimizer.zero_grad()
    parallel(torch.full((2, 16), 1.0 + rank + step / 100)).square().sum().backward()
    optimizer.step()
    for version in {h.version for h in checkpointer.handles} - seen:
        seen.add(version)
        open(f"{here}/saved-{rank}", "a").write(f"{version} ")
    open(f"{here}/reached-{rank}", "w").write(str(step + 1))
    time.sleep(0 if os.path.exists(f"{here}/hurry") else 0.02)
checkpointer.close()
if not rank:
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    open(f"{here}/final", "w").write(hashlib.sha256(state).hexdigest())
dist.destroy_process_group()
"""
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    pytest.importorskip("torch")
    found = Home(tmp_path)
    for kind, script in SCRIPTS.items():
        (found.code / f"{kind}.py").write_text(script)
    yield found
    found.end()


def saved(home: Home, rank: int) -> list[int]:
    """The steps that a rank has saved."""
    place = home.result / f"saved-{rank}"
    return [int(step) for step in place.read_text().split()] if place.exists() else []


def reached(home: Home, rank: int = 0) -> int:
    place = home.result / f"reached-{rank}"
    return int((place.read_text() if place.exists() else "") or 0)


def versions(home: Home, kind: str, name: str) -> list[int]:
    """The versions of a job that are whole, in their order; of backups those of both ranks."""
    folder = home.jobs / name / "versions"
    if kind == "checkpointer":
        return sorted(int(p.stem.rpartition("-")[2]) for p in folder.rglob(f"{name}-*.pt"))
    # Not rglob(): versions are removed meanwhile, and Python before 3.13 raises then.
    records = [Path(name).parent for name in glob(f"{folder}/**/record.json", recursive=True)]
    steps = [int(p.parent.name[:12]) for p in records]
    return sorted(step for step in set(steps) if steps.count(step) == 2)


def train(home: Home, kind: str, name: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start a job on two machines, and let it do a few steps."""
    job = home.job(name, f"python {kind}.py {more.pop('steps', 100_000)}", count=2, keep=0, **more)
    process = home.start("run", str(job))
    until(lambda: reached(home) > 10, 90)
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a controller."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "checkpointer"])
def test_insurance_goes_on(home: Home, kind: str) -> None:
    process = train(home, kind, "alone", save_policy="static:20")
    kill(process)
    done = reached(home)
    until(lambda: len([v for v in versions(home, kind, "alone") if v > done]) >= 3, 30)
    found = [saved(home, rank)[:-1] for rank in (0, 1)]  # the last may not be written down yet
    shared = min(map(len, found))
    assert found[0][:shared] == found[1][:shared] and found[0] == sorted(set(found[0]))
    assert all(step % 20 == 0 for step in found[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
def test_orphans_save_the_same_step_and_end(home: Home, kind: str) -> None:
    process = train(home, kind, "left", orphan_after="4s", save_policy="static:100000", steps=500)
    kill(process)
    killed_s, done = time.monotonic(), reached(home)
    until(lambda: not home.processes(), 60)
    took_s = time.monotonic() - killed_s
    assert 3 <= took_s < 40, took_s
    assert not home.document("jobs", "orphans")["orphans"]
    (version,) = {*saved(home, 0)}
    assert saved(home, 1) == saved(home, 0) == [version] and version > done
    assert versions(home, kind, "left") == [version]
    assert reached(home) <= version  # nothing is done behind it
    home.hurry()
    found = home.document("jobs", "resume", "left")
    assert (found["state"], found["lost_steps"], found["steps"]) == ("done", 0, 500)
    assert (home.result / "starts").read_text() == f"0 {version} "


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_notice_that_no_controller_hears(home: Home, kind: str) -> None:
    process = train(home, kind, "told", save_policy="adaptive", steps=600)
    kill(process)
    done = reached(home)
    LocalCloud(home.jobs).preempt("told", "m2", 8.0)
    noticed_s = time.monotonic()
    until(lambda: reached(home) > done and _is_held(home), 8)
    took_s = time.monotonic() - noticed_s
    # The metadata service is asked once a second, and the controller waited for
    assert took_s < 6, took_s
    until(lambda: _ended(home, "told", "m2"), 15)
    version = saved(home, 0)[-1]
    assert saved(home, 1) == saved(home, 0) and versions(home, kind, "told")[-1] == version
    assert reached(home) <= version and version > done
    home.hurry()
    found = home.document("jobs", "resume", "told")
    assert (found["state"], found["lost_steps"], found["steps"]) == ("done", 0, 600)
    assert (home.result / "starts").read_text() == f"0 {version} "


def _is_held(home: Home) -> bool:
    before = reached(home)
    time.sleep(0.5)
    return reached(home) == before


def _ended(home: Home, job: str, machine: str) -> bool:
    return bool([p for p in (home.jobs / job).rglob("ended.json") if machine in str(p)])


def undisturbed(home: Home, kind: str, steps: int) -> str:
    """The result of two ranks that torchrun starts here, without deepvm run."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    calm = home.folder / "calm"
    calm.mkdir()
    (calm / "hurry").touch()
    env = {
        **home.env,
        "RESULT": str(calm),
        "OMP_NUM_THREADS": "1",
        "DEEPVM_JOB": "calm",
        "DEEPVM_EPOCH": "0",
    }
    env["DEEPVM_TIERS"] = (home.folder / "calm-versions").as_uri()
    subprocess.run(
        [*words, f"{kind}.py", str(steps)], env=env, cwd=home.code, check=True, timeout=100
    )
    return (calm / "final").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_controller_that_comes_back_changes_no_bit(home: Home, kind: str) -> None:
    process = train(home, kind, "back", save_policy="static:7", steps=700)
    for _ in range(2):
        kill(process)
        done = reached(home)
        until(lambda: len([v for v in versions(home, kind, "back") if v > done]) >= 3, 30)  # noqa: B023
        process = home.start("jobs", "resume", "back")
        done = reached(home)
        until(lambda: reached(home) >= done + 40, 30)  # noqa: B023
    home.hurry()
    assert process.wait(60) == 0
    process.communicate()
    shown = home.document("jobs", "show", "back")
    assert (shown["state"], shown["generations"], shown["lost_steps"]) == ("done", 1, 0)
    found = saved(home, 0)
    assert (
        found == saved(home, 1) == sorted(set(found))
        and len(found) > 70
        and not any(v % 7 for v in found)
    )
    if kind == "training":
        parts = [p for p in (home.jobs / "back" / "versions").rglob("record.json")]
        steps = [int(p.parent.parent.name[:12]) for p in parts]
        assert len(steps) == 2 * len(set(steps))
    assert (home.result / "final").read_text() == undisturbed(home, kind, 700)


@pytest.mark.slow
def test_a_controller_that_comes_back_while_they_hold(home: Home) -> None:
    """It takes the version that they have saved, and does not wait for another, or for the end of
    the machine.
    """
    process = train(home, "training", "held", save_policy="adaptive", steps=600)
    kill(process)
    done = reached(home)
    LocalCloud(home.jobs).preempt("held", "m2", 60.0)
    noticed_s = time.monotonic()
    until(lambda: reached(home) > done and _is_held(home), 10)
    version = saved(home, 0)[-1]
    process = home.start("jobs", "resume", "held")
    until(lambda: reached(home) > version + 5, 45)
    assert time.monotonic() - noticed_s < 50
    home.hurry()
    assert process.wait(60) == 0
    process.communicate()
    found = home.document("jobs", "show", "held")
    assert (found["state"], found["lost_steps"], found["notices"], found["generations"]) == (
        "done",
        0,
        1,
        2,
    )
    assert (home.result / "starts").read_text() == f"0 {version} "


@pytest.mark.slow
def test_a_controller_that_hangs(home: Home) -> None:
    """Its host is stopped, and its connections are open."""
    process = train(home, "training", "hangs", save_policy="static:20", steps=100_000)
    os.killpg(process.pid, signal.SIGSTOP)
    done = reached(home)
    # Older backups that nobody asked for are removed behind newer ones.
    until(lambda: max(versions(home, "training", "hangs"), default=0) >= done + 100, 40)
    os.killpg(process.pid, signal.SIGCONT)
    kill(process)
    found = [saved(home, rank) for rank in (0, 1)]
    shared = min(map(len, found))
    assert found[0][:shared] == found[1][:shared] == list(range(20, 20 * shared + 1, 20))
