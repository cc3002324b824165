"""A real controller in a process of its own, with machines that are only messages, and a clock that
can be set.

    python -m support.jobs.controllers FOLDER SECRET MACHINES

``FOLDER/clock``: by how many seconds the clock on the wall of that process is wrong.
``FOLDER/blind``: if it exists, nobody sees what that process shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from support.jobs.runs import until

from deepvm.jobs.cloud import Listing, Start
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, EventRow, History
from deepvm.jobs.wire import HEADER, Sender, new_secret, secret_of

JOB = "job"


class Messages:
    """A cloud that makes a machine for each request at once."""

    can_preempt, near = False, True

    def __init__(self) -> None:
        self.alive: dict[str, float] = {}

    def host(self, job: str) -> str:
        return "127.0.0.1"

    def finish(self, job: str) -> None:
        pass

    def request(self, record: MachineRecord, start: Start) -> float:
        return self.alive.setdefault(record.id, time.time())

    def listing(self, job: str) -> Listing:
        return Listing(dict(self.alive))

    def release(self, job: str, machine: str) -> None:
        self.alive.pop(machine, None)

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        pass

    def recommend(self, job: str, machine: str) -> None:
        pass


def history_in(folder: Path, limit_s: float) -> History:
    """A history that gives up a lock soon."""
    return History(
        sa.create_engine(f"sqlite:///{folder}/history.db", connect_args={"timeout": limit_s})
    )


def control(folder: Path, secret: str, machines: int) -> None:
    """Be the controller."""
    from deepvm.jobs.controller.controller import ControlledJob, Controller

    true_time = time.time

    def shown() -> float:
        with contextlib.suppress(OSError, ValueError):
            return true_time() + float((folder / "clock").read_text())
        return true_time()

    time.time = shown
    history = History.open({PLACE: str(folder / "history.db")})
    terms = JobLimits(machines, machines, silent_s=3.0, lost_s=6.0)
    world = JobState(terms, time.time(), pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),))
    if not history.add_job(JOB, time.time(), folder, {}, world):
        world = history.world(JOB)
    spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
    cloud = Messages()
    cloud.alive = {
        m.id: m.launched_s or time.time() for m in world.machines.values() if not m.state.over
    }
    controller = Controller(ControlledJob(JOB, folder, secret, spec), world, cloud, history)  # type: ignore[arg-type]
    if (folder / "blind").exists():
        controller.on_event = _fail
    asyncio.run(controller.run())


def _fail(event: EventRow) -> None:
    raise BrokenPipeError(event.kind)


class Controlled:
    """The process, and what it has written."""

    def __init__(self, folder: Path, machines: int = 2) -> None:
        self.folder, self.machines, self.secret = folder, machines, new_secret()
        self.log = folder / "log"
        self.peers: list[Peer] = []
        self.start()

    def start(self) -> None:
        """Start it, or another after it."""
        (self.folder / "controller").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            words = [
                sys.executable,
                "-m",
                "support.jobs.controllers",
                str(self.folder),
                self.secret,
            ]
            self.process = subprocess.Popen([*words, str(self.machines)], stdout=log, stderr=log)
        until((self.folder / "controller").exists, 60)

    @property
    def url(self) -> str:
        return (self.folder / "controller").read_text()

    def world(self) -> JobState:
        with history_in(self.folder, 10.0) as history:
            return history.world(JOB)

    def events(self) -> list[EventRow]:
        """What has happened."""
        with history_in(self.folder, 10.0) as history:
            return history.events(JOB)

    def kinds(self) -> list[str]:
        """The kinds of it."""
        return [event.kind for event in self.events()]

    def samples(self) -> int:
        """How many are written down."""
        with history_in(self.folder, 10.0) as history:
            return len(history.samples(JOB))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Peer:
    """Somebody who talks to a controller; ``secret``: of a job."""

    def __init__(self, where: Controlled, machine: str, secret: str = "") -> None:
        self.where = where
        self.sender = Sender(machine, secret_of(secret or where.secret, machine))
        self.connection: http.client.HTTPConnection | None = None
        where.peers.append(self)
        self.greet()

    def greet(self) -> None:
        """Connect, and hear the nonce."""
        parts = urlsplit(self.where.url)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=15)
        self.connection.request("GET", "/nonce")
        self.sender.nonce = self.connection.getresponse().read().decode()

    def post(self, path: str, body: bytes, signature: str) -> tuple[int, bytes]:
        assert self.connection is not None
        self.connection.request(
            "POST", path, body, {HEADER: signature.encode("latin-1", "replace").decode("latin-1")}
        )
        answer = self.connection.getresponse()
        self.signature = answer.getheader(HEADER, "")
        return answer.status, answer.read()

    def send(self, path: str, message: Mapping[str, Any]) -> tuple[int, bytes]:
        return self.post(path, *self.sender.sealed(message))

    def ask(self, path: str, message: Mapping[str, Any]) -> dict[str, Any]:
        status, body = self.send(path, message)
        assert status == 200, (status, body)
        return self.sender.opened(body, self.signature)


BEAT: dict[str, Any] = {
    "generation": 0,
    "step": 0,
    "step_s": 0.0,
    "warm": True,
    "address": "127.0.0.1",
    "port": 1,
    "seen": "",
    "scheduled": 0,
    "wait_s": 0.0,
}


class Beating:
    """Machines whose agents beat, and run what they are told."""

    def __init__(self, where: Controlled, machines: list[str]) -> None:
        self._over, self.longest_s = threading.Event(), 0.0
        self._threads = [
            threading.Thread(target=self._beat, args=(where, m), daemon=True) for m in machines
        ]
        for thread in self._threads:
            thread.start()

    def _beat(self, where: Controlled, machine: str) -> None:
        peer, generation = None, 0
        while not self._over.wait(0.2):
            began = time.monotonic()
            try:
                peer = peer or Peer(where, machine)
                answer = peer.ask(
                    "/beat", {**BEAT, "generation": generation, "step": 5 if generation else 0}
                )
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                if answer.get("generation", generation) != generation:
                    generation = answer["generation"]
                    started = {"event": "started", "of": time.time_ns(), "generation": generation}
                    Peer(where, machine).ask("/report", {"events": [started]})
            except (OSError, AssertionError, http.client.HTTPException):
                peer = None

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def running(folder: Path, machines: int = 2) -> Iterator[Controlled]:
    """A controller with a generation that runs on machines m1, m2 and so on."""
    found = Controlled(folder, machines)
    beating = Beating(found, [f"m{n + 1}" for n in range(machines)])
    try:
        until(lambda: found.kinds().count("started") == machines, 30)
        yield found
    finally:
        beating.stop()
        found.kill()
        for peer in found.peers:
            if peer.connection is not None:
                peer.connection.close()
        said = found.log.read_text()
        assert "Traceback" not in said, said


def shape(world: JobState) -> str:
    """What must not change."""
    machines = {m.id: m.state.value for m in world.machines.values()}
    return json.dumps(
        [machines, world.generation, world.members, world.formed, world.version, world.ending]
    )


if __name__ == "__main__":
    control(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
