"""Where a node persists complete versions: a folder, or a bucket."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files import set_aside as aside
from deepvm.checkpoint.files.version_dir import YOUNG_S, VersionFolder, read_manifest
from deepvm.checkpoint.files.writer_lock import NODE, FileLock
from deepvm.checkpoint.format.manifest import Damage, Manifest
from deepvm.checkpoint.tiers.storage_url import Bucket, parse_place
from deepvm.errors import CheckpointError, DamagedError

_READ_BYTES = 2**20
"""Of memory for each reader, beside that for versions."""


class Store(ABC):
    """A place for whole versions, which one node writes to. Methods may be called from several threads.

    Attributes:
        url: what the user calls it. volatile: it is lost with this machine.
        streams: a version can be written while it is still coming, with :meth:`write_filling`.
    """

    url: str
    volatile: bool = False
    streams: bool = False

    @abstractmethod
    def take(self) -> None:
        """Make sure that it can be written to, and by no other node; clear up what a killed one left.

        Raises:
            CheckpointError: it cannot.
        """

    @abstractmethod
    def write(self, image: memoryview, manifest: Manifest) -> None:
        """Write a version and its commit record. Raises CheckpointError; nothing of it is visible then."""

    def write_filling(
        self, image: memoryview, job: str, version: int, final: Iterable[int], manifest: Callable[[], Manifest]
    ) -> None:
        """:meth:`write` in the manner of :meth:`~deepvm.checkpoint.files.version_dir.VersionFolder.write_filling`."""
        raise NotImplementedError("only of stores that stream")

    @abstractmethod
    def manifests(self, job: str) -> tuple[Manifest, ...]:
        """The complete versions of a job, newest first; their bytes are not verified."""

    @abstractmethod
    def damaged(self, job: str) -> tuple[Damage, ...]:
        """The versions that were there once and are not complete, newest first."""

    @abstractmethod
    def unrecorded(self, job: str) -> set[int]:
        """Those of them whose record alone is gone."""

    @abstractmethod
    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :meth:`deepvm.checkpoint.tiers.base.Tier.set_aside`."""

    @abstractmethod
    def read(self, job: str, version: int) -> tuple[Manifest, Iterator[memoryview]]:
        """A version, piece by piece; each is valid until the next.

        Raises:
            FileNotFoundError: it is not there. CheckpointError: it cannot be read; also from the iterator.
        """

    @abstractmethod
    def delete(self, job: str, version: int) -> None:
        """Remove a version. Raises CheckpointError."""

    def release(self) -> None:  # noqa: B027  a bucket is not held
        """Let another node have it."""


class FolderStore(Store):
    """A folder of a local or mounted file system."""

    streams = True

    def __init__(self, folder: Path, *, direct: bool = True, shared: bool = False) -> None:
        """Remember where.

        Args:
            folder: where.
            direct: write past the page cache where the file system can.
            shared: other nodes that say so too may write there; no two of them the versions of one job.
        """
        self._folder, self._shared = VersionFolder(folder, direct=direct), shared
        self.url = f"file://{folder}"
        self.volatile = durable_write.medium(folder).volatile
        self._lock = FileLock(folder / NODE)

    def take(self) -> None:
        """See :class:`Store`."""
        path = self._folder.path
        try:
            durable_write.make_folder(path)
            if not self._lock.take(shared=self._shared):
                raise CheckpointError(
                    f"{path}: another memory node writes there; give this one another folder, or both --shared-folder"
                )
        except OSError as error:
            raise CheckpointError(f"{path}: versions cannot be kept there: {error.strerror or error}") from error
        if not os.access(path, os.W_OK):
            raise CheckpointError(f"{path}: versions cannot be kept there: it is not writable")
        # What another node or a trainer is writing now must not be taken for what a killed one left.
        with self._folder.writer_lock.alone() as alone:
            self._folder.sweep(0 if alone and not self._shared else YOUNG_S)

    def write(self, image: memoryview, manifest: Manifest) -> None:
        """See :class:`Store`."""
        self._folder.write(image, manifest)

    def write_filling(
        self, image: memoryview, job: str, version: int, final: Iterable[int], manifest: Callable[[], Manifest]
    ) -> None:
        """See :class:`Store`."""
        self._folder.write_filling(image, job, version, final, manifest)

    def manifests(self, job: str) -> tuple[Manifest, ...]:
        """See :class:`Store`."""
        return self._folder.manifests(job)

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :class:`Store`."""
        return self._folder.damaged(job)

    def unrecorded(self, job: str) -> set[int]:
        """See :class:`Store`."""
        return self._folder.unrecorded(job)

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :class:`Store`."""
        aside.set_aside(self._folder, job, versions)

    def read(self, job: str, version: int) -> tuple[Manifest, Iterator[memoryview]]:
        """See :class:`Store`."""
        path = self._folder.file(job, version)
        manifest = read_manifest(path)
        stream = path.open("rb", buffering=0)

        def chunks() -> Iterator[memoryview]:
            buffer = memoryview(bytearray(min(_READ_BYTES, manifest.size)))
            with stream:
                for start in range(0, manifest.size, _READ_BYTES):
                    done, size = 0, min(_READ_BYTES, manifest.size - start)
                    while done < size:
                        count = os.preadv(stream.fileno(), [buffer[done:size]], start + done)
                        if not count:
                            raise DamagedError(f"{path.name}: the file is shorter than its commit record says")
                        done += count
                    yield buffer[:size]

        return manifest, chunks()

    def delete(self, job: str, version: int) -> None:
        """See :class:`Store`."""
        self._folder.delete(job, version)

    def release(self) -> None:
        """See :class:`Store`."""
        self._folder.writer_lock.leave()
        self._lock.release()


class BucketStore(Store):
    """A bucket, or a part of one. That no other node writes there is up to the user: a bucket has no lock."""

    def __init__(self, bucket: str, prefix: str) -> None:
        """Remember where. Raises RequestError."""
        from deepvm.checkpoint.tiers.s3 import S3Tier

        self._tier = S3Tier(bucket, prefix)
        self.url = self._tier.url

    def take(self) -> None:
        """See :class:`Store`; a wrong name or a missing permission is said now, not with the first version."""
        self._tier.versions("job")
        self._tier.prove()

    def write(self, image: memoryview, manifest: Manifest) -> None:
        """See :class:`Store`."""
        self._tier.write(image, manifest)

    def manifests(self, job: str) -> tuple[Manifest, ...]:
        """See :class:`Store`."""
        return self._tier.versions(job)

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :class:`Store`."""
        return self._tier.damaged(job)

    def unrecorded(self, job: str) -> set[int]:
        """See :class:`Store`."""
        return self._tier.unrecorded(job)

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :class:`Store`."""
        self._tier.set_aside(job, versions)

    def read(self, job: str, version: int) -> tuple[Manifest, Iterator[memoryview]]:
        """See :class:`Store`."""
        manifest = self._tier.manifest(job, version)
        if manifest is None:
            raise FileNotFoundError(f"{self.url}: version {version} of {job}")
        return manifest, self._tier.chunks(manifest)

    def delete(self, job: str, version: int) -> None:
        """See :class:`Store`."""
        self._tier.delete(job, version)


def open_store(url: str, *, direct: bool = True, shared: bool = False) -> Store | None:
    """The store that ``--persist`` means; None for no text.

    Args:
        url: where.
        direct: see :class:`FolderStore`.
        shared: too; a bucket may always be.

    Raises:
        RequestError: it means none.
    """
    if not url:
        return None
    place = parse_place(url, "persist")
    if isinstance(place, Bucket):
        return BucketStore(place.name, place.prefix)
    return FolderStore(place, direct=direct, shared=shared)
