"""Lifetimes of preemptible machines: drawn from a law, or replayed from observed ones."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.errors import RequestError
from deepvm.records import dataclass

LAWS = ("exponential", "weibull:SHAPE", "lomax:SHAPE", "lognormal:SIGMA")
SHAPES = "shapes above 0.01, of lomax above 1, sigma above 0 and below 30"
# Of shapes: a Lomax life has a mean only above 1; means of very uneven lifetimes overflow
_BOUNDS = {
    "exponential": (-1.0, 1e6),
    "weibull": (0.01, 1e6),
    "lomax": (1.0, 1e6),
    "lognormal": (0.0, 30.0),
}


class LifeSource(ABC):
    """Draws lifetimes, counted from the request for a machine to its preemption."""

    def starts(self, random: np.random.Generator, runs: int) -> IntArray:
        """(runs,) cursors: where each run starts; passed back to :meth:`draw`."""
        return np.zeros(runs, dtype=np.int64)

    @abstractmethod
    def draw(self, random: np.random.Generator, starts: IntArray, numbers: IntArray) -> FloatArray:
        """(N,) seconds; ``starts``: cursor of each run; ``numbers``: machine of its run, from 0."""


@dataclass(frozen=True)
class DrawnLifetimes(LifeSource):
    """Lifetimes drawn from a law."""

    law: str  # one of :data:`LAWS`
    # Of the ``vms`` that start together, then of each replacement; the last holds from there on
    mean_s: tuple[float, ...]
    vms: int = 1

    def __post_init__(self) -> None:
        self._unit()
        if not self.mean_s or not all(m > 0 for m in self.mean_s):
            raise RequestError("mttp_s", self.mean_s, "mean times above 0 s")

    def _unit(self) -> tuple[str, float]:
        name, _, text = self.law.partition(":")
        try:
            shape = float(text or 0)
        except ValueError:
            shape = math.nan
        least, most = _BOUNDS.get(name, (math.inf, 0.0))
        if not least < shape < most or (name == "exponential") == bool(text):
            raise RequestError("lifetime", self.law, f"{', '.join(LAWS)}; {SHAPES}")
        return name, shape

    def draw(self, random: np.random.Generator, starts: IntArray, numbers: IntArray) -> FloatArray:
        name, shape = self._unit()
        count = len(numbers)
        if name == "exponential":
            unit = random.standard_exponential(count)
        elif name == "weibull":
            unit = random.weibull(shape, count) / math.gamma(1 + 1 / shape)
        elif name == "lomax":
            unit = random.pareto(shape, count) * (shape - 1)
        else:
            unit = random.lognormal(-(shape**2) / 2, shape, count)
        means = np.asarray(self.mean_s)
        later = np.maximum(numbers - (self.vms - 1), 0)
        return np.asarray(unit * means[np.minimum(later, len(means) - 1)])


class ObservedLifetimes(LifeSource):
    """Observed lifetimes: each run follows one pool from a random start and wraps around."""

    def __init__(self, pools: Sequence[Sequence[float]]) -> None:
        """``pools``: lifetimes of each, seconds. Raises RequestError: none, or one not above 0."""
        pools = [pool for pool in pools if len(pool)]
        self._lives = np.array([life for pool in pools for life in pool], dtype=float)
        if not len(self._lives) or not np.all((self._lives > 0) & np.isfinite(self._lives)):
            raise RequestError(
                "lives", self._lives[:5].tolist(), "at least one lifetime, each above 0 s"
            )
        sizes = [len(pool) for pool in pools]
        self._first = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
        self._size = np.repeat(sizes, sizes)

    def starts(self, random: np.random.Generator, runs: int) -> IntArray:
        return random.integers(len(self._lives), size=runs)

    def draw(self, random: np.random.Generator, starts: IntArray, numbers: IntArray) -> FloatArray:
        first = self._first[starts]
        return np.asarray(self._lives[first + (starts - first + numbers) % self._size[starts]])


class ListedLifetimes(LifeSource):
    """Lifetimes in order of requests, the same in each run; later machines live forever."""

    def __init__(self, lives: Sequence[float], graces_s: Sequence[float] | None = None) -> None:
        """``lives``: seconds from the request (infinite: kept); ``graces_s``: 0: no notice."""
        self._lives = np.array([*lives, math.inf], dtype=float)
        self._graces = None
        if graces_s is not None:
            self._graces = np.array([*graces_s, 0.0], dtype=float)

    def graces_s(self, numbers: IntArray) -> FloatArray | None:
        """(N,) seconds from the notice of each to its end; None: as the job says."""
        if self._graces is None:
            return None
        return self._graces[np.minimum(numbers, len(self._graces) - 1)]

    def draw(self, random: np.random.Generator, starts: IntArray, numbers: IntArray) -> FloatArray:
        return np.asarray(self._lives[np.minimum(numbers, len(self._lives) - 1)])


def whole_lives(lives: Sequence[tuple[float, bool]]) -> tuple[float, ...]:
    """Lifetimes to replay from (seconds, ended) as a ring: the next extends a censored one."""
    found: list[float] = []
    open_s = 0.0
    for seconds, ended in lives:
        open_s += seconds
        if ended:
            found.append(open_s)
            open_s = 0.0
    if found:
        found[0] += open_s
    return tuple(found)
