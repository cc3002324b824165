"""One run as a job of ``deepvm run --cloud local``; this injects faults, watches and records."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from deepvm.errors import DataError
from deepvm.io.atomic_write import write_bytes
from deepvm.jobs.decisions.states import Job
from deepvm.lab.audit.job_leftovers import left_by
from deepvm.lab.faults.fault_registry import find_fault
from deepvm.lab.later import Later
from deepvm.lab.orchestrated.control import RESTART
from deepvm.lab.orchestrated.job import ORDER, JobPlace, job_document, write_job
from deepvm.lab.orchestrated.machines import JobMachines
from deepvm.lab.orchestrated.rank import PLACED
from deepvm.lab.orchestrated.record import JobRecord
from deepvm.lab.plan import Plan, StoppedError
from deepvm.lab.records import EVENTS, SUPERVISOR, events_of, read_lines, steps_of
from deepvm.lab.step_log import StepLog
from deepvm.lab.training.order import Order

_LOOK_S, _STUCK_S, _GONE_S = 0.01, 240.0, 15.0


class JobSupervisor:
    """Of one run."""

    def __init__(self, plan: Plan, stopping: threading.Event | None = None) -> None:
        """Start nothing yet; once ``stopping`` is set, the run is given up."""
        self._plan, self._stopping, self._place = (
            plan,
            stopping or threading.Event(),
            JobPlace(plan.folder),
        )
        self._logs = [StepLog(plan.folder / steps_of(rank)) for rank in range(plan.config["world"])]
        self._outside = [
            one for one in plan.strikes if find_fault(one.fault).moment_of(one) is None
        ]
        self._struck: dict[str, tuple[float, int]] = {}
        self._broken: dict[int, list[str]] = {}
        self._later = Later()
        self._ending = -1
        """The newest attempt that a failure was to end."""
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> bool:
        """Run to the end; returns whether it got there. Leaves no process behind."""
        began, folder, plan = time.time(), self._plan.folder, self._plan
        order = Order(folder.resolve(), 0, plan.config, plan.strikes, plan.disk)
        write_bytes(folder / ORDER, order.to_json())
        write_job(
            self._place,
            job_document(self._place, plan.config, hang_s=plan.hang_s, in_memory=plan.in_memory),
        )
        try:
            self._start()
            self._watch()
            done = self._finished()
        finally:
            ended = time.time()
            self._end()
            (folder / ORDER).unlink(missing_ok=True)
        self._write(began, ended, done=done)
        shutil.rmtree(self._place.state)
        return done

    def _start(self) -> None:
        words = [
            sys.executable,
            "-m",
            "deepvm.lab.orchestrated.control",
            str(self._plan.folder.resolve()),
        ]
        with (self._plan.folder / "controller.log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._place.environ,
                start_new_session=True,  # Ctrl-C is for the lab
            )

    def _watch(self) -> None:
        """Strike on logged progress, until the job is over, or nothing moves any more."""
        assert self._process is not None
        moved = time.monotonic()
        while self._process.poll() is None and time.monotonic() - moved < _STUCK_S:
            if self._stopping.is_set():
                raise StoppedError
            self._later.do_due()
            if any([log.look() for log in self._logs]) or self._strike():
                moved = time.monotonic()
            time.sleep(_LOOK_S)

    def _strike(self) -> bool:
        """Have the next failure happen, if it is time; one generation meets one that ends it."""
        attempt = max(log.attempt for log in self._logs)
        if not self._outside or attempt < 0:
            return False
        strike = self._outside[0]
        fault, log = find_fault(strike.fault), self._logs[strike.rank]
        if (
            log.attempt != attempt
            or log.done < strike.step
            or (fault.ends and attempt <= self._ending)
        ):
            return False
        placed = self._placed(attempt)
        machines = JobMachines(
            self._plan.folder, self._place, placed, strike.rank, self._restart, self._later.add
        )
        if self._stopping.wait(strike.delay_s):
            raise StoppedError
        assert self._process is not None
        if self._process.poll() is not None:  # it comes too late, and stays planned
            return False
        self._struck[strike.key] = time.time(), attempt
        self._ending = attempt if fault.ends else self._ending
        self._outside.remove(strike)
        fault.strike_from_outside(strike, machines)
        self._broken.setdefault(attempt, []).extend(machines.broken)
        return True

    def _placed(self, attempt: int) -> dict[int, str]:
        rows = (
            row
            for rank in range(len(self._logs))
            for row in read_lines(self._plan.folder / events_of(rank))
        )
        return {
            row["rank"]: row["machine"]
            for row in rows
            if row["event"] == PLACED and row["attempt"] == attempt
        }

    def _restart(self, down_s: float) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{RESTART} {down_s}\n".encode())
        self._process.stdin.flush()

    def _finished(self) -> bool:
        assert self._process is not None
        return self._process.poll() == 0

    def _end(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GONE_S)
            process.kill()
            process.wait()
        until = time.monotonic() + _GONE_S
        while (found := left_by(self._plan.folder)) and time.monotonic() < until:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def _write(self, began: float, ended: float, *, done: bool) -> None:
        """The record, and what it was made of, out of the state folder that goes."""
        folder, place = self._plan.folder, self._place
        try:
            events = place.events()
            why = "" if done else _why(place)
        except DataError as error:
            events, why = [], str(error)
        rows: list[dict[str, Any]] = [
            {"time": e.at_s, "event": e.kind, "job": e.state, **e.facts} for e in events
        ]
        write_bytes(folder / EVENTS, "".join(json.dumps(row) + "\n" for row in rows).encode())
        with (folder / "workers.log").open("ab") as log:
            for path in place.logs:
                log.write(path.read_bytes())
        record = JobRecord(folder, self._plan.config, events, self._struck, done, self._broken)
        left = json.loads(place.left.read_bytes()) if place.left.exists() else []
        found = {**record.document(began, ended), "left": left, "why": why}
        write_bytes(folder / SUPERVISOR, json.dumps(found, indent=1).encode())


def _why(place: JobPlace) -> str:
    world = place.world()
    if world.job in (Job.FAILED, Job.STOPPED):
        return world.failure or world.ending or f"the job is {world.job.value}"
    return (
        f"nothing has moved for {_STUCK_S:.0f} s, or its controller has ended; see controller.log"
    )
