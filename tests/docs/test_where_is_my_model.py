"""The page that says where a model is: its job, its command, and the Python that reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home
from support.pages import blocks, commands, text_of

PAGE = "docs/guide/where-is-my-model.md"
TRAIN = """
import pathlib
import torch
from deepvm.checkpoint import Checkpointer

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ck = Checkpointer(model=model, optimizer=optimizer, every=5)
for step in ck.steps(10):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
ck.close()
torch.save(model.state_dict(), "model.pt")
pathlib.Path("logs").mkdir()
pathlib.Path("logs/loss.txt").write_text("0.1")
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


@pytest.mark.system
def test_the_page_does_what_it_says(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(home.folder)
    (home.folder / "train.py").write_text(TRAIN)
    (job,) = blocks(PAGE, "yaml job")
    (home.folder / "job.yaml").write_text(job)
    done = home.run("run", "job.yaml")
    assert done.returncode == 0, done
    (command,) = commands(PAGE, "sh node")
    fetched = home.run(*shlex.split(command)[1:])
    assert fetched.returncode == 0, fetched
    (python,) = blocks(PAGE, "python fetched")
    values: dict[str, object] = {}
    exec(python, values)
    # And the sentence on a Checkpointer's file
    (expression,) = re.findall(r'`(torch\.load\("results/checkpoint.*?)`', text_of(PAGE))
    state = eval(expression, {"torch": torch})
    weights = values["weights"]
    assert isinstance(weights, dict) and state.keys() == weights.keys()
    assert all(torch.equal(state[name], weights[name]) for name in state)


def test_the_page_is_short() -> None:
    assert len(text_of(PAGE).split()) < 500
