"""Files of versions, made by hand: no torch needed."""

from __future__ import annotations

import io
import mmap
import os
import random
import zipfile
from pathlib import Path

from deepvm.checkpoint.files.version_dir import WRITERS, VersionFolder
from deepvm.checkpoint.format.checksums import crc32, finish
from deepvm.checkpoint.format.layout import CHUNK_BYTES, ChecksumField, Layout, Segment
from deepvm.checkpoint.format.manifest import CommitRecord, NewVersion, Shard
from deepvm.checkpoint.tiers.base import Store


def chunk_crcs(image: memoryview, chunk_bytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """CRC-32 of each chunk of a file; the last may be shorter."""
    return tuple(
        crc32(image[start : start + chunk_bytes]) for start in range(0, len(image), chunk_bytes)
    )


def names(folder: Path) -> list[str]:
    """What is in a folder, hidden files too, but for the lock of those who write there."""
    return sorted(name for name in os.listdir(folder) if name != WRITERS)


REPLACED = [
    f"replaced.{place}" for place in ("before-rename", "before-folder-sync", "after-folder-sync")
]
"""The last of the following: the upcoming record becomes the record."""

FOLDER_LABELS = [
    f"{what}.{place}"
    for what in ("data", "record")
    for place in (
        "before-write",
        "mid-write",
        "before-sync",
        "after-sync",
        "before-rename",
        "before-folder-sync",
        "after-folder-sync",
    )
]
FOLDER_LABELS += REPLACED
"""The points at which a writer of a folder can be killed, see :mod:`deepvm.io.failpoints`."""


def noise(size: int, seed: int = 0) -> bytearray:
    """Bytes that look like weights: not two pages alike."""
    return bytearray(random.Random(seed).randbytes(size))


def joint_layout(world: int, size: int) -> Layout:
    """Of several ranks: checksums before and behind their ranges, and bytes of the last rank within
    another's.
    """
    fields = (ChecksumField(100, 104, 5000), ChecksumField(size - 4, 104, 5000))
    from deepvm.checkpoint.training.ranks import shards  # needs torch

    return Layout(size, shards(size, world, [(Segment(2000, 50), world - 1)]), fields)


def joint_images(layout: Layout, seed: int) -> tuple[bytearray, list[bytearray]]:
    """The whole file, and what each rank has of it: zeros where others send."""
    whole = noise(layout.size, seed)
    parts = [bytearray(layout.size) for _ in layout.shards]
    for part, segments in zip(parts, layout.shards, strict=True):
        for offset, length in segments:
            part[offset : offset + length] = whole[offset : offset + length]
    finish(memoryview(whole), layout)
    return whole, parts


def aligned(data: bytes | bytearray) -> memoryview:
    """The same bytes from the start of a page on, as direct writes want them."""
    memory = mmap.mmap(-1, len(data))
    memory[:] = bytes(data)
    return memoryview(memory)


def manifest_of(
    data: bytes | bytearray, job: str = "job", version: int = 1, chunk_bytes: int = CHUNK_BYTES
) -> CommitRecord:
    return CommitRecord(
        job, version, 1, len(data), chunk_crcs(memoryview(data), chunk_bytes), chunk_bytes
    )


def plain_shard(data: bytearray, version: int = 1, job: str = "job") -> Shard:
    layout = Layout(len(data), ((Segment(0, len(data)),),))
    return Shard(job, version, 0, layout, memoryview(data))


def zip_shard(
    version: int = 1, records: tuple[int, ...] = (1000, 200_000), job: str = "job"
) -> Shard:
    """A zip file whose checksums are still missing, as a trainer has it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for number, size in enumerate(records):
            # A fixed date: two made one after the other are the same.
            archive.writestr(
                zipfile.ZipInfo(f"data/{number}"), bytes(noise(size, version * 100 + number))
            )
    data = bytearray(stream.getvalue())
    fields = []
    with zipfile.ZipFile(stream) as archive:
        entry = archive.start_dir
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename)
            fields += [
                ChecksumField(info.header_offset + 14, start, info.file_size),
                ChecksumField(entry + 16, start, info.file_size),
            ]
            entry += 46 + len(info.filename) + len(info.extra) + len(info.comment)
    for field in fields:
        data[field.position : field.position + 4] = bytes(4)
    layout = Layout(len(data), ((Segment(0, len(data)),),), tuple(fields))
    return Shard(job, version, 0, layout, memoryview(data))


def write_version(store: Store, data: bytes | bytearray, manifest: CommitRecord) -> None:
    """Write a version as a memory node does."""
    store.write(
        NewVersion(memoryview(data), manifest.job, manifest.version, [len(data)], lambda: manifest)
    )


def write_to_folder(
    folder: VersionFolder, image: bytes | memoryview, manifest: CommitRecord
) -> Path:
    """Write a version whose bytes are all there."""
    folder.write(
        NewVersion(
            memoryview(image), manifest.job, manifest.version, [len(image)], lambda: manifest
        )
    )
    return folder.file(manifest.job, manifest.version)
