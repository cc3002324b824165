"""What people read who leave something out, ask for what cannot be saved or drawn, or interrupt."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import Run
from support.places import TESTS

from deepvm.cli.long_runs import filling
from deepvm.profiling.fit.scaling_document import Curve
from deepvm.profiling.fit.scaling_document import Run as Trial
from deepvm.profiling.scaling.measure_scaling import Task
from deepvm.services.profile import campaign

PROFILING = TESTS / "support" / "profiling"
ONE_MACHINE = ["--launcher", "env HOST={host}", "--python", sys.executable]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path / "data"))


def test_what_is_not_given_is_not_shown_as_an_empty_value(run: Run) -> None:
    for words, said in [
        (
            ["scaling"],
            (
                "--hosts: not given or empty (expected one of --hosts NAMES, --hosts-file FILE and"
                " --local N"
            ),
        ),
        (
            ["scaling", "--hosts", "a", "--local", "2"],
            "invalid value for --hosts: 'a and 2' (expected one of",
        ),
        (
            ["saturation", "--receiver", "m"],
            "--senders: not given or empty (expected one of --senders NAMES and",
        ),
        (
            ["scaling", "--hosts", "a", "--save"],
            "--instance-type: not given or empty (expected the provider's name",
        ),
        (
            ["all", "--hosts", "a"],
            "--instance-type: not given or empty (expected the provider's name",
        ),
        (
            ["all", "--hosts", "a,b", "--receiver", "m", "--instance-type", "t"],
            "--receiver-type: not given or empty",
        ),
        (
            ["scaling", "--local", "2", "--save", "--instance-type", "t"],
            "--force-local: not given (expected this",
        ),
    ]:
        code, out, err = run("profile", *words)
        assert (code, out) == (2, "")
        assert f"Error: {said}" in err


@pytest.mark.parametrize("group", ["profile", "tables"])
def test_the_list_of_commands_has_whole_sentences(
    run: Run, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(group, "--help")
    commands = out.partition("Commands:\n")[2].splitlines()
    assert code == 0 and len(commands) >= 5
    assert all(line.endswith(".") and not line.endswith("...") for line in commands)


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_measurement(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *p: None if n == "matplotlib" else there(n, *p)
    )
    words = [
        "--launcher",
        "local",
        "--receiver",
        "m",
        "--senders",
        "a,b",
        "--checkpoint-size",
        "2MB",
    ]
    code, out, err = run("profile", "saturation", *words, "--plot", "t.png")
    assert (code, out) == (2, "") and "--plot needs matplotlib" in err and "starting" not in err


def test_eflops_without_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *p: None if n == "torch" else there(n, *p)
    )
    code, _, err = run("profile", "eflops")
    assert code == 2 and "Error: this needs torch, which is not installed; install it with: " in err
    assert f"{Path(sys.executable).name} -m pip install '.[train]' in a clone of deepvm" in err


@pytest.mark.system
def test_hosts_that_are_one_machine_are_not_measured_to_be_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    types = ["--sender-type", "g4dn.xlarge", "--receiver-type", "c4.xlarge"]
    words = [
        *ONE_MACHINE,
        "--receiver",
        "m",
        "--senders",
        "a,b",
        "--checkpoint-size",
        "2MB",
        "--save",
        *types,
    ]
    code, out, err = run("profile", "saturation", *words)
    assert (code, out) == (
        2,
        "",
    ) and "--force-local: not given (expected this option, or --save over real" in err
    assert "[1/" not in err


@pytest.mark.slow
def test_a_curve_of_one_machine_is_not_measured_to_be_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROFILING), *sys.path]))
    words = [
        *ONE_MACHINE,
        "--hosts",
        "a,b",
        "--model",
        "tiny_models:build",
        "--device",
        "cpu",
        "--save",
    ]
    code, out, err = run("profile", "scaling", *words, "--instance-type", "g4dn.xlarge")
    assert (code, out) == (
        2,
        "",
    ) and "--force-local: not given (expected this option, or --save over real" in err
    assert "n = 2" not in err


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_an_interrupted_command_keeps(
    error: type[BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, said in (
        (tmp_path, f"{tmp_path} keeps what was measured"),
        (tmp_path / "no", ""),
        (None, ""),
    ):
        with pytest.raises(error), filling(place, "profile all"):
            raise error
        assert capsys.readouterr().err.startswith(said)
    with pytest.raises(ValueError, match="x"), filling(tmp_path, "profile all"):
        raise ValueError("x")
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_interrupted_it_says_that_the_same_command_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = [
        "--local",
        "1",
        "--model",
        "tiny_models:build",
        "--batch",
        "2",
        "--resolution",
        "8",
        "--device",
        "cpu",
    ]
    words += ["--steps", "1", "--repeats", "1000", "--out", str(tmp_path / "curve.json")]
    command = [sys.executable, "-m", "deepvm.cli.main", "profile", "scaling", *words]
    own = {"PYTHONPATH": os.pathsep.join([str(PROFILING), *sys.path]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | own
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("n = 1, repeat 1"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert (
        f"{tmp_path / 'curve.json'} keeps what was measured; the same command continues with the"
        " rest\n" in rest
    )
    assert rest.endswith("Error: interrupted\n")


@pytest.mark.system
def test_two_curves_do_not_share_a_file(run: Run) -> None:
    words = [
        "profile",
        "scaling",
        "--hosts",
        "a",
        "--launcher",
        "false {host}",
        "--out",
        "curve.json",
    ]
    with filling(Path("curve.json"), "profile scaling"):
        code, out, err = run(*words)
        assert (
            (code, out) == (2, "")
            and "--out: 'curve.json'" in err
            and "no other 'profile scaling'" in err
        )
    assert list(Path().iterdir()) == []
    assert run(*words)[0] == 1  # as the host is not there
    assert run(*words[:-1], "no/curve.json")[0] == 1


@pytest.mark.parametrize("unwritten", ["", "curve.json: No space left on device"])
def test_a_curve_that_its_file_lacks_is_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, unwritten: str
) -> None:
    runs = (Trial(2, 1, (0.5,), 1.0), Trial(1, 1, (0.4,), 1.0))
    plan = {"sizes": [1, 2], "repeats": 1}
    curve = Curve(
        Task("m").workload("cpu", 1), ("a", "b"), plan, local=False, runs=runs, unwritten=unwritten
    )
    monkeypatch.setattr(campaign, "scaling", lambda options, *say: curve)
    code, out, err = run("profile", "scaling", "--hosts", "a,b", "--out", "curve.json")
    assert "samples/s" in out
    if unwritten:
        assert code == 4 and f"{unwritten}; the curve is printed above" in err
    else:
        assert code == 0 and not err


def test_a_lock_of_a_command_that_was_killed_is_no_lock(run: Run) -> None:
    Path(".curve.json.lock").touch()
    with filling(Path("curve.json"), "profile scaling"):
        assert Path(".curve.json.lock").exists()
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "command", ["scaling --local 2", "saturation --launcher local --receiver m --senders a,b"]
)
def test_a_python_that_is_not_there_is_said_to_be_so(run: Run, command: str) -> None:
    code, out, err = run("profile", *command.split(), "--python", "/nonexist")
    assert (code, out) == (
        2,
        "",
    ) and "--python: '/nonexist' (expected a Python of this machine" in err
    assert "--launcher" not in err


@pytest.mark.mpi
def test_an_interface_that_is_not_there_is_named(run: Run) -> None:
    pytest.importorskip("mpi4py", reason="needs the extra mpi")
    words = ["--launcher", "local", "--receiver", "m", "--senders", "a,b", "--transport", "mpi"]
    code, _, err = run("profile", "saturation", *words, "--interface", "nosuch")
    assert code == 1 and "with --interface nosuch all hosts must reach one another" in err
    said = err.partition("its last line: ")[2].partition(";")[0]
    assert any(map(str.isalpha, said)), err


def test_a_closed_standard_output_is_said() -> None:
    for words in ["recommend --pw 3", "profile eflops", "tables list"]:
        command = f"exec {sys.executable} -m deepvm.cli.main {words} >&-"
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            ["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, env=environ
        )
        assert done.returncode == 1
        assert (
            done.stderr.startswith("Error: standard output is closed; ")
            and done.stderr.count("\n") == 1
        )


def test_one_measurement_is_one(run: Run) -> None:
    Path("g.csv").write_text("n,speedup\n1,1\n2,1.9\n4,3.5\n8,6.1\n")
    words = ["--kind", "scaling", "--instance-type", "g4dn.xlarge", "--workload", "resnet50"]
    assert ": 1 measurement; " in run("tables", "import", "g.csv", *words)[2]
    assert run("tables", "export", "home.json")[2] == "home.json: written, 1 measurement\n"
