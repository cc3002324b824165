"""Processes that train together on this machine: started, listened to, and always ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
from deepvm.profiling.workload.spec import Task

MODULE = "deepvm.profiling.eflops.eflops_worker"
GRACE_S = 30.0
"""Seconds that processes get to end when the result is there."""
SETTLE_S = 2.0
"""Seconds in which the other processes of one that failed are heard, and a process is waited for that is ending."""
_TAIL = 2000


@dataclass
class _Worker:
    """One process; ``errors`` is what it and its libraries print."""

    rank: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    unread: bytes = b""
    failed: bool = False


@dataclass(frozen=True)
class _Failure:
    """Why it did not work; of several, the one of the lowest order is the cause."""

    order: int
    error: DeepVMError


def run_workers(task: Task, say: Callable[[str], None], module: str = MODULE) -> dict[str, Any]:
    """Start the processes and wait for what rank 0 finds.

    Never longer than ``task.timeout_s`` (beside a window's length) without hearing from any of them. When this returns
    or raises, none is left.

    Args:
        task: what they do.
        say: gets lines about the progress.
        module: what they run.

    Raises:
        RequestError: the batch does not fit, or an argument cannot be used on this device.
        DataError: the images cannot be read.
        MeasurementError: one failed, ended without a result, or none was heard from in time.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deepvm-eflops-")))
        workers: list[_Worker] = []
        stack.callback(_end, workers)
        for rank in range(task.processes):
            errors = stack.enter_context(tempfile.TemporaryFile())
            workers.append(_Worker(rank, _start(module, task, rank, folder / "rendezvous", errors), errors))
        found = _listen(workers, task, say)
        _wait(workers)
    return found


def _start(module: str, task: Task, rank: int, rendezvous: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if task.processes > 1 and sys.platform == "linux":
        # Else gloo looks for its own address under the host's name, which need not have one.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return subprocess.Popen(
        [sys.executable, "-m", module, task.write(), str(rank), str(rendezvous)],
        # There it finds this very package, and no file of the user's that happens to be called like a module.
        cwd=Path(__file__).resolve().parents[2],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        # Ctrl-C is for the process that looks on, which ends these.
        start_new_session=True,
    )


def _listen(workers: list[_Worker], task: Task, say: Callable[[str], None]) -> dict[str, Any]:
    limit = task.timeout_s + task.seconds
    deadline = time.monotonic() + limit
    failures: list[_Failure] = []
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        while selector.get_map() and (now := time.monotonic()) < deadline:
            ready = selector.select(deadline - now)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                for message in _messages(key.data, data, task):
                    if "found" in message:
                        found: dict[str, Any] = message["found"]
                        return found
                    if "failure" in message:
                        failures.append(message["failure"])
                    if "say" in message:
                        say(message["say"])
            if failures:
                # One that fails takes the others with it; what was the cause may be heard of last.
                deadline = min(deadline, time.monotonic() + SETTLE_S)
            elif ready:
                deadline = time.monotonic() + limit
    if failures:
        raise min(failures, key=lambda f: f.order).error
    raise MeasurementError(
        f"{task.workload.model}: nothing was heard for {limit:g} s from the processes that train; "
        "allow more with --timeout, or take a smaller --batch"
    )


def _messages(worker: _Worker, data: bytes, task: Task) -> Iterator[dict[str, Any]]:
    """What a process tells; ``{"failure": ...}`` where it failed, or ended without having told why."""
    *lines, worker.unread = (worker.unread + data).split(b"\n")
    for line in lines:
        message = json.loads(line)
        if "failed" in message:
            worker.failed = True
            yield {"failure": _failure(message, worker, task)}
        else:
            yield message
    if not data and not worker.failed and (failure := _ended(worker, task)):
        yield {"failure": failure}


def _failure(message: dict[str, Any], worker: _Worker, task: Task) -> _Failure:
    if message["failed"] == "request":
        return _Failure(0, RequestError(message["option"], message["value"], message["allowed"]))
    if message["failed"] == "data":
        return _Failure(0, DataError(message["message"]))
    if message["failed"] == "memory":
        return _Failure(0, _too_large(task, message["message"]))
    text = f"{_name(worker, task)} failed: {message['message']}; {_advice(task)}"
    return _Failure(2, MeasurementError(text))


def _ended(worker: _Worker, task: Task) -> _Failure | None:
    """What to say of a process that is gone and has told nothing; None where it had nothing to tell."""
    try:
        code = worker.process.wait(SETTLE_S)
    except subprocess.TimeoutExpired:
        return _Failure(1, MeasurementError(f"{_name(worker, task)} told nothing and did not end; {_advice(task)}"))
    if code == 0 and worker.rank:
        return None
    if code == -signal.SIGKILL:
        return _Failure(0, _too_large(task, "the process was killed, as Linux does where memory runs out"))
    size = worker.errors.seek(0, os.SEEK_END)
    worker.errors.seek(max(0, size - _TAIL))
    lines = worker.errors.read().decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    text = f"{_name(worker, task)} ended {how}: {lines[-1]}; {_advice(task)}"
    return _Failure(1, MeasurementError(text))


def _advice(task: Task) -> str:
    if task.processes > 1:
        return "try --processes 1: if that works, what connects the processes is at fault"
    return "nvidia-smi shows whether the GPU is well" if task.device == "cuda" else "try a smaller --batch"


def _too_large(task: Task, why: str) -> RequestError:
    own = task.workload
    half = own.batch // 2
    smaller = f"less, such as {half}" if half >= 2 else "no less; choose a smaller --model or --resolution"
    return RequestError("batch", own.batch, f"{smaller}: {own.model} at {own.resolution} x {own.resolution}: {why}")


def _name(worker: _Worker, task: Task) -> str:
    return f"{task.workload.model}: process {worker.rank + 1} of {task.processes}"


def _wait(workers: list[_Worker]) -> None:
    """The numbers are there: whoever does not end by itself is ended."""
    deadline = time.monotonic() + GRACE_S
    for worker in workers:
        try:
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        # One that a broken driver holds cannot be ended by anybody; it must not hold this one as well.
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(SETTLE_S)
        for pipe in (worker.process.stdin, worker.process.stdout):
            if pipe is not None:
                pipe.close()
