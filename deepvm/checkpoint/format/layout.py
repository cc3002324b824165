"""The layout of a checkpoint file (size, shards, checksums), and sets of byte ranges."""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from deepvm.errors import RequestError
from deepvm.records import dataclass

LAYOUT_VERSION = "deepvm.layout/1"
CHUNK_BYTES = 8 * 2**20  # Bytes per checksum in a manifest; also the most that one message carries

MOST_BYTES = 2**44
_MOST_RANKS = 4096
_MOST_SEGMENTS = 1_000_000
_MOST_FIELDS = 4_000_000


class Segment(NamedTuple):
    """A range of the file, in bytes."""

    offset: int
    length: int


class ChecksumField(NamedTuple):
    """Four little-endian bytes at ``position``: the CRC-32 of the range at ``offset``."""

    position: int
    offset: int
    length: int


@dataclass(frozen=True)
class Layout:
    """The plan of a file: size, the sorted ranges each rank sends, checksums to fill in last."""

    size: int
    shards: tuple[tuple[Segment, ...], ...]
    fields: tuple[ChecksumField, ...] = ()

    def __post_init__(self) -> None:
        """Refuse impossible layouts: a memory node gets them from anyone who has its token."""
        if not 0 < self.size <= MOST_BYTES:
            raise RequestError("size", self.size, f"1 to {MOST_BYTES} bytes")
        if not 1 <= len(self.shards) <= _MOST_RANKS:
            raise RequestError("shards", len(self.shards), f"1 to {_MOST_RANKS} ranks")
        if sum(map(len, self.shards)) > _MOST_SEGMENTS or len(self.fields) > _MOST_FIELDS:
            allowed = f"at most {_MOST_SEGMENTS} segments and {_MOST_FIELDS} checksums"
            raise RequestError("shards", "so many", allowed)
        position = 0
        for segment in sorted(s for shard in self.shards for s in shard):
            if segment.offset != position or segment.length < 1:
                raise RequestError(
                    "shards", tuple(segment), f"segments that cover the file once; at {position}"
                )
            position += segment.length
        if position != self.size:
            raise RequestError("shards", position, f"segments that cover all {self.size} bytes")
        # More would let a hostile layout keep a memory node busy for days.
        if sum(length for _, length in {(f.offset, f.length) for f in self.fields}) > 2 * self.size:
            raise RequestError("fields", len(self.fields), "ranges that hardly overlap")
        for position, offset, length in self.fields:
            inside = (
                0 <= position <= self.size - 4 and offset >= 0 and 0 <= length <= self.size - offset
            )
            if not inside or (position + 4 > offset and position < offset + length):
                wrong = (position, offset, length)
                raise RequestError("fields", wrong, "places inside the file, outside their range")
        if _entangled(self.fields):
            raise RequestError(
                "fields", len(self.fields), "places outside each other and outside every range"
            )

    @property
    def world(self) -> int:
        return len(self.shards)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256: if it differs between ranks, so does their state."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        document = {"schema_version": LAYOUT_VERSION, "size": self.size}
        document |= {"shards": self.shards, "fields": self.fields}
        return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Layout":
        """Read an untrusted layout. Raises RequestError: it is none."""
        try:
            document = json.loads(data)
            if document["schema_version"] != LAYOUT_VERSION or not isinstance(
                document["fields"], list
            ):
                raise ValueError("another document")
            shards = tuple(
                tuple(Segment(*segment) for segment in shard) for shard in document["shards"]
            )
            fields = tuple(ChecksumField(*field) for field in document["fields"])
            size = document["size"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RequestError(
                "layout", f"{len(data)} bytes", f"a document of {LAYOUT_VERSION}"
            ) from None
        numbers = chain((size,), *chain(*shards), *fields)
        if any(type(number) is not int for number in numbers):
            raise RequestError("layout", "something else", "whole numbers")
        return cls(size, shards, fields)


def _entangled(fields: Sequence[ChecksumField]) -> bool:
    """Whether one checksum field overlaps another or its range, so that the order would matter."""
    places = sorted({f.position for f in fields})
    # Several places may hold the checksum of one range, but one place cannot hold two checksums.
    if len(places) < len(set(fields)) or any(
        after - before < 4 for before, after in pairwise(places)
    ):
        return True
    for offset, length in {(f.offset, f.length) for f in fields if f.length}:
        # A field has four bytes: one that starts three before the range reaches into it.
        first = bisect_left(places, offset - 3)
        if first < len(places) and places[first] < offset + length:
            return True
    return False


def runs(shard: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments of a shard, sorted, with adjacent ones joined across tensors."""
    joined = Ranges((segment.offset, segment.offset + segment.length) for segment in sorted(shard))
    return tuple(Segment(start, end - start) for start, end in joined)


def cut(final: Iterable[int], size: int, piece: int) -> Iterator[tuple[int, int]]:
    """Ranges of ``piece`` bytes, once ``final``. Raises ValueError: not all ``size`` bytes were."""
    start = 0
    for end in final:
        while end - start >= piece or start < end == size:
            yield start, min(start + piece, end)
            start += piece
    if start < size:
        raise ValueError("the image was not filled to its end")


def within(part: Segment, shares: Sequence[Segment]) -> list[tuple[int, int]]:
    """The ranges ``[start, end)`` of ``part``, relative to it, that lie in the sorted shares."""
    found = []
    first = bisect_right(shares, part.offset, key=lambda share: share.offset + share.length)
    for number in range(first, len(shares)):  # islice() would pass over all of those before
        share = shares[number]
        if share.offset >= part.offset + part.length:
            break
        start = max(part.offset, share.offset)
        end = min(part.offset + part.length, share.offset + share.length)
        if start < end:
            found.append((start - part.offset, end - part.offset))
    return found


class Ranges:
    """A set of bytes as sorted, disjoint, non-adjacent ranges ``[start, end)``."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def covers(self, start: int, end: int) -> bool:
        return start >= end or self.reach(start) >= end

    def reach(self, start: int) -> int:
        """The end of the range that holds byte ``start``; ``start`` where none does."""
        at = bisect_right(self._starts, start) - 1
        if at >= 0:
            return max(start, self._ends[at])
        return start

    def touches(self, start: int, end: int) -> bool:
        at = bisect_right(self._ends, start)
        return start < end and at < len(self._starts) and self._starts[at] < end

    def missing(self, within: Iterable[Segment]) -> Iterator[tuple[int, int]]:
        for offset, length in within:
            start = offset
            end = offset + length
            for at in range(bisect_right(self._ends, start), len(self._starts)):
                if self._starts[at] >= end:
                    break
                if self._starts[at] > start:
                    yield start, self._starts[at]
                start = max(start, self._ends[at])
            if start < end:
                yield start, end
