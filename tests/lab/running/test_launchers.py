"""What every launcher promises: exits of ranks, and that nothing outlives an attempt or the process
that started it.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.forkserver
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.lab.trainings import config

from deepvm.io.processes import descendants
from deepvm.lab.faults.fault import FaultInjection
from deepvm.lab.launchers.launcher_registry import LAUNCHERS, find_launcher
from deepvm.lab.records import CONFIG, events_of, read_lines
from deepvm.lab.running.launcher import Attempt, Order
from deepvm.lab.running.supervisor import RankLauncher

pytestmark = pytest.mark.xdist_group("lab")
NAMES = [
    pytest.param(name, marks=[] if name == "forkserver" else pytest.mark.slow)
    for name in LAUNCHERS
    if name != "deepvm-run"
]
LIMIT_S = 90.0


@pytest.fixture
def launcher(request: pytest.FixtureRequest) -> Iterator[RankLauncher]:
    made = find_launcher(request.param)()
    assert isinstance(made, RankLauncher)
    yield made
    made.close()


def order(folder: Path, *strikes: FaultInjection, world: int = 2, steps: int = 8) -> Path:
    """The file of a first attempt."""
    folder.mkdir(exist_ok=True)
    made = config("blocking", strikes, world=world, steps=steps)
    (folder / CONFIG).write_text(json.dumps(made))
    return Order(folder, 0, until=steps).write()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it has not come in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def started(folder: Path, world: int) -> list[int]:
    """Processes of the ranks, as they say."""
    rows = [row for rank in range(world) for row in read_lines(folder / events_of(rank))]
    return [row["pid"] for row in rows if row["event"] == "started"]


def trains(folder: Path) -> bool:
    return all((folder / f"rank_{rank}.jsonl").exists() for rank in range(2))


def below(pid: int) -> set[int]:
    """The ranks that a process has started: its children's children, before they report."""
    return {two for one in descendants(pid) for two in descendants(one)}


def ended(attempt: Attempt) -> bool:
    return all(code is not None for code in attempt.exits())


@pytest.mark.system
@pytest.mark.parametrize("launcher", NAMES, indirect=True)
def test_ranks_that_end_well(launcher: RankLauncher, tmp_path: Path) -> None:
    attempt = launcher.start(order(tmp_path / "run"), 2, free_port())
    until(lambda: ended(attempt))
    assert attempt.exits() == [0, 0]
    until(lambda: not any(map(alive, started(tmp_path / "run", 2))))
    assert (tmp_path / "run" / "final.sha256").exists()
    attempt.kill_all()  # may be called again


@pytest.mark.system
@pytest.mark.parametrize("launcher", NAMES, indirect=True)
def test_a_rank_that_fails_is_seen(launcher: RankLauncher, tmp_path: Path) -> None:
    attempt = launcher.start(
        order(tmp_path / "run", FaultInjection("exit", 3, rank=1)), 2, free_port()
    )
    until(lambda: any(code not in (None, 0) for code in attempt.exits()))
    if "Fork" in type(launcher).__name__:
        assert attempt.exits()[1] == 137
    pids = started(tmp_path / "run", 2)
    attempt.kill_all()
    assert len(pids) == 2 and not any(map(alive, pids))


@pytest.mark.system
@pytest.mark.parametrize("launcher", NAMES, indirect=True)
def test_nothing_outlives_kill_all(launcher: RankLauncher, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    attempt = launcher.start(order(folder, steps=100_000), 2, free_port())
    until(lambda: trains(folder))
    pids = started(folder, 2)
    assert list(attempt.workers()) == pids and all(map(alive, pids))
    attempt.kill_all()
    assert not any(map(alive, pids))
    assert all(code for code in attempt.exits())


@pytest.mark.system
@pytest.mark.parametrize("launcher", NAMES, indirect=True)
def test_kill_all_at_the_start(launcher: RankLauncher, tmp_path: Path) -> None:
    """As soon as there is a process of a rank, long before it can say so."""
    folder, before = tmp_path / "run", below(os.getpid())
    attempt = launcher.start(order(folder, steps=100_000), 2, free_port())
    until(lambda: bool(below(os.getpid()) - before))
    pids = below(os.getpid()) - before
    attempt.kill_all()
    assert pids and not any(map(alive, pids))
    until(lambda: not below(os.getpid()) - before, 10)
    assert not any(map(alive, started(folder, 2))) and not trains(folder)


@pytest.mark.system
@pytest.mark.parametrize("launcher", ["forkserver"], indirect=True)
def test_exits_are_not_lost_while_another_run_starts_ranks(
    launcher: RankLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multiprocessing asks for exits of all children whenever it starts one.

    Who asks second reads 255.
    """
    real, reads = multiprocessing.forkserver.read_signed, threading.Event()

    def slow(descriptor: int) -> int:
        code = real(descriptor)
        reads.set()
        time.sleep(0.5)
        return int(code)

    first = launcher.start(order(tmp_path / "one", FaultInjection("exit", 1)), 1, free_port())
    until(lambda: not any(map(alive, first.workers())))
    monkeypatch.setattr(multiprocessing.forkserver, "read_signed", slow)
    file = order(tmp_path / "two", steps=1)
    second = threading.Thread(target=lambda: launcher.start(file, 1, free_port()).kill_all())
    second.start()
    assert reads.wait(LIMIT_S)
    found = list(first.exits())
    second.join()
    assert found == list(first.exits()) == [137]


@pytest.mark.slow
# The others have no process of their own
@pytest.mark.parametrize("launcher", ["torchrun"], indirect=True)
def test_a_killed_agent_takes_its_ranks_along(launcher: RankLauncher, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    attempt = launcher.start(order(folder, steps=100_000), 2, free_port())
    until(lambda: trains(folder))
    pids, agent = started(folder, 2), attempt.agent()
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), 10)
    assert any(code not in (None, 0) for code in attempt.exits())


PARENT = """
import sys, time
from pathlib import Path
from deepvm.lab.launchers.launcher_registry import find_launcher
if __name__ == "__main__":
    launcher = find_launcher(sys.argv[1])()
    attempt = launcher.start(Path(sys.argv[2]), 2, int(sys.argv[3]))
    time.sleep(1000)
"""


@pytest.mark.parametrize("name", NAMES)
def test_nothing_outlives_a_killed_parent(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with parent(name, order(folder, steps=100_000), tmp_path):
        until(lambda: trains(folder))
        pids = started(folder, 2)
        assert len(pids) == 2
    until(lambda: not any(map(alive, pids)), 10)


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("name", ["forkserver", "torchrun"])
def test_nothing_outlives_a_parent_that_is_killed_while_ranks_start(
    name: str, wait_s: float, tmp_path: Path
) -> None:
    """A rank that starts without its launcher must not take the adopting process for it."""
    folder = tmp_path / "run"
    with parent(name, order(folder, steps=100_000), tmp_path) as process:
        until(lambda: bool(below(process.pid)))
        time.sleep(wait_s)
        family = descendants(process.pid)
    try:
        until(lambda: not any(map(alive, family)), 10)
    finally:
        for pid in filter(alive, family):
            os.kill(pid, signal.SIGKILL)


INTERRUPTED = """
import os, sys, threading, time
from deepvm.lab.launchers.forkserver import Forkserver
if __name__ == "__main__":
    threading.Thread(target=Forkserver().ready, daemon=True).start()
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        os._exit(130)
"""


@pytest.mark.slow
def test_an_interrupt_while_torch_is_loaded_prints_nothing(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(INTERRUPTED)
    words = [sys.executable, str(script)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True)
    until(lambda: any(b"forkserver" in command(pid) for pid in descendants(process.pid)))
    time.sleep(0.5)  # Python itself has begun there
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=LIMIT_S)  # until all have ended
    assert process.returncode == 130 and printed == b""


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def parent(name: str, file: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts an attempt, and is killed at the end."""
    script = folder / "parent.py"
    script.write_text(PARENT)
    process = subprocess.Popen([sys.executable, str(script), name, str(file), str(free_port())])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
