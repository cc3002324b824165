"""Where the files or objects of versions are, by name: for damage behind a tier's back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from support.checkpoint import object_store


class Disk(Protocol):
    """Where files or objects are, by name."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


@dataclass
class Folder:
    """A folder's files, but for locks."""

    path: Path

    def names(self) -> list[str]:
        return (
            sorted(p.name for p in self.path.iterdir() if p.suffix != ".lock")
            if self.path.is_dir()
            else []
        )

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()


@dataclass
class Objects:
    """A bucket's objects."""

    store: object_store.Store

    def names(self) -> list[str]:
        return self.store.keys()

    def read(self, name: str) -> bytes:
        return self.store.read(name)

    def write(self, name: str, data: bytes) -> None:
        self.store.client().put_object(Bucket=object_store.BUCKET, Key=name, Body=data)

    def remove(self, name: str) -> None:
        self.store.client().delete_object(Bucket=object_store.BUCKET, Key=name)
