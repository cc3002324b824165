"""Backups of files that scripts save by themselves: uploaded in the background, of which only whole ones count."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepvm.errors import CheckpointError, DataError, MissingExtraError
from deepvm.io.failpoints import point
from deepvm.jobs.storage.backup_places import FORMS, open_backups
from deepvm.jobs.storage.backup_store import KEEP, BackupStore, Part, staying

log = logging.getLogger("deepvm.agent")

Done = Callable[[int, str], None]


@dataclass(frozen=True)
class Backup:
    """A backup that is here: the step after which it was made, and its file or folder."""

    step: int
    path: Path


class Backups:
    """The backups of one job, as one machine sees them."""

    def __init__(self, store: BackupStore | None, here: Path, keep: int = KEEP) -> None:
        """``here``: the folder for what is fetched. ``keep``: backups that stay, 0 for all that scripts made."""
        self._store, self._here, self._keep = store, here, keep
        self._queue: queue.SimpleQueue[tuple[Path, Part, Done]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left, self._lock = 0, threading.Lock()

    @property
    def under_way(self) -> int:
        """How many are not done yet."""
        return self._left

    @classmethod
    def at(cls, tiers: Sequence[str], job: str, here: Path, keep: int = KEEP) -> Backups:
        """Those at the first of a job's tiers that takes them."""
        return cls(open_backups(tiers, job), here, keep)

    def add(self, path: Path, part: Part, done: Done) -> Mapping[str, Any]:
        """Upload in the background; ``done`` is called with the step, and an error or an empty text."""
        if self._store is None:
            return {"error": f"none of the job's tiers takes backups; give it one such as {FORMS}"}
        if not path.exists():
            return {"error": f"there is no {path}"}
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="backups")
            self._thread.start()
        self._count(1)
        self._queue.put((path, part, done))
        return {}

    def _count(self, more: int) -> None:
        with self._lock:
            self._left += more

    def _run(self) -> None:
        while True:
            path, part, done = self._queue.get()
            assert self._store is not None
            try:
                self._store.save(path, part)
            except Exception as error:  # of any kind: the next backup may work, and somebody waits for this one
                expected = isinstance(error, (OSError, CheckpointError, DataError, MissingExtraError))
                log.warning("%s is not backed up: %s", path, error, exc_info=not expected)
                done(part.step, str(error) or type(error).__name__)
                self._count(-1)
                continue
            done(part.step, "")
            self._count(-1)
            if not part.rank:
                self._prune(part)

    def _prune(self, part: Part) -> None:
        """Remove what newer backups make superfluous; those after this step are of a run that went further."""
        assert self._store is not None
        try:
            whole = self._store.whole()
            stay = staying([k for k in whole if k.step <= part.step], self._keep)
            for kept in whole:
                if kept.step < part.step and kept.name not in stay:
                    point("backup.before-prune")
                    self._store.remove(kept, part.epoch)
        except (OSError, CheckpointError, DataError) as error:
            log.warning("old backups stay: %s", error)

    def latest(self, rank: int, epoch: int) -> Backup | None:
        """Fetch the newest undamaged backup of a rank, or else of rank 0.

        Raises CheckpointError: all are damaged, or nobody can tell whether there are any.
        """
        store = self._store
        if store is None:
            return None
        try:
            store.begin(epoch)
            whole = store.whole()
        except (OSError, DataError) as error:
            raise CheckpointError(f"{store.url}: {error}") from error
        problem = ""
        for kept in whole:
            try:
                return Backup(kept.step, store.fetch(kept, rank, self._here / f"{kept.name}-{rank}"))
            except (OSError, ValueError, CheckpointError) as error:
                log.warning("the backup %s of %s is skipped: %s", kept.name, store.url, error)
                problem = problem or f"{kept.name}: {error}"
        if problem:
            raise CheckpointError(f"{store.url}: no backup can be read: {problem}")
        return None
