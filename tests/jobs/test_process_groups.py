"""Scripts of several processes: those that train together, and copies of one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home

MACHINES = {"type": "g4dn.12xlarge"}
PLAIN = """
import os, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    open(f"{os.environ['RESULT']}/stepped-{os.environ['RANK']}", "a").write(".")
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"])
"""
STEPS = """
import os, time
import deepvm.training as dt
for _ in range(500):
    with dt.step_context():
        time.sleep(0.1)
open(f"{os.environ['RESULT']}/done-{os.environ['RANK']}", "w")
"""
REPORTS = "exec python reports.py;"
GROUP = """
import os, sys, torch
ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
torch.distributed.init_process_group("gloo", init_method=sys.argv[1], **ranks)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "plain.py").write_text(PLAIN)
    (found.code / "group.py").write_text(GROUP + PLAIN)
    yield found
    found.end()


def test_copies_that_report_steps_are_stopped_at_the_first(home: Home) -> None:
    """One that forms no group is seen from outside; the log has the explanation, too."""
    done = home.run(
        "run", str(home.job("copies", "exec python own.py 500 0.1;", machines=MACHINES))
    )
    assert (
        done.returncode == 1 and "4 processes run on m1 and formed no process group" in done.stderr
    )
    assert done.stderr.startswith(
        "warning: 4 processes start on 1 machine, and own.py starts no process group that can be"
    )
    assert "--processes-per-machine 1" in done.stderr and "--independent-processes" in done.stderr
    assert not list(home.result.glob("done-*"))
    assert "formed no process group" in home.run("jobs", "logs", "copies").stdout
    assert "the same command with --processes-per-machine 1" in done.stderr


@pytest.mark.parametrize("train", [REPORTS, "exec sleep 0.1;"], ids=["steps", "end"])
def test_copies_on_two_machines_are_stopped(home: Home, train: str) -> None:
    """One process on each, which never meet: at the first reported step, or at the end."""
    (home.code / "reports.py").write_text(STEPS)
    done = home.run("run", str(home.job("apart", train, count=2)))
    assert (
        done.returncode == 1
        and "the other machines run one process each and formed no process group" in done.stderr
    )
    assert done.stderr.startswith("warning: 2 processes start on 2 machines, and ")
    assert "one machine" in done.stderr and not list(home.result.glob("done-*"))
    # Of the first a step was seen
    next_command = {REPORTS: "--name apart-2"}.get(train, "the same command starts over")
    assert next_command in done.stderr


def test_a_command_that_is_not_found(home: Home) -> None:
    """The reason is in the failure and in the log."""
    env = {"PATH": "/nonexistent"}
    done = home.run("run", str(home.job("nopath", "python own.py 5 0", env=env)))
    reason = "command not found: 'python', PATH=/nonexistent"
    assert done.returncode == 1 and reason in done.stderr
    assert reason in home.run("jobs", "logs", "nopath").stdout


@pytest.mark.slow  # four processes load torch
def test_copies_of_a_plain_script_are_stopped_before_their_first_step(home: Home) -> None:
    """It neither knows of deepvm nor reports anything."""
    done = home.run("run", str(home.job("plain", "python plain.py", machines=MACHINES)))
    assert done.returncode == 1 and "formed no process group by their first step" in done.stderr
    assert not list(home.result.glob("stepped-*"))


@pytest.mark.slow
def test_separate_trainings_on_purpose(home: Home) -> None:
    job = str(home.job("sweep", "python plain.py", machines=MACHINES))
    done = home.run("run", job, "--independent-processes")
    assert done.returncode == 0, done.stderr
    lines = home.run("jobs", "logs", "sweep").stdout.splitlines()
    assert sorted(lines) == [f"m1/{rank} | {rank} 0 {rank}" for rank in range(4)]


@pytest.mark.slow
def test_one_process_on_a_machine_with_four_gpus(home: Home) -> None:
    job = str(home.job("one", "python plain.py", machines=MACHINES))
    assert home.run("run", job, "--processes-per-machine", "1").returncode == 0
    assert home.run("jobs", "logs", "one").stdout == "m1/0 | 0 0 0,1,2,3\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
@pytest.mark.parametrize("method", ["env://", "file"])
def test_no_group_is_stopped(home: Home, launcher: str, method: str) -> None:
    """Wherever its ranks meet: at the usual place, or over a file."""
    method = f"file://{home.result}/meeting" if method == "file" else method
    for train in (f"python group.py {method}", f"exec python group.py {method};")[
        : 1 + (launcher == "direct")
    ]:
        name = f"group-{len(train)}"
        done = home.run("run", str(home.job(name, train, machines=MACHINES, launcher=launcher)))
        assert done.returncode == 0, done.stderr
        (home.result / "meeting").unlink(missing_ok=True)
    assert (home.result / "stepped-3").read_text() == "." * 5 * (1 + (launcher == "direct"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["env://", "file"])
def test_no_group_of_two_machines_is_stopped(home: Home, method: str) -> None:
    """One process on each; without the warm process the only sign is their connection."""
    method = f"file://{home.result}/meeting" if method == "file" else method
    done = home.run("run", str(home.job("pair", f"exec python group.py {method};", count=2)))
    assert done.returncode == 0, done.stderr
    assert (home.result / "stepped-1").read_text() == "." * 5


TORCHRUN = "exec python -m torch.distributed.run --nproc-per-node 2 joins.py;"
JOINS = """
import os, torch
torch.distributed.init_process_group("gloo")
both = torch.ones(1)
torch.distributed.all_reduce(both)
open(f"{os.environ['RESULT']}/sum-{os.environ['RANK']}", "a").write(str(int(both)))
"""
HIDDEN = """
import subprocess
words = "python -m torch.distributed.run --nproc-per-node 1 reports.py"
subprocess.run(words.split(), check=True)
"""
LATEST = "import deepvm.training as dt\ndt.latest()\n"


@pytest.mark.slow
def test_torchrun_starts_once_on_a_machine_of_several_gpus(home: Home) -> None:
    (home.code / "joins.py").write_text(JOINS)
    done = home.run("run", str(home.job("t", TORCHRUN, machines=MACHINES)))
    assert done.returncode == 0 and "it runs once on each" in done.stderr, done.stderr
    assert [(home.result / f"sum-{rank}").read_text() for rank in range(2)] == ["2", "2"]


@pytest.mark.slow
def test_groups_of_one_machine_each_are_stopped(home: Home) -> None:
    """Of a launcher that no one could see before; on ``local`` its own connections look as those
    of the machines.
    """
    (home.code / "reports.py").write_text(LATEST + STEPS)
    (home.code / "hidden.py").write_text(HIDDEN)
    done = home.run("run", str(home.job("apart", "exec python hidden.py;", count=2)))
    assert done.returncode == 1 and "formed no process group" in done.stderr, done.stderr
    assert not list(home.result.glob("done-*"))
