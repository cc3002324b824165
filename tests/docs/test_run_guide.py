"""The guide of ``deepvm run``: its three commands, its examples, and the lines that it shows of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home
from support.pages import ROOT, blocks, commands, text_of

PAGE, EXAMPLES = "docs/guide/run.md", ROOT / "docs" / "examples"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    found.env.pop("DEEPVM_DATA_DIR", None)
    found.env["DEEPVM_DATA_DIR"] = str(tmp_path / "data" / "deepvm")
    yield found
    found.end()


def document(home: Home, file: Path, code: int = 0) -> dict[str, Any]:
    import json

    done = home.run("run", str(file), "-o", "json", limit_s=300)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict) and not home.processes()
    return found


def test_the_three_commands_train(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    recommend, run, *_ = commands(PAGE, "sh node")
    assert (recommend.split()[1], run) == ("recommend", "deepvm run job.yaml")
    monkeypatch.chdir(tmp_path)
    command, _, plan = recommend.partition(" > ")
    done = home.run(*command.split()[1:])
    assert done.returncode == 0, done.stderr
    (tmp_path / plan).write_text(done.stdout)
    shutil.copy(EXAMPLES / "checkpointer" / "train.py", tmp_path)
    (tmp_path / "job.yaml").write_text(blocks(PAGE, "yaml")[0].replace("code: .\n", f"code: {tmp_path / 'mine'}\n"))
    (tmp_path / "mine").mkdir()
    shutil.copy(EXAMPLES / "checkpointer" / "train.py", tmp_path / "mine")
    found = document(home, tmp_path / "job.yaml")
    assert (found["state"], found["steps"]) == ("done", 100)


PREEMPTED = {"checkpointer": 150, "two-ranks": 120, "four-lines": 200}


def test_all_examples_are_run_and_on_the_page() -> None:
    names = {path.parent.name for path in EXAMPLES.glob("*/job.yaml")}
    assert names == {*PREEMPTED, "deadline"}
    assert names == set(re.findall(r"^\| `([a-z-]+)` \|", text_of(PAGE), re.MULTILINE))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in PREEMPTED])
def test_an_example_trains_to_its_end(name: str, home: Home) -> None:
    pytest.importorskip("torch")
    found = document(home, EXAMPLES / name / "job.yaml")
    assert (found["state"], found["steps"], found["lost_steps"]) == ("done", PREEMPTED[name], 0)
    assert found["preemptions"] == found["notices"]


@pytest.mark.slow
def test_the_example_with_a_deadline_stops_before_it(home: Home) -> None:
    found = document(home, EXAMPLES / "deadline" / "job.yaml", 3)
    assert (found["state"], found["saves"]["stop"]) == ("stopped", 1) and found["steps"] > 0
    assert found["total_s"] < 45 + 5  # on a busy computer the last version may take longer than those before it


def test_lines_that_are_shown_are_those_of_the_examples() -> None:
    shown = [(name, block) for name in PREEMPTED for block in blocks(PAGE, f"python example {name}")]
    assert len(shown) == 3
    for name, block in shown:
        assert block in (EXAMPLES / name / "train.py").read_text()
