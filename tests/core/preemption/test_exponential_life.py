"""The pieces of the closed form, against sums over fine grids."""

from __future__ import annotations

import numpy as np
import pytest

from deepvm.core.preemption.exponential_life import (
    learnt_missed_rate,
    merged_segments,
    remaining,
    truncated_mean,
)
from deepvm.core.preemption.job import Span

POINTS = (np.arange(400_000) + 0.5) / 400_000


def one(value: float) -> np.ndarray:
    return np.asarray(value)


def test_a_life_that_is_cut() -> None:
    """E[min(life, most); life < end], by quantiles of the exponential law."""
    for rate, most, end in [(1e-3, 300.0, 900.0), (0.01, 50.0, 50.0), (1e-5, 10.0, 1e4)]:
        life = -np.log(1 - POINTS) / rate
        expected = np.where(life < end, np.minimum(life, most), 0).mean()
        assert float(truncated_mean(one(rate), one(most), one(end))) == pytest.approx(
            expected, rel=1e-3
        )


def test_what_is_left_of_a_latency() -> None:
    for head in [0.0, 30.0, 62.0, 100.0, 217.0, 500.0]:
        for span in [Span(62, 218), Span(0, 100), Span.of(90)]:
            drawn = span.low + (span.high - span.low) * POINTS
            assert float(remaining(span, one(head))) == pytest.approx(
                np.maximum(drawn - head, 0).mean(), rel=1e-4, abs=1e-6
            )


def test_the_missed_rate_that_is_believed() -> None:
    """The mean, over a job, of the root of what Beta(1, 9) has learnt.

    Three points are good for a few per cent.
    """
    for bad in [0.01, 0.1, 0.5, 1.0]:
        for preemptions in [0.0, 3.0, 40.0, 1000.0]:
            seen = preemptions * POINTS
            expected = np.sqrt((1 + bad * seen) / (10 + seen)).mean() ** 2
            assert float(learnt_missed_rate(one(bad), one(preemptions))) == pytest.approx(
                expected, rel=0.07
            )


def test_segments_between_two_kinds_of_saves() -> None:
    """One step after another."""
    for steps, every, period in [
        (100, 10, 25),
        (100, 7, 7),
        (5, 10, 20),
        (1000, 33, 100),
        (99, 100, 99),
    ]:
        lengths, last = [], 0
        for step in range(1, steps + 1):
            if step % every == 0 or step % period == 0:
                lengths.append(step - last)
                last = step
        pieces, rest = merged_segments(steps, every, period)
        assert rest == steps - last
        assert {length: count for length, count in pieces if count} == {
            n: lengths.count(n) for n in set(lengths)
        }
