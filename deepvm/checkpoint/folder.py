"""A folder of versions: written whole or not at all, listed by their commit records, verified before use.

Every write goes: the bytes into a hidden file, fsync, rename, fsync of the folder, and only then the commit record by
the same steps. Whoever sees a commit record may rely on the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deepvm.checkpoint.crc import crc32
from deepvm.checkpoint.manifest import SUFFIX, Manifest
from deepvm.checkpoint.points import point
from deepvm.errors import CheckpointError, DamagedError, RequestError

_NAME = re.compile(r"(?P<job>[A-Za-z0-9][A-Za-z0-9._-]{0,63})-(?P<version>[0-9]{12,})\.pt", re.ASCII)
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BLOCK = 4096
_PIECE = 16 * 2**20
# File systems that have no direct writes, or not for this memory, say one of these.
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


def check_job(name: str) -> str:
    """Return the name if it can be that of a job: it becomes part of file names.

    Raises:
        RequestError: it cannot.
    """
    if not _JOB.fullmatch(name):
        raise RequestError("job", name, "1 to 64 letters, digits, dots, hyphens and underscores, the first no mark")
    return name


@dataclass(frozen=True)
class Found:
    """A file of a version.

    Attributes:
        path: the file. job, version: from its name. size: bytes.
        manifest: its commit record, None when it has none that can be read.
        problem: why it is not complete, empty when it is (its bytes are not verified).
    """

    path: Path
    job: str
    version: int
    size: int
    manifest: Manifest | None
    problem: str = ""


class VersionFolder:
    """Versions in one folder of a local or mounted file system."""

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        """Remember where; nothing is made before the first write.

        Args:
            path: the folder.
            direct: write past the page cache (O_DIRECT) where the file system can.
        """
        self.path, self._direct = path, direct

    def file(self, job: str, version: int) -> Path:
        """Where a version is, or would be."""
        return self.path / f"{check_job(job)}-{version:012d}.pt"

    def write(self, image: memoryview, manifest: Manifest) -> Path:
        """Write a version and its commit record; when this returns, a crash of the machine cannot take it away.

        Args:
            image: the bytes of the file; best in memory that starts at a page.
            manifest: what they are.

        Raises:
            CheckpointError: it could not be written; nothing of it is visible.
        """
        target = self.file(manifest.job, manifest.version)
        record = target.with_name(target.name + SUFFIX)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                # The same version of an earlier run: its record must not vouch for other bytes.
                record.unlink()
                self._sync()
            self._place(target, image, "data")
            self._place(record, memoryview(manifest.to_json()), "record")
        except OSError as error:
            raise CheckpointError(f"{target}: cannot be written: {error.strerror or error}") from error
        return target

    def _place(self, target: Path, data: memoryview, what: str) -> None:
        hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            _write_file(hidden, data, direct=self._direct and len(data) >= _PIECE, what=what)
            point(f"{what}.before-rename")
            os.replace(hidden, target)
        except BaseException:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise
        point(f"{what}.before-folder-sync")
        self._sync()
        point(f"{what}.after-folder-sync")

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def found(self) -> tuple[Found, ...]:
        """Every file that is named like a version, complete or not, by job, then newest first."""
        try:
            names = sorted(os.listdir(self.path))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        rows = [row for name in names if (row := self._look(name)) is not None]
        return tuple(sorted(rows, key=lambda f: (f.job, -f.version)))

    def _look(self, name: str) -> Found | None:
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        path, job, version = self.path / name, match["job"], int(match["version"])
        manifest: Manifest | None = None
        problem = ""
        try:
            size = path.stat().st_size
            manifest = read_manifest(path)
        except FileNotFoundError:
            if not path.exists():
                return None
            problem = "it has no commit record: it was never completed"
        except (OSError, DamagedError) as error:
            problem = str(error)
        if manifest is not None and (manifest.job, manifest.version) != (job, version):
            manifest, problem = None, f"its commit record is that of {manifest.job}, version {manifest.version}"
        elif manifest is not None and manifest.size != size:
            problem = f"it has {size} bytes in place of {manifest.size}"
        return Found(path, job, version, size, manifest, problem)

    def manifests(self, job: str) -> tuple[Manifest, ...]:
        """The complete versions of a job, newest first; their bytes are not verified."""
        return tuple(f.manifest for f in self.found() if f.job == job and f.manifest is not None and not f.problem)

    def delete(self, job: str, version: int) -> None:
        """Remove a version: first its record, so that half of it is never taken for a whole.

        Raises:
            CheckpointError: it cannot be removed.
        """
        target = self.file(job, version)
        try:
            target.with_name(target.name + SUFFIX).unlink(missing_ok=True)
            self._sync()
            target.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"{target}: cannot be removed: {error.strerror or error}") from error

    def sweep(self) -> int:
        """Remove the hidden files that killed writers left; returns how many. Only where nobody writes now."""
        count = 0
        for path in self.path.glob(".*.tmp") if self.path.is_dir() else ():
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
        return count


def read_manifest(path: Path) -> Manifest:
    """The commit record of a version's file.

    Raises:
        FileNotFoundError: there is none. DamagedError: it cannot be read.
    """
    record = path.with_name(path.name + SUFFIX)
    try:
        return Manifest.from_json(record.read_bytes())
    except RequestError as error:
        raise DamagedError(f"{record}: {error}") from None


def verify(path: Path, manifest: Manifest | None = None) -> Manifest:
    """Read a whole file and compare it with its commit record.

    Args:
        path: the file of a version.
        manifest: its record; read from beside it unless given.

    Raises:
        DamagedError: it is not what its record says; names the first bytes that are not.
    """
    try:
        expected = read_manifest(path) if manifest is None else manifest
    except FileNotFoundError:
        raise DamagedError(f"{path}: it has no commit record ({path.name}{SUFFIX}): it was never completed") from None
    except OSError as error:
        raise DamagedError(f"{path}: its commit record cannot be read: {error.strerror or error}") from None
    try:
        with path.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != expected.size:
                raise DamagedError(f"{path}: it has {size} bytes in place of {expected.size}")
            buffer = memoryview(bytearray(min(expected.chunk_bytes, size)))
            for number, crc in enumerate(expected.crcs):
                start = number * expected.chunk_bytes
                chunk = buffer[: min(expected.chunk_bytes, size - start)]
                _read_into(stream.fileno(), chunk, start)
                if crc32(chunk) != crc:
                    raise DamagedError(f"{path}: bytes {start} to {start + len(chunk) - 1} are damaged")
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read: {error.strerror or error}") from None
    return expected


def _read_into(descriptor: int, buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        done += count


def _write_file(path: Path, data: memoryview, *, direct: bool, what: str) -> None:
    """A new file with these bytes, on the disk when this returns."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        point(f"{what}.before-write")
        with contextlib.suppress(OSError):  # not every file system can; a full one must say so before it is half full
            os.posix_fallocate(descriptor, 0, len(data))
        done = _write_direct(path, data, what) if direct else 0
        for start, piece in _pieces(data, done):
            _write_at(descriptor, piece, start)
        point(f"{what}.before-sync")
        os.fsync(descriptor)
        point(f"{what}.after-sync")
    finally:
        os.close(descriptor)


def _write_direct(path: Path, data: memoryview, what: str) -> int:
    """Write whole blocks past the page cache; returns how many bytes were written, 0 where that cannot be done."""
    whole = len(data) // _BLOCK * _BLOCK
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno in _NOT_DIRECT:
            return 0
        raise
    done = 0
    try:
        for start, piece in _pieces(data[:whole], 0):
            count = 0
            while count < len(piece):
                written = os.pwrite(descriptor, piece[count:], start + count)
                if written % _BLOCK:  # a short write that is not aligned cannot be gone on with
                    return done + count + written // _BLOCK * _BLOCK
                count += written
            done = start + len(piece)
            point(f"{what}.mid-write")
    except OSError as error:
        if error.errno not in _NOT_DIRECT:
            raise
    finally:
        os.close(descriptor)
    return done


def _pieces(data: memoryview, start: int) -> Iterator[tuple[int, memoryview]]:
    for offset in range(start, len(data), _PIECE):
        yield offset, data[offset : offset + _PIECE]


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
