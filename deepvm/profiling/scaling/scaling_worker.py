"""One process of a data-parallel training that is timed: ``torchrun -m deepvm.profiling.scaling.scaling_worker ORDER``.

Real steps of PyTorch's DistributedDataParallel: forward, backward with the all-reduce of gradients, Adam (the paper's
optimizer, DeepVM section V-A). Weak scaling as there: every process has the same batch, whatever the number of VMs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from deepvm.profiling.hosts.watchdog import emit, hold, reason_of


def measure(workload: Mapping[str, Any], patience_s: float) -> None:
    """Time windows of steps; rank 0 tells the seconds of one step in each, those of the slowest process.

    Args:
        workload: as :meth:`deepvm.profiling.scaling.measure_scaling.Task.workload` makes it.
        patience_s: the longest wait for another process.
    """
    import torch

    from deepvm.profiling.workload.models import CLASSES, build
    from deepvm.profiling.workload.spec import Workload
    from deepvm.profiling.workload.train_step import Ranks, Training, synthetic

    emit("arrived")
    device = torch.device("cpu")
    if workload["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device, None, patience_s)

    def tell(event: str, **facts: Any) -> None:
        if ranks.rank == 0:
            emit(event, **facts)

    ranks.slowest(0.0)  # all are there
    tell("joined")
    torch.manual_seed(0)
    own = Workload(workload["model"], workload["resolution"], workload["batch"])
    batches = synthetic(own.batch, own.resolution, CLASSES, device)
    training = Training(build(own.model).train(), own, batches, device, ranks)
    steps = workload["steps"]
    training.run(workload["warmup"])
    for number in range(workload["windows"]):
        tell("window", number=number, seconds=training.run(steps) / steps)
    ranks.slowest(0.0)
    tell("done")
    ranks.slowest(0.0)
    ranks.close()


def main() -> int:
    """The command; returns its exit code."""
    order = json.loads(sys.argv[1])
    lines = hold(order["limit_s"])
    try:
        measure(order["workload"], order["patience_s"])
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
