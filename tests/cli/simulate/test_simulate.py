"""``deepvm simulate`` as people and scripts meet it; the goldens hold nothing that is drawn."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.effort import sampled
from support.places import GOLDEN_FOLDER
from support.processes import descendants, gone, until

from deepvm.cli import long_runs
from deepvm.cli.parameters import SAVE_POLICIES
from deepvm.core.preemption.savepolicy import POLICIES
from deepvm.simulator.engine.engine import HOPELESS_LIVES

GOLDEN = GOLDEN_FOLDER
DEEPVM = [sys.executable, "-m", "deepvm.cli.main"]

CALM = """
name: calm
steps: 1000
step_s: 2
save_s: 5
backup_s: 10
allocation_s: 60
preparation_s: 120
grace_s: 30
save_every_steps: 300
spot_usd_per_hour: 3.6
on_demand_usd_per_hour: 9.7
"""
# Each life ends 1000 s after the request.
RING = {
    "metadata": {"gap_seconds": 100},
    "data": [0, *[1] * 10, 0, *[1] * 10, 0, *[1] * 10, 0, *[1] * 10, 0],
}


@pytest.fixture(autouse=True)
def hopeless_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepvm.simulator.engine.engine.HOPELESS_LIVES", 500)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "calm.yaml").write_text(CALM)
    (tmp_path / "bought.yaml").write_text(
        CALM.replace("calm", "bought") + "market: on-demand\nvms: 3\n"
    )
    (tmp_path / "half.yaml").write_text(
        CALM.replace("calm", "half").replace("on_demand_usd_per_hour: 9.7\n", "")
    )
    (tmp_path / "ring.json").write_text(json.dumps(RING))
    start = "steps: 10\nstep_s: 1\nsave_s: 2\n"
    (tmp_path / "flat.yaml").write_text(start + "lifetime: weibull:0.001\nmttp_s: 60\n")
    (tmp_path / "wide.yaml").write_text(start + "lifetime: lognormal:1000\nmttp_s: 60\n")
    (tmp_path / "stall.yaml").write_text(start + "stall_s: 3\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "unending.json").write_text('{"metadata": {"gap_seconds": 100}, "data": [0, 1, 1]}')
    (tmp_path / "never.json").write_text('{"metadata": {"gap_seconds": 100}, "data": [0, 0]}')
    (tmp_path / "lost.yaml").write_text("steps: 1000\nstep_s: 10\nallocation_s: 100\nmttp_s: 300\n")
    (tmp_path / "bad.yaml").write_text("steps: 5\nstep_s: [2, 1]\nsafe_s: 3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "simulate")


GOLDENS = {
    "simulate.txt": ["--job", "calm.yaml", "--policy", "static:100"],
    "simulate.json": ["--job", "calm.yaml", "--policy", "static:100", "--runs", "3"],
    "simulate-compare.txt": ["--job", "bought.yaml", "--compare", "none,static:100,thesis"],
    "simulate-compare.json": ["--job", "calm.yaml", "--compare", "none,adaptive", "--runs", "2"],
    "simulate-jobs.txt": [
        "--job",
        "calm.yaml",
        "--job",
        "bought.yaml",
        "--compare",
        "none,static:100",
    ],
    "simulate-jobs.csv": ["--job", "calm.yaml", "--job", "bought.yaml"],
    "simulate-sweep.txt": [
        "--job",
        "calm.yaml",
        "--policy",
        "static:100",
        "--sweep",
        "save=5s:25s:10s",
    ],
    "simulate-sweep.csv": ["--job", "calm.yaml", "--sweep", "vms=1:3", "--sweep", "backup=0:60:60"],
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, files: Path, run: Run) -> None:
    """``WRITE_GOLDEN=1`` writes it anew."""
    form = {"txt": "table"}.get(name.rpartition(".")[2], name.rpartition(".")[2])
    code, out, err = run(*GOLDENS[name], "-o", form)
    found = (
        f"$ deepvm simulate {' '.join(GOLDENS[name])} -o {form}\n# exit {code}\n{out}#"
        f" stderr\n{err}"
    )
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_every_golden_file_is_used() -> None:
    assert {p.name for p in GOLDEN.glob("simulate*")} == set(GOLDENS)


def test_the_pinned_keys(files: Path, run: Run) -> None:
    code, out, err = run("--preset", "gpt-117m", "--policy", "thesis", "--runs", "20", "-o", "json")
    found = json.loads(out)
    assert (code, err, found["schema_version"], found["policy"]) == (
        0,
        "",
        "deepvm.simulate/1",
        "thesis",
    )
    assert (found["runs"], found["seed"]) == (20, 1)
    for key in ("total_s", "cost_usd", "preemptions"):
        assert {"mean", "sem", "p5", "p50", "p95"} <= set(found[key])
        assert found[key]["p5"] <= found[key]["p50"] <= found[key]["p95"] and found[key]["sem"] > 0
    assert set(found["breakdown_s"]) == {
        "compute",
        "recompute",
        "save",
        "allocation",
        "preparation",
    }
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["total_s"]["mean"])
    assert found["job"]["step_s"] == [4.5, 4.70002] and found["job"]["market"] == "spot"
    # What is printed is a job file again, and gives the same.
    (files / "again.yaml").write_text(json.dumps(found["job"]))
    again = json.loads(
        run("--job", "again.yaml", "--policy", "thesis", "--runs", "20", "-o", "json")[1]
    )
    assert again == found


def test_several_jobs(files: Path, run: Run) -> None:
    words = [
        "--preset",
        "gpt-117m",
        "--job",
        "calm.yaml",
        "--compare",
        "thesis,none",
        "--runs",
        "9",
    ]
    rows = json.loads(run(*words, "-o", "json")[1])["rows"]
    assert [(r["job"]["name"], r["policy"]) for r in rows] == [
        (name, policy) for name in ("gpt-117m", "calm") for policy in ("thesis", "none")
    ]
    alone = json.loads(
        run("--job", "calm.yaml", "--policy", "none", "--runs", "9", "-o", "json")[1]
    )
    assert rows[3] == alone
    out = run(*words)[1]
    assert "gpt-117m: on demand" in out and "calm: on demand" in out


def test_csv_and_json_hold_the_same(files: Path, run: Run) -> None:
    words = [
        "--preset",
        "gpt-1.3b",
        "--compare",
        "thesis,static:33",
        "--sweep",
        "mttp=2h:4h:2h",
        "--runs",
        "10",
    ]
    rows = json.loads(run(*words, "-o", "json")[1])["rows"]
    lines = list(csv.DictReader(io.StringIO(run(*words, "-o", "csv")[1])))
    assert [(r["sweep"]["mttp"], r["policy"]) for r in rows] == [
        (7200, "thesis"),
        (7200, "static:33"),
        (14400, "thesis"),
        (14400, "static:33"),
    ]
    for row, line in zip(rows, lines, strict=True):
        assert (
            float(line["total_s_mean"]) == row["total_s"]["mean"]
            and line["policy"] == row["policy"]
        )
        assert (
            float(line["cost_usd_p95"]) == row["cost_usd"]["p95"]
            and float(line["mttp"]) == row["sweep"]["mttp"]
        )
        assert float(line["recompute_s"]) == row["breakdown_s"]["recompute"]
    assert rows[0]["total_s"]["mean"] > rows[2]["total_s"]["mean"]


def test_a_trace_is_replayed(files: Path, run: Run) -> None:
    """Lives of 1000 s each, of which 820 s are left for repeated 50 steps and a save, 105 s."""
    words = [
        "--job",
        "calm.yaml",
        "--policy",
        "static:50",
        "--trace",
        "ring.json",
        "--runs",
        "4",
        "-o",
        "json",
    ]
    code, out, _ = run(*words)
    found = json.loads(out)
    # 7 of them a life, 350 steps; 50 more steps, or 30 in the second life with its save at 300, are
    # lost.
    assert code == 0 and found["preemptions"]["p5"] == found["preemptions"]["p95"] == 2
    assert (
        found["breakdown_s"]["allocation"] == 3 * 60
        and found["breakdown_s"]["preparation"] == 3 * 120
    )
    assert found["breakdown_s"]["compute"] == pytest.approx(2000)
    assert found["total_s"]["sem"] == 0


def test_one_that_does_not_get_ahead_costs_no_other_row(files: Path, run: Run) -> None:
    words = [
        "--job",
        "calm.yaml",
        "--job",
        "lost.yaml",
        "--compare",
        "none,young,none",
        "--runs",
        "3",
    ]
    code, out, err = run(*words, "-o", "csv")
    rows = [(row["job"], row["policy"]) for row in csv.DictReader(io.StringIO(out))]
    assert code == 3 and rows == [("calm", "none"), ("calm", "young"), ("job", "young")]
    assert err.startswith("Error: none: job: makes no progress: after ")


@pytest.mark.system
def test_processes_share_the_rows_and_change_nothing(
    files: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Child processes have the real limit
    monkeypatch.setattr("deepvm.simulator.engine.engine.HOPELESS_LIVES", HOPELESS_LIVES)
    words = [
        "--job",
        "calm.yaml",
        "--job",
        "lost.yaml",
        "--compare",
        "none,young",
        "--sweep",
        "grace=0:9:9",
    ]
    alone = run(*words, "--runs", "30", "-o", "json")
    assert alone[0] == 3 and len(json.loads(alone[1])["rows"]) == 6
    assert run(*words, "--runs", "30", "-o", "json", "--jobs", "2") == alone


def test_the_shares_of_an_elastic_cluster_add_up_to_its_overhead() -> None:
    from dataclasses import replace

    from deepvm.core.preemption.job import Span
    from deepvm.core.preemption.savepolicy import EverySteps
    from deepvm.reports.simulation.simulations import shares
    from deepvm.simulator.jobfile import preset
    from deepvm.simulator.monte_carlo import simulate

    job = replace(preset("gpt-117m"), steps=5000, vms=4, elastic=True, allocation_s=Span.of(2000.0))
    found = simulate(job, EverySteps(50), runs=30, seed=1)
    parts = shares(found)
    assert parts["fewer VMs"] > 0.01
    assert sum(parts.values()) == pytest.approx(found.total_s.mean() / (5000 * job.step_s.mean) - 1)


def test_a_replayed_job_needs_no_mean_time_to_preemption(files: Path, run: Run) -> None:
    """Without one a policy would believe that no machine is ever lost, and never save."""
    words = [
        "--job",
        "calm.yaml",
        "--policy",
        "young",
        "--trace",
        "ring.json",
        "--runs",
        "4",
        "-o",
        "json",
    ]
    code, out, err = run(*words)
    assert (
        code == 0
        and json.loads(out)["breakdown_s"]["save"] > 0
        and json.loads(out)["job"]["mttp_s"] == 10_800
    )
    assert "Note: calm: no mttp_s is given; until lifetimes are seen, policies assume 3 h\n" in err
    assert "Note: --trace replays " in err
    (files / "known.yaml").write_text(CALM + "mttp_s: 1000\n")
    assert "no mttp_s" not in run("--job", "known.yaml", *words[2:])[2]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["--job", "bad.yaml"],
            2,
            "bad.yaml:2: invalid value for step_s: a list of 2 (expected seconds from 0",
        ),
        (["--job", "bad.yaml"], 2, "bad.yaml:3: unknown key safe_s (did you mean save_s?)"),
        (["--job", "none.yaml"], 4, "none.yaml: does not exist (expected a simulation file"),
        (["--job", "flat.yaml"], 2, "flat.yaml:4: lifetime: 'weibull:0.001' (expected exponential"),
        (
            ["--job", "stall.yaml"],
            2,
            "stall.yaml:4: stall_s: 3 s is more than the whole save of 2 s",
        ),
        (
            ["calm.yaml"],
            2,
            "--job calm.yaml for a job, or --trace calm.yaml for recorded lifetimes",
        ),
        (
            ["--job", "calm.yaml", "--trace", "unending.json"],
            4,
            "unending.json: no machine is preempted there; name another",
        ),
        ([], 2, "--job: not given or empty (expected a simulation file, or --preset gpt-117m or"),
        (
            ["--job", "calm.yaml", "--job", "./calm.yaml"],
            2,
            "--job: 'calm' (expected jobs whose names differ",
        ),
        (["--preset", "gpt-2"], 2, "--preset: 'gpt-2' (expected gpt-117m or gpt-1.3b"),
        (
            ["--job", "calm.yaml", "--policy", "thesus"],
            2,
            "--policy: 'thesus' (expected none, auto",
        ),
        (
            ["--job", "calm.yaml", "--compare", ""],
            2,
            "--compare: not given or empty (expected none, ",
        ),
        (["--job", "calm.yaml", "--sweep", "mttp=12h:1h"], 2, "expected KEY=LOW:HIGH[:STEP]"),
        (["--job", "calm.yaml", "--sweep", "missed=0:2"], 2, "expected KEY=LOW:HIGH[:STEP]"),
        (["--job", "calm.yaml", "--sweep", "vms=0:2"], 2, "expected KEY=LOW:HIGH[:STEP]"),
        (["--job", "calm.yaml", "--sweep", "mttp=1:12"], 2, "expected KEY=LOW:HIGH[:STEP]"),
        (["--job", "calm.yaml", "--sweep", "mttp"], 2, "--sweep: 'mttp' (expected KEY=LOW:HIGH"),
        (["--job", "calm.yaml", "--sweep", "missed=0:1h"], 2, "--sweep: 'missed=0:1h'"),
        (["--job", "calm.yaml", "--sweep", "vms=1:2:0.5"], 2, "expected KEY=LOW:HIGH[:STEP]"),
        (["--job", "calm.yaml", "--sweep", "vms=1m:2m"], 2, "--sweep: 'vms=1m:2m'"),
        (["--job", "calm.yaml", "--sweep", "steps=1:2"], 2, "keys: mttp, grace, save"),
        (["--job", "calm.yaml", "--sweep", "save=0:1:1ns"], 2, "--sweep: 'save=0:1:1ns'"),
        (["--job", "calm.yaml", "--sweep", "save=0:1h:1s"], 2, "at most 1000 points"),
        (["--job", "calm.yaml", "--sweep", "save=0:1", "--sweep", "save=1:2"], 2, "each key once"),
        (["--job", "calm.yaml", "--runs", "0"], 2, "--runs: 0 (expected a whole number from 1"),
        (["--job", "calm.yaml", "--runs", "many"], 2, "many"),
        (["--job", "calm.yaml", "--seed", "-1"], 2, "--seed: -1 (expected a whole number from 0"),
        (["--job", "calm.yaml", "--jobs", "0"], 2, "--jobs: 0 (expected a number of processes"),
        (
            ["--job", "calm.yaml", "--executor", "ray://x"],
            2,
            "--executor: 'ray://x' (expected dask://",
        ),
        (
            ["--job", "calm.yaml", "--executor", "dask://127.0.0.1:foo"],
            2,
            "--executor: 'dask://127.0.0.1:foo' (expected",
        ),
        (["--job", "calm.yaml", "--market", "black"], 2, "black"),
        (["--job", "calm.yaml", "--trace", "missing.json"], 4, "missing.json: does not exist"),
        (["--job", "calm.yaml", "--trace", "never.json"], 4, "never.json: no life"),
        (["--job", "calm.yaml", "--plot", "a.pdf"], 2, "--plot: 'a.pdf' (expected a file name"),
        (["--job", "lost.yaml", "--policy", "none"], 3, "none: job: makes no progress: after"),
        (
            ["--job", "lost.yaml", "--policy", "none", "--sweep", "grace=0:9:9"],
            3,
            "grace=0, none: job: makes no progress",
        ),
        (
            ["--job", "calm.yaml", "--job", "lost.yaml", "--policy", "none"],
            3,
            "Error: none: job: makes no progress",
        ),
        (
            ["--job", "calm.yaml", "--trace", "ring.json", "--sweep", "mttp=1h:2h"],
            2,
            "a key other than mttp: the lif",
        ),
        (
            ["--job", "calm.yaml", "--policy", "daly", "--compare", "young"],
            2,
            "--policy does not go with --compare",
        ),
        (
            ["--job", "half.yaml", "--deadline", "9h"],
            2,
            "half has spot_usd_per_hour, and no on_demand_usd_per_hour",
        ),
        (
            ["--job", "half.yaml", "--market", "on-demand"],
            2,
            "--market: 'on-demand' (expected a job wit",
        ),
        (
            ["--job", "bought.yaml", "--deadline", "9h"],
            2,
            "--deadline: '9 h' (expected jobs on spot",
        ),
        (
            ["--job", "calm.yaml", "--deadline-policy", "greedy"],
            2,
            "Error: --deadline-policy needs --deadline",
        ),
        (
            ["--job", "calm.yaml", "--deadline", "9h", "--deadline-policy", "me"],
            2,
            "--deadline-policy: 'me' (expected",
        ),
    ],
)
def test_errors_say_what_where_and_what_next(
    words: list[str], code: int, message: str, files: Path, run: Run
) -> None:
    before = set(files.iterdir())
    found, _, err = run(*words)
    assert (found, message in err) == (code, True), err
    assert set(files.iterdir()) == before


def test_hopeless_rows_stand_below_one_another(files: Path, run: Run) -> None:
    code, _, err = run("--job", "lost.yaml", "--policy", "none", "--sweep", "grace=0:9:9")
    lines = [line.partition(":")[0] for line in err.removeprefix("Error: ").splitlines()]
    assert code == 3 and lines == ["grace=0, none", "grace=9, none"]


def test_what_was_not_given_and_is_billed_is_named(files: Path, run: Run) -> None:
    (files / "free.yaml").write_text(CALM.replace("calm", "free").partition("spot_usd")[0])
    for words, prices in (
        ((), "spot_usd_per_hour"),
        (("--deadline", "9h"), "spot_usd_per_hour, on_demand_usd_per_hour"),
        (("--market", "on-demand"), "on_demand_usd_per_hour"),
    ):
        code, out, _ = run("--job", "free.yaml", "--runs", "2", *words)
        assert code == 0 and f"\nfree: counted as 0: {prices}.\n" in out


def test_progress_is_shown_where_nothing_gets_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(long_runs, "_LINE_S", 0.05)
    with long_runs.Progress(20, "runs") as shown:
        assert until(lambda: "0 of 20 runs after 0 s" in capsys.readouterr().err, 5)
        shown.advance(10)
        assert until(lambda: "10 of 20 runs after 0 s" in capsys.readouterr().err, 5)
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_reader_of_the_pipe_may_go_away(files: Path) -> None:
    words = " ".join(
        [*DEEPVM, "simulate", "--job", "calm.yaml", "--sweep", "save=0:400s:1s", "--runs", "1"]
    )
    done = subprocess.run(
        ["bash", "-c", f"{words} -o csv | head -n 1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("save,policy") and done.stderr == ""
    # 0: all of it went into the pipe before head closed it
    assert done.stdout.splitlines()[1] in ("141", "0")
    done = subprocess.run(["bash", "-c", f"{words} >&-"], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    if Path("/dev/full").exists():
        done = subprocess.run(
            ["bash", "-c", f"{words} > /dev/full"], capture_output=True, text=True
        )
        assert (
            done.returncode == 1
            and "No space left" in done.stderr
            and "Traceback" not in done.stderr
        )


LONG = ["simulate", "--preset", "gpt-117m", "--policy", "static:51"]


@pytest.mark.slow
def test_a_terminal_sees_progress_and_a_pipe_does_not() -> None:
    words = [*DEEPVM, *LONG, "--runs", "200000", "-o", "csv"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while select.select([ours], [], [], 60)[0] and (data := os.read(ours, 4096)):
                seen += data
        except OSError:
            pass  # the other end is closed
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0 and b"runs" in seen and b"%" in seen
    assert out.startswith(b"policy,runs") and b"\x1b" not in out
    piped = subprocess.run(words, capture_output=True, timeout=60)
    assert piped.stdout == out and piped.stderr == b""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    ("number", "times"),
    sampled([(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 3)], every=2),
)
def test_an_interrupted_command_leaves_no_process(
    jobs: int, number: int, times: int, tmp_path: Path
) -> None:
    words = [*DEEPVM, *LONG, "--runs", "20000000", "--jobs", str(jobs), "--plot", "a.png"]
    process = subprocess.Popen(
        words,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The workers, and with them the tracker of what they share; then long enough for all to be at
    # work.
    assert until(lambda: len(descendants(process.pid)) >= (3 if jobs > 1 else 0), 60)
    time.sleep(1.5)
    before = descendants(process.pid)
    assert len(before) >= (3 if jobs > 1 else 0) and process.poll() is None
    for _ in range(times):
        if number == signal.SIGINT:
            with contextlib.suppress(ProcessLookupError):  # it has ended before
                os.killpg(process.pid, number)  # as a terminal does
            time.sleep(0.2)
        else:
            process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert out == "" and err == ("Error: interrupted\n" if number == signal.SIGINT else "")
    assert until(lambda: not any(Path(f"/proc/{p}").exists() for p in before), 10)
    assert not list(tmp_path.iterdir())


def test_a_shell_may_write_several_traces(files: Path, run: Run) -> None:
    (files / "other.json").write_text(json.dumps(RING | {"prices": [1]}).replace("100", "50"))
    words = ["--job", "calm.yaml", "--runs", "50", "-o", "json", "--trace", "ring.json"]
    several = run(*words, "--trace", "other.json")
    assert several[0] == 0 and run(*words, "other.json") == several != run(*words)


def test_auto_counts_with_the_preemptions_of_the_job(files: Path, run: Run) -> None:
    """As often as Young's interval, whose first version comes at once as well."""
    (files / "often.yaml").write_text(
        "steps: 5000\nstep_s: 1\nsave_s: 1\nallocation_s: 10\nmttp_s: 300\n"
    )
    words = ["--job", "often.yaml", "--compare", "auto,young", "--runs", "200", "-o", "json"]
    auto, young = (row["total_s"]["mean"] for row in json.loads(run(*words)[1])["rows"])
    assert auto == pytest.approx(young, rel=0.03)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL: it can tell its processes nothing."""
    with (tmp_path / "said").open("w") as said:
        words = [*DEEPVM, *LONG, "--runs", "20000000", "--jobs", "2"]
        process = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)
    try:
        assert until(lambda: len(descendants(process.pid)) >= 3, 60)
        time.sleep(1.5)  # until both are at work
        before = descendants(process.pid)
        assert len(before) >= 3 and process.poll() is None
    finally:
        process.kill()
    process.wait()
    try:
        assert until(lambda: all(map(gone, before)), 10)
    finally:
        for pid in before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_help_names_every_policy() -> None:
    named = {word.partition(":")[0] for word in re.split(r", | or ", SAVE_POLICIES)}
    assert named == {*POLICIES, "static", "every"}
