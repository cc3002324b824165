"""The manifest: a small JSON file that makes a checkpoint complete; and what is recorded."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from deepvm.checkpoint.format.checksums import UpTo, crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES, MOST_BYTES, Layout
from deepvm.core.json_types import JsonObject
from deepvm.errors import CheckpointError, DamagedError, RequestError
from deepvm.records import asdict, dataclass

MANIFEST_VERSION = "deepvm.checkpoint/1"
SUFFIX = ".json"  # Suffix of the record's name, after that of its file
# The problem of a file alone, as an interrupted removal leaves it; a killed writer leaves none
UNRECORDED = "it has no manifest"
_MOST_CHUNK_BYTES = 2**30


@dataclass(frozen=True)
class CommitRecord:
    """A complete checkpoint, and how many ranks wrote it."""

    job: str
    version: int
    world: int
    size: int  # bytes of the file
    crcs: tuple[int, ...]  # CRC-32 of each ``chunk_bytes``
    chunk_bytes: int = CHUNK_BYTES
    layout: str = ""  # its digest; empty: unknown
    created: str = ""  # UTC, ISO 8601
    best: bool = False  # the best so far when it was saved; the newest of those is kept
    epoch: int = 0  # the job's newest generation that the memory node knew; 0: none

    @classmethod
    def of(
        cls, job: str, version: int, layout: Layout, crcs: Sequence[int], *, best: bool = False
    ) -> "CommitRecord":
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        facts = (job, version, layout.world, layout.size, tuple(crcs), CHUNK_BYTES)
        return cls(*facts, layout.digest, now, best)

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.job, self.layout, self.created)):
            raise RequestError("manifest", "something else", "strings for job, layout and created")
        numbers = (self.version, self.world, self.size, self.chunk_bytes, self.epoch, *self.crcs)
        if not all(type(n) is int for n in numbers) or type(self.best) is not bool:
            raise RequestError("manifest", "something else", "whole numbers, and true or false")
        if not 0 <= self.version < 2**63 or self.world < 1:
            raise RequestError("version", self.version, "a version from 0 and a world from 1")
        if not 0 < self.size <= MOST_BYTES or not 1 <= self.chunk_bytes <= _MOST_CHUNK_BYTES:
            raise RequestError(
                "size", self.size, f"1 to {MOST_BYTES} bytes in chunks of 1 to {_MOST_CHUNK_BYTES}"
            )
        if len(self.crcs) != self._checksums:
            raise RequestError("crcs", len(self.crcs), f"{self._checksums}, one for each chunk")

    @property
    def _checksums(self) -> int:
        return -(-self.size // self.chunk_bytes)

    def to_json(self) -> bytes:
        facts = asdict(self)  # ``check``, at the end, is the CRC-32 of everything else
        if not self.epoch:
            del facts["epoch"]  # as in records that were made before there was one
        document = {"schema_version": MANIFEST_VERSION, **facts}
        return json.dumps({**document, "check": _check(document)}).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> "CommitRecord":
        try:
            facts = json.loads(data)
            check = facts.pop("check", None)
            version = facts.pop("schema_version", None)
            if version != MANIFEST_VERSION:
                raise RequestError("manifest", version, f"a manifest of {MANIFEST_VERSION}")
            manifest = cls(**{**facts, "crcs": tuple(facts["crcs"])})
            # Also damage in white space, which is harmless, should be noticed.
            if check != _check({"schema_version": version, **facts}) or manifest.to_json() != data:
                raise ValueError("its checksum is another")
            return manifest
        except RequestError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RequestError(
                "manifest", f"{len(data)} bytes", f"an undamaged manifest ({error})"
            ) from None


@dataclass(frozen=True)
class JoinedRecord(CommitRecord):
    """A checkpoint in ``parts``, with their checksums; those of the whole are known once joined."""

    parts: tuple[CommitRecord, ...] = ()

    @property
    def _checksums(self) -> int:
        return 0


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be restored, and the bytes that are left."""

    version: int
    problem: str
    size: int = 0


def verified(
    pieces: Iterable[memoryview], manifest: CommitRecord, name: str
) -> Iterator[memoryview]:
    """Pass a checkpoint's bytes on. Raises DamagedError, for ``name``, at a wrong chunk."""
    at = crc = 0
    for piece in pieces:
        rest = piece
        while len(rest):
            number = at // manifest.chunk_bytes
            start = number * manifest.chunk_bytes
            end = min(start + manifest.chunk_bytes, manifest.size)
            part = rest[: end - at]
            rest = rest[len(part) :]
            at += len(part)
            crc = crc32(part, crc)
            if at == end:
                if crc != manifest.crcs[number]:
                    raise DamagedError(f"{name}: bytes {start} to {end - 1} are damaged")
                crc = 0
        yield piece


def _check(document: JsonObject) -> int:
    return crc32(json.dumps(dict(document), sort_keys=True).encode())


def check_contents(tree: Any) -> None:
    """Raise CheckpointError for a loaded file that is no state of a Checkpointer."""
    keys = tree.keys() if isinstance(tree, Mapping) else set()
    if {"ranks", "metadata"} <= keys:
        raise CheckpointError(
            "it was saved by DeepVMWriter: load it with DeepVMReader; a Checkpointer at the same"
            " place needs another name, in job= or DEEPVM_JOB"
        )
    if not {"version", "model"} <= keys:
        raise CheckpointError("it is no state of a Checkpointer: it lacks a version or a model")


class Level(str, Enum):
    """What an acknowledged version survives, weakest first; each level includes those before it.

    LOCAL: the end of this process (a folder in ``/dev/shm``). REMOTE: the loss of this machine,
    while the memory node lives. DURABLE: that of both; a folder is as durable as its disk.
    """

    LOCAL = "local"
    REMOTE = "remote"
    DURABLE = "durable"


Acknowledge = Callable[[Level], None]  # Called once for each level, the weakest first
# The slowest bandwidth, in bytes/s, that timeouts allow for; they grow with the size
LEAST_BYTES_S = 50e6


@dataclass(frozen=True)
class Shard:
    """One rank's part of a checkpoint; ready bytes do not change until the tier returns."""

    job: str
    version: int  # iterations that it contains
    rank: int
    layout: Layout  # of the whole checkpoint
    image: memoryview  # the whole file's address space, only the own segments filled
    # Waits, before they are read, until the own bytes below a position are final. Raises
    # CheckpointError: they will never be
    ready: UpTo = lambda end: None
    home: Path | None = None  # the hidden file that ``image`` maps (strategy D)
    best: bool = False  # the training calls it the best so far
    # Grows with every save of a run, the same on all ranks: parts of two attempts are no checkpoint
    attempt: int = 0
    # Called, with the reason, by a tier that will acknowledge nothing more after ``put``; not after
    # all levels were acknowledged, or an error raised
    lost: Callable[[CheckpointError], None] = lambda reason: None

    @property
    def moving_s(self) -> float:
        # Seconds to allow for copying, sending and writing the whole checkpoint
        return self.layout.size / LEAST_BYTES_S

    def check(self) -> None:
        if len(self.image) != self.layout.size:
            raise RequestError(
                "image", f"{len(self.image)} bytes", f"the {self.layout.size} bytes of its layout"
            )

    def manifest(self, crcs: Sequence[int]) -> CommitRecord:
        return CommitRecord.of(self.job, self.version, self.layout, crcs, best=self.best)


@dataclass(frozen=True)
class NewVersion:
    """A checkpoint to be written."""

    image: memoryview
    job: str
    version: int
    final: Iterable[int]  # how many bytes of ``image`` are final from the start, in the end all
    manifest: Callable[[], CommitRecord]  # called when the last byte is written
