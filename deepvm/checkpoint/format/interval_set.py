"""Sets of byte ranges: what a rank has to send, and what has arrived."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from deepvm.checkpoint.format.layout import Segment


def runs(shard: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments of a shard, sorted, neighbours joined: a message may span tensors that lie side by side."""
    joined: list[Segment] = []
    for segment in sorted(shard):
        if joined and joined[-1].offset + joined[-1].length == segment.offset:
            joined[-1] = Segment(joined[-1].offset, joined[-1].length + segment.length)
        else:
            joined.append(segment)
    return tuple(joined)


class Ranges:
    """A set of bytes as sorted, disjoint, non-adjacent ranges ``[start, end)``."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Start with some ranges, in any order."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, sorted."""
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._starts)

    @property
    def total(self) -> int:
        """Bytes in the set."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Put a range in; an empty one changes nothing."""
        if start >= end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def covers(self, start: int, end: int) -> bool:
        """Whether all bytes of a range are in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and self._ends[at] >= end)

    def reach(self, start: int) -> int:
        """The end of the range that holds byte ``start``; ``start`` where none does."""
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 else start

    def touches(self, start: int, end: int) -> bool:
        """Whether any byte of a range is in the set."""
        at = bisect_right(self._ends, start)
        return start < end and at < len(self._starts) and self._starts[at] < end

    def missing(self, within: Iterable[Segment]) -> Iterator[tuple[int, int]]:
        """The ranges of ``within`` that are not in the set."""
        for offset, length in within:
            start, end = offset, offset + length
            for at in range(bisect_right(self._ends, start), len(self._starts)):
                if self._starts[at] >= end:
                    break
                if self._starts[at] > start:
                    yield start, self._starts[at]
                start = max(start, self._ends[at])
            if start < end:
                yield start, end
