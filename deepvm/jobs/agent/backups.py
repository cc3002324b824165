"""Backups of files that scripts save: uploaded in the background; only complete ones count.

Whether other ranks save the same step is seen in the place for backups alone: the agent of rank 0
waits until each has decided, and those that save have their parts there; then it seals the backup.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from deepvm.core.json_types import JsonObject
from deepvm.errors import CheckpointError, DamagedError, DataError, MissingExtraError
from deepvm.io.agent_board import SaveReason, ScheduledSave
from deepvm.io.failpoints import point
from deepvm.jobs.agent.planned_saves import PlannedSaves
from deepvm.jobs.storage.backup_store import (
    KEEP,
    Part,
    PartStatus,
    StoredBackup,
    name_of,
    staying,
)
from deepvm.jobs.storage.bucket_backups import BucketBackups
from deepvm.jobs.storage.folder_backups import FolderBackups

LAST_S = 1800.0
"""Timeouts for a running backup after training ended, and for the other ranks' backups."""
_LOOK_S = 0.02
_SELDOM_S = 0.5

log = logging.getLogger("deepvm.agent")

BackupStore: TypeAlias = FolderBackups | BucketBackups
_FORMS = "file:///folder or s3://bucket/prefix"
Done = Callable[[int, str, float], None]
_TROUBLE = (OSError, CheckpointError, DataError, MissingExtraError)


def open_backups(tiers: Sequence[str], job: str) -> BackupStore | None:
    """The first of a job's tiers that takes backups; None if none does."""
    for tier in tiers:
        place = urlsplit(tier)
        if place.scheme.lower() == "file":
            return FolderBackups(Path(unquote(place.path)), job)
        if place.scheme.lower() == "s3":
            return BucketBackups(place.netloc, place.path, job)
    return None


@dataclass(frozen=True)
class Backup:
    """A backup that is here: the step after which it was made, and its file or folder."""

    step: int
    path: Path


@dataclass(frozen=True)
class Others:
    """The other ranks of a training, when one saves.

    Attributes:
        world: how many ranks there are, this one included.
        went_on: whether all have decided by now to save this step or not, as the next one shows.
        all_say: rather wait until each says so, because no next step will be done; until
            ``limit_s``, on the wall, or until that is ``given_up``: a rank that has trained to its
            end says nothing any more.
    """

    world: int = 1
    went_on: Callable[[], bool] = lambda: True
    all_say: bool = False
    limit_s: float | None = None
    given_up: Callable[[], bool] = lambda: False

    @property
    def waits_for_all(self) -> bool:
        return self.all_say and not self.given_up()


ALONE = Others()


@dataclass(eq=False)
class _Upload:
    """A part on its way, until its backup is sealed; ``since_s``: when it was uploaded."""

    path: Path
    part: Part
    others: Others
    done: Done
    began_s: float = field(default_factory=time.monotonic)
    since_s: float = 0.0
    limit_s: float = 0.0

    def missing(self, statuses: Mapping[int, PartStatus]) -> list[int]:
        """The ranks that have not decided, or whose parts are not whole yet."""
        if self.others.waits_for_all:
            undecided = set(range(self.others.world)) - statuses.keys()
        else:
            undecided = set()
        return sorted(
            undecided | {rank for rank, status in statuses.items() if status is PartStatus.BEGUN}
        )


class Backups:
    """The backups of one job, as one machine sees them."""

    def __init__(self, store: BackupStore | None, here: Path, keep: int = KEEP) -> None:
        """``here``: folder for downloads; ``keep``: backups to keep, 0: all that scripts made."""
        self._store = store
        self._here = here
        self._keep = keep
        self._queue: queue.SimpleQueue[_Upload | Part] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: list[_Upload] = []
        self._untold: list[Part] = []
        """Parts that will not come, of which the other ranks do not know yet."""
        self._left = 0
        self._lock = threading.Lock()
        self._late: set[Part] = set()
        self._failed: dict[int, str] = {}
        self._oldest = 0

    @property
    def under_way(self) -> int:
        return self._left

    @property
    def failure(self) -> str:
        """Why the newest backup of a rank here was not made; empty if all were."""
        with self._lock:
            return next(iter(self._failed.values()), "")

    def forget(self, epoch: int) -> None:
        """A generation begins: what older ones have started does not count any more."""
        with self._lock:
            self._oldest = epoch
            self._failed = {}

    @classmethod
    def at(cls, tiers: Sequence[str], job: str, here: Path, keep: int = KEEP) -> Backups:
        return cls(open_backups(tiers, job), here, keep)

    def add(self, path: Path, part: Part, done: Done, others: Others = ALONE) -> JsonObject:
        """Upload in the background; then call ``done`` with step, error or "", and seconds."""
        store = self._store
        if store is None:
            return {"error": f"none of the job's tiers takes backups; give it one such as {_FORMS}"}
        why = "" if path.exists() else f"there is no {path}"
        # Rank 0 says nothing: it seals, and does so only after its own part is whole.
        if part.rank and not why:
            try:
                if store.set_status(part, PartStatus.BEGUN):
                    self._late.add(part)
            except _TROUBLE as error:
                why = str(error)
        if why:
            if part.rank:  # rank 0 must not take its own part for all there is
                self._put(part)
            return {"error": why}
        with self._lock:
            self._left += 1
        self._put(_Upload(path, part, others, done))
        return {}

    def _put(self, item: _Upload | Part) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="backups")
                self._thread.start()
        self._queue.put(item)

    def nothing(self, part: Part) -> None:
        """Tell the other ranks that one here does not save this step."""
        try:
            if self._store is not None and part.rank:
                self._store.set_status(part, PartStatus.NOTHING)
        except _TROUBLE as error:
            log.warning("other ranks wait for rank %d in vain: %s", part.rank, error)

    def _run(self) -> None:
        look_s = _LOOK_S
        while True:
            try:
                # Without anything to look for the thread sleeps: it must cost a training nothing.
                item = self._queue.get(timeout=look_s if self._waiting or self._untold else None)
            except queue.Empty:
                # Each look lists a folder or a bucket, which costs money there.
                look_s = min(2 * look_s, _SELDOM_S)
            else:
                look_s = _LOOK_S
                if isinstance(item, Part):
                    self._untold.append(item)
                else:
                    self._upload(item)
            self._untold = [
                part
                for part in self._untold
                if part.epoch >= self._oldest and not self._report_failure(part)
            ]
            for waiting in list(self._waiting):
                if self._is_over(waiting):
                    self._waiting.remove(waiting)

    def _upload(self, one: _Upload) -> None:
        assert self._store is not None
        part = one.part
        try:
            self._check(part)
            self._store.save(one.path, part)
        except Exception as error:
            # Of any kind: the next backup may work, and the next step waits for this one
            self._fail(one, f"{one.path} is not backed up", error)
            if part.rank:
                self._untold.append(part)
            return
        one.since_s = time.monotonic()
        # Rank 0 seals, unless this part has unsealed what rank 0 had sealed before
        if part.rank and part not in self._late:
            self._end(one, "", one.since_s - one.began_s)
        else:
            latest_s = time.time() + LAST_S
            one.limit_s = min(one.others.limit_s or latest_s, latest_s)
            self._waiting.append(one)

    def _check(self, part: Part) -> None:
        if part.epoch < self._oldest:
            raise CheckpointError(f"generation {part.epoch} is over: {self._oldest} has started")

    def _report_failure(self, part: Part) -> bool:
        """Tell the other ranks that this one's part will not come.

        Returns whether they can know.
        """
        assert self._store is not None
        try:
            # If rank 0 has sealed it meanwhile it is sealed no more
            self._store.set_status(part, PartStatus.BEGUN)
            self._store.set_status(part, PartStatus.FAILED)
        except _TROUBLE as error:
            log.debug("%s", error)
            return False
        return True

    def _is_over(self, waiting: _Upload) -> bool:
        """Seal a backup whose parts are all there, or give it up."""
        part = waiting.part
        others = waiting.others
        store = self._store
        assert store is not None
        took_s = waiting.since_s - waiting.began_s
        try:
            self._check(part)
            if others.world > 1:
                if not part.rank and not others.waits_for_all and not others.went_on():
                    return False
                statuses = store.statuses(part)
                failed = [rank for rank, status in statuses.items() if status is PartStatus.FAILED]
                missing = waiting.missing(statuses)
                if failed or (missing and time.time() > waiting.limit_s):
                    raise CheckpointError(
                        f"step {part.step}: no parts of ranks {failed or missing}"
                    )
                if missing:
                    return False
                ranks = {rank for rank, status in statuses.items() if status is PartStatus.WHOLE}
                store.seal(part, len(ranks))
                if {
                    r
                    for r, status in store.statuses(part).items()
                    if status in (PartStatus.WHOLE, PartStatus.BEGUN)
                } != ranks:
                    # One has started meanwhile
                    store.set_aside(StoredBackup(part.step, name_of(part)), part.epoch)
                    return False
                if others.all_say or len(ranks) > 1:
                    took_s = time.monotonic() - waiting.began_s
            else:
                store.seal(part, 1)
        except Exception as error:
            self._fail(waiting, "a backup is not whole", error)
            return True
        self._end(waiting, "", took_s)
        self._prune(part)
        return True

    def _fail(self, one: _Upload, problem: str, error: Exception) -> None:
        log.warning("%s: %s", problem, error, exc_info=not isinstance(error, _TROUBLE))
        self._end(one, str(error) or type(error).__name__, 0.0)

    def _end(self, one: _Upload, error: str, took_s: float) -> None:
        part = one.part
        with self._lock:
            self._failed.pop(part.rank, None)
            if error and part.epoch >= self._oldest:
                self._failed[part.rank] = error
            self._late.discard(part)
        one.done(part.step, error, took_s)
        with self._lock:
            self._left -= 1

    def _prune(self, part: Part) -> None:
        """Remove backups that newer ones replace; those after this step are of a run further on."""
        assert self._store is not None
        try:
            whole = self._store.whole()
            stay = staying([k for k in whole if k.step <= part.step], self._keep)
            for kept in whole:
                if kept.step < part.step and kept.name not in stay:
                    point("backup.before-prune")
                    self._store.remove(kept, part.epoch)
            # Backups that still wait for parts stay
            self._store.sweep(min([part.step, *(w.part.step for w in self._waiting)]), part.epoch)
        except (OSError, CheckpointError, DataError) as error:
            log.warning("old backups stay: %s", error)

    def latest(self, rank: int, epoch: int) -> Backup | None:
        """Fetch a rank's part of the newest backup, or that of rank 0 where no other has saved.

        All ranks continue from one step: what all of them find damaged is skipped by all; where
        each has a part of its own, a damaged one ends the training, and the next start finds an
        older backup.

        Raises CheckpointError: all are damaged, a part is, or it is unknown whether there are
        any.
        """
        store = self._store
        if store is None:
            return None
        problem = ""
        try:
            store.begin(epoch)
            for kept in store.whole():
                try:
                    return Backup(
                        kept.step, store.fetch(kept, rank, self._here / f"{kept.name}-{rank}")
                    )
                except DamagedError as error:
                    # Other ranks have read their parts of this step: skipping it would split them
                    if kept.ranks > 1:
                        store.set_aside(kept, epoch)
                        raise CheckpointError(
                            f"{error}; the backup of step {kept.step} is set aside: start again,"
                            " from an older one"
                        ) from None
                    log.warning("the backup %s of %s is skipped: %s", kept.name, store.url, error)
                    problem = problem or f"{kept.name}: {error}"
        except (OSError, DataError) as error:
            raise CheckpointError(f"{store.url}: {error}") from error
        if problem:
            raise CheckpointError(f"{store.url}: no backup can be read: {problem}")
        return None


class TrainerRequests:
    """Answers to trainers, by their ``kind``, with a controller or without."""

    _backups: Backups
    _plan: PlannedSaves
    _running = 0
    """The generation of the trainers here."""
    _base = 0
    """Steps that a script had done when its backup was made: it counts from 0 again."""

    def _answer(self, message: JsonObject) -> JsonObject:
        match message.get("ask") or message.get("tell"):
            case "restored":
                self._plan.restored(int(message["version"]))
            case "saved":
                self._save_reported(message)
            case "lasts":
                self._durable_reported(message)
            case "schedule":
                return self._schedule(message)
            case "backup":
                return self._back_up(message)
            case "nothing":
                self._backups.nothing(self._part(message))
            case "latest":
                return self._latest(message)
            case kind:
                return {"error": f"there is no message {kind!r}"}
        return {}

    def _schedule(self, message: JsonObject) -> JsonObject:
        """Have trainers save at the end of a step."""
        raise NotImplementedError

    def _save_reported(self, message: JsonObject) -> None:
        """A checkpoint is safe, or will not come."""
        raise NotImplementedError

    def _durable_reported(self, message: JsonObject) -> None:
        """A checkpoint that was safe before is durable, or will not be."""

    def _has_gone_on(self, local_rank: int, step: int) -> bool:
        """Whether a trainer has done a later step, or ended well."""
        raise NotImplementedError

    def _is_given_up(self) -> bool:
        """Whether nothing waits for a save of all ranks any more."""
        return False

    def _back_up(self, message: JsonObject) -> JsonObject:
        """Start a backup of what one rank has saved."""
        save = ScheduledSave(*message["save"])
        reason = SaveReason(save.reason)
        generation = self._running

        def done(version: int, error: str, took_s: float) -> None:
            # Rank 0 reports for all; a result of an earlier generation says nothing of this one
            if generation == self._running and not message["rank"]:
                stall_s = float(message.get("stall_s", 0.0))
                facts = {"stall_s": stall_s, "took_s": took_s, "error": error or None}
                self._save_reported({"version": version, "save": list(save), **facts})

        limit_s = save.limit_ms / 1000 if reason.holds else None
        went_on = partial(self._has_gone_on, int(message["local_rank"]), int(message["step"]))
        others = Others(int(message["world"]), went_on, reason.holds, limit_s, self._is_given_up)
        part = self._part(message, reason.automatic)
        found = self._backups.add(Path(message["path"]), part, done, others)
        if "error" in found:
            self._save_reported({"save": list(save), "error": found["error"]})
        return found

    def _part(self, message: JsonObject, automatic: bool = False) -> Part:
        step = self._base + int(message["step"])
        return Part(step, int(message["rank"]), self._running, automatic)

    def _latest(self, message: JsonObject) -> JsonObject:
        found = self._backups.latest(int(message["rank"]), self._running)
        self._base = 0 if found is None else found.step
        self._plan.restored(0)
        if found is None:
            return {}
        return {"path": str(found.path), "step": found.step}
