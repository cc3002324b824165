"""Trainers that form no process group although several run on a machine: found, named and stopped.

Each of them would train a copy of the model, and all would write the same files. Nobody knows how long a script loads
before it forms its group, so time is no reason to stop it: after ``LATE_S`` the log has a warning. A reported step is
one, the first step of a torch optimizer (:mod:`deepvm.jobs.agent.warm`) is one, and so is the end of all trainers.
Under torchrun the end is none: its own connections hide those of ranks that have ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from deepvm.jobs.agent.trainers import Trainers

LATE_S = 60.0
_LOOK_S = 0.1


class GroupWatch:
    """Looks at the trainers of a generation until they have formed a group; any thread may ask."""

    def __init__(
        self,
        trainers: Trainers,
        port: int,
        peers: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``port``: of the ranks' store. ``peers``: addresses of the job's other machines."""
        self._trainers, self._port, self._peers, self._clock = trainers, port, peers, clock
        self._since_s, self._looked_s = clock(), float("-inf")
        self._lock = threading.Lock()
        self._warned = self._formed = False
        self.has_failed = False
        """Whether a trainer is at its first step without a group, and waits for its end."""

    def is_formed(self, *, now: bool = False) -> bool:
        """Whether there is a group; looks now and then, or ``now``."""
        with self._lock:
            if not self._formed and (now or self._clock() - self._looked_s >= _LOOK_S):
                self._looked_s = self._clock()
                self._formed = self._trainers.are_connected(self._port, self._peers)
            return self._formed

    def first_step(self) -> bool:
        """A trainer is at its first step without ``torch.distributed``; returns whether it has to wait for its end."""
        self.has_failed = self.has_failed or not self.is_formed(now=True)
        return self.has_failed

    def is_late(self) -> bool:
        """Whether the log should have a warning now; once."""
        late = not self._warned and self._clock() - self._since_s >= LATE_S
        self._warned = self._warned or late
        return late


def explanation(processes: int, machine: str, when: str) -> str:
    """What is wrong with trainers that formed no group by a time, and what to do."""
    return (
        f"{processes} processes run on {machine} and formed no process group {when}: each trains a copy of its own, "
        "and all write the same files; try: torch.distributed.init_process_group() and DistributedDataParallel in the "
        "script, --processes-per-machine 1 for one process, or --independent-processes for separate trainings"
    )
