"""Preemptions on purpose: machines live for random times, from their first step on, and some go without a notice.

What the user has ordered and which machines were struck is among the job's events, so that another controller goes on
where this one ended: no strike is forgotten, and none happens twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import LOST, World
from deepvm.jobs.history.history import EventRow

INJECTED, STRUCK = "injected", "struck"
"""Kinds of events: what was ordered while the job ran, and a machine that is about to be taken back."""


@dataclass(frozen=True)
class Injection:
    """What is to happen: a mean life, at most so many preemptions, the notice, the share without one."""

    mttp_s: float
    seed: int = 0
    count: int | None = None
    grace_s: float = 120.0
    missed: float = 0.0


def injection_of(command: Mapping[str, Any], done: int) -> Injection:
    """What ``deepvm inject`` wants of a job that has had so many preemptions. Raises KeyError."""
    count = command["count"]
    most = None if count is None else done + count
    return Injection(command["mttp_s"], command["seed"], most, command["grace_s"], command["missed"])


@dataclass(frozen=True)
class Life:
    """A machine is taken back after ``life_s`` of training; ``grace_s``: None without a notice."""

    life_s: float
    grace_s: float | None


def life_of(injection: Injection, number: int) -> Life:
    """What happens to the job's machine of this number, from 1: the same whenever it is asked."""
    rng = random.Random(injection.seed)
    for _ in range(number):  # machines draw one after the other: a life, and whether the notice is missed
        life_s, missed = rng.expovariate(1.0 / injection.mttp_s), rng.random() < injection.missed
    return Life(life_s, None if missed else injection.grace_s)


@dataclass(frozen=True)
class Strike:
    """A machine to take back now; ``new``: no controller before this one has begun to."""

    id: str
    grace_s: float | None
    new: bool = True


class Injector:
    """Says which machines of a job are to be taken back."""

    def __init__(self, injection: Injection | None, events: Iterable[EventRow]) -> None:
        """``injection``: of the job file. ``events``: of earlier controllers."""
        self._injection, self._since_s = injection, 0.0
        self._struck: dict[str, float | None] = {}
        for event in events:
            if event.kind == INJECTED:
                self.order(Injection(**{f.name: event.facts[f.name] for f in fields(Injection)}), event.at_s)
            elif event.kind == STRUCK:
                self._struck[event.facts["id"]] = event.facts["grace_s"]
        self._begun = dict(self._struck)
        """Strikes of earlier controllers; nobody knows whether the cloud has heard of them."""

    def order(self, injection: Injection, now_s: float) -> None:
        """Go by this from now on."""
        self._injection, self._since_s = injection, now_s

    def put_off(self, strike: Strike) -> None:
        """Have a strike that could not be made come again."""
        if strike.new:
            self._struck.pop(strike.id, None)
        else:
            self._begun[strike.id] = strike.grace_s

    def due(self, world: World, now_s: float) -> Iterator[Strike]:
        """The strikes to make now; each comes once."""
        if world.job.over:
            return
        for one in [m for m in self._begun if _is_pending(world, m)]:
            yield Strike(one, self._begun[one], new=False)  # clouds take no machine back twice
        self._begun = {}
        injection = self._injection
        for number, machine in enumerate(world.machines.values() if injection else (), start=1):
            pending = sum(_is_pending(world, m) for m in self._struck)
            if injection is None or (injection.count is not None and world.preemptions + pending >= injection.count):
                return
            if (
                machine.id in self._struck
                or machine.pool == world.terms.bought
                or machine.trained_s is None
                or machine.state is not Machine.MEMBER
            ):
                continue
            life = life_of(injection, number)
            if now_s - max(machine.trained_s, self._since_s) >= life.life_s:
                self._struck[machine.id] = life.grace_s
                yield Strike(machine.id, life.grace_s)


def _is_pending(world: World, machine: str) -> bool:
    """Whether a machine was struck that nobody has missed yet; one that was released first is not taken back."""
    record = world.machines.get(machine)
    return record is not None and record.noticed_s is None and record.end_reason != LOST and not record.state.over
