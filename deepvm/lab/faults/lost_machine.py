"""A machine is lost without notice: the cloud takes it back, or it breaks."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.base import MachineFault, Machines, Strike


class LostMachine(MachineFault):
    """All of the machine of a rank ends at once; the orchestrator forms a generation without it, and replaces it."""

    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Take it back at once."""
        job.preempt(None)
