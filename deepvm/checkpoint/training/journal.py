"""A journal of versions as JSON lines, one per event, for people and programs that watch a training."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

log = logging.getLogger("deepvm.checkpoint")


class Journal:
    """A file that grows by whole lines; a full disk costs lines, not the training."""

    def __init__(self, path: Path | str | None, job: str) -> None:
        """Remember the file, if any, and the job, which goes into each line; only rank 0 writes one."""
        self._path = None if path is None else Path(path)
        self._facts = {"job": job, "rank": 0}

    def __call__(self, event: str, **facts: object) -> None:
        """Add a line."""
        path = self._path
        if path is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **self._facts, **facts}).encode() + b"\n"
        # One O_APPEND write is atomic without a lock, on which a signal handler that also logs would deadlock.
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.warning("%s: cannot be written: %s; no more is told there", path, error.strerror or error)
            self._path = None

    def closed(self, counts: Mapping[str, float]) -> None:
        """Summarise, here and in the log."""
        self("closed", **counts)
        log.info(
            "%d versions of %s saved, %d skipped, %d failed; training stood still for %.3f s",
            *(counts["saved"], self._facts["job"], counts["skipped"], counts["failed"], counts["stall_s"]),
        )

    def of(self, version: int) -> Callable[..., None]:
        """The same for one version."""
        return lambda event, **facts: self(event, version=version, **facts)
