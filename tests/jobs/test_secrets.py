"""The job's secret, and those of its machines, are in files that only the user reads, and nowhere
else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home, until

from deepvm.jobs.wire import USER, secret_of, token_of


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def test_secrets_stay_where_they_belong(home: Home) -> None:
    script = "env > $RESULT/environment; echo from the training; exec python own.py 100 0.05;"
    process = home.start("run", str(home.job("secret", script)))
    until(lambda: (home.result / "starts-0").exists())
    folder = home.jobs / "secret"
    job = (folder / "secret").read_text().strip()
    machine, token = secret_of(job, "m1").hex(), token_of(job)
    # Goes with the machine
    assert (folder / "machines" / "m1" / "agent" / "token").stat().st_mode & 0o077 == 0
    secrets = [text.encode() for text in (job, machine, token, secret_of(job, USER).hex())]
    for pid in home.processes():
        place = Path("/proc") / str(pid)
        seen = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        assert not [s for s in secrets if s in seen], pid
    shown = (
        home.run("jobs", "show", "secret", "-o", "json").stdout
        + home.run("jobs", "logs", "secret").stdout
    )
    found = (
        process.communicate(timeout=100)[1]
        + shown.encode()
        + (home.result / "environment").read_bytes()
    )
    found += home.run("jobs", "show", "secret", "-o", "json").stdout.encode()
    assert not [s for s in secrets if s in found]
    holders = set()
    for file in [*home.folder.rglob("*")]:
        if file.is_file() and any(s in file.read_bytes() for s in secrets):
            holders.add(file.relative_to(folder).as_posix())
            assert file.stat().st_mode & 0o077 == 0, file
    assert holders == {"secret", "machines/m1/settings.json"}


def test_values_of_env_are_the_user_s_alone(home: Home) -> None:
    """They go to the trainers by way of files, none of which others can read."""
    env = {"RESULT": str(home.result), "HF_TOKEN": "planted-value-of-env"}
    done = home.run("run", str(home.job("secret", "exec python own.py 3 0.05;", env=env)))
    assert done.returncode == 0 and "planted" not in done.stdout + done.stderr
    assert "planted" not in home.run("jobs", "show", "secret", "-o", "html").stdout
    holders = [
        f for f in home.jobs.parent.rglob("*") if f.is_file() and b"planted-value" in f.read_bytes()
    ]
    assert holders and all(f.stat().st_mode & 0o077 == 0 for f in holders), holders
    assert home.jobs.parent.stat().st_mode & 0o077 == 0


def test_an_error_names_no_secret(home: Home) -> None:
    process = home.start("run", str(home.job("secret", "exec python own.py 1000 0.05;")))
    until(lambda: (home.result / "starts-0").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    job = (home.jobs / "secret" / "secret").read_text().strip()
    done = home.run("jobs", "save", "secret", "--debug")
    assert done.returncode == 4 and job not in done.stdout + done.stderr
    assert secret_of(job, USER).hex() not in done.stdout + done.stderr
