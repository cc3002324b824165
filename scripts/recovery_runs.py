"""What scripts/bench_recovery.py interrupts: local deepvm jobs, and torchrun's elastic agents."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.clouds.registry import open_cloud
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.history.history import EventRow, History

TRAINING = Path(__file__).with_name("recovery_training.py")
LIMIT_S = 120.0
STEP_S = 0.02


@dataclass(frozen=True)
class Note:
    """A line of a training; ``step``: ended, else 0; ``restore_s``: duration of a restore."""

    at_s: float
    process: int
    world: int
    rank: int
    step: int
    restore_s: float | None

    @classmethod
    def of(cls, line: str) -> Note:
        """Read one."""
        at_s, process, world, rank, what, *more = line.split()
        step = int(what) if what.isdigit() else 0
        return cls(
            float(at_s), int(process), int(world), int(rank), step, float(more[0]) if more else None
        )


class Late(Exception):
    """Something did not happen in time."""


def until(condition: Callable[[], Any], limit_s: float, what: str) -> Any:
    """Wait for something, and return it. Raises Late."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Late(f"no {what} in {limit_s:.0f} s")
        time.sleep(0.02)
    return found


class Notes:
    """What the trainings of a folder have noted."""

    def __init__(self, folder: Path) -> None:
        """None yet."""
        self.file, self._read, self._found = folder / "notes", 0, list[Note]()

    def all(self) -> list[Note]:
        """In the order in which they were written."""
        with contextlib.suppress(FileNotFoundError), self.file.open() as stream:
            stream.seek(self._read)
            while (line := stream.readline()).endswith("\n"):
                self._found.append(Note.of(line))
                self._read = stream.tell()
        return self._found

    def first_step(self, world: int, since_s: float, limit_s: float = LIMIT_S) -> Note:
        """The first step of rank 0 in a world of a size after a time. Raises Late."""

        def found() -> Note | None:
            steps = (
                n
                for n in self.all()
                if n.world == world and n.at_s >= since_s and n.step and not n.rank
            )
            return next(steps, None)

        note = until(found, limit_s, f"step in a world of {world}")
        assert isinstance(note, Note)
        return note

    def before(self, note: Note) -> Note:
        """The last step of rank 0 that another process did before a note."""
        return [
            n
            for n in self.all()
            if n.step and not n.rank and n.at_s < note.at_s and n.process != note.process
        ][-1]

    def restore_s(self, process: int) -> float:
        """How long a process took to restore."""
        return next(
            n.restore_s for n in self.all() if n.process == process and n.restore_s is not None
        )

    def begun_s(self, process: int) -> float:
        """When a process began."""
        return next(n.at_s for n in self.all() if n.process == process)

    def step_s(self, note: Note) -> float:
        """The longest of the last steps of rank 0 before a note."""
        times = [n.at_s for n in self.all() if n.step and not n.rank and n.at_s <= note.at_s][-20:]
        return max((b - a for a, b in zip(times, times[1:], strict=False)), default=STEP_S)


class Run:
    """A job of ``deepvm run`` in a home of its own."""

    def __init__(
        self,
        folder: Path,
        count: Any,
        cloud: str = "local",
        train: str = "",
        script: str = "",
        **more: Any,
    ) -> None:
        """Start it. ``train``: the command, by default an endless training; ``script``: another."""
        self.folder, self.name = folder, f"bench{time.time_ns() % 10**10}"
        folder.mkdir(parents=True)
        self.notes, code = Notes(folder), folder / "code"
        code.mkdir()
        (code / "train.py").write_text(script or TRAINING.read_text())
        document = {
            "name": self.name,
            "train": train or f"python train.py 1000000 {STEP_S}",
            "code": str(code),
            "env": {"NOTES": str(self.notes.file), "OMP_NUM_THREADS": "1"},
            "machines": {"type": "g4dn.xlarge", "count": count},
            "cloud": cloud,
            **more,
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(document))
        # Neither the user's history nor their jobs.
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_")}
        self._env |= {
            f"XDG_{kind}_HOME": str(folder / kind.lower())
            for kind in ("DATA", "CACHE", "CONFIG", "STATE")
        }
        self.cloud = open_cloud(cloud, folder / "data" / "deepvm" / "jobs")
        assert isinstance(self.cloud, LocalCloud)
        self.began_s = time.time()
        self.said = (folder / "said").open("wb+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "deepvm.cli.main",
                "run",
                str(folder / "job.yaml"),
                "-o",
                "json",
            ],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=(folder / "document.json").open("wb"),
            stderr=self.said,
            start_new_session=True,
        )

    def command(self, *words: str) -> None:
        """Another command of deepvm about the job."""
        command = [sys.executable, "-m", "deepvm.cli.main", *words]
        subprocess.run(
            command, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
        )

    @contextlib.contextmanager
    def history(self) -> Iterator[History]:
        """The history of this home."""
        with History.open(
            {"DEEPVM_HISTORY": str(self.folder / "data" / "deepvm" / "history.db")}
        ) as found:
            yield found

    def events(self, kind: str, since_s: float = 0.0) -> list[EventRow]:
        """The events of a kind."""
        with self.history() as history:
            return [e for e in history.events(self.name) if e.kind == kind and e.at_s >= since_s]

    def event(self, kind: str, since_s: float, limit_s: float = LIMIT_S, **facts: Any) -> EventRow:
        """The first event of a kind after a time, with these facts. Raises Late."""

        def found() -> EventRow | None:
            rows = self.events(kind, since_s)
            return next(
                (e for e in rows if all(e.facts.get(k) == v for k, v in facts.items())), None
            )

        row = until(found, limit_s, f"{kind} of {self.name}")
        assert isinstance(row, EventRow)
        return row

    def members(self) -> tuple[str, ...]:
        """The machines of the generation."""
        with self.history() as history:
            return history.world(self.name).members

    def whole(self, count: int) -> None:
        """Wait until a generation of so many machines trains, and all are warm for another.

        Raises Late.
        """

        def is_whole() -> bool:
            with self.history() as history:
                world = history.world(self.name)
            states = [world.machines[m].state for m in world.members]
            return len(states) == count and set(states) == {Machine.MEMBER}

        until(
            lambda: (self.folder / "data/deepvm/jobs" / self.name / "controller").exists(),
            LIMIT_S,
            "controller",
        )
        since_s = time.time()
        until(is_whole, LIMIT_S, f"{count} machines")
        self.notes.first_step(count, since_s)
        until(self._is_warm, LIMIT_S, "waiting trainer")

    def _is_warm(self) -> bool:
        """Whether as many processes as there are machines have loaded torch and wait."""
        waiting = 0
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (place / "cmdline").read_bytes().split(b"\0")
                if (
                    b"deepvm.jobs.agent.warm" in words
                    and str(self.folder).encode() in (place / "environ").read_bytes()
                ):
                    waiting += _waits(place, words[-2].decode())
        return waiting >= len(self.members())

    def document(self) -> Mapping[str, Any]:
        """The final document of a job that has ended."""
        self.process.wait(LIMIT_S)
        found = json.loads((self.folder / "document.json").read_bytes())
        assert isinstance(found, dict)
        return found

    def end(self) -> None:
        """Stop the job at once, and remove what it has left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for machine in self.cloud.listing(self.name).alive:
            self.cloud.release(self.name, machine)
        self.cloud.finish(self.name)


def _waits(process: Path, tells: str) -> bool:
    """Whether a process is warm (it closed a pipe) and not yet a trainer (empty input)."""
    pipes = [n.name for n in (process / "fd").iterdir() if os.readlink(n).startswith("pipe:")]
    return "0" in pipes and tells not in pipes


TUNED = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1,read_timeout=10"
"""As fast as torchrun's rendezvous gets: whole seconds; fewer attempts lose slow nodes."""


class Torchrun:
    """``torchrun --nnodes=1:2`` with its store in a third process."""

    def __init__(self, folder: Path, conf: str = "") -> None:
        """Start two nodes. ``conf``: of the rendezvous."""
        self.folder = folder
        folder.mkdir(parents=True)
        self.notes, self._conf, self._port = Notes(folder), conf, _free_port()
        store = (
            f"import time, torch.distributed as d; s = d.TCPStore('127.0.0.1', {self._port},"
            " is_master=True, wait_for_workers=False); time.sleep(1e6)"
        )
        self._store = subprocess.Popen([sys.executable, "-c", store], start_new_session=True)
        until(self._serves, LIMIT_S, "store")
        self.began_s = time.time()
        self.nodes = [self.start(), self.start()]

    def _serves(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
            return True
        return False

    def start(self) -> subprocess.Popen[bytes]:
        """Start a node, without a jail: torchrun tells one host's nodes apart by pid."""
        conf = ",".join(["is_host=0", *filter(None, [self._conf])])
        words = [
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--max-restarts=100",
            "--rdzv-backend=c10d",
            "--rdzv-id=bench",
        ]
        words += [
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-conf={conf}",
            "--local-addr=127.0.0.1",
        ]
        env = {k: v for k, v in os.environ.items() if not k.startswith("DEEPVM_")}
        env |= {
            "NOTES": str(self.notes.file),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "DEEPVM_JOB": "bench",
        }
        env |= {"DEEPVM_TIERS": (self.folder / "versions").as_uri()}
        with (self.folder / "said").open("ab") as said:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    *words,
                    str(TRAINING),
                    "1000000",
                    str(STEP_S),
                ],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def kill(self, node: int) -> None:
        """End a node with all that it has started, as the end of a machine does."""
        _kill_tree(self.nodes[node])

    def end(self) -> None:
        """End all."""
        for node in self.nodes:
            _kill_tree(node)
        _kill_tree(self._store)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants at once; the first is stopped so it starts no more."""
    tree = [process.pid]
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
    for pid in tree:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                tree += [int(child) for child in children.read_text().split()]
    for pid in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
