"""Job files that cannot be: refused with file and line before anything is started or kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepvm.cli.main import main

GOOD = "name: x\ntrain: t\nmachines: {type: a}\n"
CASES = {
    "norway": (
        b"name: no\ntrain: t\nmachines: {type: a}\n",
        2,
        "job.yaml:1: invalid value for name: false (expected 1 to 40 lower-case letters",
    ),
    "rule": (
        GOOD.encode() + b"inject: {mttp: 30s, scale: 2}\n",
        2,
        "job.yaml:4: inject.scale: only with lives",
    ),
    "control": (GOOD.encode() + b"setup: a\x07b\n", 2, "job.yaml:4: not YAML: "),
    "encoding": (GOOD.encode("utf-16"), 4, "the file is UTF-16"),
    "empty": (b"", 4, "job.yaml: is empty"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "own"))
    text, code, message = CASES[name]
    file = tmp_path / "job.yaml"
    file.write_bytes(text)
    with pytest.raises(SystemExit) as end:
        main(["run", str(file)])
    error = capsys.readouterr().err
    assert end.value.code == code and message in error
    assert not list((tmp_path / "own").glob("jobs/*"))


def test_a_script_in_the_place_of_a_job_file_is_answered_with_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nx: int = [1\n")
    with pytest.raises(SystemExit) as end:
        main(["run", str(script)])
    assert end.value.code == 2
    expected = f"train.py: this is a script: deepvm run plan.json -- python {script}"
    assert expected in capsys.readouterr().err
