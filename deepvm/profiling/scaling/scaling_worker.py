"""One process of a data-parallel training that is timed: ``torchrun -m deepvm.profiling.scaling.scaling_worker ...``.

Real steps of PyTorch's DistributedDataParallel: forward, backward with the all-reduce of gradients, Adam (the paper's
optimizer, DeepVM section V-A). Weak scaling as there: every process has the same batch, whatever the number of VMs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from deepvm.profiling.hosts.watchdog import emit, hold, reason_of

CLASSES = 10
"""As CIFAR-10, the paper's data set, has them."""


class Training:
    """The model of this process, its optimizer and a batch of synthetic images."""

    def __init__(self, workload: Mapping[str, Any]) -> None:
        """Make all of it; the process group must be there.

        Args:
            workload: ``model``, ``device`` (``cpu`` or ``cuda``), ``batch`` (images), ``resolution`` (pixels).
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from deepvm.profiling.workload.models import build

        torch.manual_seed(0)
        self._cuda = workload["device"] == "cuda"
        here = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", here) if self._cuda else torch.device("cpu")
        model = build(str(workload["model"]), classes=CLASSES).to(self.device).train()
        self._model = DistributedDataParallel(model, device_ids=[here] if self._cuda else None)
        self._optimizer = torch.optim.Adam(self._model.parameters())
        self._loss = torch.nn.CrossEntropyLoss()
        batch, pixels = int(workload["batch"]), int(workload["resolution"])
        self._images = torch.randn(batch, 3, pixels, pixels, device=self.device)
        self._labels = torch.randint(CLASSES, (batch,), device=self.device)

    def step(self) -> None:
        """Forward, backward with all-reduce, Adam; on a GPU it is only queued."""
        self._optimizer.zero_grad()
        self._loss(self._model(self._images), self._labels).backward()
        self._optimizer.step()

    def settle(self) -> None:
        """Wait until a GPU has done what was queued."""
        if self._cuda:
            import torch

            torch.cuda.synchronize(self.device)


def measure(workload: Mapping[str, Any]) -> None:
    """Time windows of steps; rank 0 tells the seconds of one step in each, those of the slowest process.

    Args:
        workload: as of :class:`Training`, and ``warmup`` (steps), ``windows``, ``steps`` (in each).
    """
    import torch
    import torch.distributed as dist

    training = Training(workload)
    for _ in range(int(workload["warmup"])):
        training.step()
    training.settle()
    steps = int(workload["steps"])
    for number in range(int(workload["windows"])):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            training.step()
        training.settle()
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=training.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            emit("window", number=number, seconds=slowest.item() / steps)


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
        import torch
        import torch.distributed as dist

        workload = json.loads(order.workload)
        emit("arrived", pid=os.getpid())
        if workload["device"] == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "nccl" if workload["device"] == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=order.patience_s))
        dist.barrier()
        if dist.get_rank() == 0:
            from deepvm.profiling.scaling.scaling_host import machine

            emit("joined", machine=machine())
        measure(workload)
        dist.barrier()
        if dist.get_rank() == 0:
            emit("done")
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        if _of_the_network(error):
            emit("lost", reason=reason_of(error))
            # Whoever loses another one must not be the first to end, or it would be taken for the one who failed.
            lines.get()  # nothing comes: the leash ends this process
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
