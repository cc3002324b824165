"""``deepvm profile eflops``: its documents, its table, its errors, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.command import Run
from support.processes import children, gone, until

pytest.importorskip("torch")

from deepvm.reports.text import scaled  # noqa: E402
from deepvm.services.profile.options import MODELS  # noqa: E402

SHORT = ["--batch", "2", "--windows", "3", "--seconds", "0.01", "--device", "cpu"]


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "profile", "eflops")


@pytest.mark.system
def test_the_document(one_core: None, run: Run) -> None:
    code, out, err = run("--model", "resnet18", *SHORT, "-o", "json")
    document = json.loads(out)
    assert code == 0, err
    assert document["schema_version"] == "deepvm.eflops/1"
    assert document["workload"] == {
        "model": "resnet18",
        "resolution": 32,
        "batch": 2,
        "dtype": "float32",
        "optimizer": "adam",
    }
    speeds = sorted(w["images"] / w["seconds"] for w in document["windows"])
    assert len(speeds) == 3
    assert document["images_per_s"] == pytest.approx(speeds[1])
    assert document["spread"] == pytest.approx((speeds[2] - speeds[0]) / speeds[1])
    assert document["eflops"] == pytest.approx(3 * 74_033_152 * speeds[1])
    assert document["machine"]["torch"]
    assert len(re.findall(r"^resnet18: window \d of 3: ", err, re.MULTILINE)) == 3
    warned = re.findall(r"^Warning: resnet18: (.*)$", err, re.MULTILINE)
    assert warned == document["warnings"]


@pytest.mark.slow
def test_several_models_are_a_list(one_core: None, run: Run) -> None:
    code, out, _ = run("--model", "all", *SHORT, "-o", "json")
    assert code == 0
    assert [d["workload"]["model"] for d in json.loads(out)] == list(MODELS)


@pytest.mark.system
def test_wrong_usage(run: Run) -> None:
    for words, code, message in [
        (["--model", "vgg"], 2, "--model: 'vgg' (expected resnet18, resnet50"),
        (["--model", "../a:b"], 2, "--model: '../a:b' (expected resnet18, resnet50"),
        (
            ["--model", "no_such:model"],
            2,
            "whose operations can be counted without data (ModuleNotFound",
        ),
        (["--windows", "2"], 2, "--windows: 2 (expected a whole number from 3 to 1000"),
        (["--batch", "1"], 2, "--batch: 1"),
        (["--timeout", "nan"], 2, "--timeout: nan"),
        (["--dtype", "int8"], 2, "int8"),
    ]:
        found, out, err = run(*SHORT, *words)
        assert (found, out) == (code, "")
        assert message in err


@pytest.mark.system
def test_images_that_are_not_there(one_core: None, run: Run, tmp_path: Path) -> None:
    code, out, err = run(*SHORT, "--data", tmp_path)
    assert (code, out) == (4, "")
    assert f"{tmp_path}: has neither data_batch_*.bin" in err


@pytest.mark.slow
def test_the_table_also_when_a_later_model_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, one_core: None
) -> None:
    """The second model's name is known to the command only, so that its process refuses it."""
    monkeypatch.setattr("deepvm.services.profile.campaign.MODELS", ("resnet18", "unheard_of"))
    code, out, err = run(
        "--model", "resnet18", "--model", "unheard_of", "--model", "resnet18", *SHORT
    )
    assert code == 2
    assert "--model: 'unheard_of' (expected resnet18, resnet50" in err
    rows = out.splitlines()
    assert re.fullmatch(r"resnet18 +\S+ [MGT]FLOP/s +[\d,.]+ +\d+\.\d% +74\.0 MFLOP", rows[1])
    assert rows[2] == ""
    assert "belongs to its model and to batch 2, random images of 32 x 32, float32, adam" in out
    assert "compare machines by the same" in out


def test_the_names_are_those_of_the_models() -> None:
    from deepvm.profiling.workload import models

    assert tuple(models.MODELS) == MODELS


def test_help_loads_nothing_slow() -> None:
    code = (
        "import sys; from deepvm.cli.main import main\ntry: main(['profile', 'eflops', '--help'])\n"
    )
    code += "except SystemExit: sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, ""),
        # Nobody can clean up then: the processes themselves see that they are alone.
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_the_processes_end_with_the_command(
    number: int, code: int, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "deepvm.cli.main", "profile", "eflops", "--device", "cpu"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert until(lambda: children(process.pid), 60)
    # What was started has become Python, so that it is the worker that is watched.
    (worker,) = children(process.pid)
    assert until(lambda: b"eflops_worker" in Path(f"/proc/{worker}/cmdline").read_bytes(), 60)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert (out, "Traceback" in err) == ("", False)
    assert said in err
    assert until(lambda: gone(worker), 60)
    assert until(lambda: not list(tmp_path.iterdir()), 20)


def test_numbers_have_three_digits() -> None:
    for number, shown in [
        (0.5, "0.500 "),
        (999.4, "999 "),
        (999.5, "1.00 k"),
        (74_033_152, "74.0 M"),
        (1.5e13, "15.0 T"),
    ]:
        assert scaled(number) == shown
