"""Jobs with a deadline in simulated time."""

from __future__ import annotations

import random

from support.jobs.simulation import Faults, Simulation, finished

from deepvm.jobs.decisions.markets import is_on_demand
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobLimits, Pool

BOUGHT = Pool("a", "z", "on-demand", 10.0)
LONGEST_START_S = 6.0 + 3.0 + 7.0 + 5.0  # boot, load, and until both are heard of


def terms(
    count: int, end_s: float, policy: str, steps: int = 200, least: int | None = None
) -> JobLimits:
    return JobLimits(
        least or count,
        count,
        end_s=end_s,
        steps=steps,
        deadline_policy=policy,
        bought=(BOUGHT,),
        restart_s=LONGEST_START_S,
        version_s=2.0,
        silent_s=6.0,
        lost_s=12.0,
        absent_s=20.0,
    )


def meets_the_deadline(
    seed: int,
    policy: str,
    count: int,
    slack: float,
    losses: int,
    notices: int,
    mean_s: float,
    refusals: float,
    gone_s: float,
) -> None:
    """Check that a job of 200 steps is done in time.

    From ``gone_s`` on no spot machine is to be had.
    """
    steps = 200
    end_s = (1 + slack) * steps + 3 * LONGEST_START_S + 2
    faults = Faults(notices, 8.0, losses, mean_s=mean_s)
    simulation = Simulation(random.Random(seed), terms(count, end_s, policy, steps), faults, steps)
    # Of spot only: on-demand machines are to be had, or nothing helps. From some moment on there
    # are none at all.
    simulation.refused = lambda pool: (
        not is_on_demand(pool) and (simulation.now > gone_s or simulation.rng.random() < refusals)
    )
    world = finished(simulation)
    assert world.job is Job.DONE, (world.ending, world.steps)
    # Until all is released
    assert simulation.ended_s is not None and simulation.ended_s <= end_s + 10
