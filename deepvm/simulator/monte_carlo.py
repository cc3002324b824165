"""Monte Carlo: many runs in chunks with seeds of their own, in this process, in several, or on a Dask cluster.

A chunk of a case is simulated from ``SeedSequence(seed, spawn_key=(chunk,))``, so the same seed gives the same runs
wherever and in whatever order chunks are done, and whatever other cases there are; the chunks of all cases go through
one pool. A process holds one chunk at a time in full, so memory does not grow with the runs but for a few numbers of
each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import AddressValueError, IPv6Address
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from typing import Any, cast

import numpy as np

from deepvm.core.preemption.job import Job
from deepvm.core.preemption.savepolicy import SavePolicy
from deepvm.errors import CloudError, DeepVMError, MissingExtraError, RequestError, SimulationError, WorkerLostError
from deepvm.simulator.engine.engine import run
from deepvm.simulator.engine.lifetimes import Drawn, LifeSource
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.engine.state import Outcome
from deepvm.simulator.results import Results

CHUNK = 10_000
"""Runs per chunk: enough to hide numpy's overhead, few enough for the memory."""
MACHINES = 16 * CHUNK
"""Machines per chunk: large clusters get smaller chunks, for the same reason."""
CONNECT_S = 15.0
ENDED = 143
"""Exit code of a worker whose parent is gone."""
_AHEAD = 2
"""Chunks submitted per process: one to work on, one to continue with."""
_AHEAD_FAR = 256
"""Least number of chunks submitted to a Dask cluster, which workers may join later."""


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
    (found,) = simulate_each(
        [(job, policy)],
        runs=runs,
        seed=seed,
        lives=lives,
        jobs=jobs,
        executor=executor,
        deadline=deadline,
        progress=progress,
    )
    if isinstance(found, SimulationError):
        raise found
    return found


def simulate_each(
    cases: Sequence[tuple[Job, SavePolicy]],
    *,
    runs: int,
    seed: int,
    lives: LifeSource | None = None,
    jobs: int = 1,
    executor: str = "",
    deadline: Deadline | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Results | SimulationError]:
    """Simulate several cases, each many times; the processes, or the Dask cluster, are shared by all of them.

    Args:
        cases: jobs, each with its policy. The others are those of :func:`simulate`, and ``runs`` is of each case.
        runs: how many of each case.
        seed: as each case alone would have it.
        lives: of all cases, or by the job of each.
        jobs: processes of this machine.
        executor: a Dask cluster in their place.
        deadline: of all cases.
        progress: told how many more runs, of whichever case, are done or will never be.

    Returns:
        The results, in the order of the cases; an error where a job makes no progress.

    Raises:
        RequestError, MissingExtraError, WorkerLostError, CloudError: as :func:`simulate`.
    """
    if isinstance(runs, bool) or not 1 <= runs <= 10**8:
        raise RequestError("runs", runs, "a whole number from 1 to 100000000")
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise RequestError("seed", seed, "a whole number from 0")
    if isinstance(jobs, bool) or not 1 <= jobs <= 1024:
        raise RequestError("jobs", jobs, "a number of processes from 1 to 1024")
    address = _dask_address(executor) if executor else ""
    running = [
        _Case(
            job,
            policy,
            lives if lives is not None else Drawn(job.lifetime, job.mttp_s, job.vms),
            runs,
            max(1, min(CHUNK, MACHINES // job.vms)),
        )
        for job, policy in cases
    ]
    tasks = ((c, n, t) for c in running for n, t in c.tasks(seed, deadline))
    processes = min(jobs, sum(-(-runs // c.size) for c in running))
    with closing(_outcomes(tasks, processes, address)) as outcomes:
        for case, number, outcome in outcomes:
            more = case.take(number, outcome, seed, deadline)
            if progress is not None and more:
                progress(more)
    return [case.answer() for case in running]


Spec = tuple[Job, SavePolicy, LifeSource, int, int, int, Deadline | None]


@dataclass(eq=False)
class _Case:
    """Progress of a case; ``left``: runs still to come, ``size``: runs of a chunk."""

    job: Job
    policy: SavePolicy
    lives: LifeSource
    left: int
    size: int
    parts: dict[int, Outcome] = field(default_factory=dict)
    results: Results | None = None
    failed: tuple[int, SimulationError] | None = None

    def tasks(self, seed: int, deadline: Deadline | None) -> Iterator[tuple[int, Spec]]:
        """Yield the chunks lazily; none after one has failed."""
        for number, first in enumerate(range(0, runs := self.left, self.size)):
            if self.failed is not None:
                return
            yield number, (self.job, self.policy, self.lives, min(self.size, runs - first), seed, number, deadline)

    def take(self, number: int, outcome: Outcome | SimulationError, seed: int, deadline: Deadline | None) -> int:
        """Keep the outcome of a chunk; returns by how many runs fewer are left."""
        if isinstance(outcome, SimulationError):
            # Chunks are handed out in order, and all that were handed out come: the error of the first is the same
            # whoever was faster.
            if self.failed is None or number < self.failed[0]:
                self.failed = number, outcome
            self.parts.clear()
            fewer, self.left = self.left, 0
            return fewer
        if self.failed is not None:
            return 0
        self.parts[number] = outcome
        self.left -= len(outcome.total_s)
        if not self.left:
            ordered = [self.parts[n] for n in sorted(self.parts)]
            self.results = Results.gather(self.job, self.policy.name, seed, ordered, deadline)
            self.parts.clear()
        return len(outcome.total_s)

    def answer(self) -> Results | SimulationError:
        """The results, or the error."""
        if self.failed is not None:
            return self.failed[1]
        assert self.results is not None
        return self.results


Task = tuple[_Case, int, Spec]
Completed = tuple[_Case, int, Outcome | SimulationError]


def _chunk(spec: Spec) -> Outcome | SimulationError:
    job, policy, lives, runs, seed, number, deadline = spec
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    try:
        outcome = run(job, policy, lives, runs, random, deadline)
    except SimulationError as error:
        return error  # an answer for its case, and no reason to stop the others
    # Of the parts only the sums are wanted; a million runs would hold, and send, 40 MB of them.
    return replace(outcome, parts_s=outcome.parts_s.sum(axis=1, keepdims=True))


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C, which a terminal sends to all processes; those that start inside ignore it for good."""
    if threading.current_thread() is not threading.main_thread():  # only that one may say what signals do
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow_parent() -> None:
    """In a process of the pool: ignore Ctrl-C, and end with the parent, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # waits for a pipe that nobody but the parent holds open
        os._exit(ENDED)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _outcomes(tasks: Iterator[Task], processes: int, address: str) -> Generator[Completed, None, None]:
    """Outcomes as they come; a task is taken from the iterator when another one is done."""
    if address:
        yield from _on_dask(tasks, address)
    elif processes <= 1:
        for case, number, spec in tasks:
            yield case, number, _chunk(spec)
    else:
        yield from _in_processes(tasks, processes)


def _in_processes(tasks: Iterator[Task], processes: int) -> Iterator[Completed]:
    # A fresh interpreter each: a fork of a process with threads (numpy's, or a notebook's) may hang.
    others = set(active_children())
    pool: Executor = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_follow_parent)
    try:
        with _ignoring_ctrl_c():
            for _ in range(processes):  # start all workers now, while SIGINT is ignored
                pool.submit(int)
        yield from _bounded(tasks, _AHEAD * processes, pool.submit, lambda future: future.result())
    except BrokenProcessPool:
        raise WorkerLostError(
            f"one of {processes} processes was killed, perhaps because memory ran out; use fewer --jobs, or none"
        ) from None
    except BaseException:
        # Nobody waits for chunks that nobody wants: who presses Ctrl-C twice would do so for ever. The futures are
        # not cancelled: the pool's thread fails on such futures when it finds its processes dead.
        with _ignoring_ctrl_c():
            for child in set(active_children()) - others:
                child.kill()
            # One that was killed while it sent has left half of a message, and as long as anybody could write the rest,
            # which this process could, the pool waits for it. It has no name for that end of its pipe.
            with suppress(AttributeError):
                cast(Any, pool)._result_queue._writer.close()
            pool.shutdown()  # in here, for Ctrl-C again would leave half of it
        raise
    finally:
        pool.shutdown()


def _bounded(
    tasks: Iterator[Task],
    ahead: int,
    submit: Callable[..., Any],
    result: Callable[[Any], Outcome | SimulationError],
    look: Callable[[], object] | None = None,
) -> Iterator[Completed]:
    """Keep ``ahead`` tasks submitted; ``look`` is called when nothing came back for a while."""
    waiting: dict[Any, tuple[_Case, int]] = {}
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def hand_out(count: int) -> None:
        for case, number, spec in islice(tasks, count):
            future = submit(_chunk, spec)
            waiting[future] = case, number
            future.add_done_callback(done.put)

    hand_out(ahead)
    while waiting:
        try:
            future = done.get(timeout=None if look is None else CONNECT_S)
        except queue.Empty:
            assert look is not None
            look()
            continue
        yield *waiting.pop(future), result(future)
        hand_out(1)


def _dask_address(executor: str) -> str:
    """``HOST:PORT``; a malformed address is refused here, before anybody tries to connect."""
    found = re.fullmatch(r"dask://(?:\[([^\[\]]+)\]|([\w.-]+)):([0-9]{1,5})", executor)
    try:
        if found and 1 <= int(found[3]) <= 65535 and (IPv6Address(found[1]) if found[1] else found[2].encode("idna")):
            return executor.removeprefix("dask://")
    except (AddressValueError, UnicodeError):
        pass
    raise RequestError("executor", executor, "dask://HOST:PORT, the address of a Dask scheduler")


def _on_dask(tasks: Iterator[Task], address: str) -> Iterator[Completed]:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise MissingExtraError("executor", "distributed", "dask") from None
    with _quiet("distributed", "distributed.client"):
        client = _connected(Client, address)
        try:
            with client:
                client.wait_for_workers(1, timeout=CONNECT_S)
                yield from _bounded(
                    tasks,
                    max(_AHEAD_FAR, _AHEAD * sum(client.nthreads().values())),
                    partial(client.submit, pure=False),
                    partial(_awaited, client),
                    partial(client.wait_for_workers, 1, timeout=CONNECT_S),
                )
        # Workers that lack a module say so with an ImportError.
        except (OSError, asyncio.TimeoutError, ValueError, CancelledError, KilledWorker, ImportError) as error:
            if isinstance(error, DeepVMError):
                raise
            advice = "see that the scheduler is up and has workers ('dask worker'), or leave --executor away"
            raise _unreachable(address, error, advice) from None


def _connected(kind: Any, address: str) -> Any:
    """Connect a Dask client; ``kind`` is its untyped class."""
    # Made in two steps, so that it is there also if it cannot connect. It has to be closed then: left to the end of the
    # interpreter, it waits for its thread, which is gone, and says that it failed.
    client = kind.__new__(kind)
    try:
        client.__init__(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
    except BaseException as error:
        client.close()
        if not isinstance(error, Exception):
            raise
        # Of any kind: what is no scheduler may answer anything.
        raise _unreachable(address, error, "start one with 'dask scheduler', or leave --executor away") from None
    return client


def _unreachable(address: str, error: BaseException, advice: str) -> CloudError:
    said = " ".join(str(error).rstrip(".").split()) or type(error).__name__
    return CloudError(f"Dask scheduler at {address}", "network", said, advice)


def _awaited(client: Any, future: Any) -> Outcome | SimulationError:
    """The future's result; raises when the cluster has lost all its workers."""
    while True:
        try:
            return cast(Outcome | SimulationError, future.result(timeout=CONNECT_S))
        except (TimeoutError, asyncio.TimeoutError):
            client.wait_for_workers(1, timeout=CONNECT_S)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Silence a library whose failures are raised as errors anyway."""
    logs = [logging.getLogger(name) for name in names]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
