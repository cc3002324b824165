"""Documents of ``ckpt ls`` and ``memory-node status``, and the commit record."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

Version = Annotated[int, "iterations that it contains; without Checkpointer.steps optimizer steps"]


class StoredVersion(TypedDict):
    """A version of a job's state, complete or not."""

    job: Annotated[str, "whose it is"]
    version: Version
    path: Annotated[str, "its file or URL"]
    bytes: Annotated[int, "size, bytes"]
    complete: Annotated[bool, "whether it can be restored"]
    problem: Annotated[str | None, "why not, null if it can"]
    created_at: Annotated[str | None, "ISO 8601, UTC, null when unknown"]


StoredVersions = Annotated[list[StoredVersion], "The versions at a place, the newest first."]


class Verified(TypedDict):
    """Versions compared with their commit records, every byte."""

    schema_version: Literal["deepvm.ckpt-verify/1"]
    place: Annotated[str, "the file, folder or URL"]
    good: Annotated[int, "versions, or parts of them, that are as their records say"]
    damaged: Annotated[list[str], "what is damaged or missing, and why"]


class NodeMemory(TypedDict):
    """The memory of a node."""

    limit_bytes: Annotated[int, "for all versions, bytes"]
    allocated_bytes: Annotated[int, "in slots, bytes"]
    free_slots: Annotated[int, "slots without a version"]
    used_slots: Annotated[int, "slots with one"]


class HeldVersion(TypedDict):
    """A version that a node holds."""

    job: Annotated[str, "whose it is"]
    version: Version
    state: Annotated[str, "how far it is"]
    bytes: Annotated[int, "size, bytes"]
    received_bytes: Annotated[int, "of it arrived, bytes"]
    durable: Annotated[bool, "whether it is on disk or in the bucket, too"]
    created_at: Annotated[str | None, "when it was complete, ISO 8601, UTC; null before"]


class NodeCounts(TypedDict):
    """What happened since the node began."""

    complete: Annotated[int, "versions that arrived"]
    dropped: Annotated[int, "versions that were given up"]
    busy: Annotated[int, "versions without room"]
    duplicates: Annotated[int, "pieces that came twice"]
    damaged_pieces: Annotated[int, "pieces whose checksum was another"]
    received_bytes: Annotated[int, "bytes that arrived"]


class _MoreOfFlush(TypedDict, total=False):
    flushed: Annotated[
        int, "versions written; as all below where the node writes them somewhere only"
    ]
    failed: Annotated[int, "failed attempts"]
    last_error: Annotated[str, "the last failure in words, empty without one"]
    last_s: Annotated[float, "how long the last took, seconds"]
    total_s: Annotated[float, "how long all took, seconds"]
    longest_s: Annotated[float, "how long the slowest took, seconds"]


class NodeFlush(_MoreOfFlush):
    """Versions on their way from memory to the disk or bucket."""

    waiting: Annotated[int, "versions that wait"]


class MemoryNode(TypedDict):
    """What a memory node holds, and its counters."""

    schema_version: Literal["deepvm.memory-node/1"]
    uptime_s: Annotated[float, "since it began, seconds"]
    stopping: Annotated[bool, "whether it is about to end"]
    memory: NodeMemory
    versions: list[HeldVersion]
    counts: NodeCounts
    flush: NodeFlush
    persist: Annotated[str, "URL that versions are written to, empty for none"]
    volatile: Annotated[bool, "whether all of it is lost with the machine"]
    connections: Annotated[int, "open connections"]
    connections_limit: Annotated[int, "the most of them"]
    unproven: Annotated[int, "connections that have not shown the token yet"]
    served: Annotated[int, "connections since it began"]
    refused: Annotated[dict[str, int], "connections that were refused, by reason"]


class CommitRecord(TypedDict):
    """The commit record beside the file of a version, ``*.json``."""

    schema_version: Literal["deepvm.checkpoint/1"]
    job: Annotated[str, "whose it is"]
    version: Version
    world: Annotated[int, "ranks that wrote it"]
    size: Annotated[int, "size of the file, bytes"]
    crcs: Annotated[list[int], "CRC-32 of each chunk, in order"]
    chunk_bytes: Annotated[int, "size of a chunk, bytes"]
    layout: Annotated[str, "digest of the layout, empty when unknown"]
    created: Annotated[str, "ISO 8601, UTC"]
    best: Annotated[bool, "whether it was the best so far"]
    check: Annotated[int, "CRC-32 of everything else"]
