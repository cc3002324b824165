"""DCP checkpoints in memory nodes and buckets, for ``DeepVMWriter`` and ``DeepVMReader``.

A checkpoint is one version, a torch file of ``{"ranks": [bytes of each rank], "metadata": bytes}``.
Every rank sends its own bytes; rank 0 sends the metadata last, when all ranks have laid out theirs.
A tier counts a version only when it has all parts, so a killed rank leaves the version before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import struct
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from deepvm.checkpoint.arguments import epoch, keep_of, name_of, warn_of_no_name
from deepvm.checkpoint.dcp_folder import (
    DATA_NAME,
    NAME,
    FolderReader,
    FolderWriter,
    done,
    unseal,
)
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.checkpoint.format.tensor_bytes import bytes_of
from deepvm.checkpoint.format.torch_zip import Image, plan_image
from deepvm.checkpoint.snapshot.host_buffer import address_space
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.training.ranks import shards
from deepvm.errors import CheckpointError, DamagedError, RequestError, TierBusyError
from deepvm.io.failpoints import point

log = logging.getLogger("deepvm.checkpoint")
_WAIT_S = 300.0
_LOOK_S = 0.05
_BUSY_S = 0.2
_SOON_S, _OFTEN_S = 0.002, 0.1  # between looks at the store
_SEEN_S = 3.0  # for a rank to see what rank 0 has committed
_LENGTH = struct.Struct("<Q")
_LEAST_METADATA = 2**16
_ITEM_BYTES = 256


@dataclass(frozen=True)
class _Ticket:
    """What rank 0 sends each rank for a save; ``attempt`` is that of :class:`Shard`."""

    rank: int
    world: int
    session: str
    exchange: str
    version: int
    attempt: int
    metadata_bytes: int


class _OpenTiers:
    """The tiers of this process's training run, which outlive its short-lived writers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[str, Tier]] = {}
        self.attempts = 0
        self.started: deque[str] = deque(maxlen=100)
        """Tickets of the newest saves: a planner with a cached plan reuses its ticket."""
        self.spent: list[str] = []
        """Rank 0's: keys of the save before in the store."""

    def session(self, url: str, job: str) -> str:
        """The run's session, a new one if there is none."""
        with self._lock:
            known = self._open.get((url, job))
        if known:
            return known[0]
        return secrets.token_hex(8)

    def tier(self, url: str, job: str, session: str) -> Tier:
        """The tier of a session; that of an earlier one is closed."""
        with self._lock:
            known = self._open.get((url, job))
            if known is None or known[0] != session:
                tier = _opened(url, job, session)
                if known is not None:
                    known[1].close()
                known = self._open[url, job] = session, tier
            return known[1]


_OPEN_TIERS = _OpenTiers()


def _opened(url: str, job: str, session: str) -> Tier:
    """The tier of this generation of the job.

    Raises RequestError, CheckpointError: a newer one has started.
    """
    tier = open_tier(url, session, keep_of(None), option="path")
    generation = epoch()
    try:
        if generation is not None:
            tier.begin(job, generation)
    except BaseException:
        tier.close()
        raise
    return tier


class TierWriter(FolderWriter):
    """Sends each checkpoint to a tier as number ``checkpoint_id``, or one after the newest."""

    def __init__(self, path: str | os.PathLike[str], *, direct: bool = True, job: str = "") -> None:
        """See :class:`FolderWriter`; nothing is connected yet. Raises RequestError."""
        super().__init__(".", direct=direct)
        self._url = str(path)
        self._job, self._named = name_of(job, "job")  # readers are other scripts
        # Refuse what is no place now
        open_tier(self._url, secrets.token_hex(8), option="path").close()
        self._version: int | None = None
        self._sending: _Sending | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See :class:`StorageWriter`. Raises RequestError: it is no number."""
        if checkpoint_id is None:
            self._version = None
        else:
            self._version = number_of(checkpoint_id)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """See :class:`StorageWriter`; on rank 0.

        Raises CheckpointError: the tier does not answer.
        """
        session = _OPEN_TIERS.session(self._url, self._job)
        tier = _OPEN_TIERS.tier(self._url, self._job, session)
        if not (self._named or _OPEN_TIERS.attempts):  # before the first save
            warn_of_no_name([tier], self._job)
        version = self._version
        if version is None:
            version = max((m.version for m in tier.versions(self._job)), default=0) + 1
        _OPEN_TIERS.attempts += 1
        # The metadata is made last, and the layout first. It holds what the plans do, and where
        # each item is.
        size = (
            2 * len(pickle.dumps(plans))
            + _ITEM_BYTES * sum(len(p.items) for p in plans)
            + _LEAST_METADATA
        )
        ticket = _Ticket(
            0, len(plans), session, secrets.token_hex(8), version, _OPEN_TIERS.attempts, size
        )
        return [
            replace(plan, storage_data=replace(ticket, rank=rank))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Lay this rank's items out, and begin to send them.

        Raises CheckpointError, RequestError.
        """
        ticket = plan.storage_data
        if not isinstance(ticket, _Ticket) or ticket.exchange in _OPEN_TIERS.started:
            allowed = "a planner that makes a new plan for each save, without enable_plan_caching"
            raise RequestError("planner", type(planner).__name__, allowed)
        _OPEN_TIERS.started.append(ticket.exchange)
        if self._sending is not None:
            self._sending.give_up("another save has started")
        try:
            rows, size = self.lay_out(plan, planner)
        except Exception as error:  # else the others would wait for its size
            _tell(ticket, CheckpointError(f"{type(error).__name__}: {error}"))
            raise
        image, layout = _planned(tuple(_exchanged(ticket, size)), ticket.metadata_bytes)
        view = self._view(image.size)
        for offset, piece in image.pieces:
            view[offset : offset + len(piece)] = piece
        found: list[WriteResult] = []
        base = image.storages[ticket.rank]
        name = DATA_NAME.format(ticket.rank, ticket.exchange)
        own = view[base : base + size]
        for _ in self.fill(rows, name, own, planner, found):
            pass
        shard = Shard(self._job, ticket.version, ticket.rank, layout, view, attempt=ticket.attempt)
        tier = _OPEN_TIERS.tier(self._url, self._job, ticket.session)
        self._sending = _Sending(tier, shard, ticket, image.storages[-1])
        return done(found)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit: send metadata and checksums, and wait until the tier has the version.

        Raises CheckpointError.
        """
        assert self._sending is not None
        self._sending.commit(self.sealed(metadata, results)[0])

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=without_secrets(self._url), save_id=self._save_id)

    def _view(self, size: int) -> memoryview:
        """Memory for the whole file, the last save's if free; only this rank's part fills."""
        free = self._sending is None or self._sending.over
        if self._memory is None or len(self._memory) != size or not free:
            self._memory = address_space(size, sparse=True)
        return memoryview(self._memory)


@lru_cache(maxsize=1)
def _planned(sizes: tuple[int, ...], metadata: int) -> tuple[Image, Layout]:
    """The file of ranks with so many bytes, the same on all ranks."""
    empty = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in (*sizes, metadata)]
    image = plan_image({"ranks": empty[:-1], "metadata": empty[-1]})
    owned = [
        (Segment(o, n), r) for r, (o, n) in enumerate(zip(image.storages, image.sizes, strict=True))
    ]
    owned[-1] = (owned[-1][0], 0)
    return image, Layout(image.size, shards(image.size, len(sizes), owned), image.fields)


class _Sending:
    """A running save: a thread sends this rank's part and, on rank 0, the metadata."""

    def __init__(self, tier: Tier, shard: Shard, ticket: _Ticket, metadata: int) -> None:
        self._tier = tier
        self._ticket = ticket
        self._metadata = metadata
        self._shard = replace(shard, ready=self._ready, lost=self._fail)
        self._change = threading.Condition()
        self._complete = ticket.rank > 0
        self._reached: Level | None = None
        self._error: CheckpointError | None = None
        self._thread = threading.Thread(target=self._run, name="deepvm-dcp", daemon=True)
        self._thread.start()

    def commit(self, record: bytes) -> None:
        """Send the metadata, and wait until the whole version is safe. Raises CheckpointError."""
        size = self._ticket.metadata_bytes
        if _LENGTH.size + len(record) > size:
            self._fail(
                CheckpointError(
                    f"metadata of {len(record)} bytes do not fit into the {size} planned"
                )
            )
        at = self._metadata
        if self._error is None:
            self._shard.image[at : at + _LENGTH.size] = _LENGTH.pack(len(record))
            self._shard.image[at + _LENGTH.size : at + _LENGTH.size + len(record)] = record
        point("dcp.tier.before-commit")
        with self._change:
            self._complete = True
            self._change.notify_all()
        deadline = time.monotonic() + _WAIT_S + self._shard.moving_s
        while True:
            with self._change:
                self._change.wait_for(lambda: self._reached or self._error, _LOOK_S)
                if self._reached is not None:
                    break
                error = self._error or _failure(self._ticket)
            if error is None and time.monotonic() > deadline:
                error = CheckpointError(
                    f"{self._tier.url} did not take version {self._shard.version} in time"
                )
            if error is not None:
                # Else what waits for other ranks, here and there, would hold up the next save
                self._fail(error)
                _tell(self._ticket, error)
                raise error
        point("dcp.tier.after-commit")

    @property
    def over(self) -> bool:
        """Whether nothing reads the memory any more."""
        return not self._thread.is_alive()

    def give_up(self, why: str) -> None:
        """Send nothing more.

        What was sent in full has a moment to see the version committed, unless that failed.
        """
        if self._complete and (self.over or _failure(self._ticket) is None):
            self._thread.join(_SEEN_S)
        self._fail(CheckpointError(why))
        self._thread.join(_WAIT_S)

    def _run(self) -> None:
        try:
            self._put()
        except Exception as error:
            if isinstance(error, CheckpointError):
                failed = error
            else:
                log.exception("version %d is not on %s", self._shard.version, self._tier.url)
                failed = CheckpointError(f"{type(error).__name__}: {error}")
            self._fail(failed)
            if self._ticket.rank:
                log.warning(
                    "version %d: part %d was not sent: %s",
                    self._shard.version,
                    self._ticket.rank,
                    error,
                )
                _tell(self._ticket, failed)

    def _put(self) -> None:
        """Send this rank's part as soon as there is room for it."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                return self._tier.put(self._shard, self._acknowledged)
            except TierBusyError:
                with self._change:
                    if (
                        self._change.wait_for(lambda: self._error, _BUSY_S)
                        or time.monotonic() > deadline
                    ):
                        raise

    def _acknowledged(self, level: Level) -> None:
        with self._change:
            self._reached = level
            self._change.notify_all()

    def _fail(self, error: CheckpointError) -> None:
        with self._change:
            if self._reached is None:
                self._error = self._error or error
            self._change.notify_all()

    def _ready(self, end: int) -> None:
        if end <= self._metadata or self._complete:
            if self._error is not None:
                raise self._error
            return
        with self._change:
            self._change.wait_for(lambda: self._complete or self._error, _WAIT_S)
            if self._error is not None:
                raise self._error
            if not self._complete:
                raise CheckpointError("not all ranks have laid out their part in time")


class TierReader(FolderReader):
    """Reads the version ``checkpoint_id``, or the newest that is undamaged, from a tier."""

    def __init__(self, path: str | os.PathLike[str], *, job: str = "") -> None:
        """See :class:`FolderReader`. Raises RequestError."""
        super().__init__(".")
        self._url = str(path)
        self._job = name_of(job, "job")[0]
        open_tier(self._url, secrets.token_hex(8), option="path").close()
        self._version: int | None = None
        self._save_id = ""
        self._data: list[torch.Tensor] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See :class:`StorageReader`. Raises RequestError: it is no number."""
        if checkpoint_id is None:
            self._version = None
        else:
            self._version = number_of(checkpoint_id)
        self._crcs = {}
        self._metadata = None
        self._data = []

    def read_metadata(self, *args: Any, **_: Any) -> Metadata:
        """See :class:`StorageReader`.

        Raises CheckpointError: there is no version, or none that can be read.
        """
        tier = _opened(self._url, self._job, secrets.token_hex(8))
        problem: DamagedError | None = None
        try:
            for record in tier.versions(self._job):
                if self._version not in (None, record.version):
                    continue
                try:
                    with tempfile.TemporaryDirectory(prefix="deepvm-") as folder:
                        return self._take(tier.fetch(record, Path(folder)))
                except DamagedError as error:
                    # One that cannot be read now is no reason to go back
                    log.warning(
                        "version %d on %s is skipped: %s",
                        record.version,
                        without_secrets(tier.url),
                        error,
                    )
                    problem = problem or error
        finally:
            tier.close()
        if self._version is None:
            which = ""
        else:
            which = f" {self._version}"
        raise problem or CheckpointError(
            f"{without_secrets(self._url)}: no version{which} of {self._job}"
        )

    def _take(self, path: Path) -> Metadata:
        """Map a version's file, which may be removed then."""
        try:
            tree = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            data = [*tree["ranks"]]
            metadata = tree["metadata"]
            if not all(_is_plain(tensor) for tensor in (*data, metadata)):
                raise ValueError("it holds something else than bytes")
            record = bytes_of(metadata)
            (length,) = _LENGTH.unpack_from(record)
        except Exception as error:
            raise DamagedError(
                f"{path.name}: it is no checkpoint of DeepVMWriter: {error}"
            ) from None
        self._metadata, self._crcs = unseal(record[_LENGTH.size : _LENGTH.size + length], path)
        self._data = data
        return self._metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._metadata is not None and self._metadata.storage_meta is not None
        return replace(plan, storage_data=self._metadata.storage_meta.save_id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See :class:`StorageReader`.

        Raises CheckpointError: the ranks found different versions.
        """
        if len({plan.storage_data for plan in plans}) > 1:
            raise CheckpointError("the ranks read different versions; name one: checkpoint_id=STEP")
        return plans

    def _read(self, name: str, offset: int, length: int, item: str) -> bytes:
        crc = self._crcs.get((name, offset, length))
        found = NAME.fullmatch(name)
        rank = int(found[1]) if found is not None else -1
        if (
            crc is None
            or not 0 <= rank < len(self._data)
            or not 0 <= offset <= len(self._data[rank]) - length
        ):
            raise DamagedError(f"{without_secrets(self._url)}: item {item} has no checksum")
        data = bytes_of(self._data[rank][offset : offset + length])
        if crc32(data) != crc:
            raise DamagedError(f"{without_secrets(self._url)}: item {item} is damaged")
        return data


def number_of(checkpoint_id: object) -> int:
    """A version's number. Raises RequestError."""
    text = str(checkpoint_id)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63):
        raise RequestError("checkpoint_id", text, "a step, which is the version's number")
    return int(text)


def _is_plain(tensor: object) -> bool:
    """Whether it is a contiguous row of bytes on the CPU, safe to read as one block."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype is torch.uint8
        and tensor.dim() == 1
        and tensor.is_contiguous()
        and tensor.device.type == "cpu"
    )


def _store() -> Any:
    """The process group's key-value store, which threads may use next to the collectives."""
    return torch.distributed.distributed_c10d._get_default_store()


def _exchanged(ticket: _Ticket, size: int) -> list[int]:
    """The sizes of all ranks' parts, which rank 0 collects.

    Raises CheckpointError: a rank fails, or says nothing.
    """
    if ticket.world == 1:
        return [size]
    store = _store()
    own = f"deepvm/{ticket.exchange}/{ticket.rank}"
    every = f"deepvm/{ticket.exchange}/sizes"
    try:
        if ticket.rank:
            store.set(own, str(size))
            _await(ticket, [every])
            return [int(text) for text in store.get(every).decode().split()]
        keys = [f"deepvm/{ticket.exchange}/{rank}" for rank in range(1, ticket.world)]
        _await(ticket, keys)
        sizes = [size, *(int(store.get(key)) for key in keys)]
        store.set(every, " ".join(map(str, sizes)))
        # All ranks have left the save before: its plans are gathered at its end.
        _forget(store, [*keys, *_OPEN_TIERS.spent])
        _OPEN_TIERS.spent = [every, f"deepvm/{ticket.exchange}/failed"]
        return sizes
    except RuntimeError as error:
        raise CheckpointError(f"a rank does not take part in the save: {error}") from None


def _await(ticket: _Ticket, keys: list[str]) -> None:
    """Wait for keys of the store, by looking: one that waits there keeps all other threads out."""
    store = _store()
    deadline = time.monotonic() + _WAIT_S
    pause = _SOON_S
    while not store.check(keys):
        if (failed := _failure(ticket)) is not None:
            raise failed
        if time.monotonic() > deadline:
            raise CheckpointError(f"a rank does not take part in the save after {_WAIT_S:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, _OFTEN_S)


def _forget(store: Any, keys: list[str]) -> None:
    with contextlib.suppress(RuntimeError, NotImplementedError):  # some stores remove nothing
        for key in keys:
            store.delete_key(key)


def _tell(ticket: _Ticket, error: CheckpointError) -> None:
    """Let the other ranks know that the version will not be."""
    if ticket.world == 1:
        return
    try:
        _store().set(f"deepvm/{ticket.exchange}/failed", f"rank {ticket.rank}: {error}")
    except (RuntimeError, ValueError) as broken:  # it is closed: the training has ended
        log.debug("%s", broken)


def _failure(ticket: _Ticket) -> CheckpointError | None:
    """Why the version will not be, if another rank knows."""
    if ticket.world == 1:
        return None
    key = f"deepvm/{ticket.exchange}/failed"
    store = _store()
    if store.check([key]):
        return CheckpointError(store.get(key).decode())
    return None
