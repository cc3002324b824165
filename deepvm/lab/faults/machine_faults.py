"""Faults of a job's machines: lost, preempted after a notice, or without a controller."""

from __future__ import annotations

from deepvm.lab.faults.fault import FaultInjection, FaultTarget, MachineFault


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
