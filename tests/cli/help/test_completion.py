"""Values complete in bash, zsh and fish, as the shells ask for them: without requests, errors or
delay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import Run
from support.places import ROOT

CODE = "from deepvm.cli.main import main; main()"
PROGRAM = [sys.executable, "-c", CODE]


def environ_of(shell: str, line: str) -> dict[str, str]:
    """What a shell sets in which this line stands before the cursor."""
    given = {"_DEEPVM_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        return given | {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return given | {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def values_in(shell: str, out: str) -> list[str]:
    if shell == "zsh":
        return [part.split('"')[1] for part in out.split("((")[-1].splitlines() if '"' in part]
    return [one.partition("\t")[0] for one in out.splitlines() if one]


def asked(shell: str, line: str, folder: Path, **environ: str) -> list[str]:
    """What the program answers to a shell."""
    given = {"PYTHONPATH": str(ROOT), **environ_of(shell, line), **environ}
    done = subprocess.run(
        PROGRAM, env=os.environ | given, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return values_in(shell, done.stdout)


VALUES = [
    ("recommend --region us-", "us-west-2"),
    ("recommend -r eu-c", "eu-central-1"),
    ("recommend --gpu A1", "A100"),
    ("recommend --gpu RTX", "RTX*PRO*Server*6000"),
    ("recommend --catalog paper --gpu K", "K80"),
    ("recommend --model llama-", "llama-8b"),
    ("recommend --catalog pa", "paper"),
    ("recommend --instance-type g4", "g4dn.xlarge"),
    ("recommend --exclude p5", "p5.48xlarge"),
    ("recommend --memory-node m6", "m6i.xlarge"),
    ("recommend --architecture sp", "spot-storage"),
    ("recommend --policy no", "noscale"),
    ("recommend --save-policy ad", "adaptive"),
    ("recommend --method f", "fsdp"),
    ("sweep --policy cost", "cost-first"),
    ("explain g5.", "g5.xlarge"),
    ("gpus --gpu L4", "L40S"),
    ("performance predict --gpu H", "H100"),
    ("catalog show si", "simulated"),
    ("catalog refresh --region us-", "us-east-1"),
    ("simulate --policy da", "daly"),
    ("help bud", "budget"),
    ("help rec", "recommend"),
    ("help catalog li", "list"),
    ("ckpt re", "restore"),
]


@pytest.mark.parametrize(("line", "value"), VALUES)
def test_a_value_completes(
    line: str, value: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in environ_of("bash", f"deepvm {line}").items():
        monkeypatch.setenv(name, text)
    code, out, err = run()
    found = values_in("bash", out)
    assert (code, err) == (0, "")
    assert value in found and all(one.startswith(line.rpartition(" ")[2]) for one in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_answered(shell: str, tmp_path: Path) -> None:
    assert "us-west-2" in asked(shell, "deepvm recommend --region us-", tmp_path)


def test_fish_shows_where_a_region_is(tmp_path: Path) -> None:
    environ = {
        "_DEEPVM_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "PYTHONPATH": str(ROOT),
    }
    line = {"_TYPER_COMPLETE_ARGS": "deepvm recommend --region eu-"}
    done = subprocess.run(
        PROGRAM, env=os.environ | environ | line, capture_output=True, text=True, timeout=60
    )
    assert "eu-central-1\tFrankfurt" in done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_broken_file_completes_nothing_and_says_nothing(shell: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "deepvm.toml").write_text("?")
    (tmp_path / "cache").write_text("no folder")
    environ = {"DEEPVM_CACHE_DIR": str(tmp_path / "cache"), "AWS_REGION": "nowhere"}
    for line in (
        "recommend --catalog broken.json --gpu A",
        "recommend --instance-type g4",
        "help nothing x",
    ):
        assert asked(shell, f"deepvm {line}", tmp_path, **environ) == []
    assert "us-east-1" in asked(shell, "deepvm recommend --region us-", tmp_path, **environ)


def test_completion_sends_nothing_and_loads_nothing_slow(tmp_path: Path) -> None:
    code = (
        f"import sys, socket\nsocket.socket.connect = None\ntry:\n    {CODE}\nfinally:\n   "
        " print(*sys.modules)"
    )
    for words in ("recommend --region u", "recommend --model ll", "help b"):
        environ = {
            "_DEEPVM_COMPLETE": "complete_bash",
            "COMP_WORDS": f"deepvm {words}",
            "PYTHONPATH": str(ROOT),
        }
        environ["COMP_CWORD"] = str(len(words.split()))
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | environ, capture_output=True, text=True
        )
        *found, modules = done.stdout.splitlines()
        assert found and not {"boto3", "botocore", "pandas", "scipy", "torch", "pulp"} & set(
            modules.split()
        )


SET_UP = {
    "bash": ".bash_completions/deepvm.sh",
    "zsh": ".zfunc/_deepvm",
    "fish": ".config/fish/completions/deepvm.fish",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder, and a program ``deepvm`` on its path."""
    program = tmp_path / "bin" / "deepvm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{CODE}' \"$@\"\n")
    program.chmod(0o755)
    return tmp_path


def of(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_") and k != "SHELL"}
    return kept | {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.parametrize("shell", SET_UP)
def test_it_is_set_up_from_within_the_shell(shell: str, home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run(
        [shell, "-c", "deepvm --install-completion; true"],
        env=of(home),
        capture_output=True,
        text=True,
    )
    assert f"{shell} completion installed in" in done.stdout, done.stderr
    assert "deepvm" in (home / SET_UP[shell]).read_text()
    again = subprocess.run(
        [shell, "-c", "deepvm --show-completion; true"],
        env=of(home),
        capture_output=True,
        text=True,
    )
    assert again.stdout.strip() == (home / SET_UP[shell]).read_text().strip()


@pytest.mark.parametrize("shell", SET_UP)
def test_the_script_can_be_had_in_any_shell(shell: str, home: Path) -> None:
    """What the page of settings says for shells that are not recognized."""
    environ = of(home) | {"_DEEPVM_COMPLETE": f"source_{shell}"}
    done = subprocess.run([home / "bin" / "deepvm"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and f"complete_{shell}" in done.stdout and done.stderr == ""


def test_bash_itself_completes(home: Path) -> None:
    script = """
        eval "$(_DEEPVM_COMPLETE=source_bash deepvm)"
        COMP_WORDS=(deepvm recommend --region eu-c); COMP_CWORD=3
        _deepvm_completion deepvm
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], env=of(home), capture_output=True, text=True)
    assert done.stdout.split() == ["eu-central-1", "eu-central-2"], done.stderr


def test_fish_itself_completes(home: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    subprocess.run(["fish", "-c", "deepvm --install-completion"], env=of(home), capture_output=True)
    script = "complete -C 'deepvm recommend --region eu-c'"
    done = subprocess.run(["fish", "-c", script], env=of(home), capture_output=True, text=True)
    assert done.stdout.splitlines() == ["eu-central-1\tFrankfurt", "eu-central-2\tZurich"], (
        done.stderr
    )


def test_zsh_itself_completes(home: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    environ = of(home) | {
        "_DEEPVM_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "deepvm recommend --region eu-c",
    }
    # _arguments is what the completion system offers; here it shows what it is given.
    script = '_arguments() { print -r -- "$@" }; eval $(deepvm)'
    done = subprocess.run(["zsh", "-fc", script], env=environ, capture_output=True, text=True)
    assert "eu-central-1" in done.stdout and "Zurich" in done.stdout, done.stderr
