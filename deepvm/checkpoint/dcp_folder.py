"""DCP checkpoints in folders: durable writes, whole versions, verified bytes; dcp.py is the front.

Each rank writes one data file, past the page cache if possible; then rank 0 writes ``.metadata``,
the commit record. Data files get new names in each save, so a killed save leaves the previous one
readable. The layout is that of torch's own ``FileSystemWriter``, which can also read these folders,
unverified: the checksums of every item and of the metadata follow the pickled metadata, where torch
does not look.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import re
import secrets
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
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

from deepvm.checkpoint.files.durable_write import failing, make_folder, write_file
from deepvm.checkpoint.format.checksums import crc32, finish
from deepvm.checkpoint.format.torch_zip import ALIGNMENT, Image, plan_image
from deepvm.errors import CheckpointError, DamagedError, RequestError
from deepvm.io.atomic_write import discard, hidden_path, sync
from deepvm.io.failpoints import point

T = TypeVar("T")
METADATA = ".metadata"
DATA_NAME = "__{}_{}.distcp"
NAME = re.compile(r"__([0-9]+)_[0-9a-f]{16}\.distcp", re.ASCII)
_VERSION = "1.0.0"  # of the layout, as torch counts
_MAGIC = b"deepvm.dcp/1\n"
_TRAILER = struct.Struct("<QI")
_HARMLESS = {
    "torch": ("Size", "device"),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
    "builtins": ("set",),
    "pathlib": ("Path", "PosixPath"),
    _StorageInfo.__module__: (_StorageInfo.__name__,),
}


_Row = tuple[int, int, WriteItem, "Image | memoryview"]
"""An item's offset in the rank's data, its length, the item, and its image or bytes."""


class Piece(NamedTuple):
    """An item in a data file, and the CRC-32 of its bytes."""

    name: str
    offset: int
    length: int
    crc: int


def seal(pickled: bytes, pieces: Collection[Piece]) -> bytes:
    """Build a commit record: the pickle, the checksums of all items, and a trailer with CRC-32s."""
    rows: dict[str, list[tuple[int, ...]]] = {}
    for name, *numbers in sorted(pieces):
        rows.setdefault(name, []).append(tuple(numbers))
    body = pickled + json.dumps({"pieces": rows}, separators=(",", ":")).encode()
    trailer = _TRAILER.pack(len(pickled), crc32(body))
    return body + trailer + struct.pack("<I", crc32(trailer)) + _MAGIC


def unseal(data: bytes, path: Path) -> tuple[Metadata, dict[tuple[str, int, int], int]]:
    """The metadata in a file of :func:`seal`, and the CRC-32s by file, offset and length.

    Raises DamagedError.
    """
    end = len(data) - len(_MAGIC) - 4 - _TRAILER.size
    if end < 0 or not data.endswith(_MAGIC):
        raise DamagedError(
            f"{path}: it has no checksums: it is damaged, or was written by something else"
        )
    trailer = data[end : end + _TRAILER.size]
    length, crc = _TRAILER.unpack(trailer)
    own = struct.unpack_from("<I", data, end + _TRAILER.size)[0]
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


class FolderWriter(StorageWriter):
    """Writes a checkpoint into a folder that all ranks share, replacing the previous one."""

    def __init__(self, path: str | os.PathLike[str], *, direct: bool = True) -> None:
        """Create nothing before the first save.

        A writer reuses the memory in which it lays out its rank's data file: wait for an
        ``async_save`` to finish before the next save with the same writer.

        Args:
            path: the folder; ``checkpoint_id`` of a save replaces it.
            direct: write past the page cache (O_DIRECT) where the file system can.
        """
        self._path = Path(path)
        self._direct = direct
        self._save_id = ""
        self._memory: mmap.mmap | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self._path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See :class:`StorageWriter`.

        Raises RequestError: collectives are off, so no rank could commit.
        """
        if not kwargs.get("use_collectives", True):
            raise RequestError(
                "use_collectives", False, "True: one commit record stands for all ranks"
            )
        self._save_id = secrets.token_hex(8)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items into one file, durably.

        Raises CheckpointError: it could not be written.
        """
        # A new name here, because a planner may reuse a plan for several saves.
        name = DATA_NAME.format(plan.storage_data, secrets.token_hex(8))
        rows, size = self.lay_out(plan, planner)
        found: list[WriteResult] = []
        if size:
            view = self._room(size)
            self._place(
                self._path / name, view, self.fill(rows, name, view, planner, found), "dcp.data"
            )
        return done(found)

    def lay_out(self, plan: SavePlan, planner: SavePlanner) -> tuple[list[_Row], int]:
        """Where each item of a plan goes, and the bytes of all. Raises CheckpointError."""
        # Other items than tensors are small, and their size is known only from their bytes.
        rows: list[_Row] = []
        size = 0
        for item in plan.items:
            made: Image | memoryview
            if item.type is WriteItemType.BYTE_IO:
                data = planner.resolve_data(item)
                if not isinstance(data, io.BytesIO):
                    raise CheckpointError(
                        f"{item.index.fqn}: the planner gives {type(data).__name__} in place of"
                        " bytes"
                    )
                made = data.getbuffer()
            else:
                assert item.tensor_data is not None
                made = _image(item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes)
            if isinstance(made, Image):
                length = made.size
            else:
                length = len(made)
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
        """Put the items in place, each with its checksum in ``results``.

        Yields where what is final ends.
        """
        for offset, length, item, made in rows:
            part = view[offset : offset + length]
            if isinstance(made, Image):
                _fill(part, made, planner.resolve_data(item), item)
            else:
                part[:] = made
            piece = Piece(name, offset, length, crc32(part))
            results.append(WriteResult(item.index, length, piece))
            yield offset + length
        yield len(view)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit: write metadata and checksums, then remove the files of earlier saves.

        Raises CheckpointError.
        """
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
            self._sweep(ends.keys())

    def sealed(
        self, metadata: Metadata, results: list[list[WriteResult]]
    ) -> tuple[bytes, set[Piece]]:
        """The commit record, and where all items are; fills in ``metadata``."""
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
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """See :class:`StorageWriter`; folders only."""
        return "://" not in str(checkpoint_id)

    def _room(self, size: int) -> memoryview:
        if self._memory is None or len(self._memory) < size:
            # Page-aligned, so that the file can be written past the page cache
            self._memory = mmap.mmap(-1, size)
        return memoryview(self._memory)[:size]

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

    def _sweep(self, used: Collection[str]) -> None:
        """Remove data files of other saves, including killed ones, that no metadata refers to."""
        for path in self._path.iterdir():
            left = path.name.endswith(".tmp") and path.name.startswith((".__", f".{METADATA}."))
            if left or (NAME.fullmatch(path.name) and path.name not in used):
                discard(path)


class FolderReader(FileSystemReader):
    """Reads what :class:`FolderWriter` wrote, on any number of ranks; verifies each item."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Remember the folder; ``checkpoint_id`` of a load replaces it."""
        super().__init__(path)
        self._crcs: Mapping[tuple[str, int, int], int] = {}
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        super().reset(checkpoint_id)
        self._crcs = {}
        self._metadata = None

    def read_metadata(self, *args: Any, **_: Any) -> Metadata:
        """See :class:`StorageReader`.

        Raises DamagedError: the checkpoint is incomplete or damaged.
        """
        folder = Path(self.path)
        path = folder / METADATA
        with failing(path, "read", DamagedError):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise DamagedError(
                    f"{folder}: it has no {METADATA}: no save here was completed"
                ) from None
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
        """Read this rank's items. Raises DamagedError, with file and item, if bytes differ."""
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
        path = Path(self.path) / name
        crc = self._crcs.get((name, offset, length))
        if crc is None or not NAME.fullmatch(name):
            raise DamagedError(f"{path}: item {item} has no checksum")
        with failing(path, "read", DamagedError), path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        if len(data) != length or crc32(data) != crc:
            raise DamagedError(
                f"{path}: item {item}, bytes {offset} to {offset + length - 1}, is damaged"
            )
        return data


def done(result: T) -> Future[T]:
    """A future that has its result."""
    future: Future[T] = Future()
    future.set_result(result)
    return future


@cache
def _image(dtype: torch.dtype, sizes: torch.Size) -> Image:
    """The file layout of such a tensor."""
    return plan_image(torch.empty(sizes, dtype=dtype, device="cpu"))


def _fill(part: memoryview, image: Image, data: Any, item: WriteItem) -> None:
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
