"""The oracle of jobs with a deadline: one job, one training step after another, on spot and
on-demand VMs.

All that naive.py says of a job without a deadline holds; it shares no code with deepvm/simulator
but the policies. What the deadline adds:

* All VMs of the cluster are in one market. Which one is decided at the start and behind each
  preemption, once for all that go together (``on_demand_next``), and when the policy's time
  (``stay_s``) is over. Whoever changes the market gives all VMs back and asks for all of them in
  the other one, at once. They are replacements, and prepared as such, but not before the version
  that was just made is durable or lost (see below): training goes on from the newest durable one.
  That wait counts with the allocation.
* VMs on demand are not taken away and give no notice. The mean lives of ``mttp_s`` go by the spot
  VMs that were asked
  for: those on demand use up none. What is learnt stays.
* On demand only ``static``, ``every`` and the user's saves are made, and those for the deadline.
* The policy is told a standing in which each latency is at its longest. A step takes ``step_s`` and
  its share of the stalls for the saves that fall due by steps: the user's and those of ``static``
  and ``every``. The work left is the steps that the newest version does not hold, and two stalls. A
  restart is an allocation and a preparation, the longer one of the cold and the warm; for who may
  leave on-demand, no less than until a version is durable, and a preparation. A version is a step,
  a stall, the writing, and the time until it is durable.
* A version that is under way is taken for durable, for nobody knows what will be lost. It is safe
  to: the one before it allowed the time until it is durable, so if it is lost, there is time to go
  on from there on demand.
* Behind each version and each resumption it is settled after how many steps the next version is
  made at the latest, whatever the save policy says. On spot: as many steps as fit into the time
  that the policy may stay there, less what a version takes. On demand: as many as it takes, each at
  its shortest, until it may leave for spot, and to make good what the version costs: while it
  stands still, the line of uniform progress goes on (it gains D/T - 1 a second on it).
* If no step fits, the market is changed there and then. The VMs that are given back are paid until
  the version that was just made is durable, or until one of them is lost; if one is, the version is
  lost too.
* ``proactive_replacement``: the notice brings a spot VM. If the job goes to on-demand at the loss,
  that one is given back, and paid until then, as at any other change of the market and at the end;
  it uses up no life. The VMs on demand are asked for at the loss.
* The bill: each VM's time at the price of its market.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from deepvm.core.preemption.deadlines import (
    ON_DEMAND,
    SPOT,
    DeadlinePolicy,
    DeadlineProgress,
    on_demand_next,
)
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.preemption_estimators import Lifetimes, LomaxHistory, Notices
from deepvm.core.preemption.savepolicy import (
    EverySeconds,
    EverySteps,
    Hazard,
    SaveFacts,
    SavePolicy,
)
from support.simulator import naive
from support.simulator.naive import NEVER, life_s

LIVES = 20_000
"""More than so many lives, and changes of the market: the job does not end."""


@dataclass
class Outcome(naive.Outcome):
    """One run, and the seconds of all its VMs in each market.

    The bill is left to whoever compares.
    """

    spot_s: float = 0.0
    on_demand_s: float = 0.0
    moves: int = 0

    @property
    def on_demand_share(self) -> float:
        """Of the time of all VMs."""
        return self.on_demand_s / (self.spot_s + self.on_demand_s)


class Net:
    """What a deadline policy is told, and what comes of its answers."""

    def __init__(
        self, job: Job, saves: SavePolicy, deadline_s: float, policy: DeadlinePolicy
    ) -> None:
        self.job, self.deadline_s, self.policy = job, deadline_s, policy
        due = [job.save_every_steps] if job.save_every_steps else []
        if isinstance(saves, EverySteps):
            due.append(saves.steps)
        elif isinstance(saves, EverySeconds):
            due.append(max(1, math.ceil(saves.seconds / job.step_s.mean - 1e-9)))
        self.step_s = job.step_s.high + math.fsum(job.blocked_s.high / k for k in due)
        self.version_s = job.blocked_s.high + job.save_s.high + job.durable_s.high
        warm = 0.0 if job.warm_preparation_s is None else job.warm_preparation_s.high
        prepared_s = max(job.preparation_s.high, warm)
        self.restart_s = job.allocation_s.high + prepared_s
        settled_s = job.durable_s.high + (job.save_s.high if job.stall_s is not None else 0.0)
        self.move_s = max(job.allocation_s.high, settled_s) + prepared_s
        self.total_s = self.left(0)

    def left(self, step: int) -> float:
        """What the work left takes at most."""
        return (self.job.steps - step) * self.step_s + 2 * self.job.blocked_s.high

    def standing(self, step: int, now: float, on: int) -> DeadlineProgress:
        """Of a job whose newest version holds ``step`` steps."""
        return DeadlineProgress(
            work_s=self.left(step),
            left_s=self.deadline_s - now,
            total_s=self.total_s,
            deadline_s=self.deadline_s,
            restart_s=self.move_s if on == ON_DEMAND else self.restart_s,
            version_s=self.step_s + self.version_s,
            on=on,
        )

    def next_on_demand(self, step: int, now: float) -> bool:
        """At the start and behind a preemption."""
        return bool(on_demand_next(self.policy, self.standing(step, now, SPOT)))

    def steps_to_version(self, step: int, now: float, *, on_demand: bool) -> float:
        """Until the next version at the latest; below 1: the market is changed."""
        hold = float(self.policy.stay_s(self.standing(step, now, ON_DEMAND if on_demand else SPOT)))
        if hold == NEVER:
            return NEVER
        if not on_demand:
            return math.floor((hold - self.version_s) / self.step_s)
        gains = max(self.deadline_s / self.total_s - 1, 1e-9)
        lost = self.version_s / gains if hold > 0 else 0.0
        return math.ceil((hold + lost) / max(self.job.step_s.low, 1e-9))


def simulate(
    job: Job,
    policy: SavePolicy,
    deadline_s: float,
    who: DeadlinePolicy,
    draw: random.Random,
    lives: Callable[[int], float] | None = None,
) -> Outcome:
    """One run of the job; ``lives``: of each spot VM in the order in which they are asked for, else
    drawn.
    """
    if job.elastic:
        raise ValueError("the oracle knows no elastic clusters")
    out, net = Outcome(), Net(job, policy, deadline_s, who)
    prior = job.mttp_s[0] / job.vms
    warm = job.preparation_s if job.warm_preparation_s is None else job.warm_preparation_s
    facts = SaveFacts(
        save_s=job.blocked_s.mean,
        backup_s=job.durable_s.mean,
        step_s=job.step_s.mean,
        emergency_s=job.save_s.mean + job.durable_s.mean,
        grace_s=job.grace_s.mean,
        restart_s=job.allocation_s.mean + warm.mean,
    )
    lifetimes, notices = Lifetimes(prior), Notices()
    lomax = LomaxHistory.around(prior) if isinstance(policy, Hazard) else None
    weighing = policy if policy.has_interval else None
    fixed = policy.steps if isinstance(policy, EverySteps) else NEVER
    periodic = job.save_every_steps or NEVER
    spots = 0  # that were asked for

    def one(span: Span) -> float:
        return span.low + (span.high - span.low) * draw.random()

    def death(asked: float) -> float:
        nonlocal spots
        number, spots = spots, spots + 1
        if lives is not None:
            return asked + lives(number)
        mean = job.mttp_s[min(max(0, number - job.vms + 1), len(job.mttp_s) - 1)]
        return asked + life_s(job.lifetime, mean, draw)

    def interval(age: float) -> float:
        """Steps from a save or a resumption to the next save."""
        if isinstance(policy, EverySeconds):
            return max(1, math.ceil(policy.seconds / job.step_s.mean - 1e-9))
        if weighing is None or on_demand:
            return NEVER
        told = replace(facts, age_s=age, mttp_s=lifetimes.mean_s, missed_rate=notices.missed_rate)
        if lomax is not None:
            shape, scale = lomax.most_probable()
            told = replace(told, shape=float(shape), scale_s=float(scale))
        steps = float(weighing.interval_s(told)) / job.step_s.mean
        least = math.ceil(float(weighing.least_s(told)) / job.step_s.mean - 1e-9)
        return NEVER if steps == NEVER else max(1, least, math.floor(steps + 1e-9))

    def pay(until: float, since: float) -> None:
        if on_demand:
            out.on_demand_s += job.vms * (until - since)
        else:
            out.spot_s += job.vms * (until - since)

    def ask(place: int, when: float) -> None:
        asked[place], there[place] = when, when + one(job.allocation_s)
        ends[place], graces[place] = NEVER if on_demand else death(when), one(job.grace_s)
        comes = (
            graces[place] > 0 and draw.random() >= job.missed_notice_rate and ends[place] < NEVER
        )
        hears[place] = max(ends[place] - graces[place], when) if comes else NEVER

    def pay_ahead() -> None:
        """For the replacements of VMs that are told of, and still there."""
        if job.proactive_replacement:
            out.spot_s += sum(
                now - hears[place] for place in everyone if hears[place] < now < ends[place]
            )

    def heeds(place: int) -> bool:
        told = replace(
            facts, grace_s=graces[place], mttp_s=lifetimes.mean_s, missed_rate=notices.missed_rate
        )
        return weighing is not None and bool(weighing.emergency(told))

    on_demand = net.next_on_demand(0, 0.0)
    everyone = range(job.vms)
    asked, there, ends, graces, hears = ([0.0] * job.vms for _ in range(5))
    for place in everyone:
        ask(place, 0.0)
    now = 0.0  # the clock
    fresh: list[int] = []  # replacements that may have stood beside VMs that still trained
    safe = reached = 0  # steps in the newest durable version; steps ever done
    for turn in range(LIVES):
        begun = now
        leaves = (
            ends
            if job.vms == 1
            else [min(max(h, t), e) for h, t, e in zip(hears, there, ends, strict=True)]
        )
        doomed = leaves.index(min(leaves))
        gone = leaves[doomed]
        saved_at = NEVER  # when an emergency save is durable
        moves = False

        # The replacements that were asked for at the notice stood beside the old VMs.
        out.spot_s += sum(max(0.0, min(now, leaves[place]) - asked[place]) for place in fresh)
        at = max(now, min(max(there), gone))
        out.allocation += at - now
        now = at
        at = max(now, min(now + one(warm if turn else job.preparation_s), gone))
        out.preparation += at - now
        now = at
        trains = now < gone
        if trains:
            doomed = ends.index(min(ends))
            gone = ends[doomed]
        request, notice, urgent = max(asked), hears[doomed], heeds(doomed)
        step = safe
        pending: list[tuple[float, int]] = []
        if now < gone:
            insurance = step + interval(now - request)
            steps_left = net.steps_to_version(step, now, on_demand=on_demand)
            moves, latest = steps_left < 1, step + steps_left
        if now < gone and not moves and notice <= now and urgent:
            saved_at = now
        elif now < gone and not moves:
            while step < job.steps:
                took = one(job.step_s)
                if now + took > gone:
                    out.recompute += gone - now
                    now = gone
                    break
                now += took
                step += 1
                if step > reached:
                    reached = step
                    out.compute += took
                else:
                    out.recompute += took
                if now >= notice and urgent and step < job.steps:
                    saved_at = now + one(job.save_s) + one(job.durable_s)
                    out.save += min(saved_at, gone) - now
                    now = min(saved_at, gone)
                    break
                if step % fixed == 0 or step % periodic == 0 or step in (insurance, latest):
                    stall, rest = one(job.blocked_s), one(job.durable_s)
                    writing = stall if job.stall_s is None else max(stall, one(job.save_s))
                    pending.append((now + writing + rest, step))
                    out.save += min(stall, gone - now)
                    if now + stall > gone:
                        now = gone
                        break
                    now += stall
                    if step == job.steps:
                        break
                    if now >= notice and urgent:
                        saved_at = pending[-1][0]
                        out.save += min(saved_at, gone) - now
                        now = min(saved_at, gone)
                        break
                    insurance = step + interval(now - request)
                    steps_left = net.steps_to_version(step, now, on_demand=on_demand)
                    moves, latest = steps_left < 1, step + steps_left
                    if moves:
                        break
            if step == job.steps and now < gone and saved_at == NEVER:
                pay(now, begun)
                pay_ahead()
                break
        # What an emergency save held, or else the newest version that is durable by then.
        safe = (
            step
            if saved_at <= gone
            else max([safe, *(held for when, held in pending if when <= gone)])
        )
        if moves:
            pay(now, begun)
            pay_ahead()
            settled = max(now, min(pending[-1][0], gone)) if pending else now
            pay(settled, now)
            on_demand = not on_demand
            out.moves += 1
            for place in everyone:
                ask(place, now)
                there[place] = max(there[place], settled)
            fresh = []
            continue
        released = max(now, min(saved_at, gone))
        now = released
        pay(now, begun)
        lost = [
            doomed,
            *(i for i in everyone if trains and i != doomed and hears[i] <= now < ends[i]),
        ]
        fresh = sorted(lost, key=lambda i: min(hears[i], released))
        out.preemptions += len(lost)
        for place in lost:
            seen, missed = (
                max(0.0, ends[place] - request),
                not (heeds(place) and hears[place] < NEVER),
            )
            lifetimes, notices = lifetimes.after(seen, True), notices.after(missed, True)
            lomax = lomax and lomax.after(seen, True)
        times = {
            i: min(hears[i], released) if job.proactive_replacement else released for i in fresh
        }
        if net.next_on_demand(safe, now):
            out.spot_s += sum(released - when for when in times.values())
            on_demand = True
            out.moves += 1
            fresh = []
            for place in everyone:
                ask(place, now)
        else:
            for place in fresh:
                ask(place, times[place])
    else:
        raise RuntimeError(f"not done after {LIVES} lives: {safe} of {job.steps} steps")
    out.total_s = now
    return out
