"""Places for backups, and the one in a folder; :mod:`deepvm.jobs.agent.backups` opens one.

A backup is what one step's ranks saved, each a file or folder with the checksums of all its files.
Each rank but 0 says here that it starts before it uploads, or that it saves nothing. When all parts
that were started are whole the backup is sealed with their number, and is visible from then on.
Nothing of a generation becomes visible once a newer one has started.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from deepvm.checkpoint.files.version_dir import EpochFile
from deepvm.errors import CheckpointError, DamagedError
from deepvm.io.atomic_write import sync, write_bytes, write_json
from deepvm.io.failpoints import point
from deepvm.records import asdict, dataclass

KEEP = 2  # Backups that stay, of a job that says nothing else
PIECE = 4 << 20
RECORD = "record.json"  # The file of a part that names the others
_STATUS = re.compile(r"rank-(\d+)\.(begun|nothing|failed)")
_NAME = re.compile(r"\d{12}-\d{9,}")
_RANK = re.compile(r"rank-\d+")
_SEAL = "whole.json"
_NEVER = sys.maxsize  # Ranks: more than there can be parts


@dataclass(frozen=True)
class Part:
    """What one rank saved after one step."""

    step: int
    rank: int
    epoch: int
    # Not one of the script's own periodic saves; it goes when newer ones are whole (thesis, 5.1)
    automatic: bool = False


class PartStatus(str, Enum):
    """The state of a rank's part of a backup."""

    BEGUN = "begun"
    WHOLE = "whole"
    NOTHING = "nothing"
    FAILED = "failed"


@dataclass(frozen=True)
class StoredBackup:
    """A visible backup."""

    step: int
    name: str
    automatic: bool = False
    ranks: int = 1  # How many saved it


@dataclass(frozen=True)
class Record:
    """A part's files with their SHA-256."""

    name: str  # Of the part's file or folder
    sha256: Mapping[str, str]
    automatic: bool = False

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Record":
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


class BackupStore(ABC):
    """A place for the backups of one job. A newer generation's start is a CheckpointError.

    Entries of a backup, by their names ``STEP-EPOCH/…``: ``rank-N`` for each whole part, and
    ``whole-RANKS`` for the seal, with ``+`` at the end of the label of an automatic one.
    """

    url: str

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Refuse older generations from now on."""

    @abstractmethod
    def set_status(self, part: Part, status: PartStatus) -> bool:
        """Tell the other ranks; returns whether this has unsealed the backup, as a start does."""

    @abstractmethod
    def save(self, path: Path, part: Part) -> None:
        """Upload a file or folder, whole or not at all."""

    @abstractmethod
    def seal(self, part: Part, ranks: int) -> None:
        """Make a backup visible, whose parts of so many ranks are whole."""

    @abstractmethod
    def set_aside(self, kept: StoredBackup, epoch: int) -> None:
        """Hide a backup."""

    @abstractmethod
    def remove(self, name: str, epoch: int) -> None:
        """Remove one, sealed or not; it is not visible any more before anything of it goes."""

    @abstractmethod
    def _entries(self, name: str = "") -> Mapping[str, str]:
        """What counts of one backup, or of all, with its labels."""

    @abstractmethod
    def _names(self, name: str) -> Iterable[str]:
        """What is in the place of a backup, with the empty ``rank-N.STATUS`` for statuses."""

    @abstractmethod
    def _open(self, entry: str, label: str, file: str) -> Any:
        """A file of a part. Raises DamagedError: it is gone."""

    def statuses(self, part: Part) -> Mapping[int, PartStatus]:
        name = name_of(part)
        matches = [match for match in map(_STATUS.fullmatch, sorted(self._names(name))) if match]
        found = {int(match[1]): PartStatus(match[2]) for match in matches}
        # Parts last: one that is whole counts, also if its rank has reported a failure before.
        return found | dict.fromkeys(_parts(self._entries(name), name), PartStatus.WHOLE)

    def whole(self) -> list[StoredBackup]:
        """The visible backups, newest first; those that lack a part are not."""
        entries = self._entries()
        found = []
        for entry, label in entries.items():
            name, _, ranks = entry.partition("/whole-")
            if ranks and len(_parts(entries, name)) >= int(ranks):
                found.append(StoredBackup(place_of(name)[0], name, label.endswith("+"), int(ranks)))
        return sorted(found, key=lambda kept: place_of(kept.name), reverse=True)

    def sweep(self, step: int, epoch: int) -> None:
        entries = self._entries()
        sealed = {entry.partition("/")[0] for entry in entries if "/whole-" in entry}
        for name in {entry.partition("/")[0] for entry in entries} - sealed:
            before, by = place_of(name)
            if before < step and by <= epoch:
                self.remove(name, epoch)

    def fetch(self, kept: StoredBackup, rank: int, folder: Path) -> Path:
        """A rank's part, in a new folder and checked. Raises DamagedError: for good."""
        entry = f"{kept.name}/rank-{rank if kept.ranks > 1 else 0}"
        label = self._entries(kept.name).get(entry)
        if label is None:
            raise CheckpointError(
                f"the backup of step {kept.step} has a part for each of {kept.ranks} ranks, and"
                f" none for rank {rank}: train with as many ranks, or save on rank 0 alone"
            )
        with contextlib.closing(self._open(entry, label, RECORD)) as reader:
            try:
                record = Record.from_json(reader.read())
            except ValueError as error:
                raise DamagedError(f"{self.url}/{entry}: {RECORD}: {error}") from None
        empty(folder)
        for name, checksum in record.sha256.items():
            with contextlib.closing(self._open(entry, label, name)) as reader:
                if copy(pieces_of(reader), folder / name) != checksum:
                    raise DamagedError(
                        f"{self.url}/{entry}: {name} is damaged: its checksum is another"
                    )
        return folder / record.name


def _parts(entries: Mapping[str, str], name: str) -> list[int]:
    return [int(entry.rpartition("-")[2]) for entry in entries if entry.startswith(f"{name}/rank-")]


def staying(whole: Sequence[StoredBackup], keep: int) -> set[str]:
    """Names to keep: the newest, the script's own, then others; ``keep`` 0: its own, or KEEP."""
    ordered = [*whole[:1], *sorted(whole[1:], key=lambda kept: kept.automatic)]
    own = sum(not kept.automatic for kept in whole[1:]) + 1
    return {k.name for k in ordered[: keep or max(own, KEEP)]}


def files_of(path: Path) -> Iterator[tuple[Path, str]]:
    """The files of a backup, with their names below its folder."""
    if not path.is_dir():
        yield path, path.name
        return
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file, f"{path.name}/{file.relative_to(path).as_posix()}"


def pieces_of(reader: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream, in pieces that memory can hold."""
    return iter(partial(reader.read, PIECE), b"")


def copy(pieces: Iterable[bytes], target: Path) -> str:
    """Write a new file, synced; returns its SHA-256. Raises OSError."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as writer:
        for piece in pieces:
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def empty(folder: Path) -> None:
    """Have a folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


class FolderBackups(BackupStore):
    """A folder per step and generation, with one per rank, ``whole.json`` as seal, and statuses."""

    def __init__(self, folder: Path, job: str) -> None:
        self._root = folder / job / "backups"
        self._epochs = EpochFile(self._root, "backups")
        self.url = self._root.as_uri()

    def begin(self, epoch: int) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._epochs.begin(epoch)

    def set_status(self, part: Part, status: PartStatus) -> bool:
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

    def save(self, path: Path, part: Part) -> None:
        self.begin(part.epoch)
        folder = self._root / name_of(part)
        # A name of its own: a process that was thought dead may still write the same part
        hidden = folder / f".rank-{part.rank}.{os.getpid()}-{threading.get_ident()}"
        empty(hidden)
        try:
            sums = {}
            for source, name in files_of(path):
                with source.open("rb") as reader:
                    sums[name] = copy(pieces_of(reader), hidden / name)
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
        facts = {"ranks": ranks, "automatic": part.automatic}
        with self._epochs.current(part.epoch):
            point("backup.before-seal")
            write_json(self._root / name_of(part) / _SEAL, facts)

    def _names(self, name: str) -> list[str]:
        return os.listdir(self._root / name)

    def _entries(self, name: str = "") -> Mapping[str, str]:
        found: dict[str, str] = {}
        names = [name]
        if not name:
            there = os.listdir(self._root) if self._root.is_dir() else []
            names = [each for each in there if _NAME.fullmatch(each)]
        for each in names:
            folder = self._root / each
            found[f"{each}/"] = ""  # it can be swept
            with contextlib.suppress(FileNotFoundError):  # another machine may be removing it
                for record in folder.glob(f"rank-*/{RECORD}"):
                    if _RANK.fullmatch(record.parent.name):
                        found[f"{each}/{record.parent.name}"] = ""
            try:
                facts = json.loads((folder / _SEAL).read_bytes())
                label = "+" if facts["automatic"] else ""
                found[f"{each}/whole-{int(facts['ranks'])}"] = label
            except FileNotFoundError:
                continue
            # Not whole, and not swept either: the disk may have failed for a moment
            except (OSError, ValueError, KeyError, TypeError):
                found[f"{each}/whole-{_NEVER}"] = ""
        return found

    def set_aside(self, kept: StoredBackup, epoch: int) -> None:
        with self._epochs.current(epoch):
            (self._root / kept.name / _SEAL).unlink(missing_ok=True)

    def remove(self, name: str, epoch: int) -> None:
        with self._epochs.current(epoch):
            (self._root / name / _SEAL).unlink(missing_ok=True)
            shutil.rmtree(self._root / name, ignore_errors=True)

    def _open(self, entry: str, label: str, file: str) -> BinaryIO:
        path = self._root / entry / file
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise DamagedError(f"{path}: {error.strerror}") from None
