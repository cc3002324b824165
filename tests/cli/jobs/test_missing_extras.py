"""The commands of jobs without their optional libraries: which extra to install.

The agent needs none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from deepvm.cli.main import main
main()
"""


def without(hidden: tuple[str, ...], *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    code = HIDING.format(hidden=hidden)
    environ = {**os.environ, "XDG_DATA_HOME": str(home)}
    environ.pop("DEEPVM_DATA_DIR", None)
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("library", ["sqlalchemy", "starlette", "uvicorn"])
@pytest.mark.parametrize("more", [(), ("--detach",)])
def test_run_names_the_extra_and_begins_nothing(
    library: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("name: x\ntrain: 'true'\nmachines: {type: g4dn.xlarge}\n")
    done = without((library,), "run", str(tmp_path / "job.yaml"), *more, home=tmp_path / "home")
    assert done.returncode == 2 and f"needs {library}" in done.stderr and "'.[run]'" in done.stderr
    assert not list((tmp_path / "home").rglob("x"))


@pytest.mark.parametrize(
    "command", [["jobs", "ls"], ["jobs", "show", "x"], ["history", "pools"], ["history", "export"]]
)
def test_what_reads_the_history_names_the_extra(command: list[str], tmp_path: Path) -> None:
    done = without(("sqlalchemy",), *command, home=tmp_path)
    assert done.returncode == 2 and "needs sqlalchemy" in done.stderr and "'.[run]'" in done.stderr


def test_a_history_in_postgresql_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPVM_HISTORY", "postgresql://127.0.0.1:9/none")
    done = without(("psycopg", "psycopg2"), "jobs", "ls", home=tmp_path)
    assert done.returncode == 2 and "'.[postgres]'" in done.stderr, done.stderr


BEYOND_TYPER = (
    "boto3",
    "botocore",
    "highspy",
    "numpy",
    "pandas",
    "psycopg",
    "pulp",
    "pydantic",
    "scipy",
    "sqlalchemy",
)


def test_the_agent_needs_the_command_line_alone(tmp_path: Path) -> None:
    hidden = (*BEYOND_TYPER, "starlette", "torch", "uvicorn", "yaml")
    words = [
        "agent",
        "--metadata",
        "http://127.0.0.1:9",
        "--",
        "sh",
        "-c",
        'test -e "$DEEPVM_AGENT/board" && exit 9',
    ]
    done = without(hidden, *words, home=tmp_path)
    assert done.returncode == 9, done.stderr
