"""The data of a job, fetched atomically to each machine before training starts there."""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.tiers.s3 import Bucket
from deepvm.core.json_types import JsonObject
from deepvm.core.units import format_bytes
from deepvm.errors import CheckpointError, DataError
from deepvm.io.atomic_write import hidden_path, sync
from deepvm.records import dataclass, field

_THREADS = 8
_SAY_S = 10.0
_PIECE = 4 << 20
_SPARE = 64 << 20  # Bytes of the disk that data leave free

Report = Callable[[str], None]


@dataclass(frozen=True)
class Item:
    """A file of a source."""

    name: str  # Below the data's folder; empty: it is the data
    size: int
    source: str
    copy: Callable[[Path], object] = field(compare=False)  # Writes it to a new file

    @property
    def path(self) -> str:
        return self.name or "data"  # until all are there


def have_data(wanted: JsonObject, folder: Path, report: Report, endpoint: str = "") -> None:
    """Have each of a job's data below ``folder``; ``report``: progress. Raises DataError."""
    for name, where in wanted.items():
        target = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if isinstance(where, Mapping):
                _mount(Path(where["mount"]), target)
            elif not target.exists():
                _fetch(name, *_source(where, endpoint), target, report)
        except (CheckpointError, DataError) as error:
            raise DataError(f"{name}: {error}") from error
        except OSError as error:
            cure = _CURES.get(error.errno or 0, "")
            raise DataError(
                f"{name}: {error.filename or target}: {error.strerror or error}{cure}"
            ) from error


def _source(where: str, endpoint: str) -> tuple[str, list[Item]]:
    place = urlsplit(where)
    if place.scheme.lower() == "s3":
        prefix = place.path.strip("/")
        url = f"s3://{place.netloc}/{prefix}".rstrip("/")
        return url, _in_bucket(Bucket(place.netloc, "", endpoint=endpoint), prefix, url)
    path = Path(unquote(place.path) if place.scheme else where)
    return str(path), _in_folder(path)


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


def _fetch(name: str, url: str, items: list[Item], target: Path, report: Report) -> None:
    if not items:
        raise DataError(f"there is nothing at {url}; correct the URL in data: of the job file")
    hidden = target.with_name(f".{name}.part")
    hidden.mkdir(exist_ok=True)
    # A file has its name once it is whole
    whole = [item for item in items if _size(hidden / item.path) == item.size]
    missing = set(items) - set(whole)
    left = sum(item.size for item in missing)
    free = shutil.disk_usage(hidden).free
    if left + _SPARE > free:
        raise DataError(
            f"{format_bytes(left)} of {url} do not fit on the disk, {format_bytes(free)} of"
            " which are free; give the machines larger disks, or name less data"
        )
    total = format_bytes(sum(item.size for item in items))
    coming = set[Path]()

    def say() -> None:
        # A large file takes a while: count what there is of it
        here = sum(item.size for item in whole) + sum(max(_size(p), 0) for p in tuple(coming))
        report(
            f"data {name}: {format_bytes(here)} of {total}, {len(whole)} of {len(items)} files of"
            f" {url}"
        )

    def fetch(item: Item) -> None:
        path = hidden / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_path(path) as new:
            coming.add(new)
            item.copy(new)
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


def _in_folder(path: Path) -> list[Item]:
    if not path.exists():
        raise DataError(
            f"there is no {path} on this machine; correct the path in data: of the job file"
        )
    names = {"": path} if path.is_file() else {}
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        names = {p.relative_to(path).as_posix(): p for p in files}
    return [
        Item(name, p.stat().st_size, str(p), partial(shutil.copyfile, p))
        for name, p in names.items()
    ]


def _in_bucket(bucket: Bucket, prefix: str, url: str) -> list[Item]:
    with bucket.errors(f"list {prefix or 'its objects'}"):
        rows = list(bucket.rows(prefix))
    below = f"{prefix}/" if prefix else ""
    named = [(row["Key"][len(below) :], row) for row in rows if row["Key"].startswith(below)]
    named = [(name, row) for name, row in named if name and not name.endswith("/")]
    found = []
    for name, row in named or [("", row) for row in rows if row["Key"] == prefix]:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise DataError(
                f"{url}: the object {row['Key']!r} would lie outside of the data's folder;"
                " rename it"
            )
        found.append(Item(name, int(row["Size"]), row["Key"], partial(_read, bucket, url, row)))
    return found


def _read(bucket: Bucket, url: str, row: JsonObject, target: Path) -> None:
    """Write an object to a new file: all pieces are of the listed one, and its MD5 is checked."""
    key, size, etag = row["Key"], int(row["Size"]), str(row.get("ETag", ""))
    options = {"IfMatch": etag} if etag else {}
    md5 = hashlib.md5(usedforsecurity=False)
    with bucket.errors(f"read {key}"), target.open("wb") as file:
        for start in range(0, size, _PIECE):
            piece = f"bytes={start}-{min(start + _PIECE, size) - 1}"
            data = bucket.whole(key, Range=piece, **options)
            md5.update(data)
            file.write(data)
        digest = etag.strip('"')
        if re.fullmatch("[0-9a-f]{32}", digest) and digest != md5.hexdigest():
            head = bucket.s3.head_object(Bucket=bucket.name, Key=key)
            # Of an object that a key of the user's encrypts, the ETag is another digest
            if head.get("ServerSideEncryption", "AES256") == "AES256":
                raise DataError(f"{url}: {key} came with other bytes than it has")
