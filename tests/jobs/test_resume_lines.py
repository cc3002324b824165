"""A script that saves nothing, and the same with the lines that ``deepvm run`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from support.jobs.runs import Home, until

pytest.importorskip("torch")
pytestmark = pytest.mark.system
PLAIN = """
import os, time, torch
here = os.environ["RESULT"]
steps = 600
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    open(f"{here}/steps", "a").write(f"{step} ")
    time.sleep(0 if os.path.exists(f"{here}/hurry") else 0.05)
"""
LOOP = "for step in range(steps):"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def preempted(home: Home, name: str) -> tuple[dict[str, Any], list[int], str]:
    """The report of a job that is preempted once, its steps, and what was printed at the start."""
    job = str(home.job(name, "python train.py"))
    warned = home.run("run", job, "--dry-run").stderr
    process = home.start("run", job)
    steps = home.result / "steps"
    until(lambda: steps.exists() and len(steps.read_text().split()) > 10, 90)
    words = ["--lives", "0.1s", "--grace", "4s", "--count", "1"]
    assert home.run("inject", name, *words).returncode == 0
    until(lambda: json.loads(home.run("jobs", "show", name, "-o", "json").stdout)["preemptions"])
    until(lambda: home.document("jobs", "show", name)["generations"] == 2, 90)
    home.hurry()
    process.communicate(timeout=120)
    found = home.document("jobs", "show", name)
    assert (found["state"], found["preemptions"]) == ("done", 1)
    return found, [int(step) for step in steps.read_text().split()], warned


def test_a_plain_script_starts_again_at_its_beginning(home: Home) -> None:
    (home.code / "train.py").write_text(PLAIN)
    found, steps, warned = preempted(home, "plain")
    assert steps.count(0) == 2 and "warning: train.py saves nothing through deepvm" in warned
    assert found["steps"] is found["lost_steps"] is None
    assert found["progress_unknown"] == "this script reports no steps"


def test_the_same_script_with_the_printed_lines_keeps_its_steps(home: Home) -> None:
    (home.code / "train.py").write_text(PLAIN)
    shown = home.run("run", str(home.job("plain", "python train.py")), "--dry-run").stderr
    lines = [line[4:] for line in shown.splitlines() if line.startswith("    ")]
    before, body = PLAIN.split(LOOP)
    loop = "\n".join(lines).replace("        ...  # your step", indent(body, "    ")[1:])
    (home.code / "train.py").write_text(before + loop)
    found, steps, warned = preempted(home, "kept")
    assert steps == list(range(600)) and "saves nothing" not in warned
    assert (found["steps"], found["lost_steps"], found["saves"]["emergency"]) == (600, 0, 1)
    assert found["unsaved_steps"] == 0
