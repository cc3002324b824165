"""A cloud, agents and trainers in simulated time, for the controller's decisions: what can go wrong
goes wrong.

Replies of the cloud get lost, requests are refused, machines vanish with a notice and without,
networks are cut, the controller is killed between what it wrote down and what it does. Nothing here
is the controller's.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import orders_of, react
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason

STEP_S, SAVE_S, BEAT_S, LIST_S = 1.0, 0.3, 5.0, 7.0


@dataclass
class Faults:
    """What may go wrong, and how often; ``count`` in all."""

    notices: int = 0
    grace_s: float = 8.0
    losses: int = 0
    cuts: int = 0
    crashes: int = 0
    refusals: float = 0.0
    lost_replies: float = 0.0
    mean_s: float = 25.0


@dataclass(eq=False)
class Machine:
    """A machine of the cloud."""

    id: str
    born_s: float
    alive: bool = True
    died_s: float | None = None
    cut_until_s: float = 0.0
    warm_s: float = 0.0
    taken_s: float | None = None
    generation: int = 0
    crashed: bool = False
    said: list[Any] = field(default_factory=list)
    """What the controller has not acknowledged."""


@dataclass(eq=False)
class Group:
    """The trainers of a generation."""

    number: int
    members: tuple[str, ...]
    running: set[str] = field(default_factory=set)
    step: int | None = None
    wanted: Any = None
    holds_until_s: float = -1.0
    stalled_s: float | None = None
    done: bool = False


class Simulation:
    """Runs a job to its end, or for so long."""

    def __init__(
        self, rng: random.Random, terms: JobLimits, faults: Faults, steps: int = 40
    ) -> None:
        self.rng, self.faults, self.total = rng, faults, steps
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.first = JobState(
            terms, 0.0, pools=(Pool("a", "z", "spot", 3.6), Pool("b", "z", "spot", 7.2))
        )
        self.world, self.history, self.up = self.first, list[tuple[Any, float]](), True
        self.machines: dict[str, Machine] = {}
        self.groups: dict[int, Group] = {}
        self.version = self.epoch = 0
        self.commits: list[tuple[int, int]] = []
        self.lost = 0
        self.ended_s: float | None = None
        self.refused: Callable[[Pool], bool] = lambda pool: self.rng.random() < self.faults.refusals
        self.at(0.0, self.tick)
        self.at(LIST_S, self.list)
        self.at(STEP_S, self.train)
        for kind, count in (
            ("notice", faults.notices),
            ("loss", faults.losses),
            ("cut", faults.cuts),
        ):
            for _ in range(count):
                self.at(
                    10 + rng.expovariate(1 / faults.mean_s), lambda kind=kind: self.strike(kind)
                )
        for _ in range(faults.crashes):
            self.at(1 + rng.expovariate(1 / faults.mean_s), self.crash)

    def at(self, after_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + after_s, next(self.order), what))

    def run(self, most_s: float = 4000.0) -> None:
        while self.queue and self.now < most_s:
            self.now, _, what = heapq.heappop(self.queue)
            what()
            if self.world.job.over and not any(m.alive for m in self.machines.values()) and self.up:
                self.ended_s = self.now
                return

    # --- the controller ---------------------------------------------------------------------------

    def feed(self, event: Any) -> bool:
        """Whether the controller heard it."""
        if not self.up:
            return False
        self.history.append((event, self.now))
        self.world, acts = react(self.world, event, self.now)
        self.check()
        # Between what is written down and what is done
        if self.faults.crashes and self.rng.random() < 0.02:
            self.crash()
            return True
        for act in acts:
            self.do(act)
        return True

    def do(self, act: Any) -> None:
        if isinstance(act, d.Release):
            machine = self.machines.get(act.id)
            if machine is not None:
                self.end(machine)
            return
        assert act.id not in self.machines, "asked for twice"
        assert act.id in self.world.machines, "asked for without a record"
        if self.refused(self.world.machines[act.id].pool):
            self.at(0.5, lambda: self.feed(d.Refused(act.id, "capacity")) and None)
            return
        machine = self.machines[act.id] = Machine(act.id, self.now)
        if self.rng.random() >= self.faults.lost_replies:
            self.at(1.0, lambda: self.feed(d.Launched(act.id, machine.born_s)) and None)
        boot = self.rng.uniform(2, 6)
        machine.warm_s = self.now + boot + self.rng.uniform(1, 3)
        self.at(boot, lambda: self.beat(machine))

    def crash(self) -> None:
        if self.up and not self.world.job.over:
            self.up = False
            self.at(self.rng.uniform(1, 30), self.recover)

    def recover(self) -> None:
        world = self.first
        for event, when in self.history:
            world, _ = react(world, event, when)
        assert world == self.world, "the history tells another story"
        self.up = True
        self.list(again=False)

    def check(self) -> None:
        world = self.world
        assert len(world.members) <= world.terms.most
        assert not world.formed or len(world.members) >= world.terms.least
        asked = [m for m in world.machines.values() if not m.state.over]
        both = 1 if not world.terms.bought else 2  # spot trains until on-demand takes over
        assert len(
            [m for m in asked if m.noticed_s is None and m.state.value not in ("releasing", "lost")]
        ) <= (both * world.terms.most), "more machines than anybody wants"

    def tick(self) -> None:
        self.feed(d.Tick())
        self.at(1.0, self.tick)

    # --- the cloud --------------------------------------------------------------------------------

    def list(self, *, again: bool = True) -> None:
        alive = {m.id: m.born_s for m in self.machines.values() if m.alive}
        ended = {m.id: (m.born_s, m.died_s) for m in self.machines.values() if m.died_s is not None}
        taken = frozenset(
            m.id for m in self.machines.values() if m.taken_s is not None and not m.alive
        )
        self.feed(d.InstancesListed(alive, ended, taken=taken))
        if again:
            self.at(LIST_S, self.list)

    def end(self, machine: Machine) -> None:
        if machine.alive:
            machine.alive, machine.died_s = False, self.now
            for group in self.groups.values():
                group.running.discard(machine.id)

    def strike(self, kind: str) -> None:
        """Take a machine back, or cut it off."""
        if self.world.job.over:
            return
        able = [
            m
            for m in self.machines.values()
            if m.alive and m.taken_s is None and m.warm_s <= self.now
        ]
        if self.world.terms.bought:  # what is bought on demand stays
            able = [
                m for m in able if self.world.machines[m.id].pool not in self.world.terms.bought
            ]
        if not able:
            self.at(3.0, lambda: self.strike(kind))
            return
        machine = self.rng.choice(able)
        if kind == "cut":
            machine.cut_until_s = self.now + self.rng.uniform(5, 70)
        elif kind == "loss":
            machine.taken_s = self.now
            self.end(machine)
        else:
            machine.taken_s = self.now + self.faults.grace_s
            self.tell(machine, d.Noticed(machine.id, machine.taken_s))
            self.at(self.faults.grace_s, lambda: self.end(machine))

    # --- agents -----------------------------------------------------------------------------------

    def tell(self, machine: Machine, event: Any) -> None:
        """An agent reports; it repeats what was not heard."""
        machine.said.append(event)
        self.flush(machine)

    def flush(self, machine: Machine) -> None:
        while (
            machine.said
            and machine.alive
            and self.now >= machine.cut_until_s
            and self.feed(machine.said[0])
        ):
            machine.said.pop(0)
        if machine.alive and self.now >= machine.cut_until_s and self.up:
            self.obey(machine)

    def beat(self, machine: Machine) -> None:
        if not machine.alive:
            return
        self.at(BEAT_S if self.up else 1.0, lambda: self.beat(machine))
        if self.now < machine.cut_until_s:
            return
        group = self.groups.get(machine.generation)
        step = 0 if group is None or group.step is None else group.step
        warm = self.now >= machine.warm_s
        if self.feed(d.Heartbeat(machine.id, machine.generation, step, warm)):
            self.flush(machine)

    def obey(self, machine: Machine) -> None:
        orders = orders_of(self.world, machine.id)
        if orders.shutdown:
            self.end(machine)
            return
        if orders.generation != machine.generation:
            old = self.groups.get(machine.generation)
            if old is not None:
                old.running.discard(machine.id)
            machine.said = [
                e
                for e in machine.said
                if not isinstance(e, (d.Started, d.Ended, d.Safe, d.Unsaved))
            ]
            machine.generation = orders.generation
            if orders.generation:
                group = self.groups.setdefault(
                    orders.generation, Group(orders.generation, orders.members)
                )
                self.at(0.5, lambda: self.start(machine, group))
        group_now = self.groups.get(machine.generation)
        if (
            orders.save is not None
            and not orders.save.safe
            and group_now is not None
            and group_now.wanted != orders.save
        ):
            group_now.wanted = orders.save

    # --- trainers ---------------------------------------------------------------------------------

    def start(self, machine: Machine, group: Group) -> None:
        if not machine.alive or machine.generation != group.number:
            return
        group.running.add(machine.id)
        if group.running == set(group.members) and group.step is None:
            before = max(
                (g.step or 0 for g in self.groups.values() if g.number < group.number), default=0
            )
            group.step, self.epoch = self.version, max(self.epoch, group.number)
            self.lost += max(before - group.step, 0) if group.number == max(self.groups) else 0
        first = machine.id == group.members[0]
        self.tell(machine, d.Started(machine.id, group.number, self.version if first else None))

    def train(self) -> None:
        self.at(STEP_S, self.train)
        for group in list(self.groups.values()):
            whole = group.running == set(group.members) and not any(
                self.now < self.machines[m].cut_until_s
                for m in group.members
                if len(group.members) > 1
            )
            if group.step is None or group.done or not group.running:
                continue
            if not whole:
                group.stalled_s = group.stalled_s or self.now
                if self.now - group.stalled_s >= 3:  # the collective breaks
                    group.done = True
                    for name in sorted(group.running):
                        self.tell(self.machines[name], d.Ended(name, group.number, 1, group.step))
                continue
            group.stalled_s = None
            if self.now < group.holds_until_s:
                continue
            group.step = min(group.step + 1, self.total)
            if group.step >= self.total:
                group.done = True
                self.commit(group, None)
                for name in sorted(group.running):
                    self.tell(self.machines[name], d.Ended(name, group.number, 0, group.step))
            elif group.wanted is not None:
                wanted, group.wanted = group.wanted, None
                group.holds_until_s = wanted.limit_s
                self.at(SAVE_S, lambda group=group, wanted=wanted: self.commit(group, wanted))

    def commit(self, group: Group, wanted: Any) -> None:
        """Make a version safe; the store refuses older generations."""
        if group.number < self.epoch or group.running != set(group.members):
            return
        assert group.step is not None
        self.version = max(self.version, group.step)
        self.commits.append((group.number, group.step))
        if wanted is not None:
            first = self.machines[group.members[0]]
            self.tell(first, d.Safe(group.number, group.step, wanted.reason))


def finished(simulation: Simulation) -> JobState:
    """Run it, and check what must hold at the end whatever happened."""
    simulation.run()
    world = simulation.world
    assert simulation.ended_s is not None, (world.job, simulation.now)
    if world.job is Job.DONE:
        assert simulation.version == simulation.total, "it is done, and steps are missing"
    assert [epoch for epoch, _ in simulation.commits] == sorted(
        epoch for epoch, _ in simulation.commits
    )
    simulation.list(again=False)
    world = simulation.world
    prices = {m.id: m.pool.usd_per_hour for m in world.machines.values()}
    paid = sum(
        ((m.died_s or 0.0) - m.born_s) * prices[m.id] / 3600 for m in simulation.machines.values()
    )
    assert abs(world.usd - paid) < 1e-9, "money is not counted once"
    return world


REASONS = tuple(Reason)
