"""Preemptions on purpose: machines live for random times, from their first step on, and some go without a notice."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
class Strike:
    """A machine is taken back after ``life_s`` of training; ``grace_s``: None without a notice."""

    life_s: float
    grace_s: float | None


def strike_of(injection: Injection, number: int) -> Strike:
    """What happens to the job's machine of this number, from 1: the same whenever it is asked."""
    rng = random.Random(injection.seed)
    for _ in range(number):  # machines draw one after the other: a life, and whether the notice is missed
        life_s, missed = rng.expovariate(1.0 / injection.mttp_s), rng.random() < injection.missed
    return Strike(life_s, None if missed else injection.grace_s)
