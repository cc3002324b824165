"""What loader workers and the sampler have drawn, per batch, so that both can resume there."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

from torch.utils.data import get_worker_info

from deepvm.checkpoint.loading.random_states import packed, restore


class BatchWithState(NamedTuple):
    """A worker's batch, and its random states if changed; the pinning thread knows named tuples."""

    batch: Any
    worker: int
    state: bytes | None


class Collate:
    """Marks what the loader's own function returns in a worker."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._last = b""

    def __call__(self, samples: Any) -> Any:
        batch = self._inner(samples)
        worker = get_worker_info()
        if worker is None:
            return batch
        state = packed()
        changed = state != self._last
        self._last = state
        return BatchWithState(batch, worker.id, state if changed else None)


class StartWorker:
    """Starts a worker as the loader does, and puts its random states back."""

    def __init__(self, inner: Callable[[int], None] | None, states: Mapping[int, bytes]) -> None:
        self._inner = inner
        self._states = dict(states)

    def __call__(self, worker: int) -> None:
        if self._inner is not None:
            self._inner(worker)
        if worker in self._states:
            restore(self._states[worker])


class Indexes:
    """The loader's sampler of batches, which may start at a later one."""

    def __init__(self, inner: Any, begins: Callable[[], None], first: Callable[[], None]) -> None:
        """``begins``, ``first``: called before the iterator is made, and before it draws."""
        self._inner = inner
        self._begins = begins
        self._first = first
        self.skip = self.known = 0
        # Called with the checksum of what was skipped, before anything else is drawn
        self.skipped: Callable[[int], None] = lambda crc: None
        # Called with the checksum of the first ``known`` ones
        self.compare: Callable[[int], None] = lambda crc: None
        self.drawn: deque[int] = deque()  # Checksums of what was drawn and not yet delivered

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        self._begins()
        return self._run(iter(self._inner))

    def _run(self, indexes: Iterator[Any]) -> Iterator[Any]:
        self.drawn.clear()
        self._first()
        count = crc = 0
        for count, index in enumerate(indexes, start=1):
            checksum = crc32(repr(index).encode())
            crc = mixed(crc, checksum)
            if count == self.known:
                self.compare(crc)
            if count == self.skip:
                self.skipped(crc)
            elif count > self.skip:
                self.drawn.append(checksum)
                yield index
        if count < self.known:  # there is less data than before
            self.compare(crc)


def mixed(crc: int, one: int) -> int:
    """The checksum of a sequence that continues with one of this checksum."""
    return crc32(one.to_bytes(4, "little"), crc)


class History:
    """Random states of the workers and the checksum of the order, for the newest batches."""

    def __init__(self, kept: int) -> None:
        """``kept``: how many batches can be undone."""
        self._kept = kept
        self._states: dict[int, bytes] = {}
        self._crc = self._batch = 0
        self._newer: deque[tuple[BatchWithState, int]] = deque()

    def begin(self, batch: int, states: Mapping[int, bytes]) -> None:
        self._states = dict(states)
        self._crc = 0
        self._batch = batch
        self._newer.clear()

    def skipped(self, crc: int) -> None:
        self._crc = crc

    def add(self, batch: BatchWithState, checksum: int) -> None:
        # Without the batch, whose tensors would stay in memory.
        self._newer.append((BatchWithState(None, batch.worker, batch.state), checksum))
        if len(self._newer) > self._kept:
            (_, worker, state), oldest = self._newer.popleft()
            self._crc = mixed(self._crc, oldest)
            self._batch += 1
            if state is not None:
                self._states[worker] = state

    def at(self, batch: int) -> tuple[dict[int, bytes], int]:
        states = dict(self._states)
        crc = self._crc
        for (_, worker, state), checksum in list(self._newer)[: batch - self._batch]:
            crc = mixed(crc, checksum)
            if state is not None:
                states[worker] = state
        return states, crc

    @property
    def newest(self) -> dict[int, bytes]:
        return self.at(self._batch + len(self._newer))[0]
