"""The data of a job, fetched atomically to each machine before training starts there.

A set of files lies in a hidden folder until all of it is there, and is renamed then. Files of it
that are whole have their own names; an agent that starts again continues with the others.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.bucket import Bucket
from deepvm.core.json_types import JsonObject
from deepvm.core.units import format_bytes
from deepvm.errors import CheckpointError, DataError
from deepvm.io.atomic_write import hidden_path, sync

_THREADS = 8
_SAY_S = 10.0
_PIECE = 4 << 20
_SPARE = 64 << 20
"""Bytes of the disk that data leave free."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Item:
    """A file of a source: name below the data's folder ("": it is the data), size, address."""

    name: str
    size: int
    source: str
    etag: str = ""

    @property
    def path(self) -> str:
        """Where it lies until all are there."""
        return self.name or "data"


def have_data(wanted: JsonObject, folder: Path, report: Report, endpoint: str = "") -> None:
    """Have each of a job's data below ``folder`` by its name.

    ``report`` is called with lines of progress.

    Raises DataError: one of them is not there, or not whole; it says why, and what to do.
    """
    for name, where in wanted.items():
        target = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if isinstance(where, Mapping):
                _mount(Path(where["mount"]), target)
            elif not target.exists():
                _fetch(name, source_of(where, endpoint), target, report)
        except (CheckpointError, DataError) as error:
            raise DataError(f"{name}: {error}") from error
        except OSError as error:
            cure = _CURES.get(error.errno or 0, "")
            raise DataError(
                f"{name}: {error.filename or target}: {error.strerror or error}{cure}"
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
    with hidden_path(target) as hidden:
        hidden.symlink_to(place)
        hidden.replace(target)


_CURES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "; give the machines larger disks, or name less data"
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "; let the agent's user read it"),
}


def _fetch(name: str, source: Source, target: Path, report: Report) -> None:
    items = source.items()
    if not items:
        raise DataError(
            f"there is nothing at {source.url}; correct the URL in data: of the job file"
        )
    hidden = target.with_name(f".{name}.part")
    hidden.mkdir(exist_ok=True)
    # A file has its name once it is whole
    whole = [item for item in items if _size(hidden / item.path) == item.size]
    missing = set(items) - set(whole)
    left = sum(item.size for item in missing)
    free = shutil.disk_usage(hidden).free
    if left + _SPARE > free:
        raise DataError(
            f"{format_bytes(left)} of {source.url} do not fit on the disk, {format_bytes(free)} of"
            " which are free; give the machines larger disks, or name less data"
        )
    total = format_bytes(sum(item.size for item in items))
    coming = set[Path]()

    def say() -> None:
        # A large file takes a while: count what there is of it
        here = sum(item.size for item in whole) + sum(max(_size(p), 0) for p in tuple(coming))
        report(
            f"data {name}: {format_bytes(here)} of {total}, {len(whole)} of {len(items)} files of"
            f" {source.url}"
        )

    def fetch(item: Item) -> None:
        path = hidden / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_path(path) as new:
            coming.add(new)
            source.fetch(item, new)
            # The source may have changed since it was listed: its parts would be of two files.
            size = _size(new)
            if size != item.size:
                raise DataError(
                    f"{item.source}: {size} bytes came instead of {item.size}; did it change"
                    " meanwhile?"
                )
            with new.open("rb") as file:
                os.fsync(file.fileno())
            new.replace(path)
            coming.discard(new)
        whole.append(item)

    say()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="deepvm-data") as pool:
        try:
            waiting = {pool.submit(fetch, item) for item in missing}
            while waiting:
                # In time for a line of progress: a machine that reports nothing counts as hung
                done, waiting = wait(waiting, _SAY_S, FIRST_EXCEPTION)
                for one in done:
                    one.result()
                if waiting:
                    say()
        except BaseException:
            # One file has failed: the others would only delay the error.
            pool.shutdown(cancel_futures=True)
            raise
    for made in (hidden, *(p for p in hidden.rglob("*") if p.is_dir())):
        sync(made)
    # A single object or file is the data itself, not a folder with one file.
    if items[0].name:
        hidden.replace(target)
    else:
        (hidden / items[0].path).replace(target)
        shutil.rmtree(hidden, ignore_errors=True)
    sync(target.parent)
    say()


def _size(path: Path) -> int:
    """Bytes of a file, -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


class FolderSource:
    """A file or folder that this machine sees; it is copied."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = str(path)

    def items(self) -> list[Item]:
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
        self._bucket = Bucket(bucket, "", endpoint=endpoint)
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
        """Write one to a new file; all pieces come from the listed object. Its MD5 is checked."""
        options = {"IfMatch": item.etag} if item.etag else {}
        md5 = hashlib.md5(usedforsecurity=False)
        with self._bucket.errors(f"read {item.source}"), target.open("wb") as file:
            for start in range(0, item.size, _PIECE):
                end = min(start + _PIECE, item.size) - 1
                piece = f"bytes={start}-{end}"
                data = self._bucket.whole(item.source, Range=piece, **options)
                md5.update(data)
                file.write(data)
            etag = item.etag.strip('"')
            if re.fullmatch("[0-9a-f]{32}", etag) and etag != md5.hexdigest():
                head = self._bucket.s3.head_object(Bucket=self._bucket.name, Key=item.source)
                # Of an object that a key of the user's encrypts, the ETag is another digest
                if head.get("ServerSideEncryption", "AES256") == "AES256":
                    raise DataError(f"{self.url}: {item.source} came with other bytes than it has")


Source: TypeAlias = FolderSource | BucketSource
"""Where data come from."""
