"""Which faults to inject into machines: their lifetimes, and how they end."""

import math
import random
from functools import lru_cache
from statistics import fmean

from deepvm.core.json_types import JsonObject
from deepvm.records import dataclass, fields

SHARES = ("missed", "late", "silent", "rebalance")
FATES = ("missed", "late", "silent")  # Shares of which a machine has one at most


@dataclass(frozen=True)
class Injection:
    """Faults for a job's training machines, in the order in which machines were requested."""

    mttp_s: float | None = None  # mean of lifetimes that are drawn; None: lives_s lists them
    lives_s: tuple[float, ...] = ()  # machines after these stay
    seed: int = 0
    count: int | None = None  # at most so many preemptions
    grace_s: float = 120.0  # from a notice to the end
    missed: float = 0.0  # share without a notice
    late: float = 0.0  # share with a notice at a random moment of the grace period
    silent: float = 0.0  # share that loses its link instead
    rebalance: float = 0.0  # share with a recommendation a grace period before the notice or loss

    @classmethod
    def of(cls, keys: JsonObject, done: int = 0) -> "Injection":
        """From ``inject`` of a job file, with defaults; ``done``: preemptions before it."""
        lives_s = tuple(keys.get("scale", 1.0) * life for life in keys.get("lives") or ())
        count = keys.get("count")
        return cls(
            keys.get("mttp"),
            lives_s,
            keys.get("seed", 0),
            None if count is None else done + count,
            keys.get("grace", 120.0),
            **{name: keys.get(name, 0.0) for name in SHARES},
        )

    @classmethod
    def written(cls, facts: JsonObject) -> "Injection":
        """By the facts of an event; one of an older deepvm lacks some."""
        found = {one.name: facts[one.name] for one in fields(cls) if one.name in facts}
        return cls(**{**found, "lives_s": tuple(found.get("lives_s", ()))})

    @property
    def mean_s(self) -> float:
        if self.mttp_s is None:
            return fmean(self.lives_s)
        return self.mttp_s


@dataclass(frozen=True)
class PlannedPreemption:
    """What happens to a machine, after ``life_s`` of training."""

    life_s: float
    grace_s: float | None  # None: without a notice
    silent: bool = False  # it loses its link instead of being preempted
    recommended_s: float = math.inf  # when a rebalance is recommended, counted as the lifetime


@lru_cache(maxsize=4096)  # it is asked again each tick
def planned_preemption(injection: Injection, number: int) -> PlannedPreemption | None:
    """That of the machine of this number, from 1, the same whenever it is asked; None: it stays."""
    rng = random.Random(injection.seed)
    for _ in range(number):  # machines draw one after the other: a lifetime, and its end
        unit = rng.expovariate(1.0)
        end = rng.random()
    if injection.mttp_s is not None:
        life_s = unit * injection.mttp_s
    elif number <= len(injection.lives_s):
        life_s = injection.lives_s[number - 1]
    else:
        return None
    more = random.Random(f"{injection.seed}/{number}")
    grace_s = injection.grace_s
    share_of_grace = more.random()
    late_from = injection.missed
    silent_from = late_from + injection.late
    silent = silent_from <= end < silent_from + injection.silent
    notice_s: float | None = grace_s
    if end < late_from or silent:
        notice_s = None
    elif end < silent_from:
        notice_s = grace_s * share_of_grace
    recommended_s = life_s - grace_s if more.random() < injection.rebalance else math.inf
    return PlannedPreemption(life_s, notice_s, silent, recommended_s)
