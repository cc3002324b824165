"""Preemptions on purpose: machines live for random, listed or recorded times, from their first step on, and then go.

Most go after a notice, some without one or after a late one; some fall silent: they live on, without a link.

What the user has ordered and which machines were struck is among the job's events, so that another controller goes on
where this one ended: no strike is forgotten, and none happens twice.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import fmean
from typing import Any

from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import LOST, MachineRecord, Role, World
from deepvm.jobs.history.history import EventRow

INJECTED, STRUCK = "injected", "struck"
"""Kinds of events: what was ordered while the job ran, and a machine that is about to be taken back."""


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

    @classmethod
    def written(cls, facts: Mapping[str, Any]) -> Injection:
        """By the facts of an event; one of an older deepvm lacks some."""
        found = {one.name: facts[one.name] for one in fields(cls) if one.name in facts}
        return cls(**{**found, "lives_s": tuple(found.get("lives_s", ()))})

    @property
    def mean_s(self) -> float:
        """The mean life of those that do not stay."""
        return fmean(self.lives_s) if self.mttp_s is None else self.mttp_s


SHARES = ("missed", "late", "silent", "rebalance")
FATES = ("missed", "late", "silent")
"""Shares of which a machine has one at most."""


@dataclass(frozen=True)
class Fate:
    """What happens to a machine: after ``life_s`` of training it is taken back.

    ``grace_s``: None without a notice. ``silent``: it loses its link instead. ``recommended_s``: when a rebalance is
    recommended, counted as the life.
    """

    life_s: float
    grace_s: float | None
    silent: bool = False
    recommended_s: float = math.inf


@lru_cache(maxsize=4096)  # it is asked again each tick
def fate_of(injection: Injection, number: int) -> Fate | None:
    """That of the machine of this number, from 1, the same whenever it is asked; None: it stays."""
    rng = random.Random(injection.seed)
    for _ in range(number):  # machines draw one after the other: a life, and its end
        unit, end = rng.expovariate(1.0), rng.random()
    if injection.mttp_s is not None:
        life_s = unit * injection.mttp_s
    elif number <= len(injection.lives_s):
        life_s = injection.lives_s[number - 1]
    else:
        return None
    more = random.Random(f"{injection.seed}/{number}")
    grace_s, share_of_grace = injection.grace_s, more.random()
    missed, late, silent = injection.missed, injection.late, injection.silent
    told_s: float | None = grace_s
    if end < missed or missed + late <= end < missed + late + silent:
        told_s = None
    elif end < missed + late:
        told_s = grace_s * share_of_grace
    recommended_s = life_s - grace_s if more.random() < injection.rebalance else math.inf
    return Fate(life_s, told_s, missed + late <= end < missed + late + silent, recommended_s)


class Blow(enum.Enum):
    """What is done to a machine."""

    RECOMMEND = "recommend"
    PREEMPT = "preempt"
    CUT = "cut"


@dataclass(frozen=True)
class Strike:
    """What to do to a machine now; ``grace_s``: of its notice. ``new``: no controller before this one has begun to."""

    id: str
    blow: Blow = Blow.PREEMPT
    grace_s: float | None = None
    new: bool = True


class Injector:
    """Says what is to be done to which machines of a job."""

    def __init__(self, injection: Injection | None, events: Iterable[EventRow]) -> None:
        """``injection``: of the job file. ``events``: of earlier controllers."""
        self._injection, self._since_s = injection, 0.0
        self._struck, self._recommended = dict[str, Strike](), set[str]()
        for event in events:
            if event.kind == INJECTED:
                self.order(Injection.written(event.facts), event.at_s)
            elif event.kind == STRUCK:
                blow = Blow(event.facts["blow"])
                self._struck[event.facts["id"]] = Strike(event.facts["id"], blow, event.facts["grace_s"], new=False)
        self._begun = dict(self._struck)
        """Strikes of earlier controllers; nobody knows whether the cloud has heard of them."""

    def order(self, injection: Injection, now_s: float) -> None:
        """Go by this from now on."""
        self._injection, self._since_s = injection, now_s

    def put_off(self, strike: Strike) -> None:
        """Have a strike that could not be made come again."""
        if strike.blow is Blow.RECOMMEND:
            self._recommended.discard(strike.id)
        elif strike.new:
            self._struck.pop(strike.id, None)
        else:
            self._begun[strike.id] = strike

    def due(self, world: World, now_s: float) -> Iterator[Strike]:
        """The strikes to make now; each comes once."""
        if world.job.over:
            return
        for one in [m for m in self._begun if _is_pending(world, m)]:
            yield self._begun[one]  # clouds take no machine back twice
        self._begun = {}
        injection = self._injection
        for number, machine in enumerate(self._candidates(world) if injection else (), start=1):
            pending = sum(_is_pending(world, m) for m in self._struck)
            if injection is None or (injection.count is not None and world.preemptions + pending >= injection.count):
                return
            if machine.id in self._struck or machine.trained_s is None or machine.state is not Machine.MEMBER:
                continue
            fate = fate_of(injection, number)
            if fate is None:
                return
            lived_s = now_s - max(machine.trained_s, self._since_s)
            if lived_s >= fate.life_s:
                blow = Blow.CUT if fate.silent else Blow.PREEMPT
                self._struck[machine.id] = Strike(machine.id, blow, fate.grace_s)
                yield self._struck[machine.id]
            elif machine.id not in self._recommended and lived_s >= fate.recommended_s:
                self._recommended.add(machine.id)
                yield Strike(machine.id, Blow.RECOMMEND)

    def _candidates(self, world: World) -> list[MachineRecord]:
        """Those that can be taken back, and were there when the injection began."""
        kept = (world.terms.bought, world.terms.steady)
        return [
            m
            for m in world.machines.values()
            if m.role is Role.TRAINER and m.pool not in kept and (m.ended_s is None or m.ended_s >= self._since_s)
        ]


def _is_pending(world: World, machine: str) -> bool:
    """Whether a machine was struck that nobody has missed yet; one that was released first is not taken back."""
    record = world.machines.get(machine)
    return record is not None and record.noticed_s is None and record.end_reason != LOST and not record.state.over
