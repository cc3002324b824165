"""Machines that are local process trees, each with a folder, metadata service, price and end.

The lock in a machine's folder, which its processes hold open, is free only when they are gone.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

from deepvm.core.json_types import JsonDict
from deepvm.errors import DataError
from deepvm.io.atomic_write import write_json
from deepvm.io.failpoints import POINTS, point
from deepvm.io.processes import last_lines
from deepvm.jobs.cloud import Cloud, Listing, RefusedError, Start, UnknownError
from deepvm.jobs.decisions.world import MachineRecord
from deepvm.jobs.steady_clock import clock_of

LOCK = "lock"
MACHINE = "machine.json"
ENDED = "ended.json"
ORDER = "order.json"
AGENT = "agent"
LOG = "machine.log"
_LAST_LINES = 40
_LOOK_S = 0.01
_GONE_S = 10.0


class LocalCloud(Cloud):
    """Machines on this computer."""

    can_preempt = True
    near = True

    def __init__(self, folder: Path, allocation_s: float = 0.5) -> None:
        self._folder = folder  # For all jobs' machines
        self._allocation_s = allocation_s  # From the request to the launch
        self._ends: dict[Path, JsonDict] = {}

    def _machine(self, job: str, machine: str) -> Path:
        return self._folder / job / "machines" / machine

    def host(self, job: str) -> str:
        return "127.0.0.1"

    def settings(self, record: MachineRecord, job: str) -> JsonDict:
        return {
            "address": "127.0.0.1",
            "interface": "lo",  # of collectives
            "metadata_host": "127.0.0.1",
            "metadata_port": 0,
            # Found by the variable of AWS's libraries, instead of the one that the computer has
            "metadata_named": True,
        }

    def words(self, record: MachineRecord, job: str) -> list[str]:
        return jail()

    def finish(self, job: str) -> None:
        self.listing(job)  # which removes what machines have left

    def request(self, record: MachineRecord, start: Start) -> float:
        time.sleep(self._allocation_s)
        place = self._machine(start.job, start.machine)
        try:
            return self._start(place, record, start)
        except OSError as error:
            raise RefusedError(f"{place}: {error.strerror or error}") from None

    def _start(self, place: Path, record: MachineRecord, start: Start) -> float:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            free = _locked(descriptor, fcntl.LOCK_EX)
            if (place / MACHINE).exists():  # asked for again, after a reply that was lost
                return float(_read(place / MACHINE)["launched_s"])
            if not free:
                raise UnknownError(f"{place}: another process makes this machine")
            launched_s = self.now_s(start.job)
            settings = {
                **self.settings(record, start.job),
                **asdict(start),
                "secret": start.secret.hex(),
                "type": record.pool.instance_type,
                "zone": record.pool.zone,
                "market": record.pool.market,
                "role": record.role.value,
                "launched_s": launched_s,
            }
            # Whose permissions are kept: no other user ever reads the secret
            (place / "settings.json").touch(0o600)
            write_json(place / "settings.json", settings)
            first = [sys.executable, "-m", "deepvm.jobs.clouds.local_machine", str(place)]
            words = [*self.words(record, start.job), *first]
            write_json(place / MACHINE, {"launched_s": launched_s})
            point("local.before-launch")
            # It has no parent: it outlives this process, which need not wait for it.
            begin = 'log=$1; shift; "$@" >>"$log" 2>&1 & echo $!'
            started = subprocess.run(
                ["/bin/sh", "-c", begin, "sh", str(place / LOG), *words],
                cwd="/",
                env=_environ(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
                pass_fds=(descriptor,),  # the lock is held until the last of them is gone
                check=True,
            )
            point("local.after-launch")
            made = {"launched_s": launched_s, "process": int(started.stdout)}
            write_json(place / MACHINE, made)
            point("local.before-reply")
            return launched_s
        finally:
            os.close(descriptor)

    def listing(self, job: str) -> Listing:
        alive = {}
        ended = {}
        taken = set()
        with suppress(FileNotFoundError):
            for place in sorted((self._folder / job / "machines").iterdir()):
                if not (place / MACHINE).exists():
                    continue
                launched_s = float(_read(place / MACHINE)["launched_s"])
                if _is_alive(place):
                    alive[place.name] = launched_s
                else:
                    end = self._end(job, place.name, "lost")
                    ended[place.name] = launched_s, float(end["ended_s"])
                    if end["why"] == "preempted":
                        taken.add(place.name)
                    # Code and data, as the disk of a VM
                    shutil.rmtree(place / AGENT, ignore_errors=True)
        return Listing(alive, ended, taken=frozenset(taken))

    def now_s(self, job: str) -> float:
        return clock_of(self._folder / job).now_s()

    def _end(self, job: str, machine: str, reason: str) -> JsonDict:
        place = self._machine(job, machine)
        if not (place / ENDED).exists():
            point("local.before-ended")
            end = self._ends.setdefault(place, {"ended_s": self.now_s(job), "why": reason})
            try:
                write_json(place / ENDED, end)
            except DataError:  # a full disk, which may be what ended it
                return end
        return _read(place / ENDED)

    def last_lines(self, job: str, machine: str) -> list[str]:
        return last_lines(self._machine(job, machine) / LOG, _LAST_LINES)

    def release(self, job: str, machine: str) -> None:
        place = self._machine(job, machine)
        if _is_alive(place):
            point("local.before-release")
            _kill(place, "released")
            point("local.after-release")
            self._end(job, machine, "released")
            shutil.rmtree(place / AGENT, ignore_errors=True)

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        place = self._machine(job, machine)
        if not _is_alive(place):
            return
        if grace_s is None:
            _kill(place, "preempted")
            self._end(job, machine, "preempted")
        else:
            write_json(place / ORDER, {"taken_s": time.time() + grace_s})

    def recommend(self, job: str, machine: str) -> None:
        place = self._machine(job, machine)
        if _is_alive(place) and not (place / ORDER).exists():
            write_json(place / ORDER, {"recommended_s": time.time()})


def jail() -> list[str]:
    """What starts a process so that, when it ends, all that it has started ends, too."""
    return unshared() or [sys.executable, "-m", "deepvm.jobs.clouds.reaper"]


@cache
def unshared() -> list[str]:
    """Prefix for a command in its own PID namespace; empty where refused (most containers)."""
    if shutil.which("unshare") is None:
        return []
    words = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        words[1:1] = ["--user", "--map-current-user"]
    tried = subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    if tried.returncode:
        return []
    return words


def _environ() -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_") or k == POINTS}
    path = found.get("PATH", os.defpath)
    return {**found, "PATH": os.pathsep.join([os.path.dirname(sys.executable), path])}


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(place: Path) -> bool:
    if not (place / MACHINE).exists():
        return False
    descriptor = os.open(place / LOCK, os.O_RDWR)
    try:
        # Shared: others who look at the same time hold none that counts
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _kill(place: Path, reason: str) -> None:
    # Its first process reads this, also where nothing was left to record its pid.
    with suppress(DataError):  # a full disk must not keep it alive
        write_json(place / ORDER, {"end": reason})
    process = _read(place / MACHINE).get("process", 0)
    # Unshare or the keeper waits until all are gone, and then frees the lock
    with suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while _is_alive(place):
        if time.monotonic() > deadline:
            raise UnknownError(f"{place}: its processes do not end")
        time.sleep(_LOOK_S)


def _read(path: Path) -> JsonDict:
    try:
        found: JsonDict = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnknownError(f"{path}: {error}") from None
    return found
