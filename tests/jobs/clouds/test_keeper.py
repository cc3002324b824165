"""Local machines where ``unshare`` is refused, as in most containers: daemons do not outlive them
either.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.effort import THOROUGH
from support.jobs.runs import Home, until

DAEMONS = """
import os, sys, time

def leave():
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True

if leave():  # one that sleeps
    open(sys.argv[1] + "/sleeper", "w").write(str(os.getpid()))
    time.sleep(600)
    os._exit(0)
if leave():  # one that runs away: another process every few milliseconds
    while True:
        if os.fork():
            os._exit(0)
        open(sys.argv[1] + "/runner", "w").write(str(os.getpid()))
        time.sleep(0.003)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    refuses = tmp_path / "bin" / "unshare"
    refuses.parent.mkdir()
    refuses.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2\nexit 1\n")
    refuses.chmod(0o755)
    found.env["PATH"] = f"{refuses.parent}{os.pathsep}{found.env['PATH']}"
    (found.code / "daemons.py").write_text(DAEMONS)
    yield found
    found.end()


def words_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def one(home: Home, *kinds: str) -> int:
    """The process whose words have one text, and not another."""
    found = [
        p
        for p in home.processes()
        if kinds[0] in words_of(p) and not any(k in words_of(p) for k in kinds[1:])
    ]
    return found[0]


def has_daemons(home: Home) -> bool:
    return (home.result / "sleeper").exists() and (home.result / "runner").exists()


TRAIN = 'python daemons.py "$RESULT"; exec python own.py 80 0.03'


@pytest.mark.parametrize(
    "inject",
    [
        {"missed": 1.0},
        *(pytest.param(one, marks=pytest.mark.slow) for one in (None, {"grace": "6s"})),
    ],
)
def test_no_daemon_outlives_a_release_or_a_preemption(
    home: Home, inject: dict[str, object] | None
) -> None:
    more = {} if inject is None else {"inject": {"mttp": "1s", "count": 1, "seed": 4, **inject}}
    found = home.document("run", str(home.job("kept", TRAIN, save_policy="static:10", **more)))
    assert found["state"] == "done" and found["preemptions"] == (inject is not None)
    assert has_daemons(home)
    assert until(lambda: not home.processes(), 10)


@pytest.mark.parametrize(
    "victim",
    ["keeper", *(pytest.param(one, marks=pytest.mark.slow) for one in ("agent", "machine"))],
)
def test_no_daemon_outlives_what_is_killed(home: Home, victim: str) -> None:
    words = {
        "agent": ("deepvm.jobs.agent.main",),
        "machine": ("deepvm.jobs.clouds.local_machine", "keeper"),
        "keeper": ("deepvm.jobs.clouds.reaper",),
    }
    process = home.start("run", str(home.job("killed", TRAIN, save_policy="static:10")))
    until(lambda: has_daemons(home) and (home.result / "starts-0").exists())
    before = set(home.processes()) - {process.pid}
    os.kill(one(home, *words[victim]), signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert until(lambda: not before & set(home.processes()), 10)
    assert until(lambda: not home.processes(), 10)


def test_many_runaways(tmp_path: Path) -> None:
    """The keeper alone, again and again: nothing gets away."""
    (tmp_path / "daemons.py").write_text(DAEMONS)
    words = [sys.executable, str(tmp_path / "daemons.py"), str(tmp_path)]
    script = f"for i in 1 2 3 4 5; do {' '.join(words)}; done; sleep 0.2"
    home_of = Home(tmp_path)
    for _ in range(20 if THOROUGH else 3):
        done = subprocess.run(
            [sys.executable, "-m", "deepvm.jobs.clouds.reaper", "sh", "-c", script], timeout=60
        )
        assert done.returncode == 0
        assert not [p for p in home_of.processes() if "daemons.py" in words_of(p)]
