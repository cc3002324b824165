"""The interface of a tier that a memory node can persist versions to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.tiers.base import Tier


class Store(Tier):
    """A tier that takes whole versions whose checksums are known. One node writes to it, from several threads.

    Attributes:
        fills: whether a version can be written while it is still arriving, with :meth:`write_filling`.
    """

    fills: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def open_store(cls, url: str, *, direct: bool = True, shared: bool = False) -> Store:
        """The store that ``--persist`` means; see :func:`deepvm.checkpoint.tiers.registry.open_store`."""

    @abstractmethod
    def take(self) -> None:
        """Make sure that it can be written to, and by no other node; clear up what a killed one left.

        Raises:
            CheckpointError: it cannot.
        """

    @abstractmethod
    def write(self, image: memoryview, manifest: Manifest) -> None:
        """Write a version and its commit record.

        Raises:
            CheckpointError: it could not be written; what was complete under its number before still is, or it is.
        """

    def write_filling(
        self, image: memoryview, job: str, version: int, final: Iterable[int], manifest: Callable[[], Manifest]
    ) -> None:
        """:meth:`write` in the manner of :meth:`~deepvm.checkpoint.files.version_dir.VersionFolder.write_filling`."""
        raise NotImplementedError("only of stores that are filled")

    @abstractmethod
    def unrecorded(self, job: str) -> set[int]:
        """The damaged versions of which only the record is gone. Raises CheckpointError."""

    @abstractmethod
    def read(self, job: str, version: int) -> tuple[Manifest, Iterator[memoryview]]:
        """A version, piece by piece, unverified; each piece is valid until the next.

        Raises:
            FileNotFoundError: it is not there. CheckpointError: it cannot be read; also from the iterator.
        """

    @abstractmethod
    def delete(self, job: str, version: int) -> None:
        """Remove a version; nothing happens when it is not there. Raises CheckpointError."""
