"""Fault injection: machines are preempted after random, listed or recorded lifetimes."""

import enum
import math
from collections.abc import Iterable, Iterator

from deepvm.jobs.decisions.injection import Injection, planned_preemption
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import LOST, JobState, MachineRecord, Role
from deepvm.jobs.history.history import EventRow
from deepvm.records import dataclass

# Kinds of events: what was ordered during the job, and a machine about to be preempted
INJECTED, STRUCK = "injected", "struck"


class FaultKind(enum.Enum):
    """What is done to a machine."""

    RECOMMEND = "recommend"
    PREEMPT = "preempt"
    CUT = "cut"


@dataclass(frozen=True)
class InjectedFault:
    """A fault for a machine now; ``grace_s``: of its notice; ``new``: not started before."""

    id: str
    blow: FaultKind = FaultKind.PREEMPT
    grace_s: float | None = None
    new: bool = True


class Injector:
    """Says what is to be done to which machines of a job."""

    def __init__(self, injection: Injection | None, events: Iterable[EventRow]) -> None:
        self._injection = injection
        self._since_s = 0.0
        self._struck = dict[str, InjectedFault]()
        self._recommended = set[str]()
        for event in events:
            facts = event.facts
            if event.kind == INJECTED:
                self.order(Injection.written(facts), event.at_s)
            elif event.kind == STRUCK:
                blow = FaultKind(facts["blow"])
                fault = InjectedFault(facts["id"], blow, facts["grace_s"], new=False)
                self._struck[fault.id] = fault
        # Faults of earlier controllers; it is unknown whether the cloud received them
        self._begun = dict(self._struck)

    def order(self, injection: Injection, now_s: float) -> None:
        self._injection = injection
        self._since_s = now_s

    def put_off(self, fault: InjectedFault) -> None:
        if fault.blow is FaultKind.RECOMMEND:
            self._recommended.discard(fault.id)
        elif fault.new:
            self._struck.pop(fault.id, None)
        else:
            self._begun[fault.id] = fault

    def due(self, world: JobState, now_s: float) -> Iterator[InjectedFault]:
        if world.job.over:
            return
        for one in [m for m in self._begun if _is_pending(world, m)]:
            yield self._begun[one]  # clouds preempt no machine twice
        self._begun = {}
        injection = self._injection
        pending = sum(_is_pending(world, m) for m in self._struck)
        if injection is None:
            return
        most = injection.count if injection.count is not None else math.inf
        for number, machine in enumerate(self._candidates(world), start=1):
            if world.preemptions + pending >= most:
                return
            if machine.launched_s is None and machine.state in (Machine.INTENT, Machine.RELEASING):
                return  # if the cloud refuses it, later ones have other numbers
            if machine.id in self._struck or machine.trained_s is None:
                continue
            if machine.state is not Machine.MEMBER:
                continue
            planned = planned_preemption(injection, number)
            if planned is None:
                return
            lived_s = now_s - max(machine.trained_s, self._since_s)
            if lived_s >= planned.life_s:
                blow = FaultKind.CUT if planned.silent else FaultKind.PREEMPT
                self._struck[machine.id] = InjectedFault(machine.id, blow, planned.grace_s)
                pending += 1
                yield self._struck[machine.id]
            elif machine.id not in self._recommended and lived_s >= planned.recommended_s:
                self._recommended.add(machine.id)
                yield InjectedFault(machine.id, FaultKind.RECOMMEND)

    def _candidates(self, world: JobState) -> list[MachineRecord]:
        """Machines that can be preempted, existed when injection started and were not refused."""
        kept = {*world.terms.bought, *world.terms.steady}
        return [
            m
            for m in world.of(Role.TRAINER)
            if m.pool not in kept
            and (m.ended_s is None or m.ended_s >= self._since_s)
            and (m.launched_s is not None or not m.state.over)
        ]


def _is_pending(world: JobState, machine: str) -> bool:
    """Whether a fault hit a machine and is unnoticed; a released machine does not count."""
    record = world.machines.get(machine)
    if record is None or record.state.over:
        return False
    return record.noticed_s is None and record.end_reason != LOST
