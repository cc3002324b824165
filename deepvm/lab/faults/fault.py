"""A fault: where and when it strikes, and whether training must survive it or restart."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable


class Moment(Enum):
    """Where in a step a rank can meet with a fault."""

    LOADING = "loading"
    """while its samples are loaded"""
    REDUCING = "reducing"
    """before gradients are exchanged"""
    BOUNDARY = "boundary"
    """at the end of a step, after the barrier that follows its checkpoint, if any (ECRL 4.6)"""


class Target(Enum):
    """Who is killed."""

    WORKER = "worker"
    AGENT = "agent"
    """the launcher's own process on the machine, which the workers should not outlive"""
    MACHINE = "machine"
    """all of it at once"""
    WRITE = "write"
    """the worker that writes a checkpoint, in the middle of it"""


@dataclass(frozen=True)
class Strike:
    """One failure of a run.

    Attributes:
        fault: its name in the registry. step: it strikes when so many steps are done. rank: who is
            hit.
        target: of kills. seconds: how long it lasts. delay_s: from the step until it strikes, so
            that kills land anywhere in a step.
    """

    fault: str
    step: int
    rank: int = 0
    target: Target = Target.WORKER
    seconds: float = 0.0
    delay_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.fault}-{self.step}-{self.rank}"

    @staticmethod
    def fault_in(key: str) -> str:
        return key.rpartition("-")[0].rpartition("-")[0]


@dataclass(frozen=True)
class FaultSchedule:
    """A matrix's entry for a fault: steps, or how many at random (``matrix.Strikes``)."""

    at: tuple[int, ...] = ()
    count: int = 0
    seed: int = 0
    rank: int | None = None
    target: Target = Target.WORKER
    seconds: float | None = None
    share: float | None = None
    mbps: float | None = None


class Worker(Protocol):
    """What a fault in a worker may use."""

    rank: int
    world: int

    @property
    def disk(self) -> Disk:
        """Where its checkpoints go."""

    def note(self, event: str, **facts: Any) -> None:
        """Write an event into the worker's own record."""


class Disk(Protocol):
    """The disk under a worker's checkpoints."""

    def kill_at_next_write(self, key: str) -> None:
        """Exit in the middle of the next write of a checkpoint, as the failure ``key``."""


class FaultTarget(Protocol):
    """A running attempt, as a fault from outside sees it."""

    folder: Path
    """of the run"""
    broken: list[str]
    """files that were damaged, by their names below the run's folder"""

    def workers(self) -> Sequence[int]:
        """Processes of the ranks, in their order."""

    def agent(self) -> int | None:
        """The launcher's own process on the machine, if it has one."""

    def kill_all(self) -> None:
        """End the machine: all processes at once."""

    def restart_node(self, down_s: float) -> None:
        """Kill the memory node, and start an empty one after ``down_s``."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after so many seconds, while the run is watched all the time."""


@runtime_checkable
class Machines(FaultTarget, Protocol):
    """A running job of ``deepvm run``, as a fault sees it: its machines can be preempted."""

    def preempt(self, grace_s: float | None) -> None:
        """Preempt the machine of the hit rank, with a notice of ``grace_s``, or None."""

    def recommend(self) -> None:
        """Tell that machine that the cloud may take it back soon."""

    def restart_controller(self, down_s: float) -> None:
        """Kill the job's controller; the next one comes after ``down_s``."""


class Fault:
    """A kind of failure. Faults have no state: what was done stands in the records of the run."""

    ends: ClassVar[bool] = True
    """Whether the attempt ends by it, and another continues."""
    moment: ClassVar[Moment | None] = None
    """Where it hits a rank; None: the supervisor strikes once the rank's log has the step."""
    damages: ClassVar[bool] = False
    """Whether it damages a checkpoint, of which there must be one."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Which of ``rank``, ``target``, ``seconds``, ``share``, ``mbps`` it knows."""
    seconds: ClassVar[float] = 0.0
    """How long it lasts if the matrix does not say."""
    announced: ClassVar[bool] = False
    """Whether it is told beforehand, so that no step need be lost."""

    def strikes(
        self, name: str, when: FaultSchedule, steps: int, world: int, first: int = 1
    ) -> Iterator[Strike]:
        """The failures of a run; random ones are the same for the same seed.

        Those are drawn from step ``first`` to 80 % of the steps: after that training may end before
        they strike. In a write rank 0 is hit if no rank is given, because with most strategies no
        other one writes.
        """
        rng = random.Random(f"{name}-{when.seed}")
        among = random_steps(steps, first)
        drawn = sorted(rng.sample(among, min(when.count, len(among)))) if when.count else ()
        seconds = self.seconds if when.seconds is None else when.seconds
        for step in (*when.at, *drawn):
            rank = when.rank
            if rank is None:
                rank = rng.randrange(world) if drawn and when.target is not Target.WRITE else 0
            delay_s = rng.random() * _WITHIN_S if drawn and self.moment is None else 0.0
            yield Strike(name, step, rank, when.target, seconds, delay_s)

    def moment_of(self, strike: Strike) -> Moment | None:
        """Where a failure is met with, if that depends on it."""
        return self.moment

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        """Do it in the process of a rank; for faults with a moment."""
        raise NotImplementedError

    def strike_from_outside(self, strike: Strike, victim: FaultTarget) -> None:
        """Do it to a running attempt; for faults without a moment."""
        raise NotImplementedError


class MachineFault(Fault):
    """What happens to cloud machines, only in runs of ``launcher: deepvm-run``."""

    def strike_from_outside(self, strike: Strike, victim: FaultTarget) -> None:
        """Do it to a job."""
        assert isinstance(victim, Machines)
        self.strike_machines(strike, victim)

    @abstractmethod
    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Do it to a job."""


STRUCK = ("strike", "killed-in-write")
"""Events of a hit worker; between ``armed`` and the second one it waits to be hit."""
_LAST_PER_CENT = 80
_WITHIN_S = 0.2
"""Kills at random moments come so long after a step at most: steps of the lab are shorter."""


class DiskFault(Fault):
    """A disk that misbehaves for as long as the run lasts."""

    ends = False

    @abstractmethod
    def disk(self, when: FaultSchedule, seed: int) -> Any:
        """What :mod:`deepvm.lab.faults.disk` puts between a worker and its checkpoints."""

    def strikes(
        self, name: str, when: FaultSchedule, steps: int, world: int, first: int = 1
    ) -> Iterator[Strike]:
        """None at a step."""
        return iter(())


def random_steps(steps: int, first: int = 1) -> range:
    """At which of so many steps random failures strike, none before ``first``."""
    return range(first, max(steps * _LAST_PER_CENT // 100, 1) + 1)
