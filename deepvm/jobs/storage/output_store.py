"""The outputs of a job in its storage: each machine's files under names of its own.

``MACHINE.json`` lists a machine's files with their SHA-256 and is replaced last, so it is whole or
the one before; ``MACHINE/SHA256`` holds the bytes. No machine writes what another one has written:
one that was thought lost cannot damage what its successor saves.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.object_store import Read
from deepvm.checkpoint.tiers.s3 import Bucket
from deepvm.errors import CheckpointError, DamagedError
from deepvm.io.atomic_write import hidden_path, sync, sync_folder, write_bytes
from deepvm.io.safe_read import os_reason

SCHEMES = ("file", "s3")
MAX_FILES = 20_000
_MAX_MANIFEST_BYTES = 50_000_000
_MAX_NAME_BYTES = 1000
_PIECE = 4 << 20
_SMALL = 8 << 20
_SUFFIX = ".json"
# Where files of one name go whose plain name another machine's has
OTHERS = "machines"


class Objects(Protocol):
    """What outputs need of a store; keys start with ``prefix``."""

    url: str
    prefix: str

    def errors(self, action: str) -> AbstractContextManager[None]:
        """Raise its errors as CheckpointError."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes by key, of keys that start so."""

    def content(self, key: str) -> bytes | None:
        """A small object, None if there is none."""

    def write(self, key: str, data: bytes) -> None:
        """Replace a small object, whole or not at all."""

    def upload(self, key: str, size: int, read: Read, final: Iterable[int]) -> None:
        """Make a large one, whole or not at all."""

    def pieces(self, key: str, size: int) -> Iterator[bytes]:
        """Its bytes."""

    def remove(self, *keys: str) -> None:
        """Remove objects, where they are."""


class FolderObjects:
    """Objects as files of a folder."""

    prefix = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = folder.as_uri()

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.url}: cannot {action}: {os_reason(error)}") from None

    def sizes(self, prefix: str) -> dict[str, int]:
        if not self._folder.parents[2].is_dir():  # where a tier is: a disk that is not mounted here
            raise FileNotFoundError(2, "there is no such folder on this computer")
        found = {}
        for path in (self._folder / prefix).glob("*"):
            with suppress(FileNotFoundError):  # it was replaced meanwhile
                if path.is_file():
                    found[f"{prefix}{path.name}"] = path.stat().st_size
        return found

    def content(self, key: str) -> bytes | None:
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, key: str, data: bytes) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)

    def upload(self, key: str, size: int, read: Read, final: Iterable[int]) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_path(path) as hidden:
            with hidden.open("wb") as file:
                for start in range(0, size, _PIECE):
                    file.write(read(start, min(start + _PIECE, size)))
            sync(hidden)
            hidden.replace(path)
        sync_folder(path.parent)

    def pieces(self, key: str, size: int) -> Iterator[bytes]:
        with (self._folder / key).open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def remove(self, *keys: str) -> None:
        for key in keys:
            (self._folder / key).unlink(missing_ok=True)


def open_objects(url: str, job: str) -> Objects:
    """The outputs of a job below the URL of one of its tiers, of :data:`SCHEMES`."""
    place = urlsplit(url)
    if place.scheme.lower() == "s3":
        return Bucket(place.netloc, f"{place.path.strip('/')}/{job}/outputs")
    return FolderObjects(Path(unquote(place.path)) / job / "outputs")


@dataclass(frozen=True)
class OutputFile:
    """A file as it was kept. ``generation``, ``rank``: of the machine when the file was written."""

    bytes: int
    sha256: str
    generation: int
    rank: int
    kept_s: float  # Unix time

    @property
    def precedence(self) -> tuple[int, int, float]:
        """Of files of one name the largest counts: the newest generation, its first machine."""
        return self.generation, -self.rank, self.kept_s


@dataclass(frozen=True)
class MachineOutputs:
    """The outputs of one machine, by their names below the folder of the code."""

    machine: str
    files: Mapping[str, OutputFile] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "MachineOutputs":
        """Read one; no name in it leads out of a folder. Raises ValueError."""
        try:
            facts = json.loads(data)
            files = {name: OutputFile(**each) for name, each in facts["files"].items()}
            found = cls(facts["machine"], files)
            for name, file in files.items():
                int(file.sha256, 16)
                counts = (file.bytes, file.generation, file.rank)
                sound = all(type(n) is int and n >= 0 for n in counts) and len(file.sha256) == 64
                if not sound or not isinstance(file.kept_s, (int, float)):
                    raise ValueError(f"{name[:100]!r} has no size, checksum or time")
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"no list of outputs: {error}") from None
        for name in (found.machine, *files):
            if why := unfit(name):
                raise ValueError(f"the name {name[:100]!r} is refused: {why}")
        if len(PurePosixPath(found.machine).parts) != 1 or len(files) > MAX_FILES:
            raise ValueError(f"no list of the outputs of one machine, of at most {MAX_FILES} files")
        return found


def unfit(name: object) -> str:
    """Why a name is none of a file below a folder, empty if it is one."""
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        return "no name of a file"
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.as_posix() != name or name == ".":
        return "it would lead out of the folder"
    try:
        if len(os.fsencode(name)) > _MAX_NAME_BYTES or max(map(_size, path.parts)) > 255:
            return "it is too long"
        name.encode("utf-8")
    except UnicodeError:
        return "it is no text in UTF-8"
    return ""


def _size(part: str) -> int:
    return len(os.fsencode(part))


class OutputStore:
    """The outputs of all machines of a job; methods raise CheckpointError and DataError."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.url = objects.url

    def machines(self) -> list[str]:
        with self._objects.errors("list its outputs"):
            names = [key[len(self._objects.prefix) :] for key in self._sizes("")]
        ends = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted((name for name in ends if "/" not in name), key=lambda n: (len(n), n))

    def _sizes(self, below: str) -> dict[str, int]:
        return self._objects.sizes(f"{self._objects.prefix}{below}")

    def read(self, machine: str) -> MachineOutputs:
        """Those of a machine, none if it has kept none. Raises ValueError: they are damaged."""
        key = f"{self._objects.prefix}{machine}{_SUFFIX}"
        with self._objects.errors(f"read {key}"):
            data = self._objects.content(key)
        if data is None:
            return MachineOutputs(machine)
        if len(data) > _MAX_MANIFEST_BYTES:
            raise ValueError("the list of outputs is too large")
        found = MachineOutputs.from_json(data)
        if found.machine != machine:
            raise ValueError(f"the list of outputs names another machine, {found.machine!r}")
        return found

    def write(self, outputs: MachineOutputs) -> None:
        """Replace the list of a machine; bytes that it does not name any more are removed."""
        key = f"{self._objects.prefix}{outputs.machine}{_SUFFIX}"
        with self._objects.errors(f"write {key}"):
            self._objects.write(key, outputs.to_json())
        named = {self._key(outputs.machine, f.sha256) for f in outputs.files.values()}
        with self._objects.errors("remove what was replaced"):
            self._objects.remove(*(self._sizes(f"{outputs.machine}/").keys() - named))

    def _key(self, machine: str, sha256: str) -> str:
        return f"{self._objects.prefix}{machine}/{sha256}"

    def send(self, machine: str, sha256: str, size: int, read: Read) -> None:
        """Upload a file's bytes."""
        key = self._key(machine, sha256)
        with self._objects.errors(f"write {key}"):
            if size <= _SMALL:
                self._objects.write(key, read(0, size))
            else:
                self._objects.upload(key, size, read, [size])

    def pieces(self, machine: str, file: OutputFile) -> Iterator[bytes]:
        key = self._key(machine, file.sha256)
        with self._objects.errors(f"read {key}"):
            if file.bytes > _SMALL:
                yield from self._objects.pieces(key, file.bytes)
                return
            data = self._objects.content(key)
        if data is None:
            raise DamagedError(f"{self.url}: {key} is gone")
        yield data


@dataclass(frozen=True)
class FoundOutput:
    """A file to bring, and under which name; ``source``: its name on the machine."""

    name: str
    machine: str
    source: str
    file: OutputFile


def chosen(found: Sequence[MachineOutputs], *, all_files: bool = False) -> list[FoundOutput]:
    """What is brought of all machines' outputs.

    Of files with one name the newest generation's has it, of several machines in it the first
    one's; other contents are below ``machines/MACHINE``, those of older generations only if all
    are wanted: the later ones have replaced them.
    """
    rows = [(name, one.machine, file) for one in found for name, file in one.files.items()]
    best: dict[str, FoundOutput] = {}
    for name, machine, file in rows:
        known = best.get(name)
        if known is None or known.file.precedence < file.precedence:
            best[name] = FoundOutput(name, machine, name, file)
    others: dict[str, FoundOutput] = {}
    for name, machine, file in rows:
        first = best[name].file
        if file.sha256 == first.sha256:
            continue
        if all_files or file.generation == first.generation:
            place = f"{OTHERS}/{machine}/{name}"
            while place in best:  # a file of the script's
                place = f"{OTHERS}/{place}"
            others[place] = FoundOutput(place, machine, name, file)
    return sorted([*best.values(), *others.values()], key=lambda each: each.name)
