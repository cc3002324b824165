"""Kill whatever belongs to a job, in all of its states, until it has trained to its end all the
same.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.jobs.kills import said_by
from support.jobs.runs import Home

from deepvm.errors import DataError
from deepvm.jobs.clouds.netns import _METADATA, _space
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import History

CONTROLLER, SERVICE = "controller", "metadata service"
VICTIMS = {
    CONTROLLER: ("deepvm.cli.main run", "deepvm.cli.main jobs resume"),
    "agent": ("deepvm.jobs.agent.main",),
    "machine": ("deepvm.jobs.clouds.local_machine",),
    "trainer": ("python chain.py", "python train.py", " chain.py "),
    "warm process": ("deepvm.jobs.agent.warm",),
    "memory node": ("memory-node serve",),
}
_MACHINE = re.compile(rb"/machines/(m\d+)\b")
_PATIENCE_S, _LONGEST_S = 2.0, 12.0
_UNREADY = {state.value for state in (Machine.INTENT, Machine.BOOTING, Machine.WARMING)}
_MOST_UNREADY = 2
"""Of one job: three machines in a row that end before they can train end it, as they should."""


@dataclass(frozen=True)
class Kill:
    """What was killed, and the states of the job and of the machine that it was on.

    "" for the controller.
    """

    victim: str
    job: str
    machine: str


@dataclass
class Campaign:
    """Kills of several jobs.

    What was killed least, and in states that were hit least, is killed next.
    """

    seen: Counter[Kill] = field(default_factory=Counter)

    def run(
        self, home: Home, job: Path, name: str, seed: int, kills: int, limit_s: float = 600.0
    ) -> list[Kill]:
        """Start a job and kill so often; returns what was killed.

        It is resumed each time its controller is gone.
        """
        rng = random.Random(seed)
        process, killed = home.start("run", str(job)), list[Kill]()
        deadline, next_s = time.monotonic() + limit_s, time.monotonic() + rng.uniform(0.5, 3.0)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            if process.poll() is not None:
                said = said_by(process)
                if process.returncode == 0:
                    return killed
                # Else it was killed before it had written the job down
                begun = b"the name of a job" not in said
                assert process.returncode in (-9, 4) or not begun, (
                    process.returncode,
                    said,
                    killed,
                )
                process = (
                    home.start("jobs", "resume", name) if begun else home.start("run", str(job))
                )
            if len(killed) >= kills:
                home.hurry()
            elif time.monotonic() >= next_s:
                able = list(_able(home, name))
                if sum(kill.machine in _UNREADY for kill in killed) >= _MOST_UNREADY:
                    able = [one for one in able if one[0].machine not in _UNREADY]
                rng.shuffle(able)
                best = min(able, key=lambda one: self._worth(one[0]), default=None)
                # States that last for a moment are waited for, longer when the others were hit
                # often.
                patience_s = (
                    0.0 if best is None else min(_PATIENCE_S * self.seen[best[0]], _LONGEST_S)
                )
                if best is not None and time.monotonic() >= next_s + patience_s:
                    best[1]()
                    self.seen[best[0]] += 1
                    killed.append(best[0])
                    next_s = time.monotonic() + rng.uniform(0.3, 3.0)
        process.kill()
        raise AssertionError(f"the job does not end; killed: {killed}; {said_by(process)!r}")

    def _worth(self, kill: Kill) -> tuple[int, int]:
        return self.seen[kill], sum(n for k, n in self.seen.items() if k.victim == kill.victim)

    def table(self) -> str:
        """How often each was killed, and in which states."""
        rows = []
        for victim in (*VICTIMS, SERVICE):
            mine = {k: n for k, n in self.seen.items() if k.victim == victim}
            jobs, machines = Counter[str](), Counter[str]()
            for kill, count in mine.items():
                jobs[kill.job] += count
                machines[kill.machine] += count
            states = [
                ", ".join(f"{s} {n}" for s, n in c.most_common() if s) for c in (jobs, machines)
            ]
            rows.append(f"| {victim} | {sum(mine.values())} | {states[0]} | {states[1]} |")
        head = [
            "| killed | times | while the job was | while its machine was |",
            "|---|---|---|---|",
        ]
        return "\n".join([*head, *rows, f"| all | {sum(self.seen.values())} | | |"])


def processes(home: Home, kind: str) -> list[int]:
    """Of one kind, by their command lines."""
    return [pid for pid, found, _ in _victims(home) if found == kind]


def _victims(home: Home) -> Iterator[tuple[int, str, str]]:
    """Process, kind and machine of whatever runs."""
    for pid in home.processes():
        with contextlib.suppress(OSError):
            place = Path("/proc") / str(pid)
            line, environ = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            words = line.replace(b"\0", b" ").decode("utf-8", "replace")
            if "unshare" in words or "/bin/sh" in words:
                continue
            machine = _MACHINE.search(line) or _MACHINE.search(environ)
            for kind, texts in VICTIMS.items():
                if any(text in words for text in texts):
                    yield pid, kind, machine[1].decode() if machine else ""


def _able(home: Home, name: str) -> Iterator[tuple[Kill, Callable[[], None]]]:
    """What can be killed now, and how."""
    world = world_of(home, name)
    if world is None:
        return
    known = {key: m.state.value for key, m in world.machines.items()}
    for pid, kind, machine in _victims(home):
        state = "" if kind == CONTROLLER else known.get(machine, Machine.INTENT.value)
        yield Kill(kind, world.job.value, state), lambda pid=pid: _kill(pid)  # type: ignore[misc]
    for machine, state in known.items():
        space = _space(name, machine)
        if world.machines[machine].state.over:
            continue
        if Path("/run/netns", space).exists() and _serves(space):
            yield Kill(SERVICE, world.job.value, state), lambda space=space: _end_service(space)  # type: ignore[misc]


def world_of(home: Home, name: str) -> JobState | None:
    """What the history knows of a job, if it knows it."""
    try:
        with History.reader(home.env) as history:
            return None if history.job(name) is None else history.world(name)
    except DataError:
        return None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _serves(space: str) -> bool:
    words = ["ip", "-n", space, "-o", "address", "show", "dev", "lo"]
    return _METADATA in subprocess.run(words, capture_output=True, text=True, timeout=30).stdout


def _end_service(space: str) -> None:
    """End a machine's metadata service: nobody has its address any more."""
    words = ["ip", "-n", space, "address", "del", f"{_METADATA}/32", "dev", "lo"]
    subprocess.run(words, capture_output=True, timeout=30)
