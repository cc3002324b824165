"""Memory laid out as the file: a zip that plain ``torch.load`` reads, planned once and then only filled in.

``torch.save`` with ``skip_data`` writes everything but the tensors' bytes and shows, by seeking, where these belong.
Storages are copied there, numbers are patched into the pickle, and zip's checksums are left to
:func:`deepvm.checkpoint.format.checksums.finish`. So no version is ever pickled, packed or repacked (ACUTE's
Check-Pack), and tensors lie at multiples of 128 bytes (LightCheck III-D).
"""

from __future__ import annotations

import io
import logging
import os
import struct
import tempfile
import zipfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import torch

from deepvm.checkpoint.format.flatten import FlatState, flatten, map_leaves
from deepvm.checkpoint.format.layout import ChecksumField, Layout, Segment
from deepvm.errors import CheckpointError

ALIGNMENT = 128
_DESCRIPTOR = b"PK\x07\x08"
# Values that fill eight bytes of a pickle, so that any other value can be written over them. See _number_places().
_INT_MARK, _FLOAT_MARK = 0x6A5A5A5A00000000, 0x7E5A5A5A00000000

log = logging.getLogger("deepvm.checkpoint")
_warned: set[str] = set()


@dataclass(frozen=True)
class Image:
    """The file of a state.

    Attributes:
        size: bytes of the file. pieces: what is not tensor data, by its offset.
        storages: offset of each storage's bytes. sizes: their lengths.
        numbers: offset of the eight bytes of each number. floats: whether it is a float (big-endian) or an integer.
        pickle: where the pickle is. fields: checksums to fill in at the end.
        lasting: whether it serves every version of this structure.
    """

    size: int
    pieces: tuple[tuple[int, bytes], ...]
    storages: tuple[int, ...]
    sizes: tuple[int, ...]
    numbers: tuple[int, ...]
    floats: tuple[bool, ...]
    pickle: Segment
    fields: tuple[ChecksumField, ...]
    lasting: bool = True

    def layout(self) -> Layout:
        """The layout with one rank that sends all of it."""
        return Layout(self.size, ((Segment(0, self.size),),), self.fields)

    def write_numbers(self, image: memoryview, numbers: Sequence[int | float]) -> None:
        """Patch the numbers of a version into its pickle."""
        for offset, is_float, value in zip(self.numbers, self.floats, numbers, strict=True):
            struct.pack_into(">d" if is_float else "<q", image, offset, value)


class _Sink(io.RawIOBase):
    """A file that records what is written, and where data was skipped."""

    def __init__(self) -> None:
        self.position = 0
        self.pieces: list[tuple[int, bytes]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # Long runs of zeros are padding between records as well; they are kept, because they are few.
        self.pieces.append((self.position, bytes(data)))
        self.position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != os.SEEK_CUR or offset < 0:
            raise CheckpointError("torch.save moves in its file in a way that is not known here")
        self.position += offset
        return self.position

    def tell(self) -> int:
        return self.position


class SavedImage(Image):
    """The file of one version as ``torch.save`` wrote it: nothing is left to be copied, patched or filled in."""

    def write_numbers(self, image: memoryview, numbers: Sequence[int | float]) -> None:
        """They are in it."""


def plan_image(tree: Any, parts: FlatState | None = None) -> Image:
    """Lay out the file of a state.

    Args:
        tree: the state.
        parts: the flattened state, if there is one already.

    Raises:
        CheckpointError: this release of torch writes files that are not understood here, or there is no room to test
            the layout.
        RequestError: the state holds something that torch would not load.
    """
    parts = parts or flatten(tree)
    twins = [torch.UntypedStorage(s.nbytes(), device="cpu") for s in parts.storages]  # type: ignore[no-untyped-call]
    template = _template(tree, parts, twins)
    sink = _Sink()
    from torch.utils.serialization import config

    aligned = config.patch("save.storage_alignment", ALIGNMENT)  # type: ignore[attr-defined]
    with torch.serialization.skip_data(), aligned:
        torch.save(template, cast("IO[bytes]", sink))
    del template
    image = _read_image(sink, [s.nbytes() for s in parts.storages], parts)
    _test(image, parts)
    return image


def lay_out(tree: Any, parts: FlatState, world: int) -> Image:
    """:func:`plan_image`, or the saved file where that is not possible; the log says so once.

    Saving is slower, and training stands still meanwhile; the file is verified and restored like any other.

    Args:
        tree: the state.
        parts: the flattened state.
        world: ranks that share the file; the files that several of them save are not the same.

    Raises:
        CheckpointError: it is not possible, and there are several ranks.
    """
    try:
        return plan_image(tree, parts)
    except CheckpointError as error:
        if world > 1:
            raise CheckpointError(f"{error}; several ranks need a release of torch that is known here") from error
        if str(error) not in _warned:
            _warned.add(str(error))
            log.warning("%s; each version is saved by torch.save while training stands still", error)
    stream = io.BytesIO()
    torch.save(tree, stream)
    data = stream.getvalue()
    return SavedImage(len(data), ((0, data),), (), (), (), (), Segment(0, 0), (), lasting=False)


def _template(tree: Any, parts: FlatState, twins: Sequence[torch.UntypedStorage]) -> Any:
    index = {storage._cdata: number for number, storage in enumerate(parts.storages)}
    count = 0

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        storage = twins[index[tensor.untyped_storage()._cdata]]
        made = torch.empty(0, dtype=tensor.dtype, device="cpu")
        made = made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        made = made.conj() if tensor.is_conj() else made  # views: the file holds the bytes of what they look at
        return torch._neg_view(made) if tensor.is_neg() else made

    def mark(value: int | float) -> int | float:
        nonlocal count
        count += 1
        return _marked_float(count) if isinstance(value, float) else _INT_MARK + count

    return map_leaves(tree, twin, mark)


def _marked_float(number: int) -> float:
    return float(struct.unpack(">d", struct.pack(">Q", _FLOAT_MARK + number))[0])


@dataclass(frozen=True)
class _Record:
    """A file inside the zip: where its bytes are, and the places of its CRC-32."""

    name: str
    offset: int
    size: int
    crc_places: tuple[int, ...]


def _read_image(sink: _Sink, sizes: Sequence[int], parts: FlatState) -> Image:
    view = _Sparse(sink.pieces, sink.position)
    records = {r.name.partition("/")[2]: r for r in _records(view)}
    pickle = records["data.pkl"]
    offsets = []
    changing = [pickle]
    for number, size in enumerate(sizes):
        record = records.get(f"data/{number}")
        if record is None or record.size != size:
            raise CheckpointError(f"torch.save wrote storage {number} in a way that is not known here")
        offsets.append(record.offset)
        if size:
            changing.append(record)
    floats = tuple(isinstance(n, float) for n in parts.numbers)
    return Image(
        size=sink.position,
        pieces=_merged(sink.pieces),
        storages=tuple(offsets),
        sizes=tuple(sizes),
        numbers=_number_places(view.at(pickle.offset, pickle.size), pickle.offset, floats),
        floats=floats,
        pickle=Segment(pickle.offset, pickle.size),
        fields=tuple(ChecksumField(place, r.offset, r.size) for r in changing for place in r.crc_places),
    )


def _number_places(pickle: bytes, start: int, floats: Sequence[bool]) -> tuple[int, ...]:
    """Where the eight bytes of each number stand: behind LONG1 and a length of 8, or behind BINFLOAT."""
    places = []
    for number, is_float in enumerate(floats, start=1):
        if is_float:
            mark = b"G" + struct.pack(">Q", _FLOAT_MARK + number)
        else:
            mark = b"\x8a\x08" + struct.pack("<q", _INT_MARK + number)
        place = pickle.find(mark)
        if place < 0 or pickle.find(mark, place + 1) >= 0:
            raise CheckpointError("torch.save pickles numbers in a way that is not known here")
        places.append(start + place + len(mark) - 8)
    return tuple(places)


class _Sparse:
    """A file of which only pieces are there, as :class:`zipfile.ZipFile` reads it."""

    def __init__(self, pieces: Sequence[tuple[int, bytes]], size: int) -> None:
        self._pieces, self._size, self._position = _merged(pieces), size, 0
        self._starts = [start for start, _ in self._pieces]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, length: int = -1) -> bytes:
        found = self.at(self._position, self._size - self._position if length < 0 else length)
        self._position += len(found)
        return found

    def at(self, offset: int, length: int) -> bytes:
        start, data = self._pieces[max(bisect_right(self._starts, offset) - 1, 0)]
        if not start <= offset <= offset + length <= start + len(data):
            raise CheckpointError("torch.save left a hole where none is expected")
        return data[offset - start : offset - start + length]


def _merged(pieces: Sequence[tuple[int, bytes]]) -> tuple[tuple[int, bytes], ...]:
    """Pieces that follow one another, joined."""
    found: list[tuple[int, bytearray]] = []
    for offset, data in sorted(pieces):
        if found and found[-1][0] + len(found[-1][1]) == offset:
            found[-1][1].extend(data)
        elif data:
            found.append((offset, bytearray(data)))
    return tuple((offset, bytes(data)) for offset, data in found)


def _records(view: _Sparse) -> Iterator[_Record]:
    """The files in the zip; the places of their checksums are those of PKWARE APPNOTE 4.3, which zipfile hides."""
    try:
        archive = zipfile.ZipFile(cast("IO[bytes]", view))
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"torch.save writes its directory in a way that is not known here: {error}") from error
    position = archive.start_dir
    for info in archive.infolist():
        local = view.at(info.header_offset, 30)
        offset = info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
        places = [position + 16]
        if info.flag_bits & 8:
            if view.at(offset + info.file_size, 4) != _DESCRIPTOR:
                raise CheckpointError("torch.save describes its records in a way that is not known here")
            places.append(offset + info.file_size + 4)
        elif info.file_size:
            places.append(info.header_offset + 14)
        yield _Record(info.filename, offset, info.file_size, tuple(places))
        position += 46 + len(info.orig_filename.encode()) + len(info.extra) + len(info.comment)


def _test(image: Image, parts: FlatState) -> None:
    """Write a mark into every storage of a sparse file, load it with torch, and find the marks where they belong.

    Raises:
        CheckpointError: torch reads something else, or there is no place for the file.
    """
    marks = [struct.pack("<Q", 0x5A00000000000000 + n)[: min(8, size)] for n, size in enumerate(image.sizes)]
    with _sparse_file(image.size) as (descriptor, path):
        for offset, data in image.pieces:
            os.pwrite(descriptor, data, offset)
        for offset, mark in zip(image.storages, marks, strict=True):
            os.pwrite(descriptor, mark, offset)
        try:
            loaded = flatten(torch.load(path, map_location="cpu", mmap=True, weights_only=True))
        except Exception as error:
            raise CheckpointError(f"torch cannot load what it laid out itself: {error}") from error
    same = len(loaded.storages) == len(marks) and loaded.structure == parts.structure
    if not same or any(bytes(s[: len(m)]) != m for s, m in zip(loaded.storages, marks, strict=True)):
        raise CheckpointError("torch loads another state than the one it laid out")


@contextmanager
def _sparse_file(size: int) -> Iterator[tuple[int, str]]:
    """An empty file of this size that goes away: in memory where the system has that, else in the temporary folder.

    Raises:
        CheckpointError: it cannot be made or written; names the folder.
    """
    place = "memory"
    try:
        with ExitStack() as stack:
            try:
                descriptor = os.memfd_create("deepvm-layout")
                stack.callback(os.close, descriptor)
                path = f"/proc/self/fd/{descriptor}"
                os.stat(path)
            except (AttributeError, OSError):  # not on Linux, forbidden, or no /proc
                place = "the folder for temporary files (TMPDIR)"
                place = tempfile.gettempdir()
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="deepvm-", suffix=".pt"))
                descriptor, path = file.fileno(), file.name
            os.ftruncate(descriptor, size)
            yield descriptor, path
    except OSError as error:
        raise CheckpointError(
            f"{place}: a sparse file of {size} bytes, to see that torch reads this layout, cannot be written: "
            f"{error.strerror or error}; make room there, name another folder in TMPDIR, or raise the file size limit"
        ) from error
