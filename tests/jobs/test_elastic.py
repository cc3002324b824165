"""Whole jobs whose generations differ: started by torchrun, taken back, smaller while they wait,
larger again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # whole jobs

TRAIN = """
import hashlib, json, os, sys, time
import torch
import torch.distributed as dist
from deepvm.checkpoint import Checkpointer

here, steps = os.environ["RESULT"], int(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.Adam(model.parameters())
checkpointer = Checkpointer(model=model, optimizer=optimizer)
first, rank = checkpointer.restore_latest(), dist.get_rank()
log = open(f"{here}/steps-{rank}-{os.environ['DEEPVM_EPOCH']}", "a", buffering=1)
for step in range(first, steps):
    optimizer.zero_grad()
    # The same samples whatever the world: each rank takes its share.
    samples = torch.linspace(-1, 1, 4 * 32).reshape(4, 32) + step / 100
    loss = model(samples[rank :: dist.get_world_size()]).square().sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    log.write(f"{step} {time.time()} {dist.get_world_size()}\\n")
    time.sleep(0.03)
checkpointer.close()
if rank == 0:
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    open(f"{here}/final-{os.environ['DEEPVM_JOB']}", "w").write(hashlib.sha256(state).hexdigest())
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    pytest.importorskip("torch")
    found = Home(tmp_path)
    (found.code / "train.py").write_text(TRAIN)
    yield found
    found.end()


def log_of(home: Home, generation: int, rank: int = 0) -> list[tuple[int, float, int]]:
    """Step, time and world size of each step of a rank."""
    lines = (home.result / f"steps-{rank}-{generation}").read_text().splitlines()
    return [
        (int(step), float(at), int(world)) for step, at, world in (line.split() for line in lines)
    ]


def undisturbed(home: Home, steps: int) -> str:
    """The result of two ranks that torchrun starts here, without deepvm."""
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
        str(steps),
    ]
    env = {
        **home.env,
        "RESULT": str(home.result),
        "OMP_NUM_THREADS": "1",
        "DEEPVM_JOB": "calm",
        "DEEPVM_EPOCH": "0",
    }
    env["DEEPVM_TIERS"] = (home.folder / "calm").as_uri()
    subprocess.run(words, env=env, cwd=home.code, check=True, capture_output=True, timeout=100)
    return (home.result / "final-calm").read_text()


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("direct", marks=pytest.mark.slow)])
def test_a_preemption_changes_no_bit_of_the_result(home: Home, launcher: str) -> None:
    inject = {"mttp": "1s", "count": 1, "grace": "8s", "seed": 4}
    more: dict[str, Any] = {"count": 2, "launcher": launcher, "inject": inject}
    found = home.document("run", str(home.job("taken", "python train.py 60", **more)))
    assert (found["state"], found["notices"], found["generations"], found["lost_steps"]) == (
        "done",
        1,
        2,
        0,
    )
    assert until(lambda: not home.processes(), 10)
    assert (home.result / "final-taken").read_text() == undisturbed(home, 60)


def test_a_job_goes_on_smaller_and_grows_again(home: Home) -> None:
    inject = {"mttp": "1s", "count": 1, "grace": "8s", "seed": 4}
    job = home.job("elastic", "python train.py 250", count={"min": 1, "max": 2}, inject=inject)
    found = home.document("run", str(job))
    assert (found["state"], found["lost_steps"], found["notices"]) == ("done", 0, 1)
    generations = found["generations"]
    logs = [
        log_of(home, g)
        for g in range(1, generations + 1)
        if (home.result / f"steps-0-{g}").exists()
    ]
    worlds = [log[0][2] for log in logs if log]
    assert worlds[-3:] == [2, 1, 2], worlds
    # Every step once, in order, over all generations.
    steps = [step for log in logs for step, _, _ in log]
    assert steps == list(range(250))
    # The newcomer joins when it is warm: the other stands still for half a second and what
    # restoring takes.
    smaller, larger = logs[-2], logs[-1]
    standstill_s = larger[0][1] - smaller[-1][1]
    # Two cores that others use, too; loading torch takes longer there
    assert standstill_s < 0.5 + 2.0, standstill_s
    assert until(lambda: not home.processes(), 10)
