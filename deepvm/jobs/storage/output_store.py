"""The outputs of a job in its storage: each machine's files under names of its own.

``MACHINE.json`` lists a machine's files with their SHA-256 and is replaced last, so it is whole or
the one before; ``MACHINE/SHA256`` holds the bytes. No machine writes what another one has written:
one that was thought lost cannot damage what its successor saves.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.object_store import Read
from deepvm.checkpoint.tiers.s3 import Bucket
from deepvm.errors import CheckpointError, DamagedError
from deepvm.io.atomic_write import hidden_path, sync, sync_folder, write_bytes
from deepvm.io.safe_read import os_reason
from deepvm.records import asdict, dataclass, field, replace

SCHEMES = ("file", "s3")
MAX_FILES = 20_000
_MAX_MANIFEST_BYTES = 50_000_000
_MAX_TIME_S = 2e11  # All that dates can be
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE = 4 << 20
_SMALL = 8 << 20
_SUFFIX = ".json"
# Where files of one name go whose plain name another machine's has
OTHERS = "machines"


class FolderObjects:
    """Objects as files of a folder, with what outputs need of a ``Bucket``."""

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
        sizes = {}
        for path in (self._folder / prefix).glob("*"):
            with suppress(FileNotFoundError):  # it was replaced meanwhile
                if path.is_file():
                    sizes[f"{prefix}{path.name}"] = path.stat().st_size
        return sizes

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


Objects: TypeAlias = Bucket | FolderObjects


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
            machine = str(facts["machine"])
            for file in files.values():
                counts = (file.bytes, file.generation, file.rank)
                if not all(type(n) is int and n >= 0 for n in counts):
                    raise ValueError("a file has no size, generation or rank")
                if not (_SHA256.fullmatch(file.sha256) and 0 <= file.kept_s <= _MAX_TIME_S):
                    raise ValueError("a file has no checksum or time")
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"no list of outputs: {error}") from None
        for name in (machine, *files):
            if reason := unfit(name):
                raise ValueError(f"the name {name[:100]!r} is refused: {reason}")
        if "/" in machine or len(files) > MAX_FILES:
            raise ValueError(f"no list of the outputs of one machine, of at most {MAX_FILES} files")
        return cls(machine, files)


def unfit(name: str) -> str:
    """Why a name is none of a file below a folder, empty if it is one."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
        return "it would lead out of the folder"
    try:
        name.encode()
    except UnicodeError:
        return "it is no text in UTF-8"
    return ""


class OutputStore:
    """The outputs of all machines of a job; methods raise CheckpointError and DataError."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.url = objects.url

    def machines(self) -> list[str]:
        key = re.compile(rf"{re.escape(self._objects.prefix)}([^/]+){_SUFFIX}")
        with self._objects.errors("list its outputs"):
            matches = map(key.fullmatch, self._objects.sizes(self._objects.prefix))
            names = [match[1] for match in matches if match]
        return sorted(names, key=lambda name: (len(name), name))

    def read(self, machine: str) -> MachineOutputs:
        """Those of a machine, none if it has kept none. Raises ValueError: they are damaged."""
        key = f"{self._objects.prefix}{machine}{_SUFFIX}"
        with self._objects.errors(f"read {key}"):
            data = self._objects.content(key)
        if data is None:
            return MachineOutputs(machine)
        if len(data) > _MAX_MANIFEST_BYTES:
            raise ValueError("the list of outputs is too large")
        outputs = MachineOutputs.from_json(data)
        if outputs.machine != machine:
            raise ValueError(f"the list of outputs names another machine, {outputs.machine!r}")
        return outputs

    def write(self, outputs: MachineOutputs) -> None:
        """Replace the list of a machine; bytes that it does not name any more are removed."""
        key = f"{self._objects.prefix}{outputs.machine}{_SUFFIX}"
        with self._objects.errors(f"write {key}"):
            self._objects.write(key, outputs.to_json())
        named = {self._key(outputs.machine, f.sha256) for f in outputs.files.values()}
        with self._objects.errors("remove what was replaced"):
            stored = self._objects.sizes(self._key(outputs.machine, ""))
            self._objects.remove(*(stored.keys() - named))

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
class NamedOutput:
    """A file to bring, and under which name; ``source``: its name on the machine."""

    name: str
    machine: str
    source: str
    file: OutputFile


def named_outputs(
    machines: Sequence[MachineOutputs], *, all_files: bool = False
) -> list[NamedOutput]:
    """What is brought of all machines' outputs.

    Of files with one name the newest generation's has it, of several machines in it the first
    one's; other contents are below ``machines/MACHINE``, those of older generations only if all
    are wanted: the later ones have replaced them.
    """
    rows = [
        NamedOutput(name, each.machine, name, file)
        for each in machines
        for name, file in each.files.items()
    ]
    rows.sort(key=lambda row: row.file.precedence)
    outputs = {row.name: row for row in rows}
    for row in rows:
        first = outputs[row.source].file
        is_wanted = all_files or row.file.generation == first.generation
        if row.file.sha256 != first.sha256 and is_wanted:
            name = f"{OTHERS}/{row.machine}/{row.source}"
            while name in outputs:  # a file of the script's
                name = f"{OTHERS}/{name}"
            outputs[name] = replace(row, name=name)
    return sorted(outputs.values(), key=lambda row: row.name)
