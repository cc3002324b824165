"""fsspec's file systems in memory and on disk in the place of Google's and Azure's, whose requests
can be made to fail.

Those do each request at one moment, and an object is there once its upload is complete. fsspec's
create in two steps, on disk in three, which a lock makes one, and their files are there as soon as
they are opened.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from deepvm.checkpoint.tiers.cloud import CloudObjects, CloudTier

_NUMBERS = itertools.count()
CHANGES = ("pipe_file", "open", "rm_file", "mv", "write", "close")
REQUESTS = (*CHANGES, "ls", "cat_file")


class Trouble(Exception):
    """What a store's library may raise; each has its own."""


class CloudStore:
    """A file system and a place in it, as CloudObjects uses it.

    ``trouble`` gets each request and the object's path; it returns ``"fail"``, ``"lost"`` (carry it
    out and say that it failed), ``"late"`` (say that it failed, and keep it for :meth:`deliver`),
    an exception to raise, or None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            self._fs, self.root = (
                fsspec.filesystem("memory", skip_instance_cache=True),
                f"/bucket-{next(_NUMBERS)}/run",
            )
        else:
            self._fs, self.root = (
                LocalFileSystem(auto_mkdir=True, skip_instance_cache=True),
                str(folder / "bucket/run"),
            )
        self.trouble: Callable[[str, str], str | BaseException | None] = lambda request, path: None
        self.seen: list[tuple[str, str]] = []
        self.exclusive = True
        self._late: list[Callable[[], Any]] = []
        self._one_moment = threading.Lock()

    def request(self, name: str, path: str, work: Callable[[], Any]) -> Any:
        self.seen.append((name, path))
        trouble = self.trouble(name, path)
        if isinstance(trouble, BaseException):
            raise trouble
        if trouble == "late":
            self._late.append(work)
        with self._one_moment:
            if trouble == "lost":
                work()
            if trouble is not None:
                raise Trouble("503")
            return work()

    def deliver(self) -> None:
        """Carry out what was kept; what fails now, fails."""
        while self._late:
            try:
                self._late.pop(0)()
            except Exception:  # noqa: S112  nobody is there any more to be told
                continue

    def invalidate_cache(self) -> None:
        self._fs.invalidate_cache()

    def ls(self, path: str, detail: bool) -> Any:
        return self.request("ls", path, lambda: self._fs.ls(path, detail=detail))

    def exists(self, path: str) -> bool:
        return bool(self.request("ls", path, lambda: self._fs.exists(path)))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.request("cat_file", path, lambda: self._fs.cat_file(path, start=start, end=end))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        def work() -> None:
            if mode == "create" and self.exclusive and self._fs.exists(path):
                raise FileExistsError(path)
            self._fs.pipe_file(path, value)

        self.request("pipe_file", path, work)

    def rm_file(self, path: str) -> None:
        self.request("rm_file", path, lambda: self._fs.rm_file(path))

    def mv(self, path: str, new: str) -> None:
        self.request("mv", path, lambda: self._fs.mv(path, new))

    def open(self, path: str, mode: str, block_size: int) -> _File:
        assert mode == "wb"
        return self.request("open", path, lambda: _File(self, path))

    def complete(self, path: str, data: bytes) -> None:
        """An upload is complete."""
        self._fs.pipe_file(path, data)

    def tier(self, **options: Any) -> CloudTier:
        """A tier there, as after a restart."""
        return CloudTier(
            CloudObjects(lambda: self, self.root, "gs://bucket/run", threads=3), **options
        )

    def names(self) -> list[str]:
        try:
            return sorted(
                row["name"].rpartition("/")[2] for row in self._fs.ls(self.root, detail=True)
            )
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self.root}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(f"{self.root}/{name}", data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"{self.root}/{name}")


class _File:
    """An upload; it can fail while bytes are written, and when it is completed."""

    def __init__(self, store: CloudStore, path: str) -> None:
        self._store, self._path, self._data = store, path, bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self._store.request("write", self._path, lambda: self._data.extend(data))

    def close(self) -> None:
        self._store.request(
            "close", self._path, lambda: self._store.complete(self._path, bytes(self._data))
        )

    def discard(self) -> None:
        self._data.clear()
