"""A job's process on each machine: ``python -m deepvm.lab.orchestrated.rank RUN``."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from deepvm.io.agent_board import AGENT
from deepvm.io.agent_link import EPOCH
from deepvm.lab.faults.fault import STRUCK
from deepvm.lab.records import Events, rows_in
from deepvm.lab.running.launcher import Order
from deepvm.lab.training.datasets import Batch
from deepvm.lab.training.trainer import Trainer, exit_record

PLACED = "placed"  # The event that says on which machine a rank is
MIN_STEP_S = 0.01


class PacedTrainer(Trainer):
    """Steps take a minimum time: tiny models need a millisecond, notices are polled per second."""

    def _step(self, step: int, loader: Iterator[Batch]) -> None:
        ends = time.monotonic() + MIN_STEP_S
        super()._step(step, loader)
        time.sleep(max(ends - time.monotonic(), 0.0))


def order_of(run: Path, environ: Mapping[str, str]) -> Order:
    """This rank's task in the job's generation; failures that have struck do not recur."""
    rows = rows_in(run, [path.name for path in run.glob("worker_*.jsonl")])
    struck = [row["key"] for row in rows if row["event"] in STRUCK]
    tiers = environ.get("DEEPVM_TIERS", "").split()
    memory = [url for url in tiers if not url.startswith("file:")]
    return Order(run, int(environ[EPOCH]) - 1, struck, tiers=memory)


def main() -> None:
    """Train."""
    run = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    order = order_of(run, os.environ)
    Events(run, rank, order.attempt).note(PLACED, machine=Path(os.environ[AGENT]).parent.name)
    with exit_record(order, rank):
        PacedTrainer(order, rank, int(os.environ["WORLD_SIZE"])).run()
    # Threads of gloo outlive the group, and abort an interpreter that ends (torch 2.13)
    os._exit(0)


if __name__ == "__main__":
    main()
