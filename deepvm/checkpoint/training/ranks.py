"""The ranks of a training job: they save the same checkpoint or none, and share the work."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch

from deepvm.checkpoint.format.layout import Ranges, Segment, runs
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.errors import CheckpointError
from deepvm.io.threads import start_thread

T = TypeVar("T")
WAIT_S = 600
# Ranks that wait for one another meet so often: the group cuts off a rank that waits alone
MEETINGS = 10
# Ranks share requests after this time, and after so many steps at the latest
_SHARE_S, _MOST_STEPS = 0.2, 1000


def world_size() -> int:
    """How many ranks train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


class Ranks:
    """This process among the others, if ``torch.distributed`` is in use; all is collective."""

    def __init__(self) -> None:
        self.rank = 0
        self.world = world_size()
        self._group = None
        if self.world > 1:
            self.rank = torch.distributed.get_rank()
            # Gloo: NCCL would need the GPUs, in the order of the training's own collectives.
            timeout = timedelta(seconds=WAIT_S)
            self._group = torch.distributed.new_group(backend="gloo", timeout=timeout)

    def minimum(self, values: Sequence[int]) -> list[int]:
        return [min(column) for column in zip(*self.gather(values), strict=True)]

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        if self.world == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.int64, device="cpu")
        found = [torch.empty_like(own) for _ in range(self.world)]
        torch.distributed.all_gather(found, own, group=self._group)
        return [row.tolist() for row in found]

    def gather_objects(self, value: T) -> list[T]:
        found: list[Any] = [value] * self.world
        if self.world > 1:
            torch.distributed.all_gather_object(found, value, group=self._group)
        return found

    def gather_results(self, work: Callable[[], T]) -> list[T]:
        """What ``work``, which must not raise, returns on each rank, however long."""
        if self.world == 1:
            return [work()]
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        # In a thread, so that this rank meets the others meanwhile and the group does not time out.
        start_thread(run, name="deepvm-work")
        while not self.minimum([bool(wait([done], WAIT_S / MEETINGS).done)])[0]:
            pass
        return self.gather_objects(done.result())

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` returns here; raises its error, or another rank's."""
        try:
            found = work()
        except Exception as error:
            self.gather_objects(f"rank {self.rank}: {error}")
            raise
        # This rank has succeeded, and must not continue alone.
        for problem in filter(None, self.gather_objects("")):
            raise CheckpointError(problem)
        return found

    def broadcast(self, value: Any) -> Any:
        if self.world == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def by_first(self, work: Callable[[], T]) -> T:
        """Rank 0's result, or its error as a CheckpointError on all ranks."""
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


class SaveRequests:
    """Save requests from any thread or rank; ranks share them about five times a second."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._asked = 0
        self.urgent = False  # the save that is due comes before a preemption
        self.deadline = math.inf  # of that, by time.time()
        self.handle = Handle(0)
        self.reset(0)

    def ask(self, deadline: float | None = None) -> Handle:
        """From any thread, at any time."""
        handle = self.handle
        if deadline is not None:
            self.deadline = deadline
        self._asked = max(self._asked, 1 + (deadline is not None))
        return handle

    def take_handle(self) -> Handle:
        """The handle of a checkpoint that starts now; later requests are of the next."""
        handle = self.handle
        self.handle = Handle(0)
        return handle

    def reset(self, version: int) -> None:
        self._next = version
        self._since = version
        self._since_s = time.monotonic()

    def due(self, version: int, by_policy: bool = False) -> bool:
        """Whether to save: any rank asked, or rank 0's policy does. Collective, after each step."""
        self.urgent = False
        if self._ranks.world > 1 and version < self._next:
            return False
        asked = self._asked
        if asked:  # a request that arrives between these two lines is served by this checkpoint too
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

    ``seen``: a checkpoint (0 for none), the checksums of this rank's part and of the next one's.
    """
    rows = ranks.gather(seen)
    count = 0
    for rank, (version, _, neighbor) in enumerate(rows):
        other = (rank + 1) % len(rows)
        if version and rows[other][0] == version and rows[other][1] != neighbor:
            count += 1
            log.error(
                "ranks %d and %d hold different parameters or optimizer states in version %d: the"
                " replicas drifted apart, and checkpoints since then mix them",
                rank,
                other,
                version,
            )
    return count


def shards(
    size: int, world: int, owned: Sequence[tuple[Segment, int]] = ()
) -> tuple[tuple[Segment, ...], ...]:
    """Each rank's ranges of a file shared evenly (ACUTE's Check-Trans), besides ``owned``."""
    found: list[list[Segment]] = [[] for _ in range(world)]
    for segment, owner in owned:
        if segment.length:
            found[owner].append(segment)
    taken = Ranges(sorted((part.offset, part.offset + part.length) for part, _ in owned))
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
            start += part
            done += part
    return tuple(runs(segments) for segments in found)
