"""A strategy saves checkpoints of a running training and finds the newest good one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from deepvm.lab.strategies.state import State  # loads torch: matrix files are read without it


@dataclass
class CheckpointRow:
    """A line of ``checkpoint_rank0.jsonl``: a checkpoint's cost in s (ECRL 4.9, eq. 7).

    Attributes:
        step: steps done. snapshot_s: for a copy, while training waits. foreground_s, background_s:
            for writing, while training waits and while it continues. enqueue_s: for handing it
            over.
            backpressure_s: until there was room for it in the queue. stall_s: for which training
            has waited in all. bytes: written. retries: of failed writes. error: why it was given
            up, empty if it is there.
    """

    step: int
    snapshot_s: float = 0.0
    foreground_s: float = 0.0
    background_s: float = 0.0
    enqueue_s: float = 0.0
    backpressure_s: float = 0.0
    stall_s: float = 0.0
    bytes: int = 0
    retries: int = 0
    error: str = ""


@dataclass(frozen=True)
class Setting:
    """Where and how often a training is checkpointed.

    Attributes:
        folder: of the checkpoints. attempt: number of this start, from 0; what an older one writes
            must not become visible. every: steps. most_in_flight: checkpoints that wait to be
            written at most. keep: newest ones that are kept. tiers: for strategies with memory
            nodes. controls: mistakes that are made on purpose.
        record: takes each row when it is complete. note: takes events, such as that training has
            waited.
    """

    folder: Path
    attempt: int
    every: int
    most_in_flight: int
    record: Callable[[CheckpointRow], None]
    note: Callable[..., None]
    keep: int = 3
    tiers: tuple[str, ...] = ()
    controls: frozenset[str] = field(default_factory=frozenset)


class Strategy(ABC):
    """One training's checkpoints on one rank; all ranks call the same methods in order."""

    in_memory: ClassVar[bool] = False
    """Whether it needs a memory node."""
    all_ranks_write: ClassVar[bool] = False
    """Whether each rank writes to files, not rank 0 alone."""
    obeys_orchestrator: ClassVar[bool] = False
    """Whether the agent of ``deepvm run`` can ask it for a version."""

    def __init__(self, state: State, setting: Setting) -> None:
        self.state = state
        self.setting = setting

    @abstractmethod
    def restore(self) -> int:
        """Bring the training to the newest good checkpoint.

        Returns its steps, 0 if there is none.
        """

    @abstractmethod
    def save(self, step: int) -> None:
        """A step has ended at which a checkpoint is due: ``step`` are done."""

    def stepped(self, step: int) -> None:
        """A step has ended at which none is due."""
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
        """Note that training has waited for the checkpoint of a step, which may still fail.

        On rank 0.

        ``snapshot_s``, ``write_s``: parts of it. ``in_step``: during an optimizer step, which is
        timed.
        """
        parts = {"seconds": seconds, "snapshot_s": snapshot_s, "write_s": write_s}
        self.setting.note("stalled", step=step, in_step=in_step, **parts)

    @abstractmethod
    def close(self) -> None:
        """Finish what is in flight."""


def due(step: int, every: int) -> bool:
    """Whether a checkpoint is due when so many steps are done."""
    return every > 0 and step > 0 and step % every == 0
