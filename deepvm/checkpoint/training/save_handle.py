"""Progress of checkpoints: the handles of ``save()`` and ``handles``, and a JSON-lines journal."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from datetime import datetime, timezone
from pathlib import Path

from deepvm.checkpoint.format.manifest import Level
from deepvm.checkpoint.loggers import Delivery, EventLogger, log
from deepvm.errors import CheckpointError
from deepvm.records import dataclass, field

KEPT = 16  # Handles that are kept; more only while more checkpoints are in flight
_LOGGER_S = 10.0  # How long loggers may take for the last events, when the training has ended


@dataclass(eq=False)
class Handle:
    """A checkpoint in flight.

    Attributes:
        version: iterations that it contains.
        snapshot_done: resolves when training cannot change it any more: it is copied, or safe
            without a copy.
        local_done: resolves when a tier has it: it survives the end of this process, perhaps
            nothing more.
        remote_done: resolves when it survives the loss of this machine.
        durable: resolves when it survives the loss of the memory node too; fails when no tier can
            promise that.
        lasting: as ``durable``, but a folder next to a bucket counts only if the bucket fails: the
            folder's disk may go with this machine.
        stall_s: seconds for which it stalled training. times: seconds from the start to each of the
            above.
        skipped: there was no free slot. best: the training marked it as the best. superseded: a
            tier did not take it because a newer checkpoint is urgent.
        refused: why a tier did not take it, None if all have or may. size: bytes, once it is sent.
    """

    version: int
    snapshot_done: Future[int] = field(default_factory=Future)
    local_done: Future[int] = field(default_factory=Future)
    remote_done: Future[int] = field(default_factory=Future)
    durable: Future[int] = field(default_factory=Future)
    lasting: Future[int] = field(default_factory=Future)
    stall_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    skipped: bool = False
    superseded: bool = False
    best: bool = False
    refused: BaseException | None = None
    size: int = 0
    tell: Callable[..., None] = field(default=lambda event, **facts: None, repr=False)
    _start: float = field(default_factory=time.perf_counter)

    def begins(self, version: int, *, best: bool, tell: Callable[..., None]) -> None:
        self.version = version
        self.best = best
        self.tell = tell
        self._start = time.perf_counter()

    def reached(self, level: Level, *, away: bool = True) -> None:
        """A tier has the checkpoint at this level; ``away``: not on this machine."""
        self._tell_timed(level.value)  # before those who wait for it continue
        if level is Level.DURABLE:
            self._resolve("durable", self.durable)
            if away:
                self._resolve("lasting", self.lasting)
        if level is not Level.LOCAL and away:
            self._resolve("remote", self.remote_done)
        self._resolve("local", self.local_done)

    def copied(self) -> None:
        """The snapshot is whole, or the checkpoint is safe without one."""
        if self.snapshot_done.done():
            return
        self._tell_timed("snapshot")
        self._resolve("snapshot", self.snapshot_done)

    @property
    def done(self) -> bool:
        return all(f.done() for f in self._futures)

    @property
    def lost(self) -> bool:
        return self.local_done.done() and self.local_done.exception() is not None

    def await_safe(self, local: bool, limit_s: float) -> None:
        """Wait until a tier has the checkpoint, one away from this machine unless ``local``."""
        future = self.local_done if local else self.remote_done
        # Before Python 3.11 a future's TimeoutError is none of the language's
        if not wait([future], limit_s).done:
            raise CheckpointError(f"no tier has acknowledged the checkpoint after {limit_s:.0f} s")
        # On a disk, if not away from this machine: training may end now
        on_disk = self.durable.done() and self.durable.exception() is None
        if local or not on_disk:
            future.result()

    def failed(self, error: BaseException) -> None:
        # In a folder, and nowhere else
        if self.durable.done() and self.durable.exception() is None:
            self._resolve("lasting", self.lasting)
        missed = [f for f in self._futures if not f.done()]
        if self.local_done in missed:
            self.tell("skipped" if self.skipped else "failed", error=str(error))
        for future in missed:
            with contextlib.suppress(InvalidStateError):  # another tier was faster
                future.set_exception(error)

    @property
    def _futures(self) -> tuple[Future[int], ...]:
        return self.snapshot_done, self.local_done, self.remote_done, self.durable, self.lasting

    def _resolve(self, name: str, future: Future[int]) -> None:
        if not future.done():
            self.times[name] = time.perf_counter() - self._start
            with contextlib.suppress(InvalidStateError):
                future.set_result(self.version)

    def _tell_timed(self, event: str) -> None:
        seconds = round(time.perf_counter() - self._start, 6)
        self.tell(event, seconds=seconds, stall_s=round(self.stall_s, 6))


def with_newest(handles: tuple[Handle, ...], newest: Handle) -> tuple[Handle, ...]:
    """Append the newest; drop the oldest that are done beyond :data:`KEPT`."""
    rows = (*handles, newest)
    gone = [row for row in rows if row.done][: max(len(rows) - KEPT, 0)]
    return tuple(row for row in rows if row not in gone)


class Journal:
    """A JSON-lines file and loggers; a full disk costs lines, not the training."""

    def __init__(self, places: Sequence[Path | str | EventLogger], job: str) -> None:
        self._paths = [Path(place) for place in places if isinstance(place, (str, os.PathLike))]
        others = [place for place in places if not isinstance(place, (str, os.PathLike))]
        self._loggers = [Delivery(place) for place in others]
        self._facts = {"job": job, "rank": 0}

    def __call__(self, event: str, **facts: object) -> None:
        if not (self._paths or self._loggers):
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        facts = {**self._facts, **facts}
        for logger in self._loggers:
            logger(event, {"time": now, **facts})
        for path in self._paths:
            self._write(path, json.dumps({"time": now, "event": event, **facts}).encode() + b"\n")

    def _write(self, path: Path, line: bytes) -> None:
        # One O_APPEND write is atomic without a lock, on which a signal handler that also logs
        # would deadlock.
        try:
            with path.open("ab", buffering=0) as file:
                os.write(file.fileno(), line)
        except OSError as error:
            reason = error.strerror or error
            log.warning("%s: cannot be written: %s; no more events are recorded", path, reason)
            self._paths = [other for other in self._paths if other != path]

    def closed(self, counts: Mapping[str, float]) -> None:
        self("closed", **counts)
        for logger in self._loggers:
            logger.close(_LOGGER_S)
        log.info(
            "%d checkpoints of %s saved, %d skipped, %d failed; training stalled for %.3f s",
            counts["saved"],
            self._facts["job"],
            counts["skipped"],
            counts["failed"],
            counts["stall_s"],
        )
