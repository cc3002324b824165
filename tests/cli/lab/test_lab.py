"""``deepvm lab``: what people type, what they see, and the exit codes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import Run
from support.lab.made_runs import ENVIRONMENT, make_calm, make_run
from support.lab.small_matrix import MATRIX, RUNS
from support.small_disk import small_disk

from deepvm.cli.main import main
from deepvm.lab.running.manifest import Manifest, Row, key_of
from deepvm.reports.lab import files as lab_files

pytestmark = pytest.mark.xdist_group("lab")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs that are right, written by hand, and reported."""
    out = tmp_path_factory.mktemp("made") / "out"
    make_calm(out / "runs" / RUNS[0])
    make_run(out / "runs" / RUNS[1])
    manifest = Manifest(out)
    for name, failure, variant in ((RUNS[0], "calm", "none"), (RUNS[1], "base", "blk")):
        config = json.loads((out / "runs" / name / "config.json").read_text())
        manifest.add(
            Row(
                key_of(config, ENVIRONMENT),
                name,
                "tokens",
                "gpt-tiny",
                failure,
                variant,
                3,
                "completed",
                10.0,
                2.0,
                0,
            )
        )
    with pytest.raises(SystemExit) as end:
        main(["lab", "report", str(out)])
    assert not end.value.code
    return out


@pytest.fixture
def made(tmp_path: Path, reported: Path) -> Path:
    return shutil.copytree(reported, tmp_path / "out")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For reports whose figures no test looks at: drawing takes as long as all else."""
    monkeypatch.setattr(lab_files, "write_figures", lambda *_: ())


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "m.yaml"
    path.write_text(MATRIX)
    return path


@pytest.mark.system
def test_a_matrix_is_run_checked_and_reported(run: Run, matrix: Path, tmp_path: Path) -> None:
    out = tmp_path / "lab"
    code, text, err = run("lab", "run", matrix, "--out", out, "-o", "json")
    assert code == 0, err
    document = json.loads(text)
    assert document["schema_version"] == "deepvm.lab-report/1"
    (suite,) = document["suites"]
    assert (suite["dataset"], suite["model"], suite["failure"]) == ("tokens", "gpt-tiny", "base")
    assert set(suite["variants"]) == {"none", "blk", "ovl"}
    assert suite["variants"]["blk"]["restarts"] == 1 and suite["variants"]["blk"]["audit"] == "pass"
    assert set(suite["variants"]["blk"]["recovery_s"]) == {"detect", "restart", "restore", "replay"}
    assert suite["paired"]["ovl_over_blk"]["n"] == 1

    code, text, _ = run("lab", "check", out, "-o", "json")
    document = json.loads(text)
    assert code == 0 and (document["runs"], document["passed"], document["failures"]) == (3, 3, [])
    assert set(document["gates"]) == {
        *(
            "steps",
            "samples",
            "replays",
            "parameters",
            "failures",
            "stories",
            "leftovers",
            "artefacts",
        )
    }
    assert all(gate == {"passed": 3, "failed": 0} for gate in document["gates"].values())

    code, text, err = run("lab", "run", matrix, "--out", out)
    assert code == 0 and "3 of 3 runs pass all gates" in text
    with (out / "manifest.csv").open() as file:
        assert {row["state"] for row in csv.DictReader(file)} == {"skipped_exists"}

    code, _, err = run("lab", "report", out)
    assert (
        code == 0 and "report.html" in err and "<html" in (out / "report.html").read_text().lower()
    )
    for name in (
        "summary.csv",
        "detailed_table.csv",
        "analysis.md",
        "tokens-gpt-tiny-base_publishable.json",
    ):
        assert (out / name).stat().st_size


@pytest.mark.system
def test_only_some_runs(run: Run, matrix: Path, tmp_path: Path) -> None:
    code, _, err = run(
        "lab", "run", matrix, "--out", tmp_path / "lab", "--only", "*-none-*", "-o", "json"
    )
    assert code == 0, err
    assert [p.name for p in (tmp_path / "lab" / "runs").iterdir()] == [RUNS[0]]
    code, out, _ = run("lab", "check", tmp_path / "lab")
    assert code == 0 and "1 of 1 runs pass all gates; 2 more of the matrix were left out" in out
    page = (tmp_path / "lab" / "report.html").read_text()
    assert ">incomplete<" in page and ">proven<" not in page
    code, _, err = run("lab", "run", matrix, "--out", tmp_path / "lab", "--only", "nothing")
    assert code == 2 and "--only" in err and RUNS[1] in err


def test_failures_of_gates_are_listed_and_the_exit_code_is_1(run: Run, made: Path) -> None:
    (made / "runs" / RUNS[1] / "final.sha256").write_text("0" * 64)
    code, out, _ = run("lab", "check", made)
    assert (
        code == 1 and "1 of 2 runs pass all gates" in out and "other parameters than those" in out
    )
    code, out, _ = run("lab", "check", made, "-o", "json")
    failure, published = json.loads(out)["failures"]
    assert (
        code == 1
        and failure["run"] == RUNS[1]
        and failure["gate"] == "parameters"
        and failure["reason"]
    )
    assert (
        published["gate"] == "stories"
        and "'deepvm lab report' writes it again" in published["reason"]
    )


@pytest.mark.usefixtures("no_figures")
def test_one_damaged_run_hides_no_other(run: Run, made: Path) -> None:
    (made / "runs" / RUNS[1] / "rank_0.jsonl").write_text("{\n{}\n")
    for command in ("check", "report"):
        code, out, err = run("lab", command, made)
        assert (
            code == 4
            and "1 of 2 runs pass all gates" in out
            and f"{RUNS[1]}: rank_0.jsonl, line 1: damaged" in err
        )
    code, out, _ = run("lab", "check", made, "-o", "json")
    document = json.loads(out)
    assert (
        code == 4
        and document["runs"] == 2
        and document["gates"]["steps"] == {"passed": 1, "failed": 0}
    )
    assert document["gates"]["artefacts"] == {"passed": 1, "failed": 1}


@pytest.mark.parametrize("text", [None, '{"runs": 3}'])
@pytest.mark.usefixtures("no_figures")
def test_publishable_files_must_be_there(run: Run, made: Path, text: str | None) -> None:
    path = made / "tokens-gpt-tiny-base_publishable.json"
    path.unlink() if text is None else path.write_text(text)
    code, out, err = run("lab", "check", made, "-o", "json")
    assert code == 4 and path.name in err and "'deepvm lab report' writes it again" in err
    assert {one["gate"] for one in json.loads(out)["failures"]} == {"artefacts"}
    assert run("lab", "report", made)[0] == 0 and run("lab", "check", made)[0] == 0


def test_publishable_files_of_other_runs_tell_another_story(run: Run, made: Path) -> None:
    path = made / "tokens-gpt-tiny-base_publishable.json"
    document = json.loads(path.read_text())
    document["runs"] = document["runs"][:1]
    path.write_text(json.dumps(document))
    code, out, _ = run("lab", "check", made, "-o", "json")
    (failure,) = json.loads(out)["failures"]
    assert code == 1 and failure["gate"] == "stories" and path.name in failure["reason"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "No such file or directory; give the folder of 'deepvm lab run --out'"),
        (lambda out: (out / "manifest.csv").write_text("x"), "has other columns"),
        (
            lambda out: (out / "runs" / RUNS[0] / "supervisor.json").unlink(),
            "missing; 'deepvm lab run' makes this run",
        ),
        (
            lambda out: (out / "runs" / RUNS[1] / "rank_0.jsonl").write_bytes(b"\xff\n{}\n"),
            "rank_0.jsonl, line 1: ",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "report"])
@pytest.mark.usefixtures("no_figures")
def test_damaged_artefacts_are_exit_4(
    run: Run, made: Path, damage: object, said: str, command: str
) -> None:
    damage(made)  # type: ignore[operator]
    code, _, err = run("lab", command, made)
    assert code == 4 and said in err


@pytest.mark.parametrize("text", ["a: [", MATRIX.replace("world: 2", "world: 3")])
def test_bad_matrices_are_exit_2_and_write_nothing(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    code, _, err = run("lab", "run", tmp_path / "m.yaml", "--out", tmp_path / "lab")
    assert code == 2 and "m.yaml" in err and not (tmp_path / "lab").exists()


def test_a_data_set_whose_files_are_not_there_says_where_to_get_them(
    run: Run, tmp_path: Path
) -> None:
    text = MATRIX.replace("{name: tokens, size: 256}", "{name: cifar10, path: PLACE}").replace(
        "gpt-tiny", "resnet8"
    )
    (tmp_path / "m.yaml").write_text(text.replace("PLACE", str(tmp_path)))
    code, _, err = run("lab", "run", tmp_path / "m.yaml", "--out", tmp_path / "lab")
    assert (
        code == 4
        and "give the folder with the files of CIFAR" in err
        and not (tmp_path / "lab").exists()
    )


def test_a_folder_with_files_of_somebody_else_is_refused(
    run: Run, matrix: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "runs" / "of-somebody-else.txt"
    kept.parent.mkdir()
    kept.touch()
    for words in (["--fresh"], []):
        code, _, err = run("lab", "run", matrix, "--out", tmp_path, *words)
        assert code == 2 and "--out" in err and "it has runs" in err
        assert [path.name for path in tmp_path.rglob("*")] == ["runs", kept.name]


@pytest.mark.slow
def test_fresh_takes_a_folder_of_another_matrix(run: Run, matrix: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "lab", tmp_path / "other.yaml"
    assert run("lab", "run", matrix, "--out", out)[0] == 0
    other.write_text(MATRIX.replace("steps: 12", "steps: 10"))
    code, _, err = run("lab", "run", other, "--out", out, "--only", "*-blk-*")
    assert code == 2 and "--fresh" in err
    other.write_text(MATRIX.replace("base:", "late:"))
    code, _, err = run("lab", "run", other, "--out", out, "--only", "*-blk-*", "--fresh")
    assert code == 0, err
    assert [path.name for path in out.glob("*_publishable.json")] == [
        "tokens-gpt-tiny-late_publishable.json"
    ]


def test_a_folder_that_is_being_filled_is_locked(run: Run, matrix: Path, tmp_path: Path) -> None:
    from deepvm.cli.long_runs import filling

    out = tmp_path / "lab"
    out.mkdir()
    with filling(out, "deepvm lab run"):
        code, _, err = run("lab", "run", matrix, "--out", out)
    assert code == 2 and "no other 'deepvm lab run' writes to now" in err


def test_out_that_is_empty_is_not_the_current_folder(run: Run, matrix: Path) -> None:
    before = set(os.listdir())
    code, _, err = run("lab", "run", matrix, "--out", "")
    assert code == 2 and "--out" in err and set(os.listdir()) == before


def test_out_that_is_a_file(run: Run, matrix: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    code, _, err = run("lab", "run", matrix, "--out", tmp_path / "file")
    assert (
        code == 2
        and "--out" in err
        and "a folder" in err
        and (tmp_path / "file").read_text() == "kept"
    )


def test_a_folder_that_cannot_be_made(run: Run, matrix: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("lab", "run", matrix, "--out", tmp_path / "file" / "lab")
    assert (
        code == 2 and "--out" in err and str(tmp_path / "file") in err and "Not a directory" in err
    )


@pytest.mark.slow
def test_a_full_disk_is_no_fault_of_a_strategy(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    # Checkpoints are far larger than records
    file.write_text(MATRIX.replace("width: 8", "width: 128"))
    with small_disk(tmp_path / "disk", "1M") as disk:
        code, out, err = run("lab", "run", file, "--out", disk / "lab")
    # No verdict of any run
    assert code == 4 and "the disk is full" in err and "make space" in err and not out, err


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_an_interrupted_matrix_can_be_resumed(
    run: Run, matrix: Path, tmp_path: Path, number: int, expected: int
) -> None:
    out = tmp_path / "lab"
    words = [sys.executable, "-m", "deepvm", "lab", "run", str(matrix), "--out", str(out)]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    until = time.monotonic() + 60
    while not list(out.glob("runs/*/rank_0.jsonl")) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == expected, err
    assert (
        "keeps what was measured; the same command continues with the rest" in err
        and "Traceback" not in err
    )
    assert not subprocess.run(["pgrep", "-f", str(out)], capture_output=True, text=True).stdout
    code, _, err = run("lab", "check", out)
    assert code == 4 and "not run yet; 'deepvm lab run' continues with what is missing" in err


def test_the_listing_names_what_matrix_files_can(run: Run) -> None:
    code, out, _ = run("lab", "list", "-o", "json")
    entries = json.loads(out)["entries"]
    names = {(one["kind"], one["name"]) for one in entries}
    assert (
        code == 0
        and {("datasets", "digits"), ("models", "resnet8"), ("failures", "held-gil")} <= names
    )
    assert all(one["what"] for one in entries)
    assert len([one for one in entries if one["kind"] == "failures"]) >= 13


@pytest.mark.slow
def test_every_negative_control_fails_its_gate_and_no_other(run: Run) -> None:
    code, out, _ = run("lab", "selftest", "-o", "json")
    found = json.loads(out)["controls"]
    assert (
        code == 0
        and len(found) >= 8
        and all(one["right"] and set(one["failed"]) == {one["gate"]} for one in found)
    )


def test_a_control_that_passes_is_exit_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepvm.lab import selftest

    tested = [
        selftest.TestedControl(**vars(control), name=name)
        for name, control in selftest.CONTROLS.items()
    ]
    monkeypatch.setattr(selftest, "run_all", lambda folder, tell: tested)
    code, out, _ = run("lab", "selftest")
    assert (
        code == 1
        and f"0 of {len(tested)} negative controls fail" in out
        and "it has passed all gates" in out
    )
