"""Many runs: in chunks with seeds of their own, in this process, in several, or on a Dask cluster.

A chunk is simulated from ``SeedSequence(seed, spawn_key=(chunk,))``, so the same seed gives the same runs wherever and
in whatever order chunks are done; only one chunk at a time is held in full, so memory does not grow with the runs but
for three numbers of each.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from deepvm.core.job import Job
from deepvm.core.savepolicy import SavePolicy, policy_name
from deepvm.errors import CloudError, MissingExtraError, RequestError
from deepvm.simulator.engine import run
from deepvm.simulator.lives import Drawn, LifeSource
from deepvm.simulator.markets import Deadline
from deepvm.simulator.results import Results
from deepvm.simulator.state import Outcome

CHUNK = 5000
"""Runs that are simulated together: enough that numpy's own time counts little, few enough for the memory."""
CONNECT_S = 15.0


def simulate(
    job: Job,
    policy: SavePolicy,
    *,
    runs: int,
    seed: int,
    lives: LifeSource | None = None,
    jobs: int = 1,
    executor: str = "",
    deadline: Deadline | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Simulate a job many times.

    Args:
        job: what is trained.
        policy: when it is saved.
        runs: how many, from 1.
        seed: from 0; the same seed gives the same runs.
        lives: how long machines live; drawn by the law and the mean of the job when None.
        jobs: processes of this machine.
        executor: ``dask://HOST:PORT`` for a Dask cluster in their place.
        deadline: when the job has to be done, and who decides between spot and on-demand VMs.
        progress: told how many more runs are done.

    Raises:
        RequestError: a number that cannot be, or an unknown executor. MissingExtraError: no dask.
        SimulationError: the job does not get ahead.
        CloudError: the Dask cluster does not answer.
    """
    if isinstance(runs, bool) or not 1 <= runs <= 10**8:
        raise RequestError("runs", runs, "a whole number from 1 to 100000000")
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise RequestError("seed", seed, "a whole number from 0")
    if isinstance(jobs, bool) or not 1 <= jobs <= 1024:
        raise RequestError("jobs", jobs, "a number of processes from 1 to 1024")
    source = lives if lives is not None else Drawn(job.lifetime, job.mttp_s)
    tasks = [
        (job, policy, source, min(CHUNK, runs - first), seed, number, deadline)
        for number, first in enumerate(range(0, runs, CHUNK))
    ]
    outcomes: list[Outcome] = []
    for outcome in _outcomes(tasks, min(jobs, len(tasks)), executor):
        # Of the parts only the sums are wanted; a million runs would hold 40 MB of them.
        outcomes.append(replace(outcome, parts_s=outcome.parts_s.sum(axis=1, keepdims=True)))
        if progress is not None:
            progress(len(outcome.total_s))
    return Results.gather(job, policy_name(policy), seed, outcomes, deadline)


Task = tuple[Job, SavePolicy, LifeSource, int, int, int, Deadline | None]


def _chunk(task: Task) -> Outcome:
    job, policy, lives, runs, seed, number, deadline = task
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    return run(job, policy, lives, runs, random, deadline)


def _deaf() -> None:
    """A terminal's Ctrl-C reaches all processes; what becomes of the workers is for the first one to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _outcomes(tasks: list[Task], jobs: int, executor: str) -> Iterator[Outcome]:
    if executor:
        yield from _on_dask(tasks, executor)
    elif jobs == 1:
        yield from map(_chunk, tasks)
    else:
        # A fresh interpreter each: a fork of a process with threads (numpy's, or a notebook's) may hang.
        pool: Executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_deaf)
        with pool:
            try:
                yield from pool.map(_chunk, tasks)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _on_dask(tasks: list[Task], executor: str) -> Iterator[Outcome]:
    scheme, _, address = executor.partition("://")
    if scheme != "dask" or not address:
        raise RequestError("executor", executor, "dask://HOST:PORT, the address of a Dask scheduler")
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("executor", "distributed", "dask") from None
    try:
        make: Any = Client  # distributed is not typed
        client: Any = make(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        advice = "start one with 'dask scheduler', or leave --executor away"
        raise CloudError(f"Dask scheduler at {address}", "network", str(error), advice) from None
    with client:
        futures = client.map(_chunk, tasks, pure=False)
        for future in futures:
            yield future.result()
