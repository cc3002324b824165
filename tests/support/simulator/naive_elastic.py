"""The oracle of elastic clusters: step after step and machine after machine, as plain as the model
itself.

It shares no code with deepvm/simulator but the policies. The model of
:mod:`support.simulator.naive` holds, but for this:

* Training begins when all machines are there; before the first step is done a loss stops all, as in
  a rigid cluster. From then on whoever is there trains: of n machines a alive ones take n/a times
  as long for a step.
* A loss of a machine that trains stops the others: they go back to the newest durable version and
  are prepared again (``warm_preparation_s`` where that is given), at once, or when the first
  machine is there if none is left.
* The replacement joins when it is there. If a step or a save is under way, it is brought to its
  end; behind a step comes a save of which only the stall is waited for: those who go on have the
  state, so nothing of it is lost later on either. Then all of them are prepared again. If it comes
  during preparation, that begins anew with it.
* A replacement that is lost before it comes, or before it takes part, harms nobody: it is asked for
  again, at its loss.
* A notice matters only to a machine that trains. With an emergency save the machine is let go when
  that is durable.
* What a policy learns is the cluster's: from the newest request to a loss, and never less than 0.
* Each of the n places is paid all the time, whether the machine in it is there or still asked for.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.preemption_estimators import Lifetimes, LomaxHistory, Notices
from deepvm.core.preemption.savepolicy import (
    EverySeconds,
    EverySteps,
    Hazard,
    SaveFacts,
    SavePolicy,
)
from support.simulator.naive import LIVES, NEVER, Outcome, life_s


@dataclass
class Machine:
    """One place of the cluster; times of the clock."""

    asked: float
    there: float
    gone: float
    notice: float
    grace: float


class Cluster:
    """One run of one job."""

    def __init__(self, job: Job, policy: SavePolicy, draw: random.Random) -> None:
        self.job, self.policy, self.draw, self.out = job, policy, draw, Outcome()
        self.now = self.overlap = 0.0
        self.step = self.safe = self.reached = 0
        self.pending: list[tuple[float, int]] = []  # when a version is durable, and its steps
        self.warm = job.preparation_s if job.warm_preparation_s is None else job.warm_preparation_s
        self.facts = SaveFacts(
            save_s=job.blocked_s.mean,
            backup_s=job.durable_s.mean,
            step_s=job.step_s.mean,
            emergency_s=job.save_s.mean + job.durable_s.mean,
            grace_s=job.grace_s.mean,
            restart_s=job.allocation_s.mean + self.warm.mean,
        )
        self.lifetimes, self.notices = Lifetimes(job.mttp_s[0] / job.vms), Notices()
        self.lomax = (
            LomaxHistory.around(job.mttp_s[0] / job.vms) if isinstance(policy, Hazard) else None
        )
        self.machines = [self.ask(0.0) for _ in range(job.vms)]
        self.training: list[Machine] = []

    def one(self, span: Span) -> float:
        return span.low + (span.high - span.low) * self.draw.random()

    def ask(self, when: float) -> Machine:
        job = self.job
        mean = (
            job.mttp_s[min(self.out.preemptions, len(job.mttp_s) - 1)]
            if job.market is Market.SPOT
            else NEVER
        )
        gone = when + life_s(job.lifetime, mean, self.draw)
        grace = self.one(job.grace_s)
        told = grace > 0 and self.draw.random() >= job.missed_notice_rate
        return Machine(
            when,
            when + self.one(job.allocation_s),
            gone,
            max(gone - grace, when) if told else NEVER,
            grace,
        )

    def lose(self, machine: Machine, when: float) -> None:
        """The machine is lost, or let go, at ``when``; another one is asked for."""
        newest = max(m.asked for m in self.machines)
        slowed = replace(self.facts, step_s=self.facts.step_s * self.slow(), grace_s=machine.grace)
        late = slowed.step_s + slowed.emergency_s >= machine.grace or machine.notice == NEVER
        life = max(0.0, machine.gone - newest)
        self.lifetimes, self.notices = (
            self.lifetimes.after(life, True),
            self.notices.after(late, True),
        )
        self.lomax = self.lomax and self.lomax.after(life, True)
        self.out.preemptions += 1
        if self.out.preemptions > LIVES:
            raise RuntimeError("the job does not end")
        come = machine.there < machine.gone
        again = min(machine.notice, when) if self.job.proactive_replacement and come else when
        self.overlap += when - again
        self.machines[self.machines.index(machine)] = self.ask(again)

    def others(self) -> None:
        """Machines that do not take part and are lost by now are asked for again."""
        while lost := [m for m in self.machines if m not in self.training and m.gone <= self.now]:
            self.lose(lost[0], lost[0].gone)

    def slow(self) -> float:
        return self.job.vms / len(self.training) if self.training else 1.0

    def wait(self) -> None:
        """Until some machines are prepared."""
        self.training = []
        while True:
            first = min(self.machines, key=lambda m: m.gone)
            there = max(self.now, (min if self.reached else max)(m.there for m in self.machines))
            if first.gone <= there:
                self.out.allocation += max(0.0, first.gone - self.now)
                self.now = max(self.now, first.gone)
                self.lose(first, first.gone if first.gone <= first.there else self.now)
                continue
            self.out.allocation += there - self.now
            self.now = there
            done = self.now + self.one(
                self.warm if self.out.preemptions else self.job.preparation_s
            )
            comes = min((m.there for m in self.machines if m.there > self.now), default=NEVER)
            present = [m for m in self.machines if m.there <= self.now]
            first = min(present, key=lambda m: m.gone)
            end = min(done, comes, first.gone)
            self.out.preparation += end - self.now
            self.now = end
            if end == first.gone:
                self.lose(first, end)
            elif end < comes:
                self.training = present
                return

    def interval(self) -> int:
        """Steps from a save or a resumption to the next save."""
        policy, job = self.policy, self.job
        step_s = self.facts.step_s * self.slow()
        if isinstance(policy, EverySeconds):
            return math.ceil(policy.seconds / step_s - 1e-9)
        if isinstance(policy, EverySteps) or not policy.has_interval:
            return job.steps + 1
        now = replace(
            self.facts,
            step_s=step_s,
            mttp_s=self.lifetimes.mean_s,
            missed_rate=self.notices.missed_rate,
        )
        if self.lomax is not None:
            shape, scale = self.lomax.most_probable()
            age = max(0.0, self.now - max(m.asked for m in self.machines))
            now = replace(now, shape=float(shape), scale_s=float(scale), age_s=age)
        least = math.ceil(float(policy.least_s(now)) / step_s - 1e-9)
        return int(
            min(max(1, least, float(policy.interval_s(now)) / step_s + 1e-9), job.steps + 1.0)
        )

    def passes(self, seconds: float, part: str) -> Machine | None:
        """Time of the machines that train passes; the one that is lost meanwhile, if one is."""
        first = min(self.training, key=lambda m: m.gone)
        end = min(self.now + seconds, first.gone)
        setattr(self.out, part, getattr(self.out, part) + end - self.now)
        self.now = end
        return first if first.gone <= end else None

    def told(self) -> Machine | None:
        """The machine that trains, has given notice, and is to be saved from."""
        told = [m for m in self.training if m.notice <= self.now and self.heeded(m)]
        return min(told, key=lambda m: m.gone) if told else None

    def trained(self) -> Machine | None:
        """Steps until a machine is lost or let go (that one), or another one joins or all steps are
        done (None).
        """
        job = self.job
        if leaves := self.told():
            return leaves  # there is nothing to save
        next_save = self.step + self.interval()
        fixed = self.policy.steps if isinstance(self.policy, EverySteps) else job.steps + 1
        while self.step < job.steps:
            new = self.step >= self.reached
            before = self.now
            if lost := self.passes(
                self.one(job.step_s) * self.slow(), "compute" if new else "recompute"
            ):
                if new:  # a step that is cut off is work that is done again
                    self.out.compute -= self.now - before
                    self.out.recompute += self.now - before
                return lost
            self.step += 1
            self.reached = max(self.reached, self.step)
            last = self.step >= job.steps
            if not last and (leaves := self.told()):
                if lost := self.passes(self.one(job.save_s) + self.one(job.durable_s), "save"):
                    return lost
                self.safe = self.step
                return leaves
            self.others()
            joins = any(m not in self.training and m.there <= self.now for m in self.machines)
            due = self.step % fixed == 0 or self.step % (job.save_every_steps or job.steps + 1) == 0
            if due or self.step == next_save or (joins and not last):
                stall = self.one(job.blocked_s)
                writing = stall if job.stall_s is None else max(stall, self.one(job.save_s))
                self.pending.append((self.now + writing + self.one(job.durable_s), self.step))
                if lost := self.passes(stall, "save"):
                    return lost
                if not last and (leaves := self.told()):
                    if lost := self.passes(self.pending[-1][0] - self.now, "save"):
                        return lost
                    self.safe = self.step
                    return leaves
                next_save = self.step + self.interval()
                self.others()
                if not last and any(
                    m not in self.training and m.there <= self.now for m in self.machines
                ):
                    self.safe = self.step
                    return None
        return None

    def heeded(self, machine: Machine) -> bool:
        if not self.policy.has_interval:
            return False
        facts = replace(self.facts, step_s=self.facts.step_s * self.slow(), grace_s=machine.grace)
        return bool(self.policy.emergency(facts))

    def run(self) -> Outcome:
        while True:
            self.wait()
            lost = self.trained()
            if lost is not None:
                self.safe = max(
                    [self.safe, *(steps for when, steps in self.pending if when <= self.now)]
                )
                self.lose(lost, self.now)
            elif self.step >= self.job.steps:
                break
            self.step, self.pending = self.safe, []
        if self.job.proactive_replacement:
            told = [m for m in self.machines if m.notice < self.now < m.gone and m.there < m.gone]
            self.overlap += sum(self.now - m.notice for m in told)
        self.out.total_s = self.now
        price = (
            self.job.spot_usd_per_hour
            if self.job.market is Market.SPOT
            else self.job.on_demand_usd_per_hour
        )
        self.out.cost_usd = price * (self.job.vms * self.now + self.overlap) / 3600
        return self.out


def simulate(job: Job, policy: SavePolicy, draw: random.Random) -> Outcome:
    """One run of the job on an elastic cluster."""
    if not job.elastic or not math.isfinite(job.mttp_s[0]):
        raise ValueError("for elastic clusters of machines that are lost")
    return Cluster(job, policy, draw).run()
