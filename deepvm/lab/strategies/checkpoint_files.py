"""Checkpoints in files that appear atomically: write, fsync, rename, then a record (ECRL 4.3)."""

import hashlib
import json
import os
from contextlib import AbstractContextManager
from pathlib import Path

from deepvm.checkpoint.files.version_dir import EpochFile
from deepvm.io.atomic_write import write_bytes
from deepvm.records import dataclass

_PIECE = 2**20
MOST_TRIES = 3  # Of a write that fails: disks recover, or do not
_HIDDEN = (".step-*", ".last*")


@dataclass(frozen=True)
class WriteResult:
    """An attempted write; ``error``: all tries failed."""

    bytes: int
    retries: int
    error: str = ""


class CheckpointFiles:
    """One run's checkpoints, as an attempt may write them."""

    def __init__(self, folder: Path, attempt: int, keep: int) -> None:
        """Refuse older attempts from now on. Raises CheckpointError: a newer one exists."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._attempt = attempt
        self._keep = keep
        self._fence = EpochFile(folder, "lab")
        self._fence.begin(attempt)
        for pattern in _HIDDEN:  # what an older attempt was writing as it was killed
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)

    def current(self) -> AbstractContextManager[None]:
        return self._fence.current(self._attempt)

    def write(self, step: int, data: bytes | memoryview, *, early: bool = False) -> WriteResult:
        """Write it, retrying; ``early``: the record first. Raises CheckpointError."""
        view = memoryview(data)
        error = ""
        name = f"step-{step:09d}"
        record = {"step": step, "file": name, "bytes": len(view), "attempt": self._attempt}
        record["sha256"] = hashlib.sha256(view).hexdigest()
        hidden = self._folder / f".{name}.{self._attempt}"
        for number in range(MOST_TRIES):
            try:
                if early:
                    self._put(record)
                _write_durably(hidden, view)
                with self.current():
                    os.replace(hidden, self._folder / name)
                    self._put(record)
            except OSError as problem:
                error = f"{problem.strerror}"
                continue
            finally:
                hidden.unlink(missing_ok=True)
            for path in sorted(self._folder.glob("step-*.json"), reverse=True)[self._keep :]:
                path.unlink(missing_ok=True)
                path.with_suffix("").unlink(missing_ok=True)
            return WriteResult(len(view), number)
        return WriteResult(0, MOST_TRIES - 1, error)

    def _put(self, record: dict[str, object]) -> None:
        # And syncs the names
        write_bytes(self._folder / f"{record['file']}.json", json.dumps(record).encode())

    def newest(self) -> tuple[tuple[int, bytes] | None, int]:
        """(step, bytes) of the newest undamaged checkpoint; how many damaged ones are newer."""
        paths = sorted(self._folder.glob("step-*.json"), reverse=True)
        for damaged, path in enumerate(paths):
            try:
                record = json.loads(path.read_bytes())
                data = (self._folder / str(record["file"])).read_bytes()
                if hashlib.sha256(data).hexdigest() == record["sha256"]:
                    return (int(record["step"]), data), damaged
            except (OSError, ValueError, KeyError):
                continue
        return None, len(paths)


def _write_durably(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done : done + _PIECE])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
