"""Faults that come from outside: signals to processes, and a memory node that is lost."""

from __future__ import annotations

import signal

from deepvm.errors import RequestError
from deepvm.io.process_tree import send_signal
from deepvm.lab.faults.fault import Disk, Fault, FaultInjection, FaultTarget, Moment


class Kill(Fault):
    """SIGKILL anywhere in a step: of a worker, the launcher, the whole machine, or a writer.

    It strikes on progress that was logged: by the clock it would hit the start, and prove nothing.
    """

    options = frozenset({"rank", "target"})

    def moment_of(self, strike: FaultInjection) -> Moment | None:
        """Only the writer itself knows when it is in mid-write."""
        if strike.target == "write":
            return Moment.BOUNDARY
        return None

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        """End the process in the middle of its next write of a checkpoint."""
        disk.kill_at_next_write(strike.key)

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        """Kill. Raises RequestError: the launcher has no process of its own to be killed."""
        if strike.target == "machine":
            attempt.kill_all()
        elif strike.target == "worker":
            send_signal(signal.SIGKILL, [attempt.workers()[strike.rank]])
        elif (agent := attempt.agent()) is not None:
            send_signal(signal.SIGKILL, [agent])
        else:
            allowed = "another target: this launcher has no process besides the ranks"
            raise RequestError("target", "agent", allowed)


class Stop(Fault):
    """SIGSTOP: a rank stops for ``seconds``; all others wait, and nothing may be lost."""

    ends = False
    options = frozenset({"rank", "seconds"})
    seconds = 1.0

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        """Stop it, and let it continue after a while, in which it may be taken for dead."""
        process = [attempt.workers()[strike.rank]]
        send_signal(signal.SIGSTOP, process)
        attempt.later(strike.seconds, lambda: send_signal(signal.SIGCONT, process))


class LostNode(Fault):
    """The memory node is lost, and an empty one takes its place; training continues meanwhile."""

    ends = False
    options = frozenset({"seconds"})
    seconds = 0.5

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        """Kill it; the next one comes after ``seconds``."""
        attempt.restart_node(strike.seconds)
