"""Backups of files that scripts save, in the background; rank 0's agent seals what is whole."""

import json
import os
import queue
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CheckpointError, DamagedError, DataError, MissingExtraError
from deepvm.io.agent_board import SOCKET, SaveReason, ScheduledSave
from deepvm.io.failpoints import point
from deepvm.io.threads import start_thread
from deepvm.jobs.agent.planned_saves import PlannedSaves
from deepvm.jobs.loggers import agent_log as log
from deepvm.jobs.storage import backup_store
from deepvm.jobs.storage.backup_store import KEEP, BackupStore, Part, PartStatus, StoredBackup
from deepvm.jobs.storage.bucket_backups import BucketBackups
from deepvm.records import dataclass, field

# Timeouts for a running backup after training ended, and for the other ranks' backups
LAST_S = 1800.0
_LOOK_S = 0.02
_SELDOM_S = 0.5


_FORMS = "file:///folder or s3://bucket/prefix"
Done = Callable[[int, str, float], None]
_TROUBLE = (OSError, CheckpointError, DataError, MissingExtraError)


def open_backups(tiers: Sequence[str], job: str) -> BackupStore | None:
    """The first of a job's tiers that takes backups; None if none does."""
    for tier in tiers:
        place = urlsplit(tier)
        if place.scheme.lower() == "file":
            return backup_store.FolderBackups(Path(unquote(place.path)), job)
        if place.scheme.lower() == "s3":
            return BucketBackups(place.netloc, place.path, job)
    return None


@dataclass(frozen=True)
class Backup:
    """A file or folder that was fetched."""

    step: int  # After which it was made
    path: Path


@dataclass(frozen=True)
class Others:
    """The ranks of a training, when one saves."""

    world: int = 1
    went_on: Callable[[], bool] = lambda: True  # whether all have decided
    all_say: bool = False  # wait for each, until limit_s or given_up: no next step will be done
    limit_s: float | None = None  # wall clock
    given_up: Callable[[], bool] = lambda: False

    @property
    def waits_for_all(self) -> bool:
        return self.all_say and not self.given_up()


ALONE = Others()


@dataclass(eq=False)
class _Upload:
    path: Path
    part: Part
    others: Others
    done: Done
    began_s: float = field(default_factory=time.monotonic)
    since_s: float = 0.0  # When it was uploaded; its backup is not sealed yet
    limit_s: float = 0.0

    def missing(self, statuses: Mapping[int, PartStatus]) -> list[int]:
        missing = _ranks(statuses, PartStatus.BEGUN)
        if self.others.waits_for_all:
            missing |= set(range(self.others.world)) - statuses.keys()
        return sorted(missing)


def _ranks(statuses: Mapping[int, PartStatus], *wanted: PartStatus) -> set[int]:
    return {rank for rank, status in statuses.items() if status in wanted}


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
        # Parts that will not come, of which the other ranks do not know yet
        self._untold: list[Part] = []
        self.under_way = 0  # Uploads whose backups are not sealed yet
        self._lock = threading.Lock()
        self._late: set[Part] = set()
        self._failed: dict[int, str] = {}
        self._oldest = 0

    @property
    def failure(self) -> str:
        """Why the newest backup of a rank here was not made; empty if all were."""
        with self._lock:
            return next(iter(self._failed.values()), "")

    def forget(self, epoch: int) -> None:
        with self._lock:
            self._oldest = epoch
            self._failed = {}

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
            self.under_way += 1
        self._put(_Upload(path, part, others, done))
        return {}

    def _put(self, item: _Upload | Part) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(self._run, name="backups")
        self._queue.put(item)

    def nothing(self, part: Part) -> None:
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
        """Whether the other ranks can know that this one's part will not come."""
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
                failed = sorted(_ranks(statuses, PartStatus.FAILED))
                missing = waiting.missing(statuses)
                if failed or (missing and time.time() > waiting.limit_s):
                    raise CheckpointError(
                        f"step {part.step}: no parts of ranks {failed or missing}"
                    )
                if missing:
                    return False
                ranks = _ranks(statuses, PartStatus.WHOLE)
                store.seal(part, len(ranks))
                statuses = store.statuses(part)
                if _ranks(statuses, PartStatus.WHOLE, PartStatus.BEGUN) != ranks:
                    # One has started meanwhile
                    store.set_aside(StoredBackup(part.step, backup_store.name_of(part)), part.epoch)
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
            self.under_way -= 1

    def _prune(self, part: Part) -> None:
        """Remove backups that newer ones replace; those after this step are of a run further on."""
        assert self._store is not None
        try:
            whole = self._store.whole()
            stay = backup_store.staying([k for k in whole if k.step <= part.step], self._keep)
            for kept in whole:
                if kept.step < part.step and kept.name not in stay:
                    point("backup.before-prune")
                    self._store.remove(kept.name, part.epoch)
            self._store.sweep(min([part.step, *(w.part.step for w in self._waiting)]), part.epoch)
        except (OSError, CheckpointError, DataError) as error:
            log.warning("old backups stay: %s", error)

    def latest(self, rank: int, epoch: int) -> Backup | None:
        """A rank's part of the newest backup, else rank 0's alone. Raises CheckpointError."""
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
                            f"{error}; the backup of step {kept.step} is quarantined: start again,"
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
    """Answers to trainers, with a controller or without."""

    _backups: Backups
    _plan: PlannedSaves
    _running = 0  # The generation of the trainers here
    _base = 0  # Steps that a script had done when its backup was made: it counts from 0 again

    def _answer(self, message: JsonObject) -> JsonObject:
        match message.get("ask") or message.get("tell"):
            case "restored":
                self._plan.restored(int(message["version"]))
            case "saved":
                self._save_reported(message)
            case "lasts":
                self._durable_reported(message)
            case "schedule":
                reason, limit_ms, request = message["save"]
                save = ScheduledSave(SaveReason(reason), int(limit_ms), int(request))
                return self._schedule(int(message["step"]), save, peers=bool(message.get("peers")))
            case "backup":
                return self._back_up(message)
            case "nothing":
                self._backups.nothing(self._part(message))
            case "latest":
                return self._latest(message)
            case kind:
                return {"error": f"there is no message {kind!r}"}
        return {}

    def _save_reported(self, message: JsonObject) -> None:
        reason = SaveReason(message["save"][0])
        if message.get("error"):
            self._plan.record_failure()
            self._report_unsaved(reason, message["error"])
            return
        save: JsonDict = {
            "reason": reason,
            "version": int(message["version"]),
            "stall_s": float(message["stall_s"]),
            "took_s": float(message["took_s"]),
            "lasts": bool(message.get("lasts", True)),  # backups of scripts are durable
            "pending": bool(message.get("pending", False)),
        }
        self._plan.record_save(save["version"] - self._base, save["stall_s"], save["took_s"])
        self._report_safe(save)

    def _schedule(self, step: int, save: ScheduledSave, *, peers: bool) -> JsonObject:
        raise NotImplementedError

    def _report_unsaved(self, reason: SaveReason, why: str) -> None:
        raise NotImplementedError

    def _report_safe(self, save: JsonDict) -> None:
        """A checkpoint is safe."""

    def _durable_reported(self, message: JsonObject) -> None:
        """A checkpoint that was safe before is durable, or will not be."""

    def _has_gone_on(self, local_rank: int, step: int) -> bool:
        raise NotImplementedError

    def _is_given_up(self) -> bool:
        """Whether nothing waits for a save of all ranks any more."""
        return False

    def _back_up(self, message: JsonObject) -> JsonObject:
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


_LONGEST = 1_000_000


class _Handler(socketserver.StreamRequestHandler):
    server: "TrainerSocket"

    def handle(self) -> None:
        with suppress(OSError):  # a trainer that was killed
            for line in iter(lambda: self.rfile.readline(_LONGEST), b""):
                try:
                    message = json.loads(line)
                    found: JsonObject = {"error": "not an object"}
                    if isinstance(message, dict):
                        found = self.server.answer(message)
                except ValueError:
                    found = {"error": "not JSON"}
                except Exception as error:
                    # One trainer's message must not end the others' connection
                    log.exception("a trainer's message failed")
                    found = {"error": f"{type(error).__name__}: {error}"}
                self.wfile.write(json.dumps(found).encode() + b"\n")


class TrainerSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens in the agent's folder; ``answer`` is called in threads."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, answer: Callable[[JsonObject], JsonObject]) -> None:
        path = folder / SOCKET
        path.unlink(missing_ok=True)
        # The name of a Unix socket has at most 107 bytes: go by the open folder.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            super().__init__(f"/proc/self/fd/{opened}/{SOCKET}", _Handler)
        finally:
            os.close(opened)
        path.chmod(0o600)
        self.answer = answer
        start_thread(self.serve_forever, 0.1)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
