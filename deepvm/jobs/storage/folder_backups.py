"""Backups in a folder that all machines see, ``JOB/backups``."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from deepvm.checkpoint.files.epoch_file import EpochFile
from deepvm.io.atomic_write import sync, write_bytes
from deepvm.io.failpoints import point
from deepvm.jobs.storage.backup_store import Kept, Part, Record, copy, damaged, emptied, files_of

_NAME = re.compile(r"(\d{12})-(\d{9,})")
_RECORD = "record.json"


class FolderBackups:
    """A folder for each step and generation, with one for each rank: renamed to its name when it is whole."""

    def __init__(self, folder: Path, job: str) -> None:
        """Create nothing yet."""
        self._root = folder / job / "backups"
        self._epochs = EpochFile(self._root, "backups")
        self.url = self._root.as_uri()

    def begin(self, epoch: int) -> None:
        """See :class:`BackupStore`."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._epochs.begin(epoch)

    def save(self, path: Path, part: Part) -> None:
        """See :class:`BackupStore`; the rename happens while no newer generation can begin."""
        folder = self._root / f"{part.step:012d}-{part.epoch:09d}"
        hidden = folder / f".rank-{part.rank}.{os.getpid()}"
        emptied(hidden)
        try:
            sums = {}
            for source, name in files_of(path):
                with source.open("rb") as reader:
                    sums[name] = copy(reader, hidden / name)
            point("backup.before-record")
            write_bytes(hidden / _RECORD, Record(path.name, sums, part.automatic).to_json())
            for made in {hidden, *(p for p in hidden.rglob("*") if p.is_dir())}:
                sync(made)
            final = folder / f"rank-{part.rank}"
            with self._epochs.current(part.epoch):
                shutil.rmtree(final, ignore_errors=True)
                point("backup.before-rename")
                os.replace(hidden, final)
                point("backup.after-rename")
                for made in (folder, self._root):
                    sync(made)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)

    def whole(self) -> list[Kept]:
        """See :class:`BackupStore`."""
        found: list[tuple[int, int, Kept]] = []
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            match = _NAME.fullmatch(folder.name)
            record = folder / "rank-0" / _RECORD
            if match and record.exists():
                try:
                    automatic = Record.from_json(record.read_bytes()).automatic
                except (OSError, ValueError):  # damaged: who reads it is told
                    automatic = False
                found.append((int(match[1]), int(match[2]), Kept(int(match[1]), folder.name, automatic)))
        return [kept for *_, kept in sorted(found, key=lambda row: row[:2], reverse=True)]

    def remove(self, kept: Kept, epoch: int) -> None:
        """See :class:`BackupStore`; the part of rank 0 first, without which it is not visible."""
        with self._epochs.current(epoch):
            for place in (self._root / kept.name / "rank-0" / _RECORD, self._root / kept.name):
                shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)

    def fetch(self, kept: Kept, rank: int, folder: Path) -> Path:
        """See :class:`BackupStore`."""
        source = self._root / kept.name / f"rank-{rank}"
        source = source if (source / _RECORD).exists() else self._root / kept.name / "rank-0"
        record = Record.from_json((source / _RECORD).read_bytes())
        emptied(folder)
        for name, checksum in record.sha256.items():
            with (source / name).open("rb") as reader:
                if copy(reader, folder / name) != checksum:
                    raise damaged(str(source / name))
        return folder / record.name
