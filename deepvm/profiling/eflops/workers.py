"""Processes that train together on this machine: started, listened to, and always ended."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
from deepvm.profiling.hosts.coordinator import Coordinator, Message
from deepvm.profiling.hosts.host_list import Host
from deepvm.profiling.workload.spec import Task

MODULE = "deepvm.profiling.eflops.eflops_worker"
GRACE_S = 30.0
"""Seconds that processes get to end when the result is there."""
SETTLE_S = 2.0
"""Seconds in which the other processes of one that failed are heard."""


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
    environment = dict(os.environ)
    if task.processes > 1 and sys.platform == "linux":
        # Else gloo looks for its own address under the host's name, which need not have one.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # There they find this very package, and no file of the user's that happens to be called like a module.
    package = Path(__file__).resolve().parents[3]
    with tempfile.TemporaryDirectory(prefix="deepvm-eflops-") as folder:
        words = [sys.executable, "-m", module, task.write()]
        commands = [
            (Host(f"process {rank + 1} of {task.processes}"), [*words, str(rank), str(Path(folder, "rendezvous"))])
            for rank in range(task.processes)
        ]
        with Coordinator(commands, environment=environment, folder=package) as workers:
            found = _listen(workers, task, say)
            workers.wait(GRACE_S)
    return found


def _listen(workers: Coordinator, task: Task, say: Callable[[str], None]) -> dict[str, Any]:
    limit = task.timeout_s + task.seconds
    deadline = time.monotonic() + limit
    failures: dict[int, _Failure] = {}
    while (heard := workers.next_message(deadline)) is not None:
        rank, message = heard
        if message["event"] == "found":
            return dict(message["found"])
        if message["event"] == "say":
            say(message["line"])
        if message["event"] == "failed":
            failures[rank] = _failure(message, rank, task)
        # Rank 0 tells for all, so that the others may end without a word.
        if message["event"] == "ended" and rank not in failures and (message["code"] or not rank):
            failures[rank] = _ended(message["code"], workers.tail(rank, 1), rank, task)
        if not failures:
            deadline = time.monotonic() + limit
        elif len(failures) == task.processes:
            break
        else:
            # One that fails takes the others with it; what was the cause may be heard of last.
            deadline = min(deadline, time.monotonic() + SETTLE_S)
    if failures:
        raise min(failures.values(), key=lambda f: f.order).error
    raise MeasurementError(
        f"{task.workload.model}: nothing was heard for {limit:g} s from the processes that train; "
        "allow more with --timeout, or take a smaller --batch"
    )


def _failure(message: Message, rank: int, task: Task) -> _Failure:
    if message["kind"] == "request":
        return _Failure(0, RequestError(message["option"], message["value"], message["allowed"]))
    if message["kind"] == "data":
        return _Failure(0, DataError(message["reason"]))
    if message["kind"] == "memory":
        return _Failure(0, _too_large(task, message["reason"]))
    return _Failure(2, MeasurementError(f"{_name(rank, task)} failed: {message['reason']}; {_advice(task)}"))


def _ended(code: int, said: tuple[str, ...], rank: int, task: Task) -> _Failure:
    """A process that ended and has not told why."""
    if code == -signal.SIGKILL:
        return _Failure(0, _too_large(task, "the process was killed, as Linux does where memory runs out"))
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    line = said[0] if said else "it printed nothing"
    return _Failure(1, MeasurementError(f"{_name(rank, task)} ended {how}: {line}; {_advice(task)}"))


def _advice(task: Task) -> str:
    if task.processes > 1:
        return "try --processes 1: if that works, what connects the processes is at fault"
    return "nvidia-smi shows whether the GPU is well" if task.device == "cuda" else "try a smaller --batch"


def _too_large(task: Task, why: str) -> RequestError:
    own = task.workload
    half = own.batch // 2
    smaller = f"less, such as {half}" if half >= 2 else "no less; choose a smaller --model or --resolution"
    return RequestError("batch", own.batch, f"{smaller}: {own.model} at {own.resolution} x {own.resolution}: {why}")


def _name(rank: int, task: Task) -> str:
    return f"{task.workload.model}: process {rank + 1} of {task.processes}"
