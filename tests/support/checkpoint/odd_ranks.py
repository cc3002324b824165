"""Trainings on several ranks that should be refused, or warned, or waited for.

Each prints what became of it.

``odd_ranks.py CASE,CASE FOLDER RANK WORLD``, started by :func:`run`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[2]
_MARK = "=== case"


def run(cases: Sequence[str], folder: Path, world: int = 2) -> dict[str, list[str]]:
    """What each rank printed and logged, by case."""
    environ = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, ",".join(cases), str(folder), str(rank), str(world)],
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]
    said = [rank.communicate(timeout=120)[0].split(_MARK)[1:] for rank in ranks]
    assert all(len(each) == len(cases) for each in said), said
    return {case: [each[number] for each in said] for number, case in enumerate(cases)}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Odd:
    """An extra that some ranks cannot save."""

    def __init__(self, value: object) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Nothing."""

    def __iter__(self) -> Any:
        """Makes it one of each rank."""
        return iter(())


def model(sharded: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4))
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(made)
    return made


def step(trained: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    trained(torch.ones(2, 6)).sum().backward()
    optimizer.step()


def refused_on_one_rank(folder: Path, rank: int) -> None:
    from deepvm.checkpoint import Checkpointer

    made = model()
    extra = {"odd": Odd({1, 2} if rank else 3)}
    Checkpointer(
        model=made,
        optimizer=torch.optim.SGD(made.parameters(), lr=0.1),
        extra=extra,
        tiers=folder,
        job="odd",
    )


def an_optimizer_made_too_early(folder: Path, rank: int) -> None:
    from torch.distributed.fsdp import fully_shard

    from deepvm.checkpoint import Checkpointer

    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    Checkpointer(model=fully_shard(made), optimizer=optimizer, tiers=folder, job="odd")


def steps_of_another_optimizer(folder: Path, rank: int) -> None:
    from deepvm.checkpoint import Checkpointer

    made = model(sharded=True)
    idle, other = (torch.optim.SGD(made.parameters(), lr=0.1) for _ in range(2))
    with Checkpointer(model=made, optimizer=idle, tiers=folder, job="odd", every=1):
        for _ in range(60):
            step(made, other)


class Nested(torch.optim.SGD):
    """Keeps its momentum deeper than others do."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["nested"] = {"momentum": torch.zeros_like(parameter)}
        super().step(closure)


def states_that_could_not_be_restored(folder: Path, rank: int) -> None:
    from deepvm.checkpoint import Checkpointer

    made = model(sharded=True)
    optimizer = Nested(made.parameters(), lr=0.1)
    with Checkpointer(model=made, optimizer=optimizer, tiers=folder, job="odd", every=1):
        for _ in range(2):
            step(made, optimizer)


def sharded_too_finely(folder: Path, rank: int, kind: str = "Adam") -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    from deepvm.checkpoint import Checkpointer

    made = parallelize_module(
        torch.nn.Linear(2, 40_000), init_device_mesh("cpu", (2,)), RowwiseParallel()
    )
    optimizer = getattr(torch.optim, kind)(made.parameters(), lr=0.1)
    Checkpointer(model=made, optimizer=optimizer, tiers=folder, job="odd")


def sharded_as_finely_as_may_be(folder: Path, rank: int) -> None:
    sharded_too_finely(folder, rank, "SGD")


def a_version_that_one_rank_fetches_for_long(folder: Path, rank: int) -> None:
    from deepvm.checkpoint import Checkpointer
    from deepvm.checkpoint.tiers.file import FileTier
    from deepvm.checkpoint.training import ranks

    ranks.WAIT_S = 2
    fetch = FileTier.fetch

    def slow(*arguments: Any) -> Path:
        time.sleep(2 * ranks.WAIT_S)
        return fetch(*arguments)

    FileTier.fetch = slow  # type: ignore[method-assign]
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with Checkpointer(model=made, optimizer=optimizer, tiers=folder, job="odd") as saver:
        step(made, optimizer)
        saver.save(block=True)
        say(f"restored {saver.restore_latest()}")


def main() -> None:
    cases, folder, rank, world = (
        sys.argv[1].split(","),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    torch.distributed.init_process_group(
        "gloo", init_method=(folder / "meet").as_uri(), rank=rank, world_size=world
    )
    for case in cases:
        say(_MARK)
        try:
            globals()[case](folder / case, rank)
            say("ended")
        except Exception as error:
            say(f"{type(error).__name__}: {error}")
        torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
