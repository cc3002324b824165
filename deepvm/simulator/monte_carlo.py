"""Monte Carlo: runs in chunks with their own seeds, in process, in a pool, or on Dask."""

import asyncio
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, suppress
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np

from deepvm.core.preemption.job import Job
from deepvm.core.preemption.savepolicy import SavePolicy, parse_policy
from deepvm.core.units import to_whole
from deepvm.errors import (
    CloudError,
    DeepVMError,
    MissingExtraError,
    RequestError,
    SimulationError,
    WorkerLostError,
)
from deepvm.io.threads import start_thread
from deepvm.records import dataclass, field, replace
from deepvm.simulator.engine.engine import run
from deepvm.simulator.engine.lifetimes import DrawnLifetimes, LifeSource
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.engine.state import Outcome
from deepvm.simulator.jobfile import PRESETS, read_job
from deepvm.simulator.results import Results

CHUNK = 10_000  # Runs per chunk: enough to hide numpy's overhead, few enough for the memory
MACHINES = 16 * CHUNK  # Machines per chunk: large clusters get smaller chunks, for the same reason
CONNECT_S = 15.0
_AHEAD = 256  # Least number of chunks submitted to a Dask cluster, which workers may join later


def simulate(
    job: Job | str | Path,
    policy: SavePolicy | str = "adaptive",
    *,
    runs: int = 100,
    seed: int = 1,
    lives: LifeSource | None = None,
    jobs: int = 1,
    executor: str = "",
    deadline: Deadline | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Simulate a job ``runs`` times, from 1; the same ``seed``, from 0, gives the same runs.

    ``job``: also a preset, such as ``"gpt-1.3b"``, or a simulation file. ``policy``: also its
    name, such as ``"every:10min"``. ``lives``: of machines; by default drawn as the job says.
    ``jobs``: processes of this machine. ``executor``: ``dask://HOST:PORT``, a Dask cluster instead.
    ``progress``: gets the number of further runs that are done.

    Raises:
        RequestError: an argument is out of range or unknown. MissingExtraError: no dask.
        JobFormatError, DataError: the file cannot be used. SimulationError: the job makes no
            progress. WorkerLostError: a process was killed. CloudError: the Dask cluster does not
            answer, or has no workers.
    """
    if not isinstance(job, Job):
        job = PRESETS.get(str(job)) or read_job(Path(job))
    if isinstance(policy, str):
        policy = parse_policy(policy)
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
    """Simulate several cases; each result, or the error of a job that makes no progress."""
    runs = to_whole(runs, "runs", "a whole number from 1 to 100000000", least=1, most=10**8)
    seed = to_whole(seed, "seed", "a whole number from 0", least=0, most=2**63 - 1)
    jobs = to_whole(jobs, "jobs", "a number of processes from 1 to 1024", least=1, most=1024)
    address = ""
    if executor:
        address = _dask_address(executor)
    running = [
        _Case(job, policy, runs, max(1, min(CHUNK, MACHINES // job.vms))) for job, policy in cases
    ]
    tasks = (task for case in running for task in case.tasks(lives, seed, deadline))
    processes = min(jobs, sum(-(-runs // case.size) for case in running))
    outcomes: Generator[Completed, None, None] = (
        (case, number, _chunk(spec)) for case, number, spec in tasks
    )
    if address:
        outcomes = _on_dask(tasks, address)
    elif processes > 1:
        outcomes = _in_processes(tasks, processes)
    with closing(outcomes):
        for case, number, outcome in outcomes:
            more = case.take(number, outcome)
            if progress is not None and more:
                progress(more)
    return [case.answer(seed, deadline) for case in running]


Spec = tuple[Job, SavePolicy, LifeSource, int, int, int, Deadline | None]


@dataclass(eq=False)
class _Case:
    job: Job
    policy: SavePolicy
    left: int  # runs still to come
    size: int  # runs of a chunk
    parts: dict[int, Outcome] = field(default_factory=dict)
    failed: tuple[int, SimulationError] | None = None

    def tasks(
        self, lives: LifeSource | None, seed: int, deadline: Deadline | None
    ) -> "Iterator[Task]":
        runs = self.left
        job = self.job
        if lives is None:
            lives = DrawnLifetimes(job.lifetime, job.mttp_s, job.vms)
        for number, first in enumerate(range(0, runs, self.size)):
            if self.failed is not None:
                return
            size = min(self.size, runs - first)
            yield self, number, (job, self.policy, lives, size, seed, number, deadline)

    def take(self, number: int, outcome: Outcome | SimulationError) -> int:
        """Returns how many further runs are done."""
        done = 0
        if isinstance(outcome, SimulationError):
            # Chunks are handed out in order: the first error is the same anyone who was faster
            if self.failed is None or number < self.failed[0]:
                self.failed = number, outcome
            self.parts.clear()
            done = self.left
        elif self.failed is None:
            self.parts[number] = outcome
            done = len(outcome.total_s)
        self.left -= done
        return done

    def answer(self, seed: int, deadline: Deadline | None) -> Results | SimulationError:
        if self.failed is not None:
            return self.failed[1]
        ordered = [self.parts.pop(number) for number in sorted(self.parts)]
        return Results.gather(self.job, self.policy.name, seed, ordered, deadline)


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


def _in_processes(tasks: Iterator[Task], processes: int) -> Generator[Completed, None, None]:
    # The standard library's pools hang when a worker is killed, or after Ctrl-C (ADR 5).
    # Spawned: a fork of a process with threads (numpy's, or a notebook's) may hang.
    context = get_context("spawn")
    workers = []
    pipes = []
    try:
        with _ignoring_ctrl_c():
            for _ in range(processes):
                ours, theirs = context.Pipe()
                worker = context.Process(target=_work, args=(theirs,), daemon=True)
                worker.start()
                theirs.close()  # so that the pipe ends with the worker
                workers.append(worker)
                pipes.append(ours)
        waiting: dict[Any, tuple[_Case, int]] = {}
        idle = pipes
        while idle or waiting:
            for pipe, (case, number, spec) in zip(idle, tasks, strict=False):
                pipe.send(spec)
                waiting[pipe] = case, number
            if waiting:
                idle = cast(list[Connection], wait(list(waiting))[:1])
            else:
                idle = []
            for pipe in idle:
                outcome = pipe.recv()
                if isinstance(outcome, Exception) and not isinstance(outcome, SimulationError):
                    raise outcome
                yield *waiting.pop(pipe), outcome
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise WorkerLostError(
            f"one of {processes} processes was killed, perhaps because memory ran out; use fewer"
            " --jobs, or none"
        ) from None
    finally:
        with _ignoring_ctrl_c():  # again, it would leave half of them
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.join()


def _work(pipe: Connection) -> None:
    """In a process of its own: simulate chunks until the parent has ended, or was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()  # waits for a pipe that only the parent holds open
        os._exit(143)

    start_thread(end_with_parent)
    with suppress(EOFError, OSError):
        while True:
            spec = pipe.recv()
            outcome: Outcome | Exception
            try:
                outcome = _chunk(spec)
            except Exception as error:
                outcome = error  # raised again by the parent
            pipe.send(outcome)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C, which terminals send to all processes; children inherit it for good."""
    # Only that one may say what signals do
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _dask_address(executor: str) -> str:
    try:
        found = urlsplit(executor)
        if found.scheme == "dask" and found.hostname and found.port and not found.path:
            return found.netloc
    except ValueError:
        pass
    raise RequestError("executor", executor, "dask://HOST:PORT, the address of a Dask scheduler")


def _on_dask(tasks: Iterator[Task], address: str) -> Generator[Completed, None, None]:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise MissingExtraError("executor", "distributed", "dask") from None
    # Workers that lack a module say so with an ImportError
    lost = (OSError, asyncio.TimeoutError, ValueError, CancelledError, KilledWorker, ImportError)
    with _quiet("distributed", "distributed.client"):
        client = _connected(Client, address)
        try:
            with client:
                client.wait_for_workers(1, timeout=CONNECT_S)
                waiting: dict[Any, tuple[_Case, int]] = {}
                done: queue.SimpleQueue[Any] = queue.SimpleQueue()
                more = max(_AHEAD, 2 * sum(client.nthreads().values()))
                while True:
                    for case, number, spec in islice(tasks, more):
                        future = client.submit(_chunk, spec, pure=False)
                        waiting[future] = case, number
                        future.add_done_callback(done.put)
                    if not waiting:
                        return
                    more = 0
                    try:
                        future = done.get(timeout=CONNECT_S)
                    except queue.Empty:
                        # Raises when all of them are gone
                        client.wait_for_workers(1, timeout=CONNECT_S)
                        continue
                    yield *waiting.pop(future), _awaited(client, future)
                    more = 1
        except lost as error:
            if isinstance(error, DeepVMError):
                raise
            raise _unreachable(
                address,
                error,
                "see that the scheduler is up and has workers ('dask worker'), or leave out"
                " --executor",
            ) from None


def _connected(kind: Any, address: str) -> Any:
    # In two steps: what cannot connect has to be closed, or it fails at the end of the process
    client = kind.__new__(kind)
    try:
        client.__init__(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
    except BaseException as error:
        client.close()
        if not isinstance(error, Exception):
            raise
        # Of any kind: what is no scheduler may answer anything.
        raise _unreachable(
            address, error, "start one with 'dask scheduler', or leave out --executor"
        ) from None
    return client


def _unreachable(address: str, error: BaseException, advice: str) -> CloudError:
    reason = " ".join(str(error).rstrip(".").split()) or type(error).__name__
    return CloudError(f"Dask scheduler at {address}", "network", reason, advice)


def _awaited(client: Any, future: Any) -> Outcome | SimulationError:
    while True:
        try:
            return cast(Outcome | SimulationError, future.result(timeout=CONNECT_S))
        except (TimeoutError, asyncio.TimeoutError):
            client.wait_for_workers(1, timeout=CONNECT_S)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    logs = [logging.getLogger(name) for name in names]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
