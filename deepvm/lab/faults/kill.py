"""SIGKILL at any time: of a worker, the launcher, the whole machine, or a writer."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import ClassVar

from deepvm.errors import RequestError
from deepvm.lab.faults.fault import Fault, FaultTarget, Moment, Strike, Target, Worker


class Kill(Fault):
    """SIGKILL anywhere in a step: of a worker, the launcher, the whole machine, or a writer.

    It strikes on progress that was logged: by the clock it would hit the start, and prove nothing.
    """

    options: ClassVar[frozenset[str]] = frozenset({"rank", "target"})

    def moment_of(self, strike: Strike) -> Moment | None:
        """Only the writer itself knows when it is in mid-write."""
        return Moment.BOUNDARY if strike.target is Target.WRITE else None

    def strike_in_worker(self, strike: Strike, worker: Worker) -> None:
        """End the process in the middle of its next write of a checkpoint."""
        worker.disk.kill_at_next_write(strike.key)

    def strike_from_outside(self, strike: Strike, victim: FaultTarget) -> None:
        """Kill; one that is gone meanwhile is killed enough.

        Raises:
            RequestError: the launcher has no process of its own, and is to be killed.
        """
        if strike.target is Target.MACHINE:
            victim.kill_all()
            return
        process = _agent(victim) if strike.target is Target.AGENT else victim.workers()[strike.rank]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _agent(victim: FaultTarget) -> int:
    agent = victim.agent()
    if agent is None:
        raise RequestError(
            "target", "agent", "another target: this launcher has no process beside the ranks"
        )
    return agent
