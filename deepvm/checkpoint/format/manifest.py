"""The commit record: a small JSON file next to each version.

A version without one is not complete, even with all its bytes.

``torch.load`` and safetensors accept flipped bits silently; these checksums are verified before
anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES, MOST_BYTES, Layout
from deepvm.errors import DamagedError, RequestError

MANIFEST_VERSION = "deepvm.checkpoint/1"
SUFFIX = ".json"
"""Suffix of the record's name, after that of its file."""
UNRECORDED = "it has no commit record"
"""The problem of a file alone, as an interrupted removal leaves it; a killed writer leaves none."""
_MOST_CHUNK_BYTES = 2**30


@dataclass(frozen=True)
class CommitRecord:
    """A complete version.

    Attributes:
        job: whose it is. version: iterations that it contains. world: ranks that wrote it.
        size: bytes of the file. chunk_bytes: bytes that share a checksum. crcs: CRC-32 of each
            chunk, in order.
        layout: digest of its layout, empty when unknown. created: UTC, ISO 8601.
        best: marked as the best so far when it was saved; the newest of those is kept.
        epoch: the newest generation of the job that the memory node knew when it was complete; 0
            without generations.
    """

    job: str
    version: int
    world: int
    size: int
    crcs: tuple[int, ...]
    chunk_bytes: int = CHUNK_BYTES
    layout: str = ""
    created: str = ""
    best: bool = False
    epoch: int = 0

    @classmethod
    def of(
        cls, job: str, version: int, layout: Layout, crcs: Sequence[int], *, best: bool = False
    ) -> CommitRecord:
        """The record of a version that is complete now, from the checksums of its chunks."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(
            job,
            version,
            layout.world,
            layout.size,
            tuple(crcs),
            CHUNK_BYTES,
            layout.digest,
            now,
            best,
        )

    def __post_init__(self) -> None:
        """Refuse inconsistent values. Raises RequestError."""
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
        """The record's bytes; ``check`` at its end is the CRC-32 of everything else."""
        facts = asdict(self)
        if not self.epoch:
            del facts["epoch"]  # as in records that were made before there was one
        document = {"schema_version": MANIFEST_VERSION, **facts}
        return json.dumps({**document, "check": _check(document)}).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> CommitRecord:
        """Read a record. Raises RequestError: it is damaged, or none."""
        try:
            facts = json.loads(data)
            check = facts.pop("check", None)
            version = facts.pop("schema_version", None)
            if version != MANIFEST_VERSION:
                raise RequestError("manifest", version, f"a commit record of {MANIFEST_VERSION}")
            manifest = cls(**{**facts, "crcs": tuple(facts["crcs"])})
            # Also damage in white space, which is harmless, should be noticed.
            if check != _check({"schema_version": version, **facts}) or manifest.to_json() != data:
                raise ValueError("its checksum is another")
            return manifest
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                "manifest", f"{len(data)} bytes", f"an undamaged commit record ({error})"
            ) from None


@dataclass(frozen=True)
class JoinedRecord(CommitRecord):
    """A version in parts, in order, with their own checksums.

    Those of the whole are known once it is joined.
    """

    parts: tuple[CommitRecord, ...] = ()

    @property
    def _checksums(self) -> int:
        return 0


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be restored: its number, the problem, the bytes that are left."""

    version: int
    problem: str
    size: int = 0


def verified(
    pieces: Iterable[memoryview], manifest: CommitRecord, name: str
) -> Iterator[memoryview]:
    """Pass a version's bytes on, in pieces of any size.

    Raises DamagedError, for ``name``, at a wrong chunk.
    """
    size = manifest.chunk_bytes
    at = 0
    crc = 0
    for piece in pieces:
        rest = piece
        while len(rest):
            number = at // size
            end = min((number + 1) * size, manifest.size)
            part = rest[: end - at]
            rest = rest[end - at :]
            at = at + len(part)
            crc = crc32(part, crc)
            if at == end:
                if crc != manifest.crcs[number]:
                    raise DamagedError(f"{name}: bytes {number * size} to {end - 1} are damaged")
                crc = 0
        yield piece


def _check(document: Mapping[str, Any]) -> int:
    return crc32(json.dumps(dict(document), sort_keys=True).encode())
