"""Start trainers, one process per GPU, watch how they end, and end them with their children."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from deepvm.core.json_types import JsonObject
from deepvm.io.agent_link import INDEPENDENT
from deepvm.io.process_tree import become_subreaper, children_of
from deepvm.jobs.agent.group_watch import are_connected
from deepvm.jobs.agent.process_group import exit_code
from deepvm.jobs.agent.warm import READY, can_warm

TORCHRUN = "torchrun"
GPUS = "CUDA_VISIBLE_DEVICES"
_GONE_S = 10.0
_LINE = 64 * 1024
_LAST_LINES = 40

log = logging.getLogger("deepvm.agent")


Process: TypeAlias = subprocess.Popen[bytes]
Environ: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Command:
    """How a job's trainers are started on this machine.

    ``train``: the command as the user wrote it. ``per_machine``: processes, one for each GPU.
    ``env``: variables of the job. ``folder``: its code. ``launcher``: ``direct`` or ``torchrun``,
    which then starts the processes.
    """

    train: str
    per_machine: int
    env: Environ
    folder: Path
    launcher: str = "direct"

    @property
    def words(self) -> list[str]:
        """As the operating system takes them; a line that needs a shell gets one."""
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
            script = words[1:]
        else:
            script = words
        return [
            "python",
            "-m",
            "torch.distributed.run",
            f"--nnodes={nodes}",
            f"--node-rank={int(more['RANK']) // self.per_machine}",
            f"--nproc-per-node={self.per_machine}",
            f"--master-addr={more['MASTER_ADDR']}",
            f"--master-port={more['MASTER_PORT']}",
            *script,
        ]

    def start_problem(self, error: OSError) -> str:
        name = str(error.filename or self.train)
        if not isinstance(error, FileNotFoundError) or "/" in name:
            return f"{name}: {error.strerror or error}"
        return (
            f"command not found: {name!r}, PATH={self.env.get('PATH', os.environ.get('PATH', ''))}"
        )

    @property
    def processes(self) -> int:
        if self.launcher == TORCHRUN:
            return 1
        return self.per_machine


@dataclass(frozen=True)
class ProcessLayout:
    """How the processes of a machine share its GPUs, and what each finds in its environment.

    Processes of one group have what torchrun gives them: ``LOCAL_RANK`` is the number of the
    process's GPU, and each sees all GPUs, as ``torch.cuda.set_device(LOCAL_RANK)`` and NCCL expect.
    A script that calls ``.cuda()`` without choosing a device gets the same GPU, because
    :mod:`deepvm.jobs.agent.warm` makes it the default of the process.

    An independent process sees its own share of the GPUs only, and its ``LOCAL_RANK`` is 0:
    ``.cuda()``, ``set_device(LOCAL_RANK)`` and programs that take every GPU they see all use that
    share. ``RANK`` and ``WORLD_SIZE`` still tell the processes apart.

    ``gpus``: as ``CUDA_VISIBLE_DEVICES`` names them. ``job``: the job's name.
    """

    processes: int
    gpus: tuple[str, ...]
    independent: bool
    job: str

    @classmethod
    def of(cls, spec: JsonObject, environ: Environ) -> ProcessLayout:
        """The layout sent by the controller; the machine or ``env`` may limit the GPUs."""
        names = (
            environ[GPUS].split(",")
            if environ.get(GPUS)
            else map(str, range(int(spec.get("gpus", 0))))
        )
        return cls(
            int(spec["per_machine"]), tuple(names), bool(spec.get("independent")), str(spec["name"])
        )

    def variables(self, local: int, rank: int) -> dict[str, str]:
        """Variables of the process with this number on this machine, and this rank of all."""
        gpus = self.gpus
        values = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.processes),
        }
        if self.independent:
            gpus = gpus and self._share(local)
            values |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", INDEPENDENT: str(local)}
            if rank:  # their checkpoints must not replace one another
                values["DEEPVM_JOB"] = f"{self.job}-{rank}"
        if gpus:
            values[GPUS] = ",".join(gpus)
        return values

    def _share(self, local: int) -> tuple[str, ...]:
        """The GPUs of an independent process: as many for each, or one for several."""
        each = len(self.gpus) // self.processes
        if not each:
            return (self.gpus[local % len(self.gpus)],)
        return self.gpus[local * each : (local + 1) * each]


@dataclass(eq=False)
class Trainer:
    """A process: one rank, or torchrun."""

    local_rank: int
    process: Process
    last: list[str] = field(default_factory=list)
    """Its last lines."""
    reader: threading.Thread | None = None


@dataclass(eq=False)
class _Waiting:
    """A process that has loaded torch, or will have; ``pipe``: by which it reports that."""

    process: Process
    pipe: int
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
        """``on_line`` is called with the local rank and each line that a trainer prints."""
        self.command = command
        self._environ = dict(environ)
        self._on_line = on_line
        self._lock = threading.Lock()
        self._warm: list[_Waiting] = []
        self._cannot_wait = False
        self.running: list[Trainer] = []
        self._others = set(children_of(os.getpid()))
        """What this process has started before is no trainer's."""
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
        words = [
            _python(self.command.words[0], self.command.env),
            "-m",
            "deepvm.jobs.agent.warm",
            str(reports),
        ]
        try:
            process = subprocess.Popen(
                words,
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
        alive = []
        for one in self._warm:
            if one.process.poll() is None:
                alive.append(one)
            else:
                one.end()
        return alive

    @property
    def warm(self) -> bool:
        """Whether trainers can begin at once, as far as this command allows it."""
        if not self._can_warm or self._cannot_wait:
            return True
        with self._lock:
            self._warm = self._alive()
            return sum(one.is_ready() for one in self._warm) >= self.command.processes

    def start(self, each: Sequence[Environ]) -> None:
        """Start the trainers of a generation; ``each``: further variables of each process.

        Raises OSError.
        """
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
            trainer.reader = threading.Thread(target=self._read, args=(trainer,), daemon=True)
            trainer.reader.start()
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
                trainer.last = [*trainer.last[1 - _LAST_LINES :], text]
                self._on_line(trainer.local_rank, text)

    def ended(self) -> int | None:
        """The worst exit code if all have ended, or one has failed; else None."""
        codes = [t.process.poll() for t in self.running]
        if not codes or (None in codes and not any(codes)):
            return None
        return next((exit_code(c) for c in codes if c), 0)

    def are_connected(self, port: int, peers: Collection[str], tiers: Collection[str]) -> bool:
        """Whether they have formed a process group, as far as can be seen."""
        roots = [trainer.process.pid for trainer in self.running]
        direct = self.command.launcher != TORCHRUN
        if not direct:  # torchrun itself is connected to its store
            roots = [pid for root in roots for pid in children_of(root)]
        return are_connected(roots, port, peers, tiers, count_closed=direct)

    def last_lines(self) -> list[str]:
        """What the trainer that failed first, or else the first, printed last."""
        failed = [t for t in self.running if t.process.poll()] or self.running
        for trainer in failed[:1]:
            if trainer.reader is not None:
                trainer.reader.join(1.0)
            return list(trainer.last)
        return []

    def kill(self) -> None:
        """End the trainers of this generation with all that they have started.

        Returns when they are gone.
        """
        for trainer in self.running:
            _kill(trainer.process)
        self.running = []
        with self._lock:
            spared = self._others | {one.process.pid for one in self._warm}
        _reap_strays(spared)

    def close(self) -> None:
        self.kill()
        with self._lock:
            waiting = self._warm
            self._warm = []
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
