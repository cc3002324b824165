"""Keeps what a training writes: its output files go to the job's storage while it runs.

Looks for changed files now and then, at each checkpoint, after a notice each second, and when
trainers have ended. A binary file that a process is writing is left for the next look; of a text,
such as a log, what there is of it is good.
"""

import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import DataError, DeepVMError
from deepvm.io.atomic_write import write_json
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
_MAX_PROBLEMS = 10  # Of files in one look: a storage out of reach fails each after a while
_IGNORED = frozenset(("__pycache__", ".git"))

log = logging.getLogger("deepvm.agent")

Stamp: TypeAlias = list[int]  # What differs where a file does: size, time, inode
Report: TypeAlias = Callable[..., object]


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
        self._stored = MachineOutputs(machine)
        self._stamps: dict[str, Stamp] = {}  # Of files as they are stored
        self._torn: dict[Path, Stamp | None] = {}  # Of files that ended half-written
        self._reported: tuple[JsonDict, MachineOutputs] = ({}, self._stored)
        self._wake = threading.Event()
        self._generation = self._rank = 0
        self._last: threading.Event | None = None  # Set by the look after the end of trainers
        self._patience_s = 0.0
        self._noticed = False
        self._closed = False
        self._before: Mapping[str, Stamp | None] = {}
        if self._patterns:
            self._before = _known_before(folder)
            threading.Thread(target=self._run, daemon=True, name="outputs").start()

    def trains(self, generation: int, rank: int) -> None:
        """What is written from now on is of this generation; ``rank``: of its machines."""
        self._generation = generation
        self._rank = rank
        self._patience_s = 0.0
        self._last = None

    def look(self, *, noticed: bool = False) -> None:
        """Look soon; ``noticed``: and each second from now on."""
        self._noticed |= noticed
        self._wake.set()

    def look_last(self, *, patient: bool = False) -> bool:
        """Look once more, as nothing writes any more; returns whether that is over."""
        if not self._patterns:
            return True
        if self._last is None:
            if patient:
                self._patience_s = _PATIENCE * self._beat_s
            self._last = threading.Event()
            self._wake.set()
        return self._last.is_set()

    def close(self, limit_s: float) -> None:
        """Look for the last time, for at most ``limit_s``."""
        self._last = None
        self.look_last(patient=True)
        if self._last is not None:
            self._last.wait(limit_s)
        self._closed = True
        self._wake.set()

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Around the end of trainers: files that they are writing stay half-written."""
        paths = []
        if self._patterns:
            paths = [path for path in self._written_now() if not _is_text(path)]
        yield
        self._torn = {**self._torn, **{path: _stamp(path) for path in paths}}

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(_NOTICED_S if self._noticed else LOOKS * self._beat_s)
            self._wake.clear()
            last = self._last
            until_s = time.monotonic() + self._patience_s
            while not self._look(last=last is not None) and time.monotonic() < until_s:
                time.sleep(self._beat_s)
            if last is not None:
                last.set()

    def _look(self, *, last: bool) -> bool:
        """Returns whether all that is there is kept."""
        if not self._generation:
            return True
        facts: JsonDict = {"why": "", "unmatched": [], "others": []}
        try:
            matches = {pattern: [*self._matches(pattern)] for pattern in self._patterns}
            facts["unmatched"] = [pattern for pattern, paths in matches.items() if not paths]
            self._keep({self._name(p): p for paths in matches.values() for p in paths}, last=last)
            if last:
                facts["others"] = [*islice(self._others(), _SHOWN)]
        except Exception as error:  # of any kind: the training continues
            facts["why"] = str(error) or type(error).__name__
            if not self._reported[0].get("why"):
                is_known = isinstance(error, (OSError, DeepVMError))
                log.warning("outputs are not kept: %s", facts["why"], exc_info=not is_known)
        files = self._stored.files.values()
        facts |= {"files": len(files), "bytes": sum(f.bytes for f in files)}
        # Files may change without another number or size
        if self._reported != (facts, self._stored):
            self._reported = (facts, self._stored)
            self._report(**facts)
        return not facts["why"]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _matches(self, pattern: str) -> Iterator[Path]:
        """The new files that a pattern means, each with what is below it."""
        for top in self._folder.glob(pattern):
            if not self._is_inside(top):
                continue
            paths: Iterator[Path] = iter([top])
            if top.is_dir() and not top.is_symlink():
                paths = _files_below(top)
            for path in paths:
                if self._is_new(path) and (not path.is_symlink() or self._is_inside(path)):
                    yield path

    def _is_inside(self, path: Path) -> bool:
        """Whether it does not lead out of the folder: what it leads to is not the script's."""
        return path.resolve().is_relative_to(self._folder.resolve())

    def _is_new(self, path: Path) -> bool:
        name = self._name(path)
        stamp = _stamp(path)
        if stamp is None or unfit(name) or not _IGNORED.isdisjoint(path.parts):
            return False
        return self._before.get(name) != stamp

    def _others(self) -> Iterator[str]:
        """The files that the training has written, and that no pattern means."""
        for path in _files_below(self._folder):
            name = self._name(path)
            if name not in self._stored.files and not path.is_symlink() and self._is_new(path):
                yield name

    def _written_now(self) -> set[Path]:
        """The files here that trainers, or what they have started, write at the moment."""
        root = self._folder.resolve()
        names = {
            name for pid in descendants(os.getpid()) for name in open_files(pid, for_writing=True)
        }
        stamps = {Path(name): _stamp(Path(name)) for name in names}
        old_ns = time.time_ns() - int(_WRITTEN_S * 1e9)
        inside = {path: stamp for path, stamp in stamps.items() if root in path.parents}
        return {path for path, stamp in inside.items() if stamp and stamp[1] > old_ns}

    def _keep(self, paths: Mapping[str, Path], *, last: bool) -> None:
        if len(paths) > MAX_FILES:
            patterns = ", ".join(self._patterns)
            raise DataError(f"outputs: {patterns} match more than {MAX_FILES} files")
        stamps = {name: stamp for name, path in paths.items() if (stamp := _stamp(path))}
        if self._store is None:
            if not stamps:
                return
            self._store = self._open_store()
        changed = [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp]
        half_written = {path for path, stamp in self._torn.items() if _stamp(path) == stamp}
        if changed and not last:
            half_written |= self._written_now()
        files = {name: file for name, file in self._stored.files.items() if name in stamps}
        sent = {file.sha256 for file in files.values()}
        problems = []
        for name in sorted(changed):
            path = paths[name]
            is_text = _is_text(path)
            if path.resolve() in half_written and not is_text:
                continue
            size = stamps[name][0]
            try:
                sha256 = self._send(self._store, path, size, sent)
            except (OSError, DeepVMError) as error:
                problems.append(f"{name}: {error}")
                if len(problems) == _MAX_PROBLEMS:
                    break
                continue
            if not sha256 or (_stamp(path) != stamps[name] and not is_text):
                continue  # it was written or removed meanwhile: the next look sees that
            sent.add(sha256)
            if name not in files or files[name].sha256 != sha256:
                files[name] = OutputFile(size, sha256, self._generation, self._rank, time.time())
            self._stamps[name] = stamps[name]
        if files != self._stored.files:
            stored = MachineOutputs(self._machine, files)
            point("outputs.before-list")
            self._store.write(stored)
            self._stored = stored
        if problems:
            raise DataError("; ".join(problems[:_SHOWN]))

    def _open_store(self) -> OutputStore:
        if not self._url:
            raise DataError(
                "none of the job's tiers takes outputs; give it one of file:///folder or"
                " s3://bucket/prefix"
            )
        store = OutputStore(open_objects(self._url, self._job))
        try:  # an agent of this machine that was killed may have kept some
            self._stored = store.read(self._machine)
        except ValueError as error:
            log.warning("%s: %s", store.url, error)
        return store

    def _send(self, store: OutputStore, path: Path, size: int, sent: set[str]) -> str:
        """Returns the SHA-256 of a file's first ``size`` bytes, empty if it has fewer."""
        with path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                return os.pread(file.fileno(), end - start, start)

            digest = hashlib.sha256()
            for start in range(0, size, _PIECE):
                digest.update(read(start, min(start + _PIECE, size)))
            if os.fstat(file.fileno()).st_size < size:
                return ""
            sha256 = digest.hexdigest()
            if sha256 not in sent:
                point("outputs.before-send")
                store.send(self._machine, sha256, size, read)
        return sha256


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names))


def _known_before(folder: Path) -> Mapping[str, Stamp | None]:
    """The files that were there before the first training, of an agent killed since too."""
    file = folder.with_name("before-training.json")
    with suppress(OSError, ValueError):
        known: dict[str, Stamp | None] = json.loads(file.read_bytes())
        return known
    stamps = {path.relative_to(folder).as_posix(): _stamp(path) for path in _files_below(folder)}
    with suppress(DataError):  # of a full disk: only an agent that is started again needs it
        write_json(file, stamps)
    return stamps


def _stamp(path: Path) -> Stamp | None:
    """None for what is no file; reading a pipe could take forever."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" not in file.read(_TEXT_BYTES)
    except OSError:
        return False
