"""The data of a job, fetched atomically to each machine before training starts there.

A set of files lies in a hidden folder until all of it is there, and is renamed then. Files of it
that are whole have their own names; an agent that starts again continues with the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.bucket import Bucket
from deepvm.core.json_types import JsonObject
from deepvm.core.units import format_bytes
from deepvm.errors import CheckpointError, DataError
from deepvm.io.atomic_write import hidden_beside, sync

_THREADS = 8
_ATTEMPTS = 5
_SAY_S = 10.0
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_PIECE = 4 << 20
_SPARE = 64 << 20
"""Bytes of the disk that data leave free."""

Said = Callable[[str], None]


@dataclass(frozen=True)
class Item:
    """A file of a source: name below the data's folder ("": it is the data), size, address."""

    name: str
    size: int
    source: str
    etag: str = ""


def have_data(wanted: JsonObject, folder: Path, said: Said, endpoint: str = "") -> None:
    """Have each of a job's data below ``folder`` by its name.

    ``said`` is called with lines of progress.

    Raises DataError: one of them is not there, or not whole; it says why, and what to do.
    """
    for name, where in wanted.items():
        target = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if isinstance(where, Mapping):
                _mount(Path(where["mount"]), target)
            elif not target.exists():
                _fetch(name, source_of(where, endpoint), target, said)
        except (CheckpointError, DataError) as error:
            raise DataError(f"{name}: {error}") from error
        except OSError as error:
            raise DataError(
                f"{name}: {error.filename or target}: {error.strerror or error}{_cure(error)}"
            ) from error


def source_of(where: str, endpoint: str = "") -> Source:
    """What a URL or an absolute path means."""
    place = urlsplit(where)
    if place.scheme.lower() == "s3":
        return BucketSource(place.netloc, place.path.strip("/"), endpoint)
    return FolderSource(Path(unquote(place.path) if place.scheme else where))


def _mount(place: Path, target: Path) -> None:
    if not place.exists():
        raise DataError(
            f"there is no {place} on this machine; mount it in setup:, or correct the path"
        )
    if target.is_symlink() and os.readlink(target) == str(place):
        return
    with hidden_beside(target) as hidden:
        hidden.symlink_to(place)
        hidden.replace(target)


def _cure(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; give the machines larger disks, or name less data"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "; let the agent's user read it"
    return ""


def _fetch(name: str, source: Source, target: Path, said: Said) -> None:
    items = source.items()
    if not items:
        raise DataError(
            f"there is nothing at {source.url}; correct the URL in data: of the job file"
        )
    hidden = target.with_name(f".{name}.part")
    hidden.mkdir(exist_ok=True)
    missing = [
        item
        for item in items
        if not _is_whole(hidden / item.name if item.name else hidden / "data", item)
    ]
    total = sum(i.size for i in items)
    left = sum(i.size for i in missing)
    free = shutil.disk_usage(hidden).free
    if left + _SPARE > free:
        raise DataError(
            f"{format_bytes(left)} of {source.url} do not fit on the disk, {format_bytes(free)} of"
            " which are free; give the machines larger disks, or name less data"
        )
    progress = _Progress(
        name, source.url, total, total - left, len(items), len(items) - len(missing), said
    )
    progress.say()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="deepvm-data") as pool:
        try:
            waiting = {pool.submit(_one, source, item, hidden, progress) for item in missing}
            while waiting:
                done, waiting = wait(waiting, _SAY_S, FIRST_EXCEPTION)
                for one in done:
                    one.result()
                if waiting:
                    progress.say()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for made in (hidden, *(p for p in hidden.rglob("*") if p.is_dir())):
        sync(made)
    single = len(items) == 1 and not items[0].name
    (hidden / "data" if single else hidden).replace(target)
    if single:
        shutil.rmtree(hidden, ignore_errors=True)
    sync(target.parent)
    progress.say()


def _is_whole(path: Path, item: Item) -> bool:
    """A file has its name once it is whole."""
    with contextlib.suppress(OSError):
        return path.stat().st_size == item.size
    return False


def _one(source: Source, item: Item, folder: Path, progress: _Progress) -> None:
    target = folder / (item.name or "data")
    target.parent.mkdir(parents=True, exist_ok=True)
    with hidden_beside(target) as hidden:
        with progress.under_way(hidden):
            source.fetch(item, hidden)
        size = hidden.stat().st_size
        if size != item.size:
            raise DataError(
                f"{item.source}: {size} bytes came in place of {item.size}; did it change"
                " meanwhile?"
            )
        with hidden.open("rb") as file:
            os.fsync(file.fileno())
        hidden.replace(target)
    progress.add(item.size)


class _Progress:
    """Says now and then how much is here."""

    def __init__(
        self, name: str, url: str, total: int, done: int, files: int, whole: int, said: Said
    ) -> None:
        self._head = f"data {name}: "
        self._said = said
        self._lock = threading.Lock()
        self._total = total
        self._done = done
        self._files = files
        self._whole = whole
        self._url = url
        self._coming = set[Path]()

    @contextlib.contextmanager
    def under_way(self, hidden: Path) -> Iterator[None]:
        """Count what there is of a file: a large one takes a while."""
        with self._lock:
            self._coming.add(hidden)
        try:
            yield
        finally:
            with self._lock:
                self._coming.discard(hidden)

    def add(self, size: int) -> None:
        """One more file is whole."""
        with self._lock:
            self._done = self._done + size
            self._whole = self._whole + 1

    def say(self) -> None:
        """Say it now."""
        with self._lock:
            here = self._done
            coming = list(self._coming)
            whole = self._whole
        for path in coming:
            with contextlib.suppress(OSError):  # it is whole by now, or not begun
                here += path.stat().st_size
        amount = f"{format_bytes(min(here, self._total))} of {format_bytes(self._total)}"
        self._said(f"{self._head}{amount}, {whole} of {self._files} files of {self._url}")


class FolderSource:
    """A file or folder that this machine sees; it is copied."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = str(path)

    def items(self) -> list[Item]:
        """Its files. Raises DataError, OSError."""
        if not self._path.exists():
            raise DataError(
                f"there is no {self._path} on this machine; correct the path in data: of the job"
                " file"
            )
        if self._path.is_file():
            return [Item("", self._path.stat().st_size, str(self._path))]
        files = sorted(p for p in self._path.rglob("*") if p.is_file())
        return [Item(p.relative_to(self._path).as_posix(), p.stat().st_size, str(p)) for p in files]

    def fetch(self, item: Item, target: Path) -> None:
        shutil.copyfile(item.source, target)


class BucketSource:
    """An object, or all whose names begin with a prefix and ``/``."""

    def __init__(self, bucket: str, prefix: str, endpoint: str = "") -> None:
        """Send nothing yet. ``endpoint``: empty for the environment's or AWS's."""
        self._bucket = Bucket(bucket, "", threads=_THREADS, attempts=_ATTEMPTS, endpoint=endpoint)
        self._prefix = prefix
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")

    def items(self) -> list[Item]:
        with self._bucket.errors(f"list {self._prefix or 'its objects'}"):
            rows = list(self._bucket.rows(self._prefix))
        exact = [row for row in rows if row["Key"] == self._prefix]
        below = f"{self._prefix}/" if self._prefix else ""
        found = [
            self._item(row, row["Key"][len(below) :])
            for row in rows
            if row["Key"].startswith(below)
        ]
        found = [item for item in found if item.name and not item.name.endswith("/")]
        return found or [self._item(row, "") for row in exact]

    def _item(self, row: JsonObject, name: str) -> Item:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise DataError(
                f"{self.url}: the object {row['Key']!r} would lie outside of the data's folder;"
                " rename it"
            )
        return Item(name, int(row["Size"]), row["Key"], str(row.get("ETag", "")))

    def fetch(self, item: Item, target: Path) -> None:
        """Write one to a new file: all pieces come from the listed object; its MD5 is checked."""
        with self._bucket.errors(f"read {item.source}"):
            with target.open("wb") as file:
                for piece in self._pieces(item):
                    file.write(piece)
            plain = _MD5.fullmatch(item.etag)
            if plain and plain[1] != _md5(target):
                head = self._bucket.s3.head_object(Bucket=self._bucket.name, Key=item.source)
                if "ServerSideEncryption" not in head or head["ServerSideEncryption"] == "AES256":
                    raise DataError(
                        f"{self.url}: {item.source} came with other bytes than its ETag says; try"
                        " again"
                    )

    def _pieces(self, item: Item) -> Iterator[bytes]:
        options = {"IfMatch": item.etag} if item.etag else {}
        for start in range(0, item.size, _PIECE):
            end = min(start + _PIECE, item.size) - 1
            yield self._bucket.whole(item.source, Range=f"bytes={start}-{end}", **options)


Source: TypeAlias = FolderSource | BucketSource
"""Where data come from."""


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
