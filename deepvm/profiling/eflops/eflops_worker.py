"""One of the processes that train while :func:`deepvm.profiling.eflops.measure_eflops.measure_eflops` looks on.

Started as ``python -m deepvm.profiling.eflops.eflops_worker TASK RANK RENDEZVOUS``. It tells what it finds through
:func:`deepvm.profiling.hosts.watchdog.emit`, and ends when its standard input closes, so that nothing trains on when
the process that looks on is gone; the rendezvous' folder goes as well.
"""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm.errors import DataError, RequestError
from deepvm.profiling.hosts.watchdog import emit, hold
from deepvm.profiling.workload.spec import Task, Workload

if TYPE_CHECKING:
    from torch import nn

_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "alloc_failed",
)


def work(task: Task, rank: int, rendezvous: Path) -> None:
    """Train and tell; the process of rank 0 tells for all.

    Events are ``alive`` from all, ``say`` with a ``line``, and at the end ``found`` with the numbers in ``found``.
    """
    import torch

    from deepvm.profiling.hosts.machine import describe
    from deepvm.profiling.workload.images import read_images
    from deepvm.profiling.workload.models import CLASSES
    from deepvm.profiling.workload.train_step import Ranks, Training, real, synthetic
    from deepvm.profiling.workload.windows import time_windows

    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    workload = task.workload
    device = torch.device("cuda", rank) if task.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    data = read_images(Path(task.data)) if task.data else None
    if task.modules:  # behind all others, which a file of the user's must not hide
        sys.path.append(task.modules)
    model, flops = _made(workload, count=rank == 0)
    ranks = Ranks(rank, task.processes, device, rendezvous, task.timeout_s)
    batches = (
        real(data, workload.batch, workload.resolution, device, ranks)
        if data
        else synthetic(workload.batch, workload.resolution, CLASSES, device)
    )
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
        found = asdict(timing) | {
            "forward_flops": flops,
            "machine": asdict(describe()),
            "data": data.name if data else "synthetic",
        }
        emit("found", found=found)
    ranks.close()


def _made(workload: Workload, *, count: bool) -> tuple[nn.Module, int]:
    """The model and, where they are to be counted, the operations of its forward pass for one image.

    Raises:
        RequestError: a model of the user's own cannot be made or counted.
    """
    from deepvm.profiling.workload.models import build, forward_flops

    own = ":" in workload.model
    try:
        model = build(workload.model)
    except (ImportError, AttributeError) as error:
        allowed = f"module:function that can be imported in the current folder ({type(error).__name__}: {error})"
        raise RequestError("model", workload.model, allowed) from None
    try:
        return model, forward_flops(model, workload.resolution) if count else 0
    except Exception as error:
        if not own:
            raise
        allowed = f"a model that takes images, and whose operations can be counted without data ({_line(error)})"
        raise RequestError("model", workload.model, allowed) from None


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def failure(error: BaseException) -> dict[str, Any]:
    """What the process that looks on needs to tell the user."""
    if isinstance(error, RequestError):
        return {"kind": "request", "option": error.option, "value": error.value, "allowed": error.allowed}
    if isinstance(error, DataError):
        return {"kind": "data", "reason": str(error)}
    text = str(error).strip() or type(error).__name__
    # torch has an error of its own for GPUs; what cuDNN, cuBLAS and the processor's allocator raise has no type.
    if isinstance(error, MemoryError) or any(words in text.lower() for words in _NO_MEMORY):
        # Where in torch's source the processor's allocator gave up helps nobody here.
        return {"kind": "memory", "reason": re.sub(r"^\[enforce fail [^]]*\] err == 0\. ", "", text.splitlines()[0])}
    return {"kind": "other", "reason": f"{type(error).__name__}: {text.splitlines()[0]}"}


def main() -> None:
    """Run as a process of its own."""
    task, rank, rendezvous = Task.read(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

    def tidy() -> None:  # whoever made the folder may have been killed
        rendezvous.unlink(missing_ok=True)
        rendezvous.parent.rmdir()

    hold(math.inf, tidy)
    try:
        work(task, rank, rendezvous)
    except Exception as error:
        emit("failed", **failure(error))
        # Other processes may be waiting for this one; leaving the ordinary way would wait for them.
        os._exit(1)


if __name__ == "__main__":
    main()
