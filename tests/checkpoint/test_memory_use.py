"""How much memory the trainer gives for its versions: the state once for each slot, and little
beside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.checkpoint.memory_nodes import TOKEN, Process

pytest.importorskip("torch")

# Peaks of memory that no file on a disk has, sampled without versions and with them.
TRAINER = """
import json, sys, threading, time
import torch, torch._dynamo
from deepvm.checkpoint import Checkpointer

def anonymous():
    with open("/proc/self/status") as file:
        kinds = [line.split() for line in file if line.startswith(("RssAnon", "RssShmem"))]
    return sum(int(kib) * 1024 for _, kib, _ in kinds)

torch.set_num_threads(1)
url, slots, world = sys.argv[1], int(sys.argv[2]), 1
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
optimizer = torch.optim.Adam(model.parameters(), foreach=False)  # which needs no second copy for a moment
peak, done = [0], threading.Event()
def sample():
    peak[0] = max(peak[0], anonymous())
def step():
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    sample()
    optimizer.zero_grad()
state = sum(t.numel() * t.element_size() for t in [*model.parameters()] * 3)
def watch():
    while not done.wait(0.001):
        sample()
threading.Thread(target=watch).start()
for _ in range(6):  # gradients and what the optimizer needs for a moment are no memory of ours
    step()
before, peak[0] = peak[0], 0
saver = Checkpointer(model=model, optimizer=optimizer, tiers=[url], slots=slots)
for _ in range(6):
    step()
    saver.save()
    time.sleep(0.02)
saver.save(block=True)
done.set()
print(json.dumps({"state": state, "extra": peak[0] - before, "saved": saver.metrics["saved"]}))
saver.close()
"""  # noqa: E501


SLOW = pytest.mark.slow


@pytest.fixture(
    params=[pytest.param("a folder", marks=SLOW), "a node", pytest.param("two nodes", marks=SLOW)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of where the versions go."""
    if request.param == "a folder":
        yield tmp_path.as_uri()
        return
    with ExitStack() as stack:
        ports = []
        for name in ("one", "two")[: 1 + (request.param == "two nodes")]:
            (tmp_path / name).mkdir()
            node = stack.enter_context(Process(tmp_path / name, memory="512MiB"))
            ports.append(node.url.removeprefix("tcp://"))
        yield "tcp://" + ",".join(ports)


@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_state_once_for_each_slot(slots: int, place: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    # What the training itself has given back must not stay with the C library, by chance more or
    # less of it.
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, place, str(slots)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "DEEPVM_TOKEN_FILE": str(token)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["state"] > 90 * 2**20 and found["saved"] >= 2
    assert 0.9 * found["state"] < found["extra"] <= 1.2 * slots * found["state"], found
