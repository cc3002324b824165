"""Which versions in a bucket are complete, by which commit record, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from deepvm.checkpoint.files.file_names import check_job, file_name, parse_name
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, Damage, Manifest
from deepvm.checkpoint.tiers.bucket import Bucket, checksum
from deepvm.errors import DamagedError, RequestError

UPCOMING = SUFFIX + ".next"
"""Added to an object's name: a record of what is about to be completed, or just was."""

_T = TypeVar("_T")


class VersionObjects:
    """The objects of versions in a part of a bucket; see :mod:`deepvm.checkpoint.tiers.s3`."""

    def __init__(self, bucket: Bucket, prefix: str, threads: int) -> None:
        """Remember where; ``prefix`` is empty or ends with a slash, ``threads`` are requests at once."""
        self._bucket, self._prefix, self._threads = bucket, prefix, threads

    def key(self, job: str, version: int) -> str:
        """Name of a version's object."""
        return self._prefix + file_name(job, version)

    def uploads(self, job: str) -> list[tuple[str, str]]:
        """Name and id of the uploads of a job's versions that are neither completed nor aborted."""
        with self._bucket.errors("list its unfinished uploads"):
            found = self._bucket.uploads(f"{self._prefix}{check_job(job)}-")
        return [(key, upload) for key, upload in found if self._version(key, job) is not None]

    def _version(self, key: str, job: str) -> int | None:
        name = parse_name(key[len(self._prefix) :])
        return name[1] if name is not None and name[0] == job else None

    def sizes(self, job: str) -> tuple[dict[str, int], list[int]]:
        """Bytes of the objects of a job, and the versions that have one or a record, newest first."""
        with self._bucket.errors("list its objects"):
            sizes = self._bucket.sizes(f"{self._prefix}{check_job(job)}-")
        numbers = {self._version(key.removesuffix(SUFFIX), job) for key in sizes}
        return sizes, sorted((number for number in numbers if number is not None), reverse=True)

    def unrecorded(self, job: str) -> set[int]:
        """The versions of a job whose object is alone."""
        sizes, versions = self.sizes(job)
        return {v for v in versions if not self._records(self.key(job, v), sizes)}

    def look(self, job: str) -> list[Manifest | Damage]:
        """Each version's commit record or damage, newest first."""
        sizes, versions = self.sizes(job)
        with ThreadPoolExecutor(self._threads) as pool:
            asked = [submit(pool, self.state, job, version, sizes) for version in versions]
        return [found for each in asked if (found := each.result()) is not None]

    def state(self, job: str, version: int, sizes: Mapping[str, int]) -> Manifest | Damage | None:
        """One version's record or damage; None when it was removed meanwhile."""
        key = self.key(job, version)
        if key not in sizes:
            return Damage(version, f"{self._shown(key)}: its commit record is there and the object is not")
        if not self._records(key, sizes):
            return Damage(version, f"{self._shown(key)}: {UNRECORDED}", sizes[key])
        try:
            return self.record(job, version, sizes)
        except DamagedError as error:
            return Damage(version, str(error), sizes[key])

    @staticmethod
    def _records(key: str, sizes: Mapping[str, int]) -> set[str]:
        return {key + SUFFIX, key + UPCOMING} & sizes.keys()

    def record(self, job: str, version: int, sizes: Mapping[str, int]) -> Manifest | None:
        """The record that fits a version's object; None when there is none any more.

        Raises:
            DamagedError: none fits.
        """
        key = self.key(job, version)
        # In this order: the upcoming record goes when the usual one says the same.
        upcoming = self._read(key + UPCOMING) if key + UPCOMING in sizes else None
        found = self._read(key + SUFFIX) if key + SUFFIX in sizes else None
        if isinstance(upcoming, Manifest) and (
            self._fits(key, sizes[key], upcoming, found)
            if isinstance(found, Manifest)
            else self._holds(key, sizes[key], upcoming)
        ):
            found = upcoming
        if found is None and upcoming is not None:
            found = DamagedError(f"{self._shown(key)}: {UNRECORDED}")
        if isinstance(found, DamagedError):
            raise found
        if found is not None and (found.job, found.version) != (job, version):
            other = f"{found.job}, version {found.version}"
            raise DamagedError(f"{self._shown(key)}: its commit record is that of {other}")
        if found is not None and found.size != sizes[key]:
            raise DamagedError(f"{self._shown(key)}: it has {sizes[key]} bytes in place of {found.size}")
        return found

    def _fits(self, key: str, size: int, upcoming: Manifest, found: Manifest) -> bool:
        """Whether the object is what the upcoming record says, and not what the usual one does."""
        if found.size != upcoming.size:
            return upcoming.size == size
        alike = found.chunk_bytes == upcoming.chunk_bytes
        differ = [n for n, crc in enumerate(upcoming.crcs) if not alike or found.crcs[n] != crc]
        for number in differ[:1] if alike else differ:
            start = number * upcoming.chunk_bytes
            with self._bucket.errors(f"read {key}"):
                data = self.range(key, start, min(start + upcoming.chunk_bytes, upcoming.size))
            if crc32(data) != upcoming.crcs[number]:
                return False
        return True

    def _holds(self, key: str, size: int, upcoming: Manifest) -> bool:
        """Whether the object is what the upcoming record says, where there is no other one: all of it counts."""
        if size != upcoming.size:
            return False
        with self._bucket.errors(f"read {key}"):
            # Where the parts were chunks, which they mostly are, the store's checksum is made of those of the record.
            sums = b"".join(crc.to_bytes(4, "big") for crc in upcoming.crcs)
            if self._bucket.composite(key) == checksum(crc32(sums)):
                return True
            starts = range(0, size, upcoming.chunk_bytes)
            pieces = (self.range(key, start, min(start + upcoming.chunk_bytes, size)) for start in starts)
            return all(crc32(data) == crc for data, crc in zip(pieces, upcoming.crcs, strict=True))

    def _read(self, record: str) -> Manifest | DamagedError | None:
        with self._bucket.errors(f"read {record}"):
            data = self._bucket.read_if_there(record)
        try:
            return None if data is None else Manifest.from_json(data)  # it may have been removed meanwhile
        except RequestError as error:
            return DamagedError(f"{self._shown(record)}: {error}")

    def range(self, key: str, start: int, end: int, **options: str) -> bytes:
        """Bytes of an object; ``options`` are those of GetObject."""
        return self._bucket.read(key, Range=f"bytes={start}-{end - 1}", **options)

    def _shown(self, key: str) -> str:
        return f"s3://{self._bucket.name}/{key}"


def submit(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
    """Submit work to a pool, or do it here when the pool takes no more."""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:  # no threads at the interpreter's end: a last save must work even there
        done: Future[_T] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done
