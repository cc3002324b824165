"""The ranks of a training job: they agree to save the same version or none, and share the work.

They communicate where every rank passes anyway (after an optimizer step, in ``save`` and
``restore_latest``), over a separate CPU group, so that it never mixes with the training's own
collectives.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch

from deepvm.checkpoint.format.layout import Ranges, Segment, runs
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.errors import CheckpointError

T = TypeVar("T")
WAIT_S = 600
MEETINGS = 10
"""Ranks that wait for one another meet so often: the group cuts off a rank that waits alone."""
_SHARE_S, _MOST_STEPS = 0.2, 1000
"""Ranks share requests after this time, and after so many steps at the latest."""
log = logging.getLogger("deepvm.checkpoint")


class Ranks:
    """This process among the others; alone if ``torch.distributed`` is not in use."""

    def __init__(self) -> None:
        """Find the others; collective."""
        distributed = torch.distributed
        self.rank = 0
        self.world = 1
        self._group = None
        if (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        ):
            self.rank = distributed.get_rank()
            self.world = distributed.get_world_size()
            # Gloo: NCCL would need the GPUs, in the order of the training's own collectives.
            self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=WAIT_S))

    def minimum(self, values: Sequence[int]) -> list[int]:
        """The minimum of each value over all ranks; collective."""
        return [min(column) for column in zip(*self.gather(values), strict=True)]

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """The values of every rank; collective."""
        if self.world == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.int64, device="cpu")
        found = [torch.empty_like(own) for _ in range(self.world)]
        torch.distributed.all_gather(found, own, group=self._group)
        return [row.tolist() for row in found]

    def gather_objects(self, value: T) -> list[T]:
        """The value of every rank, of any kind; collective."""
        found: list[Any] = [value] * self.world
        if self.world > 1:
            torch.distributed.all_gather_object(found, value, group=self._group)
        return found

    def gather_results(self, work: Callable[[], T]) -> list[T]:
        """What ``work``, which must not raise, returns on each rank, however long. Collective."""
        if self.world == 1:
            return [work()]
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        # In a thread, so that this rank meets the others meanwhile and the group does not time out.
        threading.Thread(target=run, name="deepvm-work", daemon=True).start()
        while not self.minimum([_ended(done, WAIT_S / MEETINGS)])[0]:
            pass
        return self.gather_objects(done.result())

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` returns here. Collective: no rank waits for one on which it raised.

        Raises its error, or another rank's as a CheckpointError.
        """
        found = None
        error = None
        try:
            found = work()
        except Exception as raised:
            error = raised
        problems = self.gather_objects(None if error is None else f"rank {self.rank}: {error}")
        if error is not None:
            raise error
        # This rank has succeeded, and must not continue alone.
        for problem in filter(None, problems):
            raise CheckpointError(problem)
        return cast("T", found)

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0; collective."""
        if self.world == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def by_first(self, work: Callable[[], T]) -> T:
        """Rank 0's result, or its error as a CheckpointError on all ranks. Collective."""
        try:
            found: Any = None if self.rank else work()
        except CheckpointError as error:
            found = error
        except Exception as error:
            # Other errors may not pickle, or name classes that another rank has not loaded.
            found = CheckpointError(f"{type(error).__name__}: {error}")
            found.__cause__ = error
        found = self.broadcast(found)
        if isinstance(found, CheckpointError):
            raise found
        return cast("T", found)


def _ended(done: Future[Any], limit_s: float) -> bool:
    """Whether something ends in time."""
    return bool(wait([done], limit_s).done)


class SaveRequests:
    """Save requests from any thread or rank; ranks share them about five times a second.

    Attributes:
        urgent: whether the save that is due comes before a preemption. deadline: of this rank's
            urgent request, by ``time.time()``. handle: of the next version; whoever asked for it
            has it.
    """

    def __init__(self, ranks: Ranks) -> None:
        """None yet."""
        self._ranks = ranks
        self._asked = 0
        self.urgent = False
        self.deadline = math.inf
        self.handle = Handle(0)
        self.reset(0)

    def ask(self, deadline: float | None = None) -> Handle:
        """Ask for the next version; any thread may, at any time."""
        handle = self.handle
        if deadline is not None:
            self.deadline = deadline
        self._asked = max(self._asked, 1 + (deadline is not None))
        return handle

    def take_handle(self) -> Handle:
        """The handle of a version that starts now; later requests are of the next."""
        handle = self.handle
        self.handle = Handle(0)
        return handle

    def reset(self, version: int) -> None:
        """Continue from another version; on all ranks."""
        self._next = version
        self._since = version
        self._since_s = time.monotonic()

    def due(self, version: int, by_policy: bool = False) -> bool:
        """Whether to save: any rank asked, or rank 0's policy does. Collective, after each step."""
        self.urgent = False
        if self._ranks.world > 1 and version < self._next:
            return False
        asked = self._asked
        if asked:  # a request that arrives between these two lines is served by this version too
            self._asked = 0
        if self._ranks.world == 1:
            self.urgent = asked > 1
            return bool(asked) or by_policy
        now = time.monotonic()
        step_ms = int(1000 * (now - self._since_s) / max(version - self._since, 1))
        own = max(asked, int(by_policy and not self._ranks.rank))
        # Negative, because one collective that finds the minimum then finds both maxima.
        wanted, slowest = self._ranks.minimum([-own, -step_ms])
        self.urgent = wanted < -1
        steps = int(1000 * _SHARE_S) // max(-slowest, 1)
        # Counted in steps, which all ranks share; their clocks differ.
        self._next = version + min(max(steps, 1), _MOST_STEPS)
        self._since = version
        self._since_s = now
        return bool(wanted)


def compare_replicas(ranks: Ranks, seen: tuple[int, int, int]) -> int:
    """Compare neighbors' replicas, log differences, return how many pairs differ; collective.

    Each rank sends a part of what all hold: one whose replica has drifted would put a part of
    another model into the file. ``seen``: a version (0 for none), the checksum of this rank's own
    part, and that of the next rank's part here.
    """
    rows = ranks.gather(seen)
    count = 0
    for rank, (version, _, neighbour) in enumerate(rows):
        other = (rank + 1) % len(rows)
        if version and rows[other][0] == version and rows[other][1] != neighbour:
            count += 1
            log.error(
                "ranks %d and %d hold different parameters or optimizer states in version %d: the"
                " replicas drifted apart, and versions since then mix them",
                rank,
                other,
                version,
            )
    return count


def shards(
    size: int, world: int, owned: Sequence[tuple[Segment, int]] = ()
) -> tuple[tuple[Segment, ...], ...]:
    """Share a file's bytes evenly (ACUTE's Check-Trans), except ranges owned by one rank.

    Returns for each rank its ranges, sorted; neighbours are joined.
    """
    found: list[list[Segment]] = [[] for _ in range(world)]
    for segment, owner in owned:
        if segment.length:
            found[owner].append(segment)
    taken = Ranges(
        sorted((segment.offset, segment.offset + segment.length) for segment, _ in owned)
    )
    free = list(taken.missing([Segment(0, size)]))
    total = sum(end - start for start, end in free)
    ends = [total * (rank + 1) // world for rank in range(world)]
    rank = done = 0
    for start, end in free:
        while start < end:
            while done == ends[rank]:
                rank += 1
            part = min(end - start, ends[rank] - done)
            found[rank].append(Segment(start, part))
            start = start + part
            done = done + part
    return tuple(runs(segments) for segments in found)
