"""The controller of the job is killed, and another one takes over."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.fault import MachineFault, Machines, Strike


class LostController(MachineFault):
    """Training goes on without it; the next one, after ``seconds``, adopts the machines that live."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"seconds"})
    seconds = 1.0

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Kill it."""
        job.restart_controller(strike.seconds)
