"""Preemptions on purpose: machines live for random, listed or recorded times, from their first step on, and then go.

Most go after a notice, some without one or after a late one; some fall silent: they live on, without a link.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import LOST, MachineRecord, Role, World


@dataclass(frozen=True)
class Injection:
    """What is to happen to the machines of a job that train, in the order in which they were asked for.

    Attributes:
        mttp_s: their mean life, which is drawn; None: it is listed.
        lives_s: how long they live, one after the other; whoever comes later stays.
        count: at most so many preemptions. grace_s: from a notice to the end.
        missed, late, silent: shares without a notice, with one that comes at any moment of the grace period, and
            without a link; the others are told in time. rebalance: the share to which a rebalance is recommended, a
            grace period before the notice or the loss.
    """

    mttp_s: float | None = None
    lives_s: tuple[float, ...] = ()
    seed: int = 0
    count: int | None = None
    grace_s: float = 120.0
    missed: float = 0.0
    late: float = 0.0
    silent: float = 0.0
    rebalance: float = 0.0

    @classmethod
    def of(cls, keys: Mapping[str, Any], done: int = 0) -> Injection:
        """By the keys of ``inject`` in a job file, those left out by default; ``done``: preemptions before it."""
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

    @property
    def mean_s(self) -> float:
        """The mean life of those that do not stay."""
        return fmean(self.lives_s) if self.mttp_s is None else self.mttp_s


SHARES = ("missed", "late", "silent", "rebalance")
FATES = ("missed", "late", "silent")
"""Shares of which a machine has one at most."""


@dataclass(frozen=True)
class Strike:
    """What happens to a machine: after ``life_s`` of training it is taken back.

    ``grace_s``: None without a notice. ``silent``: it loses its link instead. ``recommended_s``: when a rebalance is
    recommended, counted as the life.
    """

    life_s: float
    grace_s: float | None
    silent: bool = False
    recommended_s: float = math.inf


@lru_cache(maxsize=4096)  # it is asked again each tick
def strike_of(injection: Injection, number: int) -> Strike | None:
    """What happens to the machine of this number, from 1, the same whenever it is asked; None: it stays."""
    rng = random.Random(injection.seed)
    for _ in range(number):  # machines draw one after the other: a life, and its end
        unit, fate = rng.expovariate(1.0), rng.random()
    if injection.mttp_s is not None:
        life_s = unit * injection.mttp_s
    elif number <= len(injection.lives_s):
        life_s = injection.lives_s[number - 1]
    else:
        return None
    more = random.Random(f"{injection.seed}/{number}")
    grace_s, share_of_grace = injection.grace_s, more.random()
    silent = late = False
    missed = fate < injection.missed
    if not missed:
        late = fate < injection.missed + injection.late
        silent = not late and fate < injection.missed + injection.late + injection.silent
    recommended_s = life_s - grace_s if more.random() < injection.rebalance else math.inf
    told_s = None if missed or silent else grace_s * share_of_grace if late else grace_s
    return Strike(life_s, told_s, silent, recommended_s)


class Blow(enum.Enum):
    """What is done to a machine."""

    RECOMMEND = "recommend"
    PREEMPT = "preempt"
    CUT = "cut"


class Injector:
    """Says when what is due; of one controller."""

    def __init__(self, injection: Injection, since_s: float = 0.0) -> None:
        """``since_s``: no life begins before."""
        self._injection, self._since_s = injection, since_s
        self._struck, self._recommended = set[str](), set[str]()

    def due(self, world: World, now_s: float) -> Iterator[tuple[str, Blow, float | None]]:
        """The machines with what happens to them now, and the grace period of a notice."""
        if world.job.over:
            return
        for number, machine in enumerate(self._candidates(world), start=1):
            unseen = [name for name in self._struck if not _is_gone(world.machines[name])]
            if self._injection.count is not None and world.preemptions + len(unseen) >= self._injection.count:
                return
            if machine.id in self._struck or machine.trained_s is None or machine.state is not Machine.MEMBER:
                continue
            strike = strike_of(self._injection, number)
            if strike is None:
                return
            lived_s = now_s - max(machine.trained_s, self._since_s)
            if lived_s >= strike.life_s:
                self._struck.add(machine.id)
                yield machine.id, Blow.CUT if strike.silent else Blow.PREEMPT, strike.grace_s
            elif machine.id not in self._recommended and lived_s >= strike.recommended_s:
                self._recommended.add(machine.id)
                yield machine.id, Blow.RECOMMEND, None

    def _candidates(self, world: World) -> list[MachineRecord]:
        """Those that are not there because they cannot be taken back, and were there when the injection began."""
        kept = (world.terms.bought, world.terms.steady)
        return [
            m
            for m in world.machines.values()
            if m.role is Role.TRAINER and m.pool not in kept and (m.ended_s is None or m.ended_s >= self._since_s)
        ]


def _is_gone(machine: MachineRecord) -> bool:
    return machine.noticed_s is not None or machine.end_reason == LOST
