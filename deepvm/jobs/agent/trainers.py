"""Start trainers, one process per GPU, watch how they end, and end them with their children."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from deepvm.core.json_types import JsonObject
from deepvm.io.agent_link import INDEPENDENT
from deepvm.io.processes import become_subreaper, children_of
from deepvm.io.threads import start_thread
from deepvm.jobs.agent.group_watch import are_connected
from deepvm.jobs.agent.process_group import exit_code
from deepvm.jobs.agent.tracebacks import own_frames_first
from deepvm.jobs.agent.warm import READY, can_warm
from deepvm.jobs.loggers import agent_log as log
from deepvm.records import dataclass, field

TORCHRUN = "torchrun"
GPUS = "CUDA_VISIBLE_DEVICES"
_GONE_S = 10.0
_LINE = 64 * 1024
_LAST_LINES = 400  # A traceback through a compiler is long


Process: TypeAlias = subprocess.Popen[bytes]
Environ: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Command:
    """How a job's trainers are started on this machine."""

    train: str  # As the user wrote it
    per_machine: int  # Processes, one for each GPU
    env: Environ
    folder: Path
    launcher: str = "direct"  # Or torchrun, which then starts the processes

    @property
    def words(self) -> list[str]:
        if any(c in self.train for c in "|&;<>`$\n"):
            return ["/bin/sh", "-c", self.train]
        return shlex.split(self.train)

    def words_of(self, more: Environ) -> list[str]:
        words = self.words
        if self.launcher != TORCHRUN:
            return words
        nodes = int(more["WORLD_SIZE"]) // self.per_machine
        # torchrun starts the interpreter itself.
        if os.path.basename(words[0]) in ("python", "python3"):
            words = words[1:]
        return [
            "python",
            "-m",
            "torch.distributed.run",
            f"--nnodes={nodes}",
            f"--node-rank={int(more['RANK']) // self.per_machine}",
            f"--nproc-per-node={self.per_machine}",
            f"--master-addr={more['MASTER_ADDR']}",
            f"--master-port={more['MASTER_PORT']}",
            *words,
        ]

    def start_problem(self, error: OSError) -> str:
        name = str(error.filename or self.train)
        if not isinstance(error, FileNotFoundError) or "/" in name:
            return f"{name}: {error.strerror or error}"
        path = self.env.get("PATH", os.environ.get("PATH", ""))
        return f"command not found: {name!r}, PATH={path}"

    @property
    def processes(self) -> int:
        if self.launcher == TORCHRUN:
            return 1
        return self.per_machine


@dataclass(frozen=True)
class ProcessLayout:
    """How the processes of a machine share its GPUs, and what each finds in its environment.

    Those of one group have what torchrun gives them, and see all GPUs, one of them as the default
    (:mod:`deepvm.jobs.agent.warm`). An independent process sees only its share of the GPUs.
    """

    processes: int
    gpus: tuple[str, ...]  # As CUDA_VISIBLE_DEVICES names them
    independent: bool
    job: str  # Its name

    @classmethod
    def of(cls, spec: JsonObject, environ: Environ) -> "ProcessLayout":
        gpus = tuple(map(str, range(int(spec.get("gpus", 0)))))
        if environ.get(GPUS):
            gpus = tuple(environ[GPUS].split(","))
        each = int(spec["per_machine"])
        return cls(each, gpus, bool(spec.get("independent")), str(spec["name"]))

    def variables(self, local: int, rank: int) -> dict[str, str]:
        gpus = self.gpus
        values = {"RANK": str(rank), "LOCAL_RANK": str(local)}
        values["LOCAL_WORLD_SIZE"] = str(self.processes)
        if self.independent:
            gpus = gpus and self._share(local)
            values |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", INDEPENDENT: str(local)}
            if rank:  # their checkpoints must not replace one another
                values["DEEPVM_JOB"] = f"{self.job}-{rank}"
        if gpus:
            values[GPUS] = ",".join(gpus)
        return values

    def _share(self, local: int) -> tuple[str, ...]:
        each = len(self.gpus) // self.processes
        if not each:  # one for several
            return (self.gpus[local % len(self.gpus)],)
        return self.gpus[local * each : (local + 1) * each]


@dataclass(eq=False)
class Trainer:
    """A process: one rank, or torchrun."""

    local_rank: int
    process: Process
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    reader: threading.Thread = field(init=False)


@dataclass(eq=False)
class _Waiting:
    process: Process
    pipe: int  # By which it reports that
    ready: bool = False

    def is_ready(self) -> bool:
        if not self.ready:
            with suppress(BlockingIOError):
                self.ready = bool(os.read(self.pipe, len(READY)))
        return self.ready

    def end(self) -> None:
        _kill(self.process)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):  # what it was sent last cannot be
                    stream.close()
        os.close(self.pipe)


class Trainers:
    """The trainers of one machine: those that wait, and those of one generation."""

    def __init__(
        self, command: Command, environ: Environ, on_line: Callable[[int, str], None]
    ) -> None:
        self.command = command
        self._environ = dict(environ)
        self._on_line = on_line  # Is called with the local rank and each line it prints
        self._lock = threading.Lock()
        self._warm: list[_Waiting] = []
        self._cannot_wait = False
        self.running: list[Trainer] = []
        self._others = set(children_of(os.getpid()))
        # What trainers leave behind becomes a child of this process, which can end it.
        with suppress(OSError, AttributeError):
            become_subreaper()

    @property
    def _can_warm(self) -> bool:
        return can_warm(self.command.words) and self.command.launcher != TORCHRUN

    def warm_up(self) -> None:
        """Start processes that load torch and wait, if the command allows it and there are none."""
        if not self._can_warm:
            return
        with self._lock:
            self._warm = self._alive()
            for _ in range(self.command.processes - len(self._warm)):
                try:
                    self._warm.append(self._waiting())
                except OSError as error:  # reported by the one that starts trainers
                    log.warning("no trainer can be started beforehand: %s", error)
                    self._cannot_wait = True
                    return
            self._cannot_wait = False

    def _waiting(self) -> _Waiting:
        pipe, reports = os.pipe()
        os.set_blocking(pipe, False)
        python = _python(self.command.words[0], self.command.env)
        try:
            process = subprocess.Popen(
                [python, "-m", "deepvm.jobs.agent.warm", str(reports)],
                env={**self._environ, **self.command.env},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(reports,),
            )
        except OSError:
            os.close(pipe)
            raise
        finally:
            os.close(reports)
        return _Waiting(process, pipe)

    def _alive(self) -> list[_Waiting]:
        alive = [one for one in self._warm if one.process.poll() is None]
        for one in self._warm:
            if one not in alive:
                one.end()
        return alive

    @property
    def warm(self) -> bool:
        """Whether trainers can start at once, as far as this command allows it."""
        if not self._can_warm or self._cannot_wait:
            return True
        with self._lock:
            self._warm = self._alive()
            return sum(one.is_ready() for one in self._warm) >= self.command.processes

    def start(self, each: Sequence[Environ]) -> None:
        """Start one process for each of these further variables. Raises OSError."""
        assert not self.running
        with self._lock:
            waiting = self._alive()
            self._warm = []
        for local_rank, more in enumerate(each):
            words = self.command.words_of(more)
            env = {**self._environ, **self.command.env, **more}
            process = self._ordered(waiting, words, env) or subprocess.Popen(
                [_python(words[0], self.command.env), *words[1:]],
                env=env,
                cwd=self.command.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            trainer = Trainer(local_rank, process)
            trainer.reader = start_thread(self._read, trainer)
            self.running.append(trainer)
        for one in waiting:
            one.end()

    def _ordered(self, waiting: list[_Waiting], words: list[str], env: Environ) -> Process | None:
        order = json.dumps({"env": env, "folder": str(self.command.folder), "words": words})
        while waiting:
            one = waiting.pop(0)
            assert one.process.stdin is not None
            try:
                one.process.stdin.write(f"{order}\n".encode())
                one.process.stdin.close()
            except OSError as error:  # it has just ended
                log.warning("a trainer that waited is gone: %s", error)
                one.end()
                continue
            os.close(one.pipe)
            return one.process
        return None

    def _read(self, trainer: Trainer) -> None:
        source: IO[bytes] | Any = trainer.process.stdout
        with source:
            for text in lines_of(source):
                trainer.last.append(text)
                self._on_line(trainer.local_rank, text)

    def ended(self) -> int | None:
        """The worst exit code if all have ended, or one has failed; else None."""
        codes = [t.process.poll() for t in self.running]
        if not codes or (None in codes and not any(codes)):
            return None
        return next((exit_code(c) for c in codes if c), 0)

    def are_connected(self, port: int, peers: Collection[str], tiers: Collection[str]) -> bool:
        roots = [trainer.process.pid for trainer in self.running]
        direct = self.command.launcher != TORCHRUN
        if not direct:  # torchrun itself is connected to its store
            roots = [pid for root in roots for pid in children_of(root)]
        return are_connected(roots, port, peers, tiers, count_closed=direct)

    def last_lines(self) -> list[str]:
        """What the trainer that failed first, or else the first, printed last, for people."""
        failed = [t for t in self.running if t.process.poll()] or self.running
        if not failed:
            return []
        failed[0].reader.join(1.0)
        return own_frames_first(failed[0].last, self.command.folder)

    def kill(self) -> None:
        """End the trainers with all that they have started; returns when they are gone."""
        for trainer in self.running:
            _kill(trainer.process)
        self.running = []
        with self._lock:
            spared = self._others | {one.process.pid for one in self._warm}
        _reap_strays(spared)

    def close(self) -> None:
        self.kill()
        with self._lock:
            waiting, self._warm = self._warm, []
        for one in waiting:
            one.end()


def lines_of(source: IO[bytes]) -> Iterator[str]:
    """The lines of a stream as text, very long ones in pieces."""
    for line in iter(lambda: source.readline(_LINE), b""):
        yield line.decode("utf-8", "replace").rstrip("\n")


def _python(name: str, env: Environ) -> str:
    """The interpreter of a command: this one, unless the job's own variables set ``PATH``."""
    if name in ("python", "python3") and "PATH" not in env:
        return sys.executable
    return name


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)


def _reap_strays(spared: set[int]) -> None:
    """End what trainers have left: as their subreaper this process is its parent now."""
    deadline = time.monotonic() + _GONE_S
    while time.monotonic() < deadline:
        strays = [pid for pid in children_of(os.getpid()) if pid not in spared]
        if not strays:
            return
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
