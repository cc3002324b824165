"""The guide of ``deepvm run``: its three commands, its examples, and the lines that it shows of
them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.runs import Home
from support.pages import ROOT, blocks, commands, text_of

PAGE, EXAMPLES = "docs/internals/guide/run.md", ROOT / "docs" / "examples"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    found.env.pop("DEEPVM_DATA_DIR", None)
    found.env["DEEPVM_DATA_DIR"] = str(tmp_path / "data" / "deepvm")
    yield found
    found.end()


def document(home: Home, file: Path, code: int = 0) -> dict[str, Any]:
    done = home.run("run", str(file), "-o", "json", limit_s=300)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict) and not home.processes()
    return found


@pytest.fixture
def folder(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the script, after the first two of the three commands."""
    found = tmp_path / "mine"
    found.mkdir()
    monkeypatch.chdir(found)
    command, _, plan = commands(PAGE, "sh node")[0].partition(" > ")
    done = home.run(*command.split()[1:])
    assert done.returncode == 0, done.stderr
    (found / plan).write_text(done.stdout)
    shutil.copy(EXAMPLES / "checkpointer" / "train.py", found)
    return found


def test_the_three_commands_train(home: Home, folder: Path) -> None:
    pytest.importorskip("torch")
    # What it names as the next step is what is run here
    shown = home.run("recommend", "--pw", "0.4").stdout
    assert "-o json > plan.json, then deepvm run --help" in shown
    words = commands(PAGE, "sh node")[1].split()
    assert (words[:3], words[words.index("--") + 1 :][:2]) == (
        ["deepvm", "run", "plan.json"],
        ["python", "train.py"],
    )
    done = home.run(
        *words[1 : words.index("--")], "-o", "json", *words[words.index("--") :], limit_s=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["name"], found["state"], found["steps"]) == ("train", "done", 100)
    again = home.run(*words[1:])
    assert again.returncode == 2 and "--name train-2" in again.stderr


def test_the_job_file_rents_the_same(home: Home, folder: Path) -> None:
    (folder / "job.yaml").write_text(blocks(PAGE, "yaml")[0])
    command = commands(PAGE, "sh node")[1].removeprefix("deepvm ").partition(" -- ")
    done = home.run(
        *command[0].split(),
        *("--dry-run", "--name", "first", "-o", "json", "--"),
        *command[2].split(),
    )
    assert home.document("run", "job.yaml", "--dry-run") == json.loads(done.stdout)


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
    # On a busy computer the last version may take longer than those before it
    assert found["total_s"] < 45 + 5


def test_lines_that_are_shown_are_those_of_the_examples() -> None:
    shown = [
        (name, block) for name in PREEMPTED for block in blocks(PAGE, f"python example {name}")
    ]
    assert len(shown) == 3
    for name, block in shown:
        assert block in (EXAMPLES / name / "train.py").read_text()
