"""What a trace says to whoever asks for all its machines at full hours: whether they came, and how long they stayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.simulator.traces.trace import Trace

Array = npt.NDArray[np.float64]
EVERY_S = 3600.0
"""Between two requests."""
HOURS = (1, 4, 12, 24)
"""How long machines are watched from then on."""


@dataclass(frozen=True)
class Windows:
    """Requests for all machines of a trace, one an hour, of which the whole time after them was watched.

    Attributes:
        ticks: (n,) when. had: (n,) whether all machines were there.
        lasted: (n,) whether all stayed for the time; False where they were not there.
        lost: (n,) how many of them went within it.
    """

    ticks: npt.NDArray[np.int64]
    had: npt.NDArray[np.bool_]
    lasted: npt.NDArray[np.bool_]
    lost: npt.NDArray[np.int64]


def windows(trace: Trace, for_s: float) -> Windows:
    """Of a time; none where the trace is shorter."""
    length = max(round(for_s / trace.gap_s), 1)
    ticks = np.arange(0, max(trace.counts.size - length, 0), every(trace))
    if not ticks.size:
        return Windows(ticks, np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64))
    least = np.lib.stride_tricks.sliding_window_view(trace.counts, length + 1).min(axis=1)[ticks]
    had = trace.counts[ticks] >= trace.nodes
    return Windows(ticks, had, had & (least >= trace.nodes), trace.nodes - least)


def every(trace: Trace) -> int:
    """Ticks between two requests."""
    return max(round(EVERY_S / trace.gap_s), 1)


def seen_before(trace: Trace, ticks: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """What lives that began before each tick had shown by then: preemptions, and the sum of roots of lives, sqrt(h).

    Counts do not tell machines apart: the one that came last is taken to go first.
    """
    ended, roots = np.zeros(ticks.size), np.zeros(ticks.size)
    for nodes in range(1, trace.nodes + 1):
        begins, ends = trace.runs(nodes)
        until = np.append(ends, trace.counts.size)[: begins.size]
        ended += np.searchsorted(ends[: begins.size], ticks, side="right")
        lived = np.minimum(until, ticks[:, None]) - begins
        roots += np.sqrt(np.maximum(lived, 0) * trace.gap_s / 3600).sum(axis=1)
    return ended, roots
