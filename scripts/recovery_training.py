"""The training that scripts/bench_recovery.py interrupts: tiny, with gloo and step times.

    recovery_training.py STEPS PAUSE_S

Each line of ``$NOTES`` has a time, the process, the world's size, the rank, and what happened:
``begin``, ``restored SECONDS``, or the number of a step. The same script runs under deepvm and
under torchrun; both save each tenth step.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from deepvm.checkpoint import Checkpointer


def main() -> None:
    """Train."""
    steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    process = time.time_ns()  # numbers of processes repeat on machines that have their own

    def note(what: str) -> None:
        line = f"{time.time():.6f} {process} {world} {rank} {what}\n"
        os.write(notes, line.encode())  # one call: lines are whole

    note("begin")
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters())
    checkpointer = Checkpointer(model=model, optimizer=optimizer, every=10)
    began = time.perf_counter()
    checkpointer.restore_latest()
    note(f"restored {time.perf_counter() - began:.6f}")
    for step in checkpointer.steps(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64) * (step % 7)).square().mean().backward()
        optimizer.step()
        time.sleep(pause_s)
        note(str(step + 1))
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
