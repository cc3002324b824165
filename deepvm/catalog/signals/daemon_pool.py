"""Threads that Python does not wait for at exit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def run_in_daemons(
    work: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int, name: str
) -> list[Future[_Result]]:
    """Work on items in at most ``at_once`` daemon threads; cancelled ones are not started.

    No ThreadPoolExecutor: Python waits for its threads, even after Ctrl-C, and a cloud may stay
    silent for minutes.
    """
    futures: list[Future[_Result]] = [Future() for _ in items]
    waiting = deque(zip(futures, items, strict=True))

    def serve() -> None:
        while waiting:
            try:
                future, item = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(item))
                except BaseException as error:
                    future.set_exception(error)

    for number in range(min(at_once, len(items))):
        threading.Thread(target=serve, name=f"{name}-{number}", daemon=True).start()
    return futures
