"""Shared by the tests of the engine."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.simulator.engine.engine import run
from deepvm.simulator.engine.lifetimes import DrawnLifetimes, ObservedLifetimes
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.engine.state import PARTS, Outcome
from support.closed_form import usd_per_vm_hour
from support.effort import examples
from support.simulator import naive, naive_elastic


def simulated(
    job: Job, policy: str, runs: int, seed: int = 1, deadline: Deadline | None = None
) -> Outcome:
    lives = DrawnLifetimes(job.lifetime, job.mttp_s, job.vms)
    return run(job, parse_policy(policy), lives, runs, np.random.default_rng(seed), deadline)


def spans(low: float, high: float) -> st.SearchStrategy[Span]:
    return st.tuples(st.floats(low, high), st.floats(0, 0.5)).map(
        lambda p: Span(p[0], p[0] * (1 + p[1]))
    )


def wide(low: float, high: float) -> st.SearchStrategy[Span]:
    """Spans from nothing, and of up to twenty times their beginning."""
    return st.tuples(st.floats(low, high), st.floats(1, 20), st.booleans()).map(
        lambda p: Span(0.0 if p[2] else p[0] / p[1] ** 0.5, p[0] * p[1] ** 0.5)
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Jobs of up to 600 steps that are preempted about once to twenty times."""
    step = draw(spans(0.5, 5.0) | wide(0.5, 5.0))
    steps = draw(st.integers(50, 600))
    work = steps * step.mean
    return Job(
        steps=steps,
        step_s=step,
        save_s=draw(spans(0.1, 4.0) | wide(0.1, 2.0)),
        backup_s=draw(spans(0.0, 30.0) | wide(1.0, 40.0)),
        allocation_s=draw(spans(1.0, 30.0) | wide(1.0, 20.0)),
        preparation_s=draw(spans(1.0, 30.0) | wide(1.0, 20.0)),
        grace_s=draw(st.sampled_from([Span(0, 0), Span(30, 30), Span(120, 120), Span(5, 90)])),
        mttp_s=tuple(
            draw(
                st.lists(st.floats(max(work / 10, 200.0), 2 * work + 200.0), min_size=1, max_size=2)
            )
        ),
        save_every_steps=draw(st.sampled_from([None, 10, 45])),
        spot_usd_per_hour=1.0,
        missed_notice_rate=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        stall_s=draw(st.sampled_from([None, Span(0.05, 0.1)])),
        memory_node_s=draw(st.sampled_from([None, Span(1.0, 3.0), Span(0.0, 60.0)])),
        warm_preparation_s=draw(st.sampled_from([None, Span(0.5, 1.0)])),
        proactive_replacement=draw(st.booleans()),
        vms=draw(st.sampled_from([1, 1, 2, 5])),
        lifetime=draw(st.sampled_from(["exponential", "weibull:0.7", "lomax:2.5", "lognormal:1"])),
    )


Pools = list[list[float]]


def compare(
    job: Job, name: str, plain: int, many: int, seed: int = 5, pools: Pools | None = None
) -> list[tuple[str, float, float, float]]:
    """(what, oracle, difference, standard error of it), all as shares of the oracle's total time.

    Pools: of lives.
    """
    policy, source = parse_policy(name), random.Random(seed)
    if pools is not None:
        slow = [
            naive.simulate(job, policy, source, lives=naive.seen(pools, source))
            for _ in range(plain)
        ]
        fast = run(job, policy, ObservedLifetimes(pools), many, np.random.default_rng(seed))
    else:
        oracle = naive_elastic.simulate if job.elastic else naive.simulate
        slow = [oracle(job, policy, source) for _ in range(plain)]
        fast = simulated(job, name, many, seed)
    total = float(np.mean([o.total_s for o in slow]))
    pairs = {
        "total": ([o.total_s for o in slow], fast.total_s, total),
        "cost": (
            [o.cost_usd for o in slow],
            fast.vm_s / 3600 * usd_per_vm_hour(job),
            total / 3600 * job.vms,
        ),
        # A preemption costs about an allocation and a preparation.
        "preemptions": ([o.preemptions for o in slow], fast.preemptions, total / 600),
        **{
            part: ([getattr(o, part) for o in slow], fast.parts_s[number], total)
            for number, part in enumerate(PARTS)
        },
    }
    found = []
    for what, (a, b, unit) in pairs.items():
        error = np.hypot(np.std(a) / len(a) ** 0.5, np.std(b) / len(b) ** 0.5)
        found.append(
            (what, float(np.mean(a)), (np.mean(b) - np.mean(a)) / unit, float(error) / unit)
        )
    return found


# Not shrunk: each try takes a second, and a smaller job tells no more.
WITHOUT_SHRINKING = settings(
    deadline=None,
    max_examples=examples(48),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)


class Lives:
    """Lives by the number of the machine in the order in which machines are asked for.

    A later one never ends.

    ``numbers``: of the lives that were drawn.
    """

    def __init__(self, *lives: float) -> None:
        self.lives = np.array([*lives, np.inf])
        self.numbers: list[int] = []

    def starts(self, random: np.random.Generator, runs: int) -> np.ndarray:
        return np.zeros(runs, dtype=np.int64)

    def draw(
        self, random: np.random.Generator, starts: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        self.numbers += numbers.tolist()
        return self.lives[np.minimum(numbers, len(self.lives) - 1)]
