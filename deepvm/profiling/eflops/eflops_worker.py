"""The processes that train on this machine while their speed is measured, and their parent.

:func:`run_workers` starts each as ``python -m deepvm.profiling.eflops.eflops_worker TASK RANK
RENDEZVOUS``. They end when their standard input closes, so that none outlives the process that
started it.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm.errors import DataError, DeepVMError, MeasurementError, RequestError
from deepvm.profiling.hosts.coordinator import Coordinator, Message
from deepvm.profiling.hosts.launcher import Host
from deepvm.profiling.hosts.watchdog import emit, hold, leave
from deepvm.profiling.workload.spec import Workload

if TYPE_CHECKING:
    from torch import nn

MODULE = "deepvm.profiling.eflops.eflops_worker"
GRACE_S = 30.0  # for the processes to end after the result
SETTLE_S = 2.0  # for the other processes to report after one has failed
_NO_MEMORY = re.compile(
    r"out of memory|(can't|cannot) allocate memory|not enough memory|alloc_failed", re.IGNORECASE
)


@dataclass(frozen=True)
class Task:
    """A process's task: ``windows`` of at least ``seconds``, waits of at most ``timeout_s``.

    ``data`` is a folder, "" for random images; ``modules`` a folder in which ``module:function`` is
    looked up last.
    """

    workload: Workload
    device: str
    processes: int
    threads: int
    windows: int
    seconds: float
    timeout_s: float
    data: str
    modules: str = ""


def run_workers(task: Task, say: Callable[[str], None], module: str = MODULE) -> dict[str, Any]:
    """Start the processes and wait for rank 0's result; when this returns or raises, none is left.

    Raises:
        RequestError: the batch does not fit, or an argument cannot be used on this device.
        DataError: the images cannot be read.
        MeasurementError: one failed or ended without a result, or all were silent for
            ``task.timeout_s`` and a window.
    """
    environment = dict(os.environ)
    if task.processes > 1 and sys.platform == "linux":
        # Else gloo resolves the host's name, which need not have an address.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # In this folder they import this very package, and no file of the user's with the name of a
    # module.
    package = Path(__file__).resolve().parents[3]
    with tempfile.TemporaryDirectory(prefix="deepvm-eflops-") as folder:
        words = [sys.executable, "-m", module, json.dumps(asdict(task))]
        commands = [
            (
                Host(f"process {rank + 1} of {task.processes}"),
                [*words, str(rank), str(Path(folder, "rendezvous"))],
            )
            for rank in range(task.processes)
        ]
        with Coordinator(commands, environment=environment, folder=package) as workers:
            found = _listen(workers, task, say)
            workers.wait(GRACE_S)
    return found


def _listen(workers: Coordinator, task: Task, say: Callable[[str], None]) -> dict[str, Any]:
    limit = task.timeout_s + task.seconds
    deadline = time.monotonic() + limit
    # By rank; the one of the lowest order is the cause
    failures: dict[int, tuple[int, DeepVMError]] = {}
    while (heard := workers.next_message(deadline)) is not None:
        rank, message = heard
        event = message["event"]
        if event == "found":
            return dict(message["found"])
        if event == "say":
            say(message["line"])
        # Rank 0 reports for all, so that the others may end silently.
        early = event == "ended" and rank not in failures and (message["code"] or not rank)
        if event == "failed" or early:
            failures[rank] = _failure(message, rank, task)
        if not failures:
            deadline = time.monotonic() + limit
        elif len(failures) == task.processes:
            break
        else:
            # One that fails takes the others with it, and the cause may be reported last.
            deadline = min(deadline, time.monotonic() + SETTLE_S)
    if failures:
        raise min(failures.values(), key=lambda failure: failure[0])[1]
    raise MeasurementError(
        f"{task.workload.model}: nothing was heard for {limit:g} s from the processes that train; "
        "allow more with --timeout, or take a smaller --batch"
    )


def _failure(message: Message, rank: int, task: Task) -> tuple[int, DeepVMError]:
    """The error, after how many others it is to be looked for as the cause."""
    if "request" in message:
        return 0, RequestError(*message["request"])
    if "data" in message:
        return 0, DataError(message["data"])
    if message.get("code") == -signal.SIGKILL:
        reason = "the process was killed, as Linux does where memory runs out"
        return 0, _too_large(task, reason)
    advice = "try a smaller --batch"
    if task.processes > 1:
        advice = "try --processes 1: if that works, what connects the processes is at fault"
    elif task.device == "cuda":
        advice = "nvidia-smi shows whether the GPU is healthy"
    where = f"process {rank + 1} of {task.processes}"
    text = f"{task.workload.model}: {where}: {message['reason']}; {advice}"
    return 1 + (message["event"] == "failed"), MeasurementError(text)


def _too_large(task: Task, reason: str) -> RequestError:
    own = task.workload
    smaller = "no less; choose a smaller --model or --resolution"
    if own.batch >= 4:
        smaller = f"less, such as {own.batch // 2}"
    allowed = f"{smaller}: {own.model} at {own.resolution} x {own.resolution}: {reason}"
    return RequestError("batch", own.batch, allowed)


# --- in the process ---


def work(task: Task, rank: int, rendezvous: Path) -> None:
    """Train and emit ``alive``; rank 0 also emits lines to ``say`` and the result ``found``."""
    import torch

    from deepvm.profiling.hosts.machine import describe
    from deepvm.profiling.workload.images import read_images
    from deepvm.profiling.workload.models import CLASSES
    from deepvm.profiling.workload.train_step import Ranks, Training, real, synthetic
    from deepvm.profiling.workload.windows import time_windows

    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    workload = task.workload
    if task.device == "cuda":
        device = torch.device("cuda", rank)
    else:
        device = torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    data = read_images(Path(task.data)) if task.data else None
    if task.modules:  # behind all others, which a file of the user's must not hide
        sys.path.append(task.modules)
    model, flops = _made(workload, count=rank == 0)
    ranks = Ranks(rank, task.processes, device, rendezvous, task.timeout_s)
    if data:
        batches = real(data, workload.batch, workload.resolution, device, ranks)
    else:
        batches = synthetic(workload.batch, workload.resolution, CLASSES, device)
    training = Training(model, workload, batches, device, ranks)

    def say(text: str) -> None:
        if rank == 0:
            emit("say", line=text)

    def run(steps: int) -> float:
        seconds = training.run(steps)
        emit("alive")
        return seconds

    timing = time_windows(run, workload.batch * task.processes, task.windows, task.seconds, say)
    if rank == 0:
        source = data.name if data else "synthetic"
        emit(
            "found",
            found={**asdict(timing), "forward_flops": flops, "machine": describe(), "data": source},
        )
    ranks.close()


def _made(workload: Workload, *, count: bool) -> tuple[nn.Module, int]:
    """The model and, if requested, the operations of its forward pass for one image."""
    from deepvm.profiling.workload.models import build, forward_flops

    try:
        model = build(workload.model)
        return model, forward_flops(model, workload.resolution) if count else 0
    except Exception as error:
        if ":" not in workload.model:
            raise
        allowed = (
            "module:function that can be imported in the current folder, of a model that takes"
            " images and whose operations can be counted without data"
            f" ({type(error).__name__}: {_reason(error)})"
        )
        raise RequestError("model", workload.model, allowed) from None


def _reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _report(error: Exception, task: Task) -> None:
    # torch has an error of its own for GPUs; what cuDNN, cuBLAS and the processor's allocator raise
    # has no type.
    known = isinstance(error, (RequestError, DataError))
    if not known and (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
        # Where in torch's source the processor's allocator gave up is no help here.
        reason = re.sub(r"^\[enforce fail [^]]*\] err == 0\. ", "", _reason(error))
        error = _too_large(task, reason)
    if isinstance(error, RequestError):
        emit("failed", request=[error.option, error.value, error.allowed])
    elif isinstance(error, DataError):
        emit("failed", data=str(error))
    else:
        emit("failed", reason=f"{type(error).__name__}: {_reason(error)}")


def main() -> None:
    """Run as a process of its own."""
    fields = json.loads(sys.argv[1])
    rank = int(sys.argv[2])
    rendezvous = Path(sys.argv[3])
    task = Task(**fields | {"workload": Workload(**fields["workload"])})

    def tidy() -> None:  # whoever made the folder may have been killed
        rendezvous.unlink(missing_ok=True)
        rendezvous.parent.rmdir()

    hold(math.inf, tidy)
    try:
        work(task, rank, rendezvous)
    except Exception as error:
        _report(error, task)
        # Other processes may be waiting for this one; leaving the ordinary way would wait for them.
        os._exit(1)
    leave()


if __name__ == "__main__":
    main()
