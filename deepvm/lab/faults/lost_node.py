"""The memory node is lost, and an empty one takes its place."""

from __future__ import annotations

from typing import ClassVar

from deepvm.lab.faults.fault import Fault, FaultTarget, Strike


class LostNode(Fault):
    """The memory node is lost, and an empty one takes its place; training goes on meanwhile."""

    ends = False
    options: ClassVar[frozenset[str]] = frozenset({"seconds"})
    seconds = 0.5

    def strike_from_outside(self, strike: Strike, victim: FaultTarget) -> None:
        """Kill it; the next one comes after ``seconds``."""
        victim.restart_node(strike.seconds)
