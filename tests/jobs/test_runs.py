"""Whole jobs on local machines: taken back with a notice and without, controllers killed, money and
time used up.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.effort import sampled
from support.jobs.kills import TORCH, undisturbed
from support.jobs.runs import Home, until

from deepvm.jobs.history.history import History


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def nothing_is_left(home: Home) -> bool:
    return bool(until(lambda: not home.processes(), 10))


def test_a_job_goes_on_on_the_next_machine_and_loses_no_step(home: Home) -> None:
    inject = {"mttp": "1s", "count": 2, "grace": "4s", "seed": 4}
    job = home.job("two", "exec python own.py 150 0.02;", inject=inject)
    found = home.document("run", str(job))
    assert (found["state"], found["steps"], found["lost_steps"]) == ("done", 150, 0)
    assert (found["preemptions"], found["notices"], found["saves"]["emergency"]) == (2, 2, 2)
    assert [m["end_reason"] for m in found["machines"]] == ["preempted", "preempted", "released"]
    assert (
        found["cost_usd"] == pytest.approx(sum(m["usd"] for m in found["machines"]), abs=1e-7)
        and found["cost_usd"] > 0
    )
    starts = [int(step) for step in (home.result / "starts-0").read_text().split()]
    assert len(starts) == 3 and starts[0] == 0 < starts[1] < starts[2]
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["total_s"], abs=0.5)
    assert nothing_is_left(home)
    shown = home.run("jobs", "show", "two")
    assert "2 preemptions, 2 with a notice; 0 steps lost" in shown.stdout
    pools = home.document("history", "pools")["pools"]
    assert [(p["type"], p["machines"], p["preemptions"], p["missed_notices"]) for p in pools] == [
        ("g4dn.xlarge", 3, 2, 0)
    ]


PLAIN = """
import os, time
for step in range(60):
    time.sleep(0 if os.path.exists(os.environ["RESULT"] + "/hurry") else 0.1)
    open(os.environ["RESULT"] + "/ckpt.pt", "a").write(f"{step} ")
"""


@pytest.mark.slow
def test_a_plain_script_under_a_preemption_is_not_said_to_have_lost_nothing(home: Home) -> None:
    (home.code / "plain.py").write_text(PLAIN)
    done = home.run(
        "run",
        str(home.job("plain", "exec python plain.py;", inject={"lives": ["3s"], "grace": "1s"})),
    )
    assert done.returncode == 0, done
    assert (home.result / "ckpt.pt").read_text().split().count("0") == 2, "all was done twice"
    page = (home.jobs / "plain" / "run.html").read_text()
    for text in (done.stdout, page):
        assert (
            "rogress unknown: this script reports no steps" in text
            and "1 restart (1 preemption): " in text
        )
        assert (
            "steps lost: unknown; up to " in text
            and "0 steps lost" not in text
            and "done twice." not in text
        )
    assert "step 0" not in done.stderr + done.stdout and "0 steps" not in done.stderr + done.stdout
    found = home.document("jobs", "show", "plain")
    assert found["steps"] is found["lost_steps"] is None and found["restarts"]["uncertain_s"] > 3
    assert home.document("jobs", "ls")["jobs"][0]["steps"] is None


@pytest.mark.slow
def test_a_script_that_ends_early_has_not_done_what_was_asked_for(home: Home) -> None:
    done = home.run("run", str(home.job("early", "exec python own.py 10 0.02;", steps=400)))
    assert done.returncode == 1 and "ended with exit code 0 after 10 of 400 steps" in done.stderr, (
        done
    )


@pytest.mark.slow
def test_losses_without_a_notice_cost_what_was_done_since_the_last_version(home: Home) -> None:
    inject = {"mttp": "1s", "count": 1, "missed": 1.0, "seed": 2}
    job = home.job(
        "lost", "exec python own.py 120 0.02;", count=2, save_policy="static:20", inject=inject
    )
    found = home.document("run", str(job))
    assert (found["state"], found["preemptions"], found["notices"]) == ("done", 1, 0)
    assert found["generations"] == 2 and found["saves"]["insurance"] >= 4
    lost = [m for m in found["machines"] if m["end_reason"] == "lost"]
    assert len(lost) == 1 and lost[0]["notice"] is None
    assert nothing_is_left(home)


@pytest.mark.slow
def test_listed_lives_late_notices_and_recommendations(home: Home) -> None:
    """A late notice names the true end, and what still fits is saved.

    A recommendation has had a version made.
    """
    inject = {"lives": ["8s", "7s"], "grace": "6s", "late": 1.0, "rebalance": 1.0, "seed": 0}
    job = home.job(
        "listed", "exec python own.py 700 0.03;", save_policy="static:100000", inject=inject
    )
    found = home.document("run", str(job))
    assert (found["state"], found["steps"], found["preemptions"], found["notices"]) == (
        "done",
        700,
        2,
        2,
    )
    assert found["saves"]["insurance"] >= 2
    with History.reader(home.env) as history:
        assert [event.kind for event in history.events("listed")].count("rebalanced") == 2
    at = datetime.fromisoformat
    lived = [(at(m["notice"]) - at(m["ready"])).total_seconds() for m in found["machines"][:2]]
    # It was warm before the first had gone
    assert lived[0] == pytest.approx(8.0, abs=2.0) and lived[1] > 7.0
    assert nothing_is_left(home)


def test_a_killed_controller_kills_no_training_and_is_resumed(home: Home) -> None:
    job = home.job("killed", "exec python own.py 2000 0.03;")
    process = home.start("run", str(job))
    until(lambda: (home.result / "starts-0").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    listed = home.document("jobs", "ls")["jobs"][0]
    assert (
        listed["name"] == "killed"
        and listed["controller"] == "gone"
        and listed["state"] == "running"
    )
    assert home.document("jobs", "orphans")["orphans"][0]["machine"] == "m1"
    home.hurry()
    found = home.document("jobs", "resume", "killed")
    assert (found["state"], found["generations"], len(found["machines"])) == ("done", 1, 1)
    assert (home.result / "starts-0").read_text() == "0 "  # the same process trained to the end
    assert nothing_is_left(home)


def test_a_job_is_stopped_with_a_version_and_resumed_from_it(home: Home) -> None:
    job = home.job("stopped", "exec python own.py 2000 0.05;")
    process = home.start("run", str(job))
    until(lambda: (home.result / "starts-0").exists())
    assert home.run("jobs", "stop", "stopped").returncode == 0
    assert process.wait(30) == 3
    process.communicate()
    assert nothing_is_left(home)
    home.hurry()
    found = home.document("jobs", "resume", "stopped")
    assert found["state"] == "done" and found["saves"]["stop"] == 1 and found["lost_steps"] == 0
    assert (home.result / "done-0").read_text() == "2000 "


@pytest.mark.slow
def test_a_job_that_has_failed_is_resumed(home: Home) -> None:
    job = home.job("failed", f"test -e {home.result}/mended || exit 3; exec python own.py 20 0.02;")
    done = home.run("run", str(job))
    assert done.returncode == 1 and "deepvm jobs resume failed continues it" in done.stderr, (
        done.stderr
    )
    again = home.run("run", str(job))
    assert again.returncode == 2 and "deepvm jobs resume failed" in again.stderr, again.stderr
    assert home.run("jobs", "resume", "failed").returncode == 1
    (home.result / "mended").touch()
    found = home.document("jobs", "resume", "failed")
    assert (found["state"], found["steps"], found["why"]) == ("done", 20, "")
    done = home.run("jobs", "resume", "failed")
    assert done.returncode == 2 and "failed is done" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("number", "times", "keeps"),
    sampled(
        [
            (signal.SIGINT, 5, False),
            (signal.SIGINT, 1, False),
            (signal.SIGTERM, 1, False),
            (signal.SIGHUP, 2, False),
            (signal.SIGTERM, 1, True),
        ],
        every=5,
    ),
)
def test_signals_release_the_machines(home: Home, number: int, times: int, keeps: bool) -> None:
    """One lets the job save first, more do not; with --keep the machines stay."""
    job = home.job("ended", "exec python own.py 1000 0.05;")
    process = home.start("run", str(job), *(["--keep"] if keeps else []))
    until(lambda: (home.result / "starts-0").exists())
    for _ in range(times):
        os.killpg(process.pid, number)
        time.sleep(0.05)  # signals that come at once count as one
    output = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 128 + number and "Traceback" not in output, output
    if keeps:
        assert "ended trains on, for $0." in output and home.document("jobs", "orphans")["orphans"]
        return
    # The first one may be done before the second is seen.
    assert (times > 1 or "another checkpoint" not in output) and "jobs resume ended" in output
    assert nothing_is_left(home)


@pytest.mark.slow
def test_ctrl_c_keeps_the_machines_where_that_is_wanted(home: Home) -> None:
    job = home.job("kept", "exec python own.py 2000 0.05;")
    process = home.start("run", str(job), "--keep")
    until(lambda: (home.result / "starts-0").exists())
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and b"kept trains on, for $0." in said, said
    assert home.document("jobs", "ls")["jobs"][0]["controller"] == "gone"
    home.hurry()
    found = home.document("jobs", "resume", "kept")
    assert (found["state"], found["generations"], len(found["machines"])) == ("done", 1, 1)
    assert nothing_is_left(home)


@pytest.mark.slow
def test_the_budget_ends_a_job_in_time(home: Home) -> None:
    job = home.job("poor", "exec python own.py 10000 0.02;", budget={"total_usd": 0.0008})
    done = home.run("run", str(job))
    assert (
        done.returncode == 3
        and "the budget of $0.0008 does not last for another checkpoint" in done.stderr
    )
    found = home.document("jobs", "show", "poor")
    assert found["state"] == "stopped" and found["saves"]["stop"] == 1
    assert 0.0004 < found["cost_usd"] <= 0.0008


@pytest.mark.parametrize(
    ("train", "said"),
    sampled(
        [
            ("python -c 'print(\"about to fail\"); raise SystemExit(9)';", "about to fail"),
            ("no-such-command", "exit code 127"),
            ("kill -9 $$;", "exit code 137"),
        ]
    ),
)
def test_a_training_that_fails(home: Home, train: str, said: str) -> None:
    done = home.run("run", str(home.job("fails", train)))
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert nothing_is_left(home)


@pytest.mark.slow
def test_a_setup_that_fails(home: Home) -> None:
    job = home.job("setup", "true;", setup="echo no such package; exit 5")
    done = home.run("run", str(job))
    assert (
        done.returncode == 1 and "no such package" in done.stderr and "exit code 5" in done.stderr
    )
    assert nothing_is_left(home)


def test_setup_code_and_environment(home: Home) -> None:
    (home.code / "data.txt").write_text("from the code folder")
    job = home.job(
        "code",
        'cat data.txt made.txt > "$RESULT/seen"; echo $EXTRA >> "$RESULT/seen"',
        setup="echo setup > made.txt",
    )
    text = job.read_text().replace("env:", "env:\n  EXTRA: more")
    job.write_text(text)
    assert home.document("run", str(job))["state"] == "done"
    assert (home.result / "seen").read_text() == "from the code foldersetup\nmore\n"


@pytest.mark.slow
def test_a_second_job_of_a_name_is_refused(home: Home) -> None:
    job = home.job("once", "true;")
    assert home.document("run", str(job))["state"] == "done"
    done = home.run("run", str(job))
    assert done.returncode == 2 and "--name once-2" in done.stderr
    assert home.document("run", str(job), "--name", "once-2")["state"] == "done"


@pytest.mark.slow
def test_detached(home: Home) -> None:
    job = home.job("away", "exec python own.py 2000 0.05;")
    assert home.run("run", str(job), "--detach").stdout == "away\n"
    until(lambda: (home.result / "starts-0").exists())
    assert home.run("jobs", "save", "away").returncode == 0

    def saved() -> Any:
        return home.document("jobs", "show", "away")["saves"]["periodic"]

    until(saved)
    home.hurry()
    until(lambda: home.document("jobs", "show", "away")["state"] == "done")
    assert nothing_is_left(home)


@pytest.mark.slow
def test_resumed_in_the_background(home: Home) -> None:
    process = home.start("run", str(home.job("left", "exec python own.py 2000 0.05;")))
    until(lambda: (home.result / "starts-0").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    resume = ("jobs", "resume", "left", "--detach")
    poor = home.run(*resume, "--total-usd", "1e-9")
    assert poor.returncode == 2 and "--total-usd" in poor.stderr, poor  # said here, not in a log
    done = home.run(*resume, "--total-usd", "5", "--deadline", "2h")
    assert (done.returncode, done.stdout) == (
        0,
        "left\n",
    ) and "runs in the background" in done.stderr, done
    assert home.document("jobs", "ls")["jobs"][0]["controller"] == "alive"
    again = home.run(*resume)
    assert again.returncode == 4 and "another process is the controller of left" in again.stderr, (
        again
    )
    with History.open(home.env) as history:
        terms = until(
            lambda: history.world("left").terms if history.world("left").terms.total_usd else None
        )
    assert terms.total_usd == 5 and 7000 < terms.end_s - terms.begun_s <= 7200
    home.hurry()
    until(lambda: home.document("jobs", "show", "left")["state"] == "done")
    assert (home.result / "starts-0").read_text() == "0 "
    over = home.run(*resume)
    assert over.returncode == 2 and "left is done" in over.stderr and nothing_is_left(home)


@pytest.mark.slow
def test_versions_in_the_memory_of_an_anchor(home: Home) -> None:
    """Two ranks with a Checkpointer; the anchor costs something, and outlives the others."""
    pytest.importorskip("torch")
    (home.code / "train.py").write_text(TRAIN)
    inject = {"mttp": "2s", "count": 1, "grace": "4s", "seed": 1}
    job = home.job(
        "anchored", "exec python train.py 60;", count=2, anchor={"type": "m7g.large"}, inject=inject
    )
    found = home.document("run", str(job))
    assert (found["state"], found["lost_steps"], found["notices"]) == ("done", 0, 1)
    anchor, *others = found["machines"]
    assert (anchor["type"], anchor["market"], anchor["end_reason"]) == (
        "m7g.large",
        "on-demand",
        "released",
    )
    assert len(others) == 3 and anchor["usd"] > 0
    assert (home.result / "resumed").read_text().startswith("0 tcp://127.0.0.1:")
    assert nothing_is_left(home)


@pytest.mark.slow
def test_parameters_after_six_preemptions_are_those_of_an_undisturbed_run(
    home: Home, tmp_path: Path
) -> None:
    """Bit for bit, on two ranks: with a notice, and without."""
    pytest.importorskip("torch")
    calm = Home(tmp_path / "calm")
    for each in (home, calm):
        (each.code / "train.py").write_text(TORCH)
    inject = {"mttp": "4s", "count": 6, "grace": "8s", "missed": 0.3, "seed": 5}
    found = home.document(
        "run", str(home.job("six", "python train.py 1200 0.05", count=2, inject=inject))
    )
    assert (found["state"], found["preemptions"]) == ("done", 6) and 0 < found["notices"] < 6
    assert found["saves"]["emergency"] > 0
    finals = {(home.result / f"final-{rank}").read_text() for rank in range(2)}
    assert finals == {undisturbed(calm, 1200)}
    assert nothing_is_left(home)
    calm.end()


TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from deepvm.checkpoint import Checkpointer

dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
checkpointer = Checkpointer(model=model, optimizer=optimizer)
first = checkpointer.restore_latest()
if dist.get_rank() == 0:
    open(os.environ["RESULT"] + "/resumed", "a").write(f"{first} {os.environ['DEEPVM_TIERS']}\\n")
for step in range(first, int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(1, 64) * step).sum().backward()
    optimizer.step()
    time.sleep(0.05)
checkpointer.close()
"""
