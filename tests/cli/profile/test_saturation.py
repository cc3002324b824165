"""`deepvm profile saturation` as people run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.effort import sampled
from support.processes import until

COMMAND = [sys.executable, "-m", "deepvm.cli.main", "profile", "saturation"]
LOCAL = ["--launcher", "local", "--receiver", "m", "--senders", "a,b,c", "--checkpoint-size", "2MB"]


def run(*words: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=limit_s, env=environ
    )


def test_json_on_stdout_progress_on_stderr_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    picture = tmp_path / "t.svg"
    done = run(*LOCAL, "--repeats", "2", "-o", "json", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == "deepvm.saturation/1"
    assert [len(row["seconds"]) for row in document["times"]] == [2, 2, 2]
    assert "[6/6]" in done.stderr
    assert "senders at once" in picture.read_text()


def test_a_table() -> None:
    done = run(*LOCAL, "--repeats", "1", "--sender-type", "g4dn.xlarge", "--receiver-gbps", "10")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["senders", "pushes"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert "bandwidth of the receiver: 10 Gbit/s" in done.stdout
    assert "g4dn.xlarge to one receiver, 2 MB by TCP" in done.stdout
    assert "Warning: all senders and the receiver are on this machine" in done.stdout


@pytest.mark.parametrize(
    ("words", "place"),
    sampled(
        [
            (["--launcher", "no-such-program {host}"], "--launcher"),
            (["--senders", "a,-oProxyCommand=x"], "--senders"),
            (["--receiver", "m,n"], "--receiver"),
            (["--plot", "nowhere/t.png"], "--plot"),
            (
                ["--save", "--sender-type", "g4dn.xlarge", "--receiver-type", "c4.xlarge"],
                "--force-local",
            ),
        ]
    ),
)
def test_wrong_words_are_named(words: list[str], place: str) -> None:
    done = run(*LOCAL, *words)
    assert done.returncode == 2
    assert place in done.stderr
    assert "Traceback" not in done.stderr and "[1/" not in done.stderr  # before anything was pushed


def test_a_run_on_this_machine_is_saved_when_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path))
    words = [
        "--save",
        "--force-local",
        "--sender-type",
        "g4dn.xlarge",
        "--receiver-type",
        "c4.xlarge",
    ]
    done = run(*LOCAL, "--repeats", "1", *words)
    assert done.returncode == 0, done.stderr
    assert "saved: saturation:g4dn.xlarge:c4.xlarge:tcp" in done.stderr


def test_hosts_that_cannot_be_reached() -> None:
    done = run("--launcher", "false {host}", "--receiver", "m", "--senders", "a,b")
    assert done.returncode == 1
    assert "Error: receiver m: its command ended with exit code 1" in done.stderr


def test_senders_of_a_file_and_a_python_and_a_folder_of_the_hosts(tmp_path: Path) -> None:
    """The template, the interpreter and the folder are those of `profile scaling`: quoted for the
    shell of a host.
    """
    folder = tmp_path / "my work"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    file = tmp_path / "hosts"
    file.write_text("# my VMs\nann slots=4\nbob slots=4 address=10.0.0.2\n")
    shell = tmp_path / "ssh"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o755)
    words = [
        "--receiver",
        "m",
        "--senders-file",
        str(file),
        "--launcher",
        f"{shell} {{host}}",
        "--repeats",
        "1",
    ]
    words += [
        "--python",
        "./python",
        "--workdir",
        str(folder),
        "--checkpoint-size",
        "2MB",
        "-o",
        "json",
        "-v",
    ]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert [row["n"] for row in json.loads(done.stdout)["times"]] == [1, 2]
    refused = run(*words, "--python", "./no-python")
    assert refused.returncode == 1
    assert (
        "[m] " in refused.stderr
        and "Error: receiver m: its command ended with exit code 127" in refused.stderr
    )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_ended_in_the_middle_it_leaves_no_process_behind(
    number: int, code: int, tmp_path: Path
) -> None:
    template = f"""sh -c 'echo $$ > {tmp_path}/"$0"; exec "$@"' {{host}}"""
    words = ["--launcher", template, "--python", sys.executable, *LOCAL[2:], "--repeats", "1000"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(30) == code
    assert "Traceback" not in rest
    numbers = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(numbers) == 4
    assert until(lambda: not any(Path(f"/proc/{n}").exists() for n in numbers), 10)


@pytest.mark.slow
@pytest.mark.mpi
def test_killed_over_mpi_it_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="needs the extra mpi")
    words = [*LOCAL, "--transport", "mpi", "--repeats", "1000"]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "TMPDIR": str(tmp_path),
    }
    with subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        assert list(tmp_path.glob("deepvm-mpi-*"))
        process.kill()
        process.stderr.read()  # until all that hold it are gone
        assert process.wait(30) == -9
    assert until(lambda: not list(tmp_path.iterdir()), 20)
