"""A job's process on each machine: a rank of the lab's trainer; attempts are generations.

python -m deepvm.lab.orchestrated.rank RUN
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from deepvm.io.agent_board import AGENT
from deepvm.io.agent_link import EPOCH
from deepvm.lab.faults.fault import STRUCK
from deepvm.lab.orchestrated.job import ORDER
from deepvm.lab.records import Events, read_lines
from deepvm.lab.training.order import Order
from deepvm.lab.training.trainer import Trainer, exit_record

PLACED = "placed"
"""The event that says on which machine a rank is."""
LEAST_STEP_S = 0.01


class PacedTrainer(Trainer):
    """Steps take a minimum time: tiny models need a millisecond, notices are polled per second."""

    def _step(self, step: int, loader: Iterator[tuple[Tensor, Tensor, Tensor]]) -> None:
        ends = time.monotonic() + LEAST_STEP_S
        super()._step(step, loader)
        time.sleep(max(ends - time.monotonic(), 0.0))


def order_of(run: Path, environ: Mapping[str, str]) -> Order:
    """This rank's task in the job's generation; failures that have struck do not recur."""
    order = Order.from_json((run / ORDER).read_bytes())
    rows = (row for path in run.glob("worker_*.jsonl") for row in read_lines(path))
    struck = {row["key"] for row in rows if row["event"] in STRUCK}
    memory = tuple(
        url for url in environ.get("DEEPVM_TIERS", "").split() if not url.startswith("file:")
    )
    left = [strike for strike in order.strikes if strike.key not in struck]
    return replace(order, attempt=int(environ[EPOCH]) - 1, strikes=left, tiers=memory)


def main() -> None:
    """Train."""
    run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    order = order_of(run, os.environ)
    machine = Path(os.environ[AGENT]).parent.name
    Events(run, rank, order.attempt).note(PLACED, machine=machine)
    with exit_record(order, rank):
        PacedTrainer(order, rank, int(os.environ["WORLD_SIZE"])).run()
    # Threads of gloo outlive the group, and abort an interpreter that ends (torch 2.13)
    os._exit(0)


if __name__ == "__main__":
    main()
