"""Folders of versions for tests of commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deepvm.checkpoint.files.version_dir import VersionFolder
from support.checkpoint.images import manifest_of, noise, write_to_folder


def put(
    folder: Path, version: int, size: int = 1000, job: str = "job", *, best: bool = False
) -> Path:
    data = noise(size, version)
    return write_to_folder(
        VersionFolder(folder), memoryview(data), replace(manifest_of(data, job, version), best=best)
    )


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def left(folder: Path) -> list[int]:
    return [f.version for f in VersionFolder(folder).found()]
