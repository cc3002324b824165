"""Documents of ``ckpt ls`` and ``memory-node status``, and the commit record."""

from __future__ import annotations

from typing import Annotated

from deepvm.documents.document import Document

Version = Annotated[int, "iterations that it contains; without Checkpointer.steps optimizer steps"]


class StoredVersion(Document):
    """A version of a job's state, complete or not."""

    job: str
    """whose it is"""
    version: Version
    path: str
    """its file or URL"""
    bytes: int
    """size, bytes"""
    complete: bool
    """whether it can be restored"""
    problem: str | None
    """why not, null if it can"""
    created_at: str | None
    """ISO 8601, UTC, null when unknown"""


StoredVersions = Annotated[list[StoredVersion], "The versions at a place, the newest first."]


class Verified(Document, schema_version="deepvm.ckpt-verify/1"):
    """Versions compared with their commit records, every byte."""

    place: str
    """the file, folder or URL"""
    good: int
    """versions, or parts of them, that are as their records say"""
    damaged: list[str]
    """what is damaged or missing, and why"""


class NodeMemory(Document):
    """The memory of a node."""

    limit_bytes: int
    """for all versions, bytes"""
    allocated_bytes: int
    """in slots, bytes"""
    free_slots: int
    """slots without a version"""
    used_slots: int
    """slots with one"""


class HeldVersion(Document):
    """A version that a node holds."""

    job: str
    """whose it is"""
    version: Version
    state: str
    """how far it is"""
    bytes: int
    """size, bytes"""
    received_bytes: int
    """of it arrived, bytes"""
    durable: bool
    """whether it is on disk or in the bucket, too"""
    created_at: str | None
    """when it was complete, ISO 8601, UTC; null before"""


class NodeCounts(Document):
    """What happened since the node began."""

    complete: int
    """versions that arrived"""
    dropped: int
    """versions that were given up"""
    busy: int
    """versions without room"""
    duplicates: int
    """pieces that came twice"""
    damaged_pieces: int
    """pieces whose checksum was another"""
    received_bytes: int
    """bytes that arrived"""


class _MoreOfFlush(Document, total=False):
    flushed: int
    """versions written; as all below where the node writes them somewhere only"""
    failed: int
    """failed attempts"""
    last_error: str
    """the last failure in words, empty without one"""
    last_s: float
    """how long the last took, seconds"""
    total_s: float
    """how long all took, seconds"""
    longest_s: float
    """how long the slowest took, seconds"""


class NodeFlush(_MoreOfFlush):
    """Versions on their way from memory to the disk or bucket."""

    waiting: int
    """versions that wait"""


class MemoryNode(Document, schema_version="deepvm.memory-node/1"):
    """What a memory node holds, and its counters."""

    uptime_s: float
    """since it began, seconds"""
    stopping: bool
    """whether it is about to end"""
    memory: NodeMemory
    versions: list[HeldVersion]
    counts: NodeCounts
    flush: NodeFlush
    persist: str
    """URL that versions are written to, empty for none"""
    volatile: bool
    """whether all of it is lost with the machine"""
    connections: int
    """open connections"""
    connections_limit: int
    """the most of them"""
    unproven: int
    """connections that have not shown the token yet"""
    served: int
    """connections since it began"""
    refused: dict[str, int]
    """connections that were refused, by reason"""


class CommitRecord(Document, schema_version="deepvm.checkpoint/1"):
    """The commit record next to the file of a version, ``*.json``."""

    job: str
    """whose it is"""
    version: Version
    world: int
    """ranks that wrote it"""
    size: int
    """size of the file, bytes"""
    crcs: list[int]
    """CRC-32 of each chunk, in order"""
    chunk_bytes: int
    """size of a chunk, bytes"""
    layout: str
    """digest of the layout, empty when unknown"""
    created: str
    """ISO 8601, UTC"""
    best: bool
    """whether it was the best so far"""
    check: int
    """CRC-32 of everything else"""
