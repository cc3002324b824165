"""What ``deepvm run`` looks at, and asks, before anything is rented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.jobs.runs import Home

from deepvm.cli.jobs import run as commands
from deepvm.jobs.history.history import History
from deepvm.jobs.jobfile import read_job_file
from deepvm.jobs.submission import submit

PLAIN = "import torch\nmodel = torch.nn.Linear(4, 4)\n"
SAVES = "from deepvm.checkpoint import Checkpointer\n"
REFUSED = "--no-resume-check is not given, and there is no terminal to ask (try: --no-resume-"
BEFORE = "At the first preemption it starts again at its beginning"
NO_TERMINAL = "--yes is not given, and there is no terminal to ask (try: --yes, to spend"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(found.jobs.parent))
    (found.code / "plain.py").write_text(PLAIN)
    (found.code / "saves.py").write_text(SAVES)
    return found


def checked(home: Home, run: Run, train: str, *words: str, **more: Any) -> tuple[int, str]:
    """Exit code and messages of a job on AWS, on one line."""
    job = home.job("job", train, **{"cloud": "aws", **more})
    code, out, err = run("run", str(job), *words)
    assert not out
    return code, " ".join(err.split())


def test_a_script_that_cannot_resume_is_refused_on_spot_machines(home: Home, run: Run) -> None:
    """Before the cloud is asked anything, and whatever ``--yes`` says."""
    for words in ([], ["--yes"], ["--detach", "--yes"]):
        code, err = checked(home, run, "python plain.py", *words)
        assert code == 2 and REFUSED in err and BEFORE in err, err
        assert "market: on-demand" in err and "--architecture on-demand" in err
        assert "from deepvm.checkpoint import Checkpointer with Checkpointer(model" in err
        assert "for step in ck.steps(steps):" in err
    assert not home.jobs.exists()


@pytest.mark.parametrize(
    ("train", "more"),
    [
        ("python saves.py", {}),
        ("python plain.py", {"resume_check": False}),
        ("python plain.py", {"machines": {"type": "g4dn.xlarge", "market": "on-demand"}}),
    ],
    ids=["resumes", "the job file", "on demand"],
)
def test_what_is_not_refused(home: Home, run: Run, train: str, more: dict[str, Any]) -> None:
    """Without a terminal the next question is that about money; with ``--yes`` AWS is asked."""
    code, err = checked(home, run, train, **more)
    assert code == 2 and NO_TERMINAL in err and BEFORE not in err, err
    code, err = checked(home, run, train, "--yes", **more)
    assert code == 5 and "cannot reach a controller on this computer" in err, err


def test_the_option_is_the_key_of_the_job_file(home: Home, run: Run) -> None:
    code, err = checked(home, run, "python plain.py", "--no-resume-check", "--yes")
    assert code == 5 and BEFORE not in err
    code, err = checked(home, run, "python plain.py", resume_check="maybe")
    assert code == 2 and "resume_check" in err and "true or false" in err


@pytest.mark.parametrize("train", ["./train.bin", "python -m recipes.lora", "python gone.py"])
def test_what_cannot_be_read_is_unknown_and_asked_about(home: Home, run: Run, train: str) -> None:
    code, err = checked(home, run, train)
    assert code == 2 and REFUSED in err
    assert "it is unknown whether" in err and "paid for and lost" in err
    assert "'deepvm audit' tries whether a script resumes" in err
    code, err = checked(home, run, train, "--no-resume-check")
    assert code == 2 and NO_TERMINAL in err and "unknown whether" not in err


def test_a_launcher_is_as_what_it_starts(home: Home, run: Run) -> None:
    """Or unknown: what it starts may save through deepvm."""
    start = "import subprocess, sys\nsubprocess.run({})\n"
    (home.code / "launch.py").write_text(start.format("[sys.executable, 'saves.py']"))
    code, err = checked(home, run, "python launch.py")
    assert code == 2 and NO_TERMINAL in err and "through deepvm" not in err
    (home.code / "launch.py").write_text(start.format("[sys.executable, 'plain.py']"))
    code, err = checked(home, run, "python launch.py")
    assert (
        code == 2
        and REFUSED in err
        and "launch.py and plain.py (with what it uses: 2 files) saves nothing" in err
    )
    (home.code / "launch.py").write_text(start.format("sys.argv[1:]"))
    code, err = checked(home, run, "python launch.py python saves.py")
    assert code == 2 and REFUSED in err
    assert "it is unknown whether launch.py can resume: subprocess.run() starts a program" in err
    assert "launch.py saves nothing" not in err


def test_code_of_a_repository_is_unknown(home: Home, run: Run) -> None:
    code, err = checked(home, run, "python train.py", code="git:https://example.com/me/it@main")
    assert code == 2 and "the code is not on this computer" in err and REFUSED in err


def test_machines_that_would_do_the_same_are_not_paid_for_unasked(home: Home, run: Run) -> None:
    two = {"type": "g4dn.xlarge", "count": 2}
    code, err = checked(home, run, "python saves.py", "--yes", machines=two)
    assert code == 2 and "--processes-per-machine is not given, and there is no" in err
    assert "-machine 1, to start it as it is; or one machine; for separate trainings, --ind" in err
    for words in (["--processes-per-machine", "1"], ["--independent-processes"]):
        code, err = checked(home, run, "python saves.py", *words, machines=two)
        assert code == 2 and NO_TERMINAL in err
    code, err = checked(home, run, "python saves.py", "--dry-run", machines=two)
    assert code == 5 and "warning: 2 processes start on 2 machines" in err
    code, out, err = run("run", str(home.job("two", "python saves.py", 2)), "--dry-run")
    assert code == 0 and "warning: 2 processes start on 2 machines" in err


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("from torch.utils.data import DataLoader", "with training_run(model=model"),
        ("from transformers import Trainer", "integrations.huggingface import DeepVMCallback"),
        (
            "import lightning as L\nL.LightningModule",
            "integrations.lightning import DeepVMCallback",
        ),
        ("from accelerate import Accelerator", "with checkpointed(accelerator, model=model"),
    ],
)
def test_the_lines_to_add_fit_the_trainer(home: Home, run: Run, source: str, line: str) -> None:
    (home.code / "plain.py").write_text(source)
    assert line in checked(home, run, "python plain.py")[1]


def test_simulated_machines_only_warn(home: Home, run: Run) -> None:
    code, out, err = run("run", str(home.job("job", "python plain.py")), "--dry-run")
    assert code == 0 and "1 x g4dn.xlarge spot" in out
    assert "warning: plain.py saves nothing through deepvm" in err and REFUSED not in err


def test_a_dry_run_refuses_no_risk(home: Home, run: Run) -> None:
    """It rents nothing, so it says what it can, until AWS would be asked."""
    code, err = checked(home, run, "python plain.py", "--dry-run")
    assert code == 5 and BEFORE in err and REFUSED not in err


def hosts_job(home: Home, train: str, hosts: str, **more: Any) -> str:
    (home.folder / "hosts.txt").write_text(hosts)
    machines = {"hosts": "hosts.txt", "launcher": "false {host}"}
    tiers = [(home.folder / "shared").as_uri()]
    more = {"name": "own", "train": train, "machines": machines, "tiers": tiers, **more}
    return str(home.job(cloud="ssh", **more))


def submitted(monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """Record a job whose hosts can be resolved only now."""
    with monkeypatch.context() as now, History.open() as history:
        now.setenv("DEEPVM_CONTROLLER_HOST", "127.0.0.1")
        submit(read_job_file(Path(job)), Path(job), history)


def test_own_hosts_are_preempted_only_on_purpose(home: Home, run: Run) -> None:
    job = hosts_job(home, "python plain.py", "one price=2\n", inject={"mttp": "1h"})
    code, _, err = run("run", job, "--yes")
    assert code == 2 and REFUSED in err
    job = hosts_job(home, "python plain.py", "one price=2\n")
    code, _, err = run("run", job)
    assert code == 2 and NO_TERMINAL in err and BEFORE not in err
    # Without a price nothing is spent, so nothing is asked
    code, _, err = run("run", hosts_job(home, "python plain.py", "one\n"))
    assert code == 5 and "one cannot be resolved" in err, err


def test_copies_of_a_script_are_named_before_the_start(home: Home, run: Run) -> None:
    (home.code / "group.py").write_text("import deepvm.checkpoint, lightning\n")
    many = {"type": "g4dn.12xlarge", "count": 2}

    def remark(train: str, *words: str) -> str:
        return checked(home, run, train, *words, machines=many)[1]

    copies = "8 processes start on 2 machines, and saves.py starts no process group"
    said = remark("python saves.py", "--processes-per-machine", "gpus")
    assert copies in said and "--processes-per-machine 1" in said
    assert copies.replace("8", "2", 1) in remark("python saves.py")
    assert "8 processes start on 2 machines, and must form a process group" in remark("./go")
    assert "processes start" not in remark("python group.py")
    assert "processes start" not in remark("python saves.py", "--independent-processes")
    assert "2 processes start on 2 machines" in remark(
        "python saves.py", "--processes-per-machine", "1"
    )
    one = {"type": "g4dn.12xlarge"}
    err = checked(home, run, "python saves.py", "--processes-per-machine", "1", machines=one)[1]
    assert "processes start" not in err
    err = checked(home, run, "python saves.py", machines=one)[1]
    assert "saves.py starts no process group that can be seen: one copy of it runs" in err
    (home.code / "ranks.py").write_text("import os\nprint(os.environ['RANK'])\n")
    assert "4 processes start" in checked(home, run, "python ranks.py", machines=one)[1]


LAUNCH = "import subprocess\nsubprocess.run({}, check=True)\n"


@pytest.fixture
def launched(home: Home) -> Home:
    (home.code / "train.py").write_text("import deepvm.checkpoint, lightning\n")
    (home.code / "launch.py").write_text(LAUNCH.format("['torchrun', 'train.py']"))
    (home.code / "go.sh").write_text('torchrun --nproc-per-node 2 \\\n  train.py "$@"\n')
    itself = "import lightning, deepvm.checkpoint\n" + LAUNCH.format("['torchrun', 'itself.py']")
    (home.code / "itself.py").write_text(itself)
    return home


@pytest.mark.parametrize("machine", ["g4dn.xlarge", "g4dn.12xlarge"])
def test_a_launcher_of_a_script_without_a_group_is_warned_of(
    home: Home, run: Run, machine: str
) -> None:
    (home.code / "alone.py").write_text("import deepvm.checkpoint\n")
    train = "torchrun --nproc-per-node 2 alone.py"
    job = home.job("copies", train, machines={"type": machine})
    code, _, err = run("run", str(job), "--dry-run")
    text = " ".join(err.split())
    assert code == 0 and "alone.py starts no process group that can be seen" in text
    assert "each process that torchrun starts would train a copy of its own" in text


@pytest.mark.parametrize(
    ("train", "name"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", "torchrun"),
        ("torchrun --nnodes=1 --standalone train.py", "torchrun"),
        ("torchrun --nnodes 1:1 train.py", "torchrun"),
        ("torchrun $SCRIPT", "torchrun"),
        ("OMP_NUM_THREADS=1 python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python3 -m torch.distributed.launch train.py", "torch.distributed.launch"),
        ("accelerate launch train.py", "accelerate"),
        ("deepspeed --num_gpus 4 train.py", "deepspeed"),
        ("mpirun -np 4 python train.py", "mpirun"),
        ("python launch.py", "torchrun"),
        ("pip install deepspeed && bash go.sh", "torchrun"),
    ],
)
def test_a_launcher_starts_once_on_a_machine_and_on_no_others(
    launched: Home, run: Run, train: str, name: str
) -> None:
    """Each machine would train a copy: refused, simulated or not, and no one is asked."""
    one = str(launched.job("one", train, machines={"type": "g4dn.12xlarge"}))
    code, _, err = run("run", one, "--dry-run")
    note = f"{name} starts the processes of a machine itself: it runs once on each; 'python "
    assert code == 0 and note in " ".join(err.split()), err
    assert "processes start" not in err and "one copy" not in err
    copies = "would train a copy of its own"
    assert (copies in " ".join(err.split())) is ("$" in train), "the script imports lightning"
    two = str(launched.job("two", train, 2))
    for words in ([], ["--dry-run"], ["--rehearse"], ["--cloud", "aws", "--yes"]):
        code, out, err = run("run", two, *words)
        assert code == 2 and not out and f"the command {name} starts the processes of one" in err
        assert "RANK, WORLD_SIZE and MASTER_ADDR" in err and "--independent-processes" in err
        assert ("'python SCRIPT'" if "$" in train else "'python train.py'") in err
    assert not launched.jobs.exists()


@pytest.mark.parametrize(
    "train",
    [
        "torchrun --nnodes 2 --rdzv-endpoint $MASTER_ADDR:29400 train.py",
        "torchrun --nnodes=1:4 --rdzv-endpoint=$MASTER_ADDR:29400 train.py",
        "accelerate launch --num_machines $N --main_process_ip $MASTER_ADDR train.py",
        "mpirun -H one,two python train.py",
    ],
)
def test_a_launcher_of_several_machines_starts_once_on_each(
    launched: Home, run: Run, train: str
) -> None:
    job = launched.job("two", train, machines={"type": "g4dn.12xlarge", "count": 2})
    code, _, err = run("run", str(job), "--dry-run")
    assert code == 0 and "it runs once on each" in err, err


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("torchrun train.py", ["--independent-processes"]),
        ("torchrun train.py", ["--processes-per-machine", "gpus", "--cloud", "aws"]),
        ("python train.py --launcher torchrun", []),
        ("python itself.py", []),
        ("pip install deepspeed && python train.py", []),
        ("accelerate env; python train.py", []),
        ("coverage run train.py", []),
    ],
)
def test_what_is_no_launcher_or_meant_so(
    launched: Home, run: Run, train: str, words: list[str]
) -> None:
    """A script that starts itself as ranks is a rank here."""
    count = 1 if "gpus" in words else 2
    job = launched.job("job", train, machines={"type": "g4dn.12xlarge", "count": count})
    err = run("run", str(job), "--dry-run", *words)[2]
    assert "starts the processes" not in err, err


@pytest.mark.system
def test_a_terminal_is_asked(home: Home) -> None:
    job = hosts_job(home, "python plain.py", "one price=2\n", inject={"mttp": "1h"})
    code, shown = home.answered("n\n", "run", job)
    assert code == 1 and "Start it as it is (--no-resume-check)? [y/N]" in shown
    assert "Or take machines that are not preempted (machines: {market: on-demand}" in shown
    code, shown = home.answered("y\nn\n", "run", job)
    assert code == 1 and "1 x host on-demand; up to $2.00/h" in shown
    assert "Spend up to $2.00/h, without a limit in all (--total-usd sets one)? [y/N]" in shown
    code, shown = home.answered("\n", "run", job, "--no-resume-check", "--total-usd", "5")
    assert code == 1 and "Spend up to $5.00? [y/N]" in shown
    code, shown = home.answered("y\n", "run", job, "--no-resume-check", "--total-usd", "5")
    assert code == 5 and "one cannot be resolved" in shown, shown  # it was started
    assert not home.processes()
    # What cannot be started is not asked about
    code, shown = home.answered("y\n", "run", str(home.job("far", "python plain.py", cloud="aws")))
    assert code == 5 and "cannot reach a controller" in shown and "[y/N]" not in shown, shown


@pytest.mark.system
def test_a_resumed_job_is_asked_about_its_money_too(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what may be spent from now on; on machines without a price nothing is asked."""
    free = hosts_job(home, "python saves.py", "one\n", name="free")
    submitted(monkeypatch, free)
    job = hosts_job(home, "python saves.py", "one price=2\n", budget={"total_usd": 5})
    submitted(monkeypatch, job)
    code, _, err = run("jobs", "resume", "own")
    assert code == 2 and NO_TERMINAL in err
    code, _, err = run("jobs", "resume", "own", "--yes")
    assert code == 5 and "one cannot be resolved" in err
    code, shown = home.answered("n\n", "jobs", "resume", "own", "--total-usd", "7")
    assert code == 1 and "1 x host on-demand; up to $2.00/h" in shown
    assert "Spend up to $7.00? [y/N]" in shown
    code, shown = home.answered("y\n", "jobs", "resume", "own")
    assert code == 5 and "Spend up to $5.00? [y/N]" in shown
    assert run("jobs", "resume", "free")[0] == 5


FORGETS = """
import sys, time
import deepvm.training as dt

dt.latest()
for step in range(int(sys.argv[1])):
    with dt.step_context():
        time.sleep(0.02)
"""


def rehearsed(home: Home, run: Run, train: str, **more: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and verdict of a rehearsal."""
    code, out, err = run("run", home.job("tried", train, **more), "--rehearse", "-o", "json")
    return code, json.loads(out), err.splitlines()[-1]


def test_a_rehearsal_preempts_no_machine_of_a_cloud(home: Home, run: Run) -> None:
    code, _, err = run("run", home.job("tried", "true"), "--rehearse", "--cloud", "aws")
    assert code == 2 and "'aws' (expected local, netns or ssh" in err


@pytest.mark.system
@pytest.mark.parametrize(
    ("train", "life", "grace", "preemptions", "code", "verdict"),
    [
        (
            "python own.py 150 0.02;",
            "1s",
            "1s",
            1,
            0,
            r"resumed after step [1-9]\d*, \d+ steps? lost",
        ),
        ("python forgets.py 150;", "1s", "1s", 1, 1, "NOT resumed: training started again at its "),
        ("exec sleep 4;", "1s", "1s", 1, 1, "unknown whether it resumed: this script reports no"),
        (
            "exec sleep 2;",
            "1s",
            "30s",
            1,
            1,
            "before a preempted machine was replaced; give it more",
        ),
        ("true", "9 s", "1s", 0, 1, "before the preemption after 9 s; give it more steps"),
    ],
    ids=["resumes", "forgets", "reports nothing", "ends in the grace", "ends before"],
)
def test_the_verdict_of_a_rehearsal(
    home: Home,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    train: str,
    life: str,
    grace: str,
    preemptions: int,
    code: int,
    verdict: str,
) -> None:
    (home.code / "forgets.py").write_text(FORGETS)
    monkeypatch.setattr(commands, "REHEARSAL", {"lives": [life], "grace": grace, "count": 1})
    found, document, last = rehearsed(home, run, train)
    assert (found, document["state"], document["preemptions"]) == (code, "done", preemptions), last
    assert re.search(f"^(rehearsal: |nothing was rehearsed: training ended ){verdict}", last), last
