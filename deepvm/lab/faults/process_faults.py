"""Faults that come from outside: signals to processes, lost memory nodes and machines."""

import signal

from deepvm.errors import RequestError
from deepvm.io.processes import send_signal
from deepvm.lab.faults.fault import Disk, Fault, FaultInjection, FaultTarget, MachineFault, Moment


class Kill(Fault):
    """SIGKILL anywhere in a step: of a worker, the launcher, the whole machine, or a writer."""

    options = frozenset({"rank", "target"})

    def moment_of(self, strike: FaultInjection) -> Moment | None:
        # Only the writer itself knows when it is in mid-write
        if strike.target == "write":
            return Moment.BOUNDARY
        return None

    def strike_in_worker(self, strike: FaultInjection, disk: Disk) -> None:
        disk.kill_at_next_write(strike.key)

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        if strike.target == "machine":
            attempt.kill_all()
        elif strike.target == "worker":
            send_signal(signal.SIGKILL, [attempt.workers()[strike.rank]])
        elif (agent := attempt.agent()) is not None:
            send_signal(signal.SIGKILL, [agent])
        else:
            raise RequestError(
                "target", "agent", "another target: this launcher has no process besides the ranks"
            )


class Stop(Fault):
    """SIGSTOP: a rank stops for ``seconds``; all others wait, and nothing may be lost."""

    ends = False
    options = frozenset({"rank", "seconds"})
    seconds = 1.0

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        process = [attempt.workers()[strike.rank]]
        send_signal(signal.SIGSTOP, process)
        attempt.later(strike.seconds, lambda: send_signal(signal.SIGCONT, process))


class LostNode(Fault):
    """The memory node is lost, and an empty one takes its place; training continues meanwhile."""

    ends = False
    options = frozenset({"seconds"})
    seconds = 0.5

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        attempt.restart_node(strike.seconds)


class LostMachine(MachineFault):
    """A rank's machine ends at once; the orchestrator continues without it, then replaces it."""

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        attempt.preempt(None)


class Notice(MachineFault):
    """A rank's machine has ``seconds`` left: strategies that can save lose no step."""

    options = frozenset({"rank", "seconds"})
    seconds = 10.0
    announced = True

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        attempt.preempt(strike.seconds)


class Rebalance(MachineFault):
    """The cloud recommends leaving a machine: all ranks save, and training continues."""

    ends = False

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        attempt.recommend()


class LostController(MachineFault):
    """The job's controller is killed: training continues, the next starts after ``seconds``."""

    ends = False
    options = frozenset({"seconds"})
    seconds = 1.0

    def strike_from_outside(self, strike: FaultInjection, attempt: FaultTarget) -> None:
        attempt.restart_controller(strike.seconds)
