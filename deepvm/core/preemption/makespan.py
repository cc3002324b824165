"""How long a job takes under preemption, and what it costs: expectations in closed form.

The model is the simulator's (docs/internals/guide/simulate.md): lifetimes are exponential with the
mean ``mttp_s``, counted from the request, so a cluster that needs all its n spot VMs is interrupted
at the rate L = n / mttp_s at any time. Write R for allocation and preparation, k for the
steps between two saves, s for a step, D for the stall of a save, tau = k s + D for a segment, and d
for the time from the end of the stall until the checkpoint is durable.

**Random latencies.** To get through a latency x that is drawn again in each attempt takes ``(1/f -
1)/L`` on average, with f = E exp(-L x). So x may be replaced by its *effective* length -log(f)/L, a
little below its mean, and everything below is as if latencies were constants. For x uniform around
m with the width w, f = exp(-L m) sinh(L w/2)/(L w/2).

**Without emergency saves** (static, young, daly, exact; thesis and adaptive when none fits). The
first checkpoint is durable R + d + tau after the request, if the VM lives so long, which takes
``(exp(L (R + d + tau)) - 1)/L`` on average (Daly 2006, the argument of eq. 13). When version i is
durable and the VM is still there, version i+1 is durable tau later; if the VM goes before, all of R
+ d + tau starts again:

    E_next = (1 - exp(-L tau)) (1/L + (exp(L (R + d + tau)) - 1)/L) = exp(L (R + d)) (exp(L tau) -
    1)/L

which is eq. 13 with R + d instead of R: the delay of a backup acts like a longer restart. The job
ends when its last step ends, durable or not. With m checkpoints that are durable before that, and a
tail of work after the last of them became durable, the same argument gives E_next with the tail
instead of tau. Altogether, R' being the first start,

    T = (exp(L (R + d)) - exp(L (R - R')))/L + exp(L (R + d))/L (sum over segments (exp(L tau_i) -
    1) + exp(L tail) - 1)

and L T preemptions, because every second counts. This is exact but for the drawing of d, which is
small. With proactive replacement R is a mixture: with a notice the replacement's allocation started
the grace period earlier.

**With emergency saves**, a share b of the preemptions goes badly: no notice, one that came too
late, or a save that was not done in time. A good one is known the grace period g ahead. So training
starts if the lifetime exceeds R + g (good) or R (bad), with the probability p together, and S = (R
p + E[life; no training])/p passes on average from a request to training. Training is then stopped
at the rate L, by a notice or without one. In H seconds of it, L H times:

    work needed = H (working share) + L H (good share r - bad share l)

r is the rest of the step that is finished after a notice, half a step; l the work that is lost
badly, which is the work of an exponential life, (1 - exp(-L k s))/(L (1 - exp(-L tau))), less the
work of its durable checkpoints, k s exp(-L (d + tau))/(1 - exp(-L tau)). Where only the user's
saves are left, which stand at any phase of a lifetime, l is E min(life, age of the newest durable
version), that age being uniform over a segment, plus d. Then

    T = S' + H + L H (S + good share (rest of the step or stall, + emergency save))

with S' for the first start, and L H + (L H + 1)(1 - p)/p preemptions. A notice that comes before
training starts is counted as a lifetime without work, which loses at most one step.

What is approximated: the learned mean lifetime is taken as known, the learned missed rate as its
mean course; ``hazard`` as ``adaptive``, since on exponential lifetimes its hazard settles at
1/mttp; and in a cluster each machine interrupts for itself, though those that are noticed when
another is gone go with it, so T comes out up to 2 % too long.

**Range.** Where :attr:`Forecast.sound` is true, T is within 2 % of simulation and preemptions are
within 8 % (tests/core/preemption/test_makespan.py). That needs exponential lifetimes of one mean,
all VMs, and the limits below; ``hazard`` only on one VM.
"""

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.core.preemption import exponential_life as lives
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy, whole_steps
from deepvm.records import dataclass, replace

MOST_OF_A_LIFE = 0.5  # of the mean lifetime: restart, backup and twice the grace period together
MOST_OF_A_CLUSTERS_LIFE = 0.43  # the same with several machines, of which some go together
MOST_OF_A_HAZARD = 0.1  # of the mean lifetime: a save with ``hazard``
MOST_PREEMPTIONS_PER_STEP = 0.1  # above that, whole steps are too coarse for the formulas
# Rate of missed notices, times the square of the work that each loses, by all work
MOST_COARSE = 0.01
# Of the training time: lost work, where luck decides whether an emergency save is in time
MOST_BY_LUCK = 0.1
# Of the time: the average effect of the usual error in the learned mean lifetime. Long saves of a
# short job exceed it: a few short lifetimes make it save more often than foreseen.
MOST_DOUBT = 0.01
MOST_STRETCH = 20.0  # times the undisturbed time; above that a job counts as never ending


@dataclass(frozen=True)
class Forecast:
    """Expectations for several clusters; arrays of one shape."""

    total_s: FloatArray  # infinite if the job never ends
    preemptions: FloatArray
    overlap_s: FloatArray  # with a machine too many (proactive replacement)
    sound: BoolArray  # whether the closed form holds within 2 %; elsewhere simulate


def forecast(
    job: Job, policy: SavePolicy, *, per_second: FloatArray, step_s: FloatArray, vms: FloatArray
) -> Forecast:
    """Expectations for a job on several clusters, by preemptions/s, seconds/step and spot VMs."""
    rate, step_s, vms = np.broadcast_arrays(per_second, step_s, np.maximum(vms, 1.0))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _ClosedForm(job, policy, rate, step_s, vms).forecast()


class _ClosedForm:
    """The quantities of the docstring above, as arrays over clusters."""

    def __init__(
        self, job: Job, policy: SavePolicy, rate: FloatArray, step: FloatArray, vms: FloatArray
    ) -> None:
        self.job = job
        self.policy = policy
        self.mean_step = step
        self.vms = vms
        # Instead of 0 a rate so small that nothing happens, and large enough that 1/rate keeps all
        # of its digits.
        self.rate = np.maximum(rate, 1e-15)
        relative = 0.0
        if job.step_s.mean:
            relative = job.step_s.width / job.step_s.mean
        self.step = lives.effective(step, relative * step, self.rate)
        self.stall = self._length(job.blocked_s)
        # The rest of the write happens while training continues.
        writing = np.maximum(self.stall, self._length(job.save_s))
        self.delay = writing - self.stall + self._length(job.durable_s)
        # The job starts when the last of the VMs is there: the largest of n uniform latencies lies
        # n/(n+1) up its span.
        last = job.allocation_s.width * (0.5 - 1 / (vms + 1))
        self.first = self._length(job.allocation_s) + last + self._length(job.preparation_s)
        self.again = self._length(job.allocation_s) + self._length(job.replacement_s)
        # Steps between two of the user's own saves; more than all steps: none.
        self.period = min(job.save_every_steps or job.steps + 1, job.steps + 1)
        self.facts = replace(
            job.save_facts,
            step_s=self.mean_step,
            mttp_s=1 / self.rate,
            shape=1.0,  # together a hazard of 1/mttp at any age
            scale_s=1 / self.rate,
            missed_rate=job.missed_notice_rate,
        )

    def _length(self, span: Span) -> FloatArray:
        return lives.effective(np.asarray(span.mean), np.asarray(span.width), self.rate)

    def forecast(self) -> Forecast:
        job = self.job
        policy = self.policy
        total, preemptions, overlap, coarse = self._expected(self.facts)
        undisturbed = job.steps * self.mean_step + self.first
        share = (np.maximum(self.first, self.again) + self.delay + 2 * job.grace_s.mean) * self.rate
        most = np.where(self.vms > 1, MOST_OF_A_CLUSTERS_LIFE, MOST_OF_A_LIFE)
        sound = (
            ~coarse & (share <= most) & (self.mean_step * self.rate <= MOST_PREEMPTIONS_PER_STEP)
        )
        if policy.by_age:  # a cluster has no one age, from which its hazard would settle
            sound = sound & (self.vms == 1) & (self.stall * self.rate <= MOST_OF_A_HAZARD)
        if policy.has_interval and job.blocked_s.mean > 0:
            sound = sound & (self._doubt(total) <= MOST_DOUBT)
        sound = (
            sound
            & (job.lifetime == "exponential" and len(set(job.mttp_s)) == 1)
            & ~(job.elastic & (self.vms > 1))
        )
        total = np.where(total <= MOST_STRETCH * undisturbed, total, np.inf)
        return Forecast(total, preemptions, overlap, sound & np.isfinite(total))

    def _expected(self, facts: SaveFacts) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
        unlucky = self._uncovered_share(facts)
        saved = unlucky < 1
        coarse = np.zeros(self.rate.shape, dtype=bool)
        figures = () if saved.all() else self._without_emergency(facts)
        if saved.any():
            *other, coarse = self._with_emergency(np.minimum(unlucky, 1.0), facts)
            pairs = zip(other, figures or other, strict=True)
            figures = tuple(np.where(saved, emergency, plain) for emergency, plain in pairs)
        total, preemptions, overlap = figures
        return (
            np.where(np.isfinite(total) & (total >= 0), total, np.inf),
            preemptions,
            overlap,
            coarse & saved,
        )

    def _doubt(self, total: FloatArray) -> FloatArray:
        """How far a different estimate of the mean lifetime would change the total time."""
        seen = np.clip(self.rate * total, 1e-3, 1e9)
        likely = -np.expm1(-seen)
        spread = lives.learnt_spread(seen)
        # Its hazard falls at first, and has two parameters to learn
        if self.policy.by_age:
            likely = np.ones_like(seen)
            spread = np.maximum(spread, (1 + seen / 10) ** -0.5)
        change = np.zeros_like(total)
        for deviations in (-1.5, -0.5, 0.5, 1.5):
            believed_s = self.facts.mttp_s * np.exp(deviations * spread)
            believed = replace(self.facts, mttp_s=believed_s, scale_s=believed_s)
            change += np.abs(self._expected(believed)[0] / total - 1) / 4
        return np.where(np.isfinite(change), likely * change, np.inf)

    def _interval(self, missed: FloatArray | float, facts: SaveFacts) -> FloatArray:
        """Steps between two saves of the policy's own; more than all steps: none."""
        steps = whole_steps(self.policy, replace(facts, missed_rate=missed))
        return np.broadcast_to(np.minimum(steps, self.job.steps + 1.0), self.rate.shape)

    def _delay(self, segment: FloatArray) -> FloatArray:
        """Seconds from a stall's end until its checkpoint, or a newer one, is durable."""
        return self.delay - lives.overtaken(self.job.durable_s.width, segment)

    def _without_emergency(self, facts: SaveFacts) -> tuple[FloatArray, ...]:
        job = self.job
        rate = self.rate
        again = self.again
        lead = np.zeros_like(rate)
        if job.proactive_replacement and job.grace_s.mean > 0:
            notices = 1 - job.missed_notice_rate
            lead = notices * np.broadcast_to(job.grace_s.mean, rate.shape)
            sooner = (
                again - job.allocation_s.mean + lives.remaining_after(job.allocation_s, job.grace_s)
            )
            again = (
                -np.log(notices * np.exp(-rate * sooner) + (1 - notices) * np.exp(-rate * again))
                / rate
            )
        every = self._interval(1.0, facts)
        counted, rest = lives.segments(job.steps, every, self.period, self.policy.fixed_steps)
        segments = [(length * self.step + self.stall, count) for length, count in counted]
        usual, number = segments[0]
        delay = self._delay(usual)
        # The newest checkpoints may not be durable when the last step ends: they are of no use.
        tail = rest * self.step - delay
        idle = np.minimum(number, np.ceil(np.maximum(-tail / usual, 0.0)))
        segments[0] = (usual, number - idle)
        waves = np.expm1(rate * (tail + idle * usual))
        for length, count in segments:
            waves = waves + count * np.expm1(rate * length)
        scale = np.exp(rate * (again + delay))
        total = (
            np.expm1(rate * (again + delay)) - np.expm1(rate * (again - self.first)) + scale * waves
        ) / rate
        return total, rate * total, rate * total * lead

    def _uncovered_share(self, facts: SaveFacts) -> FloatArray:
        """Share of preemptions that no emergency save covers; 1 where the policy makes none."""
        job = self.job
        step = self.mean_step
        grace = job.grace_s
        if not self.policy.has_interval or grace.high <= 0:
            return np.ones(self.rate.shape)

        def acts(step: FloatArray, grace_s: float) -> BoolArray:
            return np.asarray(self.policy.emergency(replace(facts, step_s=step, grace_s=grace_s)))

        always = step + job.save_s.high + job.durable_s.high <= grace.low
        covered = np.where(always & acts(step, grace.low), 1.0, 0.0)
        by_luck = self._by_luck()
        if by_luck.any():
            some = step[by_luck]
            covered[by_luck] = np.where(acts(some, grace.high), lives.in_time(job, some), 0.0)
        return 1 - (1 - job.missed_notice_rate) * covered

    def _by_luck(self) -> BoolArray:
        job = self.job
        step = self.mean_step
        grace = job.grace_s
        never = step + job.urgent_s >= grace.high
        return ~(never | (step + job.save_s.high + job.durable_s.high <= grace.low))

    def _with_emergency(
        self, unlucky: FloatArray, facts: SaveFacts
    ) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
        """As :meth:`_without_emergency`, and where it is too coarse, with emergency saves."""
        job = self.job
        rate = self.rate
        step = self.step
        grace = job.grace_s.mean
        urgent = job.urgent_s
        working, lost, finished = self._worked_and_lost(unlucky, facts)
        # Of the lifetimes that come to training, those with a notice are rarer: they had to live g
        # longer. In a cluster a notice is of no use if another VM goes without one meanwhile.
        share = 1 / self.vms
        covered = (1 - unlucky) * np.exp(-rate * unlucky * grace)
        good = (1 - unlucky) * np.exp(-rate * grace) * share + covered * (1 - share)
        bad = unlucky * share + (1 - covered) * (1 - share)
        good, bad = good / (good + bad), bad / (good + bad)
        # A notice within a step: it is finished, and saved. One within the stall of a save: that
        # one is the last.
        passed = working * (step / 2 + urgent) + (1 - working) * (self.stall / 2 + self.delay)
        training = job.steps * step / (working + rate * (good * finished - bad * lost))
        training = np.where(training > 0, training, np.inf)
        stops = rate * training
        if job.proactive_replacement:
            lead = passed
        else:
            lead = np.zeros_like(rate)
        fails, wait = self._attempt(unlucky, self.again)
        # Until one attempt comes to training
        more = fails / (1 - fails)
        restart = wait / (1 - fails)
        # Only the first life starts cold: if it is lost before it trains, the next ones are
        # prepared warm.
        cold, start = self._attempt(unlucky, self.first)
        fails = cold * (1 + more)
        start = start + cold * restart
        if job.proactive_replacement:
            # The first attempt after a stop was requested with the notice; where it fails, the next
            # one is requested only when the VM is lost.
            sooner = self.again - job.allocation_s.mean + lives.remaining(job.allocation_s, lead)
            once, wait = self._attempt(unlucky, good * sooner + bad * self.again)
            more = once * (1 + more)
            restart = wait + once * restart
        total = start + training + stops * (restart + good * passed)
        coarse = bad * rate * lost * lost / (job.steps * step) > MOST_COARSE
        coarse |= self._by_luck() & (bad * rate * lost > MOST_BY_LUCK)
        return total, stops * (1 + more) + fails, stops * good * lead, coarse

    def _attempt(self, unlucky: FloatArray, needed: FloatArray) -> tuple[FloatArray, FloatArray]:
        grace = self.job.grace_s.mean
        late = None
        if not self.job.proactive_replacement:
            late = np.minimum(self.mean_step + self.job.urgent_s, grace)
        return lives.attempt(self.rate, grace, 1 / self.vms, needed, unlucky, late)

    def _worked_and_lost(self, unlucky: FloatArray, facts: SaveFacts) -> tuple[FloatArray, ...]:
        """Share of time that is work, and work that bad and good preemptions lose or still do."""
        rate = self.rate
        steps = self.job.steps
        period = float(self.period)
        every = self._interval(
            lives.learnt_missed_rate(unlucky, rate * steps * self.mean_step), facts
        )
        users = every >= period
        has_own = period <= steps
        every = np.where(users, period, period / np.ceil(period / every) if has_own else every)
        stall = np.where(every > steps, 0.0, self.stall)
        work = every * self.step
        segment = every * self.step + stall
        none = -np.expm1(-rate * segment)
        per_life = -np.expm1(-rate * work) / (rate * none)
        delay = self._delay(segment)
        lost = per_life - work * np.exp(-rate * (delay + segment)) / none
        working = rate * per_life
        finished = working * self.step / 2
        if not has_own:
            return working, lost, finished
        age = lives.lost_age(rate, delay, segment)
        # These saves stand where they stand, and none is made after the last step but at the end of
        # a period: a notice within the stall of one leaves less of it to do, one within the step
        # before it all of it.
        share = steps * self.step / (steps * self.step + steps // self.period * stall)
        ahead = share * (share * (self.step / 2 + stall / every) + (1 - share) * stall / 2)
        return (
            np.where(users, share, working),
            np.where(users, age * share, lost),
            np.where(users, ahead, finished),
        )
