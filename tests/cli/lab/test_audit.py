"""``deepvm audit``: its exit codes, what it says, and whose options are whose."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import support.lab.toy_training as toy
from support.command import Run
from support.schemas import check

pytest.importorskip("torch")
FINAL = ("--final", "final.safetensors")


@pytest.mark.slow
def test_a_certificate(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))
    out = tmp_path / "out"
    words = ["audit", *FINAL, "--kills", 1, "--out", out, toy.__file__, "--out", "{out}"]
    code, said, err = run(*words)
    assert code == 0, err
    assert said.endswith(
        "compared: the tensors of the file of --final\ncertified: it resumes correctly\n"
    )
    assert "run 1, attempt 1: from step" in err
    document = json.loads((out / "audit.json").read_text())
    check(document, "audit")
    assert document["certified"] and document["kills"][0]["resumed_step"] % toy.EVERY == 0
    code, _, err = run(*words)
    assert (
        code == 2
        and "--out" in err
        and "a new or empty folder; an audit is never continued: to use this one" in err
    )
    # deepvm run knows it, until the script changes, and says what it does not show
    job = tmp_path / "job.yaml"
    shutil.copy(toy.__file__, tmp_path / "train.py")
    train = "name: toy\ntrain: python train.py\ncode: .\nmachines: {type: c5.large}\ncloud: aws\n"
    job.write_text(train)
    code, _, err = run("run", job)
    assert code == 2 and "was certified by 'deepvm audit' on 20" in err
    assert "--yes is not given" in err
    with (tmp_path / "train.py").open("a") as file:
        file.write("# other code\n")
    code, _, err = run("run", job)
    assert code == 2 and "certified" not in err and "--no-resume-check" in err


def test_an_audit_needs_no_extra_but_train(tmp_path: Path) -> None:
    """As in the CI examples; a script that fails at once shows that all is loaded by then."""
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    code = "import sys; sys.modules |= dict.fromkeys(['sqlalchemy', 'starlette', 'uvicorn']);"
    code += " from deepvm.cli.main import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "audit", "train.py"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 4 and "sqlalchemy" not in ended.stderr, ended.stderr


@pytest.mark.slow
def test_a_script_that_is_not_certified(run: Run) -> None:
    code, said, _ = run(
        "audit", *FINAL, "--kills", 1, toy.__file__, "--", "--out", "{out}", "--mistake", "anew"
    )
    assert code == 1
    assert "not certified: resumed" in said and "each attempt started at step 0 again" in said


@pytest.mark.system
def test_no_answer_is_4(run: Run) -> None:
    for words, why in [
        (
            ["--mistake", "fails"],
            "the script fails without a kill, with exit code 1:\nValueError: it has never worked",
        ),
        (["--mistake", "silent"], "deepvm.lab.SampleLog"),
        ([], "--final PATH"),
    ]:
        code, said, err = run("audit", toy.__file__, "--out", "{out}", *words)
        assert code == 4 and why in err and not said


def test_wrong_usage_is_2(run: Run) -> None:
    for words, why in [
        (
            ["nothing.py"],
            ("SCRIPT: 'nothing.py' (expected a Python file; there is none of this name"),
        ),
        (["."], "SCRIPT: '.' (expected a Python file; this is a folder"),
        ([], "SCRIPT"),
        (["--kills", "0", toy.__file__], "--kills"),
        (["--kils", "1", toy.__file__], "Possible options: --final, --kills"),
        (["--timeout", "soon", toy.__file__], "--timeout"),
        (["--resume-args", "'", toy.__file__], "--resume-args"),
    ]:
        code, _, err = run("audit", *words)
        assert code == 2 and why in err


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["{out}", "--kills", "1", "--seed=3", "-h"], "--kills, --seed, -h"),
        (["--", "{out}", "--kills", "1"], ""),
        (["--out={out}/x", "--seed", "{out}/seed", "--mine", "--", "--kills"], ""),
    ],
)
def test_options_after_the_script_are_its_own(
    run: Run, tmp_path: Path, words: list[str], named: str
) -> None:
    """That is said, unless ``--`` or ``{out}`` shows that they are meant so."""
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.exit(f'it got {len(sys.argv) - 1}: {sys.argv[-1]}')")
    code, _, err = run("audit", script, *words)
    assert code == 4 and f"it got {len(words) - (words[0] == '--')}: {words[-1]}" in err
    assert f"Note: passed to train.py: {named};" in err if named else "passed to" not in err
