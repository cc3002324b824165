"""A job's machines, as external faults see them: kill, preempt or notify a rank's machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepvm.io.process_tree import descendants
from deepvm.io.processes import open_files
from deepvm.jobs.clouds.local import MACHINE
from deepvm.jobs.decisions.world import Role
from deepvm.lab.faults.fault import FaultTarget
from deepvm.lab.orchestrated.job import NAME, JobPlace
from deepvm.lab.records import steps_of

_AGENT = b"deepvm.jobs.agent.main"
_NO_PROCESS = 2**31 - 1
"""The pid of a process that is gone: above all others, and not 0 (this group)."""


@dataclass
class JobMachines(FaultTarget):
    """The machines of a run's job.

    Attributes:
        place: of the job. placed: the machine of each rank of the generation that runs.
        rank: who is hit. restart_controller: kills the job's controller, and starts another after
            so many seconds.
    """

    folder: Path
    broken: list[str]
    later: Callable[[float, Callable[[], None]], None]
    place: JobPlace
    placed: Mapping[int, str]
    rank: int
    restart_controller: Callable[[float], None]

    def workers(self) -> Sequence[int]:
        """The ranks' processes in order, by this computer's pids; machines have their own."""
        return [self._worker(rank) or _NO_PROCESS for rank in sorted(self.placed)]

    def agent(self) -> int | None:
        """The agent of the machine that is hit."""
        return self._of(self.rank, lambda pid: _AGENT in _read(f"/proc/{pid}/cmdline"))

    def kill_all(self) -> None:
        """Lose all machines, without notice."""
        for machine in self._alive(Role.TRAINER, Role.ANCHOR):
            self.place.cloud.preempt(NAME, machine, None)

    def restart_node(self, down_s: float) -> None:
        """Lose the machines that keep checkpoints in memory; the controller replaces them."""
        for machine in self._alive(Role.ANCHOR):
            self.place.cloud.preempt(NAME, machine, None)

    def preempt(self, grace_s: float | None) -> None:
        """Preempt the machine: after a notice of ``grace_s``, or at once."""
        self.place.cloud.preempt(NAME, self.placed[self.rank], grace_s)

    def recommend(self) -> None:
        """Announce to the machine that the cloud may preempt it soon."""
        self.place.cloud.recommend(NAME, self.placed[self.rank])

    def _alive(self, *roles: Role) -> list[str]:
        return [
            m.id
            for m in self.place.world().machines.values()
            if m.role in roles and not m.state.over
        ]

    def _of(self, rank: int, wanted: Callable[[int], bool]) -> int | None:
        folder = self.place.state / "jobs" / NAME / "machines" / self.placed[rank]
        first = int(json.loads((folder / MACHINE).read_bytes()).get("process", 0))
        return next((pid for pid in sorted(descendants(first)) if first and wanted(pid)), None)

    def _worker(self, rank: int) -> int | None:
        return self._of(rank, lambda pid: self._writes(pid, rank))

    def _writes(self, pid: int, rank: int) -> bool:
        return str((self.folder / steps_of(rank)).resolve()) in open_files(pid)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
