"""torch.distributed.checkpoint (DCP) on durable writes: atomic checkpoints, verified bytes.

::

    dcp.save(state, storage_writer=DeepVMWriter(folder))      # or async_save
    dcp.load(state, storage_reader=DeepVMReader(folder))      # on any number of ranks

Instead of a folder, memory nodes (``tcp://host:port``) and buckets (``s3://bucket/run``) keep each
save as a version, a torch file of ``{"ranks": [bytes of each rank], "metadata": bytes}``. Every
rank sends its own bytes; rank 0 sends the metadata last, when all ranks have laid out theirs. A
tier counts a checkpoint only when it has all parts, so a killed rank leaves the checkpoint before.

Torch's ``FileSystemReader`` can read folders too, unverified: checksums follow the pickled
metadata, where torch does not look.
"""

import contextlib
import io
import json
import mmap
import os
import pickle
import re
import secrets
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from deepvm.checkpoint.arguments import epoch, keep_of, name_of, warn_of_no_name
from deepvm.checkpoint.files.durable_write import failing, make_folder, write_file
from deepvm.checkpoint.format.checksums import crc32, finish
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.manifest import Level, Shard
from deepvm.checkpoint.format.tensor_bytes import bytes_of
from deepvm.checkpoint.format.torch_zip import ALIGNMENT, Image, plan_image
from deepvm.checkpoint.loggers import log
from deepvm.checkpoint.snapshot.host_buffer import address_space
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.training.ranks import shards
from deepvm.errors import (
    CheckpointError,
    DamagedError,
    OptionMismatchError,
    RequestError,
    TierBusyError,
)
from deepvm.io.atomic_write import discard, hidden_path, sync
from deepvm.io.failpoints import point
from deepvm.io.safe_read import StrPath
from deepvm.io.threads import start_thread
from deepvm.records import dataclass, replace

METADATA = ".metadata"
DATA_NAME = "__{}_{}.distcp"
NAME = re.compile(r"__([0-9]+)_[0-9a-f]{16}\.distcp", re.ASCII)
_MAGIC = b"deepvm.dcp/1\n"
_TRAILER = struct.Struct("<QI")  # length of the pickle, and CRC-32 of all before the trailer
_CRC = struct.Struct("<I")  # of the trailer
_HARMLESS = {
    "torch": ("Size", "device"),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
    "builtins": ("set",),
    "pathlib": ("Path", "PosixPath"),
    _StorageInfo.__module__: (_StorageInfo.__name__,),
}


class Piece(NamedTuple):
    """An item in a data file."""

    name: str
    offset: int
    length: int
    crc: int


def seal(pickled: bytes, pieces: Collection[Piece]) -> bytes:
    """A manifest: the pickle, the checksums of all items, and a trailer with CRC-32s."""
    rows: dict[str, list[tuple[int, ...]]] = {}
    for name, *numbers in sorted(pieces):
        rows.setdefault(name, []).append(tuple(numbers))
    body = pickled + json.dumps({"pieces": rows}, separators=(",", ":")).encode()
    trailer = _TRAILER.pack(len(pickled), crc32(body))
    return body + trailer + _CRC.pack(crc32(trailer)) + _MAGIC


def unseal(data: bytes, path: Path) -> tuple[Metadata, dict[tuple[str, int, int], int]]:
    """The metadata in a file of :func:`seal`, and the CRC-32s by file, offset and length."""
    end = len(data) - len(_MAGIC) - _CRC.size - _TRAILER.size
    if end < 0 or not data.endswith(_MAGIC):
        raise DamagedError(
            f"{path}: it has no checksums: it is damaged, or was written by something else"
        )
    trailer = data[end : end + _TRAILER.size]
    length, crc = _TRAILER.unpack(trailer)
    (own,) = _CRC.unpack_from(data, end + _TRAILER.size)
    if crc32(trailer) != own or crc32(memoryview(data)[:end]) != crc or length > end:
        raise DamagedError(f"{path}: it is damaged")
    try:
        rows = json.loads(data[length:end])["pieces"]
        crcs = {(name, int(o), int(n)): int(c) for name, own in rows.items() for o, n, c in own}
        metadata = _Unpickler(io.BytesIO(data[:length])).load()
    except Exception as error:  # a pickle that is none may raise any
        raise DamagedError(f"{path}: it cannot be read: {error}") from None
    if not isinstance(metadata, Metadata):
        raise DamagedError(f"{path}: it holds something else than metadata")
    return metadata, crcs


class _Unpickler(pickle.Unpickler):
    """Unpickles metadata classes only: a checksum does not authenticate the writer."""

    def find_class(self, module: str, name: str) -> Any:
        if module == dcp_metadata.__name__ and isinstance(
            found := getattr(dcp_metadata, name, None), type
        ):
            return found
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if name in _HARMLESS.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in metadata")


@cache
def item_image(dtype: torch.dtype, sizes: torch.Size) -> Image:
    """How torch.save would lay a tensor out."""
    return plan_image(torch.empty(sizes, dtype=dtype, device="cpu"))


def fill_item(part: memoryview, image: Image, data: Any, item: WriteItem) -> None:
    """Lay a tensor out as torch.save would, checksums included."""
    wanted = item.tensor_data
    assert wanted is not None
    if (
        not isinstance(data, torch.Tensor)
        or data.dtype != wanted.properties.dtype
        or data.shape != wanted.chunk.sizes
    ):
        raise CheckpointError(f"{item.index.fqn}: the planner gives another tensor than it planned")
    for offset, piece in image.pieces:
        part[offset : offset + len(piece)] = piece
    if data.numel():
        target = torch.frombuffer(
            part, dtype=data.dtype, count=data.numel(), offset=image.storages[0]
        )
        target.view(data.shape).copy_(data.detach())
    finish(part, image.layout())


T = TypeVar("T")
_VERSION = "1.0.0"  # of the layout, as torch counts
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
        # Tickets of the newest saves: a planner with a cached plan reuses its ticket
        self.started: deque[str] = deque(maxlen=100)
        self.spent: list[str] = []  # Rank 0's: keys of the save before in the store

    def tier(self, url: str, job: str, session: str = "") -> tuple[str, Tier]:
        """A session, by default the run's, and its tier; that of an earlier one is closed."""
        with self._lock:
            known = self._open.get((url, job))
            if known is None or session not in ("", known[0]):
                session = session or secrets.token_hex(8)
                tier = _opened(url, job, session)
                if known is not None:
                    known[1].close()
                known = self._open[url, job] = session, tier
            return known


# An item's offset in the rank's data, its length, the item, and its image or bytes
_Row = tuple[int, int, WriteItem, "Image | memoryview"]
_OPEN_TIERS = _OpenTiers()


def _opened(url: str, job: str, session: str) -> Tier:
    """The tier of this generation of the job. Raises CheckpointError: a newer one has started."""
    generation = epoch()
    with contextlib.ExitStack() as undo:
        tier = open_tier(url, session, keep_of(None), option="path")
        undo.callback(tier.close)
        if generation is not None:
            tier.begin(job, generation)
        undo.pop_all()
    return tier


class DeepVMWriter(StorageWriter):
    """Writes a checkpoint to a shared folder, replacing the previous one, or to a tier.

    With a URL of memory nodes or a bucket, ``checkpoint_id`` is the step, by default the one after
    the newest checkpoint's; a save returns when the checkpoint is remote. ``job``: the training
    job's name there; empty: ``DEEPVM_JOB``, else ``job``. A subclass writes to folders only. Memory
    is reused: wait for an ``async_save`` to finish before the next save with the same writer.
    """

    def __new__(cls, path: StrPath = "", *, direct: bool = True, job: str = "") -> "DeepVMWriter":
        # Without a path, let pickle fill in the state
        return super().__new__(TierWriter if cls is DeepVMWriter and "://" in str(path) else cls)

    def __init__(self, path: StrPath, *, direct: bool = True, job: str = "") -> None:
        """``direct``: write past the page cache (O_DIRECT). Raises RequestError: for tiers only."""
        _refuse_options_of_tiers(type(self), path, job)
        self._path = Path(path)
        self._direct = direct
        self._save_id = ""
        self._memory: mmap.mmap | None = None

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        if checkpoint_id:
            self._path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            allowed = "True: one manifest stands for all ranks"
            raise RequestError("use_collectives", False, allowed)
        self._save_id = secrets.token_hex(8)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items into one file, durably. Raises CheckpointError."""
        # A new name here, because a planner may reuse a plan for several saves.
        name = DATA_NAME.format(plan.storage_data, secrets.token_hex(8))
        rows, size = self.lay_out(plan, planner)
        found: list[WriteResult] = []
        if size:
            if self._memory is None or len(self._memory) < size:
                # Page-aligned, so that the file can be written past the page cache
                self._memory = mmap.mmap(-1, size)
            view = memoryview(self._memory)[:size]
            final = self.fill(rows, name, view, planner, found)
            self._place(self._path / name, view, final, "dcp.data")
        return done(found)

    def lay_out(self, plan: SavePlan, planner: SavePlanner) -> tuple[list[_Row], int]:
        # Other items than tensors are small, and their size is known only from their bytes.
        rows: list[_Row] = []
        size = 0
        for item in plan.items:
            made: Image | memoryview
            if item.type is WriteItemType.BYTE_IO:
                data = planner.resolve_data(item)
                if not isinstance(data, io.BytesIO):
                    text = f"the planner gives {type(data).__name__} instead of bytes"
                    raise CheckpointError(f"{item.index.fqn}: {text}")
                made = data.getbuffer()
                length = len(made)
            else:
                assert item.tensor_data is not None
                made = item_image(item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes)
                length = made.size
            rows.append((size, length, item, made))
            size += -(-length // ALIGNMENT) * ALIGNMENT
        return rows, size

    def fill(
        self,
        rows: list[_Row],
        name: str,
        view: memoryview,
        planner: SavePlanner,
        results: list[WriteResult],
    ) -> Iterator[int]:
        """Put the items in place, checksums in ``results``; yields where what is final ends."""
        for offset, length, item, made in rows:
            part = view[offset : offset + length]
            if isinstance(made, Image):
                fill_item(part, made, planner.resolve_data(item), item)
            else:
                part[:] = made
            piece = Piece(name, offset, length, crc32(part))
            results.append(WriteResult(item.index, length, piece))
            yield offset + length
        yield len(view)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        if hasattr(metadata, "version"):
            metadata.version = _VERSION
        data, pieces = self.sealed(metadata, results)
        ends: dict[str, int] = {}
        for piece in pieces:
            ends[piece.name] = max(ends.get(piece.name, 0), piece.offset + piece.length)
        for name, end in ends.items():
            path = self._path / name
            if not path.is_file() or path.stat().st_size < end:
                raise CheckpointError(
                    f"{path}: the rank that wrote it has another folder; all ranks must share one"
                )
        self._place(self._path / METADATA, memoryview(data), (len(data),), "dcp.metadata")
        with failing(self._path):
            for path in self._path.iterdir():
                left = path.name.endswith(".tmp") and path.name.startswith((".__", f".{METADATA}."))
                # Data files of other saves, including killed ones
                if left or (NAME.fullmatch(path.name) and path.name not in ends):
                    discard(path)

    def sealed(
        self, metadata: Metadata, results: list[list[WriteResult]]
    ) -> tuple[bytes, set[Piece]]:
        """The manifest, and where all items are; fills in ``metadata``."""
        pieces = {result.index: result.storage_data for rank in results for result in rank}
        metadata.storage_data = {
            i: _StorageInfo(p.name, p.offset, p.length) for i, p in pieces.items()
        }
        metadata.storage_meta = self.storage_meta()
        found = set(pieces.values())
        return seal(pickle.dumps(metadata), found), found

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=str(self._path), save_id=self._save_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        return "://" not in str(checkpoint_id)

    def _place(self, target: Path, data: memoryview, final: Any, prefix: str) -> None:
        with failing(target):
            make_folder(target.parent)
            with hidden_path(target) as hidden:
                write_file(hidden, data, final, direct=self._direct, prefix=prefix)
                point(f"{prefix}.before-rename")
                os.replace(hidden, target)
            point(f"{prefix}.before-folder-sync")
            sync(target.parent)
            point(f"{prefix}.after-folder-sync")


class TierWriter(DeepVMWriter):
    """Sends each checkpoint to a tier."""

    def __init__(self, path: StrPath, *, direct: bool = True, job: str = "") -> None:
        super().__init__(".", direct=direct)
        self._url = str(path)
        self._job, self._named = name_of(job, "job")  # readers are other scripts
        # Refuse what is no place now
        open_tier(self._url, secrets.token_hex(8), option="path").close()
        self._version: int | None = None
        self._sending: _Sending | None = None

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        self._version = _number_of(checkpoint_id)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        session, tier = _OPEN_TIERS.tier(self._url, self._job)
        if not (self._named or _OPEN_TIERS.attempts):  # before the first save
            warn_of_no_name([tier], self._job)
        version = self._version
        if version is None:
            version = max((m.version for m in tier.versions(self._job)), default=0) + 1
        _OPEN_TIERS.attempts += 1
        # The metadata is made last, and the layout first. It holds what the plans do, and where
        # each item is.
        items = sum(len(plan.items) for plan in plans)
        size = 2 * len(pickle.dumps(plans)) + _ITEM_BYTES * items + _LEAST_METADATA
        ticket = _Ticket(
            0, len(plans), session, secrets.token_hex(8), version, _OPEN_TIERS.attempts, size
        )
        return [
            replace(plan, storage_data=replace(ticket, rank=rank))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        ticket = plan.storage_data
        if not isinstance(ticket, _Ticket) or ticket.exchange in _OPEN_TIERS.started:
            allowed = "a planner that makes a new plan for each save, without enable_plan_caching"
            raise RequestError("planner", type(planner).__name__, allowed)
        _OPEN_TIERS.started.append(ticket.exchange)
        if self._sending is not None:
            self._sending.give_up()
        try:
            rows, size = self.lay_out(plan, planner)
        except Exception as error:  # else the others would wait for its size
            _tell(ticket, CheckpointError(f"{type(error).__name__}: {error}"))
            raise
        image, layout = _planned(tuple(_exchanged(ticket, size)), ticket.metadata_bytes)
        # The last save's memory if it is free; of it only this rank's part is filled
        busy = self._sending is not None and not self._sending.over
        if busy or self._memory is None or len(self._memory) != image.size:
            self._memory = address_space(image.size, sparse=True)
        view = memoryview(self._memory)
        for offset, piece in image.pieces:
            view[offset : offset + len(piece)] = piece
        found: list[WriteResult] = []
        base = image.storages[ticket.rank]
        name = DATA_NAME.format(ticket.rank, ticket.exchange)
        for _ in self.fill(rows, name, view[base : base + size], planner, found):
            pass
        shard = Shard(self._job, ticket.version, ticket.rank, layout, view, attempt=ticket.attempt)
        _, tier = _OPEN_TIERS.tier(self._url, self._job, ticket.session)
        self._sending = _Sending(tier, shard, ticket, image.storages[-1])
        return done(found)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._sending is not None
        self._sending.commit(self.sealed(metadata, results)[0])

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=without_secrets(self._url), save_id=self._save_id)


@lru_cache(maxsize=1)
def _planned(sizes: tuple[int, ...], metadata: int) -> tuple[Image, Layout]:
    """The file of ranks with so many bytes, the same on all ranks."""
    empty = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in (*sizes, metadata)]
    image = plan_image({"ranks": empty[:-1], "metadata": empty[-1]})
    segments = map(Segment, image.storages, image.sizes)
    owned = list(zip(segments, (*range(len(sizes)), 0), strict=True))
    return image, Layout(image.size, shards(image.size, len(sizes), owned), image.fields)


@dataclass(eq=False)
class _Sending:
    """A running save: a thread sends this rank's part and, on rank 0, the ``metadata`` there."""

    tier: Tier
    shard: Shard
    ticket: _Ticket
    metadata: int

    def __post_init__(self) -> None:
        self.shard = replace(self.shard, ready=self._ready, lost=self._fail)
        self._change = threading.Condition()
        self._complete = self.ticket.rank > 0
        self._reached: Level | None = None
        self._error: CheckpointError | None = None
        self._thread = start_thread(self._run, name="deepvm-dcp")

    def commit(self, record: bytes) -> None:
        size = self.ticket.metadata_bytes
        data = _LENGTH.pack(len(record)) + record
        if len(data) > size:
            text = f"metadata of {len(record)} bytes do not fit into the {size} planned"
            self._fail(CheckpointError(text))
        if self._error is None:
            self.shard.image[self.metadata : self.metadata + len(data)] = data
        point("dcp.tier.before-commit")
        with self._change:
            self._complete = True
            self._change.notify_all()
        deadline = time.monotonic() + _WAIT_S + self.shard.moving_s
        while True:
            with self._change:
                self._change.wait_for(lambda: self._reached or self._error, _LOOK_S)
                if self._reached is not None:
                    break
                error = self._error or _failure(self.ticket)
            if error is None and time.monotonic() > deadline:
                error = CheckpointError(
                    f"{self.tier.url} did not take version {self.shard.version} in time"
                )
            if error is not None:
                # Else what waits for other ranks, here and there, would hold up the next save
                self._fail(error)
                _tell(self.ticket, error)
                raise error
        point("dcp.tier.after-commit")

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Send nothing more; what was sent in full has a moment to see the checkpoint committed."""
        if self._complete and (self.over or _failure(self.ticket) is None):
            self._thread.join(_SEEN_S)
        self._fail(CheckpointError("another save has started"))
        self._thread.join(_WAIT_S)

    def _run(self) -> None:
        try:
            self._put()
        except Exception as error:
            failed = error
            if not isinstance(failed, CheckpointError):
                log.exception("version %d is not on %s", self.shard.version, self.tier.url)
                failed = CheckpointError(f"{type(error).__name__}: {error}")
            self._fail(failed)
            rank = self.ticket.rank
            if rank:
                log.warning("version %d: part %d was not sent: %s", self.shard.version, rank, error)
                _tell(self.ticket, failed)

    def _put(self) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                return self.tier.put(self.shard, self._acknowledged)
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
        if end <= self.metadata or self._complete:
            if self._error is not None:
                raise self._error
            return
        with self._change:
            self._change.wait_for(lambda: self._complete or self._error, _WAIT_S)
            if self._error is not None:
                raise self._error
            if not self._complete:
                raise CheckpointError("not all ranks have laid out their part in time")


class DeepVMReader(FileSystemReader):
    """Reads what :class:`DeepVMWriter` wrote, on any number of ranks; verifies each item.

    A subclass reads from folders only.
    """

    def __new__(cls, path: StrPath = "", *, job: str = "") -> "DeepVMReader":
        return super().__new__(TierReader if cls is DeepVMReader and "://" in str(path) else cls)

    def __init__(self, path: StrPath, *, job: str = "") -> None:
        """Raises RequestError: for tiers only."""
        _refuse_options_of_tiers(type(self), path, job)
        super().__init__(path)
        self._crcs: Mapping[tuple[str, int, int], int] = {}
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        super().reset(checkpoint_id)
        self._crcs = {}
        self._metadata = None

    def read_metadata(self, *args: Any, **_: Any) -> Metadata:
        folder = Path(self.path)
        path = folder / METADATA
        with failing(path, "read", DamagedError):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                text = f"{folder}: it has no {METADATA}: no save here was completed"
                raise DamagedError(text) from None
        self._metadata, self._crcs = unseal(data, path)
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **_: Any
    ) -> None:
        """Metadata may come from another rank; checksums are read here."""
        self.storage_data = metadata.storage_data
        if metadata is not self._metadata:
            self.read_metadata()

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Raises DamagedError, with file and item, if bytes differ."""
        by_place: dict[tuple[str, int, int], list[ReadItem]] = {}
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            by_place.setdefault((place.relative_path, place.offset, place.length), []).append(item)
        for (name, offset, length), items in sorted(by_place.items(), key=lambda pair: pair[0]):
            data = self._read(name, offset, length, items[0].storage_index.fqn)
            tensor: torch.Tensor | None = None
            for item in items:  # several parts of one stored tensor, if the sharding has changed
                if item.type is LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(data))
                    continue
                if tensor is None:
                    tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                _put(planner, item, tensor)
        return done(None)

    def _read(self, name: str, offset: int, length: int, item: str) -> bytes:
        place = f"{self._place}/{name}: item {item}"
        crc = self._crcs.get((name, offset, length))
        found = NAME.fullmatch(name)
        if crc is None or found is None:
            raise DamagedError(f"{place} has no checksum")
        data = self._bytes(name, int(found[1]), offset, length)
        if len(data) != length or crc32(data) != crc:
            raise DamagedError(f"{place}, bytes {offset} to {offset + length - 1}, is damaged")
        return data

    @property
    def _place(self) -> str:
        return str(self.path)

    def _bytes(self, name: str, rank: int, offset: int, length: int) -> bytes:
        path = Path(self.path) / name
        with failing(path, "read", DamagedError), path.open("rb") as file:
            file.seek(offset)
            return file.read(length)


def _refuse_options_of_tiers(kind: type, path: object, job: str) -> None:
    if "://" in str(path):
        raise RequestError(
            "path", path, f"a folder: {kind.__name__} is a subclass, which takes no URL"
        )
    if job:
        reason = "does not go with a folder, which holds one checkpoint"
        raise OptionMismatchError("job", job, reason, f"file://{path}")


class TierReader(DeepVMReader):
    """Reads the checkpoint ``checkpoint_id``, or the newest that is undamaged, from a tier."""

    def __init__(self, path: StrPath, *, job: str = "") -> None:
        super().__init__(".")
        self._url = str(path)
        self._job = name_of(job, "job")[0]
        open_tier(self._url, secrets.token_hex(8), option="path").close()
        self._version: int | None = None
        self._save_id = ""
        self._data: list[torch.Tensor] = []

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        self._version = _number_of(checkpoint_id)
        self._crcs = {}
        self._metadata = None
        self._data = []

    def read_metadata(self, *args: Any, **_: Any) -> Metadata:
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
                    text = "version %d on %s is skipped: %s"
                    log.warning(text, record.version, self._place, error)
                    problem = problem or error
        finally:
            tier.close()
        which = "checkpoint"
        if self._version is not None:
            which += f" {self._version}"
        raise problem or CheckpointError(f"{self._place}: no {which} of {self._job}")

    def _take(self, path: Path) -> Metadata:
        """Map a checkpoint's file, which may be removed then. Raises DamagedError."""
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
        if len({plan.storage_data for plan in plans}) > 1:
            raise CheckpointError(
                "the ranks read different checkpoints; name one: checkpoint_id=STEP"
            )
        return plans

    @property
    def _place(self) -> str:
        return without_secrets(self._url)

    def _bytes(self, name: str, rank: int, offset: int, length: int) -> bytes:
        if rank >= len(self._data) or not 0 <= offset <= len(self._data[rank]) - length:
            return b""
        return bytes_of(self._data[rank][offset : offset + length])


def _number_of(checkpoint_id: object) -> int | None:
    if checkpoint_id is None:
        return None
    text = str(checkpoint_id)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63):
        raise RequestError("checkpoint_id", text, "a step, which is the checkpoint's number")
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
    if ticket.world == 1:
        return [size]
    store = _store()
    keys = [f"deepvm/{ticket.exchange}/{rank}" for rank in range(ticket.world)]
    try:
        store.set(keys[ticket.rank], str(size))
        _await(ticket, keys)
        sizes = [int(text) for text in store.multi_get(keys)]
    except RuntimeError as error:
        raise CheckpointError(f"a rank does not take part in the save: {error}") from None
    if not ticket.rank:
        with contextlib.suppress(RuntimeError, NotImplementedError):  # some stores remove nothing
            for key in _OPEN_TIERS.spent:
                store.delete_key(key)
        # They can go in the next save, which all ranks enter after they have left this one.
        _OPEN_TIERS.spent = [*keys, f"deepvm/{ticket.exchange}/failed"]
    return sizes


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


def _tell(ticket: _Ticket, error: CheckpointError) -> None:
    if ticket.world == 1:
        return
    try:
        _store().set(f"deepvm/{ticket.exchange}/failed", f"rank {ticket.rank}: {error}")
    except (RuntimeError, ValueError) as broken:  # it is closed: the training has ended
        log.debug("%s", broken)


def _failure(ticket: _Ticket) -> CheckpointError | None:
    key = f"deepvm/{ticket.exchange}/failed"
    if ticket.world > 1 and _store().check([key]):
        return CheckpointError(_store().get(key).decode())
    return None


def _put(planner: LoadPlanner, item: ReadItem, tensor: torch.Tensor) -> None:
    for dimension, (start, length) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        tensor = tensor.narrow(dimension, start, length)
    target = planner.resolve_tensor(item).detach()
    if target.shape != tensor.shape:
        raise CheckpointError(
            f"{item.storage_index.fqn}: {tuple(tensor.shape)} does not fit {tuple(target.shape)}"
        )
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def done(result: T) -> Future[T]:
    """A resolved future."""
    future: Future[T] = Future()
    future.set_result(result)
    return future
