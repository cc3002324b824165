"""A rank of a training that iterates over ``ck.steps``, in a forked process.

Gradients are averaged over all ranks.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from deepvm.checkpoint import Checkpointer
from support.checkpoint.loops.campaign import start, wait_for
from support.checkpoint.loops.parts import Fields
from support.checkpoint.loops.run import digest

WORLD = 2


class Numbers(torch.utils.data.Sampler[int]):
    """Each rank draws its own numbers."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(rank)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(0, 100, (), generator=self.generator))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


Body = Callable[[int, int, Checkpointer], None]


def train(rank: int, folder: Path, total: int, every: int | None, body: Body, output: Path) -> None:
    """Train up to ``total``; ``body`` is called with rank, step and checkpointer at the end of each
    iteration.
    """
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    numbers, place = Numbers(rank), Fields(position=0)
    torch.manual_seed(10 + rank)
    extra = {"numbers": numbers, "place": place}
    saver = Checkpointer(
        model=model,
        optimizer=optimizer,
        extra=extra,
        tiers=folder,
        every=every,
        job="job",
        keep=1000,
    )
    stream, starts = iter(numbers), []
    for step in saver.steps(total):
        starts.append(step)
        place.position += 1
        inputs = torch.randn(6, 4) + 0.01 * next(stream) + place.position
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
        torch.rand(2)
        body(rank, step, saver)
    saver.close()
    objects = {"model": model, "optimizer": optimizer, **extra, "random": torch.get_rng_state()}
    digests = {name: digest(value) for name, value in objects.items()}
    output.write_text(json.dumps({"start": starts[0] if starts else None, **digests}))


def run_ranks(
    place: Path, name: str, folder: Path, total: int, every: int | None, body: Body
) -> list[dict[str, Any]]:
    """What each rank has at the end; an empty dictionary for one that failed or was killed."""
    logs = [place / f"{name}-{rank}.log" for rank in range(WORLD)]
    outputs = [place / f"{name}-{rank}.json" for rank in range(WORLD)]

    def work(rank: int) -> None:
        address = f"file://{place / name}.store"
        distributed.init_process_group(
            "gloo", init_method=address, rank=rank, world_size=WORLD, timeout=timedelta(seconds=30)
        )
        train(rank, folder, total, every, body, outputs[rank])

    processes = [start(lambda rank=rank: work(rank), logs[rank]) for rank in range(WORLD)]  # type: ignore[misc]
    for process, log in zip(processes, logs, strict=True):
        wait_for(process, log)
    return [json.loads(output.read_text()) if output.exists() else {} for output in outputs]


def killed_after(version: int) -> Body:
    """Rank 1 is killed in the second iteration after this version, when all ranks know that it is
    safe.
    """

    def body(rank: int, step: int, saver: Checkpointer) -> None:
        if step == version:
            assert [handle.durable.result(30) for handle in saver.handles][-1] == version
        if rank == 1 and step == version + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return body
