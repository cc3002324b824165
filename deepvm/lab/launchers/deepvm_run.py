"""One run as a job of ``deepvm run --cloud local``; this injects faults, watches and records."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time

from deepvm.errors import DataError
from deepvm.io.process_tree import send_signal
from deepvm.jobs.decisions.states import Job
from deepvm.lab.audit.orchestrated import left_by
from deepvm.lab.faults.fault_registry import find_fault
from deepvm.lab.orchestrated.control import RESTART
from deepvm.lab.orchestrated.job import JobPlace, job_document, write_job
from deepvm.lab.orchestrated.machines import JobMachines
from deepvm.lab.orchestrated.rank import PLACED
from deepvm.lab.orchestrated.record import JobRecord
from deepvm.lab.records import EVENTS, events_of, rows_in, steps_of, write_lines
from deepvm.lab.running.launcher import Launcher
from deepvm.lab.running.plan import Plan, from_outside
from deepvm.lab.running.progress import Later, StepLog
from deepvm.lab.running.recovery import write_supervisor

_POLL_S = 0.01
_STUCK_S = 240.0
_GONE_S = 15.0


class DeepvmRun(Launcher):
    """Each run is a job, whose controller starts the ranks."""

    def run(self, plan: Plan, stopping: threading.Event | None = None) -> bool:
        return _JobSupervisor(plan, stopping or threading.Event()).run()


class _JobSupervisor:
    """Of one run."""

    def __init__(self, plan: Plan, stopping: threading.Event) -> None:
        self._plan = plan
        self._place = JobPlace(plan.folder)
        self._ranks = range(plan.config["world"])
        self._logs = [StepLog(plan.folder / steps_of(rank)) for rank in self._ranks]
        self._outside = list(filter(from_outside, plan.strikes))
        self._struck: dict[str, tuple[float, int]] = {}
        self._broken: dict[int, list[str]] = {}
        self._later = Later(stopping)
        self._ending = -1
        """The newest attempt that a failure was to end."""

    def run(self) -> bool:
        began = time.time()
        plan = self._plan
        write_job(self._place, job_document(self._place, plan))
        process = self._started()
        try:
            self._watch(process)
            done = process.poll() == 0
        finally:
            ended = time.time()
            self._end(process)
        self._write(began, ended, done=done)
        shutil.rmtree(self._place.state)
        return done

    def _started(self) -> subprocess.Popen[bytes]:
        folder = self._plan.folder
        words = [sys.executable, "-m", "deepvm.lab.orchestrated.control", str(folder.resolve())]
        with (folder / "controller.log").open("ab") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._place.environ,
                start_new_session=True,  # Ctrl-C is for the lab
            )

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Strike on logged progress, until the job is over, or nothing moves any more."""
        moved = time.monotonic()
        while process.poll() is None and time.monotonic() - moved < _STUCK_S:
            self._later.wait(_POLL_S)
            if any([log.look() for log in self._logs]) or self._strike(process):
                moved = time.monotonic()

    def _strike(self, process: subprocess.Popen[bytes]) -> bool:
        """Have the next failure happen, if it is time; one generation meets one that ends it."""
        attempt = max(log.attempt for log in self._logs)
        if not self._outside or attempt < 0:
            return False
        strike = self._outside[0]
        fault = find_fault(strike.fault)
        log = self._logs[strike.rank]
        if log.attempt != attempt or log.done < strike.step:
            return False
        if fault.ends and attempt <= self._ending:
            return False
        rows = rows_in(self._plan.folder, map(events_of, self._ranks), attempt)
        placed = {row["rank"]: row["machine"] for row in rows if row["event"] == PLACED}
        self._later.wait(strike.delay_s)
        if process.poll() is not None:  # it comes too late, and stays planned
            return False
        self._struck[strike.key] = time.time(), attempt
        self._ending = attempt if fault.ends else self._ending
        self._outside.remove(strike)

        def restart(down_s: float) -> None:
            assert process.stdin is not None
            process.stdin.write(f"{RESTART} {down_s}\n".encode())
            process.stdin.flush()

        broken = self._broken.setdefault(attempt, [])
        place = self._place
        later = self._later.add
        machines = JobMachines(place.run, broken, later, place, placed, strike.rank, restart)
        fault.strike_from_outside(strike, machines)
        return True

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)
        process.kill()
        process.wait()
        until = time.monotonic() + _GONE_S
        while (left := left_by(self._plan.folder)) and time.monotonic() < until:
            send_signal(signal.SIGKILL, left)
            time.sleep(_POLL_S)

    def _write(self, began: float, ended: float, *, done: bool) -> None:
        """The record, and what it was made of, out of the state folder that goes."""
        folder = self._plan.folder
        place = self._place
        try:
            events = place.events()
            reason = "" if done else _reason(place)
        except DataError as error:
            events = []
            reason = str(error)
        rows = [{"time": e.at_s, "event": e.kind, "job": e.state, **e.facts} for e in events]
        write_lines(folder / EVENTS, rows)
        with (folder / "workers.log").open("ab") as log:
            for path in place.logs:
                log.write(path.read_bytes())
        record = JobRecord(folder, self._plan.config, events, self._struck, done, self._broken)
        if place.left.exists():
            left = json.loads(place.left.read_bytes())
        else:
            left = []
        state = "completed" if done else "failed"
        write_supervisor(folder, state, ended - began, record.attempts(), left=left, why=reason)


def _reason(place: JobPlace) -> str:
    """Why a job has not got to its end."""
    world = place.world()
    if world.job in (Job.FAILED, Job.STOPPED):
        return world.failure or world.ending or f"the job is {world.job.value}"
    return (
        f"nothing has moved for {_STUCK_S:.0f} s, or its controller has ended; see controller.log"
    )
