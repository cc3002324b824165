"""Fault injection: machines are preempted after random, listed or recorded lifetimes.

Most go after a notice, some without one or after a late one; some fall silent: they live on,
without a link.

What the user has ordered and which machines were struck is among the job's events, so that another
controller continues where this one ended: no strike is forgotten, and none happens twice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deepvm.jobs.decisions.injection import Injection, fate_of
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import LOST, JobState, MachineRecord, Role
from deepvm.jobs.history.history import EventRow

INJECTED, STRUCK = "injected", "struck"
"""Kinds of events: what was ordered during the job, and a machine about to be preempted."""


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
        """``injection``: of the job file. ``events``: of earlier controllers."""
        self._injection = injection
        self._since_s = 0.0
        self._struck = dict[str, InjectedFault]()
        self._recommended = set[str]()
        for event in events:
            if event.kind == INJECTED:
                self.order(Injection.written(event.facts), event.at_s)
            elif event.kind == STRUCK:
                blow = FaultKind(event.facts["blow"])
                self._struck[event.facts["id"]] = InjectedFault(
                    event.facts["id"], blow, event.facts["grace_s"], new=False
                )
        self._begun = dict(self._struck)
        """Faults of earlier controllers; it is unknown whether the cloud received them."""

    def order(self, injection: Injection, now_s: float) -> None:
        """Go by this from now on."""
        self._injection = injection
        self._since_s = now_s

    def put_off(self, strike: InjectedFault) -> None:
        """Have a strike that could not be made come again."""
        if strike.blow is FaultKind.RECOMMEND:
            self._recommended.discard(strike.id)
        elif strike.new:
            self._struck.pop(strike.id, None)
        else:
            self._begun[strike.id] = strike

    def due(self, world: JobState, now_s: float) -> Iterator[InjectedFault]:
        """The strikes to make now; each comes once."""
        if world.job.over:
            return
        for one in [m for m in self._begun if _is_pending(world, m)]:
            yield self._begun[one]  # clouds take no machine back twice
        self._begun = {}
        injection = self._injection
        pending = sum(_is_pending(world, m) for m in self._struck)
        for number, machine in enumerate(self._candidates(world) if injection else (), start=1):
            if injection is None or (
                injection.count is not None and world.preemptions + pending >= injection.count
            ):
                return
            if machine.launched_s is None and machine.state in (Machine.INTENT, Machine.RELEASING):
                return  # if the cloud refuses it, those behind it have other numbers
            if (
                machine.id in self._struck
                or machine.trained_s is None
                or machine.state is not Machine.MEMBER
            ):
                continue
            fate = fate_of(injection, number)
            if fate is None:
                return
            lived_s = now_s - max(machine.trained_s, self._since_s)
            if lived_s >= fate.life_s:
                blow = FaultKind.CUT if fate.silent else FaultKind.PREEMPT
                self._struck[machine.id] = InjectedFault(machine.id, blow, fate.grace_s)
                pending += 1
                yield self._struck[machine.id]
            elif machine.id not in self._recommended and lived_s >= fate.recommended_s:
                self._recommended.add(machine.id)
                yield InjectedFault(machine.id, FaultKind.RECOMMEND)

    def _candidates(self, world: JobState) -> list[MachineRecord]:
        """Machines that can be preempted, existed when injection started and were not refused."""
        kept = {*world.terms.bought, *world.terms.steady}
        return [
            m
            for m in world.machines.values()
            if m.role is Role.TRAINER
            and m.pool not in kept
            and (m.ended_s is None or m.ended_s >= self._since_s)
            and (m.launched_s is not None or not m.state.over)
        ]


def _is_pending(world: JobState, machine: str) -> bool:
    """Whether a fault hit a machine and is unnoticed; a released machine does not count."""
    record = world.machines.get(machine)
    return (
        record is not None
        and record.noticed_s is None
        and record.end_reason != LOST
        and not record.state.over
    )
