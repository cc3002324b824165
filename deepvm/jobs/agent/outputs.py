"""Keeps what a training writes: its output files go to the job's storage while it runs.

Looks for changed files now and then, at each checkpoint, after a notice each second, and when
trainers have ended. A binary file that a process is writing is left for the next look; of a text,
such as a log, what there is of it is good.
"""

import errno
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CheckpointError, DataError, MissingExtraError
from deepvm.io.failpoints import point
from deepvm.io.processes import descendants, open_files
from deepvm.jobs.storage.output_store import (
    MAX_FILES,
    MachineOutputs,
    OutputFile,
    OutputStore,
    open_objects,
    unfit,
)

LOOKS = 5  # So many heartbeats are between two looks
_PATIENCE = 20  # For so many, failed last looks are repeated
_NOTICED_S = 1.0
_WRITTEN_S = 5.0  # Without a change for so long, an open file counts as written
_TEXT_BYTES = 4096
_PIECE = 4 << 20
_SHOWN = 3
_IGNORED = frozenset(("__pycache__", ".git"))
_TROUBLE = (OSError, CheckpointError, DataError, MissingExtraError)

log = logging.getLogger("deepvm.agent")

Stamp: TypeAlias = tuple[int, int, int]  # What differs where a file does: size, time, inode
Report: TypeAlias = Callable[[JsonDict], object]


class Outputs:
    """The outputs of one machine; a thread of its own keeps them."""

    def __init__(
        self, machine: str, beat_s: float, spec: JsonObject, folder: Path, report: Report
    ) -> None:
        """``folder``: of the code; what is in it now is no output."""
        self._machine = machine
        self._beat_s = beat_s
        self._job = str(spec.get("name", ""))
        self._url = str(spec.get("outputs_to", ""))
        self._patterns: Sequence[str] = tuple(spec.get("outputs", ()))
        self._folder = folder
        self._report = report
        self._store: OutputStore | None = None
        self._kept = MachineOutputs(machine)
        self._stamps: dict[str, Stamp] = {}
        self._torn: dict[str, Stamp | None] = {}
        self._fails = False
        self._reported: JsonDict = {}
        self._change = threading.Condition()
        self._generation = self._rank = 0
        # Numbers of looks; of the last one, after the end of trainers, 0 if none is wanted
        self._begun = self._done = self._wanted = self._last = 0
        self._patience_s = 0.0
        self._noticed = False
        self._over = False
        self._before: dict[str, list[int]] = {}
        if self._patterns:
            self._before = _known_before(folder)
            threading.Thread(target=self._run, daemon=True, name="outputs").start()

    def trains(self, generation: int, rank: int) -> None:
        """What is written from now on is of this generation; ``rank``: of its machines."""
        with self._change:
            self._generation = generation
            self._rank = rank
            self._last = 0

    def look(self, *, noticed: bool = False) -> None:
        """Look soon; ``noticed``: and each second from now on."""
        with self._change:
            self._noticed |= noticed
            self._wanted = self._begun + 1
            self._change.notify_all()

    def look_last(self, *, patient: bool = False) -> bool:
        """Look once more, as nothing writes any more; returns whether that is over."""
        with self._change:
            if not self._patterns:
                return True
            if not self._last:
                self._last = self._wanted = self._begun + 1
                self._patience_s = _PATIENCE * self._beat_s if patient else 0.0
                self._change.notify_all()
            return self._done >= self._last

    def close(self, limit_s: float) -> None:
        """Look for the last time, for at most ``limit_s``."""
        with self._change:
            self._last = 0
            self.look_last(patient=True)
            self._change.wait_for(lambda: self._done >= self._last, limit_s)
            self._over = True
            self._change.notify_all()

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Around the end of trainers: files that they are writing stay half-written."""
        torn = set()
        if self._patterns:
            torn = {path for path in self._written_now() if not _is_text(path)}
        yield
        stamps = {str(path): _stamp(path) for path in torn}
        with self._change:
            self._torn |= stamps

    def _run(self) -> None:
        while not self._over:
            with self._change:
                pause_s = _NOTICED_S if self._noticed else LOOKS * self._beat_s
                self._change.wait_for(lambda: self._begun < self._wanted or self._over, pause_s)
                self._begun += 1
                last = 0 < self._last <= self._begun
                until_s = time.monotonic()
                if last:
                    until_s += self._patience_s
            while not self._look(last=last) and time.monotonic() < until_s:
                time.sleep(self._beat_s)
            with self._change:
                self._done = self._begun
                self._change.notify_all()

    def _look(self, *, last: bool) -> bool:
        """Returns whether all that is there is kept."""
        if not self._generation:
            return True
        facts: JsonDict = {"why": "", "unmatched": [], "others": []}
        try:
            found = self._found(facts)
            self._keep(found, last=last)
            if last:
                facts["others"] = self._others()
            self._fails = False
        except Exception as error:  # of any kind: the training goes on
            facts["why"] = str(error) or type(error).__name__
            if not self._fails:
                self._fails = True
                known = isinstance(error, _TROUBLE)
                log.warning("outputs are not kept: %s", facts["why"], exc_info=not known)
        files = self._kept.files.values()
        facts |= {"files": len(files), "bytes": sum(f.bytes for f in files)}
        # Files may change without another number or size
        known_as = {**facts, "kept_s": max((f.kept_s for f in files), default=0.0)}
        if known_as != self._reported:
            self._reported = known_as
            self._report(facts)
        return not facts["why"]

    def _found(self, facts: JsonDict) -> dict[str, Path]:
        found: dict[str, Path] = {}
        unmatched = []
        for pattern in self._patterns:
            mine = {path.relative_to(self._folder).as_posix(): path for path in self._of(pattern)}
            if not mine:
                unmatched.append(pattern)
            found |= mine
            if len(found) > MAX_FILES:
                raise DataError(
                    f"outputs: {pattern!r} and those before it match more than {MAX_FILES} files"
                )
        facts["unmatched"] = unmatched
        return found

    def _of(self, pattern: str) -> Iterator[Path]:
        """The files that a pattern means, each with what is below it, as far as they are new."""
        root = self._folder.resolve()
        for top in self._folder.glob(pattern):
            below = [top]
            if top.is_dir() and not top.is_symlink():
                below = [Path(at, name) for at, _, names in os.walk(top) for name in names]
            for path in below:
                if path.is_symlink() and root not in path.resolve().parents:
                    continue  # what it leads to is not the script's
                if path.is_file() and self._is_new(path):
                    yield path

    def _is_new(self, path: Path) -> bool:
        name = path.relative_to(self._folder).as_posix()
        stamp = _stamp(path)
        return stamp is not None and self._before.get(name) != list(stamp) and not unfit(name)

    def _others(self) -> list[str]:
        """Some files that the training has written, and that no pattern means."""
        found = []
        for at, folders, names in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if name not in _IGNORED)
            for path in (Path(at, name) for name in sorted(names)):
                name = path.relative_to(self._folder).as_posix()
                if name not in self._kept.files and not path.is_symlink() and self._is_new(path):
                    found.append(name)
                if len(found) == _SHOWN:
                    return found
        return found

    def _written_now(self) -> set[Path]:
        """The files here that trainers, or what they have started, write at the moment."""
        root = self._folder.resolve()
        names = {
            name for pid in descendants(os.getpid()) for name in open_files(pid, for_writing=True)
        }
        here = (Path(name) for name in names if root in Path(name).parents)
        # A pipe would block who reads it
        return {path for path in here if path.is_file() and _is_young(path)}

    def _keep(self, found: dict[str, Path], *, last: bool) -> None:
        stamps = {name: stamp for name, path in found.items() if (stamp := _stamp(path))}
        if not stamps and self._store is None:
            return
        if not self._url:
            raise DataError(
                "none of the job's tiers takes outputs; give it one of file:///folder or"
                " s3://bucket/prefix"
            )
        if self._store is None:
            store = OutputStore(open_objects(self._url, self._job))
            try:  # an agent of this machine that was killed may have kept some
                self._kept = store.read(self._machine)
            except ValueError as error:
                log.warning("%s: %s", store.url, error)
            self._store = store
        changed = [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp]
        if not changed and stamps.keys() == self._kept.files.keys():
            return
        busy = set()
        if changed and not last:
            busy = self._written_now()
        files = {name: file for name, file in self._kept.files.items() if name in stamps}
        sent = {file.sha256 for file in files.values()}
        for name in sorted(changed):
            stamp = stamps[name]
            path = found[name]
            is_text = _is_text(path)
            half = path.resolve() in busy or self._torn.get(str(path.resolve())) == stamp
            if half and not is_text:
                continue
            sha256 = self._send(path, stamp[0], sent)
            if not sha256 or (_stamp(path) != stamp and not is_text):
                continue  # it was written or removed meanwhile: the next look sees that
            sent.add(sha256)
            known = files.get(name)
            if known is None or known.sha256 != sha256:
                where = (self._generation, self._rank)
                files[name] = OutputFile(stamp[0], sha256, *where, time.time())
            self._stamps[name] = stamp
        if files != self._kept.files:
            kept = MachineOutputs(self._machine, files)
            point("outputs.before-list")
            self._store.write(kept)
            self._kept = kept

    def _send(self, path: Path, size: int, sent: set[str]) -> str:
        """Returns the SHA-256 of a file's first ``size`` bytes, empty if it has fewer."""
        assert self._store is not None
        with path.open("rb") as file:
            digest = hashlib.sha256()
            for start in range(0, size, _PIECE):
                digest.update(os.pread(file.fileno(), min(_PIECE, size - start), start))
            if os.fstat(file.fileno()).st_size < size:
                return ""
            sha256 = digest.hexdigest()
            if sha256 not in sent:
                point("outputs.before-send")
                self._store.send(
                    self._machine,
                    sha256,
                    size,
                    lambda start, end: os.pread(file.fileno(), end - start, start),
                )
        return sha256


def _is_young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _WRITTEN_S
    except OSError:
        return False


def _known_before(folder: Path) -> dict[str, list[int]]:
    """The files that were there before the first training, of an agent killed since too."""
    file = folder.with_name("before-training.json")
    try:
        found: dict[str, list[int]] = json.loads(file.read_bytes())
        return found
    except (OSError, ValueError):
        pass
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            if stamp := _stamp(Path(at, name)):
                found[Path(at, name).relative_to(folder).as_posix()] = list(stamp)
    try:
        file.write_text(json.dumps(found))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    return found


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" not in file.read(_TEXT_BYTES)
    except OSError:
        return False
