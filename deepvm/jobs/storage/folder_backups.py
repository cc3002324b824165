"""Backups in a folder that all machines see, ``JOB/backups``."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from deepvm.checkpoint.files.epoch_file import EpochFile
from deepvm.errors import DamagedError
from deepvm.io.atomic_write import sync, write_bytes, write_json
from deepvm.io.failpoints import point
from deepvm.jobs.storage.backup_store import (
    RECORD,
    Part,
    PartStatus,
    Record,
    StoredBackup,
    copy,
    emptied,
    fetch_part,
    files_of,
    name_of,
    no_part,
    place_of,
)

_NAME = re.compile(r"\d{12}-\d{9,}")
_RANK = re.compile(r"rank-(\d+)(?:\.(begun|nothing|failed))?")
_SEAL = "whole.json"


class FolderBackups:
    """A folder per step and generation, with one per rank, renamed once it is complete.

    ``whole.json`` there is the seal; what ranks say are empty files, such as ``rank-3.begun``.
    """

    def __init__(self, folder: Path, job: str) -> None:
        self._root = folder / job / "backups"
        self._epochs = EpochFile(self._root, "backups")
        self.url = self._root.as_uri()

    def begin(self, epoch: int) -> None:
        """Refuse older generations from now on. Raises CheckpointError: a newer one has started."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._epochs.begin(epoch)

    def set_status(self, part: Part, status: PartStatus) -> bool:
        """Tell the other ranks; a backup that a rank starts to save is not sealed any more.

        Returns whether it was.

        Raises CheckpointError, OSError.
        """
        self.begin(part.epoch)
        folder = self._root / name_of(part)
        with self._epochs.current(part.epoch):
            folder.mkdir(exist_ok=True)
            (folder / f"rank-{part.rank}.{status.value}").touch()
            # After the status file: a rank that seals looks for statuses afterwards, and sees it
            sealed = status is PartStatus.BEGUN and (folder / _SEAL).exists()
            if sealed:
                (folder / _SEAL).unlink(missing_ok=True)
                sync(folder)
        return sealed

    def statuses(self, part: Part) -> Mapping[int, PartStatus]:
        """The status of each rank's part of the same backup.

        Raises CheckpointError, OSError.
        """
        found: dict[int, PartStatus] = {}
        for place in sorted((self._root / name_of(part)).iterdir()):
            match = _RANK.fullmatch(place.name)
            if match and match[2]:
                found[int(match[1])] = PartStatus(match[2])
        # Parts last: one that is whole counts, also if its rank has reported a failure before.
        return {**found, **dict.fromkeys(self._parts(name_of(part)), PartStatus.WHOLE)}

    def _parts(self, name: str) -> list[int]:
        """The ranks whose parts are whole."""
        matches = [
            _RANK.fullmatch(record.parent.name)
            for record in (self._root / name).glob(f"rank-*/{RECORD}")
        ]
        return [int(match[1]) for match in matches if match]

    def save(self, path: Path, part: Part) -> None:
        """Upload a file or folder, whole or not at all.

        Raises CheckpointError, OSError: it is not there.

        The rename happens while no newer generation can begin.
        """
        self.begin(part.epoch)
        folder = self._root / name_of(part)
        # A name of its own: a process that was thought dead may still write the same part
        hidden = folder / f".rank-{part.rank}.{os.getpid()}-{threading.get_ident()}"
        emptied(hidden)
        try:
            sums = {}
            for source, name in files_of(path):
                with source.open("rb") as reader:
                    sums[name] = copy(reader, hidden / name)
            point("backup.before-record")
            write_bytes(hidden / RECORD, Record(path.name, sums, part.automatic).to_json())
            # Files are synced as they are copied; their names last once the folders are, too
            for made in {hidden, *(p for p in hidden.rglob("*") if p.is_dir())}:
                sync(made)
            final = folder / f"rank-{part.rank}"
            with self._epochs.current(part.epoch):
                # Of a step that is saved again: os.replace() needs an empty folder there
                shutil.rmtree(final, ignore_errors=True)
                point("backup.before-rename")
                os.replace(hidden, final)
                point("backup.after-rename")
                for made in (folder, self._root):
                    sync(made)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)

    def seal(self, part: Part, ranks: int) -> None:
        """Make a backup visible, whose parts of so many ranks are whole.

        Raises CheckpointError, OSError.
        """
        facts = {"ranks": ranks, "automatic": part.automatic}
        with self._epochs.current(part.epoch):
            point("backup.before-seal")
            write_json(self._root / name_of(part) / _SEAL, facts)

    def whole(self) -> list[StoredBackup]:
        """The visible backups, newest first; those that lack a part are not.

        Raises CheckpointError, OSError.
        """
        found = []
        for name in self._names():
            try:
                facts = json.loads((self._root / name / _SEAL).read_bytes())
                kept = StoredBackup(
                    place_of(name)[0], name, bool(facts["automatic"]), int(facts["ranks"])
                )
            # Another machine may be removing it at this moment: what cannot be read is not whole.
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if len(self._parts(name)) >= kept.ranks:
                found.append(kept)
        return sorted(found, key=lambda kept: place_of(kept.name), reverse=True)

    def _names(self) -> list[str]:
        if self._root.is_dir():
            names = [folder.name for folder in self._root.iterdir()]
        else:
            names = []
        return [name for name in names if _NAME.fullmatch(name)]

    def set_aside(self, kept: StoredBackup, epoch: int) -> None:
        """Hide one. Raises CheckpointError (a newer generation has started), OSError."""
        with self._epochs.current(epoch):
            (self._root / kept.name / _SEAL).unlink(missing_ok=True)

    def remove(self, kept: StoredBackup, epoch: int) -> None:
        """Remove one. Raises CheckpointError: a newer generation has started; OSError.

        The seal first, without which it is not visible.
        """
        self.set_aside(kept, epoch)
        with self._epochs.current(epoch):
            shutil.rmtree(self._root / kept.name, ignore_errors=True)

    def sweep(self, step: int, epoch: int) -> None:
        """Remove unsealed saves of earlier steps, by this generation or older ones.

        Raises CheckpointError: a newer generation has started; OSError.
        """
        for name in self._names():
            before, by = place_of(name)
            if before < step and by <= epoch and not (self._root / name / _SEAL).exists():
                with self._epochs.current(epoch):
                    shutil.rmtree(self._root / name, ignore_errors=True)

    def fetch(self, kept: StoredBackup, rank: int, folder: Path) -> Path:
        """Write a rank's part to a new folder, checked; returns its file or folder.

        Raises DamagedError: it will never be read; CheckpointError, OSError.
        """
        source = self._root / kept.name / f"rank-{rank if kept.ranks > 1 else 0}"
        if not (source / RECORD).exists():
            raise no_part(kept, rank)

        def read(name: str) -> BinaryIO:
            try:
                return (source / name).open("rb")
            except FileNotFoundError as error:
                raise DamagedError(f"{source / name}: {error.strerror}") from None

        return fetch_part(read, folder, f"{source}/")
