"""A fault: where and when it strikes, and whether training must survive it or restart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from deepvm.documents.fields import Number, Whole

STRUCK = ("strike", "killed-in-write")
"""Events of a hit worker; between ``armed`` and the second one it waits to be hit."""
_LAST_PER_CENT = 80
_MAX_DELAY_S = 0.2
"""Of kills at random moments after a step: steps of the lab are shorter."""
LIMIT = 10**9
FromOne = Annotated[Whole, Field(ge=1, le=LIMIT)]
FromZero = Annotated[Whole, Field(ge=0, le=LIMIT)]


class Moment(Enum):
    """Where in a step a rank can meet with a fault."""

    LOADING = "loading"
    """while its samples are loaded"""
    REDUCING = "reducing"
    """before gradients are exchanged"""
    BOUNDARY = "boundary"
    """at the end of a step, after the barrier that follows its checkpoint, if any (ECRL 4.6)"""


Target = Literal["worker", "agent", "machine", "write"]
"""Who is killed: a rank, the launcher's own process, all processes at once, or the rank that
writes a checkpoint, in the middle of the write."""


@dataclass(frozen=True)
class FaultInjection:
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
    target: Target = "worker"
    seconds: float = 0.0
    delay_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.fault}-{self.step}-{self.rank}"

    @staticmethod
    def fault_in(key: str) -> str:
        return key.rpartition("-")[0].rpartition("-")[0]

    def document(self, *, ends: bool) -> dict[str, Any]:
        """For ``config.json``."""
        return {**asdict(self), "key": self.key, "ends": ends}

    @classmethod
    def of(cls, document: dict[str, Any]) -> FaultInjection:
        return cls(**{field.name: document[field.name] for field in fields(cls)})


def _doc(text: str, default: Any) -> Any:
    return Field(default, description=text)


class FaultSchedule(BaseModel):
    """When a fault strikes: a fault's entry in a matrix file."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    at: list[FromOne] = _doc("steps, such as [40, 110]", [])
    count: FromZero = _doc("how many, at random steps", 0)
    seed: FromZero = _doc("of what is random: a whole number from 0", 0)
    rank: FromZero | None = _doc("which rank, from 0", None)
    target: Target = _doc("worker, agent, machine or write", "worker")
    seconds: Annotated[Number, Field(gt=0, le=3600)] | None = _doc("seconds above 0", None)
    share: Annotated[Number, Field(ge=0, le=1)] | None = _doc("a share from 0 to 1", None)
    mbps: Annotated[Number, Field(gt=0, le=1e6)] | None = _doc("MB a second, above 0", None)


class Disk(Protocol):
    """The disk under a worker's checkpoints."""

    def kill_at_next_write(self, key: str) -> None:
        """Exit in the middle of the next write of a checkpoint, as the failure ``key``."""


class FaultTarget:
    """A running attempt, as a fault from outside sees it.

    Attributes:
        folder: of the run. broken: files that were damaged, by their names below ``folder``.
            later: does something after so many seconds, while the run is watched all the time.
            restart_controller: kills the controller of a job of ``deepvm run``; the next one comes
            after so many seconds.
    """

    folder: Path
    broken: list[str]
    later: Callable[[float, Callable[[], None]], None]
    restart_controller: Callable[[float], None]

    def workers(self) -> Sequence[int]:
        """Processes of the ranks, in their order."""
        raise NotImplementedError

    def agent(self) -> int | None:
        """The launcher's own process on the machine, if it has one."""
        raise NotImplementedError

    def kill_all(self) -> None:
        """End the machine: all processes at once."""
        raise NotImplementedError

    def restart_node(self, down_s: float) -> None:
        """Kill the memory node, and start an empty one after ``down_s``."""
        raise NotImplementedError

    # Only machines of ``launcher: deepvm-run`` can be preempted

    def preempt(self, grace_s: float | None) -> None:
        """Preempt the machine of the hit rank, with a notice of ``grace_s``, or None."""
        raise NotImplementedError

    def recommend(self) -> None:
        """Tell that machine that the cloud may preempt it soon."""
        raise NotImplementedError


class Fault:
    """A kind of failure. Faults have no state: what was done stands in the records of the run."""

    ends: ClassVar[bool] = True
    """Whether the attempt ends by it, and another continues."""
    moment: ClassVar[Moment | None] = None
    """Where it hits a rank; None: the supervisor strikes once the rank's log has the step."""
    damages: ClassVar[bool] = False
    """Whether it damages a checkpoint, of which there must be one."""
    options: ClassVar[frozenset[str]] = frozenset({"rank"})
    """Which of ``rank``, ``target``, ``seconds``, ``share``, ``mbps`` it knows."""
    seconds: ClassVar[float] = 0.0
    """How long it lasts if the matrix does not say."""
    announced: ClassVar[bool] = False
    """Whether it is announced beforehand, so that no step need be lost."""

    def strikes(
        self, name: str, when: FaultSchedule, steps: int, world: int, first: int = 1
    ) -> Iterator[FaultInjection]:
        """The failures of a run; random ones are the same for the same seed.

        Those are drawn from step ``first`` to 80 % of the steps: after that training may end before
        they strike. In a write rank 0 is hit if no rank is given, because with most strategies no
        other one writes.
        """
        rng = random.Random(f"{name}-{when.seed}")
        among = random_steps(steps, first)
        drawn = sorted(rng.sample(among, min(when.count, len(among))))
        if when.seconds is None:
            seconds = self.seconds
        else:
            seconds = when.seconds
        for step in (*when.at, *drawn):
            rank = when.rank or 0
            delay_s = 0.0
            if drawn and when.rank is None and when.target != "write":
                rank = rng.randrange(world)
            if drawn and self.moment is None:
                delay_s = rng.random() * _MAX_DELAY_S
            yield FaultInjection(name, step, rank, when.target, seconds, delay_s)

    def moment_of(self, strike: FaultInjection) -> Moment | None:
        """Where a failure is met with, if that depends on it."""
        return self.moment

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        """Do it in the process of a rank; for faults with a moment."""
        raise NotImplementedError

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        """Do it to a running attempt; for faults without a moment."""
        raise NotImplementedError


class MachineFault(Fault):
    """What happens to cloud machines, only in runs of ``launcher: deepvm-run``."""


class DiskFault(Fault):
    """A disk that misbehaves for as long as the run lasts."""

    ends = False

    def disk(self, when: FaultSchedule, seed: int) -> Any:
        """What :mod:`deepvm.lab.faults.disk` puts between a worker and its checkpoints."""
        raise NotImplementedError

    def strikes(
        self, name: str, when: FaultSchedule, steps: int, world: int, first: int = 1
    ) -> Iterator[FaultInjection]:
        """None at a step."""
        return iter(())


def random_steps(steps: int, first: int = 1) -> range:
    """At which of so many steps random failures strike, none before ``first``."""
    return range(first, max(steps * _LAST_PER_CENT // 100, 1) + 1)
