"""A machine is taken back after a notice, as spot machines are."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.base import MachineFault, Machines, Strike


class Notice(MachineFault):
    """The machine of a rank has ``seconds`` left: who can be asked for a version saves one, and loses no step."""

    options: ClassVar[frozenset[str]] = frozenset({"rank", "seconds"})
    seconds = 10.0
    announced = True

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Have the machine's metadata service say so."""
        job.preempt(strike.seconds)
