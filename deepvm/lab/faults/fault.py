"""A fault: where and when it strikes, and whether training must survive it or restart."""

import random
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from deepvm.core.json_types import JsonDict
from deepvm.documents.models import model_of
from deepvm.records import dataclass, fields

# Events of a hit worker; between ``armed`` and the second one it waits to be hit
STRUCK = ("strike", "killed-in-write")
_LAST_PER_CENT = 80
_MAX_DELAY_S = 0.2  # Of kills at random moments after a step: steps of the lab are shorter
_Schedule: Any = model_of("matrix.FaultSchedule")


class Moment(Enum):
    """Where in a step a rank can meet with a fault."""

    LOADING = "loading"  # while its samples are loaded
    REDUCING = "reducing"  # before gradients are exchanged
    # at the end of a step, after the barrier that follows its checkpoint, if any (ECRL 4.6)
    BOUNDARY = "boundary"


# Who is killed: a rank, the launcher's process, all at once, or a rank in mid-write
Target = Literal["worker", "agent", "machine", "write"]


@dataclass(frozen=True)
class FaultInjection:
    """One failure of a run."""

    fault: str  # its name in the registry
    step: int  # it strikes when so many steps are done
    rank: int = 0  # who is hit
    target: Target = "worker"  # of kills
    seconds: float = 0.0  # how long it lasts
    delay_s: float = 0.0  # from the step until it strikes: kills land anywhere in a step

    @property
    def key(self) -> str:
        return f"{self.fault}-{self.step}-{self.rank}"

    @staticmethod
    def fault_in(key: str) -> str:
        return key.rpartition("-")[0].rpartition("-")[0]

    @classmethod
    def of(cls, document: JsonDict) -> "FaultInjection":
        return cls(**{field.name: document[field.name] for field in fields(cls)})


class FaultSchedule(_Schedule):  # type: ignore[misc]
    """When a fault strikes: a fault's entry in a matrix file."""


# Does something after so many seconds
Delay: TypeAlias = Callable[[float, Callable[[], None]], None]


class Disk(Protocol):
    """The disk under a worker's checkpoints."""

    def kill_at_next_write(self, key: str) -> None:
        """Exit in the middle of the next write of a checkpoint, as the failure ``key``."""


class RankProcesses:
    """The processes of one start of a training."""

    def workers(self) -> Sequence[int]:
        """The ranks' processes in order, without those that have not reported yet."""
        raise NotImplementedError

    def agent(self) -> int | None:
        """The launcher's own process on the machine, if it has one."""
        return None

    def kill_all(self) -> None:
        raise NotImplementedError


class FaultTarget(RankProcesses):
    """A running attempt, as a fault from outside sees it."""

    folder: Path  # of the run
    broken: list[str]  # files that were damaged, by their names below ``folder``
    later: Delay
    # Kills the controller of a job of ``deepvm run``; the next one comes after so many seconds
    restart_controller: Callable[[float], None]

    def restart_node(self, down_s: float) -> None:
        raise NotImplementedError

    # Only machines of ``launcher: deepvm-run`` can be preempted

    def preempt(self, grace_s: float | None) -> None:
        """Preempt the machine of the hit rank, with a notice of ``grace_s``, or None."""
        raise NotImplementedError

    def recommend(self) -> None:
        raise NotImplementedError


class Fault:
    """A kind of failure, without state: what was done stands in the records of the run."""

    ends = True  # Whether the attempt ends by it, and another continues
    # Where it hits a rank; None: the supervisor strikes once the rank's log has the step
    moment: ClassVar[Moment | None] = None
    damages = False  # Whether it damages a checkpoint, of which there must be one
    # Which of ``rank``, ``target``, ``seconds``, ``share``, ``mbps`` it knows
    options = frozenset({"rank"})
    seconds = 0.0  # How long it lasts if the matrix does not say
    announced = False

    def strikes(
        self, name: str, when: FaultSchedule, steps: int, world: int, first: int = 1
    ) -> Iterator[FaultInjection]:
        """The failures of a run; random ones are drawn from step ``first`` to 80 % of the steps."""
        rng = random.Random(f"{name}-{when.seed}")
        among = random_steps(steps, first)
        drawn = sorted(rng.sample(among, min(when.count, len(among))))
        seconds = when.seconds
        if seconds is None:
            seconds = self.seconds
        for step in (*when.at, *drawn):
            rank = when.rank or 0
            delay_s = 0.0
            if drawn and when.rank is None and when.target != "write":  # most often of rank 0
                rank = rng.randrange(world)
            if drawn and self.moment is None:
                delay_s = rng.random() * _MAX_DELAY_S
            yield FaultInjection(name, step, rank, when.target, seconds, delay_s)

    def moment_of(self, strike: FaultInjection) -> Moment | None:
        return self.moment

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        """For faults with a moment: in the process of a rank."""
        raise NotImplementedError

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        raise NotImplementedError


class MachineFault(Fault):
    """What happens to cloud machines, only in runs of ``launcher: deepvm-run``."""


class DiskFault(Fault):
    """A disk that misbehaves for as long as the run lasts."""

    ends = False
    options = frozenset({"share", "seed"})
    setting: ClassVar[str]  # Which field of :class:`deepvm.lab.faults.disk.Faults` it sets

    def faults(self, when: FaultSchedule, seed: int) -> JsonDict:
        return {"seed": seed + 1_000_003 * when.seed, self.setting: when.share or when.mbps}

    def strikes(
        self, name: str, when: FaultSchedule, steps: int, world: int, first: int = 1
    ) -> Iterator[FaultInjection]:
        return iter(())


def random_steps(steps: int, first: int = 1) -> range:
    """At which of so many steps random failures strike, none before ``first``."""
    return range(first, max(steps * _LAST_PER_CENT // 100, 1) + 1)
