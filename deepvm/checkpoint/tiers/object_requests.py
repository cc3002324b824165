"""What requests to any object store share: names in a listing, and reading ahead in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from deepvm.checkpoint.files.file_names import parse_labelled
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import SUFFIX
from deepvm.checkpoint.tiers.base import fulfil

_T = TypeVar("_T")


def submit(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
    """Submit work to a pool, or do it here if the pool takes no more."""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:  # no threads at the interpreter's end: a last save must work even there
        done: Future[_T] = Future()
        fulfil(done, work, *arguments)
        return done


def labels_of(job: str, keys: Iterable[str]) -> dict[int, set[str]]:
    """The labels of a job's checkpoints with an object or record; "" is an unlabeled object."""
    found: dict[int, set[str]] = {}
    for key in keys:
        name = parse_labelled(key.removesuffix(SUFFIX))
        if name is not None and name[0] == job:
            found.setdefault(name[1], set()).add(name[2])
    return found


def in_order(read: Callable[[int, int], bytes], size: int, threads: int) -> Iterator[bytes]:
    """The pieces of an object of ``size`` bytes in order, ``threads`` of them prefetched."""
    with ThreadPoolExecutor(threads, thread_name_prefix="deepvm-read") as pool:
        ahead = deque[Future[bytes]]()
        try:
            for start in range(0, size, CHUNK_BYTES):
                ahead.append(submit(pool, read, start, min(start + CHUNK_BYTES, size)))
                if len(ahead) >= threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
