"""Hourly requests for all machines of a trace: whether they came, and how long they stayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.core.preemption.gang_survival import Lifetime
from deepvm.simulator.traces.trace import Trace

EVERY_S = 3600.0
"""Between two requests."""
ASKED_EVERY_S = 12 * 3600.0
HOURS = (1, 4, 12, 24)
"""How long machines are watched from then on."""


@dataclass(frozen=True)
class Windows:
    """Hourly requests for all machines of a trace, with a fully observed time after each.

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
        return Windows(
            ticks, np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)
        )
    least = np.lib.stride_tricks.sliding_window_view(trace.counts, length + 1).min(axis=1)[ticks]
    had = trace.counts[ticks] >= trace.nodes
    return Windows(ticks, had, had & (least >= trace.nodes), trace.nodes - least)


def every(trace: Trace) -> int:
    """Ticks between two requests."""
    return max(round(EVERY_S / trace.gap_s), 1)


@dataclass(frozen=True)
class Asked:
    """A request for all machines of a trace: those that came until lost or released, others.

    ``known``: the tick at which the last of them was, or would have been, given back.
    """

    known: int
    lives: tuple[Lifetime, ...]
    refused: int


def asked(trace: Trace) -> tuple[Asked, ...]:
    """What a user has seen who asks every ``ASKED_EVERY_S``, and keeps machines until then.

    Counts do not tell machines apart: the one that came last is taken to go first.
    """
    length = max(round(ASKED_EVERY_S / trace.gap_s), 1)
    found = []
    for begin in range(0, trace.counts.size - length, length):
        counts = trace.counts[begin : begin + length + 1]
        had = int(min(counts[0], trace.nodes))
        gone = [np.flatnonzero(counts < number) for number in range(1, had + 1)]
        lives = tuple(
            Lifetime(float(g[0] if g.size else length) * trace.gap_s, bool(g.size)) for g in gone
        )
        found.append(Asked(begin + length, lives, trace.nodes - had))
    return tuple(found)
