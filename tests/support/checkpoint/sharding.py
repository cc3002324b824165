"""Several ranks of a sharded save in one process: what DCP does by collectives is done here by
hand, on real tiers.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch.distributed import HashStore
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from deepvm.checkpoint import dcp as dcp_tiers
from deepvm.checkpoint.dcp import DeepVMReader, DeepVMWriter
from deepvm.errors import CheckpointError

_T = TypeVar("_T")
JOB = "sharded"


def part(seed: int, rank: int) -> dict[str, Any]:
    """What a rank has of a state: tensors of its own, and a number that all have."""
    made = torch.Generator().manual_seed(10 * seed + rank)
    own = {
        f"{name}{rank}": torch.randn(size, generator=made) for name, size in (("w", 3000), ("b", 7))
    }
    return {**own, "step": seed}


def whole(seed: int, world: int) -> dict[str, Any]:
    """The state that the ranks have together."""
    return {name: value for rank in range(world) for name, value in part(seed, rank).items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        torch.equal(v, other[k]) if isinstance(v, torch.Tensor) else v == other[k]
        for k, v in one.items()
    )


def load(url: str, version: int | None = None, world: int = 2) -> dict[str, Any]:
    """What a new process that has all of the model restores. Raises the error of the reader."""
    found = {
        k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else -1
        for k, v in whole(0, world).items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            reader = DeepVMReader(url, job=JOB)
            dcp.load(
                found,
                checkpoint_id=None if version is None else str(version),
                storage_reader=reader,
            )
        except CheckpointException as error:
            first = next(iter(error.failures.values()))[0]
            # As torch tells it
            if isinstance(first, AssertionError) and "global metadata read failed" in str(first):
                raise CheckpointError(str(first)) from None
            raise first from None
    return found


class _OfThread(threading.local):
    """The tiers of a rank, which is a thread here and a process elsewhere."""

    def __init__(self) -> None:
        self.__dict__["places"] = dcp_tiers._OpenTiers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.places, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.places, name, value)


class Ranks:
    """A training run of several ranks; each has its own thread, writer and tier."""

    def __init__(self, url: str, patch: pytest.MonkeyPatch, world: int = 2) -> None:
        self.world, self._store, self._of_thread = world, HashStore(), _OfThread()
        patch.setattr(dcp_tiers, "_store", lambda: self._store)
        patch.setattr(dcp_tiers, "_OPEN_TIERS", self._of_thread)
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"rank-{rank}") for rank in range(world)
        ]
        self._writers: list[Any] = self._all(lambda rank: DeepVMWriter(url, job=JOB))

    def _all(self, work: Callable[[int], _T]) -> list[_T]:
        """Each rank in its thread. Raises the first error, when all have ended."""
        futures = [thread.submit(work, rank) for rank, thread in enumerate(self._threads)]
        errors = [error for future in futures if (error := future.exception(60))]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def save(self, version: int, seed: int | None = None) -> None:
        """Save a version, as ``dcp.save`` does on every rank. Raises what a rank raises."""
        planners = [DefaultSavePlanner() for _ in self._writers]

        def plan(rank: int) -> Any:
            writer = self._writers[rank]
            writer.reset(str(version))
            writer.set_up_storage_writer(rank == 0)
            state = part(version if seed is None else seed, rank)
            planners[rank].set_up_planner(state, writer.storage_meta(), rank == 0)
            return writer.prepare_local_plan(planners[rank].create_local_plan())

        plans, metadata = planners[0].create_global_plan(self._all(plan))
        plans = self._threads[0].submit(self._writers[0].prepare_global_plan, plans).result(60)

        def write(rank: int) -> Any:
            return (
                self._writers[rank]
                .write_data(planners[rank].finish_plan(plans[rank]), planners[rank])
                .wait()
            )

        results = self._all(write)
        self._threads[0].submit(self._writers[0].finish, metadata, results).result(60)

    def close(self) -> None:
        """As when the processes end."""

        def end(rank: int) -> None:
            sending = self._writers[rank]._sending
            if sending is not None:
                sending.give_up()
            for _, tier in self._of_thread.places._open.values():
                tier.close()

        self._all(end)
        for thread in self._threads:
            thread.shutdown()
