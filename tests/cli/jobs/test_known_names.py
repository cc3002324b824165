"""A second job of a name: continued, replaced or called otherwise, never mixed with the first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home, until

from deepvm.jobs.history.history import History

pytestmark = pytest.mark.system
TRAIN = "exec python own.py 8 0.01;"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def starts(home: Home) -> list[int]:
    """From which step each start of the training has continued."""
    return [int(step) for step in (home.result / "starts-0").read_text().split()]


def test_a_done_job_is_replaced_and_never_continued(home: Home) -> None:
    shared = home.folder / "shared"
    job = str(home.job("again", TRAIN, tiers=[shared.as_uri()], save_every_steps=1))
    assert home.run("run", job).returncode == 0
    for words in ([], ["--no-resume-check"]):
        done = home.run("run", job, *words)
        assert done.returncode == 2, done.stderr
        assert "'--replace' starts over in its place, '--name again-2' starts" in done.stderr
        assert "jobs resume" not in done.stderr
    with History.open(home.env) as history:
        before = history.world("again")
    done = home.run("run", job, "--replace")
    assert done.returncode == 0 and "again starts over, with new checkpoints at" in done.stderr
    assert starts(home) == [0, 0]
    # The first one's checkpoints are where they were; its machines count as history of the pool
    folders = {path.name for path in shared.iterdir() if path.name.startswith("again-2")}
    assert len(folders) == 1 and (shared / "again").is_dir()
    assert home.document("history", "pools")["pools"][0]["machines"] == 2
    assert [row["name"] for row in home.document("jobs", "ls")["jobs"]] == ["again"]
    (machine,) = home.document("jobs", "show", "again")["machines"]
    assert machine["id"] == f"m{before.requests + 1}"
    assert home.run("run", job, "--replace").returncode == 0 and starts(home) == [0, 0, 0]
    assert not list(home.jobs.glob(".again*"))


def test_what_cannot_be_replaced(home: Home) -> None:
    memory = ["tcp://localhost:7070", (home.folder / "shared").as_uri()]
    job = str(home.job("here", TRAIN))
    assert home.run("run", job).returncode == 0
    done = home.run("run", str(home.job("here", TRAIN, tiers=memory)), "--replace")
    assert (
        done.returncode == 2
        and "--replace does not go with tcp://localhost:7070, which" in done.stderr
    )
    done = home.run("run", str(home.job("here", "python gone.py")), "--replace")
    assert done.returncode == 2 and "there is no gone.py" in done.stderr
    assert home.document("jobs", "show", "here")["state"] == "done"  # the first one is as it was
    assert (home.jobs / "here" / "run.html").exists()
    assert home.run("jobs", "logs", "here").returncode == 0
    process = home.start("run", str(home.job("lives", "exec python own.py 5000 0.05;")))
    until(lambda: (home.jobs / "lives" / "controller.lock").exists())
    done = home.run("run", str(home.job("lives", TRAIN)), "--replace")
    assert done.returncode == 2 and "'deepvm jobs stop lives' ends it" in done.stderr, done.stderr
    process.terminate()
    process.communicate(timeout=60)


def test_a_terminal_is_asked_about_a_name(home: Home) -> None:
    job = str(home.job("asked", "exec python own.py 400 0.02;"))
    process = home.start("run", job)
    until(lambda: (home.result / "starts-0").exists())
    time.sleep(1.0)
    process.terminate()
    process.communicate(timeout=60)
    code, shown = home.answered("\n", "run", job)
    ways = "replace it, start a new job asked-2 or stop?"
    question = f"Do you want to resume it, {ways} [resume/replace/new/STOP]"
    assert code == 1 and question in shown and starts(home) == [0]
    assert "there is a job asked already, which is stopped" in shown
    home.hurry()
    code, shown = home.answered("r\nres\n", "run", job)  # the first answer is not clear
    assert code == 0 and starts(home)[1] > 0, shown
    code, shown = home.answered("n\n", "run", job)
    assert code == 0 and f"Do you want to {ways} [replace/new/STOP]" in shown
    assert starts(home)[2:] == [0] and "asked-2" in home.run("jobs", "ls").stdout
    code, shown = home.answered("replace\n", "run", job)
    assert code == 0 and starts(home)[3:] == [0], shown


def test_a_job_that_kept_nothing_gives_its_name_to_a_rerun(home: Home) -> None:
    """Whether it failed before it could report anything, or before its first step."""
    train = "exec python own.py 8 0.01;"
    job = home.job("typo", train, save_every_steps=1, steps=8)
    script = home.code / "own.py"
    right = script.read_text()
    for wrong in ("import no_such_module\n", "import deepvm.training as dt\ndt.latest()\n1 / 0\n"):
        script.write_text(wrong)
        done = home.run("run", str(job))
        assert done.returncode == 1 and "the same command starts over" in done.stderr, done.stderr
        assert "--name typo-2" not in done.stderr
    script.write_text(right)
    done = home.run("run", str(job))
    assert done.returncode == 0, done.stderr
    assert "Note: typo had kept nothing and starts over, with new checkpoints at" in done.stderr
    assert starts(home) == [0] and home.document("jobs", "show", "typo")["steps"] == 8
    assert [row["name"] for row in home.document("jobs", "ls")["jobs"]] == ["typo"]


def test_outputs_are_not_replaced_unasked(home: Home) -> None:
    (home.code / "own.py").write_text(
        "import os\nos.mkdir('outputs')\nopen('outputs/a', 'w')\n1 / 0\n"
    )
    job = str(home.job("kept", "exec python own.py;"))
    done = home.run("run", job)
    assert done.returncode == 1 and "--name kept-2" in done.stderr, done.stderr
    done = home.run("run", job)
    assert done.returncode == 2 and "'--replace' starts over in its place" in done.stderr


@pytest.mark.parametrize("at", ["written", "recorded", "settling"])
def test_a_replacement_that_is_killed_is_undone_or_complete(home: Home, at: str) -> None:
    """Never are both jobs lost, also if what undoes it is killed."""
    job = str(home.job("killed", TRAIN))
    assert home.run("run", job).returncode == 0
    calm = dict(home.env)
    home.env["DEEPVM_CHECKPOINT_KILL_AT"] = f"replace.{at}"
    if at == "settling":
        home.env["DEEPVM_CHECKPOINT_KILL_AT"] = "replace.moved"
        assert home.run("run", job, "--replace").returncode == -9
        home.env["DEEPVM_CHECKPOINT_KILL_AT"] = "replace.settling"
        assert home.run("jobs", "ls").returncode == -9
    else:
        assert home.run("run", job, "--replace").returncode == -9
    assert len(list(home.jobs.glob(".killed.*"))) == 1
    home.env = calm
    if at == "recorded":
        assert home.document("jobs", "show", "killed")["state"] == "pending"
        assert home.run("jobs", "resume", "killed").returncode == 0
        assert starts(home) == [0, 0]
    else:
        done = home.run("jobs", "logs", "killed")
        assert done.returncode == 0 and home.document("jobs", "show", "killed")["state"] == "done"
        assert (home.jobs / "killed" / "run.html").exists()
        assert starts(home) == [0]
    assert not list(home.jobs.glob(".killed*"))
    assert home.run("run", job, "--replace").returncode == 0
