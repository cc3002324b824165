"""A checkpoint in parts for several memory nodes, each a plain torch file (ACUTE's Check-Trans).

Part k of K holds the k-th of K near-equal ranges of the checkpoint's file, before it the layout of
the whole, and a mark of each rank, a digest of its bytes in all parts. Parts belong together if all
marks are equal: a checkpoint that was sent twice under one number is not joined from both.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import part_job
from deepvm.checkpoint.format.checksums import crc32, finish
from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout, Ranges, Segment, runs, within
from deepvm.checkpoint.format.manifest import Shard
from deepvm.core.json_types import JsonObject
from deepvm.errors import CheckpointError, DamagedError, RequestError
from deepvm.io.atomic_write import hidden_path
from deepvm.records import dataclass, replace

MARK_BYTES = 16
_SCHEMA = "deepvm.part/1"
_ABOUT_BYTES = 512
_BEGIN = b'{"schema_version": "deepvm.part/'
# A part's description starts within so many bytes, after the zip header and the pickle
_MOST_BEGIN = 2**16


@dataclass(frozen=True)
class Part:
    """The description in a part's file."""

    number: int  # from 1
    of: int
    offset: int  # of its range in the part's file
    marks: bytes  # of all ranks
    whole: Layout

    @property
    def start(self) -> int:
        """Where its range of the whole file starts."""
        return self.whole.size * (self.number - 1) // self.of

    @property
    def length(self) -> int:
        return self.whole.size * self.number // self.of - self.start


@dataclass(frozen=True)
class PartPlan:
    """The layout of a part's file: what surrounds its byte range, and where the marks are."""

    part: Part
    layout: Layout
    head: bytes
    marks: int
    tail: bytes

    def shard(self, shard: Shard, mark: Callable[[], bytes]) -> Shard:
        """A rank's share of this part; ``mark`` is called when its bytes have been read."""
        part = self.part
        head = bytearray(self.head)
        at = self.marks + shard.rank * MARK_BYTES

        def fill() -> None:
            head[at : at + MARK_BYTES] = mark()

        def ready(end: int) -> None:
            if end > part.offset and part.length:
                shard.ready(part.start + min(end - part.offset, part.length))

        pieces = memoryview(head), shard.image[part.start :][: part.length], memoryview(self.tail)
        window = _Window(pieces, (at, at + MARK_BYTES), fill)
        return replace(
            shard,
            job=part_job(shard.job, part.number, part.of),
            layout=self.layout,
            image=cast(memoryview, window),  # as far as a tier that streams is concerned
            ready=ready,
        )


@dataclass(frozen=True)
class _Window:
    """A file as slices of memory, without a copy; a ``late`` range is filled in when read."""

    pieces: Sequence[memoryview]
    late: tuple[int, int]
    fill: Callable[[], None]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __getitem__(self, wanted: slice) -> memoryview:
        start, end, _ = wanted.indices(len(self))
        if start < self.late[1] and self.late[0] < end:
            self.fill()
        found = []
        at = 0
        for piece in self.pieces:
            if part := piece[max(start - at, 0) : max(end - at, 0)]:
                found.append(part)
            at += len(piece)
        if len(found) == 1:
            return found[0]
        return memoryview(b"".join(found))


def mark_of(shard: Shard) -> bytes:
    """Digest of the CRC-32s of a rank's chunks, as strong as one of them; waits for all."""
    digest = hashlib.blake2b(digest_size=MARK_BYTES)
    for offset, length in runs(shard.layout.shards[shard.rank]):
        for start in range(offset, offset + length, CHUNK_BYTES):
            end = min(start + CHUNK_BYTES, offset + length)
            shard.ready(end)
            digest.update(crc32(shard.image[start:end]).to_bytes(4, "big"))
    return digest.digest()


def plan_part(whole: Layout, number: int, of: int) -> PartPlan:
    """Lay out the file of part ``number`` (from 1) of ``of``."""
    import torch  # here: anyone who only joins parts need not have it

    from deepvm.checkpoint.format.torch_zip import plan_image

    part = Part(number, of, 0, b"", whole)
    start = part.start
    length = part.length
    document = whole.to_json()
    tree = {
        "about": torch.zeros(_ABOUT_BYTES, dtype=torch.uint8, device="cpu"),
        "marks": torch.zeros(MARK_BYTES * whole.world, dtype=torch.uint8, device="cpu"),
        "layout": torch.zeros(len(document), dtype=torch.uint8, device="cpu"),
        # Untouched memory is not taken
        "part": torch.empty(length, dtype=torch.uint8, device="cpu"),
        "number": number,
        "of": of,
    }
    image = plan_image(tree)
    about, marks, layout, offset = image.storages
    around = bytearray(image.size - length)  # the file without the range, which no piece overlaps
    for at, data in image.pieces:
        at -= length if at > offset else 0
        around[at : at + len(data)] = data
    head = around[:offset]
    tail = around[offset:]
    image.write_numbers(memoryview(head), [number, of])
    facts: dict[str, object] = {"schema_version": _SCHEMA, "number": number, "of": of}
    facts |= {"start": start, "length": length, "offset": offset, "marks": marks}
    facts |= {"layout": layout, "layout_bytes": len(document), "world": whole.world}
    head[about : about + _ABOUT_BYTES] = json.dumps(facts).encode().ljust(_ABOUT_BYTES)
    head[layout : layout + len(document)] = document
    shards = []
    for rank, segments in enumerate(whole.shards):
        own = [Segment(a + offset, b - a) for a, b in within(Segment(start, length), segments)]
        shards.append([Segment(marks + rank * MARK_BYTES, MARK_BYTES), *own])
    taken = Ranges((s.offset, s.offset + s.length) for shard in shards for s in shard)
    shards[0] += [Segment(a, b - a) for a, b in taken.missing([Segment(0, image.size)])]
    return PartPlan(
        replace(part, offset=offset),
        Layout(image.size, tuple(runs(shard) for shard in shards), image.fields),
        bytes(head),
        marks,
        bytes(tail),
    )


@lru_cache(maxsize=1)  # earlier layouts are not used again
def plan_parts(whole: Layout, of: int) -> tuple[PartPlan, ...]:
    """:func:`plan_part` of all parts."""
    return tuple(plan_part(whole, number, of) for number in range(1, of + 1))


def read_part(data: bytes | bytearray | memoryview) -> Part | None:
    """The description in a part's first bytes; None if more are needed. Raises DamagedError."""
    at = bytes(data[:_MOST_BEGIN]).find(_BEGIN)
    if at < 0 or at + _ABOUT_BYTES > len(data):
        if len(data) < _MOST_BEGIN:
            return None
        raise DamagedError("it is not a part of a checkpoint")
    try:
        facts: JsonObject = json.loads(bytes(data[at : at + _ABOUT_BYTES]))
        if facts["schema_version"] != _SCHEMA:
            raise DamagedError(f"it is a part of another kind: {facts['schema_version']}")
        names = ("number", "of", "offset", "marks", "layout", "layout_bytes", "world")
        number, of, offset, marks, layout, layout_bytes, world = (int(facts[n]) for n in names)
        need = max(marks + MARK_BYTES * world, layout + layout_bytes)
        if need > offset or not 1 <= number <= of:
            raise ValueError("its numbers do not fit each other")
        if need > len(data):
            return None
        whole = Layout.from_json(bytes(data[layout : layout + layout_bytes]))
        if whole.world != world:
            raise ValueError("its layout is of another number of ranks")
    except (ValueError, TypeError, KeyError, AttributeError, RequestError) as error:
        raise DamagedError(f"the description of the part is damaged: {error}") from None
    return Part(number, of, offset, bytes(data[marks : marks + MARK_BYTES * world]), whole)


def read_part_from(pieces: Iterable[bytes | memoryview], name: str) -> Part:
    """:func:`read_part` of as many pieces as it needs. Raises DamagedError for ``name``."""
    data = bytearray()
    for piece in pieces:
        data += piece
        try:
            part = read_part(data)
        except DamagedError as error:
            raise DamagedError(f"{name}: {error}") from None
        if part is not None:
            return part
    raise DamagedError(f"{name}: it is not a part of a checkpoint")


def read_part_file(path: Path) -> Part:
    """:func:`read_part` of a file. Raises DamagedError, OSError."""
    with path.open("rb", buffering=0) as stream:
        return read_part_from(iter(lambda: stream.read(2**20), b""), str(path))


def belong_together(parts: Sequence[Part]) -> str:
    """Why these parts, in order, do not form one checkpoint; empty if they do."""
    first = parts[0]
    if [(p.number, p.of) for p in parts] != [(n, first.of) for n in range(1, first.of + 1)]:
        return f"of {first.of} parts these are here: {', '.join(str(p.number) for p in parts)}"
    if any(p.marks != first.marks or p.whole.digest != first.whole.digest for p in parts):
        return "its parts were not sent together: they are of different runs or attempts"
    return ""


def join(
    paths: Sequence[Path], target: Path, drop: Callable[[Path], None] = lambda path: None
) -> Layout:
    """Join verified parts, in order, to one checkpoint file; ``drop`` gets each copied one."""
    parts = [read_part_file(path) for path in paths]
    problem = belong_together(parts)
    if problem:
        raise CheckpointError(f"{paths[0]}: {problem}")
    whole = parts[0].whole
    with failing(target), hidden_path(target) as hidden, hidden.open("x+b", buffering=0) as file:
        file.truncate(whole.size)
        for path, part in zip(paths, parts, strict=True):
            with path.open("rb", buffering=0) as source:
                _copy(source.fileno(), part, file.fileno())
            drop(path)
        with mmap.mmap(file.fileno(), whole.size) as memory, memoryview(memory) as image:
            finish(image, whole)
        hidden.replace(target)
    return whole


def _copy(source: int, part: Part, target: int) -> None:
    os.lseek(target, part.start, os.SEEK_SET)
    at = part.offset
    left = part.length
    while left:
        count = os.sendfile(target, source, at, left)
        if not count:
            raise DamagedError(f"part {part.number} is shorter than it says")
        at += count
        left -= count
