"""Ranks forked from a process that has loaded torch: a group of two meets within 0.05 s."""

import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from deepvm.io.processes import follow_parent
from deepvm.lab.registry import STRATEGIES
from deepvm.lab.running.launcher import Attempt
from deepvm.lab.running.supervisor import RankLauncher

_GONE_S = 10.0
_LOOK_S = 0.002
# multiprocessing polls all children on each start: a concurrent poll reads 255
_ONE = threading.Lock()
_LOADED = ("deepvm.lab.training.trainer", "torch._dynamo")


class Forkserver(RankLauncher):
    """One server for all attempts; ranks follow a pipe whose other end is here and nowhere else."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        # Else each start pays for those of others
        strategies = {one.partition(":")[0] for one in STRATEGIES.values()}
        self._context.set_forkserver_preload([*_LOADED, *sorted(strategies)])
        self._ready = False
        self._followed, self._alive = self._context.Pipe(duplex=False)

    def ready(self) -> None:
        with _ONE:
            if not self._ready:
                _serve()
                first = self._context.Process(target=_nothing, daemon=True)
                first.start()
                first.join()
                self._ready = True

    def start(self, order: Path, world: int, port: int) -> Attempt:
        log = order.parent / "workers.log"
        processes = [
            self._context.Process(
                target=_work,
                args=(self._followed, str(order), str(log), rank, world, port),
                daemon=True,
            )
            for rank in range(world)
        ]
        with _ONE:
            _serve()
            for process in processes:
                process.start()
        return _Forked(processes)

    def close(self) -> None:
        self._alive.close()
        self._followed.close()


class _Forked(Attempt):
    def __init__(self, processes: Sequence[BaseProcess]) -> None:
        self._processes = processes

    def exits(self) -> Sequence[int | None]:
        with _ONE:
            return [process.exitcode for process in self._processes]

    def workers(self) -> Sequence[int]:
        return [process.pid or 0 for process in self._processes]

    def kill_all(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, AttributeError):
                process.kill()
        end = time.monotonic() + _GONE_S
        while None in self.exits() and time.monotonic() < end:
            time.sleep(_LOOK_S)


def _serve() -> None:
    """Start the server if needed, with SIGINT blocked: it ignores that only once it has torch."""
    resource_tracker.ensure_running()  # which unblocks SIGINT (Python 3.11)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing() -> None:
    """A first child."""


def _follow(pipe: Connection) -> None:
    """Be killed when the other end of a pipe is closed."""
    # Else only one rank gets it
    own = os.open(f"/proc/self/fd/{pipe.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    if pipe.poll(0):  # it was closed before
        os.kill(os.getpid(), signal.SIGKILL)


def _work(followed: Connection, order: str, log: str, rank: int, world: int, port: int) -> None:
    follow_parent(os.getppid(), signal.SIGKILL)
    _follow(followed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor ends it
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    from deepvm.lab.training import trainer

    try:
        trainer.main(order)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(1)
    # Threads of gloo outlive the group, and abort an interpreter that ends (torch 2.13)
    os._exit(0)
