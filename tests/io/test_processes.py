"""What is known of other processes, and the end of descendants, on real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.processes import until

from deepvm.io.processes import environment_of, open_files, processes


def test_a_process_with_its_environment_and_files(tmp_path: Path) -> None:
    read, written = tmp_path / "read", tmp_path / "written"
    read.touch()
    with written.open("w") as out, read.open() as into:
        other = subprocess.Popen(
            ["sleep", "60"], stdin=into, stdout=out, env={"PATH": os.environ["PATH"], "MARK": "7"}
        )
    try:
        assert other.pid in processes() and os.getpid() in processes()
        # Popen returns when exec has closed its files, and Linux tells a new environment a little
        # later.
        assert until(lambda: b"MARK=7" in environment_of(other.pid), 10)
        assert {str(read), str(written)} <= set(open_files(other.pid))
        assert str(written) in open_files(other.pid, for_writing=True)
        assert str(read) not in open_files(other.pid, for_writing=True)
    finally:
        other.kill()
        other.wait()
    assert environment_of(other.pid) == [] and open_files(other.pid) == []


# Each process forks every few milliseconds and exits, for five seconds at most. To look for
# children takes as long as on a busy machine.
RUNAWAYS = """
import os, time
from deepvm.io import processes

def run_away():
    if os.fork():
        return
    os.setsid()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        time.sleep(0.003)
    os._exit(0)

def slow_children_of(pid):
    time.sleep(0.001 * len(children_of(pid)))
    return children_of(pid)

processes.become_subreaper()
for _ in range(8):
    run_away()
children_of, processes.children_of = processes.children_of, slow_children_of
raise SystemExit(0 if processes.end_descendants(10.0) else "some are still alive")
"""


def test_processes_that_fork_and_exit_do_not_get_away_on_a_busy_machine() -> None:
    done = subprocess.run([sys.executable, "-c", RUNAWAYS], timeout=60)
    assert done.returncode == 0
