"""Matrices of real trainings: what is there and right is kept, all else is made anew.

A kill costs one run at most.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.effort import THOROUGH
from support.lab.small_matrix import MATRIX, RUNS

from deepvm.errors import RequestError
from deepvm.io.processes import descendants
from deepvm.lab.checked import check
from deepvm.lab.matrix import FORMAT, MatrixFile
from deepvm.lab.matrix_runner import MatrixRunner, Progress
from deepvm.lab.running.manifest import read_manifest

pytestmark = pytest.mark.xdist_group("lab")


def matrix(text: str = MATRIX) -> MatrixFile:
    return FORMAT.parse(text, "m.yaml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lab") / "out"
    told: list[Progress] = []
    rows = MatrixRunner(matrix(), out).run(told.append)
    assert [row.state for row in rows] == ["completed"] * 3, rows
    assert [(one.done, one.total) for one in told] == [(1, 3), (2, 3), (3, 3)]
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "out"))


def states(out: Path, text: str = MATRIX, only: str = "") -> dict[str, str]:
    """What became of each run that was asked for, after another start."""
    runner = MatrixRunner(matrix(text), out, only=f"*{only}*")
    return {row.run: row.state for row in runner.run()}


@pytest.mark.system
def test_all_runs_pass_and_are_there(made: Path) -> None:
    checked, _ = check(made)
    assert list(checked.runs) == list(RUNS) and checked.passed == 3 and checked.failures == []
    finals = {(made / "runs" / run / "final.sha256").read_text() for run in RUNS}
    assert len(finals) == 1
    assert {p.name for p in made.iterdir()} == {"runs", "manifest.csv", "planned.json"}


def test_a_training_without_checkpoints_is_always_among_the_runs(tmp_path: Path) -> None:
    """Else a save that changes the training would change its reference, too."""
    runner = MatrixRunner(
        matrix(MATRIX.replace("[none, blk, ovl]", "[ref-blk, blk]")),
        tmp_path / "out",
        only="*-blk-*",
    )
    assert [run.name for run in runner.runs][-1] == RUNS[0]


@pytest.mark.system
def test_what_is_there_is_not_made_again(out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert states(out) == dict.fromkeys(RUNS, "skipped_exists")
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert {path.name for path in before if before[path] != after[path]} == {
        "manifest.csv",
        "planned.json",
    }


def tamper(folder: Path, what: str) -> None:
    path = folder / what
    if what == "final.sha256":
        path.write_text("0" * 64)
    elif what == "rank_1.jsonl":
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:4] + lines[5:]))
    elif what == "supervisor.json":
        path.write_text("{")
    elif what == "audit.json":
        path.write_text(json.dumps({**json.loads(path.read_text()), "key": "of another machine"}))
    else:
        path.unlink()


@pytest.mark.system
@pytest.mark.parametrize("what", ["rank_1.jsonl"])
def test_what_is_not_right_is_made_again(out: Path, what: str) -> None:
    tamper(out / "runs" / RUNS[1], what)
    assert states(out) == {
        RUNS[0]: "skipped_exists",
        RUNS[1]: "completed",
        RUNS[2]: "skipped_exists",
    }
    assert check(out)[0].passed == 3


@pytest.mark.slow
@pytest.mark.parametrize("what", ["config.json", "final.sha256", "supervisor.json", "audit.json"])
def test_whatever_is_not_right_is_made_again(out: Path, what: str) -> None:
    test_what_is_not_right_is_made_again(out, what)


@pytest.mark.system
def test_another_configuration_is_another_run(out: Path) -> None:
    """The undisturbed run knows nothing of failures, so it stays."""
    changed = MATRIX.replace("[7]", "[8]").replace("[none, blk, ovl]", "[none, blk]")
    assert states(out, changed) == {RUNS[0]: "skipped_exists", RUNS[1]: "completed"}
    assert {row.run for row in read_manifest(out)} == set(RUNS)
    assert check(out)[0].passed == 3


@pytest.mark.system
def test_runs_of_another_matrix_are_not_mixed_with_those_of_this_one(out: Path) -> None:
    with pytest.raises(
        RequestError, match=r"--fresh: tokens-gpt-tiny-base-ovl-s0 there has steps 12, now 14"
    ):
        MatrixRunner(matrix(MATRIX.replace("steps: 12", "steps: 14")), out, only="*-blk-*")


@pytest.mark.system
def test_a_damaged_neighbor_is_nobody_elses_fault(out: Path) -> None:
    (out / "runs" / RUNS[2] / "config.json").write_text("{")
    found = MatrixRunner(matrix(), out, only="*-blk-*")
    assert {row.run: row.state for row in found.run()} == {
        RUNS[1]: "skipped_exists",
        RUNS[0]: "skipped_exists",
    }


def test_what_is_compared_with_comes_along(tmp_path: Path) -> None:
    runner = MatrixRunner(matrix(), tmp_path / "out", only="*-blk-*")
    assert [run.name for run in runner.runs][-1] == RUNS[0]
    no_none = matrix(MATRIX.replace("[none, blk, ovl]", "[blk]"))
    assert [run.name for run in MatrixRunner(no_none, tmp_path / "out").runs] == [RUNS[1], RUNS[0]]


def test_a_pattern_that_chooses_nothing_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="tokens-gpt-tiny-base-blk-s0"):
        MatrixRunner(matrix(), tmp_path, only="nothing")


@pytest.mark.system
def test_a_run_that_cannot_be_recorded_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepvm.errors import DataError
    from deepvm.lab.launchers.forkserver import Forkserver

    def fails(*_: object) -> None:
        raise DataError("the memory node did not start")

    monkeypatch.setattr(Forkserver, "run", fails)
    rows = MatrixRunner(matrix(), tmp_path / "out").run()
    assert [(row.state, row.reason) for row in rows] == [
        ("failed", "the memory node did not start")
    ] * 3
    checked, records = check(tmp_path / "out")
    assert records == [] and len(checked.incomplete) == 3
    assert all(
        "missing; 'deepvm lab run' makes this run again" in why for _, why in checked.incomplete
    )


WRITER = """
import sys, time
with open(sys.argv[1] + "/worker_0.jsonl", "a") as file:
    print(flush=True)
    time.sleep(float(sys.argv[2]))
    open(sys.argv[1] + "/final.sha256", "w").write("of an older start")
"""


def writer(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    """A process of an older start that still writes into a run, and ends after so long."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(seconds)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_a_run_is_made_again_when_those_that_write_into_it_have_ended(out: Path) -> None:
    """Its attempts count from 0 again, so their number would refuse no older one."""
    folder = out / "runs" / RUNS[1]
    tamper(folder, "final.sha256")
    with writer(folder, 1.0):
        assert states(out)[RUNS[1]] == "completed"
    assert check(out)[0].passed == 3


def test_a_run_into_which_others_write_is_not_made_again(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = out / "runs" / RUNS[1]
    tamper(folder, "final.sha256")
    monkeypatch.setattr("deepvm.lab.matrix_runner.LIMIT_S", 0.2)
    with writer(folder, 60.0) as process:
        rows = {row.run: row for row in MatrixRunner(matrix(), out).run()}
        process.kill()
    assert {name: row.state for name, row in rows.items()} == {
        **dict.fromkeys(RUNS, "skipped_exists"),
        RUNS[1]: "failed",
    }
    assert f"process {process.pid} still writes" in rows[RUNS[1]].reason


def killed_at(seconds: float, file: Path, out: Path) -> bool:
    """Start a matrix in a process of its own, and kill that after so long.

    See that nothing of it is left.

    Returns whether it had not ended by itself.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "deepvm", "lab", "run", str(file), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(seconds)
    family = {process.pid, *descendants(process.pid)}
    os.kill(process.pid, signal.SIGKILL)
    lived = process.wait() == -signal.SIGKILL
    until = time.monotonic() + 10
    while (left := [pid for pid in family if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    return lived


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.slow
def test_a_matrix_killed_at_random_moments_ends_as_if_it_had_not_been(
    made: Path, tmp_path: Path
) -> None:
    """No run that was complete is made again.

    Only kills count that hit a matrix with runs still to be made.
    """
    random_, file = random.Random(18), tmp_path / "m.yaml"
    file.write_text(MATRIX)
    wanted, landed, turn = 20 if THOROUGH else 3, 0, 0
    while landed < wanted:
        turn += 1
        assert turn < 4 * wanted, f"only {landed} of {turn} matrices were killed before their end"
        out, complete = tmp_path / f"out-{turn}", dict[str, int]()
        for _ in range(4):
            lived = killed_at(random_.uniform(1, 7), file, out)
            rows = read_manifest(out) if (out / "manifest.csv").exists() else []
            landed += lived and len(rows) < len(RUNS)
            for row in rows:
                stamp = (out / "runs" / row.run / "supervisor.json").stat().st_mtime_ns
                assert complete.setdefault(row.run, stamp) == stamp, f"{row.run} was made twice"
            if len(rows) == len(RUNS):
                break
        assert set(states(out).values()) <= {"completed", "skipped_exists"}
        for run, stamp in complete.items():
            assert (out / "runs" / run / "supervisor.json").stat().st_mtime_ns == stamp
        assert check(out)[0].runs == check(made)[0].runs


@pytest.mark.slow
def test_runs_side_by_side_are_those_of_one_after_the_other(made: Path, tmp_path: Path) -> None:
    rows = MatrixRunner(matrix(), tmp_path / "out", jobs=3).run()
    assert {row.state for row in rows} == {"completed"}
    for run in RUNS:
        assert (tmp_path / "out" / "runs" / run / "final.sha256").read_text() == (
            made / "runs" / run / "final.sha256"
        ).read_text()
