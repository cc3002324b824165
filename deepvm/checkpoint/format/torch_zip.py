"""An in-memory image of the file: a zip for plain ``torch.load``, planned once, then filled in.

``torch.save`` with ``skip_data`` writes a sparse file that shows where tensors' bytes belong;
storages are copied there and numbers patched into the pickle. So no checkpoint is ever pickled or
repacked (ACUTE's Check-Pack), and tensors lie at multiples of 128 bytes (LightCheck III-D).
"""

import io
import itertools
import logging
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import torch

from deepvm.checkpoint.format.flatten import FlatState, check_readable, flatten, map_leaves
from deepvm.checkpoint.format.layout import ChecksumField, Layout, Ranges, Segment
from deepvm.checkpoint.format.sharded import Region, Run, local, whole_strides
from deepvm.errors import CheckpointError
from deepvm.records import dataclass, field

ALIGNMENT = 128
_DESCRIPTOR = b"PK\x07\x08"
# Values that fill eight bytes of a pickle, so that any other value can be written over them
_INT_MARK = 0x6A5A5A5A00000000
_FLOAT_MARK = 0x7E5A5A5A00000000

log = logging.getLogger("deepvm.checkpoint")
_warned: set[str] = set()


@dataclass(frozen=True)
class Image:
    """The file of a state."""

    size: int
    pieces: tuple[tuple[int, bytes], ...]  # what is not tensor data, by offset
    storages: tuple[int, ...]  # offsets of their bytes
    sizes: tuple[int, ...]
    numbers: tuple[int, ...]  # offsets of their eight bytes
    floats: tuple[bool, ...]  # big-endian floats, else integers
    pickle: Segment
    fields: tuple[ChecksumField, ...]  # checksums to fill in at the end
    lasting: bool = True  # it serves every checkpoint of this structure
    regions: Mapping[int, Region] = field(default_factory=dict)  # this rank's parts of storages

    def runs(self, number: int) -> Iterable[Run]:
        region = self.regions.get(number)
        if region is None:
            return [Run(0, 0, self.sizes[number])]
        return region.runs()

    def layout(self) -> Layout:
        return Layout(self.size, ((Segment(0, self.size),),), self.fields)

    def write_numbers(self, image: memoryview, numbers: Sequence[int | float]) -> None:
        # An image that serves one checkpoint has its numbers
        for offset, is_float, value in zip(self.numbers, self.floats, numbers, strict=self.lasting):
            struct.pack_into(">d" if is_float else "<q", image, offset, value)


def plan_image(tree: Any, parts: FlatState | None = None) -> Image:
    """Lay out the file of a state. Raises RequestError: torch would not load something in it.

    CheckpointError: this release of torch writes files in an unknown way, or there is no space.
    """
    from torch.utils.serialization import config

    parts = parts or flatten(tree)
    sizes = parts.sizes
    aligned = config.patch("save.storage_alignment", ALIGNMENT)  # type: ignore[attr-defined]
    with _sparse_file(sum(sizes)) as (file, path):
        with torch.serialization.skip_data(), aligned:
            torch.save(_template(tree, parts), file)
        file.flush()
        image = _read_image(file, parts, sizes)
        _test(image, parts, file.fileno(), path)
    return image


def lay_out(tree: Any, parts: FlatState, world: int) -> Image:
    """The planned file, or the saved one where torch's format is unknown; training stalls for that.

    Raises CheckpointError with several ranks, whose files by torch.save differ.
    """
    try:
        return plan_image(tree, parts)
    except CheckpointError as error:
        if world > 1:
            raise CheckpointError(
                f"{error}; several ranks need a release of torch that is known here"
            ) from error
        if str(error) not in _warned:
            _warned.add(str(error))
            log.warning("%s; each checkpoint is saved by torch.save while training stalls", error)
    stream = io.BytesIO()
    torch.save(tree, stream)
    data = stream.getvalue()
    check_readable(data, "state")
    return Image(len(data), ((0, data),), (), (), (), (), Segment(0, 0), (), lasting=False)


def _template(tree: Any, parts: FlatState) -> Any:
    """The state with untouched memory, and with numbers that can be located in the pickle."""
    twins = {
        s._cdata: torch.UntypedStorage(size, device="cpu")  # type: ignore[no-untyped-call]
        for s, size in zip(parts.storages, parts.sizes, strict=True)
    }
    count = itertools.count(1)

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty(0, dtype=tensor.dtype, device="cpu")
        held = local(tensor)
        strides, offset = whole_strides(tensor)
        made = made.set_(twins[held.untyped_storage()._cdata], offset, tensor.shape, strides)
        # Views: the file holds the bytes of what they look at
        made = made.conj() if held.is_conj() else made
        if held.is_neg():
            return torch._neg_view(made)
        return made

    def mark(value: int | float) -> int | float:
        number = next(count)
        if isinstance(value, float):
            return float(struct.unpack(">d", struct.pack(">Q", _FLOAT_MARK + number))[0])
        return _INT_MARK + number

    return map_leaves(tree, twin, mark)


def _read_image(file: IO[bytes], parts: FlatState, sizes: Sequence[int]) -> Image:
    size = file.tell()
    records = _records(file)
    pickle, _ = records["data.pkl"]
    storages = []
    changing = ["data.pkl"]
    for number, length in enumerate(sizes):
        record, _ = records.get(name := f"data/{number}", (None, ()))
        if record is None or record.length != length:
            raise CheckpointError(
                f"torch.save wrote storage {number} in a way that is not known here"
            )
        storages.append(record.offset)
        changing += [name] if length else []
    data = Ranges((offset, offset + n) for offset, n in zip(storages, sizes, strict=True))
    between = data.missing([Segment(0, size)])
    floats = tuple(isinstance(n, float) for n in parts.numbers)
    pickled = os.pread(file.fileno(), pickle.length, pickle.offset)
    return Image(
        size=size,
        pieces=tuple((a, os.pread(file.fileno(), b - a, a)) for a, b in between),
        storages=tuple(storages),
        sizes=tuple(sizes),
        numbers=_number_places(pickled, pickle.offset, floats),
        floats=floats,
        pickle=pickle,
        fields=tuple(
            ChecksumField(place, *records[name][0])
            for name in changing
            for place in records[name][1]
        ),
        regions=parts.regions,
    )


def _number_places(pickle: bytes, start: int, floats: Sequence[bool]) -> tuple[int, ...]:
    """Where each number's eight bytes are: after LONG1 and a length of 8, or after BINFLOAT."""
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


def _records(file: IO[bytes]) -> dict[str, tuple[Segment, tuple[int, ...]]]:
    """Offsets of each zip entry's bytes, and its CRC-32 (PKWARE APPNOTE 4.3; zipfile has none)."""
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise CheckpointError(
            f"torch.save writes its directory in a way that is not known here: {error}"
        ) from error
    found = {}
    position = archive.start_dir
    for info in archive.infolist():
        header = os.pread(file.fileno(), 30, info.header_offset)
        offset = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
        places = [position + 16]
        if info.flag_bits & 8:
            if os.pread(file.fileno(), 4, offset + info.file_size) != _DESCRIPTOR:
                raise CheckpointError(
                    "torch.save describes its records in a way that is not known here"
                )
            places.append(offset + info.file_size + 4)
        elif info.file_size:
            places.append(info.header_offset + 14)
        found[info.filename.partition("/")[2]] = Segment(offset, info.file_size), tuple(places)
        position += 46 + len(info.orig_filename.encode()) + len(info.extra) + len(info.comment)
    return found


def _test(image: Image, parts: FlatState, descriptor: int, path: str) -> None:
    marks = [
        struct.pack("<Q", 0x5A00000000000000 + n)[: min(8, size)]
        for n, size in enumerate(image.sizes)
    ]
    for offset, mark in zip(image.storages, marks, strict=True):
        os.pwrite(descriptor, mark, offset)
    try:
        loaded = flatten(torch.load(path, map_location="cpu", mmap=True, weights_only=True))
    except Exception as error:
        raise CheckpointError(f"torch cannot load what it laid out itself: {error}") from error
    same = len(loaded.storages) == len(marks) and loaded.structure == parts.structure
    if not same or any(
        bytes(s[: len(m)]) != m for s, m in zip(loaded.storages, marks, strict=True)
    ):
        raise CheckpointError("torch loads another state than the one it laid out")


@contextmanager
def _sparse_file(size: int) -> Iterator[tuple[IO[bytes], str]]:
    place = "memory"
    try:
        with ExitStack() as stack:
            try:
                file: Any = stack.enter_context(open(os.memfd_create("deepvm-layout"), "w+b"))
                path = f"/proc/self/fd/{file.fileno()}"
                os.stat(path)
            except (AttributeError, OSError):  # not on Linux, forbidden, or no /proc
                place = "the folder for temporary files (TMPDIR)"
                place = tempfile.gettempdir()
                file = stack.enter_context(
                    tempfile.NamedTemporaryFile(prefix="deepvm-", suffix=".pt")
                )
                path = file.name
            # A limit is met here, not in the middle of torch.save
            os.ftruncate(file.fileno(), size)
            yield file, path
    except OSError as error:
        raise CheckpointError(
            f"{place}: a sparse file of {size} bytes, to see that torch reads this layout, cannot"
            f" be written: {error.strerror or error}; make space there, name another folder in"
            " TMPDIR, or raise the file size limit"
        ) from error
