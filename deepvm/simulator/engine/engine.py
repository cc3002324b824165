"""The engine: training runs under preemption, event by event, many at once.

One array step takes every run from one event to the next; a stretch of equal segments (steps, and
the save after them) is one event. In a cluster only the notice of the machine that goes first has
training saved; no training starts with a machine that is noticed, as with deepvm run.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import ZERO, Job
from deepvm.core.preemption.savepolicy import SavePolicy
from deepvm.core.units import format_seconds
from deepvm.errors import SimulationError
from deepvm.simulator.engine.latencies import Backups, remainder, total
from deepvm.simulator.engine.lifetimes import LifeSource, ListedLifetimes
from deepvm.simulator.engine.markets import Deadline, Markets
from deepvm.simulator.engine.policy_adapter import PolicyAdapter, pass_over
from deepvm.simulator.engine.state import NEVER, PARTS, Outcome, Runs
from deepvm.simulator.engine.stretch_cut import FEW, Cut, Stretch, uneven

# Limits at which runs are given up: time over work, and machines lost per durable step
HOPELESS, HOPELESS_LIVES = 100.0, 10_000

KEPT_BYTES = 16 << 20  # Temporary arrays below this size are reused


def run(
    job: Job,
    policy: SavePolicy,
    lives: LifeSource,
    runs: int,
    random: np.random.Generator,
    deadline: Deadline | None = None,
) -> Outcome:
    """Simulate a job; without a ``deadline`` it stays in its market. Raises SimulationError."""
    # Page faults took a third of the time. Freeing a block of this size once makes glibc's malloc
    # keep the memory of smaller ones, up to twice as much in all (mallopt(3), M_MMAP_THRESHOLD);
    # elsewhere it does nothing.
    np.empty(KEPT_BYTES, dtype=np.uint8)
    return _Engine(job, policy, lives, random, deadline).run(runs)


def _in_order(
    gone: list[tuple[IntArray, Any, FloatArray]], runs: int
) -> Iterator[tuple[IntArray, Any, FloatArray]]:
    """(rows, machine, when) of requests, in order relative to the first of their row."""
    at = np.zeros(runs)
    at[gone[0][0]] = gone[0][2]
    for early in (True, False):
        for rows, machine, when in gone[1:]:
            here = (when < at[rows]) == early
            yield rows[here], machine, when[here]
        if early:
            yield gone[0]


class _Engine:
    def __init__(
        self,
        job: Job,
        policy: SavePolicy,
        lives: LifeSource,
        random: np.random.Generator,
        deadline: Deadline | None,
    ) -> None:
        self._job = job
        self._lives = lives
        self._random = random
        self._markets = None
        if deadline is not None:
            self._markets = Markets(job, policy, deadline)
        self._spot = job.market is Market.SPOT
        self._elastic = job.elastic and job.vms > 1
        self._rigid = job.vms > 1 and not job.elastic
        behind = ZERO
        if job.stall_s is not None:
            behind = remainder(job.save_s, job.stall_s)
        self._backups = Backups(job.durable_s, behind)
        self._policy = PolicyAdapter(job, policy, behind.mean, deadline=deadline is not None)
        self._uneven = uneven(job.step_s) or uneven(job.blocked_s)
        work = (
            job.steps * (job.step_s.high + job.blocked_s.high)
            + job.allocation_s.high
            + job.preparation_s.high
        )
        self._hopeless_s = HOPELESS * work

    def run(self, runs: int) -> Outcome:
        total = np.empty(runs)
        extra = np.empty(runs)
        on_demand = np.empty(runs)
        preemptions = np.empty(runs)
        parts = np.empty((len(PARTS), runs))
        r = self._start(runs)
        while len(r.number):
            self._wait(r, np.flatnonzero(~r.training))
            self._refuse_hopeless(r)
            if self._markets is not None:
                moved = self._markets.keep(r)
                # All machines stay until the checkpoint just made is durable, or lost with one of
                # them
                left_s = r.death[moved].min(1) - r.now[moved]
                backup_s = self._backups.draw(self._random, np.ones(len(moved), dtype=bool))
                backup_s = np.where(
                    r.durable[moved] < r.step[moved], left_s, np.minimum(backup_s, left_s)
                )
                r.extra_s[moved] += backup_s * self._job.vms + self._ahead_s(r, moved)
                r.on_demand_s[moved] += backup_s * r.on_demand[moved]
                self._change(r, moved)
                r.ready[moved] = np.maximum(r.ready[moved], (r.now[moved] + backup_s)[:, None])
            self._train(r)
            done = r.step >= self._job.steps
            if done.any():
                at = r.number[done]
                total[at] = r.now[done]
                preemptions[at] = r.preemptions[done]
                extra[at] = r.extra_s[done] + self._ahead_s(r, np.flatnonzero(done))
                on_demand[at] = r.on_demand_s[done]
                for number, part in enumerate(PARTS):
                    parts[number, at] = getattr(r, part)[done]
                r.keep(~done)
        vm_s = total * self._job.vms + extra
        return Outcome(
            total, vm_s, on_demand * self._job.vms if self._spot else vm_s, preemptions, parts
        )

    def _refuse_hopeless(self, r: Runs) -> None:
        hopeless = (r.now > self._hopeless_s) | (r.preemptions > HOPELESS_LIVES * (1 + r.durable))
        if not hopeless.any():
            return
        worst = hopeless.argmax()
        job = self._job
        life = min(self._job.mttp_s)
        longer = "take machines that live longer"
        remedy = f"save more often (another policy), or {longer}"
        trains_s = job.allocation_s.mean + self._job.replacement_s.mean
        for what, needed in (("until a save is safe", job.urgent_s), ("until it trains", trains_s)):
            if needed > life:
                remedy = (
                    f"{longer} than {format_seconds(life)} on average: one takes"
                    f" {format_seconds(needed)} {what}"
                )
        raise SimulationError(
            f"{job.name}: makes no progress: after {r.now[worst] / 3600:.0f} h and"
            f" {r.preemptions[worst]:.0f} preemptions {r.durable[worst]:.0f} of {job.steps} steps"
            f" are safe; {remedy}"
        )

    def _start(self, runs: int) -> Runs:
        n = self._job.vms
        sums = ("extra_s", "on_demand_s", "preemptions", "seen_s", "missed")
        r = Runs(
            number=np.arange(runs),
            start=self._lives.starts(self._random, runs),
            **{
                name: np.zeros(runs)
                for name in ("now", "durable", "step", "furthest", *PARTS, *sums)
            },
            training=np.zeros(runs, dtype=bool),
            on_demand=np.full(runs, not self._spot),
            cap=np.full(runs, NEVER),
            lives=np.zeros(runs, dtype=np.int64),
            asked=np.zeros((runs, n)),
            ready=np.zeros((runs, n)),
            death=np.full((runs, n), NEVER),
            notice=np.full((runs, n), NEVER),
            members=np.ones((runs, n), dtype=bool),
            shape=np.ones(runs),
            scale=np.ones(runs),
            logs=np.zeros((runs, 0)),
        )
        self._policy.begin(r)
        if self._markets is not None:
            r.on_demand[:] = self._markets.on_demand_next(r, np.arange(runs))
        for machine in range(n):
            self._ask(r, slice(None), machine, np.zeros(runs))  # one machine of each row
        return r

    def _ask(
        self, r: Runs, rows: IntArray | slice, machine: IntArray | int, when: FloatArray
    ) -> None:
        """Request one machine per row; elastic clusters re-request what is lost before arrival."""
        self._ask_once(r, rows, machine, when)
        while self._elastic:  # the others train on meanwhile
            death = r.death[rows, machine]
            again = np.flatnonzero(death <= r.ready[rows, machine])
            if not len(again):
                return
            rows = np.arange(len(r.number))[rows][again]
            machine = np.broadcast_to(machine, len(death))[again]
            death = death[again]
            self._policy.learn(
                r, rows, death - r.asked[rows].max(1), death - r.notice[rows, machine]
            )
            r.preemptions[rows] += 1
            self._refuse_hopeless(r)
            self._ask_once(r, rows, machine, death)

    def _ask_once(
        self, r: Runs, rows: IntArray | slice, machine: IntArray | int, when: FloatArray
    ) -> None:
        job = self._job
        random = self._random
        count = len(when)
        r.asked[rows, machine] = when
        r.ready[rows, machine] = when + job.allocation_s.draw(random, count)
        if not self._spot:
            return
        death = np.minimum(when + self._lives.draw(random, r.start[rows], r.lives[rows]), NEVER)
        listed = None
        if isinstance(self._lives, ListedLifetimes):
            listed = self._lives.graces_s(r.lives[rows])
        r.lives[rows] += ~r.on_demand[rows]
        notice = death - (job.grace_s.draw(random, count) if listed is None else listed)
        if job.missed_notice_rate:
            missed = random.random(count) < job.missed_notice_rate
            notice[missed] = death[missed]
        if self._markets is not None:
            death[r.on_demand[rows]] = notice[r.on_demand[rows]] = NEVER
        r.death[rows, machine] = death
        r.notice[rows, machine] = notice

    def _lose(self, r: Runs, which: IntArray, machine: IntArray | int, when: FloatArray) -> None:
        rows = self._plain(which, len(r.number))
        with_it: list[tuple[IntArray, int]] = []
        if self._rigid and not isinstance(machine, int):
            with_it = self._noticed(r, which, machine, when)
        newest = r.asked[rows, 0]
        if self._job.vms > 1:
            newest = r.asked[rows].max(1)
        again = self._observe(r, rows, machine, when, newest)
        gone = [(which, machine, again)]
        r.now[rows] = np.maximum(when, r.now[rows])
        r.step[rows] = r.durable[rows]
        r.training[rows] = False
        for others, other in with_it:
            newest = r.asked[others].max(1)
            gone.append((others, other, self._observe(r, others, other, r.now[others], newest)))
        if not with_it and self._markets is None:
            self._ask(r, rows, machine, again)
            return
        leaves = np.zeros(len(r.number), dtype=bool)
        if self._markets is not None:
            leaves[which] = self._markets.on_demand_next(r, which)
            self._change(r, np.flatnonzero(leaves))
        for rows, machine, again in _in_order(gone, len(r.number)):
            stay = ~leaves[rows]
            if not isinstance(machine, int):
                machine = machine[stay]
            self._ask(r, rows[stay], machine, again[stay])

    def _observe(
        self,
        r: Runs,
        rows: IntArray | slice,
        machine: IntArray | int,
        when: FloatArray,
        newest: FloatArray,
    ) -> FloatArray:
        death, notice, asked = (a[rows, machine] for a in (r.death, r.notice, r.asked))
        before = r.now[rows] - when
        until = np.maximum(when, r.now[rows])
        self._policy.learn(r, rows, death - newest, death - notice)
        r.preemptions[rows] += 1
        if not self._job.proactive_replacement:
            return until
        again = np.minimum(np.maximum(notice, asked), until)
        r.extra_s[rows] += until - again
        # One that was lost while the one before it was still there was paid so long only
        if not self._elastic:
            r.extra_s[rows] -= np.maximum(before, 0.0)
        return again

    def _ahead_s(self, r: Runs, rows: IntArray) -> FloatArray:
        """How long replacements have been paid for whose machines are noticed, and not gone yet."""
        if not self._job.proactive_replacement:
            return np.zeros(len(rows))
        since = np.maximum(r.notice[rows], r.asked[rows])
        noticed = (r.notice[rows] < r.death[rows]) & (since < r.now[rows, None])
        return np.asarray(np.where(noticed, r.now[rows, None] - since, 0.0).sum(1))

    def _noticed(
        self, r: Runs, which: IntArray, machine: IntArray, when: FloatArray
    ) -> list[tuple[IntArray, int]]:
        end = np.maximum(when, r.now[which])[:, None]
        # One that is lost at the same moment goes with it, and is paid until then
        noticed = r.training[which, None] & (r.notice[which] <= end) & (r.death[which] >= end)
        noticed[np.arange(len(which)), machine] = False
        return [(which[noticed[:, m]], m) for m in np.flatnonzero(noticed.any(0)).tolist()]

    def _change(self, r: Runs, rows: IntArray) -> None:
        r.on_demand[rows] = ~r.on_demand[rows]
        r.training[rows] = False
        r.step[rows] = r.durable[rows]
        for machine in range(self._job.vms):
            self._ask(r, rows, machine, r.now[rows])

    def _plain(self, which: IntArray, rows: int) -> IntArray | slice:
        """All rows as a slice, which numpy does not copy; pairs with machines need two arrays."""
        if len(which) == rows and self._job.vms == 1:
            return slice(None)
        return which

    def _wait(self, r: Runs, which: IntArray) -> None:
        rows = self._plain(which, len(r.number))
        count = len(which)
        job = self._job
        ends = r.death[rows]
        if self._rigid:  # at the notice, if it is there to hear it
            ends = np.minimum(np.maximum(r.notice[rows], r.ready[rows]), ends)
        first: Any = 0 if job.vms == 1 else ends.argmin(1)
        now = r.now[rows]
        if job.vms == 1:
            death = ends[:, 0]
            ready = r.ready[rows, 0]
        else:
            death = ends[np.arange(count), first]
            ready = r.ready[rows].max(1)
        if self._elastic:  # once all have trained together, those that are there continue
            ready = np.where(r.furthest[rows] > 0, r.ready[rows].min(1), ready)
        there = np.maximum(now, ready)
        preparation = job.replacement_s.draw(self._random, count)
        if job.replacement_s is not job.preparation_s:
            cold = job.preparation_s.draw(self._random, count)
            begins = r.preemptions[rows] == 0
            if self._markets is not None:
                begins &= now == 0  # machines of the other market are replacements as well
            preparation = np.where(begins, cold, preparation)
        prepared = there + preparation
        comes = np.zeros(count, dtype=bool)
        if self._elastic:  # who comes meanwhile joins, and all are prepared again
            joins = np.where(r.ready[rows] > there[:, None], r.ready[rows], NEVER).min(1)
            comes = (joins <= prepared) & (joins < death)
            prepared = np.where(comes, joins, prepared)
            r.members[rows] = r.ready[rows] <= there[:, None]
        r.allocation[rows] += np.maximum(np.minimum(there, death) - now, 0.0)
        r.preparation[rows] += np.maximum(np.minimum(prepared, death) - there, 0.0)
        lost = death <= prepared
        if self._markets is not None:
            r.on_demand_s[rows] += np.where(r.on_demand[rows], prepared - now, 0.0)
        r.now[rows] = np.where(lost, now, prepared)
        r.training[rows] = ~(lost | comes)
        if lost.any():
            self._lose(r, which[lost], first[lost] if job.vms > 1 else 0, death[lost])

    def _train(self, r: Runs) -> None:
        job = self._job
        random = self._random
        now = r.now
        at: Any = (slice(None), 0)
        if job.vms > 1:
            at = np.arange(len(now)), np.where(r.members, r.death, NEVER).argmin(1)
        death = r.death[at]
        notice = r.notice[at]
        slow = 1.0
        if self._elastic:
            slow = job.vms / r.members.sum(1)
        facts = self._policy.facts(r, slow)
        emergency = self._policy.emergency_saves(facts, death - notice)
        stop = death
        joins = None
        if emergency is not None:
            stop = np.where(emergency & (notice < death), np.maximum(notice, now), death)
        if self._elastic:
            joins = np.maximum(np.where(r.members, NEVER, r.ready).min(1), now)
            stop = np.minimum(stop, joins)
        noticed = stop is not death
        # To rows whose machine was lost before it trained nothing happens here
        if waits := not r.training.all():
            stop = np.where(r.training, stop, now)

        gaps = self._policy.growing_intervals(r, facts)
        if gaps is not None and self._markets is None:  # else there is another cap after each save
            pass_over(r, gaps, stop - self._backups.high, job, slow, random)
            gaps = self._policy.growing_intervals(r, facts)
        now = r.now
        step = r.step
        steps, count, saved = self._policy.stretch(r, facts, gaps, stop, random)
        if self._uneven:
            few = stop - now < FEW * (steps * job.step_s.mean * slow + saved * job.blocked_s.mean)
            count = np.where(few, 1.0, count)
        work = total(random, job.step_s, steps * count) * slow
        segment_s = (work + total(random, job.blocked_s, count) * saved) / count
        delay = self._backups.draw(random, saved)
        stretch = Stretch(steps, count, saved, segment_s, work / (steps * count))
        left = stop - now
        at_stop = Cut.even(stretch, left)
        if self._uneven:
            at_stop = Cut.uneven(stretch, left, job.step_s, job.blocked_s, slow, random)
        cut = at_stop.cut
        full = at_stop.full
        since = at_stop.since_s
        trained = at_stop.trained_s
        each = at_stop.step_s
        if waits:
            cut = cut & r.training
        reached = step + full * steps + at_stop.done
        # Checkpoints whose backup ends before the machine is lost.
        newest = full * saved
        past = death - stop + since
        safe = np.minimum(full + np.floor((past - delay) / segment_s), newest)
        end = np.where(cut, stop, now + full * segment_s)

        gone = cut
        grown = None
        made = None
        # A notice, or a machine that joins: the step or the save is still brought to its end
        if noticed:
            early = cut & (stop < death)
            ended = (since <= 0) & (full > 0)  # the save has just been made
            saving = at_stop.saving | ended
            rest = np.where(ended, 0.0, at_stop.rest_s)
            last = reached + ~saving
            joining = np.zeros(len(now), dtype=bool)
            urgent = total(random, job.save_s, cut) + total(random, job.durable_s, cut)
            busy = np.where(saving, delay, urgent)
            if joins is not None:  # machines that continue have the state: nothing has to be moved
                joining = stop == joins
                stall = np.where(saving, 0.0, total(random, job.blocked_s, cut))
                busy = np.where(joining, stall, busy)
            busy = np.where(last >= job.steps, 0.0, busy)
            # Where training had not started yet when the notice came, there is nothing to save.
            idle = left <= 0
            made = early & np.where(idle, joining, stop + rest + busy <= death)
            rest = np.where(early & ~idle, np.minimum(rest, death - stop), 0.0)
            reached = np.where(made & ~idle, last, reached)
            trained = trained + np.where(saving, 0.0, rest)
            each = np.where(
                made & (reached > step), trained / np.maximum(reached - step, 1.0), each
            )
            end = np.where(early, np.where(idle, stop, np.minimum(stop + rest + busy, death)), end)
            newest = newest - (early & ended)  # of that one it is known
            grown = made & joining
            gone = cut & ~(made & (joining | (reached >= job.steps)))
        self._backups.reorder(random, safe, past + (full - newest) * segment_s, segment_s, newest)
        durable = np.where(safe > 0, step + safe * steps, r.durable)
        if made is not None:
            durable = np.where(made, reached, durable)

        fresh = np.minimum(np.maximum(reached - r.furthest, 0.0) * each, trained)
        np.maximum(r.furthest, reached, out=r.furthest)
        r.compute += fresh
        r.recompute += trained - fresh
        r.save += end - now - trained
        if self._markets is not None:
            r.on_demand_s += np.where(r.on_demand, end - now, 0.0)
        r.durable = durable
        r.step = reached
        r.now = end
        if grown is not None:
            r.training &= ~grown
        which = np.flatnonzero(gone)
        if len(which):
            self._lose(r, which, at[1][which] if job.vms > 1 else 0, end[which])
