"""The engine: trainings under preemption, event by event, many runs at once.

One array step takes every run from one event to the next: a machine is lost, has come, gives notice, or a stretch of
equal segments is done. A segment is some steps and the save behind them; a whole life with a constant interval is one
stretch, so the work grows with preemptions and not with steps or saves (only ``hazard``, whose interval grows with the
machine's age, takes an array step for each save).

Sums of n uniform latencies are drawn from the uniform law with the same mean and variance. It is exact for n = 1, and
what is lost to a preemption depends on the sums only through where it falls within a segment.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from deepvm.core.instances import Market
from deepvm.core.job import ZERO, Job, Span
from deepvm.core.preemptions import Lifetimes, LomaxHistory, Notices
from deepvm.core.savepolicy import EverySteps, Hazard, IntervalPolicy, SaveFacts, SavePolicy
from deepvm.errors import SimulationError
from deepvm.simulator.lives import LifeSource

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
PARTS = ("compute", "recompute", "save", "allocation", "preparation")
BELIEF = 10.0
"""How many lives the mean time to preemption of the job file counts as, in what a policy believes."""
HOPELESS = 1000.0
"""A run that takes so many times as long as its work does not get ahead."""
_NEVER = 1e15
"""Steps and seconds that are never reached; infinity does not survive arithmetic."""


@dataclass(frozen=True)
class Outcome:
    """What became of the runs; arrays of one shape (runs,).

    Attributes:
        total_s: from the first request to the last step. vm_s: machine time that is billed, seconds of one VM.
        preemptions: machines lost. parts_s: (5, runs) ``PARTS``; they add up to ``total_s``.
    """

    total_s: Array
    vm_s: Array
    preemptions: Array
    parts_s: Array


@dataclass
class _Runs:
    """Where each run stands; all arrays have one row for each run that is not done, (R,) or (R, ...)."""

    number: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    now: Array
    durable: Array  # steps in the newest version that survives the loss that comes next
    step: Array
    furthest: Array  # steps beyond are done for the first time
    training: Mask  # else machines are waited for
    parts: Array  # (R, 5)
    extra_s: Array  # machine time in which two machines stood in one place
    preemptions: Array
    lives: npt.NDArray[np.int64]
    asked: Array  # (R, n) when each machine was asked for
    ready: Array  # (R, n) when it is there
    death: Array  # (R, n) when it is taken away
    notice: Array  # (R, n) when that is told; at the death: not at all
    members: Mask  # (R, n) machines that take part
    seen_s: Array
    noticed: Array  # (R, 2) pseudo-counts of missed notices and of preemptions
    law: Array  # (R, 2) shape and scale of the hazard
    ended: Array
    logs: Array  # (R, K)

    def keep(self, rows: Mask) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name)[rows])


def run(job: Job, policy: SavePolicy, lives: LifeSource, runs: int, random: np.random.Generator) -> Outcome:
    """Simulate a job.

    Args:
        job: what is trained.
        policy: when it is saved.
        lives: how long machines live.
        runs: how many.
        random: the generator.

    Raises:
        SimulationError: the job does not get ahead.
    """
    return _Engine(job, policy, lives, random).run(runs)


class _Engine:
    def __init__(self, job: Job, policy: SavePolicy, lives: LifeSource, random: np.random.Generator) -> None:
        self._job, self._policy, self._lives, self._random = job, policy, lives, random
        self._spot = job.market is Market.SPOT
        self._warm = job.preparation_s if job.warm_preparation_s is None else job.warm_preparation_s
        self._behind = ZERO if job.stall_s is None else job.save_s  # what of a save runs behind the training
        self._prior = sum(job.mttp_s) / len(job.mttp_s)
        self._history = LomaxHistory.around(self._prior) if isinstance(policy, Hazard) and self._spot else None
        urgent = job.save_s.mean + job.durable_s.mean
        behind = job.durable_s.mean + self._behind.mean
        restart = job.allocation_s.mean + self._warm.mean
        self._facts = SaveFacts(job.blocked_s.mean, behind, job.step_s.mean, urgent, job.grace_s.mean, restart)
        work = job.steps * (job.step_s.high + job.blocked_s.high) + job.allocation_s.high + job.preparation_s.high
        self._hopeless_s = HOPELESS * work

    def run(self, runs: int) -> Outcome:
        total, extra = np.empty(runs), np.empty(runs)
        preemptions, parts = np.empty(runs), np.empty((len(PARTS), runs))
        r = self._begun(runs)
        while len(r.number):
            waiting = np.flatnonzero(~r.training)
            if len(waiting):
                self._wait(r, waiting)
            training = np.flatnonzero(r.training)
            if len(training):
                self._train(r, training)
            done = r.step >= self._job.steps
            if done.any():
                at = r.number[done]
                total[at], extra[at], preemptions[at] = r.now[done], r.extra_s[done], r.preemptions[done]
                parts[:, at] = r.parts[done].T
                r.keep(~done)
            if len(r.number) and r.now.max() > self._hopeless_s:
                raise self._hopeless(r)
        return Outcome(total, total * self._job.vms + extra, preemptions, parts)

    def _hopeless(self, r: _Runs) -> SimulationError:
        worst = r.now.argmax()
        return SimulationError(
            f"{self._job.name}: does not get ahead: after {r.now[worst] / 3600:.0f} h and {r.preemptions[worst]:.0f} "
            f"preemptions {r.durable[worst]:.0f} of {self._job.steps} steps are safe; save more often (another "
            "policy), or take machines that live longer"
        )

    def _begun(self, runs: int) -> _Runs:
        n, history = self._job.vms, self._history
        r = _Runs(
            number=np.arange(runs),
            start=self._lives.starts(self._random, runs),
            now=np.zeros(runs),
            durable=np.zeros(runs),
            step=np.zeros(runs),
            furthest=np.zeros(runs),
            training=np.zeros(runs, dtype=bool),
            parts=np.zeros((runs, len(PARTS))),
            extra_s=np.zeros(runs),
            preemptions=np.zeros(runs),
            lives=np.zeros(runs, dtype=np.int64),
            asked=np.zeros((runs, n)),
            ready=np.zeros((runs, n)),
            death=np.full((runs, n), _NEVER),
            notice=np.full((runs, n), _NEVER),
            members=np.ones((runs, n), dtype=bool),
            seen_s=np.zeros(runs),
            noticed=np.tile([Notices().missed, Notices().seen], (runs, 1)).astype(float),
            law=np.ones((runs, 2)),
            ended=np.zeros(runs),
            logs=np.zeros((runs, 2, len(history.scale_s) if history else 0)),
        )
        if history is not None:
            r.law[:] = np.stack(history.law(), -1)
        for machine in range(n):
            self._ask(r, np.arange(runs), np.full(runs, machine), np.zeros(runs))
        return r

    def _ask(self, r: _Runs, rows: Rows, machine: Rows, when: Array) -> None:
        """Ask for one machine in each row."""
        job, random, count = self._job, self._random, len(rows)
        r.asked[rows, machine] = when
        r.ready[rows, machine] = when + job.allocation_s.draw(random, count)
        if not self._spot:
            return
        death = np.minimum(when + self._lives.draw(random, r.start[rows], r.lives[rows]), _NEVER)
        r.lives[rows] += 1
        r.death[rows, machine] = death
        notice = death - job.grace_s.draw(random, count)
        if job.missed_notice_rate:
            missed = random.random(count) < job.missed_notice_rate
            notice[missed] = death[missed]
        r.notice[rows, machine] = notice

    def _lose(self, r: _Runs, rows: Rows, when: Array) -> None:
        """The machine that goes first is lost at ``when``, is learnt from, and is replaced."""
        machine = r.death[rows].argmin(1)
        death, notice, asked = (a[rows, machine] for a in (r.death, r.notice, r.asked))
        r.now[rows] = when = np.maximum(when, r.now[rows])
        r.step[rows] = r.durable[rows]
        r.training[rows] = False
        r.preemptions[rows] += 1
        self._learn(r, rows, death - asked, ~(notice < death))
        again = when
        if self._job.proactive_replacement:
            again = np.clip(notice, asked, when)
            r.extra_s[rows] += when - again
        self._ask(r, rows, machine, again)

    def _learn(self, r: _Runs, rows: Rows, life_s: Array, missed: Mask) -> None:
        r.seen_s[rows] += life_s
        r.ended[rows] += 1
        r.noticed[rows] += np.stack([missed, np.ones(len(rows), dtype=bool)], -1)
        if self._history is None:
            return
        known = replace(self._history, ended=r.ended[rows] - 1, logs=r.logs[rows, 0], ended_logs=r.logs[rows, 1])
        known = known.after(life_s, np.ones(len(rows), dtype=bool))
        r.logs[rows] = np.stack([np.asarray(known.logs), np.asarray(known.ended_logs)], 1)
        r.law[rows] = np.stack(known.law(), -1)

    def _wait(self, r: _Runs, rows: Rows) -> None:
        """Machines are waited for and prepared; rows that lose one meanwhile wait again."""
        now, ready, death = r.now[rows], r.ready[rows], r.death[rows].min(1)
        there = np.maximum(now, ready.max(1))
        first = r.preemptions[rows] == 0
        if self._job.elastic:  # once all have trained together, those that are there go on
            there = np.where(r.furthest[rows] > 0, np.maximum(now, ready.min(1)), there)
        prepared = there + self._warm.draw(self._random, len(rows))
        if self._warm is not self._job.preparation_s:
            cold = self._job.preparation_s.draw(self._random, len(rows))
            prepared = np.where(first, there + cold, prepared)
        r.parts[rows, 3] += np.clip(np.minimum(there, death) - now, 0, None)
        r.parts[rows, 4] += np.clip(np.minimum(prepared, death) - there, 0, None)
        r.members[rows] = ready <= there[:, None]
        lost = death <= prepared
        r.now[rows] = np.where(lost, now, prepared)
        r.training[rows] = ~lost
        self._lose(r, rows[lost], death[lost])

    def _train(self, r: _Runs, rows: Rows) -> None:
        """One stretch of equal segments in each row, or as much of it as there is time for."""
        job, now, step = self._job, r.now[rows], r.step[rows]
        machine = r.death[rows].argmin(1)
        death, notice, asked = (a[rows, machine] for a in (r.death, r.notice, r.asked))
        slow = job.vms / r.members[rows].sum(1) if job.elastic else 1.0
        told = notice < death
        heeds, interval = self._decide(r, rows, now, death - notice, slow)
        urgent = heeds & told
        stop = np.where(urgent, np.maximum(notice, now), death)
        joins = np.full(len(rows), _NEVER)
        if job.elastic:
            joins = np.where(r.members[rows], _NEVER, r.ready[rows]).min(1)
            stop = np.minimum(stop, np.maximum(joins, now))
        steps, count, saved = self._stretch(step, interval)

        work = slow * self._sum(job.step_s, steps * count)
        save = np.where(saved, self._sum(job.blocked_s, count), 0.0)
        segment, one = (work + save) / count, work / (steps * count)
        single = np.ones(len(rows))
        delay = self._sum(job.durable_s, single) + self._sum(self._behind, single)
        whole = now + work + save <= stop
        # A stretch that is not done is left within its segment number `full`, `within` seconds from its beginning.
        full = np.where(whole, count, np.minimum(np.floor((stop - now) / segment), count - 1))
        within = np.where(whole, 0.0, stop - now - full * segment)
        done = np.minimum(within // one, steps)
        saving = ~whole & (done >= steps)
        trained = full * steps * one + np.minimum(within, steps * one)
        reached = step + full * steps + done
        # Versions whose backup ends before the machine is lost.
        safe = np.clip(np.floor((death - delay - now) / segment), 0, full) * saved
        durable = np.where(safe > 0, step + safe * steps, r.durable[rows])

        lost = ~whole & (stop >= death)
        early = ~whole & ~lost  # a notice, or a machine that joins: the step or the save is still brought to its end
        rest = np.where(early, np.where(saving, segment - within, (done + 1) * one - within), 0.0)
        idle = early & (stop <= now)  # the notice came before training began: there is nothing to save
        rest = np.where(idle, 0.0, rest)
        reached = reached + (early & ~saving & ~idle & (stop + rest <= death))
        trained = trained + np.where(saving | ~early, 0.0, np.minimum(rest, death - stop))
        finished = reached >= job.steps
        busy = np.where(saving, delay, self._sum(job.save_s, single) + self._sum(job.durable_s, single))
        joining = early & (joins <= stop)
        busy = np.where(joining, np.where(saving, 0.0, self._sum(job.blocked_s, single)), busy)
        busy = np.where(early & ~idle & ~finished, busy, 0.0)
        end = np.where(whole, now + work + save, stop + rest + busy)
        made = early & ~idle & (end <= death)
        durable = np.where(made, reached, durable)
        end = np.minimum(end, death)

        fresh = np.clip(reached - r.furthest[rows], 0, None) * one
        fresh = np.minimum(fresh, trained)
        r.furthest[rows] = np.maximum(r.furthest[rows], reached)
        r.parts[rows, 0] += fresh
        r.parts[rows, 1] += trained - fresh
        r.parts[rows, 2] += end - now - trained
        r.durable[rows] = durable
        r.step[rows] = reached
        r.now[rows] = end
        finished = finished & (whole | made)
        grown = joining & made & ~finished
        r.training[rows[grown]] = False
        gone = (lost | (early & ~grown)) & ~finished
        self._lose(r, rows[gone], end[gone])

    def _decide(self, r: _Runs, rows: Rows, now: Array, grace_s: Array, slow: Array | float) -> tuple[Mask, Array]:
        """Whether notices are heeded, and the steps between two saves."""
        policy = self._policy
        never = np.zeros(len(rows), dtype=bool)
        if isinstance(policy, EverySteps):
            return never, np.full(len(rows), float(policy.steps))
        if not isinstance(policy, IntervalPolicy) or not self._spot:
            return never, np.full(len(rows), _NEVER)
        n = self._job.vms
        seen = Lifetimes(self._prior, BELIEF, r.seen_s[rows], r.ended[rows])
        missed, told = r.noticed[rows].T
        facts = replace(
            self._facts,
            step_s=self._facts.step_s * slow,
            mttp_s=seen.mean_s / n,
            missed_rate=Notices(missed, told).missed_rate,
        )
        if self._history is not None:
            shape, scale = r.law[rows].T
            # The hazards of all machines add up; as one machine of the mean age it is n times as high.
            rate = (1 / (scale[:, None] + now[:, None] - r.asked[rows])).mean(1)
            facts = replace(facts, shape=shape * n, scale_s=1 / rate)
        interval = np.broadcast_to(policy.interval_s(facts), len(rows)) / facts.step_s
        interval = np.minimum(np.floor(np.maximum(interval, 1.0)), _NEVER)
        # What the notice says counts, not what notices usually say.
        heeds = np.broadcast_to(policy.emergency(replace(facts, grace_s=grace_s)), len(rows))
        return heeds, interval

    def _stretch(self, step: Array, interval: Array) -> tuple[Array, Array, Mask]:
        """Steps of a segment, number of segments, and whether a save stands behind each."""
        mark = self._job.steps - step
        own = self._job.save_every_steps
        if own:
            mark = np.minimum(mark, own - step % own)
        fixed = isinstance(self._policy, EverySteps)
        if fixed:  # at multiples, wherever the last version was
            off = interval - step % interval
            mark = np.where(off < interval, np.minimum(mark, off), mark)
        count = (mark - 1) // interval
        if self._history is not None:  # its interval is another one behind each save
            count = np.minimum(count, 1)
        steps = np.where(count > 0, interval, mark)
        end = step + steps
        saved = count > 0
        if own:
            saved |= end % own == 0
        if fixed:
            saved |= end % interval == 0
        return steps, np.maximum(count, 1), saved

    def _sum(self, span: Span, count: Array) -> Array:
        """The sum of ``count`` latencies in each row."""
        if span.low == span.high:
            return span.low * count
        width = (span.high - span.low) * np.sqrt(count)
        return np.asarray(span.mean * count + (self._random.random(len(count)) - 0.5) * width)
