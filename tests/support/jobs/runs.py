"""Jobs of ``deepvm run`` as a user starts them, in processes of their own, with a home of their
own.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from deepvm.jobs.clouds.netns import NetnsCloud

MEET = """
import os, socket, time

def meet():
    \"\"\"Connect the machines of a job, as a process group does.\"\"\"
    place = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
    if os.environ.get("WORLD_SIZE", "1") == os.environ.get("LOCAL_WORLD_SIZE", "1"):
        return None
    if os.environ["RANK"] == "0":
        return socket.create_server(("", place[1]))
    while True:
        try:
            return socket.create_connection(place)
        except OSError:
            time.sleep(0.01)

connection = meet()
"""
SCRIPT = (
    MEET
    + """
import os, sys, time
import deepvm.training as dt

here = os.environ["RESULT"]
steps, pause = int(sys.argv[1]), float(sys.argv[2])
rank = os.environ.get("RANK", "0")
latest = dt.latest()
step = int(latest.read_text()) if latest else 0
open(f"{here}/starts-{rank}", "a").write(f"{step} ")
while step < steps:
    with dt.step_context():
        time.sleep(0 if os.path.exists(f"{here}/hurry") else pause)
    step += 1
    if dt.check_save():
        mine = f"{here}/mine-{rank}-{os.environ['DEEPVM_EPOCH']}-{step}"
        open(mine, "w").write(str(step))
        dt.backup(mine)
open(f"{here}/done-{rank}", "a").write(f"{step} ")
"""
)


class Home:
    """A user's home for jobs, and the results of their trainings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.result = folder, folder / "result"
        self.code = folder / "code"
        self.jobs = folder / "data" / "deepvm" / "jobs"
        self.result.mkdir(parents=True)
        self.code.mkdir()
        (self.code / "own.py").write_text(SCRIPT)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_")}
        self.env |= {
            f"XDG_{kind}_HOME": str(folder / kind.lower())
            for kind in ("DATA", "CACHE", "CONFIG", "STATE")
        }

        # The suite's own is for all tests together
        self.env["DEEPVM_DATA_DIR"] = str(self.jobs.parent)

    def job(self, name: str, train: str, count: Any = 1, **more: Any) -> Path:
        """A job file.

        Commands that end in ``;`` have a shell, and no process that loads torch beforehand.
        """
        document = {
            "name": name,
            "train": train,
            "code": str(self.code),
            "env": {"RESULT": str(self.result), "OMP_NUM_THREADS": "1"},
            "machines": {"type": "g4dn.xlarge", "count": count},
            **more,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def command(self, *words: str, program: str = "deepvm.cli.main") -> list[str]:
        """A command of a script, which has no terminal for questions about money."""
        if words[0] == "run":
            words = ("run", "--yes", *words[1:])
        elif words[:2] == ("jobs", "resume"):
            words = (*words, "--yes")
        return [sys.executable, "-m", program, *words]

    def hurry(self) -> None:
        """From now on trainings do not pause, as they did to wait for something else."""
        (self.result / "hurry").touch()

    def run(self, *words: str, limit_s: float = 200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.env, capture_output=True, text=True, timeout=limit_s
        )

    def start(self, *words: str, program: str = "deepvm.cli.main") -> subprocess.Popen[bytes]:
        """Start a command in the background, in a group of its own."""
        return subprocess.Popen(
            self.command(*words, program=program),
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def answered(self, answers: str, *words: str) -> tuple[int, str]:
        """Exit code and messages of a command on a terminal of 400 columns."""
        ours, theirs = pty.openpty()
        os.write(ours, answers.encode())
        process = subprocess.Popen(
            [sys.executable, "-m", "deepvm.cli.main", *words],
            env={**self.env, "COLUMNS": "400", "TERM": "dumb"},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the terminal of a process that has ended
            pass
        process.communicate(timeout=60)
        os.close(ours)
        return process.returncode, shown.decode()

    def document(self, *words: str) -> dict[str, Any]:
        """What a command prints as JSON."""
        done = self.run(*words, "-o", "json")
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def processes(self) -> list[int]:
        """The processes that know this folder."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and int(place.name) != os.getpid():
                try:
                    text = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
                except OSError:
                    continue
                if str(self.folder).encode() in text:
                    found.append(int(place.name))
        return found

    def end(self) -> None:
        """End what a test has left, networks included."""
        for job in (p for p in self.jobs.glob("*") if p.is_dir() and os.geteuid() == 0):
            NetnsCloud(self.jobs).finish(job.name)
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def until(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait for something, and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found
