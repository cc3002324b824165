"""What all places for backups share; :mod:`deepvm.jobs.agent.backups` opens one.

A backup is what one step's ranks saved, each a file or folder with the checksums of all its files.
Ranks on different machines see each other's parts only here: each but rank 0 says that it starts
before it uploads, or, before a preemption, that it saves nothing. When all parts that were started
are whole the backup is sealed with their number, and is visible from then on. Where only rank 0
saved, its part is that of all; else each rank has its own, or none. Nothing that a generation sends
becomes visible once a newer one has started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from deepvm.errors import CheckpointError, DamagedError

KEEP = 2
"""Backups that stay, of a job that says nothing else."""
PIECE = 4 << 20
RECORD = "record.json"
"""The file of a part that names the others."""


@dataclass(frozen=True)
class Part:
    """What one rank saved after one step.

    ``automatic``: not one of the script's own periodic saves; it goes when newer ones are whole
    (thesis, 5.1).
    """

    step: int
    rank: int
    epoch: int
    automatic: bool = False


class PartStatus(str, Enum):
    """The state of a rank's part of a backup."""

    BEGUN = "begun"
    WHOLE = "whole"
    NOTHING = "nothing"
    FAILED = "failed"


@dataclass(frozen=True)
class StoredBackup:
    """A visible backup: its step, the store's own name of it, and how many ranks saved it."""

    step: int
    name: str
    automatic: bool = False
    ranks: int = 1


@dataclass(frozen=True)
class Record:
    """A part's files with their SHA-256; ``name``: of the part's file or folder."""

    name: str
    sha256: Mapping[str, str]
    automatic: bool = False

    def to_json(self) -> bytes:
        return json.dumps(
            {"name": self.name, "automatic": self.automatic, "sha256": dict(self.sha256)}
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """Read one; no name in it leads out of a folder. Raises ValueError."""
        facts = json.loads(data)
        try:
            found = cls(
                str(facts["name"]), dict(facts["sha256"]), bool(facts.get("automatic", False))
            )
            names = [PurePosixPath(name) for name in (found.name, *found.sha256)]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no record of a backup: {error}") from None
        if not found.name or any(
            n.is_absolute() or ".." in n.parts or "\0" in str(n) for n in names
        ):
            raise ValueError("no record of a backup: its names lead out of the folder")
        return found


def name_of(part: Part) -> str:
    """The name of a backup: parts of different generations are never of one."""
    return f"{part.step:012d}-{part.epoch:09d}"


def place_of(name: str) -> tuple[int, int]:
    """The step and the generation in a name."""
    step, _, epoch = name.partition("-")
    return int(step), int(epoch)


def no_part(kept: StoredBackup, rank: int) -> CheckpointError:
    """The error for a rank without a part."""
    return CheckpointError(
        f"the backup of step {kept.step} has a part for each of {kept.ranks} ranks, and none for"
        f" rank {rank}: train with as many ranks, or save on rank 0 alone"
    )


def staying(whole: Sequence[StoredBackup], keep: int) -> set[str]:
    """Names to keep: the newest, then the script's own, then others, ``keep`` in all.

    Of none that is kept may the loss be noticed only when it is needed, so a damaged newest one has
    another behind it; ``keep`` 0: all of the script's own.
    """
    ordered = [*whole[:1], *sorted(whole[1:], key=lambda kept: kept.automatic)]
    own = sum(not kept.automatic for kept in whole[1:]) + 1
    least = keep or max(own, KEEP)
    return {k.name for k in ordered[:least]}


def files_of(path: Path) -> Iterator[tuple[Path, str]]:
    """The files of a backup, with their names below its folder."""
    if not path.is_dir():
        yield path, path.name
        return
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file, f"{path.name}/{file.relative_to(path).as_posix()}"


def copy(reader: BinaryIO, target: Path) -> str:
    """Write a stream to a new file, synced; returns its SHA-256. Raises OSError."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as writer:
        while piece := reader.read(PIECE):
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def emptied(folder: Path) -> Path:
    """A folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def fetch_part(read: Callable[[str], Any], folder: Path, place: str) -> Path:
    """Write a part to a new folder, checked; returns its file or folder.

    ``read`` opens one of its files, and raises DamagedError where that is gone. ``place`` is what
    errors call it. Raises DamagedError, OSError.
    """
    with contextlib.closing(read(RECORD)) as reader:
        try:
            record = Record.from_json(reader.read())
        except ValueError as error:
            raise DamagedError(f"{place}{RECORD}: {error}") from None
    emptied(folder)
    for name, checksum in record.sha256.items():
        with contextlib.closing(read(name)) as reader:
            if copy(reader, folder / name) != checksum:
                raise DamagedError(f"{place}{name} is damaged: its checksum is another")
    return folder / record.name
