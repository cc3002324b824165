"""What befalls the machines of a job: lost, preempted after a notice, or without a controller."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.fault import MachineFault, Machines, Strike


class LostMachine(MachineFault):
    """A rank's machine ends at once; the orchestrator continues without it, then replaces it."""

    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        job.preempt(None)


class Notice(MachineFault):
    """A rank's machine has ``seconds`` left: strategies that can save lose no step."""

    options: ClassVar[frozenset[str]] = frozenset({"rank", "seconds"})
    seconds = 10.0
    announced = True

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        job.preempt(strike.seconds)


class Rebalance(MachineFault):
    """The cloud recommends leaving a machine: all ranks save, and training continues."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        job.recommend()


class LostController(MachineFault):
    """The job's controller is killed: training continues, the next starts after ``seconds``."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"seconds"})
    seconds = 1.0

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        job.restart_controller(strike.seconds)
