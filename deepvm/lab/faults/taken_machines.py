"""What a cloud does to a machine that it lends: it takes it back, at once or after a notice, or says that it may."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.fault import MachineFault, Machines, Strike


class LostMachine(MachineFault):
    """All of the machine of a rank ends at once; the orchestrator forms a generation without it, and replaces it."""

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
    """The cloud recommends to replace a machine, and does not take it back: all ranks save, and training goes on."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Have the machine's metadata service say so."""
        job.recommend()
