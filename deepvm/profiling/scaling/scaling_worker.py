"""One process of a data-parallel training that is timed: ``torchrun -m deepvm.profiling.scaling.scaling_worker ...``.

Real steps of PyTorch's DistributedDataParallel: forward, backward with the all-reduce of gradients, Adam (the paper's
optimizer, DeepVM section V-A). Weak scaling as there: every process has the same batch, whatever the number of VMs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deepvm.profiling.hosts.watchdog import emit, hold, reason_of

if TYPE_CHECKING:
    import torch

    from deepvm.profiling.workload.train_step import Ranks, Training


def measure(workload: Mapping[str, Any], patience_s: float) -> None:
    """Time windows of steps; rank 0 tells the seconds of one step in each, those of the slowest process.

    Args:
        workload: ``model``, ``device`` (``cpu`` or ``cuda``), ``batch`` (images), ``resolution`` (pixels), ``warmup``
            (steps), ``windows``, ``steps`` (in each).
        patience_s: the longest wait for another process.
    """
    import torch

    from deepvm.profiling.hosts.machine import describe
    from deepvm.profiling.workload.train_step import Ranks

    emit("arrived", pid=os.getpid())
    device = torch.device("cpu")
    if workload["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device, None, patience_s)
    ranks.slowest(0.0)  # all are there
    if ranks.rank == 0:
        emit("joined", machine=describe().document())
    training = _training(workload, device, ranks)
    steps = int(workload["steps"])
    training.run(int(workload["warmup"]))
    for number in range(int(workload["windows"])):
        seconds = training.run(steps) / steps
        if ranks.rank == 0:
            emit("window", number=number, seconds=seconds)
    ranks.slowest(0.0)
    if ranks.rank == 0:
        emit("done")
    ranks.slowest(0.0)
    ranks.close()


def _training(workload: Mapping[str, Any], device: torch.device, ranks: Ranks) -> Training:
    """The model on synthetic images; the same in all processes."""
    import torch

    from deepvm.profiling.workload.models import CLASSES, build
    from deepvm.profiling.workload.spec import Workload
    from deepvm.profiling.workload.train_step import Training, synthetic

    torch.manual_seed(0)
    own = Workload(str(workload["model"]), int(workload["resolution"]), int(workload["batch"]))
    batches = synthetic(own.batch, own.resolution, CLASSES, device)
    return Training(build(own.model).train(), own, batches, device, ranks)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="scaling_worker")
    parser.add_argument("--token", required=True, help="whose process this is")
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--patience-s", type=float, required=True)
    parser.add_argument("--workload", required=True)
    order = parser.parse_args(arguments)
    lines = hold(order.limit_s)
    try:
        measure(json.loads(order.workload), order.patience_s)
    except Exception as error:
        if _of_the_network(error):
            emit("lost", reason=reason_of(error))
            # Whoever loses another one must not be the first to end, or it would be taken for the one who failed.
            lines.get()  # nothing comes: the watchdog ends this process
        emit("failed", reason=reason_of(error))
        raise
    return 0


def _of_the_network(error: Exception) -> bool:
    """Whether this process could not speak with another one; gloo has no class of errors for that."""
    import torch.distributed as dist

    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "connection closed by peer" in text


if __name__ == "__main__":
    sys.exit(main())
