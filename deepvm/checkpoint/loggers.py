"""Events of checkpoints for TensorBoard, or another logger, which a thread of its own calls."""

import logging
from collections import Counter
from queue import SimpleQueue
from typing import Any, Protocol

from deepvm.core.json_types import JsonObject
from deepvm.io.threads import start_thread

log = logging.getLogger("deepvm.checkpoint")
_MOST_WAITING = 10_000
_NO_SERIES = ("version", "rank")


class EventLogger(Protocol):
    """Gets every event.

    These are ``snapshot``, ``sent``, ``local``, ``remote``, ``durable``, ``skipped``, ``failed``,
    ``restored`` and ``closed``.
    """

    def __call__(self, event: str, facts: JsonObject, /) -> None:
        """``facts`` has ``time``, ``job``, ``rank``, usually ``version``."""


class TensorBoard:
    """Scalars by step for a ``SummaryWriter``, or anything with its ``add_scalar``.

    ``checkpoint/durable/seconds`` is how long checkpoints took to be durable,
    ``checkpoint/sent/bytes`` what was sent; ``checkpoint/skipped`` and ``checkpoint/failed`` count.
    """

    def __init__(self, writer: Any, prefix: str = "checkpoint") -> None:
        """``writer``: closed by its owner, after the checkpointer; ``prefix``: of all tags."""
        self._writer = writer
        self._prefix = prefix
        self._counts = Counter[str]()

    def __call__(self, event: str, facts: JsonObject, /) -> None:
        step = facts.get("version")
        if event in ("skipped", "failed"):
            self._counts[event] += 1
            self._writer.add_scalar(f"{self._prefix}/{event}", self._counts[event], step)
        for name, value in facts.items():
            if type(value) in (int, float) and name not in _NO_SERIES:
                self._writer.add_scalar(f"{self._prefix}/{event}/{name}", value, step)


class Delivery:
    """Calls a logger in its own thread, in order; any thread or signal handler may add events."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        self._name = getattr(logger, "__name__", type(logger).__name__)
        # Not a Queue: a handler that interrupts its put would wait for the lock for ever.
        self._queue: SimpleQueue[tuple[str, JsonObject] | None] = SimpleQueue()
        self._lost = 0
        self._broken = False
        self._thread = start_thread(self._deliver, name="deepvm-logger")

    def __call__(self, event: str, facts: JsonObject) -> None:
        if self._broken or self._queue.qsize() >= _MOST_WAITING:
            self._lost += 1
            return
        self._queue.put((event, facts))

    def close(self, limit_s: float) -> None:
        """Wait until all are delivered, within a limit; says how many were not."""
        self._queue.put(None)
        self._thread.join(limit_s)
        if self._broken:
            return
        # With the end's mark, for that which it is at
        late = 0
        if self._thread.is_alive():
            late = self._queue.qsize()
        lost = self._lost + late
        if lost:
            log.warning(
                "%s did not take all events of the checkpoints: %d are lost", self._name, lost
            )

    def _deliver(self) -> None:
        for event, facts in iter(self._queue.get, None):
            try:
                self._logger(event, facts)
            except Exception:
                log.exception(
                    "%s failed at an event of the checkpoints; it gets no more of them", self._name
                )
                self._broken = True
                return
