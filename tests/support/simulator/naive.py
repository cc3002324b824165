"""The oracle of the simulator: one job, one training step after another, as plain as the model
itself.

It shares no code with deepvm/simulator but the policies. The model (Spotify thesis, 4.2-4.4 and
6.2.2):

* A VM's life is counted from the request for it: allocation, preparation, then training. A VM that
  is lost while it is allocated or prepared is asked for again. On-demand VMs live for ever.
* A step's result exists when the step is done. A version holds the steps done when its save began.
  Training stands still for ``stall_s`` (all of ``save_s`` unless given); the version is durable
  ``save_s`` + ``durable_s`` after its save began. A preemption loses what no durable version holds:
  one that is durable at that moment counts.
* Saves are looked at when a step ends: the user's at multiples of ``save_every_steps``,
  ``static:K`` at multiples of K, the other policies ``floor(interval_s / mean step)`` steps after
  the last save or the resumption, at least one, and at least as many as ``least_s`` takes (of
  ``auto``: its budget, and the version under way); ``every:TIME`` when the time is over, at mean
  steps. On demand only static and every save beside the user. The last step is no exception. The
  job is done with its last step and the stall of a save after it, if one is due.
* The notice of a preemption comes the grace period before it (one draw of ``grace_s``), but not
  before the request; a missed one never comes. At the first end of a step after a notice the policy
  is asked with the grace period of that notice; if it says so, an emergency save stands in the
  place of any other: training stands still for save + durable, and if that ends in time, nothing is
  lost and the replacement is asked for at once. Else training goes on. If a save is under way when
  the notice comes, that one is the emergency save. If training has not begun yet, there is nothing
  to save: the VM is let go when it is prepared.
* Without an emergency save the replacement is asked for at the preemption.
  ``proactive_replacement``: at the notice; its life counts from there, its preparation begins when
  it is allocated and the old VM is done, and the time for which there are two of them is paid
  twice, also where the job ends before the old one. Allocation and preparation of which the old
  VM's training hides a part count with the rest. Replacements are prepared in
  ``warm_preparation_s`` where that is given.
* ``vms``: the first loss stops all; the lost one is replaced, the others keep their lives. Each has
  an allocation of its own, and the last to come is waited for; one preparation for all. No training
  begins with a VM that is noticed: with the one that is lost, or let go behind an emergency save,
  those go whose notice has come by then; and while all wait, a VM goes at its notice, or when it
  comes if that is later. Those that go together are replaced in the order of their notices.
* The policy is told means of the latencies, the job's first ``mttp_s`` / ``vms`` as the prior of a
  learnt mean lifetime, and a learnt missed rate, both brought up to date at each loss
  (``learn=False``: the truth).
* A step's time is compute when it ends for the first time, and recompute when it was done before or
  is cut off. An interrupted save, allocation or preparation counts as what it was.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
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

NEVER = math.inf
LIVES = 100_000
"""More than so many lives: the job does not end."""


@dataclass
class Outcome:
    """One run; seconds, and dollars."""

    total_s: float = 0.0
    cost_usd: float = 0.0
    compute: float = 0.0
    recompute: float = 0.0
    save: float = 0.0
    allocation: float = 0.0
    preparation: float = 0.0
    preemptions: int = 0
    saves: int = 0


def life_s(law: str, mean_s: float, draw: random.Random) -> float:
    """One life of a law with the mean."""
    if mean_s == NEVER:
        return NEVER
    name, _, shape = law.partition(":")
    u = 1 - draw.random()
    if name == "exponential":
        return -mean_s * math.log(u)
    if name == "weibull":
        return mean_s / math.gamma(1 + 1 / float(shape)) * (-math.log(u)) ** (1 / float(shape))
    if name == "lomax":
        return mean_s * (float(shape) - 1) * (u ** (-1 / float(shape)) - 1)
    if name == "lognormal":
        return mean_s * math.exp(float(shape) * draw.gauss(0, 1) - float(shape) ** 2 / 2)
    raise ValueError(law)


def _facts(job: Job) -> SaveFacts:
    warm = job.preparation_s if job.warm_preparation_s is None else job.warm_preparation_s
    return SaveFacts(
        save_s=job.blocked_s.mean,
        backup_s=job.durable_s.mean,
        step_s=job.step_s.mean,
        emergency_s=job.save_s.mean + job.durable_s.mean,
        grace_s=job.grace_s.mean,
        restart_s=job.allocation_s.mean + warm.mean,  # of a replacement
        mttp_s=job.mttp_s[0] / job.vms,
        missed_rate=job.missed_notice_rate,
    )


def seen(pools: Sequence[Sequence[float]], draw: random.Random) -> Iterator[float]:
    """The lives of one pool, round and round, from any of all lives on."""
    pool, first = draw.choice([(pool, at) for pool in pools for at in range(len(pool))])
    return itertools.islice(itertools.cycle(pool), first, None)


def simulate(
    job: Job,
    policy: SavePolicy,
    draw: random.Random,
    *,
    learn: bool = True,
    lives: Iterator[float] | None = None,
) -> Outcome:
    """One run of the job; ``lives``: of spot VMs in the order in which they are asked for, in place
    of drawn ones.
    """
    if job.elastic:
        raise ValueError("the oracle knows no elastic clusters")
    spot = job.market is Market.SPOT
    uniform = draw.random
    out = Outcome()
    facts = _facts(job)
    lifetimes, notices, lomax = Lifetimes(facts.mttp_s), Notices(), None
    if isinstance(policy, Hazard) and facts.mttp_s < NEVER:
        lomax = LomaxHistory.around(float(facts.mttp_s))

    def one(span: Span) -> float:
        return span.low + (span.high - span.low) * uniform()

    def death(asked: float) -> float:
        if spot and lives is not None:
            return asked + next(lives)
        mean = job.mttp_s[min(out.preemptions, len(job.mttp_s) - 1)] if spot else NEVER
        return asked + life_s(job.lifetime, mean, draw)

    def interval(age: float) -> int:
        """Steps from a save or a resumption to the next save."""
        if isinstance(policy, EverySeconds):
            return math.ceil(policy.seconds / job.step_s.mean - 1e-9)
        if isinstance(policy, EverySteps) or not policy.has_interval or not spot:
            return steps + 1
        now = replace(facts, age_s=age)
        if learn:
            now = replace(now, mttp_s=lifetimes.mean_s, missed_rate=notices.missed_rate)
        if lomax is not None:
            shape, scale = lomax.most_probable()
            now = replace(now, shape=float(shape), scale_s=float(scale))
        least = math.ceil(float(policy.least_s(now)) / job.step_s.mean - 1e-9)
        return int(
            min(max(1, least, float(policy.interval_s(now)) / job.step_s.mean + 1e-9), steps + 1.0)
        )

    steps, step_low, step_width = job.steps, job.step_s.low, job.step_s.high - job.step_s.low
    fixed = policy.steps if isinstance(policy, EverySteps) else steps + 1
    periodic = job.save_every_steps or steps + 1
    blocked, whole, durable = job.blocked_s, job.save_s, job.durable_s
    warm = job.preparation_s if job.warm_preparation_s is None else job.warm_preparation_s

    asked = [0.0] * job.vms
    there = [one(job.allocation_s) for _ in asked]
    ends = [death(0.0) for _ in asked]
    graces = [one(job.grace_s) for _ in asked]

    def told(place: int) -> float:
        """When the notice of a VM comes."""
        comes = graces[place] > 0 and uniform() >= job.missed_notice_rate
        return max(ends[place] - graces[place], asked[place]) if comes else NEVER

    def heeds(place: int) -> bool:
        return policy.has_interval and bool(policy.emergency(replace(facts, grace_s=graces[place])))

    hears = [told(place) for place in range(job.vms)]
    now = overlap = 0.0  # the clock; time with VMs too many
    fresh: list[int] = []  # replacements that may have stood beside VMs that still trained
    safe = reached = 0  # steps in the newest durable version; steps ever done
    for life in range(LIVES):
        leaves = (
            ends
            if job.vms == 1
            else [min(max(h, t), e) for h, t, e in zip(hears, there, ends, strict=True)]
        )
        doomed = leaves.index(min(leaves))
        gone = leaves[doomed]
        saved_at = NEVER  # when an emergency save is durable

        at = min(max(there), gone)
        out.allocation += max(0.0, at - now)
        overlap += sum(max(0.0, min(now, leaves[place]) - asked[place]) for place in fresh)
        now = max(now, at)
        at = min(now + one(warm if life else job.preparation_s), max(gone, now))
        out.preparation += at - now
        now = at
        trains = now < gone
        if trains:
            doomed = ends.index(min(ends))
            gone = ends[doomed]
        request, notice, urgent = max(asked), hears[doomed], heeds(doomed)
        step = safe
        pending: list[tuple[float, int]] = []
        insurance = step + interval(now - request)
        if now < gone and notice <= now and urgent:
            saved_at = now
        elif now < gone:
            while step < steps:
                took = step_low + step_width * uniform()
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
                if now >= notice and urgent and step < steps:
                    saved_at = now + one(whole) + one(durable)
                    out.save += min(saved_at, gone) - now
                    out.saves += 1
                    now = min(saved_at, gone)
                    break
                if step % fixed == 0 or step % periodic == 0 or step == insurance:
                    stall, rest = one(blocked), one(durable)
                    writing = stall if job.stall_s is None else max(stall, one(whole))
                    pending.append((now + writing + rest, step))
                    out.saves += 1
                    if now + stall > gone:
                        out.save += gone - now
                        now = gone
                        break
                    out.save += stall
                    now += stall
                    if now >= notice and urgent and step < steps:
                        saved_at = pending[-1][0]
                        out.save += min(saved_at, gone) - now
                        now = min(saved_at, gone)
                        break
                    insurance = step + interval(now - request)
            if step == steps and now < gone and saved_at == NEVER:
                break
        if saved_at <= gone:
            safe = step
            released = saved_at
        else:
            safe = max([safe, *(held for when, held in pending if when <= gone)])
            released = gone
        # Told of while it still stands, or gone at the same moment.
        with_it = [
            i
            for i in range(job.vms)
            if trains and i != doomed and (hears[i] <= now < ends[i] or ends[i] == now)
        ]
        fresh = []
        for place in [doomed, *with_it]:
            seen_s = max(0.0, ends[place] - request)
            lifetimes = lifetimes.after(seen_s, True)
            notices = notices.after(not (heeds(place) and hears[place] < NEVER), True)
            lomax = lomax and lomax.after(seen_s, True)
        for place in sorted([doomed, *with_it], key=lambda i: min(hears[i], released)):
            asked[place] = min(hears[place], released) if job.proactive_replacement else released
            out.preemptions += 1
            ends[place] = death(asked[place])
            there[place], graces[place] = asked[place] + one(job.allocation_s), one(job.grace_s)
            hears[place] = told(place)
            fresh.append(place)
    else:
        raise RuntimeError(f"not done after {LIVES} lives: {safe} of {steps} steps")
    if job.proactive_replacement:  # of VMs that are told of, and still there
        overlap += sum(
            now - hears[place] for place in range(job.vms) if hears[place] < now < ends[place]
        )
    out.total_s = now
    price = job.spot_usd_per_hour if spot else job.on_demand_usd_per_hour
    out.cost_usd = price * (job.vms * now + overlap) / 3600
    return out


def mean(
    job: Job, policy: SavePolicy, runs: int, seed: int, *, learn: bool = True
) -> tuple[Outcome, Outcome]:
    """Means over runs, and their standard errors."""
    draw = random.Random(seed)
    outcomes = [simulate(job, policy, draw, learn=learn) for _ in range(runs)]
    means, errors = Outcome(), Outcome()
    for name in vars(means):
        values = [getattr(o, name) for o in outcomes]
        centre = math.fsum(values) / runs
        setattr(means, name, centre)
        setattr(
            errors,
            name,
            math.sqrt(math.fsum((v - centre) ** 2 for v in values) / max(1, runs - 1) / runs),
        )
    return means, errors
