"""A machine is taken back after a notice, as spot machines are."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.base import MachineFault, Machines, Strike


class Notice(MachineFault):
    """The machine of a rank has ``seconds`` left; a strategy that the orchestrator can ask saves, and no step is lost."""

    options: ClassVar[frozenset[str]] = frozenset({"rank", "seconds"})
    seconds = 10.0
    announced = True

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Have the machine's metadata service say so."""
        job.preempt(strike.seconds)
