"""A thread pool that Python does not wait for at exit.

It waits for those of ``concurrent.futures``, even after Ctrl-C, and a cloud may stay silent for minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Done(Generic[_Result]):
    """What became of the item at ``place`` among the items."""

    place: int
    _result: Any = None
    _error: BaseException | None = None

    def result(self) -> _Result:
        """What the work gave; raises what it raised."""
        if self._error is not None:
            raise self._error
        result: _Result = self._result
        return result


class DaemonPool(Generic[_Item, _Result]):
    """Works on items in daemon threads; their results come in the order in which they are done."""

    def __init__(self, work: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int, name: str) -> None:
        """Start at most ``at_once`` threads, called by ``name`` and a number."""
        self._work = work
        self._waiting: SimpleQueue[tuple[int, _Item]] = SimpleQueue()
        self._done: SimpleQueue[Done[_Result]] = SimpleQueue()
        self._closed = threading.Event()
        for numbered in enumerate(items):
            self._waiting.put(numbered)
        for number in range(min(at_once, len(items))):
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True).start()

    def next(self, timeout_s: float | None = None) -> Done[_Result]:
        """Wait for the next item to be done; each is returned once.

        Raises:
            queue.Empty: none within ``timeout_s``.
        """
        return self._done.get(timeout=timeout_s)

    def close(self) -> None:
        """Begin no further item; what is under way runs out unheard."""
        self._closed.set()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                place, item = self._waiting.get_nowait()
            except Empty:
                return
            try:
                self._done.put(Done(place, self._work(item)))
            except BaseException as error:
                self._done.put(Done(place, _error=error))
