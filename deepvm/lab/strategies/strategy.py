"""A strategy saves checkpoints of a running training and finds the newest good one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.records import dataclass, field

if TYPE_CHECKING:
    from deepvm.lab.strategies.state import State  # loads torch: matrix files are read without it


@dataclass
class CheckpointRow:
    """A line of ``checkpoint_rank0.jsonl``: a checkpoint's cost (ECRL 4.9, eq. 7)."""

    step: int  # steps done
    snapshot_s: float = 0.0  # for a copy, while training waits
    foreground_s: float = 0.0  # for writing, while training waits
    background_s: float = 0.0  # for writing, while it continues
    enqueue_s: float = 0.0  # for handing it over
    backpressure_s: float = 0.0  # until there was space for it in the queue
    stall_s: float = 0.0  # for which training has waited in all
    bytes: int = 0  # written
    retries: int = 0  # of failed writes
    error: str = ""  # why it was given up


@dataclass(frozen=True)
class Setting:
    """Where and how often a training is checkpointed."""

    folder: Path
    attempt: int  # of this start, from 0; what an older one writes must not become visible
    every: int  # steps
    most_in_flight: int  # checkpoints that wait to be written at most
    record: Callable[[CheckpointRow], None]  # takes each row when it is complete
    note: Callable[..., None]  # takes events, such as that training has waited
    keep: int = 3  # newest ones
    tiers: tuple[str, ...] = ()  # memory nodes
    controls: frozenset[str] = field(default_factory=frozenset)  # mistakes on purpose


class Strategy(ABC):
    """One training's checkpoints on one rank; all ranks call the same methods in order."""

    in_memory = False  # Whether it needs a memory node
    all_ranks_write = False  # Whether each rank writes to files, not rank 0 alone
    # Whether the agent of ``deepvm run`` can ask it for a checkpoint
    obeys_orchestrator = False

    def __init__(self, state: "State", setting: Setting) -> None:
        self.state = state
        self.setting = setting

    @abstractmethod
    def restore(self) -> int:
        """Resume from the newest good checkpoint; returns its steps, 0 if there is none."""

    @abstractmethod
    def save(self, step: int) -> None:
        """Save when ``step`` steps are done."""

    def stepped(self, step: int) -> None:
        return

    def stalled(
        self,
        step: int,
        seconds: float,
        *,
        snapshot_s: float = 0.0,
        write_s: float = 0.0,
        in_step: bool = False,
    ) -> None:
        """Note on rank 0 that training has waited; ``in_step``: in an optimizer step."""
        parts = {"seconds": seconds, "snapshot_s": snapshot_s, "write_s": write_s}
        self.setting.note("stalled", step=step, in_step=in_step, **parts)

    def saved(self, row: CheckpointRow) -> None:
        self.stalled(row.step, row.stall_s, snapshot_s=row.snapshot_s, write_s=row.foreground_s)
        self.setting.record(row)

    @abstractmethod
    def close(self) -> None:
        """Finish what is in flight."""


def due(step: int, every: int) -> bool:
    """Whether a checkpoint is due when so many steps are done."""
    return every > 0 and step > 0 and step % every == 0
