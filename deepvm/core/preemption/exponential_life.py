"""Terms of makespan's closed form, as arrays over clusters: latencies, exponential lifetimes."""

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.preemption.job import Job, Span

_PARTS = 12
_MOST_OVERLAP = 200


def effective(mean: FloatArray, width: FloatArray, rate: FloatArray) -> FloatArray:
    """Effective length of a latency uniform around a mean, seconds: -log(E exp(-rate x))/rate."""
    x = rate * width / 2
    # log(sinh(x)/x) loses its digits near 0, where it is x^2/6.
    log = np.where(
        x > 1e-4, np.log(np.sinh(np.clip(x, 1e-4, 500.0)) / np.clip(x, 1e-4, 500.0)), x**2 / 6
    )
    return mean - log / rate


def truncated_mean(rate: FloatArray, most: FloatArray, end: FloatArray) -> FloatArray:
    """E[min(life, most); life < end] of an exponential life, most <= end, seconds."""
    lives = np.exp(-rate * most)
    return np.asarray((1 - lives) / rate - most * lives + most * (lives - np.exp(-rate * end)))


def remaining(span: Span, head: FloatArray) -> FloatArray:
    """What is left on average of a latency that started ``head`` seconds earlier, seconds."""
    width = max(span.width, 1e-9)
    inside = np.clip(span.high - head, 0.0, width)
    return inside**2 / (2 * width) + np.maximum(span.low - head, 0.0)


def remaining_after(span: Span, head: Span) -> float:
    """:func:`remaining` if it started ``head`` earlier: mean over midpoints of equal parts."""
    points = head.low + head.width * (np.arange(_PARTS) + 0.5) / _PARTS
    return float(remaining(span, points).mean())


def learnt_missed_rate(bad: FloatArray, preemptions: FloatArray) -> FloatArray:
    """A job's mean estimate of its missed rate, from 0.1 on; averages its root, as intervals do."""
    at = np.array([0.1127, 0.5, 0.8873])  # Gauss-Legendre on (0, 1)
    seen = preemptions[..., None] * at
    root = ((1 + bad[..., None] * seen) / (10 + seen)) ** 0.5
    return np.asarray(np.sum(root * np.array([5, 8, 5]) / 18, axis=-1) ** 2)


def merged_segments(steps: int, every: int, period: int) -> tuple[list[tuple[float, float]], float]:
    """Segments between multiples of either number (steps, count), most common first; the rest."""
    at = np.union1d(np.arange(every, steps + 1, every), np.arange(period, steps + 1, period))
    if not len(at):
        return [(float(steps + 1), 0.0)], float(steps)
    lengths, counts = np.unique(np.diff(at, prepend=0), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    pieces = [(float(lengths[i]), float(counts[i])) for i in order]
    return pieces, float(steps - at[-1])


def learnt_spread(preemptions: FloatArray) -> FloatArray:
    """Relative deviation of a learned mean lifetime, in jobs that see any lifetime end.

    A mean of n lifetimes and the prior has the relative variance n/(1+n)^2, averaged over a job.
    """
    n = preemptions
    return ((np.log1p(n) + 1 / (1 + n) - 1) / (n * -np.expm1(-n))) ** 0.5


def in_time(job: Job, step: FloatArray) -> FloatArray:
    """Share of the notices whose emergency save is done in time, for each of the steps, (S,).

    Over the middles of equal parts of the rest of the step and of the save. The policy only starts
    a save whose mean fits into the grace period.
    """
    grace = job.grace_s
    points = (np.arange(_PARTS) + 0.5) / _PARTS
    spread = (job.save_s.variance + job.durable_s.variance) ** 0.5 * 12**0.5
    every = step[:, None, None]
    needed = np.maximum(
        every + job.urgent_s, every * points[:, None] + job.urgent_s + spread * (points - 0.5)
    )
    return np.asarray(
        np.clip((grace.high - needed) / max(grace.width, 1e-9), 0.0, 1.0).mean(axis=(1, 2))
    )


def attempt(
    rate: FloatArray,
    grace: float,
    newest: FloatArray,
    needed: FloatArray,
    bad: FloatArray,
    step: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Probability that a lifetime ends before training starts, and the time until either.

    The newest VM's notice comes g before the end of its lifetime, which started with the request;
    the others, n-1 of n, are older than g, and their notices come at the same rate at any time.

    ``grace``: g. ``newest``: its share in the preemptions. ``needed``: allocation and preparation.
    ``bad``: share of the preemptions that no emergency save covers. ``step``: a step and an
    emergency save, at most g; None: the next request comes with the notice.
    """
    reached = np.exp(-rate * needed)
    waited = truncated_mean(rate, needed, needed)
    if step is None:
        first = np.exp(-rate * grace) * waited
        others = waited
    else:  # after a step and an emergency save, or at the end of the lifetime
        late = np.maximum(needed + step - grace, 0.0)
        first = truncated_mean(rate, needed + step, needed + grace)
        others = truncated_mean(rate, late, needed) - np.expm1(-rate * needed) * grace
    good = reached * (newest * np.exp(-rate * grace) + 1 - newest)
    trains = (1 - bad) * good + bad * reached
    wasted = (1 - bad) * (newest * first + (1 - newest) * others) + bad * waited
    return 1 - trains, needed * trains + wasted


def lost_age(rate: FloatArray, delay: FloatArray, segment: FloatArray) -> FloatArray:
    """E[min(life, age)] of an exponential life and the age of the newest durable version, seconds.

    The age is the delay until a checkpoint is durable and a uniform part of a segment.
    """
    none = -np.expm1(-rate * segment)
    return -np.expm1(-rate * delay) / rate + np.exp(-rate * delay) * (
        1 / rate - none / (rate**2 * segment)
    )


def overtaken(width: float, segment: FloatArray) -> FloatArray:
    """How much sooner than its own mean delay a checkpoint or a newer one is durable, seconds.

    A checkpoint of age t, less the least delay, is not durable with the probability 1 - t/width; of
    all up to the age v + k segments none is with the product of these, v being uniform.
    """
    sooner_s = np.zeros(segment.shape)
    over = segment < width
    if not over.any():
        return sooner_s
    every = segment[over, None]
    start = every * (np.arange(_PARTS) + 0.5) / _PARTS
    none = np.ones(start.shape)
    waits = np.zeros(every.shape[0])
    for k in range(_MOST_OVERLAP):
        none = none * np.clip(1 - (start + k * every) / width, 0.0, 1.0)
        waits += every[:, 0] * none.mean(axis=1)
        if none.max() < 1e-4:
            break
    sooner_s[over] = np.maximum(width / 2 - waits, 0.0)
    return sooner_s


def segments(
    steps: int, every: FloatArray, period: int, fixed: int | None
) -> tuple[list[tuple[FloatArray, FloatArray]], FloatArray]:
    """Steps between saves with their counts, most common first, and steps after the last.

    ``every``: between two saves of the policy. ``period``: of the user's own; above ``steps``:
    none. ``fixed``: the policy's stand at its multiples, wherever the user's are.
    """
    users = period <= steps
    if fixed is not None and users:
        some, last = merged_segments(steps, fixed, period)
        return [
            (np.full_like(every, k), np.full_like(every, count)) for k, count in some
        ], np.full_like(every, last)
    every = np.minimum(every, period)
    whole, left = 0, steps
    odd = np.zeros_like(every)
    if users:
        whole, left = divmod(steps, period)
        odd = np.mod(period, every)
    usual = whole * np.floor(period / every) + np.floor(left / every)
    return [(every, usual), (odd, np.where(odd > 0, whole, 0.0))], np.mod(left, every)
