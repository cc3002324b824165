"""What befalls the machines of a job: lost, taken back after a notice, or without a controller."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.fault import MachineFault, Machines, Strike


class LostMachine(MachineFault):
    """All of the machine of a rank ends at once.

    The orchestrator forms a generation without it, and replaces it.
    """

    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Take it back at once."""
        job.preempt(None)


class Notice(MachineFault):
    """The machine of a rank has ``seconds`` left: who can be asked for a version saves one, and loses no step."""

    options: ClassVar[frozenset[str]] = frozenset({"rank", "seconds"})
    seconds = 10.0
    announced = True

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Have the machine's metadata service say so."""
        job.preempt(strike.seconds)


class Rebalance(MachineFault):
    """The cloud recommends leaving a machine: all ranks save as a precaution, and training goes on."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Have the machine's metadata service say so."""
        job.recommend()


class LostController(MachineFault):
    """The job's controller is killed: training goes on, and the next one comes after ``seconds``."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"seconds"})
    seconds = 1.0

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Kill it."""
        job.restart_controller(strike.seconds)
