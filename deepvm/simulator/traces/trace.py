"""Traces of spot machines: how many were up at each tick, and their lifetimes.

::

    {"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, 0, 1]}

A lifetime is a run of ticks with all machines there (by default the largest count), of as many
gaps, up to half a gap more or less. One at the beginning is left out, one at the end is censored.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.progress import Say
from deepvm.documents.formats import json
from deepvm.documents.tree import KeyPath, read_object
from deepvm.errors import CatalogFormatError, DataError, Issue, RequestError
from deepvm.io.safe_read import StrPath
from deepvm.records import dataclass
from deepvm.simulator.engine.lifetimes import whole_lives

MOST_NODES = 100_000
LONGEST_GAP_S = 1e6

_A_TRACE = 'a trace, {"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, ...]}'
_GAP = f"the seconds between two ticks, above 0 and at most {LONGEST_GAP_S:g}"
_COUNTS = (
    "the numbers of machines at each tick, [1, 1, 0, ...], each a whole number from 0 to"
    f" {MOST_NODES}"
)


@dataclass(frozen=True)
class TraceLives:
    """The lifetimes of one pool of machines, in order of their starts."""

    name: str
    gap_s: float  # between two looks at the machines
    life_s: FloatArray  # (n,), each up to half a gap
    ended: BoolArray  # (n,); else a lifetime is censored

    @property
    def low_s(self) -> FloatArray:
        return np.maximum(self.life_s - self.gap_s / 2, 0.0)

    @property
    def high_s(self) -> FloatArray:
        return np.where(self.ended, self.life_s + self.gap_s / 2, np.inf)

    @property
    def pairs(self) -> tuple[tuple[float, bool], ...]:
        return tuple(zip(self.life_s.tolist(), self.ended.tolist(), strict=True))

    @property
    def seen_s(self) -> float:
        return float(self.life_s.sum())

    @property
    def preemptions(self) -> int:
        return int(self.ended.sum())

    @property
    def mean_s(self) -> float | None:
        """Machine time for each lifetime that ended; None without any."""
        if self.preemptions:
            return self.seen_s / self.preemptions
        return None


def together(pools: Sequence[TraceLives]) -> TraceLives:
    """All lifetimes of pools, whatever their gaps."""
    lives_s = np.concatenate([pool.life_s for pool in pools])
    return TraceLives("all", math.nan, lives_s, np.concatenate([pool.ended for pool in pools]))


@dataclass(frozen=True)
class Trace:
    """One file; ``gap_s``: between two ticks; ``counts``: (ticks,) machines that were there."""

    path: Path
    gap_s: float
    counts: IntArray

    @property
    def nodes(self) -> int:
        return int(self.counts.max())

    def lives(self, nodes: int | None = None) -> TraceLives:
        if nodes is None:
            nodes = self.nodes
        change = np.diff((self.counts >= max(nodes, 1)).astype(np.int8))
        begins = np.flatnonzero(change > 0) + 1
        ends = np.flatnonzero(change < 0) + 1
        # The end of a run at the beginning is not ours
        if begins.size:
            ends = ends[ends > begins[0]]
        else:
            ends = ends[:0]
        ended = np.arange(begins.size) < ends.size
        life = np.append(ends, self.counts.size)[: begins.size] - begins
        return TraceLives(str(self.path), self.gap_s, np.asarray(life * self.gap_s), ended)


def read_trace(path: StrPath) -> Trace:
    """Read one file. Raises CatalogFormatError."""
    file = Path(path)
    tree = read_object(file, _A_TRACE, json.load)
    metadata = tree.value.get("metadata")
    data = tree.value.get("data")
    gap: Any = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    wrong: list[tuple[KeyPath, object, str]] = []
    if type(gap) not in (int, Decimal) or not 0 < gap <= LONGEST_GAP_S:
        wrong.append((("metadata", "gap_seconds"), gap, _GAP))
    if not isinstance(data, list) or not data:
        wrong.append((("data",), data, _COUNTS))
    else:
        wrong += [
            (("data", tick), count, _COUNTS)
            for tick, count in enumerate(data)
            if type(count) is not int or not 0 <= count <= MOST_NODES
        ]
    if wrong:
        issues = [tree.refusal(key, value, expected) for key, value, expected in wrong]
        raise CatalogFormatError(file, issues)
    return Trace(file, float(gap), np.array(data, dtype=np.int64))


def read_traces(paths: Sequence[StrPath], say: Say | None = None) -> tuple[Trace, ...]:
    """Files, and those of folders, without copies. Raises RequestError, CatalogFormatError."""
    if not paths:
        raise RequestError("FILE", list(paths), "one trace or more")
    found: dict[tuple[float, bytes], Trace] = {}
    files = list[Path]()
    for path in map(Path, paths):
        inside = [path]
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.json") if p.is_file())
        if not inside:
            raise CatalogFormatError(path, [Issue("holds no .json file (expected traces)")])
        files += inside
    for file in files:
        trace = read_trace(file)
        first = found.setdefault((trace.gap_s, trace.counts.tobytes()), trace)
        if first is not trace and say is not None:
            say(f"{file} is left out: it holds the same as {first.path}")
    return tuple(found.values())


def lives_of(
    paths: Sequence[StrPath], *, nodes: int | None = None, say: Say | None = None
) -> tuple[TraceLives, ...]:
    """:func:`pools_of` the traces of :func:`read_traces`."""
    return pools_of(read_traces(paths, say), nodes=nodes, say=say)


def pools_of(
    traces: Sequence[Trace], *, nodes: int | None = None, say: Say | None = None
) -> tuple[TraceLives, ...]:
    """A pool per trace (``say``: those without any). Raises RequestError, CatalogFormatError."""
    check_nodes(nodes)
    found = [(trace, trace.lives(nodes)) for trace in traces]
    empty = [trace for trace, lives in found if not lives.life_s.size]
    why = f"no life of {'all' if nodes is None else nodes} machines begins in it"
    if len(empty) == len(found):
        message = f"{why}, at most {empty[0].nodes} at once (name another trace, or see --nodes)"
        raise CatalogFormatError(empty[0].path, [Issue(message)])
    if say is not None:
        for trace in empty:
            say(f"{trace.path} is left out: {why}")
    return tuple(lives for _, lives in found if lives.life_s.size)


def lives_to_replay(paths: Sequence[StrPath]) -> tuple[float, ...]:
    """The lives in traces that ended, seconds, in order. Raises CatalogFormatError, DataError."""
    found = [life for pool in lives_of(paths) for life in whole_lives(pool.pairs)]
    if not found:
        raise DataError(
            f"{', '.join(map(str, paths))}: no machine is preempted there; name another trace"
        )
    return tuple(found)


def check_nodes(nodes: int | None) -> None:
    """Raise RequestError for a number of machines below 1."""
    if nodes is not None and nodes < 1:
        raise RequestError("nodes", nodes, "a whole number of machines from 1")
