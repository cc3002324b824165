"""Machines that are local process trees, each with a folder, metadata service, price and end.

A machine's folder holds a lock that every process of its first ranks keeps open: it is free when,
and only when, they are gone. ``machine.json`` says when it was launched; ``ended.json`` when and
why it ended.
"""

from __future__ import annotations

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
from typing import ClassVar

from deepvm.core.json_types import JsonDict
from deepvm.errors import DataError
from deepvm.io.atomic_write import write_json
from deepvm.io.failpoints import POINTS, point
from deepvm.jobs.cloud import Listing, RefusedError, Start, UnknownError
from deepvm.jobs.decisions.world import MachineRecord
from deepvm.jobs.steady_clock import clock_of

LOCK = "lock"
MACHINE = "machine.json"
ENDED = "ended.json"
ORDER = "order.json"
AGENT = "agent"
LOG = "machine.log"
_LAST_BYTES = 16_384
_LAST_LINES = 40
_LOOK_S = 0.01
_GONE_S = 10.0


class LocalCloud:
    """See :class:`deepvm.jobs.cloud.Cloud`."""

    can_preempt: ClassVar = True
    near: ClassVar = True

    def __init__(self, folder: Path, allocation_s: float = 0.5) -> None:
        """``folder``: for all jobs' machines; ``allocation_s``: from the request to the launch."""
        self._folder = folder
        self._allocation_s = allocation_s
        self._ends: dict[Path, JsonDict] = {}

    @classmethod
    def open(cls, folder: Path) -> LocalCloud:
        return cls(folder)

    def _machine(self, job: str, machine: str) -> Path:
        return self._folder / job / "machines" / machine

    def host(self, job: str) -> str:
        return "127.0.0.1"

    def settings(self, record: MachineRecord, job: str) -> JsonDict:
        """What a machine must know of its surroundings.

        ``interface``: of collectives. ``metadata_named``: whether its processes find the metadata
        service by the variable of AWS's libraries, instead of the one that the computer has.
        """
        return {
            "address": "127.0.0.1",
            "interface": "lo",
            "metadata_host": "127.0.0.1",
            "metadata_port": 0,
            "metadata_named": True,
        }

    def words(self, record: MachineRecord, job: str) -> list[str]:
        return jail()

    def finish(self, job: str) -> None:
        """See :class:`Cloud`: the last look, which removes what machines have left."""
        self.listing(job)

    def request(self, record: MachineRecord, start: Start) -> float:
        place = self._machine(start.job, start.machine)
        time.sleep(self._allocation_s)
        try:
            place.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RefusedError(f"{place}: {error.strerror or error}") from None
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
            process = int(started.stdout)
            write_json(place / MACHINE, {"launched_s": launched_s, "process": process})
            point("local.before-reply")
            return launched_s
        except OSError as error:
            raise RefusedError(f"{place}: {error.strerror or error}") from None
        finally:
            os.close(descriptor)

    def listing(self, job: str) -> Listing:
        alive = dict[str, float]()
        ended = dict[str, tuple[float, float]]()
        taken = set[str]()
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
        """When and why a machine that is gone ended; written down if it is not yet."""
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
        with suppress(OSError), (self._machine(job, machine) / LOG).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
            return log.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
        return []

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
        if _is_alive(place) and grace_s is None:
            _kill(place, "preempted")
            self._end(job, machine, "preempted")
        elif _is_alive(place):
            write_json(place / ORDER, {"taken_s": time.time() + float(grace_s or 0.0)})

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
    if os.geteuid() == 0:
        user = []
    else:
        user = ["--user", "--map-current-user"]
    words = ["unshare", *user, "--pid", "--mount-proc", "--fork", "--kill-child"]
    tried = subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    if tried.returncode == 0:
        return words
    return []


def _environ() -> dict[str, str]:
    """What a machine has of this process's environment; its Python is this one."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_") or k == POINTS}
    found["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), found.get("PATH", os.defpath)]
    )
    return found


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(place: Path) -> bool:
    """Whether any process of a machine lives: it holds the lock."""
    if not (place / MACHINE).exists():
        return False
    descriptor = os.open(place / LOCK, os.O_RDWR)
    try:
        # Shared: others who look at the same time hold none that counts
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _kill(place: Path, reason: str) -> None:
    """End a machine, and return when it is gone."""
    # Its first process reads this, also where nothing was left to record its pid.
    with suppress(DataError):  # a full disk must not keep it alive
        write_json(place / ORDER, {"end": reason})
    process = int(_read(place / MACHINE).get("process", 0))
    if not process:
        return _await_end(place)
    children = Path(f"/proc/{process}/task/{process}/children")
    # Unshare or the keeper waits until all are gone, and then frees the lock
    with suppress(OSError):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
    return _await_end(place)


def _await_end(place: Path) -> None:
    deadline = time.monotonic() + _GONE_S
    while _is_alive(place):
        if time.monotonic() > deadline:
            raise UnknownError(f"{place}: its processes do not end")
        time.sleep(_LOOK_S)


def _read(path: Path) -> JsonDict:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnknownError(f"{path}: {error}") from None
    assert isinstance(found, dict)
    return found
