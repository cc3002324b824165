"""What all object stores share: how checkpoints of one rank or several are stored."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

from deepvm.checkpoint.files.file_names import parse_labelled
from deepvm.checkpoint.files.retention import kept
from deepvm.checkpoint.format.checksums import seal
from deepvm.checkpoint.format.manifest import SUFFIX
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.tiers.base import Store
from deepvm.checkpoint.tiers.bucket_parts import Objects, Parts
from deepvm.errors import CheckpointError

log = logging.getLogger("deepvm.checkpoint")


class ObjectStore(Store):
    """A part of an object store; several ranks join their parts of a version there."""

    streams: ClassVar[bool] = True
    shared = True

    def __init__(self, objects: Objects, session: str, keep: int, every: int) -> None:
        """``keep``, ``every``, ``session``: as in :meth:`Tier.open`, but ``keep=0`` keeps all."""
        if keep:
            kept((), keep, every)
        self._objects = objects
        self._keep = keep
        self._every = every
        self.url = objects.url
        self._parts = Parts(objects, session)
        self._epochs = dict[str, int]()
        self._cleared = set[str]()
        self._writing = threading.RLock()

    def begin(self, job: str, epoch: int) -> None:
        if self._epochs.get(job) != epoch:  # each connection to a memory node says it again
            self._objects.ledger(job).begin(epoch)
            self._epochs[job] = epoch

    def epoch(self, job: str) -> int:
        found = self._objects.ledger(job).read()
        return 0 if found is None else found.epoch

    def jobs(self) -> set[str]:
        start = len(self._objects.prefix)
        with self._objects.errors("list its objects"):
            keys = list(self._objects.sizes(self._objects.prefix))
        names = (parse_labelled(key[start:].removesuffix(SUFFIX)) for key in keys)
        return {name[0] for name in names if name is not None}

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        shard.check()
        with self._writing:
            if shard.layout.world == 1:
                self._write_whole(shard, shard.image, shard.ready)
            else:
                self._write_part(shard)
            acknowledged(Level.DURABLE)
            if self._keep and not shard.rank:
                self._prune(shard.job, shard.version)

    def _write_whole(
        self, shard: Shard, image: memoryview, ready: Callable[[int], None] = lambda end: None
    ) -> None:
        crcs: list[int] = []
        final = seal(image, shard.layout, crcs, ready=ready)
        self.write(image, shard.job, shard.version, final, lambda: shard.manifest(crcs))

    def _write_part(self, shard: Shard) -> None:
        """Send this rank's part, and wait until the whole is committed; rank 0 joins the parts."""
        epoch = self._epochs.get(shard.job)
        if epoch is not None:
            self._objects.ledger(shard.job).check(epoch)  # before all of it is sent in vain
        names = [self._parts.name(shard, rank, epoch or 0) for rank in range(1, shard.layout.world)]
        if shard.rank:
            own = names[shard.rank - 1]
            try:
                self._parts.send(shard, own)
                self._parts.await_commit(shard, own, lambda: self._is_there(shard))
            except BaseException:
                self._discard([own])
                raise
            return
        if shard.job not in self._cleared:
            try:
                self._parts.clear(shard.job, epoch or 0)
            except CheckpointError as error:  # it may be allowed to write and not to list
                log.debug("%s", error)
        try:
            self._write_whole(shard, self._parts.joined(shard, names))
        finally:  # by which the others know that it is over, also when it has failed
            self._discard(names)

    def _is_there(self, shard: Shard) -> bool:
        """Whether a version of this layout is complete."""
        digest = shard.layout.digest
        return any(
            m.version == shard.version and m.layout == digest for m in self.versions(shard.job)
        )

    def open_for_writing(self, *, shared: bool = False) -> None:
        """See :class:`Store`.

        A wrong name or a missing permission fails now, not with the first version.

        There is no lock: that no other node writes there is up to the user.
        """
        self.versions("job")
        self.prove()

    @abstractmethod
    def prove(self) -> None:
        """See :meth:`Tier.prove`."""

    def _discard(self, keys: Iterable[str]) -> None:
        """Remove objects that do not count."""
        try:
            with self._objects.errors("remove what does not count"):
                # The record before its object
                self._objects.remove(*sorted(keys, key=len, reverse=True))
        except CheckpointError as error:
            log.warning("%s", error)

    def _prune(self, job: str, newest: int) -> None:
        try:
            rows = [m for m in self.versions(job) if m.version <= newest]
            for version in self.expired(job, rows, self._keep, self._every) - {newest}:
                self.delete(job, version)
        except CheckpointError as error:
            log.warning("old versions stay: %s", error)
