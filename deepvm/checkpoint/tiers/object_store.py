"""What a store of objects offers: single requests, and reading ahead in order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.tiers.base import fulfil

_T = TypeVar("_T")


class ObjectStore(ABC):
    """The objects whose names start with ``prefix``.

    Unless noted, requests raise the store's own errors; :meth:`errors` maps them.
    """

    prefix = ""

    def __init__(self, url: str, threads: int) -> None:
        self.url = url
        self.threads = threads
        self._readers = 0
        self._counting = threading.Lock()

    @abstractmethod
    def errors(self, action: str) -> AbstractContextManager[None]:
        """Turn the store's errors into ``CheckpointError``: ``action`` could not be done."""

    @abstractmethod
    def prove(self) -> None:
        """Make sure that objects can be written. Raises CheckpointError."""

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose name starts so."""

    @abstractmethod
    def content(self, key: str) -> bytes | None:
        """A small object; None if there is none."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Make or replace a small object."""

    @abstractmethod
    def upload(
        self, key: str, size: int, read: Callable[[int, int], bytes], final: Iterable[int]
    ) -> None:
        """Create an object atomically; ``read`` returns a range once ``final`` has passed it."""

    @abstractmethod
    def reader(self, key: str, size: int) -> Callable[[int, int], bytes]:
        """What returns a range of an object of this size."""

    @abstractmethod
    def remove(self, *keys: str) -> None:
        """Remove objects in order; missing ones are ignored."""

    @abstractmethod
    def rename(self, key: str, new: str) -> None:
        """Give an object of any size another name: it is copied, then removed."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str] | None:
        """A ledger and the tag of its state, None if there is none. Raises CheckpointError."""

    @abstractmethod
    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        """Replace a ledger whose tag is this one, or, with None, make one where none is.

        Returns whether it was so.

        Raises CheckpointError: it may have been done, or be done later.
        """

    def abort_unfinished(  # noqa: B027  not every store lists what was never completed
        self, prefix: str, wanted: Callable[[str], bool]
    ) -> None:
        """Abort uploads whose names start so and are wanted.

        Raises CheckpointError: they cannot be listed.
        """

    def pieces(self, key: str, size: int) -> Iterator[bytes]:
        """The bytes of an object, in order.

        Readers share the threads, at least two chunks each: a restarted memory node may serve all
        ranks at once.
        """
        read = self.reader(key, size)
        ahead = deque[Future[bytes]]()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="deepvm-read") as pool:
            with self._counting:
                self._readers += 1
            try:
                for start in range(0, size, CHUNK_BYTES):
                    ahead.append(submit(pool, read, start, min(start + CHUNK_BYTES, size)))
                    while len(ahead) > max(self.threads // self._readers, 1):
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                with self._counting:
                    self._readers -= 1
                pool.shutdown(cancel_futures=True)


def submit(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
    """Submit work to a pool, or do it here if the pool takes no more."""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:  # no threads at the interpreter's end: a last save must work even there
        done: Future[_T] = Future()
        fulfil(done, work, *arguments)
        return done
