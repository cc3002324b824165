"""Backups of files that scripts save by themselves: uploaded under a checksum, of which only whole ones count.

A backup of a step is one folder, ``JOB/backups/STEP-EPOCH``, with a folder for each rank that has one and, when all
bytes are there, a record with their names and checksums. What bears a lower epoch than the newest that has begun is
refused: it comes from a machine that was thought lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from deepvm.errors import CheckpointError
from deepvm.io.failpoints import point

KEEP = 2
"""Backups that stay when a newer one is whole."""
_NAME = re.compile(r"(\d{12})-(\d{9})")
_PIECE = 4 << 20

log = logging.getLogger("deepvm.agent")

Done = Callable[[int, str], None]


@dataclass(frozen=True)
class Backup:
    """A backup that is here: the step after which it was made, and its file or folder."""

    step: int
    path: Path


class Backups:
    """The backups of one job, as one machine sees them."""

    def __init__(self, tiers: Sequence[str], job: str, here: Path) -> None:
        """``here``: the folder for what is fetched."""
        folders = [Path(unquote(urlsplit(t).path)) for t in tiers if t.startswith("file://")]
        self._root = folders[0] / job / "backups" if folders else None
        self._here = here
        self._queue: queue.SimpleQueue[tuple[Path, int, int, int, Done]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, path: Path, step: int, rank: int, epoch: int, done: Done) -> Mapping[str, Any]:
        """Upload in the background; ``done`` is called with the step, and an error or an empty text."""
        if self._root is None:
            return {"error": "none of the job's tiers takes backups; give it a file:// one"}
        if not path.exists():
            return {"error": f"there is no {path}"}
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="backups")
            self._thread.start()
        self._queue.put((path, step, rank, epoch, done))
        return {}

    def _run(self) -> None:
        while True:
            path, step, rank, epoch, done = self._queue.get()
            try:
                self._upload(path, step, rank, epoch)
                done(step, "")
            except (OSError, CheckpointError) as error:
                log.warning("%s is not backed up: %s", path, error)
                done(step, str(error))

    def _upload(self, path: Path, step: int, rank: int, epoch: int) -> None:
        assert self._root is not None
        folder = self._root / f"{step:012d}-{epoch:09d}"
        hidden = folder / f".rank-{rank}.{os.getpid()}"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)
        try:
            sums = {}
            for source, name in _files(path):
                target = hidden / name
                target.parent.mkdir(parents=True, exist_ok=True)
                sums[name] = _copy(source, target)
            point("backup.before-record")
            record = {"name": path.name, "is_folder": path.is_dir(), "sha256": sums}
            _write(hidden / "record.json", json.dumps(record).encode())
            if epoch < self._epoch():
                raise CheckpointError(f"a newer generation than {epoch} has begun")
            final = folder / f"rank-{rank}"
            shutil.rmtree(final, ignore_errors=True)
            point("backup.before-rename")
            os.replace(hidden, final)
            _sync(folder)
            point("backup.after-rename")
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        if not rank:
            self._prune(step)

    def _prune(self, newest: int) -> None:
        """Remove what newer backups make superfluous; newer ones are of a run that went further."""
        for step, _, folder in list(self._whole())[KEEP:]:
            if step < newest:
                point("backup.before-prune")
                shutil.rmtree(folder, ignore_errors=True)

    def _whole(self) -> Iterator[tuple[int, int, Path]]:
        """Step, epoch and folder of each backup of rank 0, the newest first."""
        found = []
        if self._root is not None and self._root.is_dir():
            for folder in self._root.iterdir():
                match = _NAME.fullmatch(folder.name)
                if match and (folder / "rank-0" / "record.json").exists():
                    found.append((int(match[1]), int(match[2]), folder))
        yield from sorted(found, reverse=True)

    def latest(self, rank: int, epoch: int) -> Backup | None:
        """Fetch the newest undamaged backup of a rank, or else of rank 0. Raises CheckpointError: all are damaged."""
        if self._root is None:
            return None
        self._begin(epoch)
        problem = ""
        for step, _, folder in self._whole():
            source = folder / f"rank-{rank}"
            source = source if (source / "record.json").exists() else folder / "rank-0"
            try:
                return Backup(step, self._fetch(source, self._here / f"{folder.name}-{rank}"))
            except (OSError, ValueError, KeyError, CheckpointError) as error:
                log.warning("the backup %s is skipped: %s", source, error)
                problem = problem or f"{source}: {error}"
        if problem:
            raise CheckpointError(f"no backup can be read: {problem}")
        return None

    def _fetch(self, source: Path, target: Path) -> Path:
        record = json.loads((source / "record.json").read_bytes())
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, checksum in record["sha256"].items():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if _copy(source / name, copy) != checksum:
                raise CheckpointError(f"{source / name} is damaged")
        return target / str(record["name"])

    def _epoch(self) -> int:
        assert self._root is not None
        with contextlib.suppress(OSError, ValueError):
            return int((self._root / "epoch").read_text())
        return 0

    def _begin(self, epoch: int) -> None:
        """From now on, refuse what bears a lower epoch."""
        assert self._root is not None
        if epoch > self._epoch():
            self._root.mkdir(parents=True, exist_ok=True)
            _write(self._root / "epoch", str(epoch).encode())


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    if not path.is_dir():
        yield path, path.name
        return
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file, f"{path.name}/{file.relative_to(path).as_posix()}"


def _copy(source: Path, target: Path) -> str:
    """Copy a file; returns its SHA-256."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(_PIECE):
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _write(path: Path, data: bytes) -> None:
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with hidden.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
