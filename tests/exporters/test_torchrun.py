"""The torchrun pair: scripts that bash reads and that really run, with a torchrun that writes down
its arguments.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.plans import PLANS, single_anchor, spot_only, tiering

from deepvm.core.cluster.plan import Plan
from deepvm.exporters.base import write_export
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import render

COMMAND = ExportOptions(command="train.py --epochs 3")
FILLED = {"memory-1": "10.0.0.100", "anchor-1": "10.0.0.50", "training-1": "10.0.0.1"}


def written(
    plan: Plan, folder: Path, options: ExportOptions = COMMAND, *, fill: bool = True
) -> Path:
    """The folder with the export, the addresses filled in unless told otherwise."""
    for path in write_export(render(plan, "torchrun", options), folder):
        if fill and path.name != "launch.sh":
            text = path.read_text()
            for name, address in FILLED.items():
                text = text.replace(f"<{name}>", address)
            path.write_text(text)
    token = folder / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    return folder


# As far as the script sees them: an agent that runs its command, a node that waits.
DEEPVM = """#!/bin/bash
printf '%s ' "$@" >> "$(dirname "$0")/deepvm-ran"; echo >> "$(dirname "$0")/deepvm-ran"
[ "$1" = agent ] || exec sleep 60
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def launch(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run launch.sh; the arguments of torchrun are its output, with a zero byte behind each."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "torchrun").write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    (tools / "torchrun").chmod(0o755)
    (tools / "deepvm").write_text(DEEPVM)
    (tools / "deepvm").chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", **variables}
    # From another folder: the script finds its host files beside itself.
    command = [str(folder / "launch.sh"), *words]
    out = subprocess.run(command, cwd=tools, env=environment, capture_output=True, timeout=30)
    return subprocess.CompletedProcess(
        command, out.returncode, out.stdout.decode(), out.stderr.decode()
    )


def arguments(folder: Path, *words: str, **variables: str) -> list[str]:
    out = launch(folder, *words, **variables)
    assert out.returncode == 0, out.stderr
    return out.stdout.split("\0")[:-1]


def expected(count: int, slots: str, host: str, where: str) -> list[str]:
    return [
        *["--nnodes", f"{count}:{count}", "--nproc-per-node", slots, "--max-restarts", "100"],
        *["--rdzv-backend", "c10d", "--rdzv-id", "deepvm", "--rdzv-endpoint", f"{host}:29500"],
        *["--rdzv-conf", f"join_timeout=3600{where}"],
    ]


TRAINED = ["train.py", "--epochs", "3"]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("options", [ExportOptions(), COMMAND], ids=["bare", "command"])
def test_bash_reads_it(plan: Plan, options: ExportOptions, tmp_path: Path) -> None:
    script = written(plan, tmp_path, options) / "launch.sh"
    out = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert out.returncode == 0 and not out.stderr


def test_tiering_meets_at_the_memory_node(tmp_path: Path) -> None:
    found = arguments(written(tiering(), tmp_path))
    assert found == expected(17, "1", "10.0.0.100", ",is_host=false") + TRAINED


def test_single_anchor_meets_at_the_anchor(tmp_path: Path) -> None:
    folder = written(single_anchor(), tmp_path)
    assert arguments(folder) == expected(9, "2", "10.0.0.50", ",is_host=false") + TRAINED
    assert arguments(folder, "anchor") == expected(9, "2", "10.0.0.50", ",is_host=true") + TRAINED


def test_without_a_vm_that_stays_the_first_one_is_met_at(tmp_path: Path) -> None:
    folder = written(spot_only(), tmp_path)
    assert arguments(folder) == expected(4, "gpu", "10.0.0.1", "") + TRAINED
    assert "All VMs are spot" in (folder / "launch.sh").read_text()


def test_arguments_replace_the_command(tmp_path: Path) -> None:
    folder = written(single_anchor(), tmp_path)
    assert arguments(folder, "anchor", "other.py", "a b")[-2:] == ["other.py", "a b"]
    assert arguments(folder, "other.py", "anchor")[-2:] == ["other.py", "anchor"]


def test_a_command_is_needed(tmp_path: Path) -> None:
    out = launch(written(tiering(), tmp_path, ExportOptions()))
    assert out.returncode == 2 and "usage: " in out.stderr and not out.stdout
    assert arguments(tmp_path, "train.py")[-1] == "train.py"


def test_variables_change_it(tmp_path: Path) -> None:
    found = arguments(
        written(tiering(), tmp_path),
        RENDEZVOUS_PORT="1234",
        RENDEZVOUS_ID="mine",
        MIN_NODES="4",
        MAX_RESTARTS="5",
        JOIN_TIMEOUT_S="60",
    )
    for words in (
        ["--rdzv-endpoint", "10.0.0.100:1234"],
        ["--rdzv-id", "mine"],
        ["--nnodes", "4:17"],
        ["--max-restarts", "5"],
        ["--rdzv-conf", "join_timeout=60,is_host=false"],
    ):
        at = found.index(words[0])
        assert found[at : at + 2] == words


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_placeholders_are_refused(plan: Plan, tmp_path: Path) -> None:
    folder = written(plan, tmp_path, fill=False)
    out = launch(folder)
    name = "memory-hosts" if plan.memory else "hostfile"
    assert (
        out.returncode == 2
        and f"{folder}/{name}: fill in the addresses" in out.stderr
        and not out.stdout
    )
    (folder / name).write_text("# nothing but a comment\n\n")
    assert launch(folder).returncode == 2
    (folder / name).unlink()
    assert launch(folder).returncode not in (0, None)


def test_the_memory_node_holds_the_store_until_it_is_stopped(tmp_path: Path) -> None:
    """With a stand-in for PyTorch, which is not installed here: what is asked of it, and that the
    script waits.
    """
    folder = written(tiering(), tmp_path)
    stand_in = tmp_path / "stand-in" / "torch"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("")
    (stand_in / "distributed.py").write_text(
        "def TCPStore(*a, **k):\n    print(a, sorted(k.items()), flush=True)\n"
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    (tools / "deepvm").write_text(DEEPVM)
    (tools / "deepvm").chmod(0o755)
    process = subprocess.Popen(
        [str(folder / "launch.sh"), "rendezvous"],
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(stand_in.parent),
            "RENDEZVOUS_PORT": "1234",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert (
            process.stdout.readline()
            == "('localhost', 1234) [('is_master', True), ('wait_for_workers', False)]\n"
        )
        assert process.stdout.readline() == "rendezvous on port 1234\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
        assert (
            (tools / "deepvm-ran")
            .read_text()
            .startswith("memory-node serve --listen 0.0.0.0:7070 --token-file")
        )
    finally:
        process.kill()
        process.communicate()


def test_a_token_is_made_once_and_never_shown(tmp_path: Path) -> None:
    folder = written(tiering(), tmp_path)
    (folder / "token").unlink()
    out = launch(folder)
    assert out.returncode == 2 and "run " in out.stderr and "token once" in out.stderr
    assert launch(folder, "token").returncode == 0
    token = (folder / "token").read_text()
    assert len(token) == 64 and (folder / "token").stat().st_mode & 0o777 == 0o600
    assert launch(folder, "token").returncode == 0 and (folder / "token").read_text() == token
    arguments(folder)
    assert token not in (folder / "tools" / "deepvm-ran").read_text()


_WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    min_size=1,
    max_size=4,
)


@pytest.mark.system
@settings(max_examples=examples(40))
@given(_WORDS.filter(lambda w: w[0] not in ("python", "python3", "torchrun", "bash", "sh")))
def test_any_command_reaches_torchrun(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    written(tiering(), folder, ExportOptions(command=shlex.join(words)))
    assert arguments(folder)[-len(words) :] == words
