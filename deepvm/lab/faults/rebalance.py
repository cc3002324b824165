"""The cloud recommends to replace a machine that it may take back soon, and does not take it back."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.base import MachineFault, Machines, Strike


class Rebalance(MachineFault):
    """All ranks save as an insurance, and training goes on."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"rank"})

    def strike_machines(self, strike: Strike, job: Machines) -> None:
        """Have the machine's metadata service say so."""
        job.recommend()
