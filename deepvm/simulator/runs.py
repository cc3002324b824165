"""Many runs: in chunks with seeds of their own, in this process, in several, or on a Dask cluster.

A chunk is simulated from ``SeedSequence(seed, spawn_key=(chunk,))``, so the same seed gives the same runs wherever and
in whatever order chunks are done; only one chunk at a time is held in full, so memory does not grow with the runs but
for a few numbers of each.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children, get_context
from typing import Any, cast

import numpy as np

from deepvm.core.job import Job
from deepvm.core.savepolicy import SavePolicy, policy_name
from deepvm.errors import CloudError, DeepVMError, MissingExtraError, RequestError, WorkerLostError
from deepvm.simulator.engine import run
from deepvm.simulator.lives import Drawn, LifeSource
from deepvm.simulator.markets import Deadline
from deepvm.simulator.results import Results
from deepvm.simulator.state import Outcome

CHUNK = 10_000
"""Runs that are simulated together: enough that numpy's own time counts little, few enough for the memory."""
MACHINES = 16 * CHUNK
"""Of all runs that are simulated together; fewer runs of large clusters, for the same reason."""
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
        WorkerLostError: a process was ended from outside.
        CloudError: the Dask cluster does not answer, or has no workers.
    """
    if isinstance(runs, bool) or not 1 <= runs <= 10**8:
        raise RequestError("runs", runs, "a whole number from 1 to 100000000")
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise RequestError("seed", seed, "a whole number from 0")
    if isinstance(jobs, bool) or not 1 <= jobs <= 1024:
        raise RequestError("jobs", jobs, "a number of processes from 1 to 1024")
    source = lives if lives is not None else Drawn(job.lifetime, job.mttp_s, job.vms)
    size = max(1, min(CHUNK, MACHINES // job.vms))
    tasks = [
        (job, policy, source, min(size, runs - first), seed, number, deadline)
        for number, first in enumerate(range(0, runs, size))
    ]
    outcomes: list[Outcome] = []
    for outcome in _outcomes(tasks, min(jobs, len(tasks)), executor):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcome.total_s))
    return Results.gather(job, policy_name(policy), seed, outcomes, deadline)


Task = tuple[Job, SavePolicy, LifeSource, int, int, int, Deadline | None]


def _chunk(task: Task) -> Outcome:
    job, policy, lives, runs, seed, number, deadline = task
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    outcome = run(job, policy, lives, runs, random, deadline)
    # Of the parts only the sums are wanted; a million runs would hold, and send, 40 MB of them.
    return replace(outcome, parts_s=outcome.parts_s.sum(axis=1, keepdims=True))


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that start inside do not hear Ctrl-C, which a terminal sends to all; this one ends them."""
    if threading.current_thread() is not threading.main_thread():  # only that one may say what signals do
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _outcomes(tasks: list[Task], jobs: int, executor: str) -> Iterator[Outcome]:
    if executor:
        yield from _on_dask(tasks, executor)
    elif jobs == 1:
        yield from map(_chunk, tasks)
    else:
        # A fresh interpreter each: a fork of a process with threads (numpy's, or a notebook's) may hang.
        others = set(active_children())
        pool: Executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        with pool:
            try:
                with _deaf_children():
                    futures = deque(pool.submit(_chunk, task) for task in tasks)
                while futures:
                    yield futures.popleft().result()
            except BrokenProcessPool:
                raise WorkerLostError(
                    f"one of {jobs} processes was killed, perhaps because memory ran out; use fewer --jobs, or none"
                ) from None
            except BaseException:
                # Nobody waits for chunks that nobody wants: who presses Ctrl-C twice would do so for ever. The futures
                # are not cancelled: the pool's thread fails on such futures when it finds its processes dead.
                for child in set(active_children()) - others:
                    child.kill()
                raise


def _on_dask(tasks: list[Task], executor: str) -> Iterator[Outcome]:
    scheme, _, address = executor.partition("://")
    if scheme != "dask" or not address:
        raise RequestError("executor", executor, "dask://HOST:PORT, the address of a Dask scheduler")
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise MissingExtraError("executor", "distributed", "dask") from None
    advice = "start one with 'dask scheduler', or leave --executor away"
    make: Any = Client  # distributed is not typed
    with _quiet("distributed", "distributed.client"):
        try:
            client: Any = make(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
            with client:
                advice = "see that the scheduler is up and has workers ('dask worker'), or leave --executor away"
                client.wait_for_workers(1, timeout=CONNECT_S)
                for future in client.map(_chunk, tasks, pure=False):
                    yield _awaited(client, future)
        except (OSError, TimeoutError, asyncio.TimeoutError, ValueError, CancelledError, KilledWorker) as error:
            if isinstance(error, DeepVMError):
                raise
            said = " ".join(str(error).rstrip(".").split())
            raise CloudError(f"Dask scheduler at {address}", "network", said, advice) from None


def _awaited(client: Any, future: Any) -> Outcome:
    """The future's result; a cluster that has lost all of its workers is not waited for for ever."""
    while True:
        try:
            return cast(Outcome, future.result(timeout=CONNECT_S))
        except (TimeoutError, asyncio.TimeoutError):
            client.wait_for_workers(1, timeout=CONNECT_S)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """What goes wrong inside is told as an error, and not by a library's logs as well."""
    logs = [logging.getLogger(name) for name in names]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
